//! The background chain on a device: pools, ranking, selection, fetches and seals that ask the host for nothing.
//!
//! A decode whose policies all have device twins ([`crate::policy::DeviceSummary`], [`crate::policy::DeviceEvictor`],
//! [`crate::policy::Predictor::rows`]) and that is not audited runs its chain here, on a backend that has one; every
//! other decode keeps its pools on the host ([`crate::pool`], [`crate::select`]). Both make the same decisions: the
//! host path is the reference.

use crate::Result;
use crate::geometry::Geometry;
use crate::ids::Step;
use crate::ops::{CacheShape, Memory, RowTable, TailMove};
use crate::policy::{DeviceEvictor, DeviceSummary, Summary, SummaryShape};
use crate::pool::Pool;
use crate::settings::{Group, Mode, Scope, Settings};
use crate::store::HostStore;
use half::bf16;

/// Everything that a chain is compiled and sized for.
pub struct ChainSpec<'a> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Sizes of the caches of a layer; `shape.slots` are physical slots.
    pub shape: &'a CacheShape,
    /// Slots of a pool: what a budget holds. In modes that keep all KV resident there are more physical slots,
    /// and block b lies in physical slot b.
    pub pool_slots: usize,
    /// The decode's settings.
    pub settings: &'a Settings,
    /// How scores combine.
    pub group: Group,
    /// The summary; none where nothing is ranked.
    pub summary: Option<ChainSummary<'a>>,
    /// The evictor's twin; none in `dense`, which evicts nothing.
    pub evictor: Option<DeviceEvictor>,
}

/// A summary as a chain needs it.
pub struct ChainSummary<'a> {
    /// The policy.
    pub policy: &'a dyn Summary,
    /// Its stored form.
    pub shape: SummaryShape,
    /// Its twin.
    pub device: DeviceSummary,
}

/// Numbers that a pool counts in a step, see [`PoolCounts`].
pub const COUNTS: usize = 10;

impl ChainSpec<'_> {
    /// Most query heads times ranking rows of a pool, in eights.
    pub fn queries(&self) -> usize {
        (self.settings.max_rows * self.geometry.group()).next_multiple_of(8)
    }

    /// Whether blocks are ranked.
    pub fn ranks(&self) -> bool {
        self.settings.ranks()
    }

    /// Whether anything is copied from the host store.
    pub fn fetches(&self) -> bool {
        self.ranks() && !self.settings.mode.resident()
    }

    /// Which blocks are attended.
    pub fn scope(&self) -> Scope {
        self.settings.scope
    }

    /// Words of what a commit tells of a sequence: moves, block to be sealed ([`crate::ids::NONE`]: none), tokens behind
    /// it, then (from, to) of every move.
    pub fn record(&self) -> usize {
        3 + 2 * self.settings.max_rows
    }

    /// 64-bit words of where a sequence's host store lies: blocks of its prompt, address of the prompt's extent, then of
    /// each grown one.
    pub fn extent_words(&self) -> usize {
        2 + extents_of(self.shape.blocks)
    }

    /// Arrays in device memory: a name and the bytes, in the order in which they are allocated.
    pub fn arrays(&self) -> Vec<(&'static str, usize)> {
        let (g, shape) = (self.geometry, self.shape);
        let (pools, blocks) = (shape.pools(), shape.blocks);
        let pooled = usize::from(self.settings.mode != Mode::Dense);
        let ranked = usize::from(self.ranks());
        let (all, queries) = (g.layers * pools, self.queries());
        let dim = self.summary.as_ref().map_or(0, |s| s.shape.dim);
        let cap = if self.fetches() { self.settings.cap_blocks() } else { 0 };
        vec![
            ("meta", pooled * 4 * META * all * self.pool_slots),
            ("slot_of", pooled * 4 * all * blocks),
            ("state", pooled * 4 * STATE * all),
            ("seeds", pooled * 8 * all),
            ("moves", 16 * all * cap),
            ("move_count", 4 * g.layers),
            ("counts", 4 * COUNTS * all),
            ("lifted", ranked * 4 * pools * queries * dim),
            ("bias", ranked * 4 * pools * queries),
            ("logits", ranked * 4 * pools * queries * blocks),
            ("scores", ranked * 4 * pools * blocks),
            ("resident", ranked * 4 * pools * queries),
            ("control", 4 * (CONTROL_STEP + CONTROL_SEQ * shape.seqs)),
            ("commit", 4 * self.record() * shape.seqs),
            ("extents", 8 * shape.seqs * self.extent_words()),
            ("layers", 8 * LAYER_POINTERS * g.layers),
        ]
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.arrays().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Words of a slot's history: block, admitted, last_selected, last_attended, selections, mass, flags, the evictor's own.
pub const META: usize = 8;
/// Words of a pool that belong to its evictor.
pub const STATE: usize = 4;
/// Words of the control block that belong to the step: its number, and three to spare.
pub const CONTROL_STEP: usize = 4;
/// Words of the control block for each sequence, see [`SeqControl`].
pub const CONTROL_SEQ: usize = 4;
/// Addresses kept for a layer: slots, tail, summaries, fit, entries, entry_count, q, block_lse.
pub const LAYER_POINTERS: usize = 8;

/// Most growth extents of a sequence of at most `blocks` blocks.
pub fn extents_of(blocks: usize) -> usize {
    blocks.div_ceil(crate::plan::GROWTH_BLOCKS)
}

/// What a step tells the chain of a sequence; [`CONTROL_SEQ`] words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct SeqControl {
    /// First candidate block.
    pub first: u32,
    /// End of the candidates.
    pub end: u32,
    /// Sealed blocks.
    pub blocks: u32,
    /// Ranking rows, as bits; 0: the sequence sits this step out.
    pub rows: u32,
}

/// What one pool did in a step, its seals before the next one included; [`COUNTS`] words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct PoolCounts {
    /// |P|.
    pub wanted: u32,
    /// Wanted and resident.
    pub hits: u32,
    /// Wanted and admitted.
    pub fetched: u32,
    /// Wanted, neither.
    pub dropped: u32,
    /// Blocks that left for admissions.
    pub evicted: u32,
    /// Of these, fetched and never used.
    pub wasted: u32,
    /// NaN scores.
    pub nans: u32,
    /// Blocks that the step attended.
    pub attended: u32,
    /// Blocks that left for sealed ones.
    pub seal_evicted: u32,
    /// Of these, fetched and never used.
    pub seal_wasted: u32,
}

/// The arrays of one layer that a chain reads and writes.
pub struct ChainLayer<'a, B: Memory + ?Sized> {
    /// `[pools][slots][K | V]`.
    pub slots: &'a B::Buf<bf16>,
    /// `[pools][K | V]` of the tails.
    pub tail: &'a B::Buf<bf16>,
    /// `[pools][blocks][summary bytes]`.
    pub summaries: &'a B::Buf<u8>,
    /// `[pools][fit_len]`.
    pub fit: &'a B::Buf<f32>,
    /// Physical slots to attend, by block id, `[pools][slots]`.
    pub entries: &'a B::Buf<u32>,
    /// `[pools]`.
    pub entry_count: &'a B::Buf<u32>,
    /// Queries of the pass, `[rows][heads][head_dim]`.
    pub q: &'a B::Buf<bf16>,
    /// Log masses of the pass's attention, `[rows][heads][slots + 1]`; the last column is the tail.
    pub block_lse: &'a B::Buf<f32>,
}

/// The chain of a device. All methods but [`Chain::counts`] and [`Chain::resident`] only order work on the lane they
/// are called on ([`crate::ops::Order`]); [`Chain::observe`] and [`Chain::rank`] may be recorded.
pub trait Chain: Memory {
    /// The chain's arrays and compiled kernels. It keeps the arrays of its layers alive.
    type Chain: Send;

    /// Whether this backend has a chain for `spec`; why not, otherwise.
    fn has_chain(&self, spec: &ChainSpec<'_>) -> std::result::Result<(), String>;

    /// Compiles and allocates; `seeds` `[layers][pools]` are the evictors'. The store has all its extents already.
    fn open_chain(
        &mut self,
        spec: &ChainSpec<'_>,
        layers: &[ChainLayer<'_, Self>],
        store: &HostStore<Self>,
        seeds: &[u64],
    ) -> Result<Self::Chain>;

    /// Takes over the pools of a layer, `[pools]`. Entries are on the device already.
    fn load_pools(&mut self, chain: &mut Self::Chain, layer: usize, pools: &[Pool]) -> Result<()>;

    /// What the next pass is about: once before it, never recorded. `seqs` `[seqs]`.
    fn begin_pass(&mut self, chain: &mut Self::Chain, now: Step, seqs: &[SeqControl]) -> Result<()>;

    /// Takes the masses of row 0 from `block_lse` into the histories of the attended blocks.
    fn observe(&mut self, chain: &mut Self::Chain, layer: usize, rows: &RowTable<Self>) -> Result<()>;

    /// Lift, score, combine, select, fetch, and the new entries. Where scores are normalised with the mass of what is
    /// pinned, it is taken from `block_lse`.
    fn rank(&mut self, chain: &mut Self::Chain, layer: usize, rows: &RowTable<Self>) -> Result<()>;

    /// In every layer: moves of tail tokens, in order; then each (sequence, block) of `seals` is sealed: host store, slot (if
    /// the window or the evictor finds one), summary, entries, and the rest of its tail moves to the front.
    /// `rest[i]` tokens follow the sealed block of `seals[i]`.
    fn commit(
        &mut self,
        chain: &mut Self::Chain,
        now: Step,
        moves: &[TailMove],
        seals: &[[u32; 2]],
        rest: &[u32],
    ) -> Result<()>;

    /// Reads `[layers][pools]` counts of the last pass and the commit after it.
    fn counts(&mut self, chain: &mut Self::Chain, out: &mut [PoolCounts]) -> Result<()>;

    /// Reads the blocks of a layer's slots, `[pools][pool_slots]`; [`crate::ids::NONE`]: free.
    fn resident(&mut self, chain: &mut Self::Chain, layer: usize, out: &mut Vec<u32>) -> Result<()>;
}
