//! An evictor of one's own, outside the Oasis repository, with the whole command line:
//! `cargo run --release -p custom-evictor -- run -c examples/custom-evictor/config.toml`.

use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::registry::EvictorEntry;

/// Keeps blocks that were selected often for the time that they have been resident.
struct Rate;

impl Evictor for Rate {
    fn keep(&self, slot: &SlotMeta, now: Step) -> f32 {
        slot.selections as f32 / (now - slot.admitted + 1) as f32
    }
}

const RATE: EvictorEntry = EvictorEntry {
    name: "rate",
    about: "Evicts the block with the fewest selections a step of residence.",
    version: 1,
    params: &[],
    build: |params| params.parse::<NoParams>("rate").map(|_| Box::new(Rate) as _),
};

/// No parameters; any key is an error.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NoParams {}

fn main() -> std::process::ExitCode {
    oasis::cli().with_evictor(RATE).run()
}
