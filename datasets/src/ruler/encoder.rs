//! Token counts and tokens of long texts from cached pieces.
//!
//! Byte-level tokenizers split a text into words before they merge anything, so the tokens of a text are those of its
//! words, one after the other. Each distinct word is encoded once. Whether this holds for a tokenizer is not taken on
//! trust: [`Encoder::probe`] compares with one encoding of a whole prompt, and on any difference all prompts are
//! encoded as wholes.

use crate::prompt::{Tokens, Whole, common};
use ahash::AHashMap;
use oasis_core::{Error, Result, text::Tokenizer};
use std::ops::Range;

/// Distinct pieces at which the cache starts anew; random identifiers would fill the memory.
const MOST_PIECES: usize = 200_000;

/// Tokens of text, piece by piece.
#[derive(Clone)]
pub(crate) struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    task: &'static str,
    pieces: AHashMap<Box<str>, Piece>,
    ids: Vec<u32>,
    /// Prompts are encoded as wholes.
    whole: bool,
}

/// Where a piece's tokens lie in the cache.
#[derive(Clone, Copy)]
struct Piece {
    from: u32,
    to: u32,
    /// The tokenizer has a token for all of it.
    known: bool,
}

impl<'a> Encoder<'a> {
    /// An empty cache. `whole`: encode prompts as wholes.
    pub fn new(tokenizer: &'a Tokenizer, task: &'static str, whole: bool) -> Self {
        Self { tokenizer, task, pieces: AHashMap::new(), ids: Vec::new(), whole }
    }

    /// Prompts are encoded as wholes.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Tokens of `text` within a longer one, by its pieces.
    pub fn count(&mut self, text: &str) -> Result<usize> {
        pieces(text).try_fold(0, |n, range| {
            let piece = self.piece(&text[range])?;
            Ok(n + (piece.to - piece.from) as usize)
        })
    }

    /// Tokens of `text` on its own, without a begin-of-text token.
    pub fn ids(&mut self, text: &str) -> Result<Vec<u32>> {
        if self.whole {
            return self.tokenizer.encode(text, false);
        }
        let mut out = Vec::new();
        for range in pieces(text) {
            let piece = self.piece(&text[range])?;
            out.extend_from_slice(self.of(piece));
        }
        Ok(out)
    }

    /// Tokens of a prompt.
    ///
    /// # Errors
    /// The tokenizer has no token for a word of the content.
    pub fn prompt(&mut self, whole: &Whole) -> Result<Tokens> {
        if self.whole {
            self.check(whole)?;
            return whole.encode(self.tokenizer);
        }
        let (text, end) = (&whole.text, whole.context_end);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut question_at = 0;
        for range in pieces(text) {
            let piece = self.piece(&text[range.clone()])?;
            self.check_piece(whole, &range, piece)?;
            let at = ids.len();
            ids.extend_from_slice(self.of(piece));
            if range.end <= end {
                question_at = ids.len();
            } else if range.start < end {
                let part = self.tokenizer.encode(&text[range.start..end], false)?;
                question_at = at + common(&ids[at..], &part);
            }
        }
        if let Some(bos) = self.tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
            question_at += 1;
        }
        Ok(Tokens { ids, question_at, cut: 0 })
    }

    /// Compares the pieces with one encoding of the whole; encodes wholes from now on if they differ.
    pub fn probe(&mut self, whole: &Whole) -> Result<()> {
        if !self.whole {
            self.whole = self.prompt(whole)? != whole.encode(self.tokenizer)?;
        }
        Ok(())
    }

    fn check(&mut self, whole: &Whole) -> Result<()> {
        for range in pieces(&whole.text) {
            let piece = self.piece(&whole.text[range.clone()])?;
            self.check_piece(whole, &range, piece)?;
        }
        Ok(())
    }

    /// Refuses words of the content that the tokenizer can't write.
    fn check_piece(&self, whole: &Whole, range: &Range<usize>, piece: Piece) -> Result<()> {
        if piece.known || range.start < whole.content.start || range.end > whole.content.end {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "the tokenizer has no tokens for `{}`, which `{}` needs: it is English text. Take a model with an open \
             vocabulary; nano has tasks of its own (`niah_single`, `niah_multikey`, `kv`, `vt`, `cwe` and others)",
            whole.text[range.clone()].trim(),
            self.task
        )))
    }

    fn of(&self, piece: Piece) -> &[u32] {
        &self.ids[piece.from as usize..piece.to as usize]
    }

    fn piece(&mut self, text: &str) -> Result<Piece> {
        if let Some(piece) = self.pieces.get(text) {
            return Ok(*piece);
        }
        if self.pieces.len() >= MOST_PIECES {
            self.pieces.clear();
            self.ids.clear();
        }
        let ids = self.tokenizer.encode(text, false)?;
        let known = !text.is_ascii() || letters(&self.tokenizer.decode(&ids)?) == letters(text);
        let from = self.ids.len() as u32;
        self.ids.extend(ids);
        let piece = Piece { from, to: self.ids.len() as u32, known };
        self.pieces.insert(text.into(), piece);
        Ok(piece)
    }
}

/// Letters and digits of a text; an unknown token has none.
fn letters(text: &str) -> usize {
    text.bytes().filter(u8::is_ascii_alphanumeric).count()
}

/// Byte ranges of a text's pieces: a cut before a single blank between two visible ASCII characters, and behind a single
/// line end between two. Tokenizers split longer runs of white space by what follows, so those stay whole.
fn pieces(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let bytes = text.as_bytes();
    let mut from = 0;
    std::iter::from_fn(move || {
        if from >= bytes.len() {
            return None;
        }
        let visible = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_graphic);
        let cut = |at: &usize| match bytes[at - 1] {
            b'\n' => visible(*at) && *at > 1 && visible(at - 2),
            before => bytes[*at] == b' ' && before.is_ascii_graphic() && visible(at + 1),
        };
        let to = (from + 1..bytes.len()).find(cut).unwrap_or(bytes.len());
        let range = from..to;
        from = to;
        Some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::{Frame, Parts};
    use crate::testing::{byte_tokenizer, nano_tokenizer, prefixing_tokenizer};

    #[test]
    fn pieces_are_words_with_the_blank_before_them() {
        let text = "One two,\nthree  four\n\n- é x";
        let cut: Vec<&str> = pieces(text).map(|r| &text[r]).collect();
        assert_eq!(cut, ["One", " two,\n", "three  four\n\n- é x"]);
        assert_eq!(cut.concat(), text);
        assert_eq!(pieces("").count(), 0);
    }

    fn whole() -> Whole {
        let [context, question, lead] = ["Note the thing.\nAnd the tree.", "\nWhat is the thing?", " It is"];
        let parts = Parts { context: context.into(), question: question.into(), lead: lead.into() };
        Frame::default().write(&parts)
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let mut encoder = Encoder::new(byte_tokenizer(), "t", false);
        let tokens = encoder.prompt(&whole()).unwrap();
        assert_eq!(tokens, whole().encode(byte_tokenizer()).unwrap());
        assert_eq!(encoder.count(&whole().text).unwrap(), tokens.ids.len());
        encoder.probe(&whole()).unwrap();
        assert!(!encoder.is_whole());
    }

    #[test]
    fn a_tokenizer_that_marks_beginnings_is_found_out() {
        let mut encoder = Encoder::new(prefixing_tokenizer(), "t", false);
        assert_ne!(encoder.prompt(&whole()).unwrap(), whole().encode(prefixing_tokenizer()).unwrap());
        encoder.probe(&whole()).unwrap();
        assert!(encoder.is_whole());
        assert_eq!(encoder.prompt(&whole()).unwrap(), whole().encode(prefixing_tokenizer()).unwrap());
    }

    #[test]
    fn words_without_tokens_are_named() {
        let mut encoder = Encoder::new(nano_tokenizer(), "ruler_vt", false);
        let error = encoder.prompt(&whole()).unwrap_err().to_string();
        assert!(error.contains("`thing.`") && error.contains("`ruler_vt`"), "{error}");
    }
}
