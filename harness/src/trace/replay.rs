//! `oasis trace replay`: combinations of policies over a trace.

use super::folder::Folder;
use super::lists::{self, Combination};
use super::playback::{Cache, Playback, Sequence, policies_of};
use super::render;
use super::tally::Record;
use super::work;
use crate::app::App;
use crate::files::write_whole;
use crate::report::{plot, say};
use crate::run::identity;
use crate::run::progress::Progress;
use anyhow::{Result, bail};
use oasis_core::decode::{Replay, ReplayOptions};
use oasis_core::registry::find;
use oasis_kernels::Cpu;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Version of `replay.json`.
const SCHEMA_VERSION: u32 = 1;

/// Arguments of `oasis trace replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the trace
    dir: PathBuf,
    /// Predictors, separated by commas; default here and below: what was recorded
    #[arg(long, value_name = "LIST")]
    predictor: Option<String>,
    /// Summaries; keys in braces, e.g. minmax,rotated-keys{bits=2}
    #[arg(long, value_name = "LIST")]
    summary: Option<String>,
    /// Evictors; belady, which knows the next use of every block, too
    #[arg(long, value_name = "LIST")]
    evictor: Option<String>,
    /// Budgets: resident tokens of a KV head, or shares of the context (10%)
    #[arg(long, value_name = "LIST")]
    budget: Option<String>,
    /// Fetch caps: blocks (3), shares of the selectable blocks (0.05), unlimited
    #[arg(long, value_name = "LIST")]
    cap: Option<String>,
    /// Set another value of all combinations, e.g. decode.block=32
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Most sequences replayed
    #[arg(long)]
    limit: Option<usize>,
    /// Threads; default: one a core
    #[arg(long)]
    jobs: Option<usize>,
    /// Leave out exact recall and mass recall, which need exact attention: much faster
    #[arg(long)]
    no_audit: bool,
    /// Replay what was recorded and compare residents and masses with the recording, to the bit; no table
    #[arg(long, conflicts_with_all = ["predictor", "summary", "evictor", "budget", "cap", "set", "output"])]
    verify: bool,
    /// New folder for the table as JSON and the curves as SVG
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl Args {
    fn lists(&self) -> Result<Vec<(&'static str, Vec<String>)>> {
        let typed = [&self.predictor, &self.summary, &self.evictor, &self.budget, &self.cap];
        let list = |(axis, typed): (&'static str, &Option<String>)| match typed {
            Some(text) => Ok((axis, lists::split(axis, text)?)),
            None => Ok((axis, Vec::new())),
        };
        lists::AXES.into_iter().zip(typed).map(list).collect()
    }

    fn jobs(&self) -> Result<usize> {
        match self.jobs {
            Some(0) => bail!("--jobs: 0 threads replay nothing; give 1 or more, or leave it out"),
            Some(n) => Ok(n),
            None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }
}

/// Replays. The exit code is not 0 if a combination failed; the others are reported all the same.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    // Here next uses are known.
    let app = &App { evictors: [&app.evictors, app.replay_evictors].concat(), ..app.clone() };
    let mut folder = Folder::open(&args.dir)?;
    let jobs = args.jobs()?;
    match args.limit {
        Some(0) => bail!("--limit: 0 sequences; give 1 or more, or leave it out"),
        Some(n) => folder.header.shards.truncate(n),
        None => {}
    }
    if args.verify {
        return verify(&folder, app, jobs);
    }
    let sets = work::sets(&args.set)?;
    let choices = lists::product(&args.lists()?);
    let combinations: Vec<Combination> =
        choices.into_iter().map(|choice| lists::plan(&folder, app, &sets, choice)).collect();
    if let Some(output) = &args.output {
        super::folder::create(output)?;
    }
    let begin = Instant::now();
    let session = Playback { folder: &folder, app, audit: !args.no_audit, loaded: Cache::new(&folder) };
    let rows = session.rows(&combinations, jobs)?;
    let record = Record {
        schema_version: SCHEMA_VERSION,
        trace: args.dir.display().to_string(),
        model: folder.header.model.clone(),
        recorded: folder.header.recorded.clone(),
        sequences: folder.header.shards.len(),
        jobs,
        wall_s: begin.elapsed().as_secs_f64(),
        environment: identity::environment(versions(app, &combinations), "cpu"),
        rows,
    };
    say(&render::terminal(&record))?;
    if let Some(output) = &args.output {
        write(output, &record)?;
    }
    let failed = record.rows.iter().any(|r| r.error.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(output: &Path, record: &Record) -> Result<()> {
    let text = serde_json::to_string_pretty(record)? + "\n";
    write_whole(&output.join("replay.json"), text.as_bytes())?;
    for (file, title, panels) in render::curves(record) {
        write_whole(&output.join(file), plot::draw::svg(title, &panels)?.as_bytes())?;
    }
    say(&format!("written: {}\n", output.display()))
}

fn versions(app: &App, combinations: &[Combination]) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for cell in combinations.iter().filter_map(|c| c.cell.as_ref().ok()) {
        for kind in ["summary", "evictor", "predictor"] {
            let Some(spec) = cell.policy(kind) else { continue };
            let version = match kind {
                "summary" => find(kind, &app.summaries, &spec.name).map(|e| e.version),
                "evictor" => find(kind, &app.evictors, &spec.name).map(|e| e.version),
                _ => find(kind, &app.predictors, &spec.name).map(|e| e.version),
            };
            all.extend(version.ok().map(|v| (format!("{kind} {}", spec.name), v)));
        }
    }
    all
}

/// Replays the recorded policies and compares.
fn verify(folder: &Folder, app: &App, jobs: usize) -> Result<ExitCode> {
    let own = lists::plan(folder, app, &[], lists::Choice { values: Vec::new() });
    let cell = own.cell.map_err(anyhow::Error::msg)?;
    let loaded = Cache::new(folder);
    let n = folder.header.shards.len();
    let progress = Progress::new(n as u64, 0);
    let equal = work::each(
        jobs,
        n,
        || Ok(()),
        |(), i| {
            let Sequence { tape, prefix, length, .. } = loaded.get(i, cell.block)?;
            if tape.mass.first.is_empty() {
                bail!(
                    "{}: no masses were recorded, so there is nothing to compare with",
                    folder.header.shards[i].file
                );
            }
            let (settings, policies) = (cell.settings(length, 0), policies_of(app, &cell)?);
            let recorded = ReplayOptions { record: true, ..ReplayOptions::default() };
            let mut replay = Replay::new(Cpu::new(1), tape.clone(), prefix, &settings, &policies, recorded)?;
            while replay.step()?.is_some() {}
            loaded.forget(i);
            progress.advance(1, &folder.header.shards[i].sample);
            Ok(replay.into_tape().is_some_and(|again| again == *tape))
        },
    );
    progress.finish();
    let equal = equal?;
    let same = equal.iter().filter(|e| **e).count();
    for (shard, _) in folder.header.shards.iter().zip(&equal).filter(|(_, equal)| !**equal) {
        eprintln!("differs: {} ({})", shard.sample, shard.file);
    }
    say(&format!("{same} of {n} sequences replay as recorded: residents and their masses, to the bit\n"))?;
    Ok(if same == n { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
