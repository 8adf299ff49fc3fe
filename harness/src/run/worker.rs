//! Workers: each takes a bundle of samples, prefills it once, and decodes it in every cell.

use super::decode::{Context, Measured, Ready, Reference};
use super::output::{Appender, UnitKey};
use super::progress::Progress;
use super::samples::Job;
use anyhow::Result;
use oasis_core::engine::{Engine, PrefillOptions, Prefix};
use oasis_core::ops::Backend;
use oasis_core::settings::Mode;
use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What the workers share.
pub struct Shared<'a, B: Backend> {
    /// Plan, policies, tokenizer.
    pub context: Context<'a, B>,
    /// All samples.
    pub jobs: &'a [Job],
    /// Samples that belong together.
    pub bundles: &'a [Range<usize>],
    /// Every bundle comes so often, each time with another part of the cells: more workers than bundles share the cells.
    pub parts: usize,
    /// Cells that are decoded here.
    pub only: &'a [bool],
    /// Units that a former sitting recorded.
    pub done: &'a HashSet<UnitKey>,
    /// Makes an engine for a worker.
    pub engine: &'a (dyn Fn() -> oasis_core::Result<Engine<B>> + Sync),
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Where records go.
    pub appender: Mutex<Appender>,
    /// The bar.
    pub progress: &'a Progress,
    /// The first error that ends the run (the disk is full, no engine can be made).
    pub fatal: Mutex<Option<anyhow::Error>>,
    /// Next part of a bundle.
    pub next: AtomicUsize,
}

/// One (sample, cell, repeat) that is to be decoded.
type Unit = (usize, u32);

impl<B: Backend> Shared<'_, B> {
    /// Runs `workers` threads until all bundles are done, someone stops them, or one fails for good.
    pub fn run(&self, workers: usize) -> Result<()> {
        std::thread::scope(|scope| {
            for _ in 0..workers.clamp(1, (self.bundles.len() * self.parts).max(1)) {
                scope.spawn(|| {
                    if let Err(error) = self.work() {
                        self.stop.store(true, Ordering::SeqCst);
                        self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                });
            }
        });
        match self.fatal.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn work(&self) -> Result<()> {
        let mut engine = (self.engine)()?;
        while !self.stopped() {
            let next = self.next.fetch_add(1, Ordering::SeqCst);
            let Some(bundle) = self.bundles.get(next / self.parts) else { break };
            let part = next % self.parts;
            Bundle { shared: self, range: bundle.clone(), part, prefixes: BTreeMap::new() }
                .run(&mut engine)?;
        }
        Ok(())
    }

    fn missing(&self, job: usize, cell: usize, repeat: u32) -> bool {
        let key = self.context.key(&self.jobs[job], cell, repeat);
        self.only[cell] && !self.done.contains(&(key.sample, key.cell, key.repeat))
    }

    fn record(&self, measured: &Measured) -> Result<()> {
        let mut appender = self.appender.lock().unwrap_or_else(PoisonError::into_inner);
        appender.append(&measured.sample, &measured.layers, measured.timing.as_ref())?;
        self.progress.advance(1, &format!("{} {}", measured.sample.cell, measured.sample.sample));
        Ok(())
    }
}

/// One bundle while it is worked on.
struct Bundle<'s, 'a, B: Backend> {
    shared: &'s Shared<'a, B>,
    range: Range<usize>,
    /// Which cells: those whose number gives this rest.
    part: usize,
    /// By block size: the prefill of each distinct prefix, and which job has which.
    prefixes: BTreeMap<usize, Vec<Result<Ready<B>, String>>>,
}

impl<B: Backend> Bundle<'_, '_, B> {
    fn run(&mut self, engine: &mut Engine<B>) -> Result<()> {
        let plan = self.shared.context.plan;
        for repeat in 0..plan.repeats {
            let mut references: Vec<Option<Reference>> = self.range.clone().map(|_| None).collect();
            for cell in 0..plan.cells.len() {
                if self.shared.stopped() {
                    return Ok(());
                }
                self.cell(engine, cell, repeat, &mut references)?;
            }
        }
        Ok(())
    }

    fn missing(&self, job: usize, cell: usize, repeat: u32) -> bool {
        cell % self.shared.parts == self.part && self.shared.missing(job, cell, repeat)
    }

    /// Whether a later cell that is still to be decoded needs what dense decoding leaves.
    fn needed_later(&self, job: usize, repeat: u32) -> bool {
        let ideal = &self.shared.context.built.ideal;
        let needs = |cell: usize| self.shared.jobs[job].fidelity || ideal[cell];
        (1..ideal.len()).any(|cell| needs(cell) && self.missing(job, cell, repeat))
    }

    fn cell(
        &mut self,
        engine: &mut Engine<B>,
        cell: usize,
        repeat: u32,
        references: &mut [Option<Reference>],
    ) -> Result<()> {
        let planned = &self.shared.context.plan.cells[cell];
        let wanted =
            |job: usize| self.missing(job, cell, repeat) || (cell == 0 && self.needed_later(job, repeat));
        let jobs: Vec<usize> = self.range.clone().filter(|&j| wanted(j)).collect();
        if jobs.is_empty() {
            return Ok(());
        }
        self.prefill(engine, planned.block)?;
        for batch in jobs.chunks(planned.batch) {
            if self.shared.stopped() {
                return Ok(());
            }
            self.batch(engine, (cell, repeat), batch, references)?;
        }
        Ok(())
    }

    /// Prefills every prefix of the bundle for one block size, once.
    fn prefill(&mut self, engine: &mut Engine<B>, block: usize) -> Result<()> {
        if self.prefixes.contains_key(&block) {
            return Ok(());
        }
        let layers = self.shared.context.built.hidden_layers.clone();
        let options = PrefillOptions { block_tokens: block, hidden_layers: layers };
        let mut ready: Vec<Result<Ready<B>, String>> = Vec::new();
        let mut last: Option<(usize, Arc<Prefix<B>>, f64)> = None;
        for j in self.range.clone() {
            let job = &self.shared.jobs[j];
            if let Some((before, prefix, seconds)) = &last
                && self.shared.jobs[*before].prefix() == job.prefix()
            {
                ready.push(Ok(Ready { prefix: prefix.clone(), seconds: *seconds }));
                continue;
            }
            let start = Instant::now();
            match self.guarded(engine, |engine| engine.prefill(job.prefix(), &options))? {
                Ok(prefix) => {
                    let (prefix, seconds) = (Arc::new(prefix), start.elapsed().as_secs_f64());
                    last = Some((j, prefix.clone(), seconds));
                    ready.push(Ok(Ready { prefix, seconds }));
                }
                Err(error) => ready.push(Err(error)),
            }
        }
        self.prefixes.insert(block, ready);
        Ok(())
    }

    /// Decodes some samples together; where that fails, each alone, so that one can't spoil another.
    fn batch(
        &self,
        engine: &mut Engine<B>,
        unit: Unit,
        batch: &[usize],
        references: &mut [Option<Reference>],
    ) -> Result<()> {
        let (cell, repeat) = unit;
        let first = self.range.start;
        let outcome = self.decode(engine, unit, batch, references)?;
        match outcome {
            Ok(done) => {
                for (&job, (measured, reference)) in batch.iter().zip(done) {
                    if cell == 0 {
                        references[job - first] = Some(reference);
                    }
                    if self.missing(job, cell, repeat) {
                        self.shared.record(&measured)?;
                    }
                }
                Ok(())
            }
            Err(_) if batch.len() > 1 => batch
                .iter()
                .try_for_each(|job| self.batch(engine, unit, std::slice::from_ref(job), references)),
            Err(error) => self.fail(unit, batch[0], error),
        }
    }

    fn fail(&self, (cell, repeat): Unit, job: usize, error: String) -> Result<()> {
        if !self.missing(job, cell, repeat) {
            return Ok(());
        }
        let record = self.shared.context.blank(&self.shared.jobs[job], cell, repeat, Some(error.clone()));
        self.shared.progress.say(&format!("failed: {} in cell `{}`: {error}", record.sample, record.cell));
        self.shared.record(&Measured { sample: record, layers: Vec::new(), timing: None })
    }

    #[allow(clippy::type_complexity)] // two nested results: what ends the run, and what fails one unit
    fn decode(
        &self,
        engine: &mut Engine<B>,
        (cell, repeat): Unit,
        batch: &[usize],
        references: &[Option<Reference>],
    ) -> Result<Result<Vec<(Measured, Reference)>, String>> {
        let context = &self.shared.context;
        let policies = match &context.built.cells[cell] {
            Ok(policies) => policies,
            Err(error) => return Ok(Err(error.clone())),
        };
        let block = context.plan.cells[cell].block;
        let dense = context.plan.cells[cell].mode == Mode::Dense && cell == 0;
        let mut jobs = Vec::new();
        for &j in batch {
            let at = j - self.range.start;
            let ready = match &self.prefixes[&block][at] {
                Ok(ready) => ready,
                Err(error) => return Ok(Err(error.clone())),
            };
            let reference = references[at].as_ref().filter(|_| !dense);
            if reference.is_none() && !dense && (self.shared.jobs[j].fidelity || context.built.ideal[cell]) {
                return Ok(Err("dense decoding of this sample failed; this cell needs it".to_owned()));
            }
            jobs.push((&self.shared.jobs[j], ready, reference));
        }
        self.guarded(engine, |engine| context.decode(engine, (cell, policies), repeat, &jobs))
    }

    /// Runs `f`; a panic is an error of this unit, after which the worker goes on with a fresh engine.
    fn guarded<T>(
        &self,
        engine: &mut Engine<B>,
        f: impl FnOnce(&mut Engine<B>) -> oasis_core::Result<T>,
    ) -> Result<Result<T, String>> {
        match catch_unwind(AssertUnwindSafe(|| f(engine))) {
            Ok(done) => Ok(done.map_err(|e| e.to_string())),
            Err(panic) => {
                *engine = (self.shared.engine)()?;
                Ok(Err(format!("panic: {}", panic_text(panic.as_ref()))))
            }
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
