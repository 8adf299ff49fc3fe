//! What a cell gives against what it costs: quality against bytes moved, and against speed.

use super::axis::Axis;
use super::draw::{self, Panel, Point, Series};
use super::{Plot, metric};
use crate::report::tables;
use crate::report::units;
use crate::report::view::{Figure, Line, View};
use anyhow::Result;

/// What a front calls itself.
const FRONT: &str = "Pareto front";

/// One or two panels for each run, which has its name as title: accuracy (KL where no task has a score) against the bytes
/// that a step moves, and against tokens a second where cells were timed.
///
/// # Errors
/// The drawing library fails.
pub fn plot(runs: &[(&str, &View<'_>)]) -> Result<Option<Plot>> {
    let panels: Vec<Panel> = runs.iter().flat_map(|(name, view)| panels(name, view)).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let title = "Quality against cost";
    let svg = draw::svg(title, &panels)?;
    let caption = "Every cell with its standard error: quality (accuracy, mean over tasks; KL to dense where no task has a \
                   score) against the bytes that a decode step copies from the host store, and against tokens a second where \
                   cells were timed (no audit). The dashed line joins the cells that no other one beats in both; dense \
                   decoding, ideal drafts and cells that lost samples are not on it. Dense decoding keeps all KV on the device \
                   and moves nothing.";
    Ok(Some(Plot { title, file: "plots/pareto.svg", caption: caption.to_owned(), svg }))
}

fn scored(view: &View<'_>) -> bool {
    !view.scored().is_empty()
}

fn quality(view: &View<'_>, line: &Line<'_>) -> Option<Figure> {
    if scored(view) { view.accuracy(line) } else { line.figure(metric::KL) }
}

fn panels(title: &str, view: &View<'_>) -> Vec<Panel> {
    let moved = |l: &Line<'_>| l.figure(metric::BYTES).map(|f| f.value);
    let speed = |l: &Line<'_>| tables::speed_of(view, l, "decode_tok_s");
    let bytes = panel(title, view, &moved, false);
    let speeds = panel(title, view, &speed, true);
    let bytes = bytes.map(|(title, series)| {
        let x = Axis::from_zero_x("moved a step", &series, 1024.0, &units::bytes_f);
        (title, series, x)
    });
    let speeds = speeds.map(|(title, series)| {
        let x = Axis::from_zero_x("tokens a second", &series, 10.0, &units::significant);
        (title, series, x)
    });
    let drawn = bytes.into_iter().chain(speeds);
    let finish = |(title, series, x): (String, Vec<Series>, Axis)| {
        let y = match scored(view) {
            true => Axis::share("accuracy", &series, true),
            false => Axis::from_zero("KL to dense (nat)", &series, &units::significant),
        };
        Panel { title, series, x, y }
    };
    drawn.map(finish).collect()
}

/// The cells that have both figures, and their front. `more`: a larger cost figure is better (it is a speed).
fn panel(
    title: &str,
    view: &View<'_>,
    cost: &dyn Fn(&Line<'_>) -> Option<f64>,
    more: bool,
) -> Option<(String, Vec<Series>)> {
    let names = view.names();
    let point = |l: &Line<'_>| {
        let q = quality(view, l)?;
        Some(Point { x: cost(l)?, y: q.value, error: q.stderr })
    };
    let sparse = || view.lines.iter().filter(|l| l.cell.budget_tokens.is_some());
    let of_name = |name: &String| {
        let points = sparse().filter(|l| &l.name == name).filter_map(point).collect();
        Series::new(name, &names, points).scattered()
    };
    let mut series: Vec<Series> = names.iter().map(of_name).filter(|s| !s.points.is_empty()).collect();
    if series.iter().map(|s| s.points.len()).sum::<usize>() < 2 {
        return None;
    }
    let fair = sparse().filter(|l| !l.cell.ideal && l.samples().1 == 0).filter_map(point);
    let front = front(fair.collect(), scored(view), more);
    if front.len() > 1 {
        series.push(Series::dashed(FRONT, front));
    }
    Some((title.to_owned(), series))
}

/// The points that no other one beats in both figures, by x. `up`: larger y is better; `more`: larger x is.
fn front(mut points: Vec<Point>, up: bool, more: bool) -> Vec<Point> {
    points.retain(|p| p.x.is_finite() && p.y.is_finite());
    let (sx, sy) = (if more { -1.0 } else { 1.0 }, if up { -1.0 } else { 1.0 });
    // From the cheapest on, only what is better than everything cheaper.
    points.sort_by(|a, b| (sx * a.x).total_cmp(&(sx * b.x)).then((sy * a.y).total_cmp(&(sy * b.y))));
    let mut best = f64::INFINITY;
    points.retain(|p| {
        let better = sy * p.y < best;
        best = best.min(sy * p.y);
        better
    });
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points.iter().map(|p| Point { error: None, ..*p }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fronts(points: &[(f64, f64)], up: bool, more: bool) -> Vec<(f64, f64)> {
        let points = points.iter().map(|&(x, y)| Point::new(x, y)).collect();
        front(points, up, more).iter().map(|p| (p.x, p.y)).collect()
    }

    #[test]
    fn a_front_has_what_nothing_beats_in_both() {
        let points = [(1.0, 0.2), (2.0, 0.5), (2.0, 0.4), (3.0, 0.5), (4.0, 0.9), (f64::NAN, 1.0)];
        assert_eq!(fronts(&points, true, false), [(1.0, 0.2), (2.0, 0.5), (4.0, 0.9)]);
        assert_eq!(fronts(&points, true, true), [(4.0, 0.9)]);
        assert_eq!(fronts(&points, false, false), [(1.0, 0.2)]);
        assert_eq!(fronts(&points, false, true), [(1.0, 0.2), (2.0, 0.4), (3.0, 0.5), (4.0, 0.9)]);
    }
}
