//! Names of cells: short, readable, unique.

use super::cells::PlannedCell;
use crate::spec::DECODE_KEYS;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::settings::Mode;
use std::collections::{HashMap, HashSet};

/// A value as a label shows it.
fn shown(cell: &PlannedCell, key: &str) -> String {
    match key {
        "predictor" | "summary" | "evictor" => cell.policy(key).map(ToString::to_string).unwrap_or_default(),
        "draft" => cell.draft.as_ref().map(|d| d.to_string()).unwrap_or_default(),
        _ => match cell.values.get(key) {
            Some(toml::Value::String(s)) => s.clone(),
            Some(value) => value.to_string(),
            None => "none".to_owned(),
        },
    }
}

/// What a cell is called when nobody gave it a name.
fn base(cell: &PlannedCell) -> String {
    let predictor = cell.predictor.as_ref().map_or("", |p| p.name.as_str());
    let ranked = match (&cell.draft, cell.looks_ahead) {
        (Some(draft), true) => format!("{predictor}/{}", draft.spec.name),
        _ => predictor.to_owned(),
    };
    match cell.mode {
        Mode::Dense | Mode::Static | Mode::Window => cell.mode.name().to_owned(),
        Mode::OnDemand | Mode::Staged => ranked,
        Mode::ResidentSparse => format!("resident {ranked}"),
    }
}

/// Gives every cell its label and family. `axes`: for each cell, keys that the grid varied.
pub(super) fn assign(cells: &mut [PlannedCell], axes: &[Vec<&'static str>]) -> Result<()> {
    for cell in cells.iter_mut().filter(|c| c.label.is_empty()) {
        cell.label = base(cell);
    }
    let varied = varied_keys(cells, axes);
    let bases: Vec<String> = cells.iter().map(|c| c.label.clone()).collect();
    for i in 0..cells.len() {
        let Some(keys) = varied.get(&bases[i]) else { continue };
        let mut family = bases[i].clone();
        let mut label = bases[i].clone();
        for key in DECODE_KEYS.iter().filter(|k| keys.contains(*k) && cells[i].values.contains_key(**k)) {
            let suffix = format!(" {key}={}", shown(&cells[i], key));
            label.push_str(&suffix);
            if *key != "budget" {
                family.push_str(&suffix);
            }
        }
        cells[i].label = label;
        cells[i].family.get_or_insert(family);
    }
    for cell in cells.iter_mut() {
        let label = cell.label.clone();
        cell.family.get_or_insert(label);
    }
    let mut seen = HashSet::new();
    match cells.iter().find(|c| !seen.insert(c.label.clone())) {
        None => Ok(()),
        Some(twice) => bail!(Error::setting(
            "cell.label",
            format!("two cells are called `{}`; give one of them another label, or remove it", twice.label)
        )),
    }
}

/// By base label: the keys in which its cells differ, or that an axis varies.
fn varied_keys(cells: &[PlannedCell], axes: &[Vec<&'static str>]) -> HashMap<String, HashSet<&'static str>> {
    let mut varied: HashMap<String, HashSet<&'static str>> = HashMap::new();
    for key in DECODE_KEYS {
        let mut values: HashMap<&str, HashSet<String>> = HashMap::new();
        for cell in cells {
            values.entry(&cell.label).or_default().insert(shown(cell, key));
        }
        for (label, values) in values {
            if values.len() > 1 {
                varied.entry(label.to_owned()).or_default().insert(key);
            }
        }
    }
    // A cell that an axis varies shows the value even if no other cell shares its name.
    for (cell, axes) in cells.iter().zip(axes) {
        varied.entry(cell.label.clone()).or_default().extend(axes.iter().copied());
    }
    varied
}
