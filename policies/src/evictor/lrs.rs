//! Least recently selected: the block leaves that no prediction has wanted for longest.
//!
//! The paper's choice (OasisKV, arXiv 2608.08097). It looks at the *predictor's* selections alone; what the
//! true query attended is [`lru`](super::lru)'s business. A block that was never selected counts from its
//! admission.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "lrs",
    about: "Least recently selected: longest since a prediction held the block (OasisKV).",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lrs;

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "lrs")?;
    Ok(Box::new(Lrs))
}

impl Evictor for Lrs {
    fn name(&self) -> &'static str {
        "lrs"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.last_selected as f32
    }

    fn device(&self) -> Option<DeviceEvictor> {
        Some(DeviceEvictor { code: DeviceEviction::Keep("(float)m.last_selected"), seed: 0 })
    }
}
