//! One of the two runs that are compared.

use crate::record::{CellRecord, Outcome, Results, SampleRecord, Status, Verdict};
use crate::report::Records;
use crate::run::recorded_samples;
use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// (sample, repeat).
pub type Unit<'a> = (&'a str, u32);

/// A run with its records.
#[derive(Debug)]
pub struct Side {
    /// What a comparison says of it.
    pub head: Head,
    /// `results.json`.
    pub results: Results,
    /// Tables `[[task]]` of its configuration, in the order of [`Results::tasks`]; none if it has no `config.toml`.
    pub tasks: Option<Vec<toml::Table>>,
    samples: Vec<SampleRecord>,
}

/// What a comparison says of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Head {
    /// Its folder, as it was given.
    pub path: String,
    /// `run.name`.
    pub name: String,
    /// Its fingerprint.
    pub fingerprint: String,
    /// How far it came.
    pub status: Status,
    /// Commit of the code; none without a repository.
    pub commit: Option<String>,
    /// SHA-256 over the sources; none without `env.json`.
    pub source_sha256: Option<String>,
    /// Backend.
    pub backend: Option<String>,
    /// Processor.
    pub cpu: Option<String>,
    /// The model as configured.
    pub model: String,
    /// SHA-256 of the weights.
    pub weights_sha256: String,
    /// Seed.
    pub seed: u64,
    /// Invariants that its records violate.
    pub violated: Vec<String>,
}

impl Side {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// It is no run's folder, its files are of another version, or it has no `samples.jsonl`.
    pub fn open(dir: &Path) -> Result<Self> {
        let Records { results, environment, config } = Records::open(dir)?;
        let samples = recorded_samples(dir)?;
        if samples.is_empty() {
            bail!(
                "{}: samples.jsonl has no record; a comparison is made sample by sample and needs it",
                dir.display()
            );
        }
        let violated = results.invariants.iter().filter(|i| i.verdict == Verdict::Violated);
        let head = Head {
            path: dir.display().to_string(),
            name: results.name.clone(),
            fingerprint: results.fingerprint.clone(),
            status: results.status,
            commit: environment.as_ref().and_then(|e| e.code.commit.clone()),
            source_sha256: environment.as_ref().map(|e| e.code.source_sha256.clone()),
            backend: environment.as_ref().map(|e| e.backend.clone()),
            cpu: environment.as_ref().map(|e| e.cpu.clone()),
            model: results.model.name.clone(),
            weights_sha256: results.model.digest.clone(),
            seed: results.seed,
            violated: violated.map(|i| format!("{}: {}", i.name, i.detail)).collect(),
        };
        let tasks = config.as_deref().and_then(task_tables).filter(|t| t.len() == results.tasks.len());
        Ok(Self { head, results, tasks, samples })
    }

    /// The decoded samples of a cell on a task.
    pub fn done(&self, cell: &str, task: &str) -> BTreeMap<Unit<'_>, &SampleRecord> {
        let mine = self.samples.iter().filter(|s| s.cell == cell && s.task == task);
        mine.filter(|s| s.outcome == Outcome::Done).map(|s| ((s.sample.as_str(), s.repeat), s)).collect()
    }

    /// The cell of this label.
    pub fn cell(&self, label: &str) -> Option<&CellRecord> {
        self.results.cells.iter().find(|c| c.label == label)
    }

    /// Protocol of the run.
    pub fn protocol(&self) -> &str {
        &self.results.protocol
    }
}

/// The `[[task]]` tables of a resolved configuration.
fn task_tables(config: &str) -> Option<Vec<toml::Table>> {
    let config: toml::Table = config.parse().ok()?;
    let tasks = config.get("task")?.as_array()?;
    tasks.iter().map(|t| t.as_table().cloned()).collect()
}
