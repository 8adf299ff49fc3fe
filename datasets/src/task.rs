//! What a task is, what a sample holds, and how an answer is scored.

use crate::{
    files::DataFile,
    scorers::{Gold, Scorer},
};
use oasis_core::{Result, text::Tokenizer};
use sha2::{Digest, Sha256};

/// Families of tasks, by what they demand of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Documents in the language of the bundled model; other tokenizers are refused.
    Grammar,
    /// One fact hidden in English text; any tokenizer.
    Retrieval,
    /// The task types of RULER, generated; any tokenizer that knows English.
    Ruler,
    /// Records of a published benchmark, in files that the user gives.
    Dataset,
    /// Teacher-forced continuation of a text; any tokenizer, no score.
    Fidelity,
}

impl TaskKind {
    /// The word for tables and help.
    pub fn word(self) -> &'static str {
        match self {
            Self::Grammar => "grammar",
            Self::Retrieval => "retrieval",
            Self::Ruler => "ruler",
            Self::Dataset => "dataset",
            Self::Fidelity => "fidelity",
        }
    }
}

/// How a sample is decoded and judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Greedy decoding; 1 if the generated tokens begin with the whole gold answer, its end-of-text token
    /// included.
    Exact,
    /// Greedy decoding; 1 if the generated text, leading white space aside, begins with a reference and the
    /// reference is not the beginning of a longer number.
    Begins,
    /// Greedy decoding; the generated text is judged by a published rule.
    Text(Scorer),
    /// The gold answer is fed in whatever the model predicts; what counts is the distance between the
    /// predictions of two decoding modes, which the harness measures. There is no score.
    TeacherForced,
}

/// One prompt with its gold answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// `TASK-LENGTH-INDEX`, unique in a run.
    pub id: String,
    /// The task's name.
    pub task: String,
    /// Number of the sample in its (task, length, seed) series, from 0.
    pub index: usize,
    /// The sample's own seed, [`sample_seed`] of what the series was made with.
    pub seed: u64,
    /// The whole prompt, beginning with the tokenizer's begin-of-text token if it has one.
    pub prompt: Vec<u32>,
    /// Position of the question's first token: under the `question` protocol `prompt[..question_at]` is
    /// prefilled densely and the rest goes through sparse decoding. Equal to `prompt.len()` if there is no question.
    pub question_at: usize,
    /// Gold continuation, with the end-of-text token where the task's answers end with one; for display and
    /// teacher forcing.
    pub answer: Vec<u32>,
    /// Acceptable answers as text, for display and for scorers that read text.
    pub references: Vec<String>,
    /// The classes of a closed question, for scorers that read them; empty otherwise.
    pub choices: Vec<String>,
    /// Tokens that were cut out of the middle of the prompt to fit the length.
    pub cut: usize,
    /// As many tokens as the answer can need; `prompt.len() + max_new_tokens` is at most the length asked for.
    pub max_new_tokens: usize,
    /// [`prompt_sha256`] of `prompt`.
    pub prompt_sha256: String,
    /// Samples with the same `document` share `prompt[..question_at]`.
    pub document: String,
}

/// A source of samples and the judge of the answers to them.
pub trait Task: Send + Sync {
    /// The name in the table.
    fn name(&self) -> &str;

    /// Version of the samples and of the scorer; part of a run's fingerprint.
    fn version(&self) -> u32;

    /// How samples are decoded and judged.
    fn scoring(&self) -> Scoring;

    /// Score that a model reaches without reading the prompt.
    fn chance(&self) -> f64;

    /// Unit of the mean score.
    fn unit(&self) -> &'static str {
        match self.scoring() {
            Scoring::Exact | Scoring::Begins => "share of samples",
            Scoring::Text(scorer) => scorer.unit(),
            Scoring::TeacherForced => "none",
        }
    }

    /// SHA-256 of the data that samples are made from, in hexadecimal; of the list of their SHA-256 if there are
    /// several files. `None` for generated documents.
    fn data_sha256(&self) -> Option<&str> {
        None
    }

    /// The files that the task has read.
    fn files(&self) -> &[DataFile] {
        &[]
    }

    /// Samples `0..n` of the series (`seed`, this task, `length`), where `length` bounds prompt and answer
    /// together, in tokens.
    ///
    /// # Errors
    /// A length that the task can't fill, with the smallest or largest that it can; a tokenizer that lacks
    /// the task's words.
    fn samples(&self, tokenizer: &Tokenizer, length: usize, n: usize, seed: u64) -> Result<Vec<Sample>>;

    /// Score of an answer to `sample`, 0 to 1: `generated` without the prompt, up to and including the
    /// end-of-text token if one came, and the same as `text`. NaN for [`Scoring::TeacherForced`].
    fn score(&self, sample: &Sample, generated: &[u32], text: &str) -> f64 {
        match self.scoring() {
            Scoring::Exact => f64::from(!sample.answer.is_empty() && generated.starts_with(&sample.answer)),
            Scoring::Begins => f64::from(sample.references.iter().any(|r| begins_with(text, r))),
            Scoring::Text(scorer) => {
                scorer.score(text, Gold { references: &sample.references, choices: &sample.choices })
            }
            Scoring::TeacherForced => f64::NAN,
        }
    }
}

/// True if `text` begins with `reference` and no further digit follows.
fn begins_with(text: &str, reference: &str) -> bool {
    text.trim_start()
        .strip_prefix(reference)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The seed of sample `index` of a series: the same on every platform and for every number of samples.
pub fn sample_seed(seed: u64, task: &str, length: usize, index: usize) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"oasis sample\0");
    hash.update(seed.to_le_bytes());
    hash.update((length as u64).to_le_bytes());
    hash.update((index as u64).to_le_bytes());
    hash.update(task.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    u64::from_le_bytes([
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
    ])
}

/// SHA-256 of a prompt's token ids (32 bits each, little-endian), in hexadecimal.
pub fn prompt_sha256(prompt: &[u32]) -> String {
    let mut hash = Sha256::new();
    for id in prompt {
        hash.update(id.to_le_bytes());
    }
    hex(&hash.finalize())
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_only_as_a_whole_and_only_at_the_beginning() {
        assert!(begins_with(" 48213.", "48213"));
        assert!(begins_with("48213", "48213"));
        assert!(begins_with("\n48213 is it", "48213"));
        assert!(!begins_with("482130", "48213"));
        assert!(!begins_with("4821", "48213"));
        assert!(!begins_with("it is 48213", "48213"));
        assert!(!begins_with("", "48213"));
    }

    #[test]
    fn seeds_are_stable_and_differ_in_every_argument() {
        let base = sample_seed(0, "kv", 4096, 0);
        assert_eq!(base, sample_seed(0, "kv", 4096, 0));
        for other in [
            sample_seed(1, "kv", 4096, 0),
            sample_seed(0, "vt", 4096, 0),
            sample_seed(0, "kv", 2048, 0),
            sample_seed(0, "kv", 4096, 1),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn prompt_hash_is_sha256_of_the_ids() {
        assert_eq!(prompt_sha256(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_ne!(prompt_sha256(&[1, 2]), prompt_sha256(&[2, 1]));
    }
}
