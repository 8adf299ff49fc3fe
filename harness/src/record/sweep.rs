//! The records of a sweep: its plan (`sweep.json`) and its results (`results.json` beside it).

use super::{Results, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Dotted keys with the values that an axis gives them.
pub type KeyValues = BTreeMap<String, toml::Value>;

/// `sweep.json`: what a sweep runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPlan {
    /// [`super::SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Name of the sweep's folder; the same for all its shards.
    pub fingerprint: String,
    /// `run.name`.
    pub name: String,
    /// Which shard it is; none for the whole sweep.
    pub shard: Option<Shard>,
    /// The axes, the slowest first.
    pub axes: Vec<SweepAxis>,
    /// One run for each combination of values of keys that are not of cells.
    pub runs: Vec<SweepRunPlan>,
    /// What looked like a slip in the configuration.
    pub notes: Vec<String>,
}

/// One of the shards of a sweep, written `i/n`, i from 1: it has the cells whose number leaves i − 1 when divided by n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    /// i.
    pub number: usize,
    /// n.
    pub of: usize,
}

impl Shard {
    /// Whether it has cell `index` of the sweep.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

impl TryFrom<String> for Shard {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err(format!("`{text}` is no shard: give i/n with i from 1 to n, as in 2/8")),
        }
    }
}

/// Keys that advance together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepAxis {
    /// Dotted keys.
    pub keys: Vec<String>,
    /// Values at each place, one a key.
    #[schemars(with = "Vec<Vec<serde_json::Value>>")]
    pub values: Vec<Vec<toml::Value>>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRunPlan {
    /// Its name: the sweep's, with the values where there are several runs.
    pub name: String,
    /// Values of keys that are not of cells.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub values: KeyValues,
    /// Its folder below the sweep's; none where it can't be set up.
    pub fingerprint: Option<String>,
    /// Why it can't be set up.
    pub error: Option<String>,
    /// Decodes of it.
    pub n_planned: u64,
    /// Its cells, dense first.
    pub cells: Vec<SweepCell>,
}

/// One cell of a run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepCell {
    /// Number in the sweep, from 0: shard i of n has those of which n leaves the rest i − 1.
    pub index: usize,
    /// Label in the run.
    pub label: String,
    /// Hash of all that decides its results: the same in every sweep that measures the same.
    pub fingerprint: Option<String>,
    /// Keys of decoding that the sweep sets in it.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub values: KeyValues,
}

/// `results.json` of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepResults {
    /// [`super::SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// [`SweepPlan::fingerprint`].
    pub fingerprint: String,
    /// `run.name`.
    pub name: String,
    /// How far it came, all runs together. A shard alone is never complete.
    pub status: Status,
    /// (sample, cell, repeat) triples of all runs.
    pub n_planned: u64,
    /// Those that were decoded.
    pub n_done: u64,
    /// Those that failed, those of runs that can't be set up among them.
    pub n_failed: u64,
    /// The runs, in the order of the plan.
    pub runs: Vec<SweepRun>,
}

/// What a run of a sweep came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRun {
    /// [`SweepRunPlan::name`].
    pub name: String,
    /// [`SweepRunPlan::values`].
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub values: KeyValues,
    /// Why it could not be set up.
    pub error: Option<String>,
    /// Its `results.json`; none before it begins and where it can't be set up.
    pub results: Option<Results>,
}

impl SweepPlan {
    /// Whether cell `index` is decoded here.
    pub fn has(&self, index: usize) -> bool {
        self.shard.is_none_or(|shard| shard.has(index))
    }

    /// Decodes of a run that take place here: all, or those of the shard's cells.
    pub fn own(&self, run: &SweepRunPlan) -> u64 {
        let own = run.cells.iter().filter(|c| self.has(c.index)).count();
        run.n_planned / run.cells.len().max(1) as u64 * own as u64
    }

    /// The same over all runs.
    pub fn all_own(&self) -> u64 {
        self.runs.iter().map(|run| self.own(run)).sum()
    }
}

impl SweepResults {
    /// Of a sweep of which nothing is done.
    pub fn new(plan: &SweepPlan) -> Self {
        let run = |r: &SweepRunPlan| SweepRun {
            name: r.name.clone(),
            values: r.values.clone(),
            error: r.error.clone(),
            results: None,
        };
        let mut new = Self {
            schema_version: super::SCHEMA_VERSION,
            fingerprint: plan.fingerprint.clone(),
            name: plan.name.clone(),
            status: Status::Partial,
            n_planned: plan.runs.iter().map(|r| r.n_planned).sum(),
            n_done: 0,
            n_failed: 0,
            runs: plan.runs.iter().map(run).collect(),
        };
        new.count(plan);
        new
    }

    /// Counts its runs again.
    pub fn count(&mut self, plan: &SweepPlan) {
        let (mut done, mut failed) = (0, 0);
        for (run, planned) in self.runs.iter().zip(&plan.runs) {
            match (&run.results, &run.error) {
                (Some(results), _) => {
                    done += results.n_done;
                    failed += results.n_failed;
                }
                (None, Some(_)) => failed += plan.own(planned),
                (None, None) => {}
            }
        }
        (self.n_done, self.n_failed) = (done, failed);
        self.status = match (done + failed < self.n_planned, failed) {
            (true, _) => Status::Partial,
            (false, 0) => Status::Complete,
            (false, _) => Status::Failed,
        };
    }
}
