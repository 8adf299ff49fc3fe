//! The resident set of one (sequence, layer, KV head): slots, their blocks and their histories.

use crate::ids::{NONE, Step};
use crate::policy::SlotMeta;

/// A pool. Blocks sit in slots; which slot is nobody's business but the copy's.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Block → slot, `[blocks]`; [`NONE`]: not resident.
    pub slot_of: Vec<u32>,
    /// Slot → history, `[slots]`; `meta.block == NONE`: free.
    pub meta: Vec<SlotMeta>,
    /// Free slots, taken from the end.
    pub free: Vec<u32>,
    /// Slot → the block of the last selection is in it, `[slots]`.
    pub selected: Vec<bool>,
    /// Slot → its block was fetched and has not yet had the mean block's share of mass.
    pub unused: Vec<bool>,
}

const EMPTY: SlotMeta = SlotMeta {
    block: NONE,
    admitted: 0,
    last_selected: 0,
    last_attended: 0,
    selections: 0,
    mass: 0.0,
    next_use: Step::MAX,
};

impl Pool {
    /// An empty pool for sequences of at most `blocks` blocks.
    pub fn new(slots: usize, blocks: usize) -> Self {
        Self {
            slot_of: vec![NONE; blocks],
            meta: vec![EMPTY; slots],
            free: (0..slots as u32).rev().collect(),
            selected: vec![false; slots],
            unused: vec![false; slots],
        }
    }

    /// The slot of a resident block.
    pub fn slot(&self, block: u32) -> Option<u32> {
        self.slot_of.get(block as usize).copied().filter(|&s| s != NONE)
    }

    /// Whether a block is resident.
    pub fn resident(&self, block: u32) -> bool {
        self.slot(block).is_some()
    }

    /// Resident blocks.
    pub fn len(&self) -> usize {
        self.meta.len() - self.free.len()
    }

    /// Whether nothing is resident.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `block` into a free slot.
    ///
    /// # Panics
    /// If no slot is free or the block is resident: the caller evicts first.
    pub fn admit(&mut self, block: u32, now: Step) -> u32 {
        assert!(!self.resident(block), "block {block} is resident already");
        let slot = self.free.pop().expect("a free slot: the caller evicts first");
        self.slot_of[block as usize] = slot;
        self.meta[slot as usize] =
            SlotMeta { block, admitted: now, last_selected: now, last_attended: now, ..EMPTY };
        self.selected[slot as usize] = false;
        self.unused[slot as usize] = false;
        slot
    }

    /// Frees the slot of `block`; returns whether its fetch was wasted.
    ///
    /// # Panics
    /// If the block is not resident.
    pub fn evict(&mut self, block: u32) -> bool {
        let slot = self.slot(block).expect("only resident blocks leave");
        self.slot_of[block as usize] = NONE;
        self.meta[slot as usize] = EMPTY;
        self.selected[slot as usize] = false;
        self.free.push(slot);
        std::mem::take(&mut self.unused[slot as usize])
    }

    /// Resident blocks that `keep` lets through, ascending, as slots.
    pub fn entries(&self, keep: impl Fn(u32, u32) -> bool, out: &mut Vec<u32>) {
        out.clear();
        out.extend((0..self.meta.len() as u32).filter(|&s| {
            let block = self.meta[s as usize].block;
            block != NONE && keep(block, s)
        }));
        out.sort_unstable_by_key(|&s| self.meta[s as usize].block);
    }
}
