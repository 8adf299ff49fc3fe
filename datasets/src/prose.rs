//! English text as words and sentences.

use oasis_core::{Error, Result};
use std::path::Path;

/// The bundled novel: Jane Austen, *Sense and Sensibility* (1811), in the public domain.
const NOVEL: &str = include_str!("../bundled/text/sense-and-sensibility.txt");
/// Words whose full stop ends no sentence.
const ABBREVIATIONS: [&str; 8] = ["Mr.", "Mrs.", "Dr.", "St.", "Esq.", "Col.", "i.e.", "e.g."];

/// A text and the places of its words.
#[derive(Debug, Clone)]
pub(crate) struct Prose {
    text: String,
    /// Byte ranges.
    words: Vec<(usize, usize)>,
    /// Numbers of the words that begin a sentence, ascending.
    sentences: Vec<usize>,
}

/// The text of a file, or the bundled novel if there is none.
///
/// # Errors
/// The file can't be read, or is not UTF-8.
pub(crate) fn read(path: Option<&Path>) -> Result<String> {
    let Some(path) = path else { return Ok(NOVEL.to_owned()) };
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::format(path, format!("byte {at} is not UTF-8; convert the text to UTF-8 first"))
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    })
}

impl Prose {
    /// The text as it is.
    pub fn new(text: String) -> Self {
        let mut words = Vec::new();
        let mut start = None;
        for (at, c) in text.char_indices() {
            match (c.is_whitespace(), start) {
                (true, Some(from)) => {
                    words.push((from, at));
                    start = None;
                }
                (false, None) => start = Some(at),
                _ => {}
            }
        }
        words.extend(start.map(|from| (from, text.len())));
        let mut prose = Self { text, words, sentences: Vec::new() };
        prose.sentences = (0..prose.words.len()).filter(|&i| prose.begins_sentence(i)).collect();
        prose
    }

    /// The text with its lines joined: one blank between words, one empty line between paragraphs.
    pub fn unwrapped(text: &str) -> Self {
        let mut out = String::with_capacity(text.len());
        let mut gap = "";
        for line in text.lines() {
            let mut words = line.split_whitespace().peekable();
            if words.peek().is_none() && !out.is_empty() {
                gap = "\n\n";
            }
            for word in words {
                out.push_str(gap);
                out.push_str(word);
                gap = " ";
            }
        }
        Self::new(out)
    }

    fn begins_sentence(&self, word: usize) -> bool {
        let Some(before) = word.checked_sub(1) else { return true };
        let (_, end) = self.words[before];
        let gap = &self.text[end..self.words[word].0];
        let last = &self.text[self.words[before].0..end];
        let stripped = last.trim_end_matches(['"', '\'', ')', '”', '’']);
        gap.contains("\n\n") || (stripped.ends_with(['.', '!', '?']) && !ABBREVIATIONS.contains(&stripped))
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Words that begin a sentence, ascending.
    pub fn sentences(&self) -> &[usize] {
        &self.sentences
    }

    /// Words `from..to` with what stands between them. An empty range is an empty text.
    pub fn slice(&self, from: usize, to: usize) -> &str {
        match self.words.get(from..to) {
            Some([first, .., last]) => &self.text[first.0..last.1],
            Some([only]) => &self.text[only.0..only.1],
            _ => "",
        }
    }

    /// The white space before word `at`; empty for the first word and behind the last.
    pub fn gap(&self, at: usize) -> &str {
        match (at.checked_sub(1).and_then(|before| self.words.get(before)), self.words.get(at)) {
            (Some(before), Some(word)) => &self.text[before.1..word.0],
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_paragraphs_kept() {
        let prose =
            Prose::unwrapped("\n\nMr. Hill  came\nin. \"Good day!\"\nhe\tsaid.\n \n\nNobody answered");
        assert_eq!(prose.text, "Mr. Hill came in. \"Good day!\" he said.\n\nNobody answered");
        let starts: Vec<&str> = prose.sentences().iter().map(|&w| prose.slice(w, w + 1)).collect();
        assert_eq!(starts, ["Mr.", "\"Good", "he", "Nobody"]);
        assert_eq!(prose.slice(3, 6), "in. \"Good day!\"");
        assert_eq!((prose.slice(2, 2), prose.slice(9, 99)), ("", ""));
        assert_eq!((prose.gap(8), prose.gap(0), prose.gap(10)), ("\n\n", "", ""));
    }

    #[test]
    fn the_novel_is_long_enough_for_long_contexts() {
        let prose = Prose::unwrapped(NOVEL);
        assert!(prose.len() > 100_000, "{}", prose.len());
        assert!(prose.sentences().len() > 4_000, "{}", prose.sentences().len());
    }

    #[test]
    fn files_are_read_with_clear_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text.txt");
        std::fs::write(&path, "\u{feff}One word.").unwrap();
        assert_eq!(read(Some(&path)).unwrap(), "One word.");
        std::fs::write(&path, b"abc\xff").unwrap();
        assert!(read(Some(&path)).unwrap_err().to_string().contains("byte 3 is not UTF-8"));
        let missing = dir.path().join("missing.txt");
        assert!(read(Some(&missing)).unwrap_err().to_string().contains("missing.txt"));
        assert_eq!(Prose::new(String::new()).len(), 0);
    }
}
