//! ROUGE-L, in the two forms that benchmarks use (Lin 2004).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Positions in `reference` of its longest common subsequence with `candidate`, ascending. Among equally long ones the
/// choice is that of a table walked from the end; `left_first` says which way it turns where both ways are as good.
fn lcs<T: PartialEq>(reference: &[T], candidate: &[T], left_first: bool) -> Vec<usize> {
    let width = candidate.len() + 1;
    let mut table = vec![0u32; (reference.len() + 1) * width];
    for (i, x) in reference.iter().enumerate() {
        for (j, y) in candidate.iter().enumerate() {
            table[(i + 1) * width + j + 1] = if x == y {
                table[i * width + j] + 1
            } else {
                table[i * width + j + 1].max(table[(i + 1) * width + j])
            };
        }
    }
    let (mut i, mut j) = (reference.len(), candidate.len());
    let mut positions = Vec::new();
    while i > 0 && j > 0 {
        let (up, left) = (table[(i - 1) * width + j], table[i * width + j - 1]);
        if reference[i - 1] == candidate[j - 1] {
            positions.push(i - 1);
            i -= 1;
            j -= 1;
        } else if left > up || (left == up && left_first) {
            j -= 1;
        } else {
            i -= 1;
        }
    }
    positions.reverse();
    positions
}

/// ROUGE-L F of LongBench: sentences end at full stops, words count once (the Python package `rouge` 1.0.1).
pub fn rouge_l(prediction: &str, reference: &str) -> f64 {
    let (prediction, reference) = (sentences(prediction), sentences(reference));
    if prediction.is_empty() || reference.is_empty() {
        return 0.0;
    }
    let distinct = |s: &[Vec<String>]| s.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let mut common: HashSet<&String> = HashSet::new();
    for sentence in &reference {
        for candidate in &prediction {
            common.extend(lcs(sentence, candidate, true).into_iter().map(|i| &sentence[i]));
        }
    }
    let (recall, precision) =
        (common.len() as f64 / distinct(&reference), common.len() as f64 / distinct(&prediction));
    2.0 * (precision * recall / (precision + recall + 1e-8))
}

/// Sentences as words. A sentence of blanks holds one empty word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| {
        let words: Vec<String> = sentence.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|s| !s.is_empty()).map(words).collect()
}

/// ROUGE-Lsum F of InfiniteBench: a sentence a line, words are runs of a-z and 0-9 (the Python package `rouge_score`
/// without stemming).
pub fn rouge_lsum(prediction: &str, reference: &str) -> f64 {
    let lines = |text: &str| -> Vec<Vec<String>> {
        text.split('\n').filter(|line| !line.is_empty()).map(ascii_words).collect()
    };
    let (prediction, reference) = (lines(prediction), lines(reference));
    let count = |s: &[Vec<String>]| s.iter().map(Vec::len).sum::<usize>();
    let (n, m) = (count(&prediction), count(&reference));
    if n == 0 || m == 0 {
        return 0.0;
    }
    let (mut left_p, mut left_r) = (tally(prediction.iter().flatten()), tally(reference.iter().flatten()));
    let mut hits = 0usize;
    for sentence in &reference {
        let union: HashSet<usize> =
            prediction.iter().flat_map(|candidate| lcs(sentence, candidate, false)).collect();
        let mut union: Vec<usize> = union.into_iter().collect();
        union.sort_unstable();
        for word in union.into_iter().map(|i| &sentence[i]) {
            if let (Some(p), Some(r)) = (left_p.get_mut(word), left_r.get_mut(word))
                && *p > 0
                && *r > 0
            {
                *p -= 1;
                *r -= 1;
                hits += 1;
            }
        }
    }
    let (precision, recall) = (hits as f64 / n as f64, hits as f64 / m as f64);
    if hits == 0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
}

fn ascii_words(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let runs = lower.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
    runs.filter(|run| !run.is_empty()).map(str::to_owned).collect()
}

fn tally<T: Hash + Eq>(items: impl Iterator<Item = T>) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gold_is_one_and_unrelated_text_is_near_zero() {
        let gold = "The council agreed to repair the bridge. Work begins in May.";
        let other = "Penguins swim under cold ice";
        assert!((rouge_l(gold, gold) - 1.0).abs() < 1e-7);
        assert_eq!(rouge_lsum(gold, gold), 1.0);
        assert_eq!((rouge_l(other, gold), rouge_lsum(other, gold)), (0.0, 0.0));
        assert_eq!((rouge_l("", gold), rouge_lsum("", gold), rouge_l("...", gold)), (0.0, 0.0, 0.0));
    }
}
