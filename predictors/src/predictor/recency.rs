//! A control: the newest blocks first.

use super::Unset;
use oasis_core::Result;
use oasis_core::policy::{Predictor, Ranking, StepView};
use oasis_core::registry::{Params, PredictorEntry};
use std::borrow::Cow;

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "recency",
    about: "Control: the newest blocks first, whatever the query.",
    version: 1,
    params: &[],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    params.parse::<Unset>(ENTRY.name)?;
    Ok(Box::new(Recency::default()))
}

/// A block's score is its number. Exact below 2²⁴ blocks, the range of integers in an f32.
#[derive(Debug, Clone, Default)]
pub struct Recency {
    scores: Vec<f32>,
}

impl Predictor for Recency {
    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        self.scores.clear();
        for _ in 0..step.geometry.kv_heads {
            self.scores.extend(step.candidates.clone().map(|block| block as f32));
        }
        Ranking::Scores(Cow::Borrowed(&self.scores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictor::fixture;

    #[test]
    fn newer_blocks_score_higher_in_every_head() {
        let geometry = fixture::geometry();
        let mut recency = Recency::default();
        let scores = fixture::scores(recency.rank_with(&fixture::step(&geometry, 1, 1, 2..5)));
        assert_eq!(scores, [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]);
        let later = fixture::scores(recency.rank_with(&fixture::step(&geometry, 2, 1, 2..3)));
        assert_eq!(later, [2.0, 2.0]);
    }
}
