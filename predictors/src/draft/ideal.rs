//! The draft that is right as often as one wishes: an upper bound, and a dial for experiments.

use super::factory;
use crate::mix::{mix, unit};
use oasis_core::draft::{Draft, DraftFactory, DraftSetup, DraftTree, DraftView, Target};
use oasis_core::ops::Backend;
use oasis_core::registry::{DraftEntry, Param};
use oasis_core::{Error, Result};
use serde::Deserialize;

const NAME: &str = "ideal";

/// The row of the table.
pub const fn entry<B: Backend>() -> DraftEntry<B> {
    DraftEntry {
        name: NAME,
        about: "The tokens that will come, as the caller knows them, each right with probability `accuracy`; no real draft.",
        version: 1,
        params: &[Param {
            name: "accuracy",
            about: "Probability that a token is right, 0 to 1.",
            default: "1.0",
        }],
        build,
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    accuracy: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { accuracy: 1.0 }
    }
}

fn build<B: Backend>(setup: DraftSetup<'_, B>) -> Result<DraftFactory<B>> {
    let Config { accuracy } = setup.params.parse(NAME)?;
    if !(0.0..=1.0).contains(&accuracy) {
        return Err(Error::setting("ideal.accuracy", format!("is {accuracy}; a probability is 0 to 1")));
    }
    Ok(factory(move |seed| Ideal { accuracy, seed }))
}

/// Proposes the known future. A chain ends with its first wrong token: nobody knows what would follow it.
#[derive(Debug, Clone, Copy)]
pub struct Ideal {
    accuracy: f64,
    seed: u64,
}

impl Ideal {
    /// The chain of at most `depth` tokens below `tokens`, of which `future` follow.
    fn chain(&self, tokens: &[u32], future: &[u32], vocab: usize, depth: usize) -> Vec<u32> {
        let mut chain = Vec::with_capacity(depth);
        for (ahead, &right) in future.iter().take(depth).enumerate() {
            let draw = mix(mix(self.seed, tokens.len() as u64), ahead as u64);
            if f64::from(unit(draw)) < self.accuracy {
                chain.push(right);
                continue;
            }
            chain.push(wrong(draw, tokens, right, vocab));
            break;
        }
        chain
    }
}

/// A token other than `right`, drawn from the text: an id that the model never saw in training would make
/// a stranger query than a wrong guess does.
fn wrong(draw: u64, tokens: &[u32], right: u32, vocab: usize) -> u32 {
    let others = (0..32).filter_map(|i| {
        let len = tokens.len() as u64;
        (len > 0).then(|| tokens[(mix(draw, i) % len) as usize])
    });
    others.into_iter().find(|&token| token != right).unwrap_or((right + 1) % (vocab.max(1) as u32))
}

impl<B: Backend> Draft<B> for Ideal {
    fn is_ideal(&self) -> bool {
        true
    }

    fn propose(&mut self, _: &mut B, target: &mut dyn Target<B>, view: &DraftView<'_>) -> Result<DraftTree> {
        let vocab = target.model().config.geometry.vocab;
        Ok(DraftTree::chain(self.chain(view.tokens, view.future, vocab, view.shape.depth)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: [u32; 6] = [5, 6, 7, 8, 9, 10];

    #[test]
    fn a_perfect_draft_is_the_future() {
        let ideal = Ideal { accuracy: 1.0, seed: 3 };
        assert_eq!(ideal.chain(&TEXT, &[1, 2, 3], 100, 2), [1, 2]);
        assert_eq!(ideal.chain(&TEXT, &[1], 100, 2), [1]);
        assert!(ideal.chain(&TEXT, &[], 100, 2).is_empty());
    }

    #[test]
    fn a_draft_without_accuracy_is_always_wrong() {
        let ideal = Ideal { accuracy: 0.0, seed: 3 };
        for right in [5, 6, 50] {
            let chain = ideal.chain(&TEXT, &[right, 2], 100, 2);
            assert_eq!(chain.len(), 1);
            assert!(chain[0] != right && TEXT.contains(&chain[0]));
        }
        assert_eq!(ideal.chain(&[4, 4], &[4], 5, 1), [0], "no other token in the text");
    }

    #[test]
    fn accuracy_is_a_share_of_the_steps_and_the_seed_says_which() {
        let (a, b) = (Ideal { accuracy: 0.7, seed: 1 }, Ideal { accuracy: 0.7, seed: 2 });
        let text: Vec<u32> = (0..4000).map(|i| i % 50).collect();
        let right = |d: &Ideal, n: usize| d.chain(&text[..n], &[99], 100, 1) == [99];
        let hits = (1..4000).filter(|&n| right(&a, n)).count() as f64 / 3999.0;
        assert!((hits - 0.7).abs() < 0.025, "{hits}");
        assert!((1..4000).any(|n| right(&a, n) != right(&b, n)));
        assert!((1..4000).all(|n| right(&a, n) == right(&a.clone(), n)));
    }
}
