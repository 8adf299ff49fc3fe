//! Seeded random eviction: the control that any other evictor must beat.
//!
//! The worth of a block is a hash of (seed, block, step), so a decision depends neither on slots nor on what
//! was asked before.

use crate::no_parameters;
use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{DeviceEviction, DeviceEvictor, Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry, Params};

/// The row.
pub const ENTRY: EvictorEntry = Entry {
    name: "random",
    about: "Seeded random order, new at every step: the control.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Random {
    seed: u64,
}

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    no_parameters(params, "random")?;
    Ok(Box::new(Random { seed: params.seed }))
}

/// SplitMix64's finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Evictor for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn reads_mass(&self) -> bool {
        false
    }

    fn keep(&self, slot: &SlotMeta, now: Step) -> f32 {
        let hash = mix(self.seed ^ mix(u64::from(now) << 32 | u64::from(slot.block)));
        // 24 bits are what an f32 holds exactly.
        (hash >> 40) as f32
    }

    fn device(&self) -> Option<DeviceEvictor> {
        let keep = "(float)(mix(seed ^ mix((u64)now << 32 | m.block)) >> 40)";
        Some(DeviceEvictor { code: DeviceEviction::Keep(keep), seed: self.seed })
    }
}
