//! Needle: one sentence with a number, at a random depth of ordinary prose.
//!
//! The form is that of the *needle in a haystack* test (G. Kamradt, 2023) and of RULER's single needle (arXiv
//! 2404.06654), in words of our own, as a plain text whose answer has begun.

use crate::{
    haystack::{DEPTH, Depth, Haystack, Wording},
    prose::{Prose, read},
    task::{Sample, Scoring, Task, hex},
};
use oasis_core::{
    Result,
    registry::{Param, Params},
    text::Tokenizer,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

pub(crate) const NAME: &str = "needle";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &[
    Param { name: "text", about: "path of a UTF-8 text to hide the number in", default: "the bundled novel" },
    DEPTH,
];

const WORDING: Wording = Wording {
    task: NAME,
    intro: "",
    fact: "The secret number of the lighthouse is {}.",
    question: "\n\nQuestion: What is the secret number of the lighthouse?\nAnswer: The secret number of the lighthouse is",
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    text: Option<PathBuf>,
    depth: Depth,
}

struct Needle {
    prose: Prose,
    sha256: String,
    depth: Depth,
}

/// Builds the task: reads its text.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let Options { text, depth } = params.parse(NAME)?;
    let depth = depth.check(NAME)?;
    let text = read(text.as_deref())?;
    Ok(Box::new(Needle { prose: Prose::unwrapped(&text), sha256: hex(&Sha256::digest(&text)), depth }))
}

impl Task for Needle {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn scoring(&self) -> Scoring {
        Scoring::Begins
    }

    fn chance(&self) -> f64 {
        1.0 / 90_000.0
    }

    fn data_sha256(&self) -> Option<&str> {
        Some(&self.sha256)
    }

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        Haystack { wording: &WORDING, prose: &self.prose, depth: self.depth }
            .samples(tokenizer, length, n, seed)
    }
}
