//! The device's chain: pools whose blocks are ranked, selected, fetched and sealed without asking the host.
//!
//! The kernels lie in `pool.cuh`, `chain.cuh` and beside the ops (observe.cu, select.cu, commit.cu, fetch.cu), and are
//! compiled with the policies' twins. What changes from pass to pass is in the control block, so that the launches of
//! [`Chain::observe`] and [`Chain::rank`] can be recorded.

mod launch;
pub(super) mod open;
mod view;

use super::memory::Allocation;
use super::{Cuda, Module};
use bytemuck::Zeroable;
use oasis_core::chain::{COUNTS, Chain, ChainLayer, ChainSpec, META, PoolCounts, STATE, SeqControl};
use oasis_core::ids::{NONE, Step};
use oasis_core::ops::{RowTable, TailMove};
use oasis_core::pool::Pool;
use oasis_core::store::HostStore;
use oasis_core::{Error, Result};
use std::sync::Arc;

/// Most slots of a pool: lists of them lie in shared memory.
const POOL_SLOTS: usize = 4096;

/// Most dynamic shared memory of a thread block that every device with bf16 tensor cores has.
const SHARED: usize = 96 << 10;

/// A slot's words on the device, `SlotMeta` of pool.cuh.
const FREE: [u32; META] = [NONE, 0, 0, 0, 0, 0, 0, 0];
/// Flags of a slot, as pool.cuh has them.
const SELECTED: u32 = 1;
const UNUSED: u32 = 2;

/// See the module.
pub struct CudaChain {
    arrays: view::Arrays,
    module: Arc<Module>,
    view: view::View,
    layers: Vec<view::LayerView>,
    scoring: Option<launch::Scoring>,
    fetches: bool,
    ranks: bool,
    chunk_bytes: u32,
    /// The evictor is a queue policy.
    queue: bool,
    commit_shared: u32,
    commit_list: u64,
    block_tokens: u32,
    /// Blocks of each sequence that the store grows: from its prompt's end to the end of its extents.
    growth: Vec<std::ops::Range<u64>>,
    /// Scratch of what goes up.
    words: Vec<u32>,
    alive: Vec<Arc<Allocation>>,
}

impl std::fmt::Debug for CudaChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let arrays = self.alive.len() + self.arrays.0.len();
        f.debug_struct("CudaChain").field("view", &self.view).field("arrays", &arrays).finish_non_exhaustive()
    }
}

impl CudaChain {
    fn check_layer(&self, layer: usize) -> Result<()> {
        if layer < self.layers.len() {
            return Ok(());
        }
        Err(Error::Invariant(format!("layer {layer} of a chain of {}", self.layers.len())))
    }

    /// Pools of a layer.
    fn pools(&self) -> usize {
        self.view.pools as usize
    }
}

/// A pool's slots as the device has them: each block with the number of its admission, which goes by block id.
fn slot_words(pool: &Pool, order: &mut Vec<u32>, out: &mut Vec<u32>) {
    order.clear();
    order.extend(pool.slot_of.iter().copied().filter(|&slot| slot != NONE));
    let start = out.len();
    for (slot, m) in pool.meta.iter().enumerate() {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags = flag(pool.selected[slot], SELECTED) | flag(pool.unused[slot], UNUSED);
        let words =
            [m.block, m.admitted, m.last_selected, m.last_attended, m.selections, m.mass.to_bits(), flags, 0];
        out.extend(if m.block == NONE { FREE } else { words });
    }
    for (number, &slot) in order.iter().enumerate() {
        out[start + slot as usize * META + META - 1] = number as u32;
    }
}

impl Chain for Cuda {
    type Chain = CudaChain;

    fn has_chain(&self, spec: &ChainSpec<'_>) -> std::result::Result<(), String> {
        open::refuse(spec).map_or(Ok(()), Err)
    }

    fn open_chain(
        &mut self,
        spec: &ChainSpec<'_>,
        layers: &[ChainLayer<'_, Self>],
        store: &HostStore<Self>,
        seeds: &[u64],
    ) -> Result<CudaChain> {
        self.make_chain(spec, layers, store, seeds)
    }

    fn load_pools(&mut self, chain: &mut CudaChain, layer: usize, pools: &[Pool]) -> Result<()> {
        chain.check_layer(layer)?;
        if chain.view.pooled == 0 {
            return Ok(());
        }
        let (n, slots, blocks) = (chain.pools(), chain.view.pool_slots as usize, chain.view.blocks as usize);
        if pools.len() != n || pools.iter().any(|p| p.meta.len() != slots || p.slot_of.len() != blocks) {
            let what =
                format!("{} pools for a chain of {n} of {slots} slots and {blocks} blocks", pools.len());
            return Err(Error::Invariant(what));
        }
        let (mut words, mut order) = (Vec::with_capacity(n * slots * META), Vec::new());
        let (mut slot_of, mut state) = (Vec::with_capacity(n * blocks), Vec::with_capacity(n * STATE));
        for pool in pools {
            slot_words(pool, &mut order, &mut words);
            slot_of.extend_from_slice(&pool.slot_of);
            let mut own = [0; STATE];
            own[0] = order.len() as u32;
            state.extend(own);
        }
        let at = |base: u64, words: usize| base + (4 * layer * n * words) as u64;
        let meta = at(chain.view.meta, slots * META);
        self.upload_to(meta, bytemuck::cast_slice(&words))?;
        self.upload_to(at(chain.view.slot_of, blocks), bytemuck::cast_slice(&slot_of))?;
        self.upload_to(at(chain.view.state, STATE), bytemuck::cast_slice(&state))?;
        if chain.queue { self.number_slots(chain, meta, (n * slots) as u32) } else { Ok(()) }
    }

    fn begin_pass(&mut self, chain: &mut CudaChain, now: Step, seqs: &[SeqControl]) -> Result<()> {
        let heads = chain.view.kv_heads as usize;
        if seqs.len() * heads != chain.pools() {
            let what = format!("{} sequences for a chain of {}", seqs.len(), chain.pools() / heads.max(1));
            return Err(Error::Invariant(what));
        }
        for seq in seqs {
            if seq.blocks > chain.view.blocks || seq.first > seq.end || seq.end > seq.blocks {
                return Err(Error::Invariant(format!("{seq:?} with room for {} blocks", chain.view.blocks)));
            }
        }
        chain.words.clear();
        chain.words.extend([now, 0, 0, 0]);
        chain.words.extend_from_slice(bytemuck::cast_slice(seqs));
        self.upload_to(chain.view.control, bytemuck::cast_slice(&chain.words))?;
        // Where nothing ranks, seals alone count.
        let counted = chain.view.pooled == 1 && !chain.ranks;
        if counted {
            self.zero(chain.view.counts, 4 * COUNTS * chain.layers.len() * chain.pools())
        } else {
            Ok(())
        }
    }

    fn observe(&mut self, chain: &mut CudaChain, layer: usize, rows: &RowTable<Self>) -> Result<()> {
        chain.check_layer(layer)?;
        self.observe_layer(chain, layer, rows.first.at(0))
    }

    fn rank(&mut self, chain: &mut CudaChain, layer: usize, rows: &RowTable<Self>) -> Result<()> {
        chain.check_layer(layer)?;
        self.rank_layer(chain, layer, rows.first.at(0))
    }

    fn commit(
        &mut self,
        chain: &mut CudaChain,
        now: Step,
        moves: &[TailMove],
        seals: &[[u32; 2]],
        rest: &[u32],
    ) -> Result<()> {
        records(chain, moves, seals, rest)?;
        self.upload_to(chain.commit_list, bytemuck::cast_slice(&chain.words))?;
        self.commit_all(chain, now)
    }

    fn counts(&mut self, chain: &mut CudaChain, out: &mut [PoolCounts]) -> Result<()> {
        let all = chain.layers.len() * chain.pools();
        if out.len() < all {
            return Err(Error::Invariant(format!("room for {} counts of {all} pools", out.len())));
        }
        if chain.view.pooled == 0 {
            out[..all].fill(PoolCounts::zeroed());
            return self.wait();
        }
        self.download(chain.view.counts, bytemuck::cast_slice_mut(&mut out[..all]))
    }

    fn resident(&mut self, chain: &mut CudaChain, layer: usize, out: &mut Vec<u32>) -> Result<()> {
        chain.check_layer(layer)?;
        out.clear();
        if chain.view.pooled == 0 {
            return self.wait();
        }
        let n = chain.pools() * chain.view.pool_slots as usize;
        let mut meta = vec![[0_u32; META]; n];
        let at = chain.view.meta + (4 * META * layer * n) as u64;
        self.download(at, bytemuck::cast_slice_mut(&mut meta))?;
        out.extend(meta.iter().map(|words| words[0]));
        Ok(())
    }
}

/// What a commit tells of every sequence, in `chain.words`.
fn records(chain: &mut CudaChain, moves: &[TailMove], seals: &[[u32; 2]], rest: &[u32]) -> Result<()> {
    let (size, view) = (chain.view.record as usize, chain.view);
    let seqs = chain.pools() / (view.kv_heads as usize).max(1);
    let wrong = |what: String| Err(Error::Invariant(format!("commit: {what}")));
    chain.words.clear();
    for _ in 0..seqs {
        let end = chain.words.len() + size;
        chain.words.extend([0, NONE, 0]);
        chain.words.resize(end, 0);
    }
    for &[seq, from, to] in moves {
        let Some(record) = chain.words.chunks_exact_mut(size).nth(seq as usize) else {
            return wrong(format!("a move of sequence {seq} of {seqs}"));
        };
        let at = 3 + 2 * record[0] as usize;
        if at + 2 > size || from.max(to) >= view.tail_tokens {
            return wrong(format!(
                "move {from} to {to} in tails of {}, the {}th of its sequence",
                view.tail_tokens, record[0]
            ));
        }
        record[at..at + 2].copy_from_slice(&[from, to]);
        record[0] += 1;
    }
    if seals.len() != rest.len() {
        return wrong(format!("{} seals with {} rests", seals.len(), rest.len()));
    }
    for (&[seq, block], &rest) in seals.iter().zip(rest) {
        let Some(record) = chain.words.chunks_exact_mut(size).nth(seq as usize) else {
            return wrong(format!("a seal of sequence {seq} of {seqs}"));
        };
        let growth = &chain.growth[seq as usize];
        let has_room = block < view.blocks && growth.contains(&block.into());
        if record[1] != NONE || !has_room || rest > view.tail_tokens - chain.block_tokens {
            return wrong(format!(
                "seal of block {block} of sequence {seq} with {rest} tokens behind it; its own blocks are {growth:?}"
            ));
        }
        record[1..3].copy_from_slice(&[block, rest]);
    }
    Ok(())
}
