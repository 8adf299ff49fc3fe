//! Facts and filler put together to a body of an exact length.

use super::filler::Filler;
use crate::draw::Draw;

/// A fact sentence and its place among the filler, 0 (beginning) to 1 (end).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fact {
    pub at: f64,
    pub tokens: Vec<u32>,
}

/// A question with the beginning of its answer, and the rest of the answer with the end-of-text token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question {
    pub prompt: Vec<u32>,
    pub answer: Vec<u32>,
}

impl Question {
    /// Tokens of question and answer.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.answer.len()
    }
}

/// What a document says, and what it is asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Content {
    pub facts: Vec<Fact>,
    pub questions: Vec<Question>,
}

/// A body of `tokens` tokens: `bos`, the tail of one filler sentence to make the length exact, then filler
/// sentences at equal steps with the facts at their places between them. Facts that are longer than `tokens`
/// make a longer body: the caller has checked that they fit.
pub(crate) fn body(
    mut facts: Vec<Fact>,
    filler: &Filler<'_>,
    bos: u32,
    tokens: usize,
    draw: &mut Draw,
) -> Vec<u32> {
    let used: usize = 1 + facts.iter().map(|f| f.tokens.len()).sum::<usize>();
    let mut room = tokens.saturating_sub(used);
    let mut sentences = Vec::with_capacity(room / 8 + 1);
    let rest = loop {
        let sentence = filler.sentence(draw);
        match room.checked_sub(sentence.len()) {
            Some(left) => {
                room = left;
                sentences.push(sentence);
            }
            None => break sentence,
        }
    };
    let mut body = Vec::with_capacity(tokens);
    body.push(bos);
    body.extend_from_slice(&rest[rest.len() - room..]);
    facts.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut facts = facts.iter().peekable();
    let step = 1.0 / sentences.len().max(1) as f64;
    for (i, sentence) in sentences.iter().enumerate() {
        let at = (i as f64 + 0.5) * step;
        while let Some(fact) = facts.next_if(|fact| fact.at < at) {
            body.extend_from_slice(&fact.tokens);
        }
        body.extend_from_slice(sentence);
    }
    facts.for_each(|fact| body.extend_from_slice(&fact.tokens));
    body
}
