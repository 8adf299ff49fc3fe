//! Least frequently used: the block leaves that the fewest selections held since its admission.
//!
//! In-cache counts (Aho, Denning, Ullman, "Principles of optimal page replacement", 1971): a block that comes
//! back starts again. Equal counts go by block id, as everywhere; newcomers are therefore the first to leave.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "lfu",
    about: "Least frequently used: fewest selections since its admission.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lfu;

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "lfu")?;
    Ok(Box::new(Lfu))
}

impl Evictor for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.selections as f32
    }

    fn device(&self) -> Option<DeviceEvictor> {
        Some(DeviceEvictor { code: DeviceEviction::Keep("(float)m.selections"), seed: 0 })
    }
}
