//! The report of a sweep: its axes, its runs side by side, and what each axis does.

use super::grid::Grid;
use super::markdown::Page;
use super::plot::curves::{self, Entry, Key};
use super::plot::{self, Plot, pareto};
use super::view::View;
use super::{json, metric, tables, terminal, write_pages};
use crate::record::{SCHEMA_VERSION, SweepAxis, SweepPlan, SweepResults};
use crate::spec::{PolicySpec, shown};
use anyhow::{Result, bail};
use minijinja::{context, value::Value};
use std::path::{Path, PathBuf};

const MARKDOWN: &str = include_str!("sweep.md.jinja");
const HTML: &str = include_str!("sweep.html.jinja");

/// What the report of a sweep is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepRecords {
    /// `sweep.json`.
    pub plan: SweepPlan,
    /// `results.json`.
    pub results: SweepResults,
}

impl SweepRecords {
    /// Reads the folder of a sweep.
    ///
    /// # Errors
    /// A file is missing, of another version, or not what it should be.
    pub fn open(dir: &Path) -> Result<Self> {
        let plan: SweepPlan = json(&dir.join("sweep.json"))?;
        if plan.schema_version != SCHEMA_VERSION {
            bail!(
                "{}: schema_version is {}, this program reads {SCHEMA_VERSION}; use the Oasis that wrote it",
                dir.display(),
                plan.schema_version
            );
        }
        let results: SweepResults = json(&dir.join("results.json"))?;
        if results.runs.len() != plan.runs.len() {
            bail!("{}: sweep.json and results.json are of different sweeps", dir.display());
        }
        Ok(Self { plan, results })
    }

    /// Writes `report.md` with its plots, and `report.html`; gives the path of the first.
    ///
    /// # Errors
    /// The folder is not writable, the disk is full.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let plots = self.plots()?;
        let markdown = Page::Markdown.render("sweep.md", MARKDOWN, self.values(Page::Markdown, &plots))?;
        let html = Page::Html.render("sweep.html", HTML, self.values(Page::Html, &plots))?;
        write_pages(dir, &plots, &markdown, &html)
    }

    fn views(&self) -> Vec<(&str, View<'_>)> {
        let runs = self.results.runs.iter();
        runs.filter_map(|r| Some((r.name.as_str(), View::new(r.results.as_ref()?)))).collect()
    }

    /// What the axes do; then all plots of the only run, or the runs side by side.
    fn plots(&self) -> Result<Vec<Plot>> {
        let scored = self.views().iter().any(|(_, view)| !view.scored().is_empty());
        let entries = self.entries(scored);
        let mut plots: Vec<Plot> =
            curves::plot(&keys(&self.plan.axes, &entries), &entries, scored)?.into_iter().collect();
        let views = self.views();
        if let [(_, view)] = &views[..] {
            plots.extend(plot::all(view)?);
        } else {
            let views: Vec<(&str, &View<'_>)> = views.iter().map(|(name, view)| (*name, view)).collect();
            plots.extend(pareto::plot(&views)?);
        }
        Ok(plots)
    }

    /// Every cell that has results, with the values that the axes give it.
    fn entries(&self, scored: bool) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (run, planned) in self.results.runs.iter().zip(&self.plan.runs) {
            let Some(results) = &run.results else { continue };
            let view = View::new(results);
            for cell in &planned.cells {
                let Some(line) = view.lines.iter().find(|l| l.cell.label == cell.label) else { continue };
                let of = |axis: &SweepAxis| {
                    let value = |key: &String| {
                        planned.values.get(key).or_else(|| cell.values.get(cell_key(key))).map(written)
                    };
                    let values: Vec<Option<String>> = axis.keys.iter().map(value).collect();
                    let known = values.iter().any(Option::is_some);
                    let all: Vec<String> =
                        values.into_iter().map(|v| v.unwrap_or_else(|| "–".to_owned())).collect();
                    known.then(|| (name(axis), all.join(" & ")))
                };
                entries.push(Entry {
                    values: self.plan.axes.iter().filter_map(of).collect(),
                    quality: if scored { view.accuracy(line) } else { line.figure(metric::KL) },
                    moved: line.figure(metric::BYTES),
                });
            }
        }
        entries
    }

    fn values(&self, page: Page, plots: &[Plot]) -> Value {
        let (plan, results) = (&self.plan, &self.results);
        let run = |(run, planned): (&crate::record::SweepRun, &crate::record::SweepRunPlan)| {
            let view = run.results.as_ref().map(View::new);
            let state = match (&run.results, &run.error) {
                (Some(r), _) => terminal::status(r.status),
                (None, Some(_)) => "FAILED",
                (None, None) => "NOT BEGUN",
            };
            context! {
                name => run.name.as_str(),
                state,
                n_done => run.results.as_ref().map_or(0, |r| r.n_done),
                n_planned => planned.n_planned,
                error => run.error.as_deref(),
                folder => run.results.as_ref().map(|r| r.fingerprint.as_str()),
                table => view.as_ref().map(|v| page.table(&tables::main(v, 3))),
                by_task => view.as_ref().and_then(|v| tables::by_task(v, 3)).map(|g| page.table(&g)),
                times => view.as_ref().and_then(tables::speed).map(|g| page.table(&g)),
                notes => view.as_ref().map(|v| page.sentences(&tables::footnotes(v))),
                warnings => run.results.as_ref().map(|r| page.sentences(&tables::warnings(&r.warnings, false))),
                invariants => run.results.as_ref().map(|r| page.sentences(&tables::invariants(&r.invariants))),
            }
        };
        context! {
            name => results.name.as_str(),
            status => terminal::status(results.status),
            shard => plan.shard.map(|s| s.to_string()),
            n_done => results.n_done,
            n_planned => results.n_planned,
            n_failed => results.n_failed,
            cells => plan.runs.iter().map(|r| r.cells.len()).sum::<usize>(),
            fingerprint => results.fingerprint.as_str(),
            axes => page.table(&axes(&plan.axes)),
            runs => results.runs.iter().zip(&plan.runs).map(run).collect::<Vec<_>>(),
            plots => page.plots(plots),
        }
    }
}

fn axes(axes: &[SweepAxis]) -> Grid {
    let mut grid = Grid::default();
    grid.words("axis", axes.iter().map(|a| Some(a.keys.join(" & "))).collect());
    let place = |values: &Vec<toml::Value>| values.iter().map(written).collect::<Vec<_>>().join(" & ");
    let values = |a: &SweepAxis| Some(a.values.iter().map(place).collect::<Vec<_>>().join(", "));
    grid.words("values", axes.iter().map(values).collect());
    grid
}

/// The key of decoding that a dotted key sets: `budget` of `decode.budget`, `summary` of `cell.1.summary.bits`.
fn cell_key(dotted: &str) -> &str {
    let mut parts =
        dotted.split('.').skip_while(|p| ["decode", "cell"].contains(p) || p.parse::<usize>().is_ok());
    parts.next().unwrap_or(dotted)
}

fn name(axis: &SweepAxis) -> String {
    axis.keys.join(" & ")
}

/// A value as labels show it; a policy as `name(key=value)`.
fn written(value: &toml::Value) -> String {
    match value.clone().try_into::<PolicySpec>() {
        Ok(policy) if value.is_table() => policy.to_string(),
        _ => shown(value),
    }
}

/// The axes with the values that cells really have, in the order in which the sweep reaches them.
fn keys(axes: &[SweepAxis], entries: &[Entry]) -> Vec<Key> {
    let of = |axis: &SweepAxis| {
        let mut values: Vec<String> = Vec::new();
        for value in entries.iter().filter_map(|e| e.values.get(&name(axis))) {
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
        (name(axis), values)
    };
    axes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_keys_are_known_by_the_key_of_decoding() {
        for (dotted, key) in [
            ("decode.budget", "budget"),
            ("decode.summary.bits", "summary"),
            ("cell.1.cap", "cap"),
            ("cell.cap", "cap"),
            ("run.seed", "run"),
        ] {
            assert_eq!(cell_key(dotted), key);
        }
        let policy: toml::Table = toml::from_str("s = { name = \"quantized\", bits = 4 }").unwrap();
        assert_eq!(written(&policy["s"]), "quantized(bits=4)");
        assert_eq!(written(&"lrs".into()), "lrs");
    }
}
