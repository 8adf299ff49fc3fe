//! What all samples of a series share.

use super::{encoder::Encoder, words::Keys};
use crate::prose::Prose;
use oasis_core::Result;

/// The five sentences of a noise line.
pub(crate) const NOISE: [&str; 5] =
    ["The rain is cold.", "The snow is white.", "The night is dark.", "On we walk.", "Up and down again."];

/// Texts and word lists, with token counts.
pub(crate) struct Shared<'a> {
    /// Tokens of prompt and answer.
    pub length: usize,
    /// Tokens of the prompt.
    pub room: usize,
    pub keys: &'a Keys,
    pub prose: &'a Prose,
    pub vocabulary: &'a [String],
    /// Tokens of the text's first words, one blank before each; empty where a task does not need them.
    pub essay: Vec<usize>,
    /// Tokens of each noise sentence, one blank before it.
    pub noise: [usize; 5],
}

impl Shared<'_> {
    /// Counts the tokens of the noise and, if `essay`, of as many words as the length can hold.
    pub fn count(&mut self, encoder: &mut Encoder<'_>, essay: bool) -> Result<()> {
        for (count, sentence) in self.noise.iter_mut().zip(NOISE) {
            *count = encoder.count(&format!(" {sentence}"))?;
        }
        if essay && self.prose.len() > 0 {
            let words = (0..self.length).map(|i| word(self.prose, i));
            let counts: Vec<usize> = words.map(|w| encoder.count(&format!(" {w}"))).collect::<Result<_>>()?;
            self.essay = prefix(counts);
        }
        Ok(())
    }

    /// Tokens of the first `sentences` noise sentences.
    pub fn noise_tokens(&self, sentences: usize) -> usize {
        let line: usize = self.noise.iter().sum();
        sentences / 5 * line + self.noise[..sentences % 5].iter().sum::<usize>()
    }
}

/// Word `i` of a text that repeats.
pub(crate) fn word(prose: &Prose, i: usize) -> &str {
    let i = i % prose.len();
    prose.slice(i, i + 1)
}

/// Sums of the first 0, 1, 2, … numbers.
pub(crate) fn prefix(counts: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let sums = counts.into_iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// The first `sentences` noise sentences, five a line.
pub(crate) fn noise_lines(sentences: usize) -> Vec<String> {
    let full = NOISE.join(" ");
    let mut lines = vec![full; sentences / 5];
    if !sentences.is_multiple_of(5) {
        lines.push(NOISE[..sentences % 5].join(" "));
    }
    lines
}

/// `lines` with `extra` among them, in order, each before the line that its place (0 to 1, ascending) names.
pub(crate) fn insert(lines: Vec<String>, extra: &[(f64, String)]) -> String {
    let gaps = lines.len() + 1;
    let mut extra =
        extra.iter().map(|(place, line)| ((place * gaps as f64) as usize, line.as_str())).peekable();
    let mut out: Vec<&str> = Vec::with_capacity(gaps + extra.len());
    for (i, line) in lines.iter().enumerate() {
        while let Some((_, text)) = extra.next_if(|(at, _)| *at <= i) {
            out.push(text);
        }
        out.push(line);
    }
    out.extend(extra.map(|(_, text)| text));
    out.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_where_their_places_say() {
        let lines = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        let extra = [(0.0, "a".to_owned()), (0.5, "b".to_owned()), (0.99, "c".to_owned())];
        assert_eq!(insert(lines(3), &extra), "a\n0\n1\nb\n2\nc");
        assert_eq!(insert(lines(0), &extra), "a\nb\nc");
        assert_eq!(noise_lines(7).len(), 2);
        assert_eq!(noise_lines(7)[1], "The rain is cold. The snow is white.");
        assert_eq!(prefix([2, 3]), [0, 2, 5]);
    }
}
