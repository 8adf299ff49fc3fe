//! `oasis run`: a configuration becomes a plan, the plan a folder of records and a report.

pub(crate) mod contents;
pub(crate) mod decode;
pub(crate) mod dry;
mod flags;
mod hardware;
mod heads;
pub(crate) mod identity;
mod invariants;
mod metrics;
pub(crate) mod model;
pub(crate) mod output;
pub(crate) mod policies;
pub(crate) mod probe;
pub(crate) mod progress;
pub(crate) mod results;
pub(crate) mod samples;
mod sitting;
mod stats;
mod tally;
mod timing;
mod worker;

use crate::app::App;
use crate::plan::Plan;
use crate::record::{Results, Status};
use crate::report;
use crate::spec;
use anyhow::{Context as _, Result};
pub(crate) use flags::Flags;
use oasis_core::ops::Backend as _;
use oasis_kernels::{Cpu, Cuda};
pub(crate) use output::recorded_samples;
pub(crate) use sitting::{Request, workers};
pub(crate) use stats::{Values, percentile};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of an interrupted run.
pub(crate) const INTERRUPTED: u8 = 130;

/// Where a run computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendChoice {
    /// The best there is
    Auto,
    /// The processor
    Cpu,
    /// The processor with the same bits on every machine; prompts take longer
    CpuPortable,
    /// An NVIDIA GPU
    Cuda,
}

impl BackendChoice {
    /// The processor, where it is not to be a GPU.
    pub(crate) fn cpu(self, threads: usize) -> Cpu {
        let cpu = Cpu::new(threads);
        if self == Self::CpuPortable { cpu.portable() } else { cpu }
    }
}

/// Arguments of `oasis run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    flags: Flags,
    /// Print the first prompt of every task as the model gets it
    #[arg(long)]
    write_out: bool,
}

/// Runs `oasis run`.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let flags = &args.flags;
    flags.limits.check()?;
    let source = spec::load(&args.config, &flags.sets()?)?;
    let plan = Plan::new(&source, app)?;
    if !flags.dry_run {
        output::probe(&flags.output)?;
    }
    let opened = model::open(&plan.model)?;
    let samples = samples::make(&plan, &opened.checkpoint)?;
    if args.write_out {
        dry::write_out(&plan, &samples, &opened.checkpoint.tokenizer)?;
    }
    if flags.dry_run {
        dry::print(&plan, app, &samples, &opened)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_on_signal();
    let request = Request {
        app,
        plan: &plan,
        opened: &opened,
        samples: &samples,
        output: &flags.output,
        existing: flags.existing(),
        limits: &flags.limits,
        backend: flags.backend,
        only: &vec![true; plan.cells.len()],
        alone: false,
        stop: &stop,
    };
    let done = request.run()??;
    report(&done.path)?;
    if done.interrupted && done.results.status == Status::Partial {
        let (n, planned) = (done.results.n_done, done.results.n_planned);
        let (config, output) = (args.config.display(), flags.output.display());
        eprintln!(
            "interrupted after {n} of {planned} decodes; the same command with --resume goes on: oasis run -c {config} \
             --output {output} --resume"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(report::verdict(&done.results))
}

/// Prints and writes the report of a run.
pub(crate) fn report(dir: &Path) -> Result<()> {
    let records = report::Records::open(dir).context("the records can't be read back")?;
    report::say(&report::terminal::render(&records.results, report::WIDTH))?;
    let written = records.write(dir)?;
    report::say(&format!("records: {}\nreport:  {}\n", dir.display(), written.display()))
}

/// The GPU, if it is wanted and there. `auto` without one falls back to the processor and says why.
pub(crate) fn gpu(choice: BackendChoice) -> Result<Option<Cuda>> {
    match choice {
        BackendChoice::Cpu | BackendChoice::CpuPortable => Ok(None),
        BackendChoice::Cuda => Cuda::new(0).map(Some).context("--backend cuda; use --backend cpu"),
        BackendChoice::Auto => Ok(Cuda::new(0).inspect_err(|e| eprintln!("backend: cpu ({e})")).ok()),
    }
}

/// The backend that `choice` comes to here, with its name: asked once where several runs follow.
pub(crate) fn settle(choice: BackendChoice) -> Result<(BackendChoice, &'static str)> {
    Ok(match gpu(choice)? {
        Some(cuda) => (BackendChoice::Cuda, cuda.name()),
        None if choice == BackendChoice::CpuPortable => (choice, choice.cpu(1).name()),
        None => (BackendChoice::Cpu, BackendChoice::Cpu.cpu(1).name()),
    })
}

/// Seconds that former sittings took.
pub(crate) fn previous_wall(dir: &Path) -> f64 {
    let text = std::fs::read(dir.join(output::RESULTS)).unwrap_or_default();
    serde_json::from_slice::<Results>(&text).map_or(0.0, |r| r.machine.wall_s)
}

/// A flag that Ctrl-C raises; a second Ctrl-C ends the program at once.
pub(crate) fn stop_on_signal() -> Arc<AtomicBool> {
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
