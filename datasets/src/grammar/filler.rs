//! Filler text: 31 sentence forms, a topic for each document, and an affinity between successive words.

use super::lexicon::{Class, Lexicon, Pattern, Slot};
use crate::draw::Draw;
use oasis_core::Result;

/// The sentence forms, by letters: A adjective, N noun, V transitive and I intransitive verb, R adverb, P place,
/// M name, C city, O item.
pub(crate) const FORMS: [&str; 31] = [
    "the A N V the N .",
    "the N I R near the P .",
    "M V the A N in the P .",
    "a A N I beside the N .",
    "when the N I , the A N I R .",
    "M and M I to the P .",
    "in C , the N V a A O .",
    "the N of the A P V M .",
    "M brought a O from C .",
    "the A N and the N I .",
    "after the N I , M V the O .",
    "there was a A O on the N .",
    "M was A , but the N was A .",
    "nobody in the P V the A N .",
    "every N in C V the O .",
    "the N V M because the P was A .",
    "R , the N I through the P .",
    "M I R while the N V the O .",
    "from the P to the P , the A N I .",
    "the A O was under the N .",
    "no N V the O of the A N .",
    "M and the N I in C .",
    "it was a A N that V the O .",
    "the A O of M was in the P .",
    "who V the A O ? it was M .",
    "you could see the P from the A P .",
    "she V the N , and the N I R .",
    "his N V the O before M I .",
    "all day the A N I by the P .",
    "one morning M V a A O near C .",
    "that night the N I again .",
];
/// Topics that a document can have.
pub(crate) const TOPICS: u32 = 16;
/// Cumulative shares of the four candidates that follow a word.
const CANDIDATES: [f64; 3] = [0.45, 0.70, 0.90];
/// Share of words that follow no rule.
const ANY: f64 = 0.1;

/// The filler of one document.
pub(crate) struct Filler<'a> {
    lexicon: &'a Lexicon<'a>,
    forms: &'a [Pattern],
    topic: u32,
}

/// The compiled [`FORMS`].
pub(crate) fn forms(lexicon: &Lexicon<'_>) -> Result<Vec<Pattern>> {
    FORMS.iter().map(|form| lexicon.pattern(form)).collect()
}

impl<'a> Filler<'a> {
    /// Filler on a random topic.
    pub fn new(lexicon: &'a Lexicon<'a>, forms: &'a [Pattern], draw: &mut Draw) -> Self {
        Self { lexicon, forms, topic: draw.below(TOPICS) }
    }

    /// One sentence of a form drawn uniformly.
    pub fn sentence(&self, draw: &mut Draw) -> Vec<u32> {
        let form = &self.forms[draw.index(self.forms.len())];
        let mut previous = None;
        form.0
            .iter()
            .map(|slot| match slot {
                Slot::Fixed(id) => *id,
                Slot::Free => self.lexicon.eos,
                Slot::Word(class) => {
                    let id = match previous {
                        None => self.first(*class, draw),
                        Some(word) => self.next(*class, word, draw),
                    };
                    previous = Some(id);
                    id
                }
            })
            .collect()
    }

    /// A sentence's first content word: from the quarter of its class that begins at the topic, the nearer the likelier.
    fn first(&self, class: Class, draw: &mut Draw) -> u32 {
        let range = self.lexicon.class(class);
        let u = draw.unit();
        let offset = (u * u * f64::from(range.len) / 4.0) as u32;
        range.start + (self.topic * range.len / TOPICS + offset) % range.len
    }

    /// A later content word: mostly one of four candidates that the word before it determines.
    fn next(&self, class: Class, word: u32, draw: &mut Draw) -> u32 {
        let range = self.lexicon.class(class);
        if draw.unit() < ANY {
            return range.start + draw.below(range.len);
        }
        let u = draw.unit();
        let rank = CANDIDATES.iter().filter(|&&bound| u > bound).count() as u32;
        range.start + candidate(self.lexicon, class, word, rank)
    }
}

/// Number in `class` of the candidate of rank 0 to 3 after the content word `word`.
pub(crate) fn candidate(lexicon: &Lexicon<'_>, class: Class, word: u32, rank: u32) -> u32 {
    let previous = word.saturating_sub(lexicon.content().start);
    (7 * previous + 11 * rank + 5 * (class as u32 + 1)) % lexicon.class(class).len
}
