//! Small numbers with a meaning of their own.

/// A block of one (sequence, layer, KV head): block `b` holds tokens `b * block_tokens ..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A slot of one pool; it holds one block or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The number of a decode step, counted from 1; 0 is the end of the prefill.
pub type Step = u32;

/// The sentinel of every id array: no block, no slot, never.
pub const NONE: u32 = u32::MAX;
