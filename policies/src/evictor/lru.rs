//! Least recently used: the block leaves that the *true* query has not attended for longest.
//!
//! "Used" means that the newest token's query put at least the mean block's share (1/n of n attended blocks)
//! of its attention mass on it; a block that never had that counts from its admission. The textbook policy of
//! caches (Mattson et al., "Evaluation techniques for storage hierarchies", 1970) with attention as the access.
//! Differs from [`lrs`](super::lrs) wherever prediction and truth do.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "lru",
    about: "Least recently used: longest since the true query put at least the mean share of its mass on the block.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lru;

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "lru")?;
    Ok(Box::new(Lru))
}

impl Evictor for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.last_attended as f32
    }

    fn device(&self) -> Option<DeviceEvictor> {
        Some(DeviceEvictor { code: DeviceEviction::Keep("(float)m.last_attended"), seed: 0 })
    }
}
