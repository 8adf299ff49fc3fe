//! The block leaves whose next use is farthest: Belady, "A study of replacement algorithms for a virtual-storage computer"
//! (IBM Systems Journal, 1966), with a selection that holds the block as its use.
//!
//! No decode knows its next selections, so this is a bound for replays of a trace, no method. Among evictions alone nothing misses
//! less; but a cap admits wanted blocks in the order of their scores, not of their next use, and with one the bound is not proved.
//! Without a cap the wanted blocks fill the pool, and no evictor has a choice.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "belady",
    about: "Farthest next use (Belady 1966): an upper bound, known only when a trace is replayed.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Belady;

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "belady")?;
    Ok(Box::new(Belady))
}

impl Evictor for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    fn needs_next_use(&self) -> bool {
        true
    }

    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        -(slot.next_use as f32)
    }
}
