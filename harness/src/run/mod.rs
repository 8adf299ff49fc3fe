//! `oasis run`: a configuration becomes a plan, the plan a folder of records and a report.

mod decode;
mod dry;
pub(crate) mod identity;
mod invariants;
mod metrics;
pub(crate) mod model;
mod output;
mod policies;
mod progress;
mod results;
mod samples;
mod stats;
mod tally;
mod timing;
mod worker;

use crate::app::App;
use crate::bench::Limits;
use crate::plan::Plan;
use crate::record::{Machine, Results, Status};
use crate::report;
use crate::spec::{self, Limit};
use anyhow::{Context as _, Result, bail};
use model::Opened;
use oasis_core::engine::Engine;
use oasis_core::model::Model;
use oasis_core::ops::Backend;
use oasis_kernels::{Cpu, Cuda, Measure};
use output::{Existing, RunDir, UnitKey};
use progress::Progress;
use results::Frame;
use samples::Samples;
pub(crate) use stats::percentile;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Weights up to this many bytes are decoded by many workers of one thread each.
const SMALL_MODEL: usize = 64 << 20;
/// Exit code of an interrupted run.
const INTERRUPTED: u8 = 130;

/// Where a run computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The best there is
    Auto,
    /// The processor
    Cpu,
    /// An NVIDIA GPU
    Cuda,
}

/// Arguments of `oasis run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Set a value over the file, e.g. decode.budget=256 or task.samples=4
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Samples of each task: a count or a share (4, 0.25, 25%), taken at equal strides
    #[arg(long)]
    limit: Option<Limit>,
    /// Seed of samples and draws
    #[arg(long)]
    seed: Option<u64>,
    /// Times that every (sample, cell) is decoded
    #[arg(long)]
    repeats: Option<u32>,
    /// Workers; default: one a core for small models, one for large ones
    #[arg(long)]
    jobs: Option<usize>,
    /// Folder of runs; each gets a folder of its own in it
    #[arg(short, long, value_name = "FOLDER", default_value = "runs")]
    output: PathBuf,
    /// Go on with a run that was interrupted or failed
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Start again, dropping what the run's folder holds
    #[arg(long)]
    overwrite: bool,
    /// Print the complete configuration with the origin of every value and the memory of every cell; run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the first prompt of every task as the model gets it
    #[arg(long)]
    write_out: bool,
    /// Where to compute
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendChoice,
    #[command(flatten)]
    limits: crate::bench::GibLimits,
}

impl Args {
    /// `--set`s and the flags that are short for one.
    fn sets(&self) -> Result<Vec<(String, String)>> {
        let mut sets = Vec::new();
        for set in &self.set {
            let Some((key, value)) = set.split_once('=') else {
                bail!("--set {set}: no `=`; write KEY=VALUE, as in decode.budget=256");
            };
            sets.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        let mut flag = |key: &str, value: Option<String>| sets.extend(value.map(|v| (key.to_owned(), v)));
        flag("run.limit", self.limit.map(|l| l.to_string()));
        flag("run.seed", self.seed.map(|s| s.to_string()));
        flag("run.repeats", self.repeats.map(|r| r.to_string()));
        flag("run.jobs", self.jobs.map(|j| j.to_string()));
        Ok(sets)
    }

    fn existing(&self) -> Existing {
        match (self.resume, self.overwrite) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Overwrite,
            _ => Existing::Refuse,
        }
    }
}

/// Runs `oasis run`.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    args.limits.check()?;
    let source = spec::load(&args.config, &args.sets()?)?;
    let plan = Plan::new(&source, app)?;
    if !args.dry_run {
        output::probe(&args.output)?;
    }
    let opened = model::open(&plan.model)?;
    let samples = samples::make(&plan, &opened.checkpoint)?;
    if args.write_out {
        dry::write_out(&plan, &samples, &opened.checkpoint.tokenizer)?;
    }
    if args.dry_run {
        dry::print(&plan, app, &samples, &opened)?;
        return Ok(ExitCode::SUCCESS);
    }
    if plan.jobs == Some(0) {
        anyhow::bail!("run.jobs: 0 workers decode nothing; give 1 or more, or leave it out");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let job = Job { args, app, plan: &plan, opened: &opened, samples: &samples };
    let Some(cuda) = gpu(args.backend)? else {
        let (jobs, threads) = workers(plan.jobs, dry::weights_bytes(&opened.checkpoint.config), cores);
        return job.on(Cpu::new(cores), jobs, threads, move |_| Ok(Cpu::new(threads)));
    };
    // One worker keeps the device busy; its host work has all cores.
    let jobs = plan.jobs.unwrap_or(1);
    job.on(cuda, jobs, (cores / jobs).max(1), Cuda::try_clone)
}

/// The GPU, if it is wanted and there. `auto` without one falls back to the processor and says why.
pub(crate) fn gpu(choice: BackendChoice) -> Result<Option<Cuda>> {
    match choice {
        BackendChoice::Cpu => Ok(None),
        BackendChoice::Cuda => Cuda::new(0).map(Some).context("--backend cuda; use --backend cpu"),
        BackendChoice::Auto => Ok(Cuda::new(0).inspect_err(|e| eprintln!("backend: cpu ({e})")).ok()),
    }
}

/// What `oasis run` is to do, before a backend is chosen.
struct Job<'a> {
    args: &'a Args,
    app: &'a App,
    plan: &'a Plan,
    opened: &'a Opened,
    samples: &'a Samples,
}

impl Job<'_> {
    /// Loads the model to `loader`, gives every worker a backend of its own, and decodes.
    fn on<B: Measure>(
        &self,
        mut loader: B,
        jobs: usize,
        threads: usize,
        another: impl Fn(&B) -> oasis_core::Result<B> + Sync,
    ) -> Result<ExitCode> {
        let limits = Limits::new(&self.args.limits, loader.room()?, loader.usage().device as u64);
        let config = &self.opened.checkpoint.config;
        dry::check(self.plan, self.app, self.samples, config, jobs, &limits)?;
        let model = Arc::new(self.opened.checkpoint.build(&mut loader)?);
        let weights_bytes = loader.usage().device as u64;
        let built = policies::build(self.app, &self.plan.cells, self.opened, &mut loader, &model)?;
        let versions = identity::versions(self.plan, self.app)?;
        let backend = loader.name();
        let parts = identity::fingerprint(self.plan, self.opened, self.samples, &versions, backend);
        // Workers start one after another: a backend need not be shared between threads, only handed over.
        let loader = Mutex::new(loader);
        let engine = || {
            let loader = loader.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Engine::new(another(&loader)?, model.clone())
        };
        let sitting = Sitting {
            args: self.args,
            plan: self.plan,
            opened: self.opened,
            samples: self.samples,
            jobs,
            threads,
            weights_bytes,
            backend,
            parts,
        };
        sitting.run(&built, &model, &engine, versions)
    }
}

/// Workers and threads of each: a worker a core for a small model, all cores for one worker otherwise.
fn workers(wanted: Option<usize>, weights: usize, cores: usize) -> (usize, usize) {
    let jobs = wanted.unwrap_or(if weights <= SMALL_MODEL { cores } else { 1 });
    (jobs, (cores / jobs).max(1))
}

/// One call of `oasis run` that decodes.
struct Sitting<'a> {
    args: &'a Args,
    plan: &'a Plan,
    opened: &'a Opened,
    samples: &'a Samples,
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
    ) -> Result<ExitCode> {
        let fingerprint = &self.parts["fingerprint"];
        let dir = RunDir::open(&self.args.output, fingerprint, self.args.existing(), &self.plan.name)?;
        let before = dir.recover()?;
        let wall_before = previous_wall(&dir);
        let begin = Instant::now();
        let frame = Frame::new(self.plan, self.opened, self.samples, &built.ideal, fingerprint);
        dir.write_json(output::FINGERPRINT, &self.parts)?;
        dir.write(output::CONFIG, self.plan.resolved().text.as_bytes())?;
        dir.write_json(output::ENVIRONMENT, &identity::environment(versions, self.backend))?;
        let machine = |wall_s| Machine {
            wall_s,
            jobs: self.jobs,
            threads: self.threads,
            weights_bytes: self.weights_bytes,
            peak_bytes: identity::peak_bytes(),
            ..Machine::default()
        };
        dir.write_json(
            output::RESULTS,
            &results::summarise(self.plan, &frame, &before, machine(wall_before)),
        )?;
        eprintln!("run {fingerprint}: {} samples × {} cells", self.plan.samples(), self.plan.cells.len());
        let done: HashSet<UnitKey> =
            before.samples.iter().map(|s| (s.sample.clone(), s.cell.clone(), s.repeat)).collect();
        drop(before);
        let stop = stop_on_signal();
        let ended = self.decode(built, model, engine, &dir, &done, &stop);
        let mut records = dir.read()?;
        results::sort(&mut records, &frame);
        let interrupted = ended.is_ok() && stop.load(Ordering::SeqCst);
        let rewritten = if ended.is_ok() { dir.rewrite(&records) } else { Ok(()) };
        let wall = wall_before + begin.elapsed().as_secs_f64();
        let results = results::summarise(self.plan, &frame, &records, machine(wall));
        let written = dir.write_json(output::RESULTS, &results);
        // The first error is the cause; what follows from it is noise.
        ended.and(rewritten).and(written)?;
        self.report(&dir, &results, interrupted)
    }

    fn decode<B: Backend>(
        &self,
        built: &policies::Built<B>,
        model: &Model<B>,
        engine: &(dyn Fn() -> oasis_core::Result<Engine<B>> + Sync),
        dir: &RunDir,
        done: &HashSet<UnitKey>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let batch = self.plan.cells.iter().map(|c| c.batch).max().unwrap_or(1);
        let bundles = samples::bundles(&self.samples.jobs, batch);
        let progress = Progress::new(self.plan.units() as u64, done.len() as u64);
        let shared = worker::Shared {
            context: decode::Context {
                plan: self.plan,
                built,
                tokenizer: &self.opened.checkpoint.tokenizer,
                eos: &model.config.eos,
            },
            jobs: &self.samples.jobs,
            bundles: &bundles,
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

    /// Prints and writes the report; the exit code says whether the run can be believed.
    fn report(&self, dir: &RunDir, results: &Results, interrupted: bool) -> Result<ExitCode> {
        let records = report::Records::open(&dir.path).context("the records can't be read back")?;
        report::say(&report::terminal::render(&records.results, report::WIDTH))?;
        let written = records.write(&dir.path)?;
        report::say(&format!("records: {}\nreport:  {}\n", dir.path.display(), written.display()))?;
        if interrupted && results.status == Status::Partial {
            let (done, planned) = (results.n_done, results.n_planned);
            let config = self.args.config.display();
            eprintln!(
                "interrupted after {done} of {planned} decodes; the same command with --resume goes on: oasis run -c {config} \
                 --output {} --resume",
                self.args.output.display()
            );
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Ok(report::verdict(&records.results))
    }
}

fn previous_wall(dir: &RunDir) -> f64 {
    let text = std::fs::read(dir.path.join(output::RESULTS)).unwrap_or_default();
    serde_json::from_slice::<Results>(&text).map_or(0.0, |r| r.machine.wall_s)
}

/// A flag that Ctrl-C raises; a second Ctrl-C ends the program at once.
fn stop_on_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let handler = move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        eprintln!("interrupted: finishing what is being decoded; once more ends at once");
    };
    // Only fails where a handler is there already, in a program that runs twice.
    let _ = ctrlc::set_handler(handler);
    stop
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
