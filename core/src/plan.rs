//! The memory of a decode, computed before anything is allocated.

use crate::forward::work_bytes;
use crate::geometry::{BlockShape, Geometry};
use crate::ops::CacheShape;
use crate::policy::Summary;
use crate::settings::Settings;
use std::fmt;

/// Bytes of one kind of array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct PoolBytes {
    /// What it holds.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// In the host store rather than in device memory.
    pub host: bool,
}

/// What one decode will hold beside the weights.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct MemoryPlan {
    /// Kind by kind.
    pub pools: Vec<PoolBytes>,
}

/// Tokens of one sequence of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqLength {
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Most tokens that are decoded after its first one.
    pub max_new: usize,
}

/// Blocks by which the host store of a sequence grows.
pub const GROWTH_BLOCKS: usize = 16;

/// The shape of the caches of one layer for this batch.
pub fn cache_shape(g: &Geometry, settings: &Settings, seqs: &[SeqLength]) -> CacheShape {
    let bt = settings.block_tokens;
    let blocks =
        seqs.iter().map(|s| (s.prompt + s.max_new + settings.max_rows).div_ceil(bt)).max().unwrap_or(0);
    let budget = if settings.mode.resident() { blocks } else { settings.budget_blocks().min(blocks) };
    CacheShape {
        seqs: seqs.len(),
        kv_heads: g.kv_heads,
        slots: budget,
        tail_tokens: bt + settings.max_rows,
        blocks,
        block: BlockShape { tokens: bt, head_dim: g.head_dim },
    }
}

/// What a plan needs to know of the policies beside the summary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlanExtra {
    /// Bytes of the device chain ([`crate::chain::ChainSpec::bytes`]); 0 where pools are the host's.
    pub chain: usize,
    /// Layers whose output rows the draft source reads.
    pub hidden_layers: usize,
}

impl MemoryPlan {
    /// The plan of a batch.
    pub fn new(
        g: &Geometry,
        settings: &Settings,
        seqs: &[SeqLength],
        summary: &dyn Summary,
        extra: PlanExtra,
    ) -> Self {
        let shape = cache_shape(g, settings, seqs);
        let (pools, rows) = (shape.pools(), seqs.len() * settings.max_rows);
        let ranks = settings.ranks();
        let summary_bytes = if ranks { shape.blocks * summary.shape(shape.block).bytes() } else { 0 };
        let fit = if ranks { 4 * summary.fit_len(shape.block) } else { 0 };
        let lse = if ranks { 4 * g.heads * (shape.slots + 1) } else { 0 };
        let steps =
            rows * (2 * 2 * g.kv_dim() + 4 * g.vocab + 4 * extra.hidden_layers * g.hidden) + 4 * g.vocab;
        let tables = 4 * (6 * rows + 2 * seqs.len() + 1);
        let prompt = |s: &SeqLength| s.prompt / shape.block.tokens;
        let grown = |s: &SeqLength| {
            let own = (s.prompt + s.max_new) / shape.block.tokens - prompt(s);
            own.div_ceil(GROWTH_BLOCKS) * GROWTH_BLOCKS
        };
        let block = g.layers * g.kv_heads * shape.block.bytes();
        let device = [
            ("slots", g.layers * 2 * shape.slot_elems()),
            ("tail", g.layers * 2 * shape.tail_elems()),
            ("summaries", g.layers * pools * (summary_bytes + fit)),
            ("scores", usize::from(ranks) * (1 + usize::from(settings.audit)) * pools * shape.blocks * 4),
            ("entries", g.layers * pools * 4 * (shape.slots + 1)),
            ("queries", g.layers * rows * (2 * g.q_dim() + lse)),
            ("chain", extra.chain),
            ("activations", work_bytes(g, rows) + steps + tables),
        ];
        let host = [
            ("host prompt", block * seqs.iter().map(prompt).sum::<usize>()),
            ("host growth", block * seqs.iter().map(grown).sum::<usize>()),
        ];
        let device = device.iter().map(|&(name, bytes)| PoolBytes { name, bytes: bytes as u64, host: false });
        let host = host.iter().map(|&(name, bytes)| PoolBytes { name, bytes: bytes as u64, host: true });
        Self { pools: device.chain(host).collect() }
    }

    /// Bytes of device memory.
    pub fn device(&self) -> u64 {
        self.pools.iter().filter(|p| !p.host).map(|p| p.bytes).sum()
    }

    /// Bytes of the host store.
    pub fn host(&self) -> u64 {
        self.pools.iter().filter(|p| p.host).map(|p| p.bytes).sum()
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.pools {
            let place = if p.host { "host" } else { "device" };
            writeln!(f, "{:<12} {:>10.2} MiB  {place}", p.name, p.bytes as f64 / (1 << 20) as f64)?;
        }
        Ok(())
    }
}
