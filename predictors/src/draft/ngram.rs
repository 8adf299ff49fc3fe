//! Prompt lookup: what followed the last time the newest tokens stood in the text.
//!
//! Saxena, "Prompt Lookup Decoding" (2023); also in vLLM and Hugging Face transformers.

use super::{factory, tree};
use oasis_core::draft::{Draft, DraftFactory, DraftSetup, DraftShape, DraftTree, DraftView, Target};
use oasis_core::ops::Backend;
use oasis_core::registry::{DraftEntry, Param};
use oasis_core::{Error, Result};
use serde::Deserialize;
use std::collections::HashMap;

const NAME: &str = "ngram";

/// Longest n-gram that may be asked for; each length costs an index entry a token.
const LONGEST: usize = 16;

/// The row of the table.
pub const fn entry<B: Backend>() -> DraftEntry<B> {
    DraftEntry {
        name: NAME,
        about: "What followed the last occurrence of the longest n-gram that ends the text (prompt lookup, Saxena 2023).",
        version: 1,
        params: &[
            Param { name: "max", about: "Longest n-gram that is looked up, at most 16.", default: "4" },
            Param { name: "min", about: "Shortest n-gram that is looked up.", default: "1" },
        ],
        build,
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    max: usize,
    min: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { max: 4, min: 1 }
    }
}

fn build<B: Backend>(setup: DraftSetup<'_, B>) -> Result<DraftFactory<B>> {
    let Config { min, max } = setup.params.parse(NAME)?;
    Ngram::new(min, max)?;
    Ok(factory(move |_| Ngram::empty(min, max)))
}

/// The index of one sequence. It grows by the tokens that are new since the last proposal.
#[derive(Debug, Clone)]
pub struct Ngram {
    /// One index for each length, longest first.
    lengths: Vec<Occurrences>,
    indexed: usize,
}

/// Where the n-grams of one length were followed by a token.
#[derive(Debug, Clone)]
struct Occurrences {
    n: usize,
    /// Hash of an n-gram to the position of the token after its last occurrence.
    last: HashMap<u64, u32>,
    /// For the token at each position: the position of the one that followed an earlier n-gram of the same hash.
    before: Vec<u32>,
}

/// No earlier occurrence. Position 0 follows no n-gram.
const FIRST: u32 = 0;

impl Ngram {
    /// Looks up n-grams of `min ..= max` tokens.
    ///
    /// # Errors
    /// `min` is 0, above `max`, or `max` is above 16.
    pub fn new(min: usize, max: usize) -> Result<Self> {
        if min == 0 || min > max || max > LONGEST {
            let what = format!(
                "min = {min}, max = {max}; an n-gram has 1 to {LONGEST} tokens and min is at most max"
            );
            return Err(Error::setting(NAME, what));
        }
        Ok(Self::empty(min, max))
    }

    fn empty(min: usize, max: usize) -> Self {
        let index = |n| Occurrences { n, last: HashMap::new(), before: Vec::new() };
        Self { lengths: (min..=max).rev().map(index).collect(), indexed: 0 }
    }

    /// The tokens that followed the longest known n-gram at the end of `tokens`, its last occurrence first;
    /// then the other tokens that followed n-grams that end `tokens`, longest and latest first.
    /// A copy that reaches the end of the text goes on in its own words.
    pub fn lookup(&mut self, tokens: &[u32], shape: DraftShape) -> DraftTree {
        self.extend(tokens);
        let mut starts: Vec<usize> = Vec::new();
        if shape.depth > 0 {
            for index in &self.lengths {
                index.collect(tokens, shape.branches.max(1), &mut starts);
            }
        }
        let Some(&first) = starts.first() else { return DraftTree::default() };
        let mut chain = Vec::with_capacity(shape.depth);
        for at in first..first + shape.depth {
            let token = tokens.get(at).copied().unwrap_or_else(|| chain[at - tokens.len()]);
            chain.push(token);
        }
        tree(chain, starts[1..].iter().map(|&at| tokens[at]))
    }

    fn extend(&mut self, tokens: &[u32]) {
        for index in &mut self.lengths {
            for at in self.indexed..tokens.len() {
                index.push(tokens, at);
            }
        }
        self.indexed = self.indexed.max(tokens.len());
    }
}

impl Occurrences {
    /// Notes that token `at` follows the n-gram before it.
    fn push(&mut self, tokens: &[u32], at: usize) {
        let before = if at < self.n {
            FIRST
        } else {
            self.last.insert(key(&tokens[at - self.n..at]), at as u32).unwrap_or(FIRST)
        };
        self.before.push(before);
    }

    /// Adds positions whose tokens followed the n-gram that ends `tokens`, latest first, as long as there are
    /// fewer than `count` and the token is a new one.
    fn collect(&self, tokens: &[u32], count: usize, found: &mut Vec<usize>) {
        if tokens.len() < self.n {
            return;
        }
        let suffix = &tokens[tokens.len() - self.n..];
        let mut at = self.last.get(&key(suffix)).copied().unwrap_or(FIRST) as usize;
        while at != FIRST as usize && found.len() < count {
            // Equal hashes may belong to different n-grams.
            let same = &tokens[at - self.n..at] == suffix;
            if same && found.iter().all(|&other| tokens[other] != tokens[at]) {
                found.push(at);
            }
            at = self.before[at] as usize;
        }
    }
}

fn key(ngram: &[u32]) -> u64 {
    ngram.iter().fold(ngram.len() as u64, |hash, &token| crate::mix::mix(hash, token.into()))
}

impl<B: Backend> Draft<B> for Ngram {
    fn propose(&mut self, _: &mut B, _: &mut dyn Target<B>, view: &DraftView<'_>) -> Result<DraftTree> {
        Ok(self.lookup(view.tokens, view.shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Instant;

    fn shape(depth: usize, branches: usize) -> DraftShape {
        DraftShape { depth, branches }
    }

    fn lookup(tokens: &[u32], depth: usize, branches: usize) -> DraftTree {
        Ngram::new(1, 4).unwrap().lookup(tokens, shape(depth, branches))
    }

    #[test]
    fn the_longest_ngram_decides_and_its_last_occurrence_wins() {
        // "1 2" was followed by 8 (last) and 9; "2" alone was last followed by 7.
        let text = [1, 2, 9, 1, 2, 8, 5, 2, 7, 1, 2];
        assert_eq!(lookup(&text, 2, 1), DraftTree::chain(vec![8, 5]));
        assert_eq!(lookup(&text, 2, 3), DraftTree { tokens: vec![8, 5, 9, 7], parents: vec![0, 1, 0, 0] });
    }

    #[test]
    fn without_a_match_there_is_no_idea() {
        assert_eq!(lookup(&[1, 2, 3], 2, 2), DraftTree::default());
        assert_eq!(lookup(&[1], 2, 2), DraftTree::default());
        assert_eq!(lookup(&[], 2, 2), DraftTree::default());
        assert_eq!(lookup(&[1, 1], 0, 2), DraftTree::default());
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(lookup(&[4, 1, 2, 1, 2], 5, 1), DraftTree::chain(vec![1, 2, 1, 2, 1]));
        assert_eq!(lookup(&[3, 3], 3, 1), DraftTree::chain(vec![3, 3, 3]));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (min, max) in [(0, 4), (3, 2), (1, 17)] {
            let error = Ngram::new(min, max).unwrap_err().to_string();
            assert!(error.contains("ngram") && error.contains("16"), "{error}");
        }
    }

    /// The definition, by rescanning.
    fn by_scan(tokens: &[u32], min: usize, max: usize, shape: DraftShape) -> DraftTree {
        let mut starts: Vec<usize> = Vec::new();
        for n in (min..=max).rev().filter(|n| *n < tokens.len()) {
            let suffix = &tokens[tokens.len() - n..];
            for at in (n..tokens.len()).rev().filter(|&at| tokens[at - n..at] == *suffix) {
                if starts.len() < shape.branches.max(1) && starts.iter().all(|&s| tokens[s] != tokens[at]) {
                    starts.push(at);
                }
            }
        }
        if starts.is_empty() || shape.depth == 0 {
            return DraftTree::default();
        }
        let mut text = tokens.to_vec();
        for i in 0..shape.depth {
            text.push(text[starts[0] + i]);
        }
        let mut tree = DraftTree::chain(text.split_off(tokens.len()));
        for &at in &starts[1..] {
            tree.tokens.push(tokens[at]);
            tree.parents.push(0);
        }
        tree
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn the_index_finds_what_a_scan_finds(
            tokens in (1u32..8).prop_flat_map(|words| prop::collection::vec(0..words, 0..60)),
            lengths in (1usize..4, 0usize..4),
            size in (0usize..6, 0usize..5),
            strides in prop::collection::vec(1usize..5, 60),
        ) {
            let (min, max, shape) = (lengths.0, lengths.0 + lengths.1, shape(size.0, size.1));
            let mut draft = Ngram::new(min, max).unwrap();
            let mut end = 0;
            for stride in strides {
                end = (end + stride).min(tokens.len());
                prop_assert_eq!(draft.lookup(&tokens[..end], shape), by_scan(&tokens[..end], min, max, shape));
            }
        }
    }

    #[test]
    fn a_long_text_costs_little_a_token() {
        let tokens: Vec<u32> = (0..16_384u64).map(|i| (crate::mix::mix(1, i) % 1000) as u32).collect();
        let mut draft = Ngram::new(1, 4).unwrap();
        draft.lookup(&tokens[..8192], shape(3, 3));
        let start = Instant::now();
        for end in 8193..=tokens.len() {
            draft.lookup(&tokens[..end], shape(3, 3));
        }
        // Rescanning would take 8,192 × 16,384 × 4 comparisons, more than a second; the bound leaves room for slow machines.
        assert!(start.elapsed().as_secs_f64() < 0.5, "{:?}", start.elapsed());
    }
}
