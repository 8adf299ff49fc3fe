//! `oasis sweep`: one file, every combination of values of its axes, one folder.
//!
//! A sweep is a thin layer over runs. Combinations that differ in keys of cells only (`decode.*`, `cell.*`) are cells of one
//! run and share its prefills; the others are runs of their own, in folders below the sweep's.

mod dry;
mod plan;

use crate::app::App;
use crate::record::{Status, SweepPlan, SweepResults};
use crate::report;
use crate::run::output::{self, RunDir};
use crate::run::{Flags, INTERRUPTED, Request};
use crate::{run, spec};
use anyhow::Result;
use plan::{Part, Planned};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// The plan of a sweep, in its folder.
pub(crate) const SWEEP: &str = "sweep.json";

/// Arguments of `oasis sweep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration with a [sweep] table
    file: PathBuf,
    #[command(flatten)]
    flags: Flags,
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
    let planned = Planned::new(&sweep, parts, app, backend_name)?;
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
        let dir = RunDir::open(&flags.output, &record.fingerprint, flags.existing(), &record.name)?;
        let identity = BTreeMap::from([
            ("fingerprint", record.fingerprint.as_str()),
            ("name", record.name.as_str()),
            ("config", self.planned.config.as_str()),
        ]);
        dir.write_json(output::FINGERPRINT, &identity)?;
        dir.write_json(SWEEP, record)?;
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
            let only = vec![true; part.plan.cells.len()];
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
        let unfinished = results.status == Status::Partial && stop.load(Ordering::SeqCst);
        if unfinished {
            eprintln!(
                "interrupted after {} of {} decodes; the same command with --resume goes on",
                results.n_done, results.n_planned
            );
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Ok(report::sweep_verdict(&results))
    }

    fn request<'r>(
        &'r self,
        part: &'r Part,
        ready: &'r plan::Ready,
        output: &'r std::path::Path,
        only: &'r [bool],
        stop: &'r std::sync::atomic::AtomicBool,
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

/// Says what came of a sweep: the table of its only run, or a line for each of several.
fn finish(dir: &std::path::Path, plan: &SweepPlan, results: &SweepResults) -> Result<()> {
    if let [run] = &results.runs[..]
        && let Some(results) = &run.results
    {
        report::say(&report::terminal::render(results, report::WIDTH))?;
    }
    report::say(&report::terminal::sweep(plan, results))?;
    report::say(&format!("records: {}\n", dir.display()))
}
