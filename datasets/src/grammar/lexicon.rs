//! The words of nano's language, found in its tokenizer, and sentence patterns compiled to token ids.

use oasis_core::{Error, Result, text::Tokenizer};

/// Word classes of the filler text. `class as u32 + 1` is the class number of the affinity rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Adjective,
    Noun,
    Transitive,
    Intransitive,
    Adverb,
    Place,
    Name,
    City,
    Item,
}

/// A class's letter in patterns and the first word of its range in the vocabulary.
const CLASSES: [(Class, &str, &str); 9] = [
    (Class::Adjective, "A", "amber"),
    (Class::Noun, "N", "actor"),
    (Class::Transitive, "V", "admired"),
    (Class::Intransitive, "I", "appeared"),
    (Class::Adverb, "R", "abruptly"),
    (Class::Place, "P", "alley"),
    (Class::Name, "M", "abel"),
    (Class::City, "C", "agra"),
    (Class::Item, "O", "acorn"),
];
/// First and last variable name.
const VARIABLES: (&str, &str) = ("bq", "km");

/// Consecutive token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: u32,
    pub len: u32,
}

impl Range {
    /// Position of `id` in the range.
    #[cfg(test)]
    pub fn position(self, id: u32) -> Option<u32> {
        id.checked_sub(self.start).filter(|&i| i < self.len)
    }

    /// The largest prime below the range's length, or the length if it is prime. Keys of training documents were
    /// drawn from that many words of a class: the last few never were keys.
    pub fn keys(self) -> u32 {
        prime_at_most(self.len)
    }
}

/// One place of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// This token.
    Fixed(u32),
    /// A word of this class.
    Word(Class),
    /// A variable, digit or any content word; what it is, the caller knows.
    Free,
}

/// A sentence form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(pub Vec<Slot>);

impl Pattern {
    /// The pattern's tokens with `words` in its open slots, in order.
    pub fn fill(&self, words: &[u32]) -> Vec<u32> {
        let mut words = words.iter().copied();
        let tokens: Vec<u32> = self
            .0
            .iter()
            .filter_map(|slot| match slot {
                Slot::Fixed(id) => Some(*id),
                Slot::Word(_) | Slot::Free => words.next(),
            })
            .collect();
        debug_assert!(words.next().is_none() && tokens.len() == self.0.len(), "wrong number of words");
        tokens
    }
}

/// The vocabulary of nano.
#[derive(Debug)]
pub(crate) struct Lexicon<'a> {
    tokenizer: &'a Tokenizer,
    classes: [Range; 9],
    pub variables: Range,
    pub digits: Range,
    pub bos: u32,
    pub eos: u32,
}

impl<'a> Lexicon<'a> {
    /// Finds the words of task `task` in a tokenizer.
    ///
    /// # Errors
    /// The tokenizer lacks one of the words: it is not nano's.
    pub fn new(tokenizer: &'a Tokenizer, task: &str) -> Result<Self> {
        let id = |word: &str| token(tokenizer, word, task);
        let mut starts = [0; 10];
        for (start, (_, _, first)) in starts.iter_mut().zip(CLASSES) {
            *start = id(first)?;
        }
        starts[9] = id(VARIABLES.0)?;
        let mut classes = [Range { start: 0, len: 0 }; 9];
        for (i, range) in classes.iter_mut().enumerate() {
            *range = between(starts[i], starts[i + 1], task)?;
        }
        Ok(Self {
            tokenizer,
            classes,
            variables: between(starts[9], id(VARIABLES.1)? + 1, task)?,
            digits: between(id("0")?, id("9")? + 1, task)?,
            bos: id("<bos>")?,
            eos: id("<eos>")?,
        })
    }

    /// The token ids of a class.
    pub fn class(&self, class: Class) -> Range {
        self.classes[class as usize]
    }

    /// All content words: the nine classes, which lie next to one another.
    pub fn content(&self) -> Range {
        let (first, last) = (self.classes[0], self.classes[8]);
        Range { start: first.start, len: last.start + last.len - first.start }
    }

    /// Compiles a pattern: words separated by blanks; a class letter, `X` (variable), `D` (digit) and `W` (any
    /// content word) are slots.
    pub fn pattern(&self, text: &str) -> Result<Pattern> {
        let slot = |word: &str| {
            if let Some((class, _, _)) = CLASSES.iter().find(|(_, letter, _)| *letter == word) {
                return Ok(Slot::Word(*class));
            }
            match word {
                "X" | "D" | "W" => Ok(Slot::Free),
                _ => token(self.tokenizer, word, text).map(Slot::Fixed),
            }
        };
        text.split(' ').map(slot).collect::<Result<Vec<_>>>().map(Pattern)
    }

    /// Tokens as text, one blank between two.
    pub fn text(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }
}

fn token(tokenizer: &Tokenizer, word: &str, task: &str) -> Result<u32> {
    tokenizer.token_id(word).ok_or_else(|| {
        Error::setting(
            "task",
            format!(
                "`{task}` is written in the words of the bundled model nano, and this tokenizer has no token \
                 `{word}`; use the model nano, or one of the tasks passkey, needle and fidelity"
            ),
        )
    })
}

fn between(start: u32, end: u32, task: &str) -> Result<Range> {
    match end.checked_sub(start) {
        Some(len) if len > 0 => Ok(Range { start, len }),
        _ => Err(Error::setting(
            "task",
            format!("`{task}` needs nano's tokenizer; this one has the same words in another order"),
        )),
    }
}

/// The largest prime that is at most `n`; 1 if there is none.
pub(crate) fn prime_at_most(n: u32) -> u32 {
    let prime = |n: &u32| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2..=n).rev().find(prime).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes() {
        let found: Vec<u32> = [1, 2, 3, 10, 128, 50_358].map(prime_at_most).to_vec();
        assert_eq!(found, [1, 2, 3, 7, 127, 50_341]);
    }
}
