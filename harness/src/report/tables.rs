//! The tables of a report, alike for terminal and Markdown.

use super::grid::Grid;
use super::metric;
use super::units;
use super::view::{Figure, Line, View};
use crate::record::{Invariant, Verdict};

/// Digits after the point of shares: two in the terminal, three in `report.md`.
pub type Digits = usize;

/// Marks behind a cell's name, with their meaning.
const MARKS: [(&str, &str); 3] = [
    ("†", "ideal draft: it is given the token that dense decoding takes; an upper bound, not a method"),
    ("=", "the budget covers the context of every sample: the same as dense decoding"),
    ("!", "some samples failed; the figures are those of the rest"),
];

fn marks(line: &Line<'_>) -> [bool; 3] {
    [line.cell.ideal, line.covered(), line.samples().1 > 0]
}

fn named(line: &Line<'_>) -> String {
    let marks: String =
        MARKS.iter().zip(marks(line)).filter(|(_, yes)| *yes).map(|((mark, _), _)| *mark).collect();
    if marks.is_empty() { line.name.clone() } else { format!("{} {marks}", line.name) }
}

/// Explanations of the marks that occur.
pub fn footnotes(view: &View<'_>) -> Vec<String> {
    let used = |i: usize| view.lines.iter().any(|l| marks(l)[i]);
    let mut notes: Vec<String> = MARKS
        .iter()
        .enumerate()
        .filter(|(i, _)| used(*i))
        .map(|(_, (mark, meaning))| format!("{mark} {meaning}"))
        .collect();
    if view.scored().iter().any(|&t| view.non_discriminative(t)) {
        notes.push(
            "~ dense decoding is at chance on this task: differences between cells say nothing".to_owned(),
        );
    }
    notes
}

fn share(f: Figure, digits: Digits) -> String {
    format!("{:.digits$}", f.value)
}

fn with_error(f: Figure, digits: Digits) -> String {
    match f.stderr {
        Some(e) => format!("{:.digits$} ±{e:.digits$}", f.value),
        None => format!("{:.digits$}", f.value),
    }
}

fn significant(f: Figure, _: Digits) -> String {
    units::significant(f.value)
}

fn significant_with_error(f: Figure, digits: Digits) -> String {
    match f.stderr {
        // The terminal has no room for the errors of small numbers; `report.md` gives them.
        Some(e) if digits > 2 => format!("{} ±{}", units::significant(f.value), units::significant(e)),
        _ => units::significant(f.value),
    }
}

fn bytes(f: Figure, _: Digits) -> String {
    units::bytes_f(f.value)
}

type Format = fn(Figure, Digits) -> String;

/// Columns that are one metric, averaged over tasks: (metric, title, format).
type Spec = (&'static str, &'static str, Format);

const FIDELITY: &[Spec] = &[
    (metric::KL, "KL\nnat", significant_with_error),
    (metric::TOP1, "top-1", share),
    (metric::PPL_DELTA, "Δ ppl", significant_with_error),
];

const SELECTION: &[Spec] = &[
    (metric::AGREEMENT_RIGHT, "draft\nright", share),
    (metric::AGREEMENT_WRONG, "draft\nwrong", share),
    (metric::RECALL, "exact\nrecall", share),
    (metric::MASS, "mass\nrecall", share),
];

const TRAFFIC: &[Spec] = &[
    (metric::BYTES, "moved\na step", bytes),
    (metric::HIT_RATE, "hit\nrate", share),
    (metric::DROPPED, "dropped\na step", significant),
];

/// In `report.md` only: the terminal has no room.
const MORE: &[Spec] = &[
    (metric::OUTPUT_ERROR, "output\nerror", share),
    (metric::WASTED, "wasted\na step", significant),
    (metric::DRAFT_RIGHT, "drafts\nright", share),
    (metric::ACCEPTANCE, "acceptance", share),
];

fn key_columns(grid: &mut Grid, view: &View<'_>) {
    grid.words("cell", view.lines.iter().map(|l| Some(named(l))).collect());
    grid.numbers("budget", view.lines.iter().map(|l| l.cell.budget_tokens.map(|b| b.to_string())).collect());
    grid.words("cap (C)", view.lines.iter().map(Line::cap).collect());
}

fn spec_columns(grid: &mut Grid, view: &View<'_>, specs: &[Spec], digits: Digits) {
    for (name, title, format) in specs {
        grid.numbers(title, view.lines.iter().map(|l| l.figure(name).map(|f| format(f, digits))).collect());
    }
}

fn agreement_columns(grid: &mut Grid, view: &View<'_>, digits: Digits) {
    spec_columns(grid, view, &[(metric::AGREEMENT, "agree-\nment", share)], digits);
    let min = |l: &Line<'_>| {
        let (value, layer) = l.min_layer(metric::AGREEMENT)?;
        Some(if digits > 2 {
            format!("{value:.digits$} (layer {layer})")
        } else {
            format!("{value:.digits$}")
        })
    };
    grid.numbers("min\nlayer", view.lines.iter().map(min).collect());
    spec_columns(grid, view, SELECTION, digits);
}

/// The table of a run: one row a cell.
pub fn main(view: &View<'_>, digits: Digits) -> Grid {
    let mut grid = Grid::default();
    key_columns(&mut grid, view);
    let scored = view.scored();
    if !scored.is_empty() {
        let title = if scored.len() > 1 { "accuracy\nmean" } else { "accuracy" };
        let cells = view.lines.iter().map(|l| view.accuracy(l).map(|f| with_error(f, digits)));
        grid.numbers(title, cells.collect());
    }
    if scored.is_empty() || digits > 2 {
        spec_columns(&mut grid, view, FIDELITY, digits);
    }
    agreement_columns(&mut grid, view, digits);
    spec_columns(&mut grid, view, TRAFFIC, digits);
    if digits > 2 {
        spec_columns(&mut grid, view, MORE, digits);
    }
    grid
}

/// Accuracy by task, if there is more than one to tell apart.
pub fn by_task(view: &View<'_>, digits: Digits) -> Option<Grid> {
    let scored = view.scored();
    if scored.len() < 2 {
        return None;
    }
    let mut grid = Grid::default();
    key_columns(&mut grid, view);
    for t in scored {
        let task = &view.results.tasks[t];
        let mark = if view.non_discriminative(t) { " ~" } else { "" };
        let cells = view.lines.iter().map(|l| l.on(t, metric::ACCURACY).map(|f| with_error(f, digits)));
        grid.numbers(&format!("{}{mark}\nn={}", task.label, task.samples), cells.collect());
    }
    Some(grid)
}

/// Distance from dense by task: in the terminal where the main table has no room for it.
pub fn fidelity(view: &View<'_>, digits: Digits) -> Option<Grid> {
    if view.scored().is_empty() || !view.has(metric::KL) {
        return None;
    }
    let mut grid = Grid::default();
    key_columns(&mut grid, view);
    spec_columns(&mut grid, view, FIDELITY, digits);
    Some(grid)
}

/// Throughput of the cells that have one (no audit), averaged over tasks: (metric, title).
const SPEED: &[(&str, &str)] = &[
    ("decode_tok_s", "decode\ntok/s"),
    ("step_ms_p50", "step ms\np50"),
    ("tpot_ms_p50", "TPOT ms\np50"),
    ("exposed_transfer_ms", "exposed\nms a step"),
];

/// Speed for the terminal: one row a cell.
pub fn speed(view: &View<'_>) -> Option<Grid> {
    let timed = |l: &&Line<'_>| speed_of(view, l, SPEED[0].0).is_some();
    let lines: Vec<&Line<'_>> = view.lines.iter().filter(timed).collect();
    // Audited cells have no times of their own; dense alone has nothing to be compared with.
    if lines.is_empty() || (lines.len() == 1 && view.lines.len() > 1) {
        return None;
    }
    let mut grid = Grid::default();
    grid.words("cell", lines.iter().map(|l| Some(named(l))).collect());
    grid.numbers("budget", lines.iter().map(|l| l.cell.budget_tokens.map(|b| b.to_string())).collect());
    grid.words("cap (C)", lines.iter().map(|l| l.cap()).collect());
    for (name, title) in SPEED {
        grid.numbers(title, lines.iter().map(|l| speed_of(view, l, name).map(units::significant)).collect());
    }
    Some(grid)
}

/// A time of a line, mean over the tasks that have it.
pub fn speed_of(view: &View<'_>, line: &Line<'_>, name: &str) -> Option<f64> {
    let rows = view.results.machine.rows.iter().filter(|r| r.cell == line.cell.label);
    let values: Vec<f64> = rows.filter_map(|r| r.metrics.get(name)).map(|m| m.value).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// All times; one row a cell and task.
pub fn times(view: &View<'_>) -> Option<Grid> {
    let rows: Vec<_> = view.results.machine.rows.iter().filter(|r| !r.metrics.is_empty()).collect();
    let mut names: Vec<&str> = rows.iter().flat_map(|r| r.metrics.keys()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return None;
    }
    let mut grid = Grid::default();
    grid.words("cell", rows.iter().map(|r| Some(r.cell.clone())).collect());
    grid.words("task", rows.iter().map(|r| Some(r.task.clone())).collect());
    for name in names {
        let title = name.replace("_tok_s", " tok/s").replace('_', " ");
        let cells = rows.iter().map(|r| r.metrics.get(name).map(|m| significant(m.into(), 2)));
        grid.numbers(&title, cells.collect());
    }
    Some(grid)
}

/// Memory planned and held; one row a cell.
pub fn memory(view: &View<'_>) -> Option<Grid> {
    let rows = &view.results.machine.memory;
    if rows.is_empty() {
        return None;
    }
    let sum = |host: bool| {
        move |r: &crate::record::MemoryRow| {
            Some(units::bytes(r.pools.iter().filter(|p| p.host == host).map(|p| p.bytes).sum()))
        }
    };
    let mut grid = Grid::default();
    grid.words("cell", rows.iter().map(|r| Some(r.cell.clone())).collect());
    grid.numbers("device, planned", rows.iter().map(sum(false)).collect());
    grid.numbers("host, planned", rows.iter().map(sum(true)).collect());
    grid.numbers("both, allocated", rows.iter().map(|r| Some(units::bytes(r.allocated))).collect());
    Some(grid)
}

/// How the cells decode: one row a cell.
pub fn configuration(view: &View<'_>) -> Grid {
    let lines = &view.lines;
    let mut grid = Grid::default();
    let mut column = |title: &str, of: &dyn Fn(&Line<'_>) -> Option<String>| {
        grid.words(title, lines.iter().map(of).collect());
    };
    column("cell", &|l| Some(l.cell.label.clone()));
    column("mode", &|l| Some(l.cell.mode.clone()));
    column("budget", &|l| l.cell.budget.clone());
    column("block", &|l| Some(l.cell.block_tokens.to_string()));
    column("sinks + window", &|l| {
        l.cell.budget_tokens?;
        Some(format!("{} + {} blocks", l.cell.sink_blocks, l.cell.window_blocks))
    });
    column("K", &|l| l.cell.k.map(|k| k.to_string()));
    column("cap (C)", &|l| l.cap());
    column("predictor", &|l| l.cell.predictor.clone());
    column("draft", &|l| l.cell.draft.clone());
    column("summary", &|l| l.cell.summary.clone());
    column("evictor", &|l| l.cell.evictor.clone());
    column("attend", &|l| l.cell.budget_tokens.map(|_| l.cell.attend.clone()));
    column("emit", &|l| Some(l.cell.emit.clone()));
    column("batch", &|l| Some(l.cell.batch.to_string()));
    column("audit", &|l| Some(if l.cell.audit { "yes" } else { "no" }.to_owned()));
    grid
}

/// The tasks.
pub fn tasks(view: &View<'_>) -> Grid {
    let tasks = &view.results.tasks;
    let mut grid = Grid::default();
    grid.words("task", tasks.iter().map(|t| Some(t.label.clone())).collect());
    grid.words("generator", tasks.iter().map(|t| Some(format!("{} v{}", t.name, t.version))).collect());
    grid.numbers("length", tasks.iter().map(|t| Some(t.length.to_string())).collect());
    grid.numbers("samples", tasks.iter().map(|t| Some(t.samples.to_string())).collect());
    let scored = |t: &crate::record::TaskRecord| {
        Some(if t.teacher_forced { "no score: distance from dense".to_owned() } else { t.unit.clone() })
    };
    grid.words("score", tasks.iter().map(scored).collect());
    let chance = |t: &crate::record::TaskRecord| t.chance.map(units::significant);
    grid.numbers("chance", tasks.iter().map(chance).collect());
    grid.words("prompts sha256", tasks.iter().map(|t| Some(short_hash(&t.prompts_sha256))).collect());
    grid
}

/// The first digits of a hash: enough to compare by eye.
pub fn short_hash(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Warnings, those that say the same of several cells in one; `name` them all or only count them.
pub fn warnings(list: &[String], name: bool) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for text in list {
        let (cell, rest) =
            text.strip_prefix("cell `").and_then(|t| t.split_once("`: ")).unwrap_or(("", text.as_str()));
        match groups.iter_mut().find(|(r, cells)| *r == rest && !cell.is_empty() && !cells[0].is_empty()) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((rest, vec![cell])),
        }
    }
    let line = |(rest, cells): (&str, Vec<&str>)| match cells[..] {
        [""] => rest.to_owned(),
        [cell] => format!("cell `{cell}`: {rest}"),
        _ if name => format!("cells `{}`: {rest}", cells.join("`, `")),
        _ => format!("{} cells: {rest}", cells.len()),
    };
    groups.into_iter().map(line).collect()
}

/// One line an invariant, broken ones first.
pub fn invariants(list: &[Invariant]) -> Vec<String> {
    let mut sorted: Vec<&Invariant> = list.iter().collect();
    sorted.sort_by_key(|i| match i.verdict {
        Verdict::Violated => 0,
        Verdict::Warning => 1,
        Verdict::Held => 2,
        Verdict::NotChecked => 3,
    });
    sorted.iter().map(|i| format!("{} {}: {}", verdict(i.verdict), i.name, i.detail)).collect()
}

fn verdict(v: Verdict) -> &'static str {
    match v {
        Verdict::Held => "held",
        Verdict::Warning => "WARNING",
        Verdict::Violated => "VIOLATED",
        Verdict::NotChecked => "not checked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_say_the_same_are_one() {
        let list =
            ["few samples", "cell `a`: covered", "cell `b`: ideal", "cell `c`: covered", "few samples"];
        let list: Vec<String> = list.map(str::to_owned).to_vec();
        let counted = ["few samples", "2 cells: covered", "cell `b`: ideal", "few samples"];
        assert_eq!(warnings(&list, false), counted);
        assert_eq!(warnings(&list, true)[1], "cells `a`, `c`: covered");
    }
}
