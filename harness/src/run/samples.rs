//! The samples of a run: made, checked against the model, and grouped by the prefill they share.

use crate::plan::{Plan, PlannedTask};
use crate::spec::Protocol;
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use oasis_core::checkpoint::Checkpoint;
use oasis_datasets::Sample;
use sha2::{Digest, Sha256};

/// A sample and how it is decoded.
pub struct Job {
    /// Which task of the plan.
    pub task: usize,
    /// `TASK LABEL-INDEX`, unique in the run.
    pub key: String,
    /// The sample.
    pub sample: Sample,
    /// Tokens that are prefilled densely: `prompt[..prefix]`.
    pub prefix: usize,
    /// The token after the prefix; none: the most probable one after it.
    pub first: Option<u32>,
    /// Tokens that follow `first` whatever the model says.
    pub forced: Vec<u32>,
    /// Tokens that the model may add freely.
    pub free: usize,
    /// The tokens of `first` and `forced` are an answer that is compared with dense decoding, not a question.
    pub fidelity: bool,
}

impl Job {
    fn new(plan: &Plan, task: usize, sample: Sample) -> Self {
        let planned = &plan.tasks[task];
        let key = format!("{}-{}", planned.label, sample.index);
        let prompt = &sample.prompt;
        let (prefix, first, forced, free) = if planned.forced() {
            let forced = sample.answer.get(1..).unwrap_or_default().to_vec();
            (prompt.len(), sample.answer.first().copied(), forced, 0)
        } else {
            // A prefill needs a token, a question one of its own.
            let at = sample.question_at.max(1);
            if plan.protocol == Protocol::Question && at < prompt.len() {
                (at, Some(prompt[at]), prompt[at + 1..].to_vec(), sample.max_new_tokens)
            } else {
                // The most probable token after the prompt is the answer's first.
                (prompt.len(), None, Vec::new(), sample.max_new_tokens.saturating_sub(1))
            }
        };
        Self { task, key, prefix, first, forced, free, fidelity: planned.forced(), sample }
    }

    /// Tokens decoded after `first`.
    pub fn max_new(&self) -> usize {
        self.forced.len() + self.free
    }

    /// The dense prefix.
    pub fn prefix(&self) -> &[u32] {
        &self.sample.prompt[..self.prefix]
    }
}

/// All samples of a run.
pub struct Samples {
    /// In the order of tasks and indices.
    pub jobs: Vec<Job>,
    /// Per task: SHA-256 over its prompts' hashes.
    pub digests: Vec<String>,
}

/// Makes the samples of every task.
///
/// # Errors
/// A task longer than the model's positions, or one that this tokenizer or length can't give.
pub fn make(plan: &Plan, checkpoint: &Checkpoint) -> Result<Samples> {
    let (mut jobs, mut digests) = (Vec::new(), Vec::new());
    let most = checkpoint.config.geometry.max_positions;
    for (t, task) in plan.tasks.iter().enumerate() {
        let named = || format!("task `{}`", task.label);
        if task.length > most {
            let what = format!("{} tokens; the model has {most} positions: give at most {most}", task.length);
            return Err(Error::setting("task.length", what)).with_context(named);
        }
        let samples = of_task(task, checkpoint, plan.seed).with_context(named)?;
        let mut hash = Sha256::new();
        for sample in samples {
            hash.update(sample.prompt_sha256.as_bytes());
            let job = Job::new(plan, t, sample);
            let needed = job.prefix + job.max_new() + 1;
            if job.prefix == 0 {
                bail!(
                    "task `{}`, sample {}: the prompt has 0 tokens; it needs at least 1",
                    task.label,
                    job.key
                );
            }
            if needed > most {
                let what = format!(
                    "a prompt and answer of {needed} tokens; the model has {most} positions: shorten it"
                );
                return Err(Error::setting("task.length", what)).with_context(named);
            }
            jobs.push(job);
        }
        digests.push(hex(&hash.finalize()));
    }
    Ok(Samples { jobs, digests })
}

fn of_task(task: &PlannedTask, checkpoint: &Checkpoint, seed: u64) -> Result<Vec<Sample>> {
    let all = task.task.samples(&checkpoint.tokenizer, task.length, task.samples, seed)?;
    let mut wanted = task.indices.iter().peekable();
    let keep = |s: &Sample| wanted.next_if_eq(&&s.index).is_some();
    Ok(all.into_iter().filter(keep).collect())
}

/// Bytes in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Jobs that one worker decodes together: those that share a prefill, at least `batch` where the task has them.
pub fn bundles(jobs: &[Job], batch: usize) -> Vec<std::ops::Range<usize>> {
    let mut bundles: Vec<std::ops::Range<usize>> = Vec::new();
    for (i, job) in jobs.iter().enumerate() {
        if let Some(last) = bundles.last_mut() {
            let before = &jobs[last.start];
            let near = &jobs[i - 1];
            let shares = near.sample.document == job.sample.document && near.prefix() == job.prefix();
            if before.task == job.task && (shares || last.len() < batch) {
                last.end = i + 1;
                continue;
            }
        }
        bundles.push(i..i + 1);
    }
    bundles
}

/// Into how many parts the cells are split so that `workers` have work on `bundles`; each part prefills for itself.
pub fn parts(bundles: usize, workers: usize, cells: usize) -> usize {
    workers.div_ceil(bundles.max(1)).clamp(1, cells.max(1))
}
