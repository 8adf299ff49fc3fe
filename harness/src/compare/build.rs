//! From two runs to a comparison.

use super::cells::{CellPair, Matched};
use super::pairs::{self, Pair, Settings, Subject};
use super::record::{Change, Comparison, Row, SCHEMA_VERSION};
use super::side::Side;
use super::{cells, same};
use crate::record::{Metrics, Results, TaskRecord};
use crate::report::metric;
use anyhow::{Result, bail};
use oasis_core::Error;

/// What is asked of a comparison.
pub struct Request<'a> {
    /// Compare only the samples that both have.
    pub common: bool,
    /// Labels of cells to compare, in pairs; empty: those that match.
    pub cells: &'a [String],
    /// Level and seed.
    pub settings: Settings,
}

/// Compares `b` with `a`.
///
/// # Errors
/// Their samples are no pairs (see [`same::check`]), or nothing is left to compare.
pub fn compare(a: Side, b: Side, request: &Request<'_>) -> Result<Comparison> {
    same::check(&a, &b, request.common)?;
    let Matched { pairs: matched, only_a, only_b } =
        if request.cells.is_empty() { cells::matched(&a, &b) } else { cells::named(&a, &b, request.cells)? };
    if matched.is_empty() {
        let what = format!(
            "no cell of A (`{}`) has a partner in B (`{}`); --cells A B names pairs",
            only_a.join("`, `"),
            only_b.join("`, `")
        );
        bail!(Error::setting("compare", what));
    }
    let mut out = Comparison {
        schema_version: SCHEMA_VERSION,
        notes: same::notes(&a, &b),
        a: a.head.clone(),
        b: b.head.clone(),
        common: request.common,
        level: request.settings.level,
        seed: request.settings.seed,
        cells: Vec::new(),
        only_a,
        only_b,
        rows: Vec::new(),
        decisions: Vec::new(),
        changes: Vec::new(),
        rules: Vec::new(),
    };
    let mut left_out = 0;
    for cell in &matched {
        left_out += add_cell(&mut out, (&a, &b), cell, request)?;
    }
    if out.decisions.iter().all(|d| d.pairs == 0) {
        bail!(Error::setting("compare", "the runs have no decoded sample in common"));
    }
    if left_out > 0 {
        out.notes.push(format!(
            "--common: {left_out} decoded samples (all cells together) are in one run only and left out"
        ));
    }
    out.cells = matched;
    pairs::judge(&mut out.rows, request.settings.level);
    let rows: Vec<Change> = out.rows.iter().map(of_row).collect();
    out.changes.splice(0..0, rows);
    Ok(out)
}

/// Adds everything of one pair of cells; gives how many samples were left out.
fn add_cell(
    out: &mut Comparison,
    (a, b): (&Side, &Side),
    cell: &CellPair,
    request: &Request<'_>,
) -> Result<usize> {
    let tasks: Vec<&TaskRecord> =
        a.results.tasks.iter().filter(|t| b.results.tasks.iter().any(|u| u.label == t.label)).collect();
    let (mut all, mut by_task, mut left_out) = (Vec::new(), Vec::new(), 0);
    for task in tasks {
        let (pairs, alone) = pairs::paired((a, b), cell, &task.label, request.common)?;
        left_out += alone;
        // Means over other samples are no pairs.
        if alone == 0 {
            out.changes.extend(metrics(
                (&a.results, &cell.a),
                (&b.results, &cell.b),
                &cell.name,
                &task.label,
            ));
        }
        all.extend(pairs.iter().copied());
        by_task.push((task, pairs));
    }
    out.decisions.push(pairs::decisions(&cell.name, &all));
    let noise = |t: &TaskRecord| {
        let of = |r: &Results| r.rows.iter().any(|x| x.task == t.label && x.non_discriminative);
        of(&a.results) || of(&b.results)
    };
    for name in [metric::ACCURACY, metric::KL] {
        let mine: Vec<_> = by_task.iter().filter(|(t, _)| pairs::measure(t).0 == name).collect();
        let kept: Vec<_> = mine.iter().filter(|(t, _)| !noise(t)).collect();
        if mine.len() > 1 && !kept.is_empty() {
            let pooled: Vec<Pair<'_>> = kept.iter().flat_map(|(_, p)| p.iter().copied()).collect();
            let subject = Subject {
                cell: &cell.name,
                task: None,
                measure: pairs::measure(kept[0].0),
                unit: &unit(kept[0].0),
                primary: true,
                at_chance: false,
            };
            out.rows.extend(pairs::row(&subject, &pooled, request.settings)?);
        }
        for (task, pairs) in &mine {
            let subject = Subject {
                cell: &cell.name,
                task: Some(&task.label),
                measure: pairs::measure(task),
                unit: &unit(task),
                primary: mine.len() == 1,
                at_chance: noise(task),
            };
            out.rows.extend(pairs::row(&subject, pairs, request.settings)?);
        }
    }
    Ok(left_out)
}

fn unit(task: &TaskRecord) -> String {
    if task.teacher_forced { "nat".to_owned() } else { "share".to_owned() }
}

/// A tested value as a change, so that rules see the paired samples.
fn of_row(row: &Row) -> Change {
    Change {
        cell: row.cell.clone(),
        task: row.task.clone(),
        metric: row.measure.clone(),
        unit: row.unit.clone(),
        a: Some(row.a),
        b: Some(row.b),
        higher_is_better: Some(row.measure == metric::ACCURACY),
    }
}

/// All other metrics of a cell on a task: of its records and of the machine.
fn metrics((a, x): (&Results, &str), (b, y): (&Results, &str), cell: &str, task: &str) -> Vec<Change> {
    let (of_a, of_b) = (gathered(a, x, task), gathered(b, y, task));
    let names: std::collections::BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    let tested = |name: &str| name == metric::ACCURACY || name == metric::KL;
    let change = |name: &String| {
        let either = of_a.get(name).or(of_b.get(name))?;
        Some(Change {
            cell: cell.to_owned(),
            task: Some(task.to_owned()),
            metric: name.clone(),
            unit: either.unit.clone(),
            a: of_a.get(name).map(|m| m.value),
            b: of_b.get(name).map(|m| m.value),
            higher_is_better: either.higher_is_better,
        })
    };
    names.into_iter().filter(|n| !tested(n)).filter_map(change).collect()
}

fn gathered(results: &Results, cell: &str, task: &str) -> Metrics {
    let of_records = results.rows.iter().filter(|r| r.cell == cell && r.task == task).map(|r| &r.metrics);
    let of_machine =
        results.machine.rows.iter().filter(|r| r.cell == cell && r.task == task).map(|r| &r.metrics);
    of_records.chain(of_machine).flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
}
