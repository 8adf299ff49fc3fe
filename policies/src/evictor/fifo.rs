//! First in, first out: the block leaves that was admitted longest ago, whatever it did since.
//!
//! The control that uses neither selections nor attention (Mattson et al., "Evaluation techniques for storage
//! hierarchies", 1970).

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "fifo",
    about: "First in, first out: longest since its admission.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fifo;

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "fifo")?;
    Ok(Box::new(Fifo))
}

impl Evictor for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.admitted as f32
    }

    fn device(&self) -> Option<DeviceEvictor> {
        Some(DeviceEvictor { code: DeviceEviction::Keep("(float)m.admitted"), seed: 0 })
    }
}
