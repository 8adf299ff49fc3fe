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
use std::collections::BTreeMap;
use std::sync::Arc;

/// The policies of every cell and what their drafts demand of the prefill.
pub struct Built<B: Backend> {
    /// One a cell, or why its policies can't be made here: then its samples fail with these words.
    pub cells: Vec<Result<Policies<B>, String>>,
    /// The cell's draft knows the right tokens.
    pub ideal: Vec<bool>,
    /// Layers whose output rows a prefill must keep, ascending.
    pub hidden_layers: Vec<usize>,
}

impl<B: Backend> Default for Built<B> {
    fn default() -> Self {
        Self { cells: Vec::new(), ideal: Vec::new(), hidden_layers: Vec::new() }
    }
}

/// What a cell is decoded with.
pub struct Made<B: Backend> {
    policies: Policies<B>,
    ideal: bool,
    hidden: Vec<usize>,
}

impl<B: Backend> Built<B> {
    /// Adds the next cell.
    pub fn add(&mut self, made: Result<Made<B>, String>) {
        let (policies, ideal, hidden) = match made {
            Ok(made) => (Ok(made.policies), made.ideal, made.hidden),
            Err(error) => (Err(error), false, Vec::new()),
        };
        self.cells.push(policies);
        self.ideal.push(ideal);
        self.hidden_layers.extend(hidden);
        self.hidden_layers.sort_unstable();
        self.hidden_layers.dedup();
    }
}

/// Builds the policies of cells; a draft source that several cells name alike is made once.
pub struct Builder<'a, B: Backend> {
    app: &'a App,
    opened: &'a Opened,
    drafts: BTreeMap<String, DraftFactory<B>>,
}

impl<'a, B: Backend> Builder<'a, B> {
    /// Nothing is made yet.
    pub fn new(app: &'a App, opened: &'a Opened) -> Self {
        Self { app, opened, drafts: BTreeMap::new() }
    }

    /// The policies of a cell.
    ///
    /// # Errors
    /// A draft source that does not go with the model, a policy that refuses its keys; names the cell.
    pub fn build(&mut self, cell: &PlannedCell, backend: &mut B, model: &Model<B>) -> Result<Made<B>> {
        self.made(cell, backend, model).with_context(|| format!("cell `{}`", cell.label))
    }

    fn made(&mut self, cell: &PlannedCell, backend: &mut B, model: &Model<B>) -> Result<Made<B>> {
        let spec = cell.draft.as_ref().map_or_else(|| PolicySpec::named("none"), |d| d.spec.clone());
        let key = spec.to_string();
        if !self.drafts.contains_key(&key) {
            self.drafts.insert(key.clone(), draft(&spec, self.opened, backend, model)?);
        }
        let factory = self.drafts[&key].clone();
        let sample = factory(0)?;
        let (ideal, hidden) = (sample.is_ideal(), sample.hidden_layers().to_vec());
        Ok(Made { policies: one(self.app, cell, factory)?, ideal, hidden })
    }
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

/// The policies of one cell.
///
/// # Errors
/// An unknown name, a key that its policy does not know.
pub fn one<B: Backend>(app: &App, cell: &PlannedCell, draft: DraftFactory<B>) -> Result<Policies<B>> {
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
