//! The plan of a run: what was typed, checked and complete. The run never looks at TOML.

mod axes;
mod cells;
mod check;
mod label;
mod resolved;
mod tasks;
#[cfg(test)]
mod tests;
mod usage;

pub use cells::PlannedCell;
pub use resolved::Resolved;
pub use tasks::PlannedTask;

use crate::app::App;
use crate::spec::{Origin, Protocol, Source};
use anyhow::{Result, bail};
use oasis_core::Error;

/// A checked configuration.
pub struct Plan {
    /// Name for reports.
    pub name: String,
    /// Seed of samples and draws.
    pub seed: u64,
    /// What is decoded sparsely.
    pub protocol: Protocol,
    /// Times that every (sample, cell) is decoded.
    pub repeats: u32,
    /// Workers, where the user chose.
    pub jobs: Option<usize>,
    /// The model as configured.
    pub model: String,
    /// Tasks, in the order of the configuration.
    pub tasks: Vec<PlannedTask>,
    /// Cells, dense first.
    pub cells: Vec<PlannedCell>,
    /// What looks like a slip but may be meant.
    pub notes: Vec<String>,
    /// `[run]` and `[model]`: key, value, origin.
    pub(crate) head: Vec<(&'static str, &'static str, toml::Value, Origin)>,
}

impl Plan {
    /// Checks everything that can be checked without the model.
    ///
    /// # Errors
    /// Values out of range, keys without effect, unknown names, two cells that are the same.
    pub fn new(source: &Source, app: &App) -> Result<Self> {
        Self::over(std::slice::from_ref(source), app)
    }

    /// One plan for configurations that differ in keys of cells only: their cells side by side, those that are alike once.
    ///
    /// # Errors
    /// As [`Plan::new`]; a swept key that no cell takes.
    pub fn over(sources: &[Source], app: &App) -> Result<Self> {
        let source = &sources[0];
        let spec = &source.spec;
        let run = &spec.run;
        let repeats = run.repeats.unwrap_or(1);
        if repeats == 0 {
            bail!(Error::setting("run.repeats", "0 repeats decode nothing; give at least 1"));
        }
        let name = source.name();
        let seed = run.seed.unwrap_or(0);
        if seed > i64::MAX as u64 {
            bail!(Error::setting(
                "run.seed",
                format!("{seed} is above {}, the largest TOML number", i64::MAX)
            ));
        }
        let protocol = run.protocol.unwrap_or(Protocol::Decode);
        let model = spec.model.path.clone().unwrap_or_else(|| "nano".to_owned());
        let tasks = tasks::plan(source, app)?;
        let cells = cells::plan(sources, app, &tasks)?;
        let origin = |path: &str, present: bool| source.origin(path, present);
        let head = vec![
            ("run", "name", name.clone().into(), origin("run.name", run.name.is_some())),
            ("run", "seed", (seed as i64).into(), origin("run.seed", run.seed.is_some())),
            ("run", "protocol", protocol.name().into(), origin("run.protocol", run.protocol.is_some())),
            ("run", "repeats", i64::from(repeats).into(), origin("run.repeats", run.repeats.is_some())),
            ("model", "path", model.clone().into(), origin("model.path", spec.model.path.is_some())),
        ];
        let jobs = run.jobs.filter(|&j| j > 0);
        Ok(Self {
            name,
            seed,
            protocol,
            repeats,
            jobs,
            model,
            tasks,
            cells,
            notes: source.notes.clone(),
            head,
        })
    }

    /// The one cell of a configuration without tasks, for a replay.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub(crate) fn replay_cell(source: &Source, app: &App) -> Result<PlannedCell> {
        let cells = cells::plan(std::slice::from_ref(source), app, &[])?;
        let cell = cells.into_iter().find(|c| !c.added);
        cell.ok_or_else(|| anyhow::anyhow!("{}: no [[cell]]", source.path.display()))
    }

    /// Samples that run.
    pub fn samples(&self) -> usize {
        self.tasks.iter().map(|t| t.indices.len()).sum()
    }

    /// (sample, cell, repeat) triples.
    pub fn units(&self) -> usize {
        self.samples() * self.cells.len() * self.repeats as usize
    }

    /// The complete configuration with the origin of every value.
    pub fn resolved(&self) -> Resolved {
        resolved::resolve(self)
    }

    /// What one cell measures, as the bytes that its own fingerprint is made of.
    pub fn canonical_of(&self, cell: &PlannedCell) -> String {
        resolved::canonical_of(self, cell)
    }
}
