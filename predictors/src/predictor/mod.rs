//! Which query ranks the blocks of the next step.

pub mod lookahead;
pub mod oracle;
pub mod previous_token;
pub mod random;
pub mod recency;

pub use lookahead::Lookahead;
pub use oracle::Oracle;
pub use previous_token::PreviousToken;
pub use random::Random;
pub use recency::Recency;

use oasis_core::registry::PredictorEntry;
use serde::Deserialize;

/// All predictors, in the order of reports.
pub const PREDICTORS: &[PredictorEntry] =
    &[lookahead::ENTRY, previous_token::ENTRY, oracle::ENTRY, random::ENTRY, recency::ENTRY];

/// The table of a plug-in without parameters: any key is refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Unset {}

#[cfg(test)]
pub(crate) mod fixture {
    use super::PREDICTORS;
    use oasis_core::geometry::{Geometry, World};
    use oasis_core::policy::{Predictor, Ranking, RowSet, StepView};
    use oasis_core::registry::{Params, find};
    use std::ops::Range;

    pub fn geometry() -> Geometry {
        Geometry {
            layers: 3,
            hidden: 16,
            intermediate: 32,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            vocab: 100,
            max_positions: 64,
            world: World::default(),
        }
    }

    /// A step with `rows` rows in a chain.
    pub fn step(geometry: &Geometry, step: u32, rows: usize, candidates: Range<u32>) -> StepView<'_> {
        const PARENTS: [u32; 8] = [0, 0, 1, 2, 3, 4, 5, 6];
        let (layer, queries) = (1, &[]);
        StepView { geometry, step, layer, rows, parents: &PARENTS[..rows], candidates, queries }
    }

    pub fn build(name: &str, toml: &str, seed: u64) -> oasis_core::Result<Box<dyn Predictor>> {
        let table = toml.parse().expect("test table");
        (find("predictor", PREDICTORS, name)?.build)(&Params { table, seed })
    }

    pub fn rows(ranking: Ranking<'_>) -> RowSet {
        match ranking {
            Ranking::Rows(rows) => rows,
            Ranking::Query(_) | Ranking::Scores(_) => panic!("no rows"),
        }
    }

    pub fn scores(ranking: Ranking<'_>) -> Vec<f32> {
        match ranking {
            Ranking::Scores(scores) => scores.into_owned(),
            Ranking::Query(_) | Ranking::Rows(_) => panic!("no scores"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_unknown_keys_are_refused() {
        let mut names: Vec<&str> = PREDICTORS.iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PREDICTORS.len());
        for entry in PREDICTORS {
            assert!(fixture::build(entry.name, "", 1).is_ok(), "{}", entry.name);
            let error = fixture::build(entry.name, "nosuch = 1", 1).err().expect(entry.name).to_string();
            assert!(error.contains(entry.name) && error.contains("nosuch"), "{error}");
            for param in entry.params {
                assert!(
                    fixture::build(entry.name, &format!("{} = {}", param.name, param.default), 1).is_ok(),
                    "{}",
                    param.name
                );
            }
        }
    }
}
