//! What must hold in every run, checked on the records of this one.

use super::output::Records;
use super::stats::Values;
use crate::record::{CellRecord, Invariant, MemoryRow, ModelRecord, RowRecord, SampleRecord, Verdict};
use oasis_core::geometry::BlockShape;
use std::collections::{BTreeMap, HashMap};

/// Standard errors by which a mean difference must exceed chance before it is called an inversion.
const ERRORS: f64 = 2.0;
const MIB: f64 = (1 << 20) as f64;
fn invariant(name: &str, checked: usize, broken: Vec<String>, verdict: Verdict) -> Invariant {
    let (verdict, detail) = match (broken.first(), checked) {
        (Some(first), _) => (verdict, format!("{} of {checked}; first: {first}", broken.len())),
        (None, 0) => (Verdict::NotChecked, "nothing to check".to_owned()),
        (None, n) => (Verdict::Held, format!("{n} checked")),
    };
    Invariant { name: name.to_owned(), verdict, detail }
}

/// Checks the counters of every layer of every (sample, cell).
pub fn counters(cells: &[CellRecord], model: &ModelRecord, records: &Records) -> Vec<Invariant> {
    let by_label: HashMap<&str, &CellRecord> = cells.iter().map(|c| (c.label.as_str(), c)).collect();
    let (mut sums, mut caps, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut n, mut capped) = (0, 0);
    for l in &records.layers {
        let Some(cell) = by_label.get(l.cell.as_str()) else { continue };
        let c = &l.counters;
        let at = || format!("{}, cell `{}`, layer {}", l.sample, l.cell, l.layer);
        n += 1;
        if c.hits + c.fetched + c.dropped != c.wanted {
            sums.push(format!("{}: {} + {} + {} ≠ {}", at(), c.hits, c.fetched, c.dropped, c.wanted));
        }
        if let Some(cap) = cell.cap_blocks {
            capped += 1;
            if c.fetched_max > cap as u64 {
                caps.push(format!("{}: {} > {cap}", at(), c.fetched_max));
            }
        }
        let block = BlockShape { tokens: cell.block_tokens, head_dim: model.head_dim }.bytes() as u64;
        // Where all KV is in device memory a fetch moves nothing.
        let moved = if cell.mode == "resident-sparse" { 0 } else { c.fetched * block };
        if c.bytes_h2d != moved {
            bytes.push(format!("{}: {} ≠ {} × {block}", at(), c.bytes_h2d, c.fetched));
        }
    }
    vec![
        invariant("hits + fetched + dropped = wanted", n, sums, Verdict::Violated),
        invariant("no pool fetches more than C blocks a step", capped, caps, Verdict::Violated),
        invariant("bytes moved = fetched blocks × block bytes", n, bytes, Verdict::Violated),
    ]
}

/// Cells whose budget covers the context must take dense decoding's tokens.
pub fn covered(dense: &str, records: &Records) -> Invariant {
    let of_dense: HashMap<(&str, u32), &SampleRecord> = records
        .samples
        .iter()
        .filter(|s| s.cell == dense)
        .map(|s| ((s.sample.as_str(), s.repeat), s))
        .collect();
    let (mut n, mut broken) = (0, Vec::new());
    for s in records.samples.iter().filter(|s| s.covered) {
        let Some(reference) = of_dense.get(&(s.sample.as_str(), s.repeat)) else { continue };
        n += 1;
        if s.generated != reference.generated {
            broken.push(format!("{}, cell `{}`", s.sample, s.cell));
        }
    }
    invariant("a budget that covers the context gives dense decoding's tokens", n, broken, Verdict::Violated)
}

/// Planned memory against what was allocated. A draft head's own cache is beside the plan, so cells with a draft source
/// may hold more, and the detail says how much.
pub fn memory(cells: &[CellRecord], rows: &[MemoryRow]) -> Invariant {
    let (mut n, mut broken, mut drafts) = (0, Vec::new(), 0);
    for row in rows.iter().filter(|r| r.allocated > 0) {
        let planned: u64 = row.pools.iter().map(|p| p.bytes).sum();
        let drafted = cells.iter().any(|c| c.label == row.cell && c.draft.is_some());
        n += 1;
        if drafted && row.allocated >= planned {
            drafts = drafts.max(row.allocated - planned);
        } else if row.allocated != planned {
            broken.push(format!("cell `{}`: {} bytes allocated, {planned} planned", row.cell, row.allocated));
        }
    }
    let mut memory = invariant("allocated memory = planned memory", n, broken, Verdict::Warning);
    if drafts > 0 {
        memory
            .detail
            .push_str(&format!("; a draft source held up to {:.1} MiB beside it", drafts as f64 / MIB));
    }
    memory
}

/// What a cell is in the order static ≤ policy ≤ oracle ≤ dense; none for controls and baselines.
fn rank(cell: &CellRecord) -> Option<u8> {
    let control = |p: &str| p.starts_with("random") || p.starts_with("recency");
    match cell.mode.as_str() {
        "dense" if cell.emit == "one" => Some(3),
        "on-demand" => Some(2),
        "staged" | "resident-sparse" if !cell.predictor.as_deref().is_some_and(control) => Some(1),
        "static" => Some(0),
        _ => None,
    }
}

/// Cells are compared where everything but predictor and cap is equal; an oracle also with the same cap only.
fn comparable(low: &CellRecord, high: &CellRecord) -> bool {
    if high.mode == "dense" {
        return true;
    }
    let shape = |c: &CellRecord| {
        (c.budget.clone(), c.block_tokens, c.sink_blocks, c.window_blocks, c.summary.clone())
    };
    let same_cap = low.mode == "static" || low.cap == high.cap;
    shape(low) == shape(high) && low.attend == high.attend && same_cap
}

/// The goodness of a sample in a cell: its score, or minus its divergence from dense decoding.
fn goodness(s: &SampleRecord) -> Option<f64> {
    s.score.or_else(|| s.fidelity.as_ref().map(|f| -f.kl / f.positions.max(1) as f64))
}

/// The samples of a (cell, task) by (sample, repeat).
type BySample<'a> = BTreeMap<(&'a str, u32), &'a SampleRecord>;

/// static ≤ policy ≤ oracle ≤ dense on each task, within two standard errors of the paired difference.
pub fn order(cells: &[CellRecord], rows: &[RowRecord], records: &Records) -> Invariant {
    let mut by: BTreeMap<(&str, &str), BySample<'_>> = BTreeMap::new();
    for s in &records.samples {
        by.entry((&s.cell, &s.task)).or_default().insert((&s.sample, s.repeat), s);
    }
    let (mut n, mut broken) = (0, Vec::new());
    let noise: Vec<&str> = rows.iter().filter(|r| r.non_discriminative).map(|r| r.task.as_str()).collect();
    let ranked = || cells.iter().filter_map(|c| Some((c, rank(c)?)));
    for (low, a) in ranked() {
        for (high, _) in ranked().filter(|(high, b)| *b > a && comparable(low, high)) {
            let tasks = rows.iter().filter(|r| r.cell == low.label && !noise.contains(&r.task.as_str()));
            for task in tasks.map(|r| r.task.as_str()) {
                let (Some(l), Some(h)) = (by.get(&(&low.label, task)), by.get(&(&high.label, task))) else {
                    continue;
                };
                let mut differences = Values::default();
                for (key, s) in l {
                    if let (Some(x), Some(y)) = (goodness(s), h.get(key).and_then(|s| goodness(s))) {
                        differences.push(&s.document, x - y);
                    }
                }
                let (Some(mean), Some(error)) = (differences.mean(), differences.stderr()) else { continue };
                n += 1;
                if mean > 1e-9 && mean > ERRORS * error {
                    broken.push(format!(
                        "`{}` beats `{}` on {task} by {mean:.4} ± {error:.4}",
                        low.label, high.label
                    ));
                }
            }
        }
    }
    invariant(
        "static ≤ policy ≤ oracle ≤ dense, within 2 s.e. of the paired difference",
        n,
        broken,
        Verdict::Warning,
    )
}
