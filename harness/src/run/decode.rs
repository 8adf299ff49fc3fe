//! One cell decoding some samples together.

use super::policies::Built;
use super::samples::{Job, hex};
use super::tally::{Key, Tally, add_position, argmax};
use crate::plan::{Plan, PlannedCell};
use crate::record::{FidelitySums, LayerRecord, Outcome, PoolRecord, SampleRecord, TimingRecord};
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::engine::{Engine, Prefix};
use oasis_core::ids::NONE;
use oasis_core::ops::Backend;
use oasis_core::settings::{Mode, Settings};
use oasis_core::tape::Tape;
use oasis_core::text::Tokenizer;
use oasis_core::{Error, Result};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What all decodes of a run share.
pub struct Context<'a, B: Backend> {
    /// The plan.
    pub plan: &'a Plan,
    /// Policies of its cells.
    pub built: &'a Built<B>,
    /// Turns tokens into text.
    pub tokenizer: &'a Tokenizer,
    /// Tokens that end an answer.
    pub eos: &'a [u32],
}

/// A prefilled sample.
pub struct Ready<B: Backend> {
    /// The dense prefix.
    pub prefix: Arc<Prefix<B>>,
    /// Seconds of its prefill.
    pub seconds: f64,
}

/// What dense decoding of a sample left for the other cells.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    /// Tokens after `first`.
    pub future: Vec<u32>,
    /// Logits of every step of a teacher-forced sample.
    pub logits: Vec<Vec<f32>>,
}

/// Everything that one (sample, cell, repeat) leaves behind.
pub struct Measured {
    /// Line of `samples.jsonl`.
    pub sample: SampleRecord,
    /// Lines of `layers.jsonl`.
    pub layers: Vec<LayerRecord>,
    /// Line of `timings.jsonl`; none for a failure.
    pub timing: Option<TimingRecord>,
}

/// A sample, its prefill, and what dense decoding left of it.
pub type Unit<'a, 'r, B> = (&'a Job, &'r Ready<B>, Option<&'a Reference>);

/// One sample of a batch while it is decoded.
struct Lane<'a> {
    job: &'a Job,
    reference: Option<&'a Reference>,
    tally: Tally,
    generated: Vec<u32>,
    /// Tokens after `first`, questions included.
    followed: Vec<u32>,
    fidelity: Option<FidelitySums>,
    logits: Vec<Vec<f32>>,
    steps: usize,
    finished: bool,
}

impl Lane<'_> {
    fn forced(&self) -> u32 {
        self.job.forced.get(self.steps).copied().unwrap_or(NONE)
    }

    /// Takes the tokens of a step; returns how many were taken.
    fn take(&mut self, emitted: &[u32], eos: &[u32]) -> u32 {
        let forced = self.steps < self.job.forced.len();
        self.steps += 1;
        let most = self.job.sample.max_new_tokens;
        let mut taken = 0;
        for &token in emitted {
            taken += 1;
            self.followed.push(token);
            if !forced || self.job.fidelity {
                self.generated.push(token);
            }
            let over = !forced && (self.generated.len() >= most || eos.contains(&token));
            if over {
                self.finished = true;
                break;
            }
        }
        let all_forced = self.job.free == 0 && self.steps >= self.job.forced.len();
        self.finished |= all_forced;
        taken
    }
}

impl<'a, B: Backend> Context<'a, B> {
    /// The key of a unit.
    pub fn key(&self, job: &Job, cell: usize, repeat: u32) -> Key {
        Key {
            sample: job.key.clone(),
            task: self.plan.tasks[job.task].label.clone(),
            cell: self.plan.cells[cell].label.clone(),
            repeat,
        }
    }

    /// A record that says what was tried; `Failed` until it is finished.
    pub fn blank(&self, job: &Job, cell: usize, repeat: u32, error: Option<String>) -> SampleRecord {
        let key = self.key(job, cell, repeat);
        SampleRecord {
            sample: key.sample,
            task: key.task,
            index: job.sample.index,
            document: job.sample.document.clone(),
            cell: key.cell,
            repeat,
            outcome: Outcome::Failed,
            error,
            prompt_sha256: job.sample.prompt_sha256.clone(),
            prompt_tokens: job.sample.prompt.len(),
            covered: false,
            generated: Vec::new(),
            text: String::new(),
            references: job.sample.references.clone(),
            score: None,
            steps: 0,
            counters: Default::default(),
            decisions: None,
            drafts: None,
            fidelity: None,
            step_bytes: Vec::new(),
            step_hits: Vec::new(),
        }
    }

    /// Decodes `jobs` together in a cell with its policies. Returns their records and, from a dense cell, the references.
    ///
    /// # Errors
    /// Whatever the loop reports; then no sample of the batch is decoded.
    pub fn decode(
        &self,
        engine: &mut Engine<B>,
        (cell, policies): (usize, &Policies<B>),
        repeat: u32,
        jobs: &[Unit<'a, '_, B>],
    ) -> Result<Vec<(Measured, Reference)>> {
        let planned = &self.plan.cells[cell];
        let layers = engine.model.config.geometry.layers;
        let mut lanes: Vec<Lane<'a>> = jobs.iter().map(|unit| self.lane(unit, planned, layers)).collect();
        let (settings, starts) = self.begin(cell, repeat, jobs);
        let mut decoder = Decoder::new(engine, &settings, policies, starts)?;
        self.steps(&mut decoder, &mut lanes, planned)?;
        let covered = planned.mode != Mode::Dense && !decoder.is_sparse();
        let pools = decoder.plan().pools.iter();
        let pools = pools.map(|p| PoolRecord { name: p.name.to_owned(), bytes: p.bytes, host: p.host });
        let (pools, usage) = (pools.collect::<Vec<_>>(), decoder.allocated());
        // The prompts' blocks in the host store were allocated by the prefill.
        let prompts: usize =
            jobs.iter().map(|(_, ready, _)| size_of_val(&ready.prefix.extent.data[..])).sum();
        let finish = |(lane, (_, ready, _)): (Lane<'a>, &(&Job, &Ready<B>, _))| {
            let (mut done, reference) = self.finish(lane, cell, repeat, covered)?;
            let timing =
                done.timing.as_mut().ok_or_else(|| Error::Invariant("a decode without times".into()))?;
            timing.batch = jobs.len();
            timing.prefill_s = ready.seconds;
            timing.prefill_tokens = ready.prefix.tokens.len();
            timing.pools.clone_from(&pools);
            timing.allocated = (usage.device + usage.host + prompts) as u64;
            Ok((done, reference))
        };
        lanes.into_iter().zip(jobs).map(finish).collect()
    }

    /// Decodes one sample as [`Context::decode`] does, and gives what its policies were fed.
    ///
    /// # Errors
    /// Whatever the loop reports.
    pub fn record(
        &self,
        engine: &mut Engine<B>,
        (cell, policies): (usize, &Policies<B>),
        unit: &Unit<'a, '_, B>,
    ) -> Result<Tape> {
        let planned = &self.plan.cells[cell];
        let layers = engine.model.config.geometry.layers;
        let mut lane = [self.lane(unit, planned, layers)];
        let (settings, starts) = self.begin(cell, 0, std::slice::from_ref(unit));
        let mut decoder = Decoder::recording(engine, &settings, policies, starts)?;
        self.steps(&mut decoder, &mut lane, planned)?;
        decoder.into_tapes().pop().ok_or_else(|| Error::Invariant("a recording without a tape".into()))
    }

    /// What a batch is started with.
    fn begin(&self, cell: usize, repeat: u32, jobs: &[Unit<'a, '_, B>]) -> (Settings, Vec<Start<B>>) {
        let length = jobs.iter().map(|(job, ..)| self.plan.tasks[job.task].length).max().unwrap_or(0);
        let settings = self.plan.cells[cell].settings(length, self.plan.seed);
        let start = |(job, ready, reference): &Unit<'a, '_, B>| Start {
            prefix: ready.prefix.clone(),
            first: first_token(job, ready),
            future: future(job, *reference),
            max_new: job.max_new().max(1),
            seed: unit_seed(self.plan.seed, &job.key, repeat),
        };
        (settings, jobs.iter().map(start).collect())
    }

    /// A sample before its first step.
    fn lane(&self, (job, ready, reference): &Unit<'a, '_, B>, cell: &PlannedCell, layers: usize) -> Lane<'a> {
        let generated = match (job.fidelity, job.first) {
            // The first token is the answer's own, not the question's.
            (false, None) | (true, Some(_)) => vec![first_token(job, ready)],
            _ => Vec::new(),
        };
        let ended = !job.fidelity && generated.last().is_some_and(|t| self.eos.contains(t));
        Lane {
            job,
            reference: *reference,
            tally: Tally::new(layers, cell.draft.as_ref().map(|d| d.shape.depth)),
            generated,
            followed: Vec::new(),
            fidelity: job.fidelity.then(FidelitySums::default),
            logits: Vec::new(),
            steps: 0,
            finished: ended || job.max_new() == 0,
        }
    }

    fn steps(&self, decoder: &mut Decoder<'_, B>, lanes: &mut [Lane<'_>], cell: &PlannedCell) -> Result<()> {
        for (s, _) in lanes.iter().enumerate().filter(|(_, lane)| lane.finished) {
            decoder.retire(s);
        }
        while lanes.iter().any(|lane| !lane.finished) {
            let active: Vec<usize> = (0..lanes.len()).filter(|&s| !lanes[s].finished).collect();
            let forced: Vec<u32> = lanes.iter().map(|l| if l.finished { NONE } else { l.forced() }).collect();
            let report = decoder.step(Some(&forced))?;
            for &s in &active {
                let taken = lanes[s].take(&report.seqs[s].emitted, self.eos);
                lanes[s].tally.add(&report.seqs[s], &report.seconds, taken);
            }
            for s in active {
                self.compare(&mut lanes[s], decoder.logits(s)?, cell, forced[s])?;
                if lanes[s].finished {
                    decoder.retire(s);
                }
            }
        }
        Ok(())
    }

    /// The distance of this step's distribution from dense decoding's.
    fn compare(&self, lane: &mut Lane<'_>, logits: &[f32], cell: &PlannedCell, token: u32) -> Result<()> {
        let Some(sums) = lane.fidelity.as_mut().filter(|_| token != NONE) else { return Ok(()) };
        if cell.mode == Mode::Dense && lane.reference.is_none() {
            add_position(sums, logits, logits, token);
            lane.logits.push(logits.to_vec());
            return Ok(());
        }
        let reference = lane.reference.and_then(|r| r.logits.get(lane.steps - 1));
        let missing = || {
            Error::Invariant("dense decoding of this sample failed, there is nothing to compare with".into())
        };
        add_position(sums, reference.ok_or_else(missing)?, logits, token);
        Ok(())
    }

    fn finish(
        &self,
        lane: Lane<'_>,
        cell: usize,
        repeat: u32,
        covered: bool,
    ) -> Result<(Measured, Reference)> {
        let key = self.key(lane.job, cell, repeat);
        let mut sample = self.blank(lane.job, cell, repeat, None);
        lane.tally.finish(&mut sample);
        let task = &self.plan.tasks[lane.job.task].task;
        let text_of: Vec<u32> = lane.generated.iter().copied().filter(|t| !self.eos.contains(t)).collect();
        sample.covered = covered;
        sample.text = self.tokenizer.decode(&text_of)?;
        sample.score =
            (!lane.job.fidelity).then(|| task.score(&lane.job.sample, &lane.generated, &sample.text));
        sample.generated = lane.generated;
        sample.fidelity = lane.fidelity;
        let layers = lane.tally.layer_records(&key);
        let timing = Some(lane.tally.timing_record(&key, 1));
        let reference = Reference { future: lane.followed, logits: lane.logits };
        Ok((Measured { sample, layers, timing }, reference))
    }
}

/// The newest accepted token when decoding begins.
fn first_token<B: Backend>(job: &Job, ready: &Ready<B>) -> u32 {
    job.first.unwrap_or_else(|| argmax(&ready.prefix.logits))
}

/// Tokens after `first`: those that are forced, then those that dense decoding took.
fn future(job: &Job, reference: Option<&Reference>) -> Vec<u32> {
    match reference {
        Some(reference) if !job.fidelity => reference.future.clone(),
        _ => job.forced.clone(),
    }
}

/// The seed of all draws of a sample in a repeat: the same in every cell, whatever its neighbours are.
fn unit_seed(seed: u64, sample: &str, repeat: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"oasis decode\0");
    hash.update(seed.to_le_bytes());
    hash.update(repeat.to_le_bytes());
    hash.update(sample.as_bytes());
    let digest = hex(&hash.finalize());
    u64::from_str_radix(&digest[..16], 16).unwrap_or(seed)
}
