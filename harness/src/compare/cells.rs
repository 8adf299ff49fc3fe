//! Which cell of one run is compared with which of the other.

use super::side::Side;
use crate::record::CellRecord;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::error::nearest;
use serde::Serialize;

/// Two cells that are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellPair {
    /// Its name in the comparison: the label, or both labels.
    pub name: String,
    /// Label in A.
    pub a: String,
    /// Label in B.
    pub b: String,
    /// Settings that differ: `evictor: lrs → lru`.
    pub differs: Vec<String>,
}

/// Matched cells and the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Compared.
    pub pairs: Vec<CellPair>,
    /// Labels that only A has.
    pub only_a: Vec<String>,
    /// Labels that only B has.
    pub only_b: Vec<String>,
}

/// What a cell does, by the name of the setting.
fn settings(c: &CellRecord) -> [(&'static str, String); 14] {
    let words = |w: &Option<String>| w.clone().unwrap_or_else(|| "none".to_owned());
    let number = |n: Option<usize>| n.map_or("none".to_owned(), |n| n.to_string());
    [
        ("mode", c.mode.clone()),
        ("predictor", words(&c.predictor)),
        ("draft", words(&c.draft)),
        ("summary", words(&c.summary)),
        ("evictor", words(&c.evictor)),
        ("block", c.block_tokens.to_string()),
        ("budget", number(c.budget_tokens)),
        ("sink blocks", c.sink_blocks.to_string()),
        ("window blocks", c.window_blocks.to_string()),
        ("cap", number(c.cap_blocks)),
        ("emit", c.emit.clone()),
        ("attend", c.attend.clone()),
        ("batch", c.batch.to_string()),
        ("audit", c.audit.to_string()),
    ]
}

fn pair(a: &CellRecord, b: &CellRecord) -> CellPair {
    let differs = settings(a).into_iter().zip(settings(b)).filter(|(x, y)| x.1 != y.1);
    let name = if a.label == b.label { a.label.clone() } else { format!("{} → {}", a.label, b.label) };
    CellPair {
        name,
        a: a.label.clone(),
        b: b.label.clone(),
        differs: differs.map(|(x, y)| format!("{}: {} → {}", x.0, x.1, y.1)).collect(),
    }
}

/// Pairs cells of one label; then those that are left and have the same settings as exactly one other.
pub fn matched(a: &Side, b: &Side) -> Matched {
    let (of_a, of_b) = (&a.results.cells, &b.results.cells);
    let mut partner: Vec<Option<usize>> =
        of_a.iter().map(|x| of_b.iter().position(|y| y.label == x.label)).collect();
    let left = |partner: &[Option<usize>]| -> Vec<usize> {
        (0..of_b.len()).filter(|j| !partner.contains(&Some(*j))).collect()
    };
    let free = left(&partner);
    for i in (0..of_a.len()).filter(|&i| partner[i].is_none()).collect::<Vec<_>>() {
        let same = |j: &&usize| settings(&of_a[i]) == settings(&of_b[**j]);
        let twins =
            of_a.iter().zip(&partner).filter(|(x, p)| p.is_none() && settings(x) == settings(&of_a[i]));
        let candidates: Vec<&usize> = free.iter().filter(same).collect();
        if let ([j], 1) = (&candidates[..], twins.count()) {
            partner[i] = Some(**j);
        }
    }
    let mut matched = Matched::default();
    for (x, j) in of_a.iter().zip(&partner) {
        match j {
            Some(j) => matched.pairs.push(pair(x, &of_b[*j])),
            None => matched.only_a.push(x.label.clone()),
        }
    }
    matched.only_b = left(&partner).into_iter().map(|j| of_b[j].label.clone()).collect();
    matched
}

/// The pairs that the command line names: label in A, label in B, and so on.
///
/// # Errors
/// A label that the run does not have.
pub fn named(a: &Side, b: &Side, labels: &[String]) -> Result<Matched> {
    let find = |side: &Side, which: &str, label: &str| -> Result<CellRecord> {
        if let Some(cell) = side.cell(label) {
            return Ok(cell.clone());
        }
        let known: Vec<&str> = side.results.cells.iter().map(|c| c.label.as_str()).collect();
        let hint = nearest(label, known.iter().copied());
        let hint = hint.map_or(String::new(), |n| format!(" (did you mean `{n}`?)"));
        let known = known.join("`, `");
        bail!(Error::setting("--cells", format!("{which} has no cell `{label}`{hint}; it has `{known}`")))
    };
    let mut pairs = Vec::new();
    for two in labels.chunks_exact(2) {
        pairs.push(pair(&find(a, "A", &two[0])?, &find(b, "B", &two[1])?));
    }
    Ok(Matched { pairs, ..Matched::default() })
}
