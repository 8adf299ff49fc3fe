//! Needles in a haystack: `niah_*`.

use super::{
    encoder::Encoder,
    recipe::Recipe,
    shared::{Shared, insert, noise_lines, prefix, word},
    words::uuid,
};
use crate::{draw::Draw, prompt::Parts};
use oasis_core::Result;
use std::collections::HashSet;

/// Places of needles in an essay: this many, evenly spaced from the beginning to the end.
const DEPTHS: u32 = 40;

/// What surrounds the needles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haystack {
    /// Five sentences, over and over.
    Noise,
    /// Prose.
    Essay,
    /// Needles that nobody asks for.
    Needles,
}

/// What keys or values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// `adjective-noun`.
    Words,
    /// Seven digits.
    Number,
    /// UUIDs.
    Uuid,
}

/// One of the eight needle tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub haystack: Haystack,
    pub key: Item,
    pub value: Item,
    /// Keys in the text.
    pub keys: usize,
    /// Values of each key.
    pub values: usize,
    /// Keys that are asked for.
    pub queries: usize,
}

/// One prompt.
pub(crate) struct Niah<'a> {
    shared: &'a Shared<'a>,
    shape: Shape,
    /// Needles with their places, 0 to 1, ascending.
    needles: Vec<(f64, String)>,
    query: String,
    values: Vec<String>,
    /// Distractor lines, and sums of their tokens.
    lines: Vec<String>,
    sums: Vec<usize>,
}

/// Draws keys or values that were not drawn before.
struct Source<'a> {
    shared: &'a Shared<'a>,
    seen: HashSet<String>,
}

impl Source<'_> {
    fn fresh(&mut self, item: Item, draw: &mut Draw) -> String {
        loop {
            let text = match item {
                Item::Words => self.shared.keys.draw(draw),
                Item::Number => draw.number(7),
                Item::Uuid => uuid(draw),
            };
            // Word keys run out in very long contexts; then distractors may share a key, never with a needle.
            if self.seen.insert(text.clone()) || self.seen.len() > self.shared.keys.len() / 2 {
                return text;
            }
        }
    }
}

fn needle(shape: Shape, key: &str, value: &str) -> String {
    format!("Remember: the secret {} of {key} is {value}.", noun(shape.value, 1))
}

fn noun(item: Item, n: usize) -> &'static str {
    match (item, n) {
        (Item::Words, 1) => "word",
        (Item::Words, _) => "words",
        (Item::Number, 1) => "number",
        (Item::Number, _) => "numbers",
        (Item::Uuid, 1) => "uuid",
        (Item::Uuid, _) => "uuids",
    }
}

impl<'a> Niah<'a> {
    /// Draws needles, places, questions and distractors.
    pub fn new(
        shared: &'a Shared<'a>,
        shape: Shape,
        encoder: &mut Encoder<'_>,
        draw: &mut Draw,
    ) -> Result<Self> {
        let mut source = Source { shared, seen: HashSet::new() };
        let (mut texts, mut pairs) = (Vec::new(), Vec::new());
        for _ in 0..shape.keys.max(shape.queries) {
            let key = source.fresh(shape.key, draw);
            let values: Vec<String> = (0..shape.values).map(|_| source.fresh(shape.value, draw)).collect();
            texts.extend(values.iter().map(|value| needle(shape, &key, value)));
            pairs.push((key, values));
        }
        let order = draw.distinct(texts.len() as u32, texts.len());
        let places = places(shape.haystack, texts.len(), draw);
        let needles = places.into_iter().zip(order).map(|(p, i)| (p, texts[i as usize].clone())).collect();
        let asked = draw.distinct(pairs.len() as u32, shape.queries);
        let asked: Vec<&(String, Vec<String>)> = asked.iter().map(|&i| &pairs[i as usize]).collect();
        let names: Vec<&str> = asked.iter().map(|(key, _)| key.as_str()).collect();
        let query = match names.as_slice() {
            [rest @ .., last] if !rest.is_empty() => format!("{}, and {last}", rest.join(", ")),
            _ => names.concat(),
        };
        let values = asked.iter().flat_map(|(_, values)| values.clone()).collect();
        let (lines, sums) = match shape.haystack {
            Haystack::Needles => distractors(shape, &mut source, encoder, draw)?,
            Haystack::Noise | Haystack::Essay => (Vec::new(), Vec::new()),
        };
        Ok(Self { shared, shape, needles, query, values, lines, sums })
    }

    fn essay(&self, words: usize) -> String {
        let prose = self.shared.prose;
        let in_text = words.min(prose.len());
        let starts = &prose.sentences()[..prose.sentences().partition_point(|&s| s < in_text)];
        let mut needles = self
            .needles
            .iter()
            .map(|(place, text)| {
                // Before the sentence that the place names, or behind the last one.
                let at = starts.get((place * starts.len() as f64) as usize).copied();
                (at.unwrap_or(words), text.as_str())
            })
            .peekable();
        let mut out: Vec<&str> = Vec::with_capacity(words + needles.len());
        for i in 0..words {
            while let Some((_, text)) = needles.next_if(|(at, _)| *at <= i) {
                out.push(text);
            }
            out.push(word(prose, i));
        }
        out.extend(needles.map(|(_, text)| text));
        out.join(" ")
    }
}

/// Where the needles go, ascending.
fn places(haystack: Haystack, n: usize, draw: &mut Draw) -> Vec<f64> {
    let mut places: Vec<f64> = match haystack {
        Haystack::Essay => {
            let steps = draw.distinct(DEPTHS, n);
            steps.into_iter().map(|i| f64::from(i) / f64::from(DEPTHS - 1)).collect()
        }
        Haystack::Noise | Haystack::Needles => (0..n).map(|_| draw.unit()).collect(),
    };
    places.sort_by(f64::total_cmp);
    places
}

/// Distractor needles until they overflow the prompt, with sums of their tokens.
fn distractors(
    shape: Shape,
    source: &mut Source<'_>,
    encoder: &mut Encoder<'_>,
    draw: &mut Draw,
) -> Result<(Vec<String>, Vec<usize>)> {
    let room = source.shared.room;
    let (mut lines, mut counts, mut used) = (Vec::new(), Vec::new(), 0);
    while used <= room {
        let (key, value) = (source.fresh(shape.key, draw), source.fresh(shape.value, draw));
        let line = needle(shape, &key, &value);
        let tokens = encoder.count(&format!("{line}\n"))?.max(1);
        used += tokens;
        counts.push(tokens);
        lines.push(line);
    }
    Ok((lines, prefix(counts)))
}

impl Recipe for Niah<'_> {
    fn least(&self) -> usize {
        0
    }

    fn most(&self) -> usize {
        match self.shape.haystack {
            Haystack::Needles => self.lines.len(),
            Haystack::Essay => self.shared.essay.len().saturating_sub(1),
            Haystack::Noise => self.shared.length,
        }
    }

    fn extra(&self, units: usize) -> usize {
        match self.shape.haystack {
            Haystack::Needles => self.sums[units],
            Haystack::Essay => self.shared.essay[units],
            // A line end is about as long as the blank that it stands for.
            Haystack::Noise => self.shared.noise_tokens(units) + units / 5,
        }
    }

    fn parts(&self, units: usize) -> Parts {
        let body = match self.shape.haystack {
            Haystack::Noise => insert(noise_lines(units), &self.needles),
            Haystack::Needles => insert(self.lines[..units].to_vec(), &self.needles),
            Haystack::Essay => self.essay(units),
        };
        let n = self.values.len();
        let (noun, query) = (noun(self.shape.value, n), &self.query);
        let (intro, question, lead) = if n == 1 {
            (
                format!(
                    "The following text hides a secret {noun} that you will be asked for. Keep it in mind."
                ),
                format!("\nWhat is the secret {noun} of {query} according to the text above?"),
                format!(" According to the text above, the secret {noun} of {query} is"),
            )
        } else {
            (
                format!(
                    "The following text hides secret {noun} that you will be asked for. Keep them in mind."
                ),
                format!("\nWhat are all the secret {noun} of {query} according to the text above?"),
                format!(" According to the text above, the secret {noun} of {query} are"),
            )
        };
        Parts { context: format!("{intro}\n{body}"), question, lead }
    }

    fn references(&self) -> &[String] {
        &self.values
    }
}
