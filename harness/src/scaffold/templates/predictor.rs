//! `placeholder-name`: say here which query stands in for the next step's, and where the idea comes from.

use oasis_core::Result;
use oasis_core::policy::{Needs, Predictor, Ranking, RowSet, StepView};
use oasis_core::registry::{Param, Params, PredictorEntry};
use serde::Deserialize;

/// The row of the table. Raise `version` whenever the answers change: it is part of every run's fingerprint.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "placeholder-name",
    about: "Ranks with the newest token's query and the first draft's; a starting point, not a method.",
    version: 1,
    params: &[Param { name: "drafts", about: "Whether the first draft row ranks too.", default: "true" }],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    Ok(Box::new(params.parse::<PlaceholderName>("placeholder-name")?))
}

/// One instance a sequence; its fields are its parameters.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlaceholderName {
    drafts: bool,
}

impl Default for PlaceholderName {
    fn default() -> Self {
        Self { drafts: true }
    }
}

impl Predictor for PlaceholderName {
    /// Draft rows exist only where a predictor asks for them.
    fn needs(&self) -> Needs {
        Needs { drafts: self.drafts, ..Needs::default() }
    }

    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        let first_draft = RowSet(0b10);
        let with_draft = self.drafts && step.rows > 1;
        Ranking::Rows(if with_draft { RowSet::CURRENT.union(first_draft) } else { RowSet::CURRENT })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_asked_for_only_if_they_are_used() {
        assert!(PlaceholderName::default().needs().drafts);
        assert!(!PlaceholderName { drafts: false }.needs().drafts);
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let table = toml::toml! { draft = true };
        let error = build(&Params { table, seed: 0 }).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("drafts"), "{error}");
    }
}
