//! Compiling and allocating a chain.

use super::super::compile::Source;
use super::super::{Cuda, CudaBuf, Module};
use super::view::{Arrays, LayerView, View};
use super::{CudaChain, POOL_SLOTS, SHARED, launch};
use crate::ops::score::{
    MOST_QUERIES, SCORE_KERNELS, SCORE_SOURCES, TWIN_KERNELS, TWIN_SOURCES, score_defines,
};
use oasis_core::chain::{ChainLayer, ChainSpec};
use oasis_core::policy::DeviceEviction;
use oasis_core::settings::Mode;
use oasis_core::store::HostStore;
use oasis_core::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Before the policies' code.
const POOL: &str = include_str!("../pool.cuh");

/// Of a chain that ranks: the score op's, the twins', its own.
pub(in crate::cuda) const RANKED: [Source; 11] = [
    SCORE_SOURCES[0],
    SCORE_SOURCES[1],
    SCORE_SOURCES[2],
    SCORE_SOURCES[3],
    SCORE_SOURCES[4],
    TWIN_SOURCES[0],
    ("encode.cuh", include_str!("../encode.cuh")),
    CHAIN[0],
    CHAIN[1],
    CHAIN[2],
    CHAIN[3],
];

/// Of a chain that ranks nothing.
pub(in crate::cuda) const UNRANKED: [Source; 5] = [SCORE_SOURCES[0], CHAIN[0], CHAIN[1], CHAIN[2], CHAIN[3]];

const CHAIN: [Source; 4] = [
    ("chain.cuh", include_str!("../chain.cuh")),
    ("observe.cu", include_str!("../../ops/observe.cu")),
    ("select.cu", include_str!("../../ops/select.cu")),
    ("commit.cu", include_str!("../../ops/commit.cu")),
];

const KERNELS: [&str; 5] = ["observe", "pinned_mass", "select_blocks", "commit", "number_slots"];

/// The code of a chain's policies, and what its module is compiled with.
pub(in crate::cuda) fn program(spec: &ChainSpec<'_>) -> (String, Vec<(&'static str, String)>) {
    let (block, group) = (spec.shape.block, spec.geometry.group());
    let mut code = POOL.to_owned();
    let mut defines = match &spec.summary {
        Some(summary) => score_defines(summary.policy, &summary.shape, block, group),
        None => [("TOKENS", block.tokens), ("HEAD_DIM", block.head_dim), ("GROUP", group)]
            .map(|(name, value)| (name, value.to_string()))
            .to_vec(),
    };
    if let Some(summary) = &spec.summary {
        defines.push(("RANKED", "1".into()));
        code.push_str(&summary.device.code);
    }
    match spec.evictor.as_ref().map(|e| &e.code) {
        Some(DeviceEviction::Keep(keep)) => defines.push(("KEEP", format!("({keep})"))),
        Some(DeviceEviction::Queue(queue)) => {
            defines.push(("QUEUE", "1".into()));
            code.push_str(queue);
        }
        // `dense` evicts nothing.
        None => defines.push(("KEEP", "0.0f".into())),
    }
    (code, defines)
}

/// Why there is no chain for this.
pub(in crate::cuda) fn refuse(spec: &ChainSpec<'_>) -> Option<String> {
    let (block, slots) = (spec.shape.block, spec.pool_slots);
    if !block.head_dim.is_multiple_of(8) {
        return Some(format!(
            "heads of {} coordinates; the device's chain takes multiples of 8",
            block.head_dim
        ));
    }
    if slots > POOL_SLOTS && spec.settings.mode != Mode::Dense {
        return Some(format!("pools of {slots} slots; the device's chain takes {POOL_SLOTS}"));
    }
    if commit_shared(spec) > SHARED {
        return Some(format!(
            "{} bytes of keys and summary vectors a block; the device's chain takes {SHARED}",
            commit_shared(spec)
        ));
    }
    if spec.ranks() && spec.queries() > MOST_QUERIES {
        return Some(format!("{} queries a pool; the device's chain takes {MOST_QUERIES}", spec.queries()));
    }
    None
}

/// Dynamic shared memory of a commit's thread block.
pub(super) fn commit_shared(spec: &ChainSpec<'_>) -> usize {
    let lists = if spec.settings.mode == Mode::Dense { 0 } else { 8 * spec.pool_slots };
    let vectors =
        spec.summary.as_ref().map_or(0, |s| 4 * (spec.shape.block.half() + s.shape.vectors * s.shape.dim));
    lists.max(vectors)
}

impl Cuda {
    fn chain_module(&self, spec: &ChainSpec<'_>) -> Result<Arc<Module>> {
        let (code, defines) = program(spec);
        if spec.summary.is_none() {
            return self.gpu.module(&UNRANKED, &code, &defines, &KERNELS);
        }
        let kernels: Vec<&str> = KERNELS.iter().chain(&SCORE_KERNELS).chain(&TWIN_KERNELS).copied().collect();
        self.gpu.module(&RANKED, &code, &defines, &kernels)
    }

    pub(super) fn make_chain(
        &mut self,
        spec: &ChainSpec<'_>,
        layers: &[ChainLayer<'_, Self>],
        store: &HostStore<Self>,
        seeds: &[u64],
    ) -> Result<CudaChain> {
        if let Some(why) = refuse(spec) {
            return Err(Error::Unsupported(why));
        }
        let module = self.chain_module(spec)?;
        let allocate = |(name, bytes)| Ok((name, CudaBuf::new(&self.gpu, bytes)?));
        let arrays = Arrays(spec.arrays().into_iter().map(allocate).collect::<Result<_>>()?);
        let view = View::new(spec, &arrays, store.growth_blocks())?;
        let of_layers: Vec<LayerView> = layers.iter().map(layer_view).collect();
        self.upload_to(view.layers, bytemuck::cast_slice(&of_layers))?;
        let (table, growth) = extents(spec, store)?;
        self.upload_to(view.extents, bytemuck::cast_slice(&table))?;
        if spec.settings.mode != Mode::Dense {
            self.upload_to(view.seeds, bytemuck::cast_slice(seeds))?;
        }
        let scoring = spec.summary.as_ref().map(|_| launch::Scoring::new(spec, &arrays)).transpose()?;
        Ok(CudaChain {
            commit_list: arrays.at("commit")?,
            arrays,
            module,
            view,
            layers: of_layers,
            scoring,
            fetches: spec.fetches() && view.cap > 0,
            growth,
            block_tokens: spec.shape.block.tokens as u32,
            chunk_bytes: spec.shape.block.bytes() as u32,
            queue: matches!(spec.evictor.as_ref().map(|e| &e.code), Some(DeviceEviction::Queue(_))),
            commit_shared: commit_shared(spec) as u32,
            ranks: spec.ranks(),
            words: Vec::with_capacity(spec.record() * spec.shape.seqs),
            alive: layers.iter().flat_map(shares).flatten().collect(),
        })
    }
}

fn layer_view(l: &ChainLayer<'_, Cuda>) -> LayerView {
    LayerView {
        slots: l.slots.at(0),
        tail: l.tail.at(0),
        summaries: l.summaries.at(0),
        fit: l.fit.at(0),
        entries: l.entries.at(0),
        entry_count: l.entry_count.at(0),
        q: l.q.at(0),
        block_lse: l.block_lse.at(0),
    }
}

fn shares(l: &ChainLayer<'_, Cuda>) -> [Option<Arc<super::super::memory::Allocation>>; 8] {
    [
        l.slots.share(),
        l.tail.share(),
        l.summaries.share(),
        l.fit.share(),
        l.entries.share(),
        l.entry_count.share(),
        l.q.share(),
        l.block_lse.share(),
    ]
}

/// Where every sequence's blocks lie in the host store, see [`ChainSpec::extent_words`]; and the blocks that it can grow.
fn extents(spec: &ChainSpec<'_>, store: &HostStore<Cuda>) -> Result<(Vec<u64>, Vec<Range<u64>>)> {
    let words = spec.extent_words();
    let mut table = vec![0; words * spec.shape.seqs];
    let mut growth = vec![0..0; spec.shape.seqs];
    for (seq, (row, growth)) in table.chunks_exact_mut(words).zip(&mut growth).enumerate() {
        for (i, extent) in store.extents(seq).enumerate() {
            let blocks = extent.layout.blocks as u64;
            if i == 0 {
                row[0] = blocks;
                growth.start = blocks;
            }
            growth.end += blocks;
            let place = row.get_mut(1 + i).ok_or_else(|| {
                let blocks = spec.shape.blocks;
                Error::Invariant(format!("sequence {seq} has more extents than its {blocks} blocks need"))
            })?;
            *place = extent.data.at(0);
        }
    }
    Ok((table, growth))
}
