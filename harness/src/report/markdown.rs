//! `report.md`.

use super::plot::Plot;
use super::tables::{self, short_hash};
use super::view::View;
use super::{metric, terminal, units};
use crate::record::{Environment, Results};
use anyhow::{Context, Result};
use minijinja::{context, syntax::SyntaxConfig, value::Value};

const TEMPLATE: &str = include_str!("report.md.jinja");

/// The report as Markdown, with links to `plots` beside it.
///
/// `config` is the resolved configuration as it lies in the run's folder.
///
/// # Errors
/// Only if the built-in template is broken.
pub fn render(
    results: &Results,
    env: Option<&Environment>,
    config: Option<&str>,
    plots: &[Plot],
) -> Result<String> {
    let view = View::new(results);
    let shown = |grid: Option<super::grid::Grid>| grid.map(|g| g.markdown());
    let failures: Vec<String> =
        results.failures.iter().map(|f| format!("{} in {}: {}", f.sample, f.cell, f.error)).collect();
    let links: Vec<Value> = plots
        .iter()
        .map(|p| context! { title => p.title, file => p.file, caption => p.caption.as_str() })
        .collect();
    let values = context! {
        name => results.name.as_str(),
        status => terminal::status(results.status),
        n_done => results.n_done,
        n_planned => results.n_planned,
        n_failed => results.n_failed,
        model => Value::from(minijinja::value::Serde(&results.model)),
        protocol => results.protocol.as_str(),
        protocol_text => protocol(&results.protocol),
        seed => results.seed,
        repeats => results.repeats,
        fingerprint => results.fingerprint.as_str(),
        invariants => tables::invariants(&results.invariants),
        warnings => tables::warnings(&results.warnings, true),
        main => tables::main(&view, 3).markdown(),
        by_task => shown(tables::by_task(&view, 3)),
        notes => tables::footnotes(&view),
        plots => links,
        definitions => definitions(),
        tasks => tables::tasks(&view).markdown(),
        configuration => tables::configuration(&view).markdown(),
        times => shown(tables::times(&view)),
        memory => shown(tables::memory(&view)),
        failures => failures,
        environment => environment(results, env),
        config => config.map(str::trim_end),
    };
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build()?;
    let mut engine = minijinja::Environment::new();
    engine.set_syntax(syntax);
    engine.add_template("report.md", TEMPLATE).context("report.md.jinja is broken")?;
    engine.get_template("report.md")?.render(values).context("report.md.jinja is broken")
}

fn definitions() -> Vec<Value> {
    metric::DEFINITIONS
        .iter()
        .map(|(name, title, text)| context! { name => *name, title => *title, text => text.replace('|', "\\|") })
        .collect()
}

fn protocol(name: &str) -> &'static str {
    match name {
        "question" => {
            "Protocol `question`: the prompt up to the question is prefilled densely; the question's tokens go \
             through sparse decoding one by one, then the model answers freely."
        }
        _ => "Protocol `decode`: the whole prompt is prefilled densely; only the answer is decoded sparsely.",
    }
}

fn environment(results: &Results, env: Option<&Environment>) -> Vec<(String, String)> {
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(e) = env {
        let commit = e.code.commit.as_deref().map_or("none (no repository)".to_owned(), short_hash);
        let dirty = if e.code.dirty { ", with uncommitted changes" } else { "" };
        rows.push((
            "Oasis",
            format!("{}, commit {commit}{dirty}, sources {}", e.version, short_hash(&e.code.source_sha256)),
        ));
        rows.push(("command", format!("`{}`", e.command.join(" "))));
        rows.push(("started", e.started.clone()));
        rows.push(("processor", format!("{}, {} cores", e.cpu, e.cores)));
        rows.push(("memory", units::bytes(e.memory_bytes)));
        rows.push(("system", e.system.clone()));
        rows.push(("backend", e.backend.clone()));
        let versions: Vec<String> = e.versions.iter().map(|(name, v)| format!("{name} v{v}")).collect();
        rows.push(("versions", versions.join(", ")));
    }
    let m = &results.model;
    rows.push(("weights sha256", short_hash(&m.digest)));
    rows.push(("tokenizer sha256", short_hash(&m.tokenizer_digest)));
    rows.push(("K and V of a token", units::bytes(m.kv_bytes_per_token as u64)));
    let machine = &results.machine;
    if machine.jobs > 0 {
        rows.push(("workers", format!("{} of {} thread(s)", machine.jobs, machine.threads)));
        rows.push(("time", units::seconds(machine.wall_s)));
    }
    rows.into_iter().map(|(k, v)| (k.to_owned(), v.replace('|', "/"))).collect()
}
