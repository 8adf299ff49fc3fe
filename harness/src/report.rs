//! Reports: pure functions of a run's records. No clock and no device is asked here.

pub mod grid;
pub mod markdown;
pub mod metric;
pub mod plot;
pub mod sweep;
pub mod tables;
pub mod terminal;
pub mod units;
pub mod view;

use crate::files::write_whole;
use crate::record::{Environment, Results, SCHEMA_VERSION, Status, SweepPlan, SweepResults, Verdict};
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Columns of a terminal that reports are made for.
pub const WIDTH: u16 = 120;

/// Arguments of `oasis report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of a run or a sweep: the one with `results.json`
    dir: PathBuf,
    /// Print the report, write nothing
    #[arg(long)]
    no_write: bool,
}

/// Runs `oasis report`: renders a run's records again, prints the table and writes `report.md` with its plots.
///
/// The exit code says whether the run can be believed: not 0 if it is not complete or an invariant is violated.
pub fn run(args: &Args, _app: &crate::App) -> Result<ExitCode> {
    if args.dir.join("sweep.json").is_file() {
        return of_sweep(args);
    }
    let records = Records::open(&args.dir)?;
    say(&terminal::render(&records.results, WIDTH))?;
    if !args.no_write {
        let report = records.write(&args.dir)?;
        say(&format!("report: {}\n", report.display()))?;
    }
    Ok(verdict(&records.results))
}

fn of_sweep(args: &Args) -> Result<ExitCode> {
    let records = sweep::SweepRecords::open(&args.dir)?;
    say(&terminal::sweep(&records.plan, &records.results))?;
    if !args.no_write {
        let report = records.write(&args.dir)?;
        say(&format!("report: {}\n", report.display()))?;
    }
    Ok(sweep_verdict(&records.plan, &records.results))
}

/// Prints to stdout. A reader that has seen enough (`| head`) is no error.
pub fn say(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("stdout: not writable"),
        _ => Ok(()),
    }
}

/// Success only for a complete run without a violated invariant.
pub fn verdict(results: &Results) -> ExitCode {
    let violated = results.invariants.iter().any(|i| i.verdict == Verdict::Violated);
    if violated || results.status != Status::Complete { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The same for a sweep or a shard of it: success only if all its decodes are done, without a violated invariant.
pub fn sweep_verdict(plan: &SweepPlan, results: &SweepResults) -> ExitCode {
    let checks = results.runs.iter().filter_map(|r| r.results.as_ref()).flat_map(|r| &r.invariants);
    let violated = checks.into_iter().any(|i| i.verdict == Verdict::Violated);
    let done = results.n_done == plan.all_own() && results.n_failed == 0;
    if done && !violated { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a report is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// `results.json`.
    pub results: Results,
    /// `env.json`, where it is there.
    pub environment: Option<Environment>,
    /// `config.toml`, where it is there.
    pub config: Option<String>,
}

impl Records {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// No `results.json`; a schema that this program does not know; a file that is not what it should be.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("results.json");
        if !path.is_file() {
            bail!(
                "{}: no results.json; give the folder of one run (`<output>/<fingerprint>`)",
                dir.display()
            );
        }
        let version = json::<Versioned>(&path)?.schema_version;
        if version != SCHEMA_VERSION {
            bail!(
                "{}: schema_version is {version}, this program reads {SCHEMA_VERSION}; use the Oasis that wrote it",
                path.display()
            );
        }
        let env = dir.join("env.json");
        let config = dir.join("config.toml");
        Ok(Self {
            results: json(&path)?,
            environment: if env.is_file() { Some(json(&env)?) } else { None },
            config: if config.is_file() { Some(read(&config)?) } else { None },
        })
    }

    /// Writes `report.md` with its plots, and `report.html` with all of it in one file; gives the path of the first.
    ///
    /// # Errors
    /// The folder is not writable, the disk is full.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let plots = plot::all(&view::View::new(&self.results))?;
        let (env, config) = (self.environment.as_ref(), self.config.as_deref());
        let text = markdown::render(&self.results, env, config, &plots)?;
        let page = markdown::render_html(&self.results, env, config, &plots)?;
        write_pages(dir, &plots, &text, &page)
    }
}

/// Writes plots, `report.md` and `report.html`; gives the path of the Markdown.
pub(crate) fn write_pages(dir: &Path, plots: &[plot::Plot], markdown: &str, html: &str) -> Result<PathBuf> {
    for plot in plots {
        let path = dir.join(plot.file);
        let folder = path.parent().unwrap_or(dir);
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        write_whole(&path, plot.svg.as_bytes())?;
    }
    write_whole(&dir.join("report.html"), html.as_bytes())?;
    let path = dir.join("report.md");
    write_whole(&path, markdown.as_bytes())?;
    Ok(path)
}

#[derive(serde::Deserialize)]
struct Versioned {
    schema_version: u32,
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{}: is not what Oasis wrote", path.display()))
}
