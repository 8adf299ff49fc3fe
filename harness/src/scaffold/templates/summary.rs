//! `placeholder-name`: say here what is remembered of a block, how a query scores it, and where the idea comes from.

use oasis_core::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{Keys, Reduce, Summary, SummaryShape};
use oasis_core::registry::{Params, SummaryEntry};
use oasis_core::storage::{Rounding, Storage};
use serde::Deserialize;

/// The row of the table. Raise `version` whenever the scores change: it is part of every run's fingerprint.
pub const ENTRY: SummaryEntry = SummaryEntry {
    name: "placeholder-name",
    about: "The mean of the block's keys; a starting point, not a method.",
    version: 1,
    params: &[],
    build,
};

fn build(params: &Params) -> Result<Box<dyn Summary>> {
    Ok(Box::new(params.parse::<PlaceholderName>("placeholder-name")?))
}

/// A pair of maps into a space where the score is an inner product; its fields are its parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlaceholderName {}

impl Summary for PlaceholderName {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape {
            vectors: 1,
            dim: block.head_dim,
            reduce: Reduce::Max,
            storage: Storage::Bf16,
            rounding: Rounding::Nearest,
        }
    }

    /// A NaN in any key must reach the score: a block that cannot be judged ranks last and is counted.
    fn encode(&self, _fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.fill(0.0);
        for key in keys.iter() {
            for (o, k) in out.iter_mut().zip(key) {
                *o += k / keys.tokens as f32;
            }
        }
    }

    /// Scores are logits: the factor 1/√head_dim belongs here.
    fn lift(&self, _fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let scale = 1.0 / (query.len() as f32).sqrt();
        for (o, q) in out.iter_mut().zip(query) {
            *o = q * scale;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_scores_the_mean_key() {
        let policy = PlaceholderName::default();
        let keys = Keys { data: &[2.0, 0.0, 4.0, 2.0], tokens: 2, head_dim: 2 };
        let (mut vector, mut lifted) = ([f32::NAN; 2], [f32::NAN; 2]);
        policy.encode(&[], keys, &mut vector);
        let bias = policy.lift(&[], &[1.0, 0.0], &mut lifted);
        assert_eq!(vector, [3.0, 1.0]);
        let score = bias + vector[0] * lifted[0] + vector[1] * lifted[1];
        assert!((score - 3.0 / 2f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let table = toml::toml! { anything = 1 };
        assert!(build(&Params { table, seed: 0 }).is_err());
    }
}
