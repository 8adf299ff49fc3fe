//! SIEVE: a queue in order of arrival, a bit a block, and a hand that sweeps from old to new.
//!
//! Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU" (NSDI 2024). A selection sets the block's
//! bit. To evict, the hand walks from the oldest block towards the newest and round again; a block whose bit
//! is set has it cleared and stays, the first without is the victim, and the hand rests on the one after it.
//! Survivors keep their place, so newcomers are sifted early: lazy promotion, quick demotion.
//!
//! Here the hand passes over blocks that may not leave (pinned, just selected, in flight) without judging
//! them. A candidate whose arrival was not observed joins as the newest when it is first seen.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, PoolEvent, PoolView, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "sieve",
    about: "SIEVE: arrival order, spared once for each selection since the hand last passed (Zhang et al. 2024).",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Sieve {
    /// Blocks, oldest first.
    queue: Vec<u32>,
    /// Index into `queue` where the next sweep begins.
    hand: usize,
    /// By block id.
    flags: Vec<Flags>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    queued: bool,
    visited: bool,
}

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "sieve")?;
    Ok(Box::new(Sieve::default()))
}

impl Sieve {
    fn flags(&mut self, block: u32) -> &mut Flags {
        let block = block as usize;
        if block >= self.flags.len() {
            self.flags.resize(block + 1, Flags::default());
        }
        &mut self.flags[block]
    }

    fn push(&mut self, block: u32) {
        self.remove(block);
        *self.flags(block) = Flags { queued: true, visited: false };
        self.queue.push(block);
    }

    fn remove(&mut self, block: u32) {
        if !std::mem::take(self.flags(block)).queued {
            return;
        }
        let at = self.queue.iter().position(|&b| b == block);
        if let Some(at) = at {
            self.queue.remove(at);
            self.hand -= usize::from(at < self.hand);
            // Behind the newest the hand goes back to the oldest now, not to whoever arrives next.
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
        }
    }

    /// Sweeps to the next victim and takes it out of the queue.
    fn sweep(&mut self, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
        // One round clears the bits of all candidates; a second must find one.
        for _ in 0..2 * self.queue.len() {
            let block = self.queue[self.hand];
            if may_leave(block) && !std::mem::take(&mut self.flags(block).visited) {
                self.remove(block);
                return Some(block);
            }
            self.hand = (self.hand + 1) % self.queue.len();
        }
        None
    }
}

/// The same with arrival numbers: a block's word is twice its arrival, plus its bit; the hand rests before the first block
/// that arrived at `state[1]` or later, or at the oldest if there is none when it stops.
///
/// Seen from the hand, blocks that may leave stand in the order of their arrivals, those behind it last. The first round
/// takes the first `need` without a bit and clears the bits that it passes; if they are not enough, it passed all bits,
/// and a second round takes the first of those that had one.
const CODE: &str = r"
__device__ u32 queue_admit(u32 number) { return number << 1; }

__device__ u32 queue_touch(u32 own) { return own | 1; }

__device__ void queue_evict(const Pool& p, const u32* slots, u32* leaves, u32 count, u32 need) {
    u32 hand = p.state[1], unvisited = 0, below;
    auto own = [&](u32 i) { return p.meta[slots[i]].own; };
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) unvisited += ~own(i) & 1;
    unvisited = block_total(unvisited);
    u32 once = min(need, unvisited), twice = need - once, last = 0, round = twice != 0;
    auto of_round = [&](u32 i) { return (own(i) & 1) == round ? (own(i) >> 1) - hand : NONE; };
    last = nth_smallest(of_round, count, twice ? twice : once, below);
    u32 newest = last + hand, newer = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 word = own(i), visited = word & 1, from_hand = (word >> 1) - hand;
        leaves[i] = visited == round ? from_hand <= last : round;
        if (leaves[i] && word >> 1 > newest) newer--;
        if (visited && (round || from_hand < last)) p.meta[slots[i]].own = word & ~1u;
    }
    for (u32 i = threadIdx.x; i < p.slots; i += blockDim.x) newer += p.meta[i].block != NONE && p.meta[i].own >> 1 > newest;
    newer = block_total(newer);
    // Behind the newest the hand goes back to the oldest now, not to whoever arrives next.
    if (threadIdx.x == 0) p.state[1] = newer ? newest + 1 : 0;
}
";

impl Evictor for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    /// Whether its bit is set; the order is the hand's.
    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        self.flags.get(slot.block as usize).map_or(0.0, |f| f32::from(u8::from(f.visited)))
    }

    fn evict(&mut self, pool: &mut PoolView<'_>, need: usize, out: &mut Vec<u32>) {
        for candidate in pool.candidates.iter() {
            if !self.flags(candidate.meta.block).queued {
                self.push(candidate.meta.block);
            }
        }
        let may_leave = |block: u32| pool.candidates.binary_search_by_key(&block, |c| c.meta.block).is_ok();
        out.extend((0..need).map_while(|_| self.sweep(may_leave)));
    }

    fn observe(&mut self, event: PoolEvent) {
        match event {
            PoolEvent::Admit { block, .. } => self.push(block),
            PoolEvent::Touch { block, .. } => self.flags(block).visited = true,
            PoolEvent::Evict { block, .. } => self.remove(block),
        }
    }

    fn device(&self) -> Option<DeviceEvictor> {
        Some(DeviceEvictor { code: DeviceEviction::Queue(CODE), seed: 0 })
    }
}
