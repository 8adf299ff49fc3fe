//! From the parts of a prompt to tokens: chat template, cutting, and the place of the question.

use crate::task::{Sample, prompt_sha256};
use oasis_core::{
    Error, Result,
    registry::Param,
    text::{Message, Tokenizer},
};
use serde::Deserialize;

/// Stands for the user's turn while a template is taken apart.
const MARK: &str = "OASIS-TURN-4C1B";

/// How the parts become one text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Template {
    /// One plain text.
    #[default]
    Plain,
    /// Context and question as a user's turn in the checkpoint's chat template; the lead opens the answer.
    Chat,
}

/// The parameter of [`Template`].
pub(crate) const TEMPLATE: Param = Param {
    name: "template",
    about: "`plain` text, or `chat`: the checkpoint's template around the question, the answer's lead after it",
    default: "\"plain\"",
};

/// The parameter of the answer's length.
pub(crate) const MAX_NEW_TOKENS: Param = Param {
    name: "max_new_tokens",
    about: "tokens that the answer may have; part of the length",
    default: "as published for the task",
};

/// A prompt in parts. Nothing stands between them but what they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// All before the question.
    pub context: String,
    /// The question; begins with white space if the context is not empty.
    pub question: String,
    /// The beginning of the answer, with white space in front; may be empty.
    pub lead: String,
}

/// What the template puts around the user's turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    before: String,
    /// Between question and lead; `None` for plain text.
    after: Option<String>,
}

impl Frame {
    /// The frame of a template.
    ///
    /// # Errors
    /// The checkpoint has no chat template, or one that changes the user's turn.
    pub fn new(tokenizer: &Tokenizer, template: Template) -> Result<Self> {
        if template == Template::Plain {
            return Ok(Self::default());
        }
        let text = tokenizer.chat(&[Message::new("user", MARK)], true)?;
        match text.split_once(MARK) {
            Some((before, after)) if !after.contains(MARK) => {
                Ok(Self { before: before.to_owned(), after: Some(after.to_owned()) })
            }
            _ => Err(Error::Unsupported(
                "the chat template changes or repeats the user's turn; use `template = \"plain\"`".to_owned(),
            )),
        }
    }

    /// The whole text, where its context ends, and the bytes that are the parts' (the frame apart).
    pub fn write(&self, parts: &Parts) -> Whole {
        let Parts { context, question, lead } = parts;
        let after = self.after.as_deref().unwrap_or_default();
        let lead = if self.after.is_some() { lead.trim_start() } else { lead };
        let room = self.before.len() + context.len() + question.len() + after.len() + lead.len();
        let mut text = String::with_capacity(room);
        text.push_str(&self.before);
        let from = text.len();
        text.push_str(context);
        let context_end = text.len();
        text.push_str(question);
        let to = text.len();
        text.push_str(after);
        text.push_str(lead);
        Whole { text, context_end, content: from..to }
    }
}

/// A prompt as one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whole {
    pub text: String,
    /// Byte behind the context.
    pub context_end: usize,
    /// Bytes of context and question.
    pub content: std::ops::Range<usize>,
}

/// Tokens of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub ids: Vec<u32>,
    /// First token that is not wholly the context's.
    pub question_at: usize,
    /// Tokens cut out.
    pub cut: usize,
}

impl Whole {
    /// Tokens by one encoding of the whole text. A token that spans the end of the context goes to the question.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Tokens> {
        let ids = tokenizer.encode(&self.text, true)?;
        let context = tokenizer.encode(&self.text[..self.context_end], true)?;
        let question_at = common(&ids, &context);
        Ok(Tokens { ids, question_at, cut: 0 })
    }
}

/// Length of the common beginning of two token sequences.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// What to do with a prompt that is longer than the length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TooLong {
    /// An error.
    #[default]
    Refuse,
    /// Cut tokens out of the middle, half of the room before the cut and half behind, as LongBench and InfiniteBench do.
    Middle,
}

impl Tokens {
    /// At most `most` tokens.
    ///
    /// # Errors
    /// `id`'s prompt is longer and must not be cut, or the cut would reach into the question.
    pub fn fit(mut self, most: usize, rule: TooLong, id: &str, answer: usize) -> Result<Self> {
        let n = self.ids.len();
        if n <= most {
            return Ok(self);
        }
        let needed = n + answer;
        let refuse = |what: &str| {
            let what = format!("`{id}` has a prompt of {n} tokens and an answer of up to {answer}; {what}");
            Err(Error::setting("length", what))
        };
        if rule == TooLong::Refuse {
            return refuse(&format!(
                "give at least {needed}, or `too_long = \"middle\"` to cut prompts in the middle"
            ));
        }
        let (head, tail) = (most - most / 2, most / 2);
        if n - tail > self.question_at {
            return refuse(&format!(
                "cut in the middle, {most} would lose a part of the question; give at least {}",
                2 * (n - self.question_at) + answer
            ));
        }
        self.cut = n - most;
        self.ids.drain(head..n - tail);
        self.question_at -= self.cut;
        Ok(self)
    }
}

/// What a sample is made of, its tokens apart.
pub(crate) struct Made {
    pub task: &'static str,
    pub length: usize,
    pub index: usize,
    pub seed: u64,
    pub answer: Vec<u32>,
    pub references: Vec<String>,
    pub choices: Vec<String>,
    pub max_new_tokens: usize,
}

/// A sample from its parts.
pub(crate) fn sample(tokens: Tokens, made: Made) -> Sample {
    let Made { task, length, index, seed, answer, references, choices, max_new_tokens } = made;
    let id = format!("{task}-{length}-{index}");
    Sample {
        document: id.clone(),
        id,
        task: task.to_owned(),
        index,
        seed,
        question_at: tokens.question_at,
        answer,
        references,
        choices,
        cut: tokens.cut,
        max_new_tokens,
        prompt_sha256: prompt_sha256(&tokens.ids),
        prompt: tokens.ids,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::byte_tokenizer;

    fn parts() -> Parts {
        let [context, question, lead] = ["Read: one two.", "\nWhat?", " It is"].map(str::to_owned);
        Parts { context, question, lead }
    }

    #[test]
    fn the_question_begins_behind_the_context() {
        let whole = Frame::default().write(&parts());
        assert_eq!(whole.text, "Read: one two.\nWhat? It is");
        let tokens = whole.encode(byte_tokenizer()).unwrap();
        let text = byte_tokenizer().decode(&tokens.ids[tokens.question_at..]).unwrap();
        assert_eq!(text, "\nWhat? It is");
    }

    #[test]
    fn a_frame_keeps_the_lead_behind_it() {
        let frame = Frame { before: "<u>".into(), after: Some("</u><a>".into()) };
        let whole = frame.write(&parts());
        assert_eq!(whole.text, "<u>Read: one two.\nWhat?</u><a>It is");
        assert_eq!(&whole.text[whole.content.clone()], "Read: one two.\nWhat?");
        assert_eq!(&whole.text[..whole.context_end], "<u>Read: one two.");
        let error = Frame::new(byte_tokenizer(), Template::Chat).unwrap_err().to_string();
        assert!(error.contains("template"), "{error}");
    }

    #[test]
    fn long_prompts_are_refused_or_cut_in_the_middle() {
        let tokens = Tokens { ids: (0..100).collect(), question_at: 90, cut: 0 };
        assert_eq!(tokens.clone().fit(100, TooLong::Refuse, "x", 4).unwrap(), tokens);
        let error = tokens.clone().fit(50, TooLong::Refuse, "x", 4).unwrap_err().to_string();
        assert!(error.contains("`x`") && error.contains("at least 104"), "{error}");
        let cut = tokens.clone().fit(51, TooLong::Middle, "x", 4).unwrap();
        assert_eq!((cut.ids.len(), cut.cut, cut.question_at), (51, 49, 41));
        assert_eq!((cut.ids[25], cut.ids[26], cut.ids[41]), (25, 75, 90));
        let error = tokens.fit(19, TooLong::Middle, "x", 4).unwrap_err().to_string();
        assert!(error.contains("at least 24"), "{error}");
    }
}
