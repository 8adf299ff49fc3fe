//! Axes over the cells of a plan: those of `[grid]`, and what a sweep asks.

use super::PlannedCell;
use crate::spec::{CellSpec, DECODE_KEYS, GridSpec, Origin, Source};
use anyhow::{Result, bail};
use oasis_core::Error;
use std::collections::HashSet;

/// Axes with one value distinguish nothing.
pub(super) fn single_valued(grid: &GridSpec) -> HashSet<&'static str> {
    grid.axes().into_iter().filter(|(_, n)| *n < 2).map(|(k, _)| k).collect()
}

/// All choices of one value from each axis that the cell leaves open.
pub(super) fn product(cell: &CellSpec, grid: &GridSpec) -> Vec<Vec<(&'static str, usize)>> {
    let own = cell.keys();
    let mut choices = vec![Vec::new()];
    for (key, n) in grid.axes().into_iter().filter(|(key, _)| !own.contains(key)) {
        let longer =
            |choice: &Vec<_>| (0..n).map(|i| [choice.as_slice(), &[(key, i)]].concat()).collect::<Vec<_>>();
        choices = choices.iter().flat_map(longer).collect();
    }
    choices
}

/// Refuses an axis whose values reach no cell: all cells set the key themselves, or `[grid]` does, or none uses it.
pub(super) fn refuse_idle(source: &Source, cells: &[PlannedCell]) -> Result<()> {
    for path in source.set.iter().filter(|(_, o)| **o == Origin::Sweep).map(|(path, _)| path) {
        let mut parts = path.split('.').skip_while(|p| *p == "cell" || p.parse::<usize>().is_ok());
        let key = match parts.next() {
            Some("decode") => parts.next(),
            part => part.filter(|_| path.starts_with("cell.")),
        };
        let Some(key) = key.and_then(|key| DECODE_KEYS.iter().find(|k| **k == key)) else { continue };
        if !cells.iter().any(|c| c.origins.get(key) == Some(&Origin::Sweep)) {
            let what = "no cell takes its value: each sets the key itself, or [grid] does, or it has no effect there; remove \
                        the axis, or the other value";
            bail!(Error::setting(format!("sweep.{path}"), what));
        }
    }
    Ok(())
}

/// Adds to each cell's `axes` the keys that the sweep sets to more than one value, so that labels show them.
pub(super) fn add_swept(axes: &mut [Vec<&'static str>], cells: &[PlannedCell]) {
    let swept = |cell: &PlannedCell, key: &str| cell.origins.get(key) == Some(&Origin::Sweep);
    for key in DECODE_KEYS {
        let values: HashSet<String> = cells
            .iter()
            .filter(|c| swept(c, key))
            .filter_map(|c| c.values.get(key))
            .map(ToString::to_string)
            .collect();
        if values.len() < 2 {
            continue;
        }
        for (own, cell) in axes.iter_mut().zip(cells) {
            // A cell without a name is called by these.
            let named = cell.label.is_empty() && ["mode", "predictor", "draft"].contains(key);
            if swept(cell, key) && !named && !own.contains(key) {
                own.push(key);
            }
        }
    }
}
