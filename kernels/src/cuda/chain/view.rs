//! What the chain's kernels get, see chain.cuh.

use super::super::CudaBuf;
use bytemuck::{Pod, Zeroable};
use oasis_core::chain::ChainSpec;
use oasis_core::settings::{Mode, Scope};
use oasis_core::{Error, Result};

/// Addresses of a layer's arrays; `Layer` of chain.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct LayerView {
    pub slots: u64,
    pub tail: u64,
    pub summaries: u64,
    pub fit: u64,
    pub entries: u64,
    pub entry_count: u64,
    pub q: u64,
    pub block_lse: u64,
}

/// Addresses of the chain's arrays, and sizes; `Chain` of chain.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub meta: u64,
    pub slot_of: u64,
    pub state: u64,
    pub seeds: u64,
    pub moves: u64,
    pub move_count: u64,
    pub counts: u64,
    pub scores: u64,
    pub resident: u64,
    pub control: u64,
    pub extents: u64,
    pub layers: u64,
    pub pools: u32,
    pub kv_heads: u32,
    pub layer_count: u32,
    pub slots: u32,
    pub pool_slots: u32,
    pub blocks: u32,
    pub tail_tokens: u32,
    pub queries: u32,
    pub k: u32,
    pub cap: u32,
    pub sink: u32,
    pub window: u32,
    pub extent_words: u32,
    pub growth_blocks: u32,
    pub by_block: u32,
    pub selected_only: u32,
    pub pooled: u32,
    pub record: u32,
}

/// The chain's arrays by their names in [`ChainSpec::arrays`].
pub(super) struct Arrays(pub Vec<(&'static str, CudaBuf<u8>)>);

impl Arrays {
    /// Where an array starts.
    pub fn at(&self, name: &str) -> Result<u64> {
        let found = self.0.iter().find(|(n, _)| *n == name);
        found
            .map(|(_, buf)| buf.at(0))
            .ok_or_else(|| Error::Invariant(format!("the chain has no array `{name}`")))
    }
}

impl View {
    /// The view of a spec's arrays.
    pub fn new(spec: &ChainSpec<'_>, arrays: &Arrays, growth_blocks: usize) -> Result<Self> {
        let (shape, settings) = (spec.shape, spec.settings);
        let at = |name| arrays.at(name);
        let size = |x: usize| {
            u32::try_from(x)
                .map_err(|_| Error::Capacity(format!("a chain with a size of {x}; 2³² is the limit")))
        };
        Ok(Self {
            meta: at("meta")?,
            slot_of: at("slot_of")?,
            state: at("state")?,
            seeds: at("seeds")?,
            moves: at("moves")?,
            move_count: at("move_count")?,
            counts: at("counts")?,
            scores: at("scores")?,
            resident: at("resident")?,
            control: at("control")?,
            extents: at("extents")?,
            layers: at("layers")?,
            pools: size(shape.pools())?,
            kv_heads: size(shape.kv_heads)?,
            layer_count: size(spec.geometry.layers)?,
            slots: size(shape.slots)?,
            pool_slots: size(spec.pool_slots)?,
            blocks: size(shape.blocks)?,
            tail_tokens: size(shape.tail_tokens)?,
            queries: size(spec.queries())?,
            k: size(settings.k())?,
            cap: size(settings.cap_blocks())?,
            sink: size(settings.sink_blocks)?,
            window: size(settings.window())?,
            extent_words: size(spec.extent_words())?,
            growth_blocks: size(growth_blocks)?,
            by_block: u32::from(settings.mode.resident()),
            selected_only: u32::from(spec.scope() == Scope::Selected),
            pooled: u32::from(settings.mode != Mode::Dense),
            record: size(spec.record())?,
        })
    }
}
