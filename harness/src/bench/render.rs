//! A benchmark for people: terminal, Markdown, SVG. Pure functions of records.

use super::case::Case;
use super::fit::Fit;
use super::limits::Limits;
use super::record::{BandwidthRecord, DecodeRecord, ModelRecord, OpRow, OpsRecord, Outcome, Row, Timing};
use crate::report::WIDTH;
use crate::report::grid::Grid;
use crate::report::plot::axis::Axis;
use crate::report::plot::draw::{self, Panel, Point, Series};
use crate::report::units::{self, significant};
use anyhow::Result;
use oasis_core::ops::Backend;
use std::collections::BTreeMap;

/// A way of decoding, without batch and context: mode, budget in tokens, C in blocks.
pub fn name(row: &Row) -> String {
    let mut name = row.mode.clone();
    if row.auto.is_some() {
        name = format!("auto: {name}");
    }
    if let Some(budget) = row.budget {
        name += &format!(" {budget}");
    }
    if let Some(cap) = row.cap_blocks {
        name += &format!("/{cap}");
    }
    name
}

/// One line while it runs.
pub fn progress(row: &Row) -> String {
    let at = format!("{} batch {}", name(row), row.batch);
    match &row.outcome {
        Outcome::Done(t) => format!(
            "{at}: {} ms a step, {} tok/s, {} × floor (ready after {:.1} s)",
            significant(t.step_ms.p50),
            significant(t.tok_s),
            significant(t.over_floor),
            t.start_s
        ),
        Outcome::Refused(why) => format!("refused: {why}"),
        Outcome::Failed(why) => format!("failed: {at}: {why}"),
    }
}

fn timing(row: &Row) -> Option<&Timing> {
    match &row.outcome {
        Outcome::Done(t) => Some(t),
        _ => None,
    }
}

/// Tokens a second over those of dense decoding: at the same batch if it was measured there, else at its largest.
fn over_dense(row: &Row, rows: &[Row]) -> Option<f64> {
    let own = timing(row)?.tok_s;
    let dense = rows.iter().filter(|r| r.mode == "dense" && r.auto.is_none() && r.context == row.context);
    let dense: Vec<(&Row, f64)> = dense.filter_map(|r| timing(r).map(|t| (r, t.tok_s))).collect();
    let same = dense.iter().find(|(r, _)| r.batch == row.batch);
    let (_, base) = same.or_else(|| dense.iter().max_by_key(|(r, _)| r.batch))?;
    (row.mode != "dense").then(|| own / base)
}

fn rates(b: &BandwidthRecord) -> String {
    let gb = |x: f64| format!("{} GB/s", significant(x / 1e9));
    format!(
        "device read {}, copy {}; host to device: gather {}, copy {}; device to host {}",
        gb(b.device_read),
        gb(b.device_copy),
        gb(b.gather),
        gb(b.to_device),
        gb(b.to_host)
    )
}

fn model(m: &ModelRecord) -> String {
    let label =
        if m.synthetic { "SYNTHETIC (random weights and caches of its sizes)" } else { "real weights" };
    format!(
        "{}, {label}: {} of weights, {} of K and V a token",
        m.name,
        units::bytes(m.weights_bytes),
        units::bytes(m.kv_bytes_per_token)
    )
}

fn heading(record: &DecodeRecord) -> String {
    let mut out = format!("{}\n{}\n{}\n", model(&record.model), record.device, rates(&record.bandwidths));
    for note in &record.notes {
        out += &format!("note: {note}\n");
    }
    out
}

/// What was measured: times, then what the steps read and moved. One table of both is too wide for a terminal.
fn tables(rows: &[Row]) -> [Grid; 2] {
    let measured: Vec<&Row> = rows.iter().filter(|r| timing(r).is_some()).collect();
    let words = |f: &dyn Fn(&Row) -> Option<String>| measured.iter().map(|r| f(r)).collect::<Vec<_>>();
    let of = |f: &dyn Fn(&Timing) -> Option<String>| {
        measured.iter().map(|r| timing(r).and_then(f)).collect::<Vec<_>>()
    };
    let number = |f: fn(&Timing) -> f64| of(&move |t| Some(significant(f(t))));
    let named = || {
        let mut grid = Grid::default();
        grid.words("mode budget/C", words(&|r| Some(name(r))));
        grid.numbers("batch", words(&|r| Some(r.batch.to_string())));
        grid.numbers("context", words(&|r| Some(r.context.to_string())));
        grid
    };
    let mut grid = named();
    grid.numbers("rows", words(&|r| (r.rows > 1).then(|| r.rows.to_string())));
    grid.numbers("step ms\np50", number(|t| t.step_ms.p50));
    grid.numbers("p90", number(|t| t.step_ms.p90));
    grid.numbers("p99", number(|t| t.step_ms.p99));
    grid.numbers("tok/s", number(|t| t.tok_s));
    grid.numbers("× dense", words(&|r| over_dense(r, rows).map(significant)));
    grid.numbers("floor\nms", number(|t| t.floor_ms));
    grid.numbers("×\nfloor", number(|t| t.over_floor));
    let times = grid;
    let mut grid = named();
    grid.numbers("K, V\nread", of(&|t| Some(units::bytes_f(t.bytes.kv))));
    grid.numbers("summaries", of(&|t| (t.bytes.summaries > 0.0).then(|| units::bytes_f(t.bytes.summaries))));
    grid.numbers("fetched", of(&|t| (t.blocks.allowed > 0.0).then(|| units::bytes_f(t.bytes.fetched))));
    grid.numbers("of cap", of(&|t| t.blocks.saturation.map(|s| format!("{:.0} %", 100.0 * s))));
    grid.numbers("exposed\nms", of(&|t| t.transfer.map(|x| significant(x.exposed_ms))));
    grid.numbers("hidden\nms", of(&|t| t.transfer.map(|x| significant(x.hidden_ms))));
    [times, grid]
}

/// What the table has no column for.
fn remarks(record: &DecodeRecord) -> Vec<String> {
    let mut out = Vec::new();
    let mut on_host: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in &record.rows {
        let at = format!("{}, batch {} × {}", name(row), row.batch, row.context);
        match &row.outcome {
            Outcome::Refused(why) => out.push(format!("refused: {why}")),
            Outcome::Failed(why) => out.push(format!("failed: {at}: {why}")),
            Outcome::Done(t) => {
                if let Err(why) = &t.on_device {
                    let names = on_host.entry(why).or_default();
                    if !names.contains(&name(row)) {
                        names.push(name(row));
                    }
                }
                if !t.as_planned {
                    let (device, host) = t.allocated;
                    out.push(format!(
                        "{at}: allocated {} on the device and {} on the host, planned {} and {}; {} of scratch",
                        units::bytes(device),
                        units::bytes(host),
                        units::bytes(row.need.plan.device()),
                        units::bytes(row.need.plan.host()),
                        units::bytes(t.scratch)
                    ));
                }
                if over_dense(row, &record.rows).is_some_and(|x| x < 1.0) {
                    out.push(format!("{at}: slower than dense"));
                }
            }
        }
        if let Some(c) = &row.auto {
            out.push(format!(
                "auto at batch {} × {}: {} ({}; predicted dense {} ms, staged {} ms)",
                row.batch,
                row.context,
                c.mode,
                c.why,
                significant(c.dense_ms),
                significant(c.staged_ms)
            ));
        }
    }
    let hosts = on_host.iter().map(|(why, names)| format!("pools on the host ({why}): {}", names.join("; ")));
    out.extend(hosts);
    out.extend(record.fits.iter().map(fitted));
    out
}

fn fitted(f: &Fit) -> String {
    let r2 = f.r2.map(|r| format!(", R² {r:.3}")).unwrap_or_default();
    let sign = if f.ms_per_1024 < 0.0 { '−' } else { '+' };
    format!(
        "{}: {} ms {sign} {} ms for each 1,024 tokens of context ({} contexts{r2})",
        f.name,
        significant(f.constant_ms),
        significant(f.ms_per_1024.abs()),
        f.n
    )
}

/// For the terminal.
pub fn terminal(record: &DecodeRecord) -> String {
    let mut out = heading(record);
    for grid in tables(&record.rows) {
        out += &format!("\n{}", grid.terminal(WIDTH));
    }
    for remark in remarks(record) {
        out += &format!("{}\n", units::wrapped(&remark, usize::from(WIDTH) - 2, 2));
    }
    out
}

fn markdown(record: &DecodeRecord) -> String {
    let m = &record.model;
    let label = if m.synthetic { " (synthetic)" } else { "" };
    let mut out = format!("# Decode steps: {}{label}\n\n", m.name);
    out += &heading(record).lines().map(|l| format!("- {l}\n")).collect::<String>();
    for grid in tables(&record.rows) {
        out += &format!("\n{}", grid.markdown());
    }
    out.push('\n');
    out += &remarks(record).iter().map(|r| format!("- {r}\n")).collect::<String>();
    out += "\n![step time](bench.svg)\n\nFloor: bytes that a step must read over the read bandwidth, or bytes that it must fetch \
            over the gather bandwidth, whichever takes longer; both bandwidths were measured in this run. Exposed and hidden \
            transfer are of steps of their own, after the timed ones.\n";
    out
}

/// File names and contents.
///
/// # Errors
/// If the drawing library fails.
pub fn files(record: &DecodeRecord) -> Result<Vec<(&'static str, String)>> {
    let json = serde_json::to_string_pretty(record)? + "\n";
    Ok(vec![("bench.json", json), ("bench.md", markdown(record)), ("bench.svg", svg(record)?)])
}

/// Step time and tokens a second over the context, or over the batch where there is one context.
fn svg(record: &DecodeRecord) -> Result<String> {
    let mut contexts: Vec<usize> = record.rows.iter().map(|r| r.context).collect();
    contexts.dedup();
    let by_context = contexts.len() > 1;
    let place = |r: &Row| if by_context { r.context } else { r.batch };
    let label = |r: &Row| if by_context { format!("{}, batch {}", name(r), r.batch) } else { name(r) };
    let mut names: Vec<String> = Vec::new();
    let mut places: Vec<usize> = Vec::new();
    for row in record.rows.iter().filter(|r| timing(r).is_some()) {
        if !names.contains(&label(row)) {
            names.push(label(row));
        }
        places.push(place(row));
    }
    places.sort_unstable();
    places.dedup();
    let series = |value: fn(&Timing) -> f64| -> Vec<Series> {
        let of = |n: &String| {
            let own = record.rows.iter().filter(|r| &label(r) == n);
            let points =
                own.filter_map(|r| timing(r).map(|t| Point::new((place(r) as f64).log2(), value(t))));
            Series::new(n, &names, points.collect())
        };
        names.iter().map(of).collect()
    };
    let what = if by_context { "context (tokens)" } else { "batch (sequences)" };
    let panel = |title: &str, unit: &str, value: fn(&Timing) -> f64| {
        let series = series(value);
        let y = Axis::from_zero(unit, &series, &|v| significant(v));
        Panel { title: title.to_owned(), x: Axis::budgets(what, &places), y, series }
    };
    let panels = [
        panel("median step", "ms", |t| t.step_ms.p50),
        panel("throughput", "tokens a second", |t| t.tok_s),
        panel("median step over floor", "×", |t| t.over_floor),
    ];
    draw::svg(&format!("{}: decode steps", record.model.name), &panels)
}

/// Memory of every case, for a dry run.
pub fn plans<B: Backend>(cases: &[Case<B>], limits: &Limits) -> String {
    let mut grid = Grid::default();
    let all = |f: &dyn Fn(&Case<B>) -> Option<String>| cases.iter().map(f).collect::<Vec<_>>();
    grid.words("mode", all(&|c| Some(c.way.mode.name().to_owned())));
    grid.numbers("batch", all(&|c| Some(c.batch.to_string())));
    grid.numbers("context", all(&|c| Some(c.context.to_string())));
    grid.numbers("K", all(&|c| c.settings.ranks().then(|| c.settings.k().to_string())));
    grid.numbers("C", all(&|c| c.settings.ranks().then(|| c.settings.cap_blocks().to_string())));
    grid.numbers("weights", all(&|c| Some(units::bytes(c.need.weights))));
    grid.numbers("device", all(&|c| Some(units::bytes(c.need.device()))));
    grid.numbers("host", all(&|c| Some(units::bytes(c.need.host()))));
    grid.words("fits", all(&|c| Some(if c.refused.is_some() { "no" } else { "yes" }.to_owned())));
    let mut out = format!(
        "limits: {} of device memory, {} of host memory\n{}",
        units::bytes(limits.device),
        units::bytes(limits.host),
        grid.terminal(WIDTH)
    );
    for why in cases.iter().filter_map(|c| c.refused.as_ref()) {
        out += &format!("refused: {}\n", units::wrapped(why, usize::from(WIDTH) - 2, 2));
    }
    out
}

fn ops_table(rows: &[OpRow]) -> Grid {
    let mut grid = Grid::default();
    let all = |f: &dyn Fn(&OpRow) -> Option<String>| rows.iter().map(f).collect::<Vec<_>>();
    let timed = |f: fn(&OpRow) -> String| all(&move |r| r.error.is_none().then(|| f(r)));
    grid.words("op", all(&|r| Some(r.op.to_owned())));
    grid.words("size", all(&|r| Some(r.size.clone())));
    grid.numbers("µs", timed(|r| significant(r.us)));
    grid.numbers("bytes", timed(|r| units::bytes_f(r.bytes)));
    grid.numbers("GB/s", timed(|r| significant(r.bytes / r.us / 1e3)));
    grid.numbers(
        "TFLOP/s",
        all(&|r| (r.error.is_none() && r.flops > 0.0).then(|| significant(r.flops / r.us / 1e6))),
    );
    if rows.iter().any(|r| r.share.is_some()) {
        grid.numbers("of product", all(&|r| r.share.map(|s| format!("{:.0} %", 100.0 * s))));
    }
    grid.numbers("floor µs", timed(|r| significant(r.floor_us)));
    grid.numbers("floor / time", timed(|r| format!("{:.0} %", 100.0 * r.floor_us / r.us)));
    grid.words("launch", timed(|r| if r.recorded { "recorded" } else { "one by one" }.to_owned()));
    grid
}

/// Ops for the terminal.
pub fn ops_terminal(record: &OpsRecord) -> String {
    let mut out = format!("{}\n{}\n{}\n", model(&record.model), record.device, rates(&record.bandwidths));
    out += &ops_table(&record.rows).terminal(WIDTH);
    for row in &record.rows {
        if let Some(error) = &row.error {
            out += &format!("{} ({}): {error}\n", row.op, row.size);
        }
    }
    out
}

/// Ops as files.
///
/// # Errors
/// None in practice: a record is always JSON.
pub fn ops_files(record: &OpsRecord) -> Result<Vec<(&'static str, String)>> {
    let mut text = format!("# Ops: {}\n\n- {}\n", record.model.name, model(&record.model));
    text += &format!("- {}\n- {}\n\n", record.device, rates(&record.bandwidths));
    text += &ops_table(&record.rows).markdown();
    Ok(vec![("ops.json", serde_json::to_string_pretty(record)? + "\n"), ("ops.md", text)])
}
