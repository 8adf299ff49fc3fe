//! A comparison for a terminal and for a pull request.

use super::record::{Change, Comparison, Row, Verdict};
use super::side::Head;
use crate::report::grid::Grid;
use crate::report::metric;
use crate::report::tables::short_hash;
use crate::report::units::{bytes, significant, wrapped};
use std::collections::BTreeSet;

/// Metrics of the table of changes, beside those that are tested; the others are in the JSON form.
const SHOWN: [&str; 8] = [
    metric::AGREEMENT,
    metric::RECALL,
    metric::MASS,
    metric::BYTES,
    metric::HIT_RATE,
    metric::DROPPED,
    "decode_tok_s",
    "prefill_tok_s",
];

/// For a terminal of `width` columns.
pub fn terminal(c: &Comparison, width: u16) -> String {
    let mut out = String::new();
    for line in head(c).into_iter().chain(matching(c)) {
        out += &(wrapped(&line, usize::from(width) - 2, 2) + "\n");
    }
    for (title, grid) in tables(c) {
        out += &format!("\n{title}\n{}", grid.terminal(width));
    }
    for line in closing(c) {
        out += &(wrapped(&line, usize::from(width) - 2, 2) + "\n");
    }
    out
}

/// For a pull request.
pub fn markdown(c: &Comparison) -> String {
    let mut out = format!("# {} → {}\n\n", c.a.name, c.b.name);
    let listed = |lines: Vec<String>| lines.into_iter().map(|l| format!("- {l}\n")).collect::<String>();
    out += &listed(head(c));
    out += &listed(matching(c));
    for (title, grid) in tables(c) {
        out += &format!("\n## {title}\n\n{}", grid.markdown());
    }
    out += &format!("\n{}", listed(closing(c)));
    out
}

/// One line a place where a rule fired.
pub fn fired(c: &Comparison) -> Vec<String> {
    let of = |r: &super::record::RuleRecord| {
        let rule = r.rule.clone();
        r.fired.iter().map(move |f| format!("FAILED `{rule}`: `{}`, {}", f.cell, f.what)).collect::<Vec<_>>()
    };
    c.rules.iter().flat_map(of).collect()
}

/// What comes first: broken invariants, the runs, what differs.
fn head(c: &Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    for (which, side) in [("A", &c.a), ("B", &c.b)] {
        lines.extend(
            side.violated
                .iter()
                .map(|v| format!("VIOLATED in {which}: {v}; its figures are not to be trusted")),
        );
    }
    lines.push(format!("A: {}", run(&c.a)));
    lines.push(format!("B: {}", run(&c.b)));
    lines.extend(c.notes.iter().cloned());
    lines
}

fn run(head: &Head) -> String {
    let status = crate::report::terminal::status(head.status);
    let code = match (&head.commit, &head.source_sha256) {
        (Some(commit), _) => format!(", commit {}", short_hash(commit)),
        (None, Some(sources)) => format!(", sources {}", short_hash(sources)),
        _ => String::new(),
    };
    format!("{} · {} · {} · {status}{code}", head.name, head.model, head.fingerprint)
}

fn matching(c: &Comparison) -> Vec<String> {
    let mut lines = vec![format!("cells compared: {}", c.cells.len())];
    for pair in c.cells.iter().filter(|p| !p.differs.is_empty()) {
        lines.push(format!("`{}`: {}", pair.name, pair.differs.join("; ")));
    }
    for (which, labels) in [("A", &c.only_a), ("B", &c.only_b)] {
        if !labels.is_empty() {
            lines.push(format!("only in {which}: `{}`", labels.join("`, `")));
        }
    }
    lines
}

fn tables(c: &Comparison) -> Vec<(String, Grid)> {
    let percent = significant(100.0 * c.level).trim_end_matches('0').trim_end_matches('.').to_owned();
    let rows = |primary: bool| c.rows.iter().filter(|r| r.primary == primary).collect::<Vec<_>>();
    let mut all = Vec::new();
    for (title, rows) in [
        ("by cell (p corrected over the cells)", rows(true)),
        ("by task (p corrected over all lines)", rows(false)),
    ] {
        if !rows.is_empty() {
            all.push((title.to_owned(), tested(&rows, &percent)));
        }
    }
    all.push(("equal to the bit (samples of all)".to_owned(), equal(c)));
    let changes = changes(c);
    if changes.width() > 3 {
        all.push(("other figures (mean over tasks)".to_owned(), changes));
    }
    all
}

/// Scores in points, distances as they are.
fn scale(row: &Row) -> (f64, usize) {
    if row.measure == metric::ACCURACY { (100.0, 1) } else { (1.0, 4) }
}

fn tested(rows: &[&Row], percent: &str) -> Grid {
    let mut grid = Grid::default();
    let text = |f: &dyn Fn(&Row) -> Option<String>| rows.iter().map(|r| f(r)).collect::<Vec<_>>();
    grid.words("cell", text(&|r| Some(r.cell.clone())));
    if rows.iter().any(|r| r.task.is_some()) {
        grid.words("task", text(&|r| Some(r.task.clone().unwrap_or_else(|| "all".to_owned()))));
    }
    if rows.iter().any(|r| r.measure != metric::ACCURACY) {
        grid.words("measure", text(&|r| Some(r.measure.clone())));
    }
    let value =
        |r: &Row, v: f64| if r.measure == metric::ACCURACY { format!("{v:.3}") } else { significant(v) };
    grid.numbers("n", text(&|r| Some(r.n.to_string())));
    grid.numbers("A", text(&|r| Some(value(r, r.a))));
    grid.numbers("B", text(&|r| Some(value(r, r.b))));
    grid.numbers(
        "B − A",
        text(&|r| {
            let (by, digits) = scale(r);
            let error = r.stderr.map_or(String::new(), |e| format!(" ±{:.digits$}", by * e));
            Some(format!("{:+.digits$}{error}", by * r.difference))
        }),
    );
    let interval = |r: &Row| {
        let ((by, digits), (low, high)) = (scale(r), r.interval?);
        Some(format!("{:+.digits$} … {:+.digits$}", by * low, by * high))
    };
    grid.numbers(&format!("{percent} % interval"), text(&interval));
    grid.numbers("higher\n/ lower", text(&|r| Some(format!("{}/{}", r.higher, r.lower))));
    grid.numbers("p", text(&|r| Some(significant(r.p))));
    grid.numbers("p (Holm)", text(&|r| (r.verdict != Verdict::AtChance).then(|| significant(r.p_holm))));
    grid.words("verdict", text(&|r| Some(verdict(r.verdict).to_owned())));
    grid
}

fn verdict(v: Verdict) -> &'static str {
    match v {
        Verdict::Equal => "equal",
        Verdict::NotSignificant => "not significant",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::AtChance => "dense is at chance",
        Verdict::TooFew => "one document: no test",
    }
}

fn equal(c: &Comparison) -> Grid {
    let mut grid = Grid::default();
    let d = &c.decisions;
    let of = |n: usize, all: usize| if n == all { "all".to_owned() } else { format!("{n} of {all}") };
    grid.words("cell", d.iter().map(|d| Some(d.cell.clone())).collect());
    grid.numbers("tokens", d.iter().map(|d| Some(of(d.tokens, d.pairs))).collect());
    grid.numbers("decisions", d.iter().map(|d| d.decisions.map(|n| of(n, d.pairs))).collect());
    grid.numbers("counters", d.iter().map(|d| Some(of(d.counters, d.pairs))).collect());
    grid.numbers("bytes", d.iter().map(|d| Some(of(d.bytes, d.pairs))).collect());
    grid.numbers("moved, A", d.iter().map(|d| Some(bytes(d.bytes_a))).collect());
    grid.numbers("moved, B", d.iter().map(|d| Some(bytes(d.bytes_b))).collect());
    grid.words("first that differs", d.iter().map(|d| d.first.clone()).collect());
    grid
}

/// Means over tasks of the metrics that are shown, where they differ.
fn changes(c: &Comparison) -> Grid {
    let mut lines: Vec<(&str, &str, f64, f64, &Change)> = Vec::new();
    for cell in &c.cells {
        for name in SHOWN {
            let mine = |x: &&Change| x.cell == cell.name && x.metric == name;
            let both: Vec<(f64, f64, &Change)> =
                c.changes.iter().filter(mine).filter_map(|x| Some((x.a?, x.b?, x))).collect();
            let Some(&(.., first)) = both.first() else { continue };
            let n = both.len() as f64;
            let (a, b) = both.iter().fold((0.0, 0.0), |s, x| (s.0 + x.0 / n, s.1 + x.1 / n));
            if a != b {
                lines.push((&cell.name, name, a, b, first));
            }
        }
    }
    let mut grid = Grid::default();
    grid.words("cell", lines.iter().map(|l| Some(l.0.to_owned())).collect());
    grid.words("figure", lines.iter().map(|l| Some(l.1.to_owned())).collect());
    grid.words("unit", lines.iter().map(|l| Some(l.4.unit.clone())).collect());
    grid.numbers("A", lines.iter().map(|l| Some(significant(l.2))).collect());
    grid.numbers("B", lines.iter().map(|l| Some(significant(l.3))).collect());
    let change = |l: &(&str, &str, f64, f64, &Change)| {
        (l.2 != 0.0).then(|| format!("{:+.1} %", 100.0 * (l.3 - l.2) / l.2.abs()))
    };
    grid.numbers("change", lines.iter().map(change).collect());
    grid
}

/// Methods that were used, the rules, the outcome.
fn closing(c: &Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    let methods: BTreeSet<&str> = c.rows.iter().map(|r| r.method.as_str()).collect();
    for method in methods {
        lines.push(match method {
            "McNemar, Tango" => "scores of 0 and 1: p of McNemar's exact test, interval after Tango (1998)".to_owned(),
            _ => format!("graded scores, or several samples of a document: p of random signs, BCa bootstrap interval, over documents, seed {}", c.seed),
        });
    }
    if c.rows.iter().any(|r| r.measure == metric::ACCURACY) {
        lines.push(
            "B − A of scores is in points; ± is one standard error of the paired difference".to_owned(),
        );
    }
    lines.extend(c.rules.iter().filter(|r| r.fired.is_empty()).map(|r| format!("passed `{}`", r.rule)));
    lines.extend(fired(c));
    lines
}
