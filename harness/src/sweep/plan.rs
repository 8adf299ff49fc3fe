//! The runs of a sweep: planned from the configuration, then made ready with models and samples.

use crate::app::App;
use crate::plan::Plan;
use crate::record::{SCHEMA_VERSION, Shard, SweepAxis, SweepCell, SweepPlan, SweepRunPlan};
use crate::run::identity::{self, Identity};
use crate::run::model::{self, Opened};
use crate::run::samples::{self, Samples};
use crate::spec::{Origin, Sweep, Values, written};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

/// One run of a sweep.
pub(super) struct Part {
    /// Values of keys that are not of cells.
    pub values: Values,
    /// Its plan.
    pub plan: Plan,
    /// What it needs to begin, or why it can't.
    pub ready: Result<Ready, String>,
}

/// The model and the samples of a run.
pub(super) struct Ready {
    pub opened: Rc<Opened>,
    pub samples: Samples,
}

/// A sweep, complete.
pub(super) struct Planned {
    /// What `sweep.json` says.
    pub record: SweepPlan,
    /// The runs.
    pub parts: Vec<Part>,
}

/// Plans every run; nothing is opened yet.
///
/// # Errors
/// What a plan refuses, with the values of the run.
pub(super) fn parts(sweep: &Sweep, app: &App) -> Result<Vec<(Values, Plan)>> {
    let groups = sweep.groups()?;
    let several = groups.len() > 1;
    let mut parts = Vec::new();
    for mut group in groups {
        let values = written(&group.values);
        if several {
            // Runs in one folder are told apart by name; `--resume` relies on it.
            let name = format!("{}, {values}", sweep.name());
            group.sources.iter_mut().for_each(|s| s.spec.run.name = Some(name.clone()));
        }
        let plan = Plan::over(&group.sources, app);
        let plan = if several { plan.with_context(|| format!("run {values}"))? } else { plan? };
        parts.push((group.values, plan));
    }
    Ok(parts)
}

impl Planned {
    /// Opens the models, makes the samples. A run for which that fails is kept with the error.
    pub fn new(
        sweep: &Sweep,
        plans: Vec<(Values, Plan)>,
        app: &App,
        backend: &str,
        shard: Option<Shard>,
    ) -> Result<Self> {
        let mut models: BTreeMap<String, Result<Rc<Opened>, String>> = BTreeMap::new();
        let mut parts: Vec<Part> = Vec::new();
        for (values, plan) in plans {
            let opened = models
                .entry(plan.model.clone())
                .or_insert_with(|| model::open(&plan.model).map(Rc::new).map_err(|e| format!("{e:#}")));
            let ready = opened.clone().and_then(|opened| {
                let samples = samples::make(&plan, &opened.checkpoint).map_err(|e| format!("{e:#}"))?;
                Ok(Ready { opened, samples })
            });
            parts.push(Part { values, plan, ready });
        }
        let mut runs = Vec::new();
        let mut index = 0;
        for part in &parts {
            runs.push(part.record(app, backend, &mut index)?);
        }
        let config = config(&parts);
        let axes = sweep.axes.iter().map(|a| SweepAxis { keys: a.keys.clone(), values: a.values.clone() });
        let record = SweepPlan {
            schema_version: SCHEMA_VERSION,
            fingerprint: fingerprint(&config, app, backend)?,
            name: sweep.name(),
            shard,
            axes: axes.collect(),
            runs,
            notes: sweep.source.notes.clone(),
        };
        Ok(Self { record, parts })
    }

    /// Cells of all runs.
    pub fn cells(&self) -> usize {
        self.parts.iter().map(|p| p.plan.cells.len()).sum()
    }
}

impl Part {
    fn record(&self, app: &App, backend: &str, index: &mut usize) -> Result<SweepRunPlan> {
        let identity = self.ready.as_ref().ok().map(|r| Identity {
            app,
            plan: &self.plan,
            opened: &r.opened,
            samples: &r.samples,
            backend,
        });
        let mut cells = Vec::new();
        for cell in &self.plan.cells {
            let fingerprint = identity.as_ref().map(|i| i.of_cell(cell)).transpose()?;
            let swept = cell.origins.iter().filter(|(_, origin)| **origin == Origin::Sweep);
            let values = swept.filter_map(|(k, _)| Some(((*k).to_owned(), cell.values.get(k)?.clone())));
            cells.push(SweepCell {
                index: *index,
                label: cell.label.clone(),
                fingerprint,
                values: values.collect(),
            });
            *index += 1;
        }
        let parts = identity.map(|i| i.of_run()).transpose()?;
        let fingerprint = parts.and_then(|mut p| p.remove("fingerprint"));
        Ok(SweepRunPlan {
            name: self.plan.name.clone(),
            values: self.values.iter().cloned().collect(),
            fingerprint,
            error: self.ready.as_ref().err().cloned(),
            n_planned: self.plan.units() as u64,
            cells,
        })
    }
}

/// All that is written in the sweep, its runs one after another.
fn config(parts: &[Part]) -> String {
    let all: Vec<String> = parts.iter().map(|p| p.plan.resolved().canonical).collect();
    identity::sha(&all.join("\n"))
}

/// Of the configuration, the code and the backend: what is known also where a model can't be opened. Weights, prompts and
/// data are in the fingerprints of the runs.
fn fingerprint(config: &str, app: &App, backend: &str) -> Result<String> {
    Ok(identity::digest(&BTreeMap::from([
        ("schema".to_owned(), SCHEMA_VERSION.to_string()),
        ("sweep".to_owned(), config.to_owned()),
        ("code".to_owned(), identity::code_part(app)?),
        ("backend".to_owned(), backend.to_owned()),
    ])))
}
