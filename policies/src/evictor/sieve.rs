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
use oasis_core::policy::{Evictor, PoolEvent, PoolView, SlotMeta};
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

impl Evictor for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
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
}
