//! What each axis of a sweep does, the others averaged.

use super::Plot;
use super::axis::Axis;
use super::draw::{self, Panel, Point, Series};
use crate::report::units;
use crate::report::view::Figure;
use anyhow::Result;
use std::collections::BTreeMap;

/// A cell of a sweep with the values that the axes give it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Key and value as written.
    pub values: BTreeMap<String, String>,
    /// Accuracy, mean over tasks; KL to dense where the sweep has no scored task.
    pub quality: Option<Figure>,
    /// Bytes moved a step.
    pub moved: Option<Figure>,
}

/// A key and its values in the order of the sweep.
pub type Key = (String, Vec<String>);

type Pick = fn(&Entry) -> Option<Figure>;

/// Two panels a key with two values or more: quality (accuracy if `scored`, else KL), and bytes moved. Lines are the values
/// of the other key that changes quality most; all other keys are averaged.
///
/// # Errors
/// The drawing library fails.
pub fn plot(keys: &[Key], entries: &[Entry], scored: bool) -> Result<Option<Plot>> {
    let figures: [(&str, Pick); 2] = [
        (if scored { "accuracy" } else { "KL to dense (nat)" }, |e| e.quality),
        ("moved a step", |e| e.moved),
    ];
    let keys: Vec<&Key> = keys.iter().filter(|k| k.1.len() > 1).collect();
    let mut panels = Vec::new();
    for key in &keys {
        let others = keys.iter().filter(|k| k.0 != key.0);
        let lines = others.max_by(|a, b| effect(a, entries).total_cmp(&effect(b, entries)));
        for (i, (name, pick)) in figures.into_iter().enumerate() {
            let series = series(key, lines.copied(), entries, pick);
            if series.is_empty() {
                continue;
            }
            let y = match (i, scored) {
                (0, true) => Axis::share(name, &series, true),
                (0, false) => Axis::from_zero(name, &series, &units::significant),
                _ => Axis::from_zero(name, &series, &units::bytes_f),
            };
            let title = lines.map_or(key.0.clone(), |l| format!("{}, by {}", key.0, l.0));
            panels.push(Panel { title, series, x: Axis::places(&key.0, &key.1), y });
        }
    }
    if panels.is_empty() {
        return Ok(None);
    }
    let title = "Axes of the sweep";
    let caption = "Quality and bytes moved a step along every axis. A line is a value of the other axis that changes quality \
                   most; all further axes are averaged over. Bars are the mean of the cells' standard errors, an upper bound: cells \
                   decode the same samples, so their errors do not cancel.";
    let svg = draw::svg(title, &panels)?;
    Ok(Some(Plot { title, file: "plots/axes.svg", caption: caption.to_owned(), svg }))
}

/// The mean over the entries that a filter keeps. Its error is the mean of theirs: exact where they vary together, as cells
/// on the same samples do, and never too small.
fn mean(entries: &[Entry], keep: impl Fn(&Entry) -> bool, pick: Pick) -> Option<Figure> {
    let all: Vec<Figure> =
        entries.iter().filter(|e| keep(e)).filter_map(pick).filter(|f| f.value.is_finite()).collect();
    if all.is_empty() {
        return None;
    }
    let n = all.len() as f64;
    let errors: Option<f64> = all.iter().map(|f| f.stderr).sum();
    Some(Figure { value: all.iter().map(|f| f.value).sum::<f64>() / n, stderr: errors.map(|e| e / n) })
}

fn has(entry: &Entry, key: &str, value: &str) -> bool {
    entry.values.get(key).is_some_and(|v| v == value)
}

/// How far apart the values of a key are in quality.
fn effect(key: &Key, entries: &[Entry]) -> f64 {
    let means = key.1.iter().filter_map(|v| mean(entries, |e| has(e, &key.0, v), |e| e.quality));
    let (lo, hi) =
        means.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), f| (lo.min(f.value), hi.max(f.value)));
    if lo > hi { 0.0 } else { hi - lo }
}

fn series(key: &Key, lines: Option<&Key>, entries: &[Entry], pick: Pick) -> Vec<Series> {
    let line = |name: &str, names: &[String], keep: &dyn Fn(&Entry) -> bool| {
        let points = key.1.iter().enumerate().filter_map(|(i, value)| {
            let f = mean(entries, |e| keep(e) && has(e, &key.0, value), pick)?;
            Some(Point { x: i as f64, y: f.value, error: f.stderr })
        });
        Series::new(name, names, points.collect())
    };
    let all = match lines {
        Some((by, values)) => values.iter().map(|v| line(v, values, &|e| has(e, by, v))).collect(),
        None => vec![line("all cells", &["all cells".to_owned()], &|_| true)],
    };
    all.into_iter().filter(|s: &Series| !s.points.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(budget: &str, evictor: &str, accuracy: f64) -> Entry {
        let values = [("budget", budget), ("evictor", evictor)].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let figure = |value| Some(Figure { value, stderr: Some(0.1) });
        Entry { values: values.into(), quality: figure(accuracy), moved: figure(1024.0) }
    }

    #[test]
    fn lines_are_the_axis_that_matters_and_the_rest_is_averaged() {
        let key = |name: &str, values: [&str; 2]| (name.to_owned(), values.map(str::to_owned).to_vec());
        let keys = [key("budget", ["96", "256"]), key("evictor", ["lrs", "lru"])];
        let entries = [
            entry("96", "lrs", 0.1),
            entry("96", "lru", 0.3),
            entry("256", "lrs", 0.8),
            entry("256", "lru", 1.0),
        ];
        assert!((effect(&keys[0], &entries) - 0.7).abs() < 1e-12);
        assert!((effect(&keys[1], &entries) - 0.2).abs() < 1e-12);
        let by_budget = series(&keys[0], None, &entries, |e| e.quality);
        let ys: Vec<f64> = by_budget[0].points.iter().map(|p| p.y).collect();
        assert!((ys[0] - 0.2).abs() < 1e-12 && (ys[1] - 0.9).abs() < 1e-12, "{ys:?}");
        assert!((by_budget[0].points[0].error.unwrap() - 0.1).abs() < 1e-12);
        let split = series(&keys[1], Some(&keys[0]), &entries, |e| e.quality);
        assert_eq!(split.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["96", "256"]);
        assert!((split[1].points[1].y - 1.0).abs() < 1e-12);
        assert!(plot(&keys, &entries, true).unwrap().unwrap().svg.contains("evictor, by budget"));
        assert_eq!(plot(&[], &entries, true).unwrap(), None);
    }
}
