//! The table of a replay, and its curves.

use super::tally::{Figures, Record, Row};
use crate::report::grid::Grid;
use crate::report::plot::axis::Axis;
use crate::report::plot::draw::{Panel, Point, Series};
use crate::report::{WIDTH, units};

/// The table for a terminal.
pub fn terminal(record: &Record) -> String {
    let r = record;
    let cell = r
        .recorded
        .as_ref()
        .map_or_else(|| "imported".to_owned(), |c| format!("recorded in cell `{}`", c.cell));
    let mut text =
        format!("{} · {cell} · {} sequences · queries are those of the recorded run\n", r.model, r.sequences);
    text += &grid(&r.rows).terminal(WIDTH);
    text += &failures(&r.rows);
    let figures = || r.rows.iter().filter_map(|row| row.figures.as_ref());
    let decisions: u64 = figures().map(|f| f.decisions).sum();
    let seconds: f64 = figures().map(|f| f.seconds).sum();
    if seconds > 0.0 {
        let rate = decisions as f64 / seconds;
        text += &format!(
            "{decisions} decisions (step × layer × KV head) in {}; {} a second and thread\n",
            units::seconds(r.wall_s),
            units::significant(rate)
        );
    }
    text
}

/// Every error once, with the first row that it failed.
fn failures(rows: &[Row]) -> String {
    let mut errors: Vec<(&str, &Row, usize)> = Vec::new();
    for (row, error) in rows.iter().filter_map(|row| row.error.as_ref().map(|e| (row, e))) {
        match errors.iter_mut().find(|(e, ..)| e == error) {
            Some((.., n)) => *n += 1,
            None => errors.push((error, row, 1)),
        }
    }
    let line = |(error, row, n): &(&str, &Row, usize)| match n {
        1 => format!("failed: {}: {error}\n", name(row, &VARYING)),
        n => format!("failed: {} and {} more: {error}\n", name(row, &VARYING), n - 1),
    };
    errors.iter().map(line).collect()
}

fn grid(rows: &[Row]) -> Grid {
    let words = |f: &dyn Fn(&Row) -> &String| -> Vec<Option<String>> {
        rows.iter().map(|r| Some(f(r).clone()).filter(|s| !s.is_empty())).collect()
    };
    let numbers = |f: &dyn Fn(&Figures) -> Option<String>| -> Vec<Option<String>> {
        rows.iter().map(|r| r.figures.as_ref().and_then(f)).collect()
    };
    let share = |x: Option<f64>| x.map(|x| format!("{x:.3}"));
    let mut grid = Grid::default();
    grid.words("predictor", words(&|r| &r.predictor));
    grid.words("summary", words(&|r| &r.summary));
    grid.words("evictor", words(&|r| &r.evictor));
    grid.numbers("budget", words(&|r| &r.budget));
    let cap = |r: &Row| match r.c {
        Some(c) => format!("{} ({c})", r.cap),
        None => r.cap.clone(),
    };
    grid.numbers("cap (C)", rows.iter().map(|r| Some(cap(r))).collect());
    grid.numbers("hit\nrate", numbers(&|f| share(f.hit_rate)));
    let a_step = |sum: u64, f: &Figures| sum as f64 / f.steps.max(1) as f64;
    grid.numbers("dropped\na step", numbers(&|f| Some(units::significant(a_step(f.counters.dropped, f)))));
    grid.numbers("moved\na step", numbers(&|f| Some(units::bytes_f(a_step(f.counters.bytes_h2d, f)))));
    grid.numbers("agree-\nment", numbers(&|f| share(f.agreement)));
    grid.numbers("exact\nrecall", numbers(&|f| share(f.recall_exact)));
    grid.numbers("mass\nrecall", numbers(&|f| share(f.mass_recall)));
    grid
}

type Part = fn(&Row) -> &String;

/// What may tell one row from another.
const VARYING: [Part; 5] = [|r| &r.predictor, |r| &r.summary, |r| &r.evictor, |r| &r.budget, |r| &r.cap];

fn name(row: &Row, parts: &[Part]) -> String {
    parts.iter().map(|part| part(row).as_str()).filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Those of `parts` in which rows differ; the first if none.
fn differing(rows: &[Row], parts: &[Part]) -> Vec<Part> {
    let varies = |part: &&Part| rows.iter().any(|r| part(r) != part(&rows[0]));
    let varying: Vec<Part> = parts.iter().filter(varies).copied().collect();
    if varying.is_empty() { parts[..1].to_vec() } else { varying }
}

/// Miss ratios against the budget, one panel a cap, and against the cap, one panel a budget; each where there is more
/// than one value. Rows that failed are left out.
pub fn curves(record: &Record) -> Vec<(&'static str, &'static str, Vec<Panel>)> {
    let rows: Vec<Row> = record.rows.iter().filter(|r| r.figures.is_some()).cloned().collect();
    let axes: [(&str, &str, Part, Part, &str, &str); 2] = [
        (
            "miss-ratio-by-budget.svg",
            "Miss ratio against budget",
            VARYING[3],
            VARYING[4],
            "budget (tokens per KV head)",
            "cap",
        ),
        (
            "miss-ratio-by-cap.svg",
            "Miss ratio against fetch cap",
            VARYING[4],
            VARYING[3],
            "fetch cap (blocks a step, or share of K)",
            "budget",
        ),
    ];
    let curve =
        |&(file, title, x, other, label, panel): &(&'static str, &'static str, Part, Part, &str, &str)| {
            let panels = panels(&rows, x, other, (label, panel));
            (!panels.is_empty()).then_some((file, title, panels))
        };
    axes.iter().filter_map(curve).collect()
}

/// Values in the order of their first appearance, those with a size by size.
fn ordered(rows: &[Row], part: Part) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    rows.iter().map(part).for_each(|v| {
        if !values.contains(v) {
            values.push(v.clone());
        }
    });
    let size = |v: &String| {
        let row = rows.iter().find(|r| part(r) == v);
        row.map(|r| (r.k, r.c))
    };
    values.sort_by_key(size);
    values
}

fn panels(rows: &[Row], x: Part, other: Part, (label, panel): (&str, &str)) -> Vec<Panel> {
    let places = ordered(rows, x);
    if places.len() < 2 {
        return Vec::new();
    }
    let lines = differing(rows, &VARYING[..3]);
    let mut names: Vec<String> = Vec::new();
    rows.iter().map(|r| name(r, &lines)).for_each(|n| {
        if !names.contains(&n) {
            names.push(n);
        }
    });
    let point = |row: &Row| {
        let place = places.iter().position(|p| p == x(row))?;
        let rate = row.figures.as_ref()?.hit_rate?;
        Some(Point::new(place as f64, 1.0 - rate))
    };
    let axis = Axis {
        label: label.to_owned(),
        range: (-0.3, places.len() as f64 - 0.7),
        ticks: places.iter().enumerate().map(|(i, p)| (i as f64, p.clone())).collect(),
    };
    let of = |value: &String| {
        let series = names.iter().map(|n| {
            let own = rows.iter().filter(|r| other(r) == value && &name(r, &lines) == n);
            let mut points: Vec<Point> = own.filter_map(point).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Series::new(n, &names, points)
        });
        let series: Vec<Series> = series.filter(|s| !s.points.is_empty()).collect();
        Panel {
            title: format!("{panel} {value}"),
            y: Axis::share("miss ratio", &series, true),
            series,
            x: axis.clone(),
        }
    };
    ordered(rows, other).iter().map(of).filter(|p| !p.series.is_empty()).collect()
}
