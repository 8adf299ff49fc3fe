//! A control: blocks in no order at all.

use super::Unset;
use crate::mix::{mix, unit};
use oasis_core::Result;
use oasis_core::policy::{Predictor, Ranking, StepView};
use oasis_core::registry::{Params, PredictorEntry};
use std::borrow::Cow;

/// The row of the table.
pub const ENTRY: PredictorEntry = PredictorEntry {
    name: "random",
    about: "Control: scores drawn anew for each step, layer, head and block, from the run's seed.",
    version: 1,
    params: &[],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Predictor>> {
    params.parse::<Unset>(ENTRY.name)?;
    Ok(Box::new(Random::new(params.seed)))
}

/// Scores in [0, 1) that depend on nothing but the seed, the step, the layer, the head and the block.
#[derive(Debug, Clone)]
pub struct Random {
    seed: u64,
    scores: Vec<f32>,
}

impl Random {
    /// With a seed of its own.
    pub fn new(seed: u64) -> Self {
        Self { seed, scores: Vec::new() }
    }
}

impl Predictor for Random {
    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        let seed = mix(mix(self.seed, step.step.into()), step.layer as u64);
        self.scores.clear();
        for head in 0..step.geometry.kv_heads {
            let seed = mix(seed, head as u64);
            self.scores.extend(step.candidates.clone().map(|block| unit(mix(seed, block.into()))));
        }
        Ranking::Scores(Cow::Borrowed(&self.scores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predictor::fixture;

    fn draw(seed: u64, step: u32, candidates: std::ops::Range<u32>) -> Vec<f32> {
        let geometry = fixture::geometry();
        fixture::scores(Random::new(seed).rank_with(&fixture::step(&geometry, step, 1, candidates)))
    }

    #[test]
    fn scores_follow_from_seed_step_and_block_alone() {
        let all = draw(1, 2, 3..13);
        assert_eq!(all.len(), 2 * 10);
        assert_eq!(all, draw(1, 2, 3..13));
        // A block keeps its score when the candidates around it change.
        assert_eq!(draw(1, 2, 5..13)[..8], all[2..10]);
        assert_ne!(all[..10], all[10..], "heads differ");
        assert_ne!(all, draw(1, 3, 3..13), "steps differ");
        assert_ne!(all, draw(2, 2, 3..13), "seeds differ");
        assert!(draw(1, 2, 3..3).is_empty());
    }

    #[test]
    fn every_block_wins_about_equally_often() {
        let mut wins = [0; 8];
        for step in 0..4000 {
            let scores = draw(9, step, 0..8);
            let best = (0..8).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
            wins[best] += 1;
        }
        assert!(wins.iter().all(|w| (400..600).contains(w)), "{wins:?}");
    }
}
