//! Fidelity: how far sparse decoding strays from dense decoding on an ordinary text.
//!
//! A sample is a window of a text. Its last tokens are fed in one by one, whatever the model predicts, and the
//! harness compares the predictions of both modes: KL divergence, agreement of the best token, perplexity.

use crate::{
    draw::Draw,
    prose::{Prose, read},
    task::{Sample, Scoring, Task, hex, prompt_sha256, sample_seed},
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
    text::Tokenizer,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

pub(crate) const NAME: &str = "fidelity";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &[
    Param { name: "text", about: "path of a UTF-8 text", default: "the bundled novel" },
    Param {
        name: "continuation",
        about: "tokens at the end of each window that are fed in one by one",
        default: "128",
    },
];

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    text: Option<PathBuf>,
    continuation: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { text: None, continuation: 128 }
    }
}

struct Fidelity {
    prose: Prose,
    sha256: String,
    continuation: usize,
}

/// Builds the task: reads its text.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let Options { text, continuation } = params.parse(NAME)?;
    if continuation == 0 {
        let what = "0 tokens leave nothing to compare; give at least 1";
        return Err(Error::setting(format!("{NAME}.continuation"), what));
    }
    let text = read(text.as_deref())?;
    let sha256 = hex(&Sha256::digest(&text));
    Ok(Box::new(Fidelity { prose: Prose::new(text), sha256, continuation }))
}

impl Task for Fidelity {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn scoring(&self) -> Scoring {
        Scoring::TeacherForced
    }

    fn chance(&self) -> f64 {
        f64::NAN
    }

    fn data_sha256(&self) -> Option<&str> {
        Some(&self.sha256)
    }

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        let smallest = self.continuation.saturating_add(1);
        if length < smallest {
            let what = format!(
                "{length} tokens leave no prompt before a continuation of {}; give at least {smallest}, or a shorter \
                 {NAME}.continuation",
                self.continuation
            );
            return Err(Error::setting("length", what));
        }
        (0..n).map(|index| self.sample(tokenizer, length, index, seed)).collect()
    }
}

impl Fidelity {
    fn sample(&self, tokenizer: &Tokenizer, length: usize, index: usize, seed: u64) -> Result<Sample> {
        let seed = sample_seed(seed, NAME, length, index);
        let too_short = |what: String| Error::setting(format!("{NAME}.text"), what);
        // A word takes at least one token, so `length` words are enough for a window.
        let words = self.prose.len();
        let starts = words.checked_sub(length).ok_or_else(|| {
            too_short(format!(
                "the text has {words} words, too few for windows of {length} tokens; give a text of at least {length} \
                 words or a length of at most {words}"
            ))
        })?;
        let start = Draw::new(seed).index(starts + 1);
        let mut window = tokenizer.encode(self.prose.slice(start, start + length), true)?;
        if window.len() < length {
            let found = window.len();
            return Err(too_short(format!(
                "{length} words at word {start} make {found} tokens, fewer than one a word; this tokenizer joins words, \
                 which windows can't be cut for; give a length of at most {found}"
            )));
        }
        window.truncate(length);
        let answer = window.split_off(length - self.continuation);
        Ok(Sample {
            id: format!("{NAME}-{length}-{index}"),
            task: NAME.to_owned(),
            index,
            seed,
            question_at: window.len(),
            max_new_tokens: answer.len(),
            answer,
            references: Vec::new(),
            choices: Vec::new(),
            cut: 0,
            prompt_sha256: prompt_sha256(&window),
            document: format!("{NAME}-{length}-{index}"),
            prompt: window,
        })
    }
}
