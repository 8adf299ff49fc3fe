//! The policies of the cells, as factories for the loop.

use super::model::Opened;
use crate::app::App;
use crate::plan::PlannedCell;
use crate::spec::PolicySpec;
use anyhow::{Context, Result};
use oasis_core::decode::Policies;
use oasis_core::draft::{DraftFactory, DraftSetup, DraftShape};
use oasis_core::model::Model;
use oasis_core::ops::Backend;
use oasis_core::registry::{Entry, Params, find};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The policies of every cell and what their drafts demand of the prefill.
pub struct Built<B: Backend> {
    /// One a cell.
    pub cells: Vec<Policies<B>>,
    /// The cell's draft knows the right tokens.
    pub ideal: Vec<bool>,
    /// Layers whose output rows a prefill must keep, ascending.
    pub hidden_layers: Vec<usize>,
}

/// Builds the policies of all cells; a draft source that several cells name alike is made once.
pub fn build<B: Backend>(
    app: &App,
    cells: &[PlannedCell],
    opened: &Opened,
    backend: &mut B,
    model: &Model<B>,
) -> Result<Built<B>> {
    let mut drafts: BTreeMap<String, DraftFactory<B>> = BTreeMap::new();
    let (mut policies, mut ideal, mut hidden) = (Vec::new(), Vec::new(), BTreeSet::new());
    for cell in cells {
        let spec = cell.draft.as_ref().map_or_else(|| PolicySpec::named("none"), |d| d.spec.clone());
        let key = spec.to_string();
        if !drafts.contains_key(&key) {
            let factory =
                draft(&spec, opened, backend, model).with_context(|| format!("cell `{}`", cell.label))?;
            drafts.insert(key.clone(), factory);
        }
        let factory = drafts[&key].clone();
        let sample = factory(0)?;
        ideal.push(sample.is_ideal());
        hidden.extend(sample.hidden_layers().iter().copied());
        let named = || format!("cell `{}`", cell.label);
        policies.push(one(app, cell, factory).with_context(named)?);
    }
    Ok(Built { cells: policies, ideal, hidden_layers: hidden.into_iter().collect() })
}

fn draft<B: Backend>(
    spec: &PolicySpec,
    opened: &Opened,
    backend: &mut B,
    model: &Model<B>,
) -> Result<DraftFactory<B>> {
    let entry = find("draft", oasis_predictors::drafts::<B>(), &spec.name)?;
    let params = Params { table: spec.table.clone(), seed: 0 };
    let setup = DraftSetup { params: &params, backend, model, bundled_eagle3: opened.head };
    Ok((entry.build)(setup)?)
}

/// A policy that a mode does not use is the table's first one; the loop never asks it.
fn pick<'a, F: Copy>(
    kind: &'static str,
    table: &'a [Entry<F>],
    spec: Option<&PolicySpec>,
) -> oasis_core::Result<(&'a Entry<F>, toml::Table)> {
    match spec {
        Some(spec) => Ok((find(kind, table, &spec.name)?, spec.table.clone())),
        None => {
            let none = || oasis_core::Error::setting(kind, "the table is empty");
            Ok((table.first().ok_or_else(none)?, toml::Table::new()))
        }
    }
}

fn one<B: Backend>(app: &App, cell: &PlannedCell, draft: DraftFactory<B>) -> Result<Policies<B>> {
    let (summary, table) = pick("summary", &app.summaries, cell.summary.as_ref())?;
    let summary = Arc::from((summary.build)(&Params { table, seed: 0 })?);
    let (predictor, predictor_table) = pick("predictor", &app.predictors, cell.predictor.as_ref())?;
    let (evictor, evictor_table) = pick("evictor", &app.evictors, cell.evictor.as_ref())?;
    let (predict, evict) = (predictor.build, evictor.build);
    Ok(Policies {
        summary,
        predictor: Arc::new(move |seed| predict(&Params { table: predictor_table.clone(), seed })),
        evictor: Arc::new(move |seed| evict(&Params { table: evictor_table.clone(), seed })),
        draft,
        draft_shape: cell.draft.as_ref().map_or(DraftShape { depth: 0, branches: 1 }, |d| d.shape),
    })
}
