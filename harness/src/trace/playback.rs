//! Combinations over the sequences of a trace, those that rank alike together.

use super::folder::Folder;
use super::lists::Combination;
use super::shard::Shard;
use super::tally::{Figures, Row};
use super::work;
use crate::app::App;
use crate::plan::PlannedCell;
use crate::run::policies;
use crate::run::progress::Progress;
use anyhow::{Context, Result};
use oasis_core::decode::{Policies, Rankings, Replay, ReplayOptions};
use oasis_core::engine::Prefix;
use oasis_core::settings::Settings;
use oasis_core::tape::Tape;
use oasis_kernels::Cpu;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A sequence in memory, with its prompt cut into blocks of the sizes that were asked for.
struct Loaded {
    shard: Shard,
    tape: Arc<Tape>,
    prefixes: BTreeMap<usize, Arc<Prefix<Cpu>>>,
    truths: Truths,
}

/// What the true queries want of a sequence, by what it hangs on: found by whoever asks first.
type Truths = Arc<Mutex<BTreeMap<String, Once<Rankings>>>>;

/// Something that is found once, by whoever asks first; others wait.
type Once<T> = Arc<OnceLock<Result<Arc<T>, String>>>;

/// Sequences that some thread needs now.
pub struct Cache<'a> {
    folder: &'a Folder,
    /// Each with the combinations that are still to come.
    slots: Vec<Mutex<Option<Loaded>>>,
}

impl<'a> Cache<'a> {
    /// Nothing is read yet.
    pub fn new(folder: &'a Folder) -> Self {
        Self { folder, slots: folder.header.shards.iter().map(|_| Mutex::new(None)).collect() }
    }

    /// Sequence `i` in blocks of this size, read if nobody has it.
    ///
    /// # Errors
    /// Those of [`Folder::shard`].
    pub fn get(&self, i: usize, block: usize) -> Result<Sequence> {
        let mut slot = self.slots[i].lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let mut shard = self.folder.shard(i)?;
            let hollow = Tape::new(shard.tape.geometry.clone(), Vec::new(), 0, 0, 0);
            let tape = Arc::new(std::mem::replace(&mut shard.tape, hollow));
            *slot = Some(Loaded { shard, tape, prefixes: BTreeMap::new(), truths: Truths::default() });
        }
        let loaded = slot.as_mut().context("a sequence that was just read")?;
        if !loaded.prefixes.contains_key(&block) {
            loaded.prefixes.insert(block, Arc::new(loaded.tape.prefix(&Cpu::new(1), block)?));
        }
        Ok(Sequence {
            tape: loaded.tape.clone(),
            prefix: loaded.prefixes[&block].clone(),
            length: loaded.shard.length,
            truths: loaded.truths.clone(),
        })
    }

    /// Nobody will ask for sequence `i` again.
    pub fn forget(&self, i: usize) {
        *self.slots[i].lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Combinations over the sequences of a trace.
pub struct Playback<'a> {
    /// The trace.
    pub folder: &'a Folder,
    /// What can be named.
    pub app: &'a App,
    /// Compare with the truth.
    pub audit: bool,
    /// Sequences in memory.
    pub loaded: Cache<'a>,
}

/// What one combination made of one sequence: figures with K and C, or why not.
type Played = Result<(Figures, (usize, usize)), String>;

/// A cell with the number of its combination.
type Numbered<'c> = (usize, &'c PlannedCell);

/// What a cell's ranking hangs on: all of its values but those that only what is resident hangs on, and but `without`.
fn key(cell: &PlannedCell, without: &[&str]) -> String {
    let free = ["evictor", "budget", "cap", "attend"];
    let ranks = cell.values.iter().filter(|(key, _)| !free.contains(key) && !without.contains(key));
    ranks.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// Cells that rank alike: they differ in evictor, budget, cap and in what is attended.
fn groups(combinations: &[Combination]) -> Vec<Vec<Numbered<'_>>> {
    let mut groups: BTreeMap<String, Vec<Numbered<'_>>> = BTreeMap::new();
    for (i, combination) in combinations.iter().enumerate() {
        let Ok(cell) = &combination.cell else { continue };
        groups.entry(key(cell, &[])).or_default().push((i, cell));
    }
    groups.into_values().collect()
}

/// A sequence, ready to be replayed.
pub struct Sequence {
    /// What was recorded.
    pub tape: Arc<Tape>,
    /// Its prompt in blocks.
    pub prefix: Arc<Prefix<Cpu>>,
    /// Tokens of which budgets may be a share.
    pub length: usize,
    truths: Truths,
}

impl Sequence {
    /// What the true queries want, `depth` blocks deep, under the summary and blocks that `key` names.
    fn truth(
        &self,
        key: &str,
        depth: usize,
        find: impl FnOnce() -> Result<Arc<Rankings>>,
    ) -> Result<Arc<Rankings>> {
        let mut truths = self.truths.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = truths.entry(format!("{key} depth={depth}")).or_default().clone();
        drop(truths);
        cell.get_or_init(|| find().map_err(|e| format!("{e:#}"))).clone().map_err(anyhow::Error::msg)
    }
}

/// What replays of a group share.
struct Known {
    /// What they want, if that is found once.
    rankings: Option<Arc<Rankings>>,
    /// What the true queries want, unless an audit finds it.
    truth: Option<Arc<Rankings>>,
    /// Seconds that finding it took.
    seconds: f64,
}

/// A group over one sequence: what its cells share, found by the first and dropped after the last.
struct Unit {
    known: Mutex<Option<Once<Known>>>,
    left: AtomicUsize,
}

impl Unit {
    fn new(cells: usize) -> Self {
        Self { known: Mutex::new(Some(Arc::default())), left: AtomicUsize::new(cells) }
    }

    /// What is shared; whoever asks while another finds it waits.
    fn known(&self, find: impl FnOnce() -> Result<Known, String>) -> Result<Arc<Known>, String> {
        let cell = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        cell.get_or_init(|| find().map(Arc::new)).clone()
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn is_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// Group and place of every cell: one of each group before the next of any, so that threads begin with rankings of
/// different groups.
fn order(cells: &[usize]) -> Vec<(usize, usize)> {
    let round = |place: usize| {
        let has = cells.iter().enumerate().filter(move |(_, n)| place < **n);
        has.map(move |(group, _)| (group, place))
    };
    (0..cells.iter().copied().max().unwrap_or(0)).flat_map(round).collect()
}

impl Playback<'_> {
    /// A row a combination, in their order; those that failed say why.
    ///
    /// # Errors
    /// None of a combination's: threads that cannot be started.
    pub fn rows(&self, combinations: &[Combination], jobs: usize) -> Result<Vec<Row>> {
        let groups = groups(combinations);
        let sequences = self.folder.header.shards.len();
        let order = order(&groups.iter().map(Vec::len).collect::<Vec<_>>());
        let progress = Progress::new((order.len() * sequences) as u64, 0);
        let units = (0..sequences * groups.len()).map(|u| Unit::new(groups[u % groups.len()].len()));
        let units: Vec<Unit> = units.collect();
        // Sequence by sequence, so that few of them are in memory at once.
        let one = |(): &mut (), n: usize| {
            let (sequence, (group, cell)) = (n / order.len(), order[n % order.len()]);
            let of_sequence = &units[sequence * groups.len()..][..groups.len()];
            let (i, cell) = groups[group][cell];
            let played = self.cell(&groups[group], &of_sequence[group], sequence, cell);
            of_sequence[group].one_less();
            if of_sequence.iter().all(Unit::is_done) {
                self.loaded.forget(sequence);
            }
            progress.advance(1, &cell.label);
            Ok((i, played))
        };
        let played = work::each(jobs, order.len() * sequences, || Ok(()), one)?;
        progress.finish();
        let mut rows: Vec<Row> = combinations.iter().map(row).collect();
        for (i, played) in played {
            gather(&mut rows[i], played);
        }
        rows.iter_mut().filter_map(|r| r.figures.as_mut()).for_each(Figures::finish);
        Ok(rows)
    }

    /// One cell of a group over one sequence.
    fn cell(&self, group: &[Numbered<'_>], unit: &Unit, sequence: usize, cell: &PlannedCell) -> Played {
        let sequence = guarded(|| self.loaded.get(sequence, cell.block))?;
        let known = unit.known(|| guarded(|| self.known(group, &sequence)))?;
        guarded(|| self.play(cell, &sequence, &known, known.seconds / group.len() as f64))
    }

    fn settings(&self, cell: &PlannedCell, length: usize) -> Settings {
        Settings { audit: self.audit, ..cell.settings(length, 0) }
    }

    /// What a group shares. Its wants are found once for more than one cell, and for evictors that need to know the next
    /// use of a block.
    fn known(&self, group: &[Numbered<'_>], sequence: &Sequence) -> Result<Known> {
        let begin = Instant::now();
        let fits = |c: &&Numbered<'_>| self.settings(c.1, sequence.length).check().is_ok();
        let good: Vec<&Numbered<'_>> = group.iter().filter(fits).collect();
        let Some((_, cell)) = good.first() else {
            return Ok(Known { rankings: None, truth: None, seconds: 0.0 });
        };
        let mut foresight = false;
        for (_, cell) in &good {
            foresight |= (policies_of(self.app, cell)?.evictor)(0)?.needs_next_use();
        }
        let depth = good.iter().map(|(_, c)| self.settings(c, sequence.length).k()).max().unwrap_or(0);
        let (settings, policies) = (self.settings(cell, sequence.length), policies_of(self.app, cell)?);
        let Sequence { tape, prefix, .. } = sequence;
        let rankings = if good.len() > 1 || foresight {
            let found = Replay::rank(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &policies, depth)?;
            Some(Arc::new(found))
        } else {
            None
        };
        let find = || {
            let found =
                Replay::rank_truly(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &policies, depth)?;
            Ok(Arc::new(found))
        };
        let truth = if self.audit {
            None
        } else {
            Some(sequence.truth(&key(cell, &["predictor", "mode"]), depth, find)?)
        };
        Ok(Known { rankings, truth, seconds: begin.elapsed().as_secs_f64() })
    }

    fn play(
        &self,
        cell: &PlannedCell,
        sequence: &Sequence,
        known: &Known,
        shared: f64,
    ) -> Result<(Figures, (usize, usize))> {
        let begin = Instant::now();
        let settings = self.settings(cell, sequence.length);
        let policies = policies_of(self.app, cell)?;
        let Sequence { tape, prefix, .. } = sequence;
        // A pool that begins with room for all candidates asks its predictor only once there is a choice, and a predictor
        // with a state of its own may notice: it is then asked as a decode would.
        let candidates =
            (tape.prompt.len() / cell.block).saturating_sub(cell.sink_blocks + cell.window_blocks);
        let foresight = (policies.evictor)(0)?.needs_next_use();
        let rankings = known.rankings.clone().filter(|_| candidates > settings.k() || foresight);
        let options = ReplayOptions { record: false, rankings, truth: known.truth.clone() };
        let mut replay =
            Replay::new(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &policies, options)?;
        let masses = replay.has_masses();
        let mut figures = Figures { sequences: 1, decisions: tape.decisions(), masses, ..Figures::default() };
        while let Some(report) = replay.step()? {
            figures.add(report);
        }
        figures.seconds = begin.elapsed().as_secs_f64() + shared;
        Ok((figures, replay.k_and_cap()))
    }
}

/// A policy that panics fails its own rows only.
fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(done) => done.map_err(|e| format!("{e:#}")),
        Err(_) => Err("a policy panicked; the message is above".to_owned()),
    }
}

/// The policies of a cell; a replay takes drafts from its tape.
///
/// # Errors
/// An unknown name, a key that its policy does not know.
pub fn policies_of(app: &App, cell: &PlannedCell) -> Result<Policies<Cpu>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_begin_with_different_groups() {
        assert_eq!(order(&[2, 1, 3]), [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (2, 2)]);
        assert_eq!(order(&[]), []);
    }

    #[test]
    fn what_a_group_shares_is_found_once_and_dropped_after_the_last() {
        let unit = Unit::new(2);
        let (found, waste) = (AtomicUsize::new(0), || Err("nobody asks twice".to_owned()));
        let find = || {
            found.fetch_add(1, Ordering::SeqCst);
            Ok(Known { rankings: None, truth: None, seconds: 1.5 })
        };
        assert_eq!(unit.known(find).map(|k| k.seconds), Ok(1.5));
        assert_eq!(unit.known(waste).map(|k| k.seconds), Ok(1.5));
        unit.one_less();
        assert!(!unit.is_done() && unit.known.lock().unwrap().is_some());
        unit.one_less();
        assert!(unit.is_done() && unit.known.lock().unwrap().is_none() && found.load(Ordering::SeqCst) == 1);
    }
}
