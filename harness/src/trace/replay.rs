//! `oasis trace replay`: combinations of policies over a trace.

use super::folder::Folder;
use super::lists::{self, Combination};
use super::render;
use super::shard::Shard;
use super::tally::{Figures, Record, Row};
use super::work;
use crate::app::App;
use crate::files::write_whole;
use crate::plan::PlannedCell;
use crate::report::{plot, say};
use crate::run::progress::Progress;
use crate::run::{identity, policies};
use anyhow::{Context, Result, bail};
use oasis_core::decode::{Policies, Replay};
use oasis_core::engine::Prefix;
use oasis_core::registry::find;
use oasis_core::tape::Tape;
use oasis_kernels::Cpu;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Evictors
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
    /// Leave out the comparison with the truth (agreement, recall, mass): faster
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

/// A sequence in memory, with its prompt cut into blocks of the sizes that were asked for.
struct Loaded {
    shard: Shard,
    tape: Arc<Tape>,
    prefixes: BTreeMap<usize, Arc<Prefix<Cpu>>>,
}

/// Sequences that some thread needs now.
struct Cache<'a> {
    folder: &'a Folder,
    /// Each with the combinations that are still to come.
    slots: Vec<Mutex<Option<Loaded>>>,
}

impl<'a> Cache<'a> {
    fn new(folder: &'a Folder) -> Self {
        Self { folder, slots: folder.header.shards.iter().map(|_| Mutex::new(None)).collect() }
    }

    /// Tape, prefix and length of sequence `i`, read if nobody has it.
    fn get(&self, i: usize, block: usize) -> Result<(Arc<Tape>, Arc<Prefix<Cpu>>, usize)> {
        let mut slot = self.slots[i].lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let mut shard = self.folder.shard(i)?;
            let hollow = Tape::new(shard.tape.geometry.clone(), Vec::new(), 0, 0, 0);
            let tape = Arc::new(std::mem::replace(&mut shard.tape, hollow));
            *slot = Some(Loaded { shard, tape, prefixes: BTreeMap::new() });
        }
        let loaded = slot.as_mut().context("a sequence that was just read")?;
        if !loaded.prefixes.contains_key(&block) {
            loaded.prefixes.insert(block, Arc::new(loaded.tape.prefix(&Cpu::new(1), block)?));
        }
        Ok((loaded.tape.clone(), loaded.prefixes[&block].clone(), loaded.shard.length))
    }

    /// Nobody will ask for sequence `i` again.
    fn forget(&self, i: usize) {
        *self.slots[i].lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Combinations over the sequences of a trace.
struct Playback<'a> {
    folder: &'a Folder,
    app: &'a App,
    audit: bool,
    loaded: Cache<'a>,
}

/// What one combination made of one sequence: figures with K and C, or why not.
type Played = Result<(Figures, (usize, usize)), String>;

impl Playback<'_> {
    fn rows(&self, combinations: &[Combination], jobs: usize) -> Result<Vec<Row>> {
        let planned: Vec<(usize, &PlannedCell)> = combinations
            .iter()
            .enumerate()
            .filter_map(|(i, c)| c.cell.as_ref().ok().map(|cell| (i, cell)))
            .collect();
        let sequences = self.folder.header.shards.len();
        let progress = Progress::new((planned.len() * sequences) as u64, 0);
        let left: Vec<Mutex<usize>> = (0..sequences).map(|_| Mutex::new(planned.len())).collect();
        // Sequence by sequence, so that few of them are in memory at once.
        let played = work::each(
            jobs,
            planned.len() * sequences,
            || Ok(()),
            |(), unit| {
                let (sequence, (i, cell)) = (unit / planned.len(), planned[unit % planned.len()]);
                let played = self.guarded(cell, sequence);
                let mut left = left[sequence].lock().unwrap_or_else(PoisonError::into_inner);
                *left -= 1;
                if *left == 0 {
                    self.loaded.forget(sequence);
                }
                progress.advance(1, &cell.label);
                Ok((i, played))
            },
        )?;
        progress.finish();
        let mut rows: Vec<Row> = combinations.iter().map(row).collect();
        for (i, played) in played {
            gather(&mut rows[i], played);
        }
        rows.iter_mut().filter_map(|r| r.figures.as_mut()).for_each(Figures::finish);
        Ok(rows)
    }

    /// A policy that panics fails its own row only.
    fn guarded(&self, cell: &PlannedCell, sequence: usize) -> Played {
        match catch_unwind(AssertUnwindSafe(|| self.play(cell, sequence))) {
            Ok(done) => done.map_err(|e| format!("{e:#}")),
            Err(_) => Err("a policy panicked; the message is above".to_owned()),
        }
    }

    fn play(&self, cell: &PlannedCell, sequence: usize) -> Result<(Figures, (usize, usize))> {
        let (tape, prefix, length) = self.loaded.get(sequence, cell.block)?;
        let begin = Instant::now();
        let settings = oasis_core::settings::Settings { audit: self.audit, ..cell.settings(length, 0) };
        let policies = policies_of(self.app, cell)?;
        let mut replay = Replay::new(Cpu::new(1), tape.clone(), prefix, &settings, &policies, false)?;
        let mut figures =
            Figures { sequences: 1, decisions: tape.decisions(), masses: true, ..Figures::default() };
        while let Some(report) = replay.step()? {
            figures.add(report);
        }
        figures.seconds = begin.elapsed().as_secs_f64();
        Ok((figures, replay.k_and_cap()))
    }
}

/// The policies of a cell; a replay takes drafts from its tape.
fn policies_of(app: &App, cell: &PlannedCell) -> Result<Policies<Cpu>> {
    let no_drafts = || oasis_core::Error::Invariant("a replay asked a draft source".into());
    policies::one(app, cell, Arc::new(move |_| Err(no_drafts())))
}

fn row(combination: &Combination) -> Row {
    let typed = |axis: &str| {
        let value = combination.choice.values.iter().find(|(a, _)| *a == axis);
        value.map_or_else(|| "as recorded".to_owned(), |(_, v)| v.clone())
    };
    let Ok(cell) = &combination.cell else {
        return Row {
            predictor: typed("predictor"),
            summary: typed("summary"),
            evictor: typed("evictor"),
            budget: typed("budget"),
            cap: typed("cap"),
            error: combination.cell.as_ref().err().cloned(),
            ..Row::default()
        };
    };
    let policy = |kind: &str| cell.policy(kind).map(ToString::to_string).unwrap_or_default();
    Row {
        mode: cell.mode.name().to_owned(),
        predictor: policy("predictor"),
        summary: policy("summary"),
        evictor: policy("evictor"),
        budget: cell.budget.map(|b| b.to_string()).unwrap_or_default(),
        cap: cell.cap.map_or_else(|| "0".to_owned(), |c| c.to_string()),
        ..Row::default()
    }
}

/// Adds a sequence to its row; a row with a failure has no figures.
fn gather(row: &mut Row, played: Played) {
    match played {
        Ok((figures, (k, c))) if row.error.is_none() => {
            row.figures.get_or_insert_default().merge(&figures);
            (row.k, row.c) = (row.k.or(Some(k)), row.c.or(Some(c)));
        }
        Ok(_) => {}
        Err(error) => {
            row.figures = None;
            row.error.get_or_insert(error);
        }
    }
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
            let (tape, prefix, length) = loaded.get(i, cell.block)?;
            if tape.mass.first.is_empty() {
                bail!(
                    "{}: no masses were recorded, so there is nothing to compare with",
                    folder.header.shards[i].file
                );
            }
            let (settings, policies) = (cell.settings(length, 0), policies_of(app, &cell)?);
            let mut replay = Replay::new(Cpu::new(1), tape.clone(), prefix, &settings, &policies, true)?;
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
