//! Cells of a plan: `[decode]`, `[[cell]]` and `[grid]` together, one cell for each way of decoding.

use super::usage::{Traits, unused};
use super::{PlannedTask, axes, check, label};
use crate::app::App;
use crate::spec::{Budget, CellSpec, DECODE_KEYS, DecodeSpec, FetchCap, GroupSpec, Origin};
use crate::spec::{PolicySpec, Source};
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use oasis_core::draft::DraftShape;
use oasis_core::policy::When;
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Emit, Mode, Sampling, Scope, Settings};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// A draft source with its size.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedDraft {
    /// The source, with its own keys only.
    pub spec: PolicySpec,
    /// How far it goes.
    pub shape: DraftShape,
}

impl fmt::Display for PlannedDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.spec.clone();
        for (key, n) in [("depth", self.shape.depth), ("branches", self.shape.branches)] {
            if n > 1 {
                all.table.insert(key.to_owned(), (n as i64).into());
            }
        }
        all.fmt(f)
    }
}

/// One way of decoding, complete.
#[derive(Debug, Clone)]
pub struct PlannedCell {
    /// Unique in the run.
    pub label: String,
    /// Line of a plot; set once the plan is made.
    pub family: Option<String>,
    /// The run added it as its reference.
    pub added: bool,
    /// Mode.
    pub mode: Mode,
    /// Tokens of a block.
    pub block: usize,
    /// Budget; none in `dense`.
    pub budget: Option<Budget>,
    /// Pinned blocks at the start.
    pub sink_blocks: usize,
    /// Pinned blocks at the end.
    pub window_blocks: usize,
    /// Cap; none where nothing is fetched.
    pub cap: Option<FetchCap>,
    /// Predictor; none where nothing is ranked.
    pub predictor: Option<PolicySpec>,
    /// The predictor ranks with draft rows.
    pub looks_ahead: bool,
    /// Summary; none where nothing is ranked.
    pub summary: Option<PolicySpec>,
    /// Evictor; none where nothing is ranked.
    pub evictor: Option<PolicySpec>,
    /// Draft source, where one is used.
    pub draft: Option<PlannedDraft>,
    /// What is attended.
    pub scope: Scope,
    /// Combination of scores.
    pub group: GroupSpec,
    /// Normalise with exact mass.
    pub normalise: bool,
    /// What a step emits.
    pub emit: Emit,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Sequences decoded together.
    pub batch: usize,
    /// Compute the truth at every step.
    pub audit: bool,
    /// Keys with an effect, as TOML writes them.
    pub(crate) values: BTreeMap<&'static str, toml::Value>,
    /// Where they came from.
    pub(crate) origins: BTreeMap<&'static str, Origin>,
}

impl PlannedCell {
    /// The policy of a key.
    pub fn policy(&self, key: &str) -> Option<&PolicySpec> {
        match key {
            "predictor" => self.predictor.as_ref(),
            "summary" => self.summary.as_ref(),
            "evictor" => self.evictor.as_ref(),
            "draft" => self.draft.as_ref().map(|d| &d.spec),
            _ => None,
        }
    }

    /// Settings of the loop for a context of `length` tokens.
    pub fn settings(&self, length: usize, seed: u64) -> Settings {
        let shape = self.draft.as_ref().map_or(DraftShape { depth: 0, branches: 1 }, |d| d.shape);
        Settings {
            mode: self.mode,
            block_tokens: self.block,
            budget_tokens: self.budget.map_or(0, |b| b.tokens(length)),
            sink_blocks: self.sink_blocks,
            window_blocks: self.window_blocks,
            cap: self.cap.map_or(Cap::Unlimited, |c| c.0),
            scope: self.scope,
            group: self.group.resolve(),
            normalise_resident: self.normalise,
            emit: self.emit,
            sampling: self.sampling,
            max_rows: shape.depth + shape.branches,
            audit: self.audit,
            seed,
        }
    }
}

/// Values where nobody gave one.
fn defaults() -> DecodeSpec {
    DecodeSpec {
        mode: Some(Mode::Staged),
        budget: Some(Budget::Tokens(2048)),
        cap: Some(FetchCap(Cap::Fraction(0.05))),
        predictor: None,
        draft: Some(PolicySpec::named("ngram")),
        summary: Some(PolicySpec::named("minmax")),
        evictor: Some(PolicySpec::named("lrs")),
        block: Some(16),
        sink: Some(16),
        window: Some(64),
        attend: Some(Scope::Resident),
        group: Some(GroupSpec::Auto),
        normalise: Some(false),
        emit: Some(Emit::One),
        temperature: Some(0.0),
        top_p: Some(1.0),
        batch: Some(1),
        audit: Some(false),
    }
}

/// All cells, dense first, and a dense cell where there is none. `sources` differ in keys of cells only: each cell of the
/// file comes once for every way in which they set it.
pub(super) fn plan(sources: &[Source], app: &App, tasks: &[PlannedTask]) -> Result<Vec<PlannedCell>> {
    let source = &sources[0];
    let spec = &source.spec;
    if spec.cell.is_empty() {
        bail!("{}: no [[cell]]; give at least one, e.g. mode = \"staged\"", source.path.display());
    }
    if let Some((axis, _)) = spec.grid.axes().into_iter().find(|(_, n)| *n == 0) {
        bail!(Error::setting(
            format!("grid.{axis}"),
            "an axis without values leaves no cell; give one or remove it"
        ));
    }
    let (mut cells, mut varied, mut used) = (Vec::new(), Vec::new(), HashSet::new());
    for i in 0..spec.cell.len() {
        let mut kept: Vec<PlannedCell> = Vec::new();
        for source in sources {
            let cell = &source.spec.cell[i];
            let name = cell.label.clone().map_or(format!("cell {i}"), |l| format!("cell {i} (`{l}`)"));
            for choice in axes::product(cell, &source.spec.grid) {
                let planned =
                    Maker { source, app, index: i, cell, choice: &choice }.make().context(name.clone())?;
                used.extend(planned.values.keys().copied());
                if kept.iter().all(|k| k.values != planned.values) {
                    let grid = choice.iter().map(|(k, _)| *k);
                    varied.push(grid.filter(|k| planned.values.contains_key(k)).collect());
                    kept.push(planned);
                }
            }
        }
        cells.append(&mut kept);
    }
    refuse_unused(source, &used)?;
    axes::refuse_idle(source, &cells)?;
    let single = axes::single_valued(&spec.grid);
    varied.iter_mut().for_each(|keys: &mut Vec<&str>| keys.retain(|k| !single.contains(k)));
    axes::add_swept(&mut varied, &cells);
    if !cells.iter().any(|c| c.mode == Mode::Dense && c.emit == Emit::One) {
        let block = cells.first().map_or(16, |c| c.block);
        cells.push(reference(source, app, block)?);
        varied.push(Vec::new());
    }
    for cell in &cells {
        check::ranges(cell, tasks).with_context(|| format!("cell `{}`", cell_name(cell)))?;
    }
    label::assign(&mut cells, &varied)?;
    cells.sort_by_key(|c| !(c.mode == Mode::Dense && c.emit == Emit::One));
    Ok(cells)
}

fn cell_name(cell: &PlannedCell) -> String {
    if cell.label.is_empty() { cell.mode.name().to_owned() } else { cell.label.clone() }
}

/// The dense cell that every other one is compared with.
fn reference(source: &Source, app: &App, block: usize) -> Result<PlannedCell> {
    let cell = CellSpec {
        mode: Some(Mode::Dense),
        block: Some(block),
        emit: Some(Emit::One),
        ..CellSpec::default()
    };
    let mut planned = Maker { source, app, index: usize::MAX, cell: &cell, choice: &[] }.make()?;
    planned.added = true;
    planned.origins.values_mut().for_each(|o| {
        if *o == Origin::Cell {
            *o = Origin::Derived;
        }
    });
    Ok(planned)
}

/// Keys of `[decode]` and `[grid]` that no cell uses.
fn refuse_unused(source: &Source, used: &HashSet<&str>) -> Result<()> {
    let grid = source.spec.grid.axes().into_iter().map(|(key, _)| ("grid", key));
    let decode = source.spec.decode.keys().into_iter().map(|key| ("decode", key));
    for (table, key) in decode.chain(grid) {
        if !used.contains(key) {
            let what = "no cell uses it; remove it, or add a cell on which it has an effect";
            bail!(Error::setting(format!("{table}.{key}"), what));
        }
    }
    Ok(())
}

/// Makes one cell.
struct Maker<'a> {
    source: &'a Source,
    app: &'a App,
    index: usize,
    cell: &'a CellSpec,
    choice: &'a [(&'static str, usize)],
}

impl Maker<'_> {
    fn make(&self) -> Result<PlannedCell> {
        let mut full = self.cell.clone();
        for (key, i) in self.choice {
            full.set_from_axis(&self.source.spec.grid, key, *i);
        }
        let mut full = full.or(&self.source.spec.decode).or(&defaults());
        let mode = full.mode.unwrap_or(Mode::Staged);
        let by_mode = if mode == Mode::OnDemand { "oracle" } else { "lookahead" };
        let predictor = full.predictor.get_or_insert_with(|| PolicySpec::named(by_mode)).clone();
        let drafts = self.ranks(&predictor, mode)?;
        let draws = full.temperature.is_some_and(|t| t != 0.0);
        let traits = Traits { mode, drafts, emit: full.emit.unwrap_or(Emit::One), draws };
        for key in DECODE_KEYS {
            let Some(why) = unused(key, traits) else { continue };
            if self.cell.keys().contains(key) {
                bail!(Error::setting(*key, format!("{why}; remove it from this cell")));
            }
            full.clear(key);
        }
        self.build_policies(&full)?;
        self.planned(&full, drafts)
    }

    /// Whether the predictor uses drafts; checks that it ranks at the time that the mode wants.
    fn ranks(&self, predictor: &PolicySpec, mode: Mode) -> Result<bool> {
        if matches!(mode, Mode::Dense | Mode::Window) {
            return Ok(false);
        }
        let entry = find("predictor", &self.app.predictors, &predictor.name)?;
        let needs = (entry.build)(&Params { table: predictor.table.clone(), seed: 0 })?.needs();
        let name = &predictor.name;
        match (needs.when, mode == Mode::OnDemand) {
            (When::Ahead, true) => bail!(Error::setting(
                "predictor",
                format!(
                    "`{name}` ranks ahead of the step; mode `on-demand` needs one that ranks with the step's own query (`oracle`)"
                )
            )),
            (When::OnDemand, false) => bail!(Error::setting(
                "predictor",
                format!(
                    "`{name}` ranks with the step's own query; use mode = \"on-demand\" instead of `{}`",
                    mode.name()
                )
            )),
            _ => Ok(needs.drafts),
        }
    }

    /// Builds one instance of each policy, so that its own keys are checked now.
    fn build_policies(&self, full: &CellSpec) -> Result<()> {
        let params = |p: &PolicySpec| Params { table: p.table.clone(), seed: 0 };
        if let Some(p) = &full.summary {
            (find("summary", &self.app.summaries, &p.name)?.build)(&params(p))?;
        }
        if let Some(p) = &full.evictor {
            let here = self.app.evictors.iter().any(|e| e.name == p.name);
            if !here && self.app.replay_evictors.iter().any(|e| e.name == p.name) {
                let name = &p.name;
                let what = format!(
                    "`{name}` evicts by the next use of a block, which no decode knows; use it in `oasis trace replay`"
                );
                bail!(Error::setting("evictor", what));
            }
            (find("evictor", &self.app.evictors, &p.name)?.build)(&params(p))?;
        }
        if let Some(p) = &full.draft {
            let rows = oasis_predictors::drafts::<oasis_kernels::Cpu>();
            let entry = find("draft", rows, &p.name)?;
            let known = entry.params.iter().map(|p| p.name).chain(["depth", "branches"]);
            let known: Vec<&str> = known.collect();
            if let Some(key) = p.table.keys().find(|k| !known.contains(&k.as_str())) {
                return Err(Error::unknown_name("key", key, known))
                    .with_context(|| format!("draft `{}`", p.name));
            }
        }
        Ok(())
    }

    fn planned(&self, full: &CellSpec, looks_ahead: bool) -> Result<PlannedCell> {
        let values =
            DECODE_KEYS.iter().filter_map(|k| Some((*k, full.written(k)?))).collect::<BTreeMap<_, _>>();
        let origins = values.keys().map(|k| (*k, self.origin(k))).collect();
        let block = full.block.unwrap_or(16);
        if block == 0 {
            bail!(Error::setting("block", "0 tokens; a block needs at least 1 (16 is usual)"));
        }
        let blocks = |tokens: Option<usize>| tokens.unwrap_or(0).div_ceil(block);
        Ok(PlannedCell {
            label: self.cell.label.clone().unwrap_or_default(),
            family: self.cell.family.clone(),
            added: self.cell.added.unwrap_or(false),
            mode: full.mode.unwrap_or(Mode::Staged),
            block,
            budget: full.budget,
            sink_blocks: blocks(full.sink),
            window_blocks: blocks(full.window),
            cap: full.cap,
            predictor: full.predictor.clone(),
            looks_ahead: looks_ahead && full.draft.is_some(),
            summary: full.summary.clone(),
            evictor: full.evictor.clone(),
            draft: full.draft.as_ref().map(draft).transpose()?,
            scope: full.attend.unwrap_or(Scope::Resident),
            group: full.group.unwrap_or(GroupSpec::Auto),
            normalise: full.normalise.unwrap_or(false),
            emit: full.emit.unwrap_or(Emit::One),
            sampling: Sampling {
                temperature: full.temperature.unwrap_or(0.0),
                top_p: full.top_p.unwrap_or(1.0),
            },
            batch: full.batch.unwrap_or(1),
            audit: full.audit.unwrap_or(false),
            values,
            origins,
        })
    }

    fn origin(&self, key: &str) -> Origin {
        let at = |path: String| self.source.set_below(&path);
        if self.cell.keys().contains(&key) {
            return at(format!("cell.{}.{key}", self.index)).unwrap_or(Origin::Cell);
        }
        if self.choice.iter().any(|(k, _)| *k == key) {
            return at(format!("grid.{key}")).unwrap_or(Origin::Grid);
        }
        if self.source.spec.decode.keys().contains(&key) {
            return at(format!("decode.{key}")).unwrap_or(Origin::File);
        }
        Origin::Default
    }
}

/// Takes `depth` and `branches` out of the draft's table.
fn draft(written: &PolicySpec) -> Result<PlannedDraft> {
    let mut spec = written.clone();
    let mut take = |key: &str| match spec.table.remove(key) {
        None => Ok(1),
        Some(toml::Value::Integer(n)) if n >= 1 => Ok(n as usize),
        Some(other) => {
            bail!(Error::setting(format!("draft.{key}"), format!("{other}; give a whole number from 1 on")))
        }
    };
    let shape = DraftShape { depth: take("depth")?, branches: take("branches")? };
    Ok(PlannedDraft { spec, shape })
}
