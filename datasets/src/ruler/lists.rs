//! Frequencies of words: `cwe` and `fwe`.

use super::{
    encoder::Encoder,
    recipe::Recipe,
    shared::{Shared, prefix},
    words::letters,
};
use crate::{draw::Draw, prompt::Parts};
use oasis_core::Result;
use std::collections::BTreeSet;
use std::f64::consts::PI;

/// Words that are asked for in `cwe`.
const COMMON: usize = 10;
/// Lengths below this have fewer repetitions and a smaller example.
const SHORT: usize = 4096;
/// Words that are asked for in `fwe`.
const FREQUENT: usize = 3;

/// How often common and other words of a list occur.
#[derive(Clone, Copy)]
struct Repeats {
    common: usize,
    other: usize,
}

impl Repeats {
    /// Entries of a list of `words` different words.
    fn entries(self, words: usize) -> usize {
        COMMON * self.common + (words - COMMON) * self.other
    }
}

/// One prompt of `cwe`: an example and a numbered list, in which ten words are common.
pub(crate) struct CommonWords {
    example: String,
    repeats: Repeats,
    /// The first ten are the common ones.
    words: Vec<String>,
    /// A sort key for each entry: those of the common words, then those of the others.
    order: Vec<u64>,
    /// Sums of tokens of the words and of the numbers `1.`, `2.`, …, a blank before each.
    word_sums: Vec<usize>,
    number_sums: Vec<usize>,
}

impl CommonWords {
    /// Draws the words of the example and of the list, and the order.
    pub fn new(shared: &Shared<'_>, encoder: &mut Encoder<'_>, draw: &mut Draw) -> Result<Self> {
        let short = shared.length < SHORT;
        let repeats = if short { Repeats { common: 6, other: 1 } } else { Repeats { common: 30, other: 3 } };
        let (in_example, shown) = if short {
            (20, Repeats { common: 3, other: 1 })
        } else {
            (40, Repeats { common: 10, other: 3 })
        };
        // An entry has a number, a stop and a word: three tokens at least.
        let most = COMMON + shared.room / (3 * repeats.other) + 1;
        let mut words = draw_words(shared.vocabulary, in_example + most, draw);
        let first = words.split_off(most);
        let order: Vec<u64> = (0..shown.entries(in_example)).map(|_| draw.wide()).collect();
        let example = problem(&list(&first, shown, &order));
        let example = format!("{}{}{} {}\n", example.0, example.1, example.2, answer(&first[..COMMON]));
        let mut word_sums = Vec::with_capacity(words.len());
        for word in &words {
            word_sums.push(encoder.count(&format!(" {word}"))?);
        }
        let mut number_sums = Vec::new();
        for i in 1..=repeats.entries(words.len()) {
            number_sums.push(encoder.count(&format!(" {i}."))?);
        }
        let order = (0..repeats.entries(words.len())).map(|_| draw.wide()).collect();
        Ok(Self {
            example,
            repeats,
            words,
            order,
            word_sums: prefix(word_sums),
            number_sums: prefix(number_sums),
        })
    }

    fn tokens(&self, units: usize) -> usize {
        let (n, Repeats { common, other }) = (units + COMMON, self.repeats);
        let words = self.word_sums[COMMON] * common + (self.word_sums[n] - self.word_sums[COMMON]) * other;
        words + self.number_sums[self.repeats.entries(n)]
    }
}

/// `n` different words, or pairs of words once the list is used up.
fn draw_words(vocabulary: &[String], n: usize, draw: &mut Draw) -> Vec<String> {
    let order = draw.distinct(vocabulary.len() as u32, n);
    let mut words: Vec<String> = order.iter().map(|&i| vocabulary[i as usize].clone()).collect();
    let mut pairs = BTreeSet::new();
    while words.len() < n && !vocabulary.is_empty() {
        let (a, b) = (draw.index(vocabulary.len()), draw.index(vocabulary.len()));
        if pairs.insert((a, b)) {
            words.push(format!("{}-{}", vocabulary[a], vocabulary[b]));
        }
    }
    words
}

/// `1. word 2. word …` in the order of the keys.
fn list(words: &[String], repeats: Repeats, order: &[u64]) -> String {
    let common = words[..COMMON].iter().flat_map(|w| std::iter::repeat_n(w, repeats.common));
    let other = words[COMMON..].iter().flat_map(|w| std::iter::repeat_n(w, repeats.other));
    let mut entries: Vec<(u64, &String)> = order.iter().copied().zip(common.chain(other)).collect();
    entries.sort_by_key(|(key, _)| *key);
    let entries: Vec<String> =
        entries.iter().enumerate().map(|(i, (_, w))| format!("{}. {w}", i + 1)).collect();
    entries.join(" ")
}

fn answer(words: &[String]) -> String {
    words.iter().enumerate().map(|(i, w)| format!("{}. {w}", i + 1)).collect::<Vec<_>>().join(" ")
}

fn problem(list: &str) -> (String, String, String) {
    (
        format!(
            "Some words come more often than others in the numbered list that follows. Keep them in mind.\n{list}"
        ),
        "\nQuestion: Which ten words come most often in the list above?".to_owned(),
        " Answer: The ten words that come most often in the list are:".to_owned(),
    )
}

impl Recipe for CommonWords {
    fn least(&self) -> usize {
        0
    }

    fn most(&self) -> usize {
        self.words.len() - COMMON
    }

    fn extra(&self, units: usize) -> usize {
        self.tokens(units) - self.tokens(0)
    }

    fn parts(&self, units: usize) -> Parts {
        let n = units + COMMON;
        let (context, question, lead) =
            problem(&list(&self.words[..n], self.repeats, &self.order[..self.repeats.entries(n)]));
        Parts { context: format!("{}{context}", self.example), question, lead }
    }

    fn references(&self) -> &[String] {
        &self.words[..COMMON]
    }

    fn answer(&self) -> String {
        format!(" {}", answer(&self.words[..COMMON]))
    }
}

/// One prompt of `fwe`: a coded text whose word of rank r makes up `r^-2 / ζ(2)` of it; rank 1 is dots.
pub(crate) struct FrequentWords {
    words: Vec<String>,
    tokens: Vec<usize>,
    most: usize,
    seed: u64,
}

/// Fewest words for which the three asked for occur, and differ in number.
const LEAST_WORDS: usize = 60;

impl FrequentWords {
    /// Draws the words.
    pub fn new(shared: &Shared<'_>, encoder: &mut Encoder<'_>, draw: &mut Draw) -> Result<Self> {
        let n = (shared.room / 50).max(2 * FREQUENT) + 1;
        let mut seen = BTreeSet::new();
        let mut words = vec!["...".to_owned()];
        while words.len() < n {
            let word = letters(draw, b'a', 6);
            if seen.insert(word.clone()) {
                words.push(word);
            }
        }
        let tokens = words.iter().map(|w| encoder.count(&format!(" {w}"))).collect::<Result<_>>()?;
        Ok(Self { words, tokens, most: shared.length.max(LEAST_WORDS), seed: draw.wide() })
    }

    /// How often the word of rank `rank`, from 1, occurs among `n`.
    fn occurrences(rank: usize, n: usize) -> usize {
        (n as f64 / (rank * rank) as f64 / (PI * PI / 6.0)) as usize
    }

    fn total(&self, n: usize) -> usize {
        self.tokens.iter().enumerate().map(|(i, t)| t * Self::occurrences(i + 1, n)).sum()
    }
}

impl Recipe for FrequentWords {
    fn least(&self) -> usize {
        LEAST_WORDS
    }

    fn most(&self) -> usize {
        self.most
    }

    fn extra(&self, units: usize) -> usize {
        self.total(units) - self.total(LEAST_WORDS)
    }

    fn parts(&self, units: usize) -> Parts {
        let repeat = |(i, word): (usize, &'_ String)| {
            std::iter::repeat_n(word.clone(), Self::occurrences(i + 1, units))
        };
        let mut text: Vec<String> = self.words.iter().enumerate().flat_map(repeat).collect();
        Draw::new(self.seed).shuffle(&mut text);
        let intro = "The coded text below consists of made-up words. Keep count of how often each one comes; dots do not count.";
        Parts {
            context: format!("{intro}\n{}", text.join(" ")),
            question: "\nQuestion: Which three words, dots aside, come most often in the coded text above? Do not explain."
                .to_owned(),
            lead: " Answer: The three words that come most often are:".to_owned(),
        }
    }

    fn references(&self) -> &[String] {
        &self.words[1..=FREQUENT]
    }

    fn answer(&self) -> String {
        format!(" {}.", self.references().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_words_asked_for_are_the_most_frequent() {
        for n in [LEAST_WORDS, 61, 100, 1000, 20_000] {
            let counts: Vec<usize> = (1..8).map(|rank| FrequentWords::occurrences(rank, n)).collect();
            assert!(counts[..5].windows(2).all(|w| w[0] > w[1]), "{n}: {counts:?}");
        }
    }

    #[test]
    fn words_go_on_as_pairs_when_the_list_is_used_up() {
        let vocabulary = ["ash", "elm", "oak"].map(str::to_owned);
        let words = draw_words(&vocabulary, 8, &mut Draw::new(1));
        let different: BTreeSet<&String> = words.iter().collect();
        assert_eq!((words.len(), different.len()), (8, 8));
        assert!(words[3..].iter().all(|w| w.contains('-')));
    }
}
