//! `oasis sweep`: one file, every combination of values of its axes, one folder.
//!
//! A sweep is a thin layer over runs. Combinations that differ in keys of cells only (`decode.*`, `cell.*`) are cells of one
//! run and share its prefills; the others are runs of their own, in folders below the sweep's.

mod dry;
pub mod merge;
mod plan;

use crate::app::App;
use crate::record::{Shard, SweepPlan, SweepResults};
use crate::report;
use crate::run::output::{self, Existing, RunDir};
use crate::run::{Flags, INTERRUPTED, Request};
use crate::{run, spec};
use anyhow::Result;
use plan::{Part, Planned};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// The plan of a sweep, in its folder.
pub(crate) const SWEEP: &str = "sweep.json";

/// Arguments of `oasis sweep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration with a [sweep] table
    file: PathBuf,
    #[command(flatten)]
    flags: Flags,
    /// Run only every n-th cell, from the i-th on, into a folder of its own (FOLDER/shard-i-of-n); `oasis merge` joins all n
    #[arg(long, value_name = "i/n")]
    shard: Option<Shard>,
    /// With --dry-run: measure the time also where the model is large and must be loaded for it
    #[arg(long, requires = "dry_run")]
    probe: bool,
}

/// Runs `oasis sweep`.
///
/// # Errors
/// A configuration that is refused, a folder that can't be written or belongs to something else. Runs and cells that can't
/// be set up are recorded as failed instead, and the others go on.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let flags = &args.flags;
    flags.limits.check()?;
    let sweep = spec::load_sweep(&args.file, &flags.sets()?)?;
    let parts = plan::parts(&sweep, app)?;
    if !flags.dry_run {
        output::probe(&flags.output)?;
    }
    let (backend, backend_name) = run::settle(flags.backend)?;
    let planned = Planned::new(&sweep, parts, app, backend_name, args.shard)?;
    let sweeping = Sweeping { args, app, planned: &planned, backend };
    if flags.dry_run { dry::print(&sweeping) } else { sweeping.run() }
}

/// A sweep that is to be run.
struct Sweeping<'a> {
    args: &'a Args,
    app: &'a App,
    planned: &'a Planned,
    backend: run::BackendChoice,
}

impl Sweeping<'_> {
    fn run(&self) -> Result<ExitCode> {
        let (flags, record) = (&self.args.flags, &self.planned.record);
        let root = match record.shard {
            Some(shard) => flags.output.join(format!("shard-{}-of-{}", shard.number, shard.of)),
            None => flags.output.clone(),
        };
        let dir = open(&root, record, flags.existing())?;
        let mut results = SweepResults::new(record);
        dir.write_json(output::RESULTS, &results)?;
        let runs = record.runs.len();
        eprintln!("sweep {}: {runs} run(s), {} cells", record.fingerprint, self.planned.cells());
        let stop = run::stop_on_signal();
        for (i, part) in self.planned.parts.iter().enumerate() {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let Ok(ready) = &part.ready else { continue };
            let only = self.only(i);
            if !only.contains(&true) {
                continue;
            }
            match self.request(part, ready, &dir.path, &only, &stop).run()? {
                Ok(done) => {
                    report::Records::open(&done.path)?.write(&done.path)?;
                    results.runs[i].results = Some(done.results);
                }
                Err(error) => results.runs[i].error = Some(format!("{error:#}")),
            }
            results.count(record);
            dir.write_json(output::RESULTS, &results)?;
        }
        finish(&dir.path, record, &results)?;
        let (recorded, own) = (results.n_done + results.n_failed, record.all_own());
        if recorded < own && stop.load(Ordering::SeqCst) {
            eprintln!(
                "interrupted after {recorded} of {own} decodes; the same command with --resume goes on"
            );
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Ok(report::sweep_verdict(record, &results))
    }

    /// The cells of run `i` that are decoded here.
    fn only(&self, i: usize) -> Vec<bool> {
        let record = &self.planned.record;
        record.runs[i].cells.iter().map(|c| record.has(c.index)).collect()
    }

    fn request<'r>(
        &'r self,
        part: &'r Part,
        ready: &'r plan::Ready,
        output: &'r Path,
        only: &'r [bool],
        stop: &'r AtomicBool,
    ) -> Request<'r> {
        Request {
            app: self.app,
            plan: &part.plan,
            opened: &ready.opened,
            samples: &ready.samples,
            output,
            existing: self.args.flags.existing(),
            limits: &self.args.flags.limits,
            backend: self.backend,
            only,
            alone: true,
            stop,
        }
    }
}

/// The folder of a sweep below `root`, with its plan.
fn open(root: &Path, plan: &SweepPlan, existing: Existing) -> Result<RunDir> {
    let dir = RunDir::open(root, &plan.fingerprint, existing, &plan.name)?;
    let identity = [("fingerprint", plan.fingerprint.as_str()), ("name", plan.name.as_str())];
    dir.write_json(output::FINGERPRINT, &BTreeMap::from(identity))?;
    dir.write_json(SWEEP, plan)?;
    Ok(dir)
}

/// Says what came of a sweep and writes its report.
fn finish(dir: &Path, plan: &SweepPlan, results: &SweepResults) -> Result<()> {
    report::say(&report::terminal::sweep(plan, results))?;
    let records = report::sweep::SweepRecords { plan: plan.clone(), results: results.clone() };
    let written = records.write(dir)?;
    report::say(&format!("records: {}\nreport:  {}\n", dir.display(), written.display()))
}
