//! Pass key: a number in sentences that repeat over and over.
//!
//! The form is that of Mohtashami and Jaggi, *Landmark Attention* (arXiv 2305.16300), in words of our own, as a plain
//! text whose answer has begun: models without instruction tuning can do it, and small ones do it better so.

use crate::{
    haystack::{DEPTH, Depth, Haystack, Wording},
    prose::Prose,
    task::{Sample, Scoring, Task},
};
use oasis_core::{
    Result,
    registry::{Param, Params},
    text::Tokenizer,
};
use serde::Deserialize;

pub(crate) const NAME: &str = "passkey";
pub(crate) const VERSION: u32 = 1;
pub(crate) const PARAMS: &[Param] = &[DEPTH];

/// What repeats.
const NOISE: &str = "The rain falls on the hills. The river runs to the sea. The wind moves the clouds. \
                     Morning comes and evening goes.";
const WORDING: Wording = Wording {
    task: NAME,
    intro: "A pass key is hidden somewhere in a long and pointless text. Find it and keep it in mind.\n\n",
    fact: "The pass key is {}. Keep it in mind: {} is the pass key.",
    question: "\n\nWhat is the pass key? The pass key is",
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    depth: Depth,
}

struct Passkey {
    depth: Depth,
}

/// Builds the task.
pub(crate) fn build(params: &Params) -> Result<Box<dyn Task>> {
    let Options { depth } = params.parse(NAME)?;
    Ok(Box::new(Passkey { depth: depth.check(NAME)? }))
}

impl Task for Passkey {
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

    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>> {
        // At least twice the words that fit, so that texts begin at any of the sentences.
        let repeats = 2 * length / NOISE.split(' ').count() + 2;
        let prose = Prose::new(vec![NOISE; repeats].join(" "));
        Haystack { wording: &WORDING, prose: &prose, depth: self.depth }.samples(tokenizer, length, n, seed)
    }
}
