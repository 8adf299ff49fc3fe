//! One call that decodes: what it is to do, on which backend, and the folder that it leaves.

use super::identity::{self, Identity};
use super::output::{self, Existing, RunDir, UnitKey};
use super::progress::Progress;
use super::results::Frame;
use super::samples::{self, Samples};
use super::{BackendChoice, decode, dry, gpu, model::Opened, policies, previous_wall, results, worker};
use crate::app::App;
use crate::bench::{GibLimits, Limits};
use crate::plan::Plan;
use crate::record::{Machine, Results};
use anyhow::{Result, bail};
use oasis_core::engine::Engine;
use oasis_core::model::Model;
use oasis_core::ops::Backend;
use oasis_kernels::{Cuda, Measure};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Weights up to this many bytes are decoded by many workers of one thread each.
const SMALL_MODEL: usize = 64 << 20;

/// What is to be decoded, before a backend is chosen.
pub(crate) struct Request<'a> {
    /// What can be named.
    pub app: &'a App,
    /// Tasks and cells.
    pub plan: &'a Plan,
    /// The model.
    pub opened: &'a Opened,
    /// The samples of the tasks.
    pub samples: &'a Samples,
    /// Folder of runs.
    pub output: &'a Path,
    /// What to do if the run's folder is there.
    pub existing: Existing,
    /// Memory that may be used.
    pub limits: &'a GibLimits,
    /// Where to compute.
    pub backend: BackendChoice,
    /// The cells of the plan that are decoded here; others are another shard's.
    pub only: &'a [bool],
    /// A cell that can't be set up fails alone; otherwise it refuses the run.
    pub alone: bool,
    /// Raised by Ctrl-C.
    pub stop: &'a AtomicBool,
}

/// What a call left behind.
pub(crate) struct Done {
    /// The run's folder.
    pub path: PathBuf,
    /// Its `results.json`.
    pub results: Results,
    /// Someone stopped it.
    pub interrupted: bool,
}

/// Something that is done with a request on the backend that it chooses.
pub(crate) trait Work {
    /// What comes of it.
    type Out;

    /// Does it. `loader` takes the weights; each of `jobs` workers gets `another` backend of `threads` threads.
    fn work<B: Measure>(
        self,
        request: &Request<'_>,
        loader: B,
        jobs: (usize, usize),
        another: impl Fn(&B) -> oasis_core::Result<B> + Sync,
    ) -> Result<Self::Out>;
}

impl Request<'_> {
    /// Decodes. The outer error ends everything (the disk is full, the folder is held by another process); the inner one
    /// says why this run can't be set up (its model does not fit), which leaves other runs untouched.
    pub fn run(&self) -> Result<Result<Done>> {
        self.with(Decode)
    }

    /// Does `work` on the backend of this request.
    pub(crate) fn with<W: Work>(&self, work: W) -> Result<W::Out> {
        if self.plan.jobs == Some(0) {
            bail!("run.jobs: 0 workers decode nothing; give 1 or more, or leave it out");
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let Some(cuda) = gpu(self.backend)? else {
            let weights = dry::weights_bytes(&self.opened.checkpoint.config);
            let (jobs, threads) = workers(self.plan.jobs, weights, cores);
            let cpu = |threads| self.backend.cpu(threads);
            return work.work(self, cpu(cores), (jobs, threads), move |_| Ok(cpu(threads)));
        };
        // One worker keeps the device busy; its host work has all cores.
        let jobs = self.plan.jobs.unwrap_or(1);
        work.work(self, cuda, (jobs, (cores / jobs).max(1)), Cuda::try_clone)
    }

    /// The weights, and the policies of all cells that fit.
    pub(super) fn set_up<B: Measure>(
        &self,
        loader: &mut B,
        jobs: usize,
    ) -> Result<(Arc<Model<B>>, policies::Built<B>)> {
        let limits = Limits::new(self.limits, loader.room()?, loader.usage().device as u64);
        let config = &self.opened.checkpoint.config;
        let mut refused: Vec<Option<String>> = Vec::new();
        for cell in &self.plan.cells {
            let fits = dry::check(self.plan, cell, self.app, self.samples, config, jobs, &limits);
            refused.push(self.or_alone(fits)?.err());
        }
        let model = Arc::new(self.opened.checkpoint.build(loader)?);
        let mut built = policies::Built::default();
        let mut builder = policies::Builder::new(self.app, self.opened);
        for (cell, refused) in self.plan.cells.iter().zip(refused) {
            let policies = match refused {
                Some(error) => Err(error),
                None => self.or_alone(builder.build(cell, loader, &model))?,
            };
            built.add(policies);
        }
        Ok((model, built))
    }

    /// Where cells fail alone, the error as the text of their records; else an error of the run.
    fn or_alone<T>(&self, result: Result<T>) -> Result<Result<T, String>> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(error) if self.alone => Ok(Err(format!("{error:#}"))),
            Err(error) => Err(error),
        }
    }
}

/// Decoding.
struct Decode;

impl Work for Decode {
    type Out = Result<Done>;

    fn work<B: Measure>(
        self,
        request: &Request<'_>,
        mut loader: B,
        (jobs, threads): (usize, usize),
        another: impl Fn(&B) -> oasis_core::Result<B> + Sync,
    ) -> Result<Self::Out> {
        let (model, built) = match request.set_up(&mut loader, jobs) {
            Ok(ready) => ready,
            Err(error) => return Ok(Err(error)),
        };
        let weights_bytes = loader.usage().device as u64;
        let Request { app, plan, opened, samples, .. } = *request;
        let versions = identity::versions(&plan.cells, &plan.tasks, app)?;
        let backend = loader.name();
        let parts = Identity { app, plan, opened, samples, backend }.of_run()?;
        // Workers start one after another: a backend need not be shared between threads, only handed over.
        let loader = Mutex::new(loader);
        let engine = || {
            let loader = loader.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Engine::new(another(&loader)?, model.clone())
        };
        let sitting = Sitting { request, jobs, threads, weights_bytes, backend, parts };
        sitting.run(&built, &model, &engine, versions).map(Ok)
    }
}

/// Workers and threads of each: a worker a core for a small model, all cores for one worker otherwise.
pub(crate) fn workers(wanted: Option<usize>, weights: usize, cores: usize) -> (usize, usize) {
    let jobs = wanted.unwrap_or(if weights <= SMALL_MODEL { cores } else { 1 });
    (jobs, (cores / jobs).max(1))
}

/// One call that decodes, on its backend.
struct Sitting<'a> {
    request: &'a Request<'a>,
    jobs: usize,
    threads: usize,
    weights_bytes: u64,
    backend: &'static str,
    parts: BTreeMap<String, String>,
}

impl Sitting<'_> {
    fn run<B: Backend>(
        &self,
        built: &policies::Built<B>,
        model: &Model<B>,
        engine: &(dyn Fn() -> oasis_core::Result<Engine<B>> + Sync),
        versions: BTreeMap<String, u32>,
    ) -> Result<Done> {
        let Request { plan, opened, samples, output, existing, stop, .. } = *self.request;
        let fingerprint = &self.parts["fingerprint"];
        let dir = RunDir::open(output, fingerprint, existing, &plan.name)?;
        // First of all files: a folder with others but without this one would be taken for something else.
        dir.write_json(output::FINGERPRINT, &self.parts)?;
        let before = dir.recover()?;
        let wall_before = previous_wall(&dir.path);
        let begin = Instant::now();
        let frame = Frame::new(plan, opened, samples, &built.ideal, fingerprint);
        dir.write(output::CONFIG, plan.resolved().text.as_bytes())?;
        dir.write_json(output::ENVIRONMENT, &identity::environment(versions, self.backend))?;
        let machine = |wall_s| Machine {
            wall_s,
            jobs: self.jobs,
            threads: self.threads,
            weights_bytes: self.weights_bytes,
            peak_bytes: identity::peak_bytes(),
            ..Machine::default()
        };
        dir.write_json(output::RESULTS, &results::summarise(&frame, &before, machine(wall_before)))?;
        eprintln!("run {fingerprint}: {} samples × {} cells", plan.samples(), plan.cells.len());
        let done: HashSet<UnitKey> =
            before.samples.iter().map(|s| (s.sample.clone(), s.cell.clone(), s.repeat)).collect();
        drop(before);
        let ended = self.decode(built, model, engine, &dir, &done);
        let mut records = dir.read()?;
        results::sort(&mut records, &frame);
        let interrupted = ended.is_ok() && stop.load(Ordering::SeqCst);
        let rewritten = if ended.is_ok() { dir.rewrite(&records) } else { Ok(()) };
        let wall = wall_before + begin.elapsed().as_secs_f64();
        let results = results::summarise(&frame, &records, machine(wall));
        let written = dir.write_json(output::RESULTS, &results);
        // The first error is the cause; what follows from it is noise.
        ended.and(rewritten).and(written)?;
        Ok(Done { path: dir.path.clone(), results, interrupted })
    }

    fn decode<B: Backend>(
        &self,
        built: &policies::Built<B>,
        model: &Model<B>,
        engine: &(dyn Fn() -> oasis_core::Result<Engine<B>> + Sync),
        dir: &RunDir,
        done: &HashSet<UnitKey>,
    ) -> Result<()> {
        let Request { plan, opened, samples, only, stop, .. } = *self.request;
        let batch = plan.cells.iter().map(|c| c.batch).max().unwrap_or(1);
        let bundles = samples::bundles(&samples.jobs, batch);
        let cells = only.iter().filter(|only| **only).count();
        let units = plan.samples() * plan.repeats as usize * cells;
        let progress = Progress::new(units as u64, done.len() as u64);
        let shared = worker::Shared {
            context: decode::Context {
                plan,
                built,
                tokenizer: &opened.checkpoint.tokenizer,
                eos: &model.config.eos,
            },
            jobs: &samples.jobs,
            bundles: &bundles,
            parts: samples::parts(bundles.len(), self.jobs, plan.cells.len()),
            only,
            done,
            engine,
            stop,
            appender: Mutex::new(dir.append()?),
            progress: &progress,
            fatal: Mutex::new(None),
            next: AtomicUsize::new(0),
        };
        let ended = shared.run(self.jobs);
        progress.finish();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_get_a_worker_a_core() {
        assert_eq!(workers(None, 10 << 20, 4), (4, 1));
        assert_eq!(workers(Some(2), 10 << 20, 4), (2, 2));
        assert_eq!(workers(Some(8), 10 << 20, 4), (8, 1));
        assert_eq!(workers(None, 270 << 20, 4), (1, 4));
    }
}
