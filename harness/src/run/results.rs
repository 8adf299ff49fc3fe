//! `results.json` from the records; nothing here looks at a clock or a device.

use super::metrics::Group;
use super::model::Opened;
use super::output::Records;
use super::samples::Samples;
use super::{heads, invariants, timing};
use crate::plan::{Plan, PlannedCell};
use crate::record::{
    CellRecord, Failure, Invariant, Machine, ModelRecord, Outcome, Results, RowRecord, SCHEMA_VERSION,
    SampleRecord, Status, TaskRecord, TimingRecord, TimingRow, Verdict,
};
use oasis_core::settings::{Emit, Mode, Scope};
use std::collections::HashMap;

/// What does not change while a run goes on.
pub struct Frame {
    /// Folder name.
    pub fingerprint: String,
    /// `run.name`.
    pub name: String,
    /// `decode` or `question`.
    pub protocol: String,
    /// Seed of the run.
    pub seed: u64,
    /// Repeats of every (sample, cell).
    pub repeats: u32,
    /// What looked like a slip in the configuration.
    pub notes: Vec<String>,
    /// The model.
    pub model: ModelRecord,
    /// The tasks.
    pub tasks: Vec<TaskRecord>,
    /// The cells.
    pub cells: Vec<CellRecord>,
}

impl Frame {
    /// From the plan and what it was made real with.
    pub fn new(plan: &Plan, opened: &Opened, samples: &Samples, ideal: &[bool], fingerprint: &str) -> Self {
        let config = &opened.checkpoint.config;
        let g = &config.geometry;
        let model = ModelRecord {
            name: opened.name.clone(),
            family: format!("{:?}", config.family).to_lowercase(),
            digest: opened.checkpoint.digest.clone(),
            tokenizer_digest: opened.checkpoint.tokenizer.digest().to_owned(),
            layers: g.layers,
            heads: g.heads,
            kv_heads: g.kv_heads,
            head_dim: g.head_dim,
            max_positions: g.max_positions,
            kv_bytes_per_token: g.kv_bytes_per_token(),
        };
        let task = |(t, prompts): (&crate::plan::PlannedTask, &String)| TaskRecord {
            label: t.label.clone(),
            name: t.name.clone(),
            version: t.task.version(),
            length: t.length,
            samples: t.indices.len(),
            teacher_forced: t.forced(),
            // NaN is no JSON: a record with one could not be read back.
            chance: Some(t.task.chance()).filter(|c| c.is_finite()),
            unit: t.task.unit().to_owned(),
            prompts_sha256: prompts.clone(),
            data_sha256: t.task.data_sha256().map(str::to_owned),
        };
        let tasks = plan.tasks.iter().zip(&samples.digests).map(task).collect();
        let longest = plan.tasks.iter().map(|t| t.length).max().unwrap_or(0);
        let cells = plan.cells.iter().zip(ideal).map(|(c, &ideal)| cell(c, ideal, longest)).collect();
        Self {
            fingerprint: fingerprint.to_owned(),
            name: plan.name.clone(),
            protocol: plan.protocol.name().to_owned(),
            seed: plan.seed,
            repeats: plan.repeats,
            notes: plan.notes.clone(),
            model,
            tasks,
            cells,
        }
    }

    /// Of a run that is recorded already, with the notes of its configuration.
    pub fn of(results: &Results, notes: &[String]) -> Self {
        Self {
            fingerprint: results.fingerprint.clone(),
            name: results.name.clone(),
            protocol: results.protocol.clone(),
            seed: results.seed,
            repeats: results.repeats,
            notes: notes.to_vec(),
            model: results.model.clone(),
            tasks: results.tasks.clone(),
            cells: results.cells.clone(),
        }
    }

    /// (sample, cell, repeat) triples.
    fn units(&self) -> u64 {
        let samples: usize = self.tasks.iter().map(|t| t.samples).sum();
        (samples * self.cells.len()) as u64 * u64::from(self.repeats)
    }
}

fn cell(c: &PlannedCell, ideal: bool, length: usize) -> CellRecord {
    let settings = c.settings(length, 0);
    let ranks = !matches!(c.mode, Mode::Dense | Mode::Window);
    let caps = ranks && (c.cap.is_some() || c.mode == Mode::Static);
    CellRecord {
        label: c.label.clone(),
        family: c.family.clone().unwrap_or_else(|| c.label.clone()),
        mode: c.mode.name().to_owned(),
        added: c.added,
        block_tokens: c.block,
        budget_tokens: c.budget.map(|b| b.tokens(length)),
        budget: c.budget.map(|b| b.to_string()),
        sink_blocks: c.sink_blocks,
        window_blocks: settings.window(),
        k: ranks.then(|| settings.k()),
        cap_blocks: caps.then(|| settings.cap_blocks()),
        cap: c.cap.map(|x| x.to_string()),
        predictor: c.predictor.as_ref().map(ToString::to_string),
        summary: c.summary.as_ref().map(ToString::to_string),
        evictor: c.evictor.as_ref().map(ToString::to_string),
        draft: c.draft.as_ref().map(ToString::to_string),
        ideal,
        emit: if c.emit == Emit::One { "one" } else { "accepted" }.to_owned(),
        attend: if c.scope == Scope::Resident { "resident" } else { "selected" }.to_owned(),
        batch: c.batch,
        audit: c.audit,
    }
}

/// Puts records into the order of the plan, so that the number of workers leaves no trace.
pub fn sort(records: &mut Records, frame: &Frame) {
    let cells: HashMap<&str, usize> =
        frame.cells.iter().enumerate().map(|(i, c)| (c.label.as_str(), i)).collect();
    let tasks: HashMap<&str, usize> =
        frame.tasks.iter().enumerate().map(|(i, t)| (t.label.as_str(), i)).collect();
    let at = |cell: &str, task: &str| (tasks.get(task).copied(), cells.get(cell).copied());
    let index: HashMap<String, usize> = records.samples.iter().map(|s| (s.sample.clone(), s.index)).collect();
    let of = |sample: &str| index.get(sample).copied();
    records.samples.sort_by_key(|s| (at(&s.cell, &s.task).0, s.index, s.repeat, at(&s.cell, &s.task).1));
    records
        .layers
        .sort_by_key(|l| (at(&l.cell, &l.task).0, of(&l.sample), l.repeat, at(&l.cell, &l.task).1, l.layer));
    records
        .timings
        .sort_by_key(|t| (at(&t.cell, &t.task).0, of(&t.sample), t.repeat, at(&t.cell, &t.task).1));
}

/// A summary of everything recorded so far.
pub fn summarise(frame: &Frame, records: &Records, machine: Machine) -> Results {
    let mut rows = Vec::new();
    for cell in &frame.cells {
        for task in &frame.tasks {
            rows.push(row(cell, task, records));
        }
    }
    mark_noise(&mut rows, frame);
    let failed = records.samples.iter().filter(|s| s.outcome == Outcome::Failed);
    let failures: Vec<Failure> = failed.map(failure).collect();
    let (planned, recorded) = (frame.units(), records.samples.len() as u64);
    let status = match (recorded < planned, failures.is_empty()) {
        (true, _) => Status::Partial,
        (false, false) => Status::Failed,
        (false, true) => Status::Complete,
    };
    let machine = timings(frame, records, machine);
    let dense = frame.cells.first().map_or("", |c| c.label.as_str());
    let mut checks = invariants::counters(&frame.cells, &frame.model, records);
    checks.push(invariants::covered(dense, records));
    checks.push(invariants::order(&frame.cells, &rows, records));
    let memory = invariants::memory(&frame.cells, &machine.memory);
    checks.push(memory);
    let warnings = warnings(frame, &rows, &checks, records, status);
    Results {
        schema_version: SCHEMA_VERSION,
        fingerprint: frame.fingerprint.clone(),
        name: frame.name.clone(),
        status,
        n_planned: planned,
        n_done: recorded - failures.len() as u64,
        n_failed: failures.len() as u64,
        protocol: frame.protocol.clone(),
        seed: frame.seed,
        repeats: frame.repeats,
        model: frame.model.clone(),
        tasks: frame.tasks.clone(),
        cells: frame.cells.clone(),
        rows,
        invariants: checks,
        warnings,
        failures,
        machine,
    }
}

fn failure(s: &SampleRecord) -> Failure {
    let error = s.error.clone().unwrap_or_default();
    Failure { sample: s.sample.clone(), cell: s.cell.clone(), error }
}

fn row(cell: &CellRecord, task: &TaskRecord, records: &Records) -> RowRecord {
    let mut group = Group::default();
    let mine = |c: &str, t: &str| c == cell.label && t == task.label;
    let all: Vec<&SampleRecord> = records.samples.iter().filter(|s| mine(&s.cell, &s.task)).collect();
    group.samples = all.iter().copied().filter(|s| s.outcome == Outcome::Done).collect();
    for l in records.layers.iter().filter(|l| mine(&l.cell, &l.task)) {
        group.layers.entry((&l.sample, l.repeat)).or_default().push(l);
    }
    RowRecord {
        cell: cell.label.clone(),
        task: task.label.clone(),
        n_done: group.samples.len() as u64,
        n_failed: (all.len() - group.samples.len()) as u64,
        non_discriminative: false,
        covered: !group.samples.is_empty() && group.samples.iter().all(|s| s.covered),
        metrics: group.metrics(),
        layers: group.layers(),
        heads: heads::figures(&group),
        steps: group.steps(),
    }
}

/// A task that dense decoding does not solve tells no cells apart.
fn mark_noise(rows: &mut [RowRecord], frame: &Frame) {
    let Some(dense) = frame.cells.first() else { return };
    for task in frame.tasks.iter().filter(|t| !t.teacher_forced) {
        let of_dense = rows.iter().find(|r| r.cell == dense.label && r.task == task.label);
        let accuracy = of_dense.and_then(|r| r.metrics.get("accuracy"));
        let chance = task.chance.unwrap_or(0.0);
        let noise = accuracy.is_some_and(|a| a.value <= chance + 2.0 * a.stderr.unwrap_or(0.0));
        rows.iter_mut().filter(|r| r.task == task.label).for_each(|r| r.non_discriminative = noise);
    }
}

fn timings(frame: &Frame, records: &Records, mut machine: Machine) -> Machine {
    for cell in &frame.cells {
        let of_cell: Vec<&TimingRecord> = records.timings.iter().filter(|t| t.cell == cell.label).collect();
        for task in &frame.tasks {
            let own: Vec<&TimingRecord> = of_cell.iter().copied().filter(|t| t.task == task.label).collect();
            let metrics = timing::metrics(&own, !cell.audit);
            if !metrics.is_empty() {
                machine.rows.push(TimingRow { cell: cell.label.clone(), task: task.label.clone(), metrics });
            }
        }
        machine.memory.push(timing::memory(&cell.label, &of_cell));
    }
    machine
}

fn warnings(
    frame: &Frame,
    rows: &[RowRecord],
    checks: &[Invariant],
    records: &Records,
    status: Status,
) -> Vec<String> {
    let mut warnings = frame.notes.clone();
    if status == Status::Partial {
        warnings.push("the run is PARTIAL: figures are of the samples that were decoded so far".to_owned());
    }
    for check in checks.iter().filter(|c| c.verdict == Verdict::Warning) {
        warnings.push(format!("{}: {}", check.name, check.detail));
    }
    let noisy = frame.tasks.iter().filter(|t| rows.iter().any(|r| r.task == t.label && r.non_discriminative));
    for task in noisy {
        warnings.push(format!("dense decoding is at chance on `{}`: it tells no cells apart", task.label));
    }
    for cell in &frame.cells {
        let own = || rows.iter().filter(|r| r.cell == cell.label);
        if own().any(|r| r.n_done > 0) && own().filter(|r| r.n_done > 0).all(|r| r.covered) {
            warnings.push(format!(
                "cell `{}`: the budget covers every context, it equals dense decoding",
                cell.label
            ));
        }
        let never =
            |r: &RowRecord| r.metrics.get("acceptance_length").is_some_and(|a| a.value == 1.0 && a.n > 1);
        if own().any(never) && own().filter(|r| r.metrics.contains_key("acceptance_length")).all(never) {
            warnings.push(format!(
                "cell `{}`: not one draft token was right; is it the right draft head?",
                cell.label
            ));
        }
        let nans: u64 =
            records.samples.iter().filter(|s| s.cell == cell.label).map(|s| s.counters.nans).sum();
        if nans > 0 {
            warnings.push(format!("cell `{}`: {nans} block scores were NaN and ranked last", cell.label));
        }
    }
    warnings
}
