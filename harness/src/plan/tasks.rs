//! Tasks of a plan.

use crate::app::App;
use crate::spec::{Origin, Source, TaskSpec};
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use oasis_core::registry::Params;
use oasis_datasets::{Scoring, Task, find_task};

/// Samples of a task where the configuration does not say.
const DEFAULT_SAMPLES: usize = 16;

/// One task at one length.
pub struct PlannedTask {
    /// Unique in the run.
    pub label: String,
    /// Name in the table.
    pub name: String,
    /// Tokens of prompt and answer.
    pub length: usize,
    /// Samples of the series.
    pub samples: usize,
    /// Those of them that run.
    pub indices: Vec<usize>,
    /// The task's own keys.
    pub own: toml::Table,
    /// The task.
    pub task: Box<dyn Task>,
    /// Where `length`, `samples` and `indices` came from.
    pub(crate) origins: [Origin; 3],
}

impl PlannedTask {
    /// Whether its answers are forced and compared with dense decoding.
    pub fn forced(&self) -> bool {
        self.task.scoring() == Scoring::TeacherForced
    }
}

/// The tasks of a configuration, one for each length.
pub(super) fn plan(source: &Source, app: &App) -> Result<Vec<PlannedTask>> {
    let specs = &source.spec.task;
    if specs.is_empty() {
        bail!("{}: no [[task]]; give at least one, `oasis list tasks` names them", source.path.display());
    }
    let mut tasks = Vec::new();
    for (i, spec) in specs.iter().enumerate() {
        for &length in &spec.length.0 {
            tasks.push(one(source, i, spec, length).with_context(|| format!("task {i} (`{}`)", spec.name))?);
        }
    }
    label(&mut tasks);
    for (i, task) in tasks.iter().enumerate() {
        if tasks[..i].iter().any(|t| t.label == task.label) {
            let what =
                format!("two tasks are called `{}`; give one of them a `label` of its own", task.label);
            bail!(Error::setting("task.label", what));
        }
    }
    debug_assert!(!app.tasks.is_empty());
    Ok(tasks)
}

fn one(source: &Source, i: usize, spec: &TaskSpec, length: usize) -> Result<PlannedTask> {
    let samples = spec.samples.unwrap_or(DEFAULT_SAMPLES);
    if samples == 0 {
        bail!(Error::setting("task.samples", "0 samples; give at least 1, or remove the task"));
    }
    if length == 0 {
        bail!(Error::setting("task.length", "0 tokens; a prompt needs at least 1"));
    }
    let task =
        find_task(&spec.name, &Params { table: spec.own.clone(), seed: source.spec.run.seed.unwrap_or(0) })?;
    let limit = source.spec.run.limit;
    let (indices, taken) = match (&spec.indices, limit) {
        (Some(indices), None) => (indices.clone(), source.origin(&format!("task.{i}.indices"), true)),
        (Some(_), Some(_)) => {
            bail!(Error::setting("task.indices", "excludes run.limit (--limit); remove one of the two"))
        }
        (None, None) => ((0..samples).collect(), Origin::Derived),
        (None, Some(limit)) => (stride(samples, limit.of(samples)), source.origin("run.limit", true)),
    };
    if let Some(bad) = indices.iter().find(|&&i| i >= samples) {
        bail!(Error::setting("task.indices", format!("{bad} is not below `samples` ({samples})")));
    }
    if indices.is_empty() || indices.windows(2).any(|w| w[0] >= w[1]) {
        bail!(Error::setting("task.indices", "must be ascending and at least one"));
    }
    let origins = [
        source.origin(&format!("task.{i}.length"), true),
        source.origin(&format!("task.{i}.samples"), spec.samples.is_some()),
        taken,
    ];
    let label = spec.label.clone().unwrap_or_default();
    let (name, own) = (spec.name.clone(), spec.own.clone());
    Ok(PlannedTask { label, name, length, samples, indices, own, task, origins })
}

/// `n` of `samples` indices at equal strides.
fn stride(samples: usize, n: usize) -> Vec<usize> {
    (0..n).map(|i| i * samples / n).collect()
}

/// Names the tasks that have no label: by name, with the length where the name comes twice.
fn label(tasks: &mut [PlannedTask]) {
    let names: Vec<(String, String)> = tasks.iter().map(|t| (t.name.clone(), t.label.clone())).collect();
    for task in tasks.iter_mut() {
        let same = names.iter().filter(|(name, label)| *name == task.name && *label == task.label).count();
        let base = if task.label.is_empty() { task.name.clone() } else { task.label.clone() };
        task.label = if same > 1 { format!("{base}-{}", task.length) } else { base };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_even_and_within() {
        assert_eq!(stride(20, 4), [0, 5, 10, 15]);
        assert_eq!(stride(5, 5), [0, 1, 2, 3, 4]);
        assert_eq!(stride(7, 3), [0, 2, 4]);
        assert_eq!(stride(1, 1), [0]);
    }
}
