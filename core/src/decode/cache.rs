//! What one layer keeps between steps: slots, tail, summaries, pools, and the list of what is attended.

use crate::Result;
use crate::ids::{NONE, Step};
use crate::ops::{Backend, CacheShape, Memory};
use crate::policy::{Evictor, PoolEvent};
use crate::pool::Pool;
use crate::select::{self, Outcome};
use crate::settings::{Mode, Scope, Settings};
use crate::stats::fold;
use half::bf16;
use std::ops::Range;

/// The caches of one layer.
pub(super) struct LayerCache<B: Memory> {
    /// `[pools][slots][K | V]`.
    pub slots: B::Buf<bf16>,
    /// `[pools][K | V]` of the tails.
    pub tail: B::Buf<bf16>,
    /// `[pools][blocks][summary bytes]`.
    pub summaries: B::Buf<u8>,
    /// `[pools][fit_len]`.
    pub fit: B::Buf<f32>,
    /// Physical slots to attend, by block id, `[pools][slots]`.
    pub entries: B::Buf<u32>,
    /// `[pools]`.
    pub entry_count: B::Buf<u32>,
    /// Queries of the pass, `[rows][heads][head_dim]`; the background reads them later.
    pub q: B::Buf<bf16>,
    /// Log masses of the pass's attention, `[rows][heads][slots + 1]`; empty where nothing is ranked.
    pub block_lse: B::Buf<f32>,
    /// Residency; empty in `dense`.
    pub residency: Residency,
}

/// Lengths of arrays that hang on the model and the policies.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerSizes {
    /// Bytes of a block's summary.
    pub summary_bytes: usize,
    /// Floats of a pool's fit.
    pub fit_len: usize,
    /// Elements of the queries.
    pub q: usize,
    /// Elements of the log masses.
    pub lse: usize,
}

/// The host's view of a layer's pools.
pub(super) struct Residency {
    pub pools: Vec<Pool>,
    pub evictors: Vec<Box<dyn Evictor>>,
    pub outcomes: Vec<Outcome>,
    /// Blocks that are attended, ascending, one list a pool.
    pub attended: Vec<Vec<u32>>,
    /// Evictions, wasted fetches and a hash of what left at seals since the last report, by sequence.
    pub sealed_out: Vec<(u64, u64, u64)>,
    scratch: Vec<u32>,
    seal_scratch: Outcome,
}

/// Where blocks are pinned: the first `sink` and the last `window` of the sealed ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pins {
    pub sink: usize,
    pub window: usize,
}

impl Pins {
    pub fn of(settings: &Settings) -> Self {
        Self { sink: settings.sink_blocks, window: settings.window() }
    }

    /// Blocks that are not pinned when `n` are sealed.
    pub fn candidates(self, n: usize) -> Range<u32> {
        let from = self.sink.min(n);
        from as u32..n.saturating_sub(self.window).max(from) as u32
    }
}

impl Residency {
    pub fn new(settings: &Settings, shape: &CacheShape, evictors: Vec<Box<dyn Evictor>>) -> Self {
        let slots = settings.budget_blocks().min(shape.blocks);
        let pools = if settings.mode == Mode::Dense { 0 } else { shape.pools() };
        Self {
            pools: (0..pools).map(|_| Pool::new(slots, shape.blocks)).collect(),
            evictors,
            outcomes: vec![Outcome::default(); pools],
            attended: vec![Vec::with_capacity(shape.slots); shape.pools()],
            sealed_out: vec![(0, 0, 0); shape.seqs],
            scratch: Vec::with_capacity(slots),
            seal_scratch: Outcome::default(),
        }
    }

    /// Takes in the blocks of a prompt: all if they fit, else the pinned ones and the best of `wanted`.
    pub fn fill(&mut self, pool: usize, n: usize, pins: Pins, wanted: &[u32]) {
        let slots = self.pools[pool].meta.len();
        let candidates = pins.candidates(n);
        let all = n <= slots;
        let (p, evictor) = (&mut self.pools[pool], &mut self.evictors[pool]);
        let mut admit = |block: u32, selected: bool| {
            let slot = p.admit(block, 0) as usize;
            p.selected[slot] = selected;
            evictor.observe(PoolEvent::Admit { block, now: 0 });
        };
        for block in 0..n as u32 {
            let pinned = !candidates.contains(&block);
            let chosen = !pinned && wanted.contains(&block);
            if all || pinned || chosen {
                admit(block, chosen || (all && !pinned));
            }
        }
    }

    /// Makes room for the block that is being sealed, if it may stay; returns its slot.
    ///
    /// The block that leaves the window becomes an ordinary resident; when no slot is free the evictor gives up
    /// one of the residents that the last selection does not hold, the newcomer from the window included.
    pub fn admit_sealed(
        &mut self,
        pool: usize,
        seq: usize,
        block: u32,
        pins: Pins,
        now: Step,
    ) -> Result<u32> {
        let candidates = pins.candidates(block as usize + 1);
        let (p, evictor) = (&mut self.pools[pool], self.evictors[pool].as_mut());
        if p.free.is_empty() {
            let out = &mut self.seal_scratch;
            out.evicted.clear();
            out.wasted = 0;
            let may_leave = p.meta.iter().zip(&p.selected).any(|(m, &s)| !s && candidates.contains(&m.block));
            if may_leave {
                select::evict(candidates, 1, now, p, evictor, out)?;
            }
            self.sealed_out[seq].0 += out.evicted.len() as u64;
            self.sealed_out[seq].1 += out.wasted as u64;
            for &block in &out.evicted {
                self.sealed_out[seq].2 = fold(self.sealed_out[seq].2, u64::from(block));
            }
        }
        if p.free.is_empty() {
            return Ok(NONE);
        }
        let slot = p.admit(block, now);
        evictor.observe(PoolEvent::Admit { block, now });
        Ok(slot)
    }
}

impl<B: Backend> LayerCache<B> {
    pub fn new(backend: &B, shape: &CacheShape, sizes: LayerSizes, residency: Residency) -> Result<Self> {
        Ok(Self {
            slots: backend.alloc(shape.slot_elems())?,
            tail: backend.alloc(shape.tail_elems())?,
            summaries: backend.alloc(shape.pools() * shape.blocks * sizes.summary_bytes)?,
            fit: backend.alloc(shape.pools() * sizes.fit_len)?,
            entries: backend.alloc(shape.pools() * shape.slots)?,
            entry_count: backend.alloc(shape.pools())?,
            q: backend.alloc(sizes.q)?,
            block_lse: backend.alloc(sizes.lse)?,
            residency,
        })
    }

    /// Renews the list of attended blocks of one pool of a sequence with `n` sealed blocks.
    pub fn refresh(
        &mut self,
        backend: &mut B,
        settings: &Settings,
        shape: &CacheShape,
        pool: usize,
        n: usize,
    ) -> Result<()> {
        let r = &mut self.residency;
        r.scratch.clear();
        if settings.mode == Mode::Dense {
            r.scratch.extend(0..n as u32);
            r.attended[pool].clear();
            r.attended[pool].extend(0..n as u32);
        } else {
            let (p, candidates) = (&r.pools[pool], Pins::of(settings).candidates(n));
            let selected_only = settings.scope == Scope::Selected;
            p.entries(
                |block, slot| !selected_only || !candidates.contains(&block) || p.selected[slot as usize],
                &mut r.scratch,
            );
            r.attended[pool].clear();
            r.attended[pool].extend(r.scratch.iter().map(|&s| p.meta[s as usize].block));
            if settings.mode.resident() {
                // All KV is in device memory: block b sits in physical slot b.
                r.scratch.copy_from_slice(&r.attended[pool]);
            }
        }
        backend.write(&mut self.entries, pool * shape.slots, &r.scratch)?;
        backend.write(&mut self.entry_count, pool, &[r.scratch.len() as u32])
    }
}
