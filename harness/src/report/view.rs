//! A run's results arranged for reading: one line a cell, tasks side by side.

use super::metric;
use crate::record::{CellRecord, LayerHeads, Metric, Results, RowRecord, StepPoint, TaskRecord};

/// A number and its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Its standard error, where one is known.
    pub stderr: Option<f64>,
}

impl From<&Metric> for Figure {
    fn from(m: &Metric) -> Self {
        Self { value: m.value, stderr: m.stderr }
    }
}

/// The unweighted mean; its error where all errors are known (tasks are independent).
fn mean(figures: &[Figure]) -> Option<Figure> {
    if figures.is_empty() {
        return None;
    }
    let n = figures.len() as f64;
    let squares: Option<f64> = figures.iter().map(|f| f.stderr.map(|e| e * e)).sum();
    Some(Figure {
        value: figures.iter().map(|f| f.value).sum::<f64>() / n,
        stderr: squares.map(|s| s.sqrt() / n),
    })
}

/// One cell with its results on every task.
#[derive(Debug)]
pub struct Line<'a> {
    /// The cell.
    pub cell: &'a CellRecord,
    /// Its name in tables, unique there together with budget and cap.
    pub name: String,
    /// Its results, by task in the order of [`Results::tasks`].
    pub rows: Vec<Option<&'a RowRecord>>,
}

impl<'a> Line<'a> {
    fn present(&self) -> impl Iterator<Item = &'a RowRecord> + '_ {
        self.rows.iter().flatten().copied()
    }

    /// A metric averaged over the tasks that have it.
    pub fn figure(&self, name: &str) -> Option<Figure> {
        let all: Vec<Figure> = self.present().filter_map(|r| r.metrics.get(name)).map(Figure::from).collect();
        mean(&all)
    }

    /// A metric on one task.
    pub fn on(&self, task: usize, name: &str) -> Option<Figure> {
        self.rows.get(task).copied().flatten()?.metrics.get(name).map(Figure::from)
    }

    /// A metric by layer, averaged over the tasks that have it; none where a layer has no value.
    pub fn by_layer(&self, name: &str) -> Vec<Option<f64>> {
        let layers = self.present().map(|r| r.layers.len()).max().unwrap_or(0);
        let of_layer = |l: usize| {
            let all: Vec<Figure> = self
                .present()
                .filter_map(|r| r.layers.get(l)?.get(name))
                .map(Figure::from)
                .filter(|f| f.value.is_finite())
                .collect();
            mean(&all).map(|f| f.value)
        };
        (0..layers).map(of_layer).collect()
    }

    /// A metric by layer and KV head, averaged over the tasks that have it; empty where no task has.
    pub fn by_head(&self, name: &str) -> LayerHeads {
        let tasks: Vec<&LayerHeads> = self.present().filter_map(|r| r.heads.get(name)).collect();
        let heads = |l: usize| tasks.iter().filter_map(|t| t.get(l)).map(Vec::len).max().unwrap_or(0);
        let at = |l: usize, h: usize| {
            let all = tasks.iter().filter_map(|t| *t.get(l)?.get(h)?).filter(|v| v.is_finite());
            mean(&all.map(|value| Figure { value, stderr: None }).collect::<Vec<_>>()).map(|f| f.value)
        };
        let layers = tasks.iter().map(|t| t.len()).max().unwrap_or(0);
        (0..layers).map(|l| (0..heads(l)).map(|h| at(l, h)).collect()).collect()
    }

    /// The lowest layer of a metric: its value and number.
    pub fn min_layer(&self, name: &str) -> Option<(f64, usize)> {
        let layers = self.by_layer(name);
        let known = layers.iter().enumerate().filter_map(|(l, v)| v.map(|v| (v, l)));
        known.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Traffic by step, averaged over all samples of all tasks.
    pub fn by_step(&self) -> Vec<StepPoint> {
        let last = self.present().flat_map(|r| &r.steps).map(|s| s.step).max().unwrap_or(0);
        (1..=last).filter_map(|step| self.at_step(step)).collect()
    }

    fn at_step(&self, step: u32) -> Option<StepPoint> {
        let points: Vec<&StepPoint> =
            self.present().flat_map(|r| &r.steps).filter(|s| s.step == step && s.n > 0).collect();
        let n: u64 = points.iter().map(|s| s.n).sum();
        if n == 0 {
            return None;
        }
        let bytes = points.iter().map(|s| s.bytes_h2d * s.n as f64).sum::<f64>() / n as f64;
        let rated: Vec<(f64, u64)> = points.iter().filter_map(|s| s.hit_rate.map(|h| (h, s.n))).collect();
        let weight: u64 = rated.iter().map(|(_, n)| n).sum();
        let hits = rated.iter().map(|(h, n)| h * *n as f64).sum::<f64>();
        Some(StepPoint { step, n, bytes_h2d: bytes, hit_rate: (weight > 0).then(|| hits / weight as f64) })
    }

    /// Samples decoded and failed.
    pub fn samples(&self) -> (u64, u64) {
        self.present().fold((0, 0), |(done, failed), r| (done + r.n_done, failed + r.n_failed))
    }

    /// The budget covered the context on every task.
    pub fn covered(&self) -> bool {
        self.cell.budget_tokens.is_some()
            && self.present().next().is_some()
            && self.present().all(|r| r.covered)
    }

    /// The fetch cap with its integer: `0.05 (2)`, `∞ (14)`.
    pub fn cap(&self) -> Option<String> {
        let written = self.cell.cap.as_deref()?;
        let written = if written == "unlimited" { "∞" } else { written };
        Some(match self.cell.cap_blocks {
            Some(c) if c.to_string() != written => format!("{written} ({c})"),
            _ => written.to_owned(),
        })
    }
}

/// All cells of a run, in the order of reading: dense first, then by budget.
#[derive(Debug)]
pub struct View<'a> {
    /// The results.
    pub results: &'a Results,
    /// The cells.
    pub lines: Vec<Line<'a>>,
}

impl<'a> View<'a> {
    /// Arranges `results`.
    pub fn new(results: &'a Results) -> Self {
        let mut lines: Vec<Line<'a>> = results
            .cells
            .iter()
            .zip(named(&results.cells))
            .map(|(cell, name)| Line {
                cell,
                name,
                rows: results.tasks.iter().map(|t| find_row(results, cell, t)).collect(),
            })
            .collect();
        // Stable: within a budget the order of the configuration stays. None (dense) comes first.
        lines.sort_by_key(|l| l.cell.budget_tokens);
        Self { results, lines }
    }

    /// Numbers of the tasks that have a score.
    pub fn scored(&self) -> Vec<usize> {
        (0..self.results.tasks.len()).filter(|&t| !self.results.tasks[t].teacher_forced).collect()
    }

    /// Whether any cell has the metric.
    pub fn has(&self, name: &str) -> bool {
        self.lines.iter().any(|l| l.figure(name).is_some())
    }

    /// Names of the lines in the order of the configuration, dense aside: one colour each.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (cell, name) in self.results.cells.iter().zip(named(&self.results.cells)) {
            if cell.budget_tokens.is_some() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The reference, if the run has one.
    pub fn dense(&self) -> Option<&Line<'a>> {
        self.lines.iter().find(|l| l.cell.mode == "dense")
    }

    /// Whether dense decoding is at chance on task `t`.
    pub fn non_discriminative(&self, t: usize) -> bool {
        let label = &self.results.tasks[t].label;
        self.results.rows.iter().any(|r| &r.task == label && r.non_discriminative)
    }

    /// Mean accuracy of a line: over scored tasks only, and only if it has all of them.
    pub fn accuracy(&self, line: &Line<'_>) -> Option<Figure> {
        let scored = self.scored();
        let all: Option<Vec<Figure>> = scored.iter().map(|&t| line.on(t, metric::ACCURACY)).collect();
        mean(&all?)
    }
}

fn find_row<'a>(results: &'a Results, cell: &CellRecord, task: &TaskRecord) -> Option<&'a RowRecord> {
    results.rows.iter().find(|r| r.cell == cell.label && r.task == task.label)
}

/// What can differ between cells of a family beside budget and cap.
fn traits(c: &CellRecord) -> [(&'static str, Option<String>); 10] {
    [
        ("", Some(c.mode.clone())),
        ("", c.predictor.clone()),
        ("", c.draft.clone()),
        ("", c.summary.clone()),
        ("", c.evictor.clone()),
        ("attend ", Some(c.attend.clone())),
        ("emit ", Some(c.emit.clone())),
        ("block ", Some(c.block_tokens.to_string())),
        // A window is as long as its budget: no trait of its own.
        ("pinned ", (c.mode != "window").then(|| format!("{}+{}", c.sink_blocks, c.window_blocks))),
        ("batch ", Some(c.batch.to_string())),
    ]
}

/// The family without the cap: budget and cap have columns and panels of their own.
fn without_cap(cell: &CellRecord) -> String {
    match &cell.cap {
        Some(cap) => cell.family.replacen(&format!(" cap={cap}"), "", 1),
        None => cell.family.clone(),
    }
}

/// Family and what differs within it: the name of a line in plots, and of a row beside its budget and cap.
fn named(cells: &[CellRecord]) -> Vec<String> {
    let name = |cell: &CellRecord| {
        let kin: Vec<_> = cells.iter().filter(|c| without_cap(c) == without_cap(cell)).map(traits).collect();
        let mut name = without_cap(cell);
        for (i, (what, value)) in traits(cell).into_iter().enumerate() {
            if kin.iter().any(|k| k[i].1 != value) {
                name += &format!(", {what}{}", value.as_deref().unwrap_or("none"));
            }
        }
        name
    };
    let names: Vec<String> = cells.iter().map(name).collect();
    let mut keys: Vec<_> =
        cells.iter().zip(&names).map(|(c, n)| (n, &c.budget, c.budget_tokens, &c.cap)).collect();
    keys.sort();
    keys.dedup();
    if keys.len() == cells.len() { names } else { cells.iter().map(|c| c.label.clone()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_an_error_only_if_all_parts_have_one() {
        let a = Figure { value: 1.0, stderr: Some(0.3) };
        let b = Figure { value: 0.5, stderr: Some(0.4) };
        assert_eq!(mean(&[a, b]), Some(Figure { value: 0.75, stderr: Some(0.25) }));
        let c = Figure { value: 0.0, stderr: None };
        assert_eq!(mean(&[a, c]).unwrap().stderr, None);
        assert_eq!(mean(&[]), None);
    }
}
