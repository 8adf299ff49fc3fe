//! The report that `oasis run` prints.

use super::tables;
use super::units;
use super::view::View;
use crate::record::{Results, Status, SweepPlan, SweepResults, Verdict};

/// Failures that are printed; all of them are in `report.md`.
const FAILURES_SHOWN: usize = 5;

/// Cells above which the accuracy by task is left to `report.md`: the overview must fit a screen.
const CELLS_BY_TASK: usize = 12;

/// The report of a run for a terminal of `width` columns.
pub fn render(results: &Results, width: u16) -> String {
    let view = View::new(results);
    let mut out = heading(results);
    out += &invariants(results, width);
    out += "\n";
    out += &tables::main(&view, 2).terminal(width);
    for (title, grid) in [
        ("accuracy by task", tables::by_task(&view, 2).filter(|_| results.cells.len() <= CELLS_BY_TASK)),
        ("distance from dense", tables::fidelity(&view, 2)),
        ("speed (mean over tasks)", tables::speed(&view)),
    ] {
        if let Some(grid) = grid {
            out += &format!("\n{title}\n{}", grid.terminal(width));
        }
    }
    for note in tables::footnotes(&view) {
        out += &line(&note, "", width);
    }
    for warning in tables::warnings(&results.warnings, false) {
        out += &line(&format!("warning: {warning}"), "", width);
    }
    out += &failures(results, width);
    out
}

/// What came of a sweep: the table of its only run, or one line for each of several; then all together.
pub fn sweep(plan: &SweepPlan, results: &SweepResults) -> String {
    let mut out = match &results.runs[..] {
        [run] => run.results.as_ref().map(|r| render(r, super::WIDTH)).unwrap_or_default(),
        _ => String::new(),
    };
    for (run, planned) in results.runs.iter().zip(&plan.runs) {
        let n = planned.n_planned;
        out += &match (&run.results, &run.error) {
            (Some(r), _) if results.runs.len() > 1 => {
                let (done, failed) = (r.n_done, r.n_failed);
                format!("{} · {} ({done} of {n} decodes, {failed} failed)\n", run.name, status(r.status))
            }
            (Some(_), _) => String::new(),
            (None, Some(error)) => format!("{} · FAILED ({n} decodes): {error}\n", run.name),
            (None, None) => format!("{} · not begun ({n} decodes)\n", run.name),
        };
    }
    let (done, of, failed) = (results.n_done, results.n_planned, results.n_failed);
    let state = status(results.status);
    out += &format!("sweep {} · {state} ({done} of {of} decodes, {failed} failed)\n", results.name);
    if let Some(shard) = &plan.shard {
        let (n, own) = (done + failed, plan.all_own());
        out += &format!("shard {shard}: {n} of its {own} decodes; `oasis merge` joins all shards\n");
    }
    out
}

/// A sentence in as many lines as it needs, the later ones two columns further in.
fn line(text: &str, indent: &str, width: u16) -> String {
    let hanging = indent.len() + 2;
    format!("{indent}{}\n", units::wrapped(text, usize::from(width).saturating_sub(hanging).max(1), hanging))
}

/// `COMPLETE` and its like.
pub fn status(s: Status) -> &'static str {
    match s {
        Status::Complete => "COMPLETE",
        Status::Partial => "PARTIAL",
        Status::Failed => "FAILED",
    }
}

fn heading(r: &Results) -> String {
    let failed = if r.n_failed > 0 { format!(", {} failed", r.n_failed) } else { String::new() };
    format!(
        "{} · {} · protocol {} · seed {} · {} ({} of {} decodes{failed})\n",
        r.name,
        r.model.name,
        r.protocol,
        r.seed,
        status(r.status),
        r.n_done,
        r.n_planned
    )
}

/// One line if all is well; every other verdict in full.
fn invariants(r: &Results, width: u16) -> String {
    let held = r.invariants.iter().filter(|i| i.verdict == Verdict::Held).count();
    let others: Vec<_> = r
        .invariants
        .iter()
        .filter(|i| matches!(i.verdict, Verdict::Violated | Verdict::Warning))
        .cloned()
        .collect();
    let idle = r.invariants.iter().filter(|i| i.verdict == Verdict::NotChecked).count();
    let idle = if idle > 0 { format!(", {idle} with nothing to check") } else { String::new() };
    let mut out = format!("invariants: {held} held, {} not{idle}\n", others.len());
    for text in tables::invariants(&others) {
        out += &line(&text, "  ", width);
    }
    out
}

fn failures(r: &Results, width: u16) -> String {
    let mut out = String::new();
    for f in r.failures.iter().take(FAILURES_SHOWN) {
        out += &line(&format!("failed: {} in {}: {}", f.sample, f.cell, f.error), "", width);
    }
    let rest = r.failures.len().saturating_sub(FAILURES_SHOWN);
    if rest > 0 {
        out += &format!("... and {rest} more, see report.md\n");
    }
    out
}
