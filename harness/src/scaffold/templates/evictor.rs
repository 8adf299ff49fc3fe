//! `placeholder-name`: say here what leaves first and why, and where the idea comes from (paper, section).

use oasis_core::Result;
use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::registry::{EvictorEntry, Param, Params};
use serde::Deserialize;

/// The row of the table. Raise `version` whenever the decisions change: it is part of every run's fingerprint.
pub const ENTRY: EvictorEntry = EvictorEntry {
    name: "placeholder-name",
    about: "Keeps blocks that were selected lately or drew much attention in the last step.",
    version: 1,
    params: &[Param {
        name: "mass_weight",
        about: "Steps that a block's whole attention mass is worth.",
        default: "8.0",
    }],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Evictor>> {
    Ok(Box::new(params.parse::<PlaceholderName>("placeholder-name")?))
}

/// One instance a pool; its fields are its parameters.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlaceholderName {
    mass_weight: f32,
}

impl Default for PlaceholderName {
    fn default() -> Self {
        Self { mass_weight: 8.0 }
    }
}

impl Evictor for PlaceholderName {
    fn name(&self) -> &'static str {
        "placeholder-name"
    }

    /// What a block is worth. The smallest leaves first, ties to the lowest block id.
    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.last_selected as f32 + self.mass_weight * slot.mass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(last_selected: Step, mass: f32) -> SlotMeta {
        SlotMeta {
            block: 1,
            admitted: 0,
            last_selected,
            last_attended: 0,
            selections: 0,
            mass,
            next_use: Step::MAX,
        }
    }

    #[test]
    fn mass_outweighs_a_few_steps() {
        let policy = PlaceholderName::default();
        assert!(policy.keep(&slot(10, 0.0), 20) > policy.keep(&slot(5, 0.0), 20));
        assert!(policy.keep(&slot(5, 1.0), 20) > policy.keep(&slot(10, 0.0), 20));
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let table = toml::toml! { mass_wait = 1.0 };
        let error = build(&Params { table, seed: 0 }).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("mass_weight"), "{error}");
    }
}
