//! A comparison as data: what `--format json` writes, and what the other formats render.

use super::cells::CellPair;
use super::side::Head;
use serde::Serialize;

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// Two runs compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The run that is measured against.
    pub a: Head,
    /// The run in question; differences are B − A.
    pub b: Head,
    /// Only the samples that both have were compared.
    pub common: bool,
    /// Confidence of the intervals; 1 − level is the error that a verdict may have.
    pub level: f64,
    /// Seed of resamples.
    pub seed: u64,
    /// What differs between the runs beside their cells, and what was left out.
    pub notes: Vec<String>,
    /// Cells that were compared.
    pub cells: Vec<CellPair>,
    /// Cells of A without a partner.
    pub only_a: Vec<String>,
    /// Cells of B without a partner.
    pub only_b: Vec<String>,
    /// Scores or distances from dense decoding, tested pair by pair.
    pub rows: Vec<Row>,
    /// Whether the runs did the same, sample by sample.
    pub decisions: Vec<Decisions>,
    /// Values of all metrics.
    pub changes: Vec<Change>,
    /// Rules of `--fail-on`.
    pub rules: Vec<RuleRecord>,
}

impl Comparison {
    /// No rule fired and neither run violates an invariant.
    pub fn passed(&self) -> bool {
        let violated = !self.a.violated.is_empty() || !self.b.violated.is_empty();
        !violated && self.rules.iter().all(|r| r.fired.is_empty())
    }
}

/// What a test says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No pair differs.
    Equal,
    /// The difference is within what chance gives.
    NotSignificant,
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// Dense decoding does not solve the task: a difference says nothing.
    AtChance,
    /// One document: there is nothing to test.
    TooFew,
}

/// A cell's paired test, on one task or on all of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// [`CellPair::name`].
    pub cell: String,
    /// Task; none: all tasks of the measure together, every sample weighed alike.
    pub task: Option<String>,
    /// `accuracy`, or `kl` for teacher-forced tasks.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// It stands for its cell in Holm's correction over the cells; the others are corrected among themselves.
    pub primary: bool,
    /// Pairs.
    pub n: usize,
    /// Documents; samples of one are no independent evidence.
    pub documents: usize,
    /// Mean in A.
    pub a: f64,
    /// Mean in B.
    pub b: f64,
    /// B − A.
    pub difference: f64,
    /// Standard error of the difference, paired and clustered by document; none for one document.
    pub stderr: Option<f64>,
    /// Limits of the confidence interval of the difference.
    pub interval: Option<(f64, f64)>,
    /// Pairs in which B is higher.
    pub higher: usize,
    /// Pairs in which B is lower.
    pub lower: usize,
    /// Test and interval.
    pub method: String,
    /// Two-sided p.
    pub p: f64,
    /// The same after Holm's correction.
    pub p_holm: f64,
    /// What it means.
    pub verdict: Verdict,
}

/// Whether a cell did the same in both runs: numbers of samples (and repeats) that are equal to the bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decisions {
    /// [`CellPair::name`].
    pub cell: String,
    /// Pairs.
    pub pairs: usize,
    /// Pairs with the same tokens.
    pub tokens: usize,
    /// Pairs with the same counters (wanted, hits, fetched, dropped, evicted, ...).
    pub counters: usize,
    /// Pairs that moved the same bytes in every step.
    pub bytes: usize,
    /// Pairs that selected, fetched and evicted the same blocks; none where a run recorded no hashes.
    pub decisions: Option<usize>,
    /// Bytes from host to device in A.
    pub bytes_a: u64,
    /// In B.
    pub bytes_b: u64,
    /// The first sample that differs in any of them, and in which.
    pub first: Option<String>,
}

/// Values of a metric of one cell on one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// [`CellPair::name`].
    pub cell: String,
    /// Task; none: all.
    pub task: Option<String>,
    /// Metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Value in A; none: it has none.
    pub a: Option<f64>,
    /// Value in B.
    pub b: Option<f64>,
    /// Direction.
    pub higher_is_better: Option<bool>,
}

/// A rule and where it fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleRecord {
    /// As it was written.
    pub rule: String,
    /// Empty: it held everywhere.
    pub fired: Vec<Fired>,
}

/// Where a rule fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fired {
    /// [`CellPair::name`].
    pub cell: String,
    /// The figures.
    pub what: String,
}
