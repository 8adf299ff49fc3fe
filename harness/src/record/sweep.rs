//! The records of a sweep: its plan (`sweep.json`) and its results (`results.json` beside it).

use super::{Results, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Dotted keys with the values that an axis gives them.
pub type KeyValues = BTreeMap<String, toml::Value>;

/// `sweep.json`: what a sweep runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// [`super::SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Name of the sweep's folder; the same for all its shards.
    pub fingerprint: String,
    /// `run.name`.
    pub name: String,
    /// `i/n` of a shard; none for the whole sweep.
    pub shard: Option<String>,
    /// The axes, the slowest first.
    pub axes: Vec<SweepAxis>,
    /// One run for each combination of values of keys that are not of cells.
    pub runs: Vec<SweepRunPlan>,
    /// What looked like a slip in the configuration.
    pub notes: Vec<String>,
}

/// Keys that advance together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepAxis {
    /// Dotted keys.
    pub keys: Vec<String>,
    /// Values at each place, one a key.
    pub values: Vec<Vec<toml::Value>>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRunPlan {
    /// Its name: the sweep's, with the values where there are several runs.
    pub name: String,
    /// Values of keys that are not of cells.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepCell {
    /// Number in the sweep, from 0: shard i of n has those of which n leaves the rest i − 1.
    pub index: usize,
    /// Label in the run.
    pub label: String,
    /// Hash of all that decides its results: the same in every sweep that measures the same.
    pub fingerprint: Option<String>,
    /// Keys of decoding that the sweep sets in it.
    pub values: KeyValues,
}

/// `results.json` of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRun {
    /// [`SweepRunPlan::name`].
    pub name: String,
    /// [`SweepRunPlan::values`].
    pub values: KeyValues,
    /// Why it could not be set up.
    pub error: Option<String>,
    /// Its `results.json`; none before it begins and where it can't be set up.
    pub results: Option<Results>,
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
                (None, Some(_)) => failed += planned.n_planned,
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
