//! The plots of a report, as SVG.

pub(crate) mod axis;
pub(crate) mod curves;
pub(crate) mod draw;
mod heat;
pub(crate) mod pareto;
mod style;

use super::metric;
use super::units;
use super::view::{Line, View};
use anyhow::Result;
use axis::Axis;
use draw::{Panel, Point, Series};

/// A plot and what a report says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    /// Heading.
    pub title: &'static str,
    /// Path from the report, with `/`.
    pub file: &'static str,
    /// What is drawn.
    pub caption: String,
    /// The drawing.
    pub svg: String,
}

/// All plots that the run has figures for.
///
/// # Errors
/// The drawing library fails.
pub fn all(view: &View<'_>) -> Result<Vec<Plot>> {
    let layered = [
        (
            metric::AGREEMENT,
            "Agreement per layer",
            "agreement with the true set",
            "plots/agreement-by-layer.svg",
        ),
        (
            metric::RECALL,
            "Exact recall per layer",
            "share of the best exact blocks",
            "plots/recall-by-layer.svg",
        ),
    ];
    let mut plots = Vec::new();
    for (name, title, y, file) in layered {
        plots.extend(by_layer(view, name, title, y, file)?);
    }
    plots.extend(heat::layers(view)?);
    plots.extend(heat::heads(view)?);
    plots.extend(pareto::plot(&[("", view)])?);
    plots.extend(accuracy_by_budget(view)?);
    plots.extend(kl_by_budget(view)?);
    plots.extend(bytes_by_step(view)?);
    plots.extend(hits_by_step(view)?);
    Ok(plots)
}

/// Cells that share a budget and a cap, to be compared with one another; a cell without a cap (static, window)
/// stands in the panels of all caps.
struct Condition<'v, 'a> {
    title: String,
    lines: Vec<&'v Line<'a>>,
}

/// The caps of a run as written, in the order of the configuration; `None` if no cell has one.
fn caps<'v>(view: &'v View<'_>) -> Vec<Option<&'v str>> {
    let mut caps: Vec<Option<&str>> = Vec::new();
    for line in &view.lines {
        let cap = line.cell.cap.as_deref();
        if cap.is_some() && !caps.contains(&cap) {
            caps.push(cap);
        }
    }
    if caps.is_empty() { vec![None] } else { caps }
}

fn under<'v, 'a>(line: &&'v Line<'a>, cap: Option<&str>) -> bool {
    line.cell.budget_tokens.is_some() && (line.cell.cap.is_none() || line.cell.cap.as_deref() == cap)
}

fn conditions<'v, 'a>(view: &'v View<'a>) -> Vec<Condition<'v, 'a>> {
    let mut budgets: Vec<usize> = view.lines.iter().filter_map(|l| l.cell.budget_tokens).collect();
    budgets.dedup();
    let mut out = Vec::new();
    for budget in budgets {
        for cap in caps(view) {
            let of_budget = view.lines.iter().filter(|l| l.cell.budget_tokens == Some(budget));
            let lines: Vec<&Line<'a>> = of_budget.filter(|l| under(l, cap)).collect();
            let title = match cap {
                Some(cap) => format!("budget {budget} tokens, cap {cap}"),
                None => format!("budget {budget} tokens"),
            };
            out.push(Condition { title, lines });
        }
    }
    out
}

/// One panel a condition, one series a line; panels without a series are left out.
fn panels(
    view: &View<'_>,
    points: impl Fn(&Line<'_>) -> Vec<Point>,
    x: impl Fn(&[Series]) -> Axis,
    y: impl Fn(&[Series]) -> Axis,
) -> Vec<Panel> {
    let names = view.names();
    let drawn: Vec<(String, Vec<Series>)> = conditions(view)
        .into_iter()
        .map(|c| {
            let series = c.lines.iter().map(|l| Series::new(&l.name, &names, points(l)));
            (c.title, series.filter(|s| !s.points.is_empty()).collect::<Vec<_>>())
        })
        .filter(|(_, series)| !series.is_empty())
        .collect();
    // All panels of a plot share their axes, so that they can be compared by eye.
    let all: Vec<Series> = drawn.iter().flat_map(|(_, s)| s.iter().cloned()).collect();
    let (x, y) = (x(&all), y(&all));
    drawn.into_iter().map(|(title, series)| Panel { title, series, x: x.clone(), y: y.clone() }).collect()
}

fn plot(
    title: &'static str,
    file: &'static str,
    caption: String,
    panels: Vec<Panel>,
) -> Result<Option<Plot>> {
    if panels.is_empty() {
        return Ok(None);
    }
    let svg = draw::svg(title, &panels)?;
    Ok(Some(Plot { title, file, caption, svg }))
}

fn by_layer(
    view: &View<'_>,
    name: &str,
    title: &'static str,
    y: &'static str,
    file: &'static str,
) -> Result<Option<Plot>> {
    let points = |l: &Line<'_>| {
        let layers = l.by_layer(name);
        let known = layers.iter().enumerate().filter_map(|(layer, v)| v.map(|v| (layer, v)));
        known.map(|(layer, v)| Point::new(layer as f64, v)).collect()
    };
    let panels = panels(view, points, |s| Axis::whole("layer", s), |s| Axis::share(y, s, false));
    let definition = metric::DEFINITIONS.iter().find(|d| d.0 == name).map_or("", |d| d.2);
    plot(title, file, format!("{title}: {definition}. Mean over tasks."), panels)
}

/// One panel a cap: a figure against the budget, one series a line of cells.
fn by_budget(view: &View<'_>, figure: impl Fn(&Line<'_>) -> Option<Point>) -> Vec<(String, Vec<Series>)> {
    let names = view.names();
    let of_cap = |cap: Option<&str>| {
        let here: Vec<&Line<'_>> = view.lines.iter().filter(|l| under(l, cap)).collect();
        let series = names.iter().map(|name| {
            let points = here.iter().filter(|l| &l.name == name).filter_map(|l| {
                let budget = l.cell.budget_tokens?;
                figure(l).map(|p| Point { x: (budget as f64).log2(), ..p })
            });
            Series::new(name, &names, points.collect())
        });
        let title = cap.map_or_else(String::new, |c| format!("cap {c}"));
        (title, series.filter(|s| !s.points.is_empty()).collect::<Vec<_>>())
    };
    caps(view).into_iter().map(of_cap).filter(|(_, s)| !s.is_empty()).collect()
}

fn budget_axis(view: &View<'_>) -> Axis {
    let mut budgets: Vec<usize> = view.lines.iter().filter_map(|l| l.cell.budget_tokens).collect();
    budgets.dedup();
    Axis::budgets("budget (tokens per KV head)", &budgets)
}

fn accuracy_by_budget(view: &View<'_>) -> Result<Option<Plot>> {
    let point = |l: &Line<'_>| view.accuracy(l).map(|f| Point { x: 0.0, y: f.value, error: f.stderr });
    let x = budget_axis(view);
    let dense = view.dense().and_then(point);
    let panels = by_budget(view, point)
        .into_iter()
        .map(|(title, mut series)| {
            series.extend(dense.map(|d| Series::reference("dense", d.y, x.range)));
            Panel { title, y: Axis::share("accuracy", &series, true), series, x: x.clone() }
        })
        .collect();
    let caption = "Accuracy against budget, mean over tasks; bars are one standard error.";
    plot("Accuracy against budget", "plots/accuracy-by-budget.svg", caption.to_owned(), panels)
}

fn kl_by_budget(view: &View<'_>) -> Result<Option<Plot>> {
    // 0 (a covered context) has no place on a logarithmic axis.
    let point = |l: &Line<'_>| {
        let f = l.figure(metric::KL).filter(|f| f.value > 0.0)?;
        Some(Point { x: 0.0, y: f.value, error: f.stderr })
    };
    let drawn = by_budget(view, point);
    let all: Vec<Series> = drawn.iter().flat_map(|(_, s)| s.iter().cloned()).collect();
    let (x, y) = (budget_axis(view), Axis::logarithmic("KL to dense (nat)", &all));
    let log = |(title, series): (String, Vec<Series>)| {
        let series = series.into_iter().map(Series::log10).collect();
        Panel { title, series, x: x.clone(), y: y.clone() }
    };
    let panels = drawn.into_iter().map(log).collect();
    let caption = "KL divergence from dense decoding against budget, both axes logarithmic; bars are one standard error.";
    plot("KL against budget", "plots/kl-by-budget.svg", caption.to_owned(), panels)
}

fn bytes_by_step(view: &View<'_>) -> Result<Option<Plot>> {
    let points = |l: &Line<'_>| -> Vec<Point> {
        let steps = l.by_step();
        // A line of zeros (window, resident) would only hide the others.
        if steps.iter().all(|s| s.bytes_h2d == 0.0) {
            return Vec::new();
        }
        steps.iter().map(|s| Point::new(f64::from(s.step), s.bytes_h2d)).collect()
    };
    let y = |s: &[Series]| Axis::from_zero("moved host to device", s, &units::bytes_f);
    let mut panels = panels(view, points, |s| Axis::whole("decode step", s), y);
    // A cap divides traffic by ten and more: on a common scale the capped cells would lie on the ground.
    for panel in &mut panels {
        panel.y = y(&panel.series);
    }
    let caption = "Bytes copied from the host store in each decode step, all layers and KV heads of one sequence, \
                   mean over samples. Cells that move nothing are left out. Each panel has a scale of its own.";
    plot("Traffic per step", "plots/bytes-by-step.svg", caption.to_owned(), panels)
}

fn hits_by_step(view: &View<'_>) -> Result<Option<Plot>> {
    let points = |l: &Line<'_>| {
        let steps = l.by_step();
        steps.iter().filter_map(|s| s.hit_rate.map(|h| Point::new(f64::from(s.step), h))).collect()
    };
    let y = |s: &[Series]| Axis::share("hit rate", s, false);
    let panels = panels(view, points, |s| Axis::whole("decode step", s), y);
    let caption = "Share of the wanted blocks that were resident already, by decode step, mean over samples.";
    plot("Hit rate per step", "plots/hits-by-step.svg", caption.to_owned(), panels)
}
