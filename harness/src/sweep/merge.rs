//! `oasis merge`: the shards of a sweep become the sweep, as if it had been run in one piece.

use super::{SWEEP, finish, open};
use crate::app::App;
use crate::record::{Machine, Results, SCHEMA_VERSION, Shard, SweepPlan, SweepResults, SweepRunPlan};
use crate::report;
use crate::run::output::{self, Existing, Records, RunDir};
use crate::run::results::{self, Frame};
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `oasis merge`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of all shards: those with `sweep.json`
    #[arg(required = true)]
    shards: Vec<PathBuf>,
    /// Folder of runs; the sweep gets its folder in it
    #[arg(short, long, value_name = "FOLDER", default_value = "runs")]
    output: PathBuf,
    /// Replace the merged sweep if it is there already
    #[arg(long)]
    overwrite: bool,
}

/// A shard as it lies on disk.
struct Piece {
    path: PathBuf,
    shard: Shard,
    plan: SweepPlan,
    results: SweepResults,
}

/// Runs `oasis merge`.
///
/// # Errors
/// Folders that are no shards of one sweep; shards that are missing, come twice or are not complete. Nothing is written then.
pub fn run(args: &Args, _app: &App) -> Result<ExitCode> {
    let mut pieces: Vec<Piece> = args.shards.iter().map(|p| Piece::open(p)).collect::<Result<_>>()?;
    pieces.sort_by_key(|p| p.shard.number);
    check(&pieces)?;
    output::probe(&args.output)?;
    let plan = SweepPlan { shard: None, ..pieces[0].plan.clone() };
    let mut joined: Vec<Option<Joined>> = Vec::new();
    for (i, run) in plan.runs.iter().enumerate() {
        joined.push(Joined::read(&pieces, i, run).with_context(|| format!("run `{}`", run.name))?);
    }
    let existing = if args.overwrite { Existing::Overwrite } else { Existing::Refuse };
    let dir = open(&args.output, &plan, existing)?;
    let mut results = SweepResults::new(&plan);
    for (i, joined) in joined.into_iter().enumerate() {
        match joined {
            Some(joined) => results.runs[i].results = Some(joined.write(&dir.path, existing)?),
            None => results.runs[i].error = pieces.iter().find_map(|p| p.results.runs[i].error.clone()),
        }
    }
    results.count(&plan);
    dir.write_json(output::RESULTS, &results)?;
    finish(&dir.path, &plan, &results)?;
    Ok(report::sweep_verdict(&plan, &results))
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_slice(&text)
        .with_context(|| format!("{}: is not what this version of Oasis writes", path.display()))
}

impl Piece {
    fn open(path: &Path) -> Result<Self> {
        if !path.join(SWEEP).is_file() {
            bail!(
                "{}: no {SWEEP}; give the folders of shards (FOLDER/shard-i-of-n/FINGERPRINT)",
                path.display()
            );
        }
        let plan: SweepPlan = json(&path.join(SWEEP))?;
        if plan.schema_version != SCHEMA_VERSION {
            let (theirs, path) = (plan.schema_version, path.display());
            bail!(
                "{path}: schema_version is {theirs}, this program reads {SCHEMA_VERSION}; use the Oasis that wrote it"
            );
        }
        let Some(shard) = plan.shard else {
            bail!("{}: it is a whole sweep, no shard; there is nothing to join", path.display());
        };
        let results = json(&path.join(output::RESULTS))?;
        Ok(Self { path: path.to_owned(), shard, plan, results })
    }

    /// Whether run `run` has cells in this shard.
    fn takes_part(&self, run: &SweepRunPlan) -> bool {
        run.cells.iter().any(|c| self.shard.has(c.index))
    }
}

/// Refuses what is not every shard of one sweep, once and complete. `pieces` are in the order of their numbers.
fn check(pieces: &[Piece]) -> Result<()> {
    let first = &pieces[0];
    for other in &pieces[1..] {
        let (a, b) = (first.path.display(), other.path.display());
        if other.plan.fingerprint != first.plan.fingerprint {
            let (fa, fb) = (&first.plan.fingerprint, &other.plan.fingerprint);
            bail!(
                "{a} is of sweep {fa}, {b} of sweep {fb}: configuration, code or backend differ; join shards of one sweep"
            );
        }
        if other.shard.of != first.shard.of {
            bail!("{a} is shard {}, {b} is shard {}: join shards of one division", first.shard, other.shard);
        }
        let whole = |p: &Piece| SweepPlan { shard: None, ..p.plan.clone() };
        if whole(other) != whole(first) {
            bail!(
                "{a} and {b} have other runs: weights, prompts or data differ, or a model could not be opened in one of them \
                 ({SWEEP} says which)"
            );
        }
    }
    if let Some(twice) = pieces.windows(2).find(|w| w[0].shard == w[1].shard) {
        bail!(
            "shard {} comes twice: {} and {}",
            twice[0].shard,
            twice[0].path.display(),
            twice[1].path.display()
        );
    }
    let of = first.shard.of;
    let missing: Vec<String> = (1..=of)
        .filter(|number| pieces.iter().all(|p| p.shard.number != *number))
        .map(|number| Shard { number, of }.to_string())
        .collect();
    if !missing.is_empty() {
        bail!(
            "shards {} of sweep {} are missing; give the folders of all {of}",
            missing.join(", "),
            first.plan.fingerprint
        );
    }
    for p in pieces {
        let (recorded, own) = (p.results.n_done + p.results.n_failed, p.plan.all_own());
        if recorded != own {
            let path = p.path.display();
            bail!(
                "shard {} is not complete: {recorded} of {own} decodes in {path}; go on with it by --resume",
                p.shard
            );
        }
    }
    Ok(())
}

/// One run with the records of all shards.
struct Joined {
    frame: Frame,
    records: Records,
    machine: Machine,
    /// Files that are the same in all shards, or of one of them: name and content.
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Joined {
    /// Run `i` of all shards; none if it could not be set up in any.
    fn read(pieces: &[Piece], i: usize, run: &SweepRunPlan) -> Result<Option<Self>> {
        let (mut records, mut seen) = (Records::default(), HashSet::new());
        let mut joined: Option<(Results, PathBuf)> = None;
        let mut machine = Machine::default();
        let mut failed = None;
        for piece in pieces.iter().filter(|p| p.takes_part(run)) {
            if piece.results.runs[i].results.is_none() {
                failed = Some(piece);
                continue;
            }
            let path = piece.path.join(run.fingerprint.as_deref().unwrap_or_default());
            let own: Results = json(&path.join(output::RESULTS))?;
            let more = RunDir::reader(path.clone()).read()?;
            for s in &more.samples {
                if !seen.insert((s.sample.clone(), s.cell.clone(), s.repeat)) {
                    let (sample, cell, path) = (&s.sample, &s.cell, path.display());
                    bail!("{sample} in cell `{cell}` is there twice; one of them is in {path}");
                }
            }
            records.samples.extend(more.samples);
            records.layers.extend(more.layers);
            records.timings.extend(more.timings);
            let before = std::mem::take(&mut machine);
            machine = Machine {
                wall_s: before.wall_s + own.machine.wall_s,
                peak_bytes: before.peak_bytes.max(own.machine.peak_bytes),
                rows: Vec::new(),
                memory: Vec::new(),
                ..own.machine
            };
            joined.get_or_insert((own, path));
        }
        let Some((results, path)) = joined else { return Ok(None) };
        if let Some(piece) = failed {
            let error = piece.results.runs[i].error.as_deref().unwrap_or("it has not begun");
            bail!("shard {} could not set it up: {error}; go on with that shard by --resume", piece.shard);
        }
        let frame = Frame::of(&results, &pieces[0].plan.notes);
        results::sort(&mut records, &frame);
        let file = |name| Ok::<_, anyhow::Error>((name, fs::read(path.join(name)).context(name)?));
        let files = vec![file(output::FINGERPRINT)?, file(output::CONFIG)?, file(output::ENVIRONMENT)?];
        Ok(Some(Self { frame, records, machine, files }))
    }

    /// Writes the run's folder below the sweep's.
    fn write(self, sweep: &Path, existing: Existing) -> Result<Results> {
        let dir = RunDir::open(sweep, &self.frame.fingerprint, existing, &self.frame.name)?;
        for (name, content) in &self.files {
            dir.write(name, content)?;
        }
        dir.rewrite(&self.records)?;
        let results = results::summarise(&self.frame, &self.records, self.machine);
        dir.write_json(output::RESULTS, &results)?;
        report::Records::open(&dir.path)?.write(&dir.path)?;
        Ok(results)
    }
}
