//! Who guesses the next tokens.

pub mod eagle3;
pub mod ideal;
pub mod layer_skip;
pub mod ngram;
pub mod none;

pub use eagle3::Eagle3;
pub use ideal::Ideal;
pub use layer_skip::LayerSkip;
pub use ngram::Ngram;
pub use none::NoDraft;

use oasis_core::draft::{Draft, DraftFactory, DraftTree};
use oasis_core::ops::Backend;
use oasis_core::registry::DraftEntry;
use std::marker::PhantomData;
use std::sync::Arc;

/// All draft sources for backend `B`, in the order of reports.
pub fn drafts<B: Backend>() -> &'static [DraftEntry<B>] {
    Table::<B>::ROWS
}

/// Gives the rows a place per backend: a `const` of its own cannot be generic.
struct Table<B>(PhantomData<B>);

impl<B: Backend> Table<B> {
    const ROWS: &'static [DraftEntry<B>] =
        &[none::entry(), ngram::entry(), layer_skip::entry(), eagle3::entry(), ideal::entry()];
}

/// A factory of drafts that differ in their seeds only.
fn factory<B, D>(make: impl Fn(u64) -> D + Send + Sync + 'static) -> DraftFactory<B>
where
    B: Backend,
    D: Draft<B> + 'static,
{
    Arc::new(move |seed| Ok(Box::new(make(seed)) as Box<dyn Draft<B>>))
}

/// The `count` largest logits, largest first, ties to the lowest id; a NaN is never among them.
fn top(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        let beaten = best.len() == count && best.last().is_none_or(|(least, _)| logit <= *least);
        if logit.is_nan() || beaten {
            continue;
        }
        let at = best.partition_point(|(better, _)| *better >= logit);
        best.insert(at, (logit, id as u32));
        best.truncate(count);
    }
    best.into_iter().map(|(_, id)| id).collect()
}

/// A chain, and other tokens in the place of its first one.
fn tree(chain: Vec<u32>, alternatives: impl IntoIterator<Item = u32>) -> DraftTree {
    let mut tree = DraftTree::chain(chain);
    for token in alternatives {
        tree.tokens.push(token);
        tree.parents.push(0);
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn alternatives_hang_below_the_newest_token() {
        let tree = tree(vec![7, 8, 9], [5, 6]);
        assert_eq!(tree, DraftTree { tokens: vec![7, 8, 9, 5, 6], parents: vec![0, 1, 2, 0, 0] });
    }

    #[test]
    fn nan_and_infinity_are_ranked_like_the_sampler_does() {
        let logits = [f32::NAN, f32::NEG_INFINITY, 1.0, f32::INFINITY, 1.0, f32::NAN];
        assert_eq!(top(&logits, 3), [3, 2, 4]);
        assert_eq!(top(&logits, 9), [3, 2, 4, 1]);
        assert!(top(&[f32::NAN], 1).is_empty() && top(&logits, 0).is_empty());
    }

    proptest! {
        #[test]
        fn top_is_a_stable_sort(logits in prop::collection::vec((-4i8..4).prop_map(f32::from), 0..40), count in 0usize..8) {
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            order.truncate(count);
            prop_assert_eq!(top(&logits, count), order);
        }
    }
}
