//! `report.md` and `report.html`: one set of values, two templates.

use super::grid::{self, Grid};
use super::plot::Plot;
use super::tables::{self, short_hash};
use super::view::View;
use super::{metric, terminal, units};
use crate::record::{Environment, HardwareRecord, Results};
use anyhow::{Context, Result};
use minijinja::{context, syntax::SyntaxConfig, value::Value};

const MARKDOWN: &str = include_str!("report.md.jinja");
const HTML: &str = include_str!("report.html.jinja");
/// Heading, style and foot of every page.
const PAGE: &str = include_str!("page.html.jinja");

/// What a report is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// Markdown with links to the plots beside it.
    Markdown,
    /// One HTML file with the plots in it; nothing is loaded from anywhere.
    Html,
}

impl Page {
    /// A table.
    pub fn table(self, grid: &Grid) -> Value {
        match self {
            Self::Markdown => Value::from(grid.markdown()),
            Self::Html => Value::from_safe_string(grid.html()),
        }
    }

    /// A sentence: in HTML, words between backticks become code.
    fn sentence(self, text: &str) -> Value {
        match self {
            Self::Markdown => Value::from(text),
            Self::Html => {
                let parts = text.split('`').enumerate().map(|(i, part)| match (i % 2, grid::escaped(part)) {
                    (0, part) => part,
                    (_, part) => format!("<code>{part}</code>"),
                });
                Value::from_safe_string(parts.collect())
            }
        }
    }

    /// Sentences.
    pub fn sentences(self, texts: &[String]) -> Vec<Value> {
        texts.iter().map(|t| self.sentence(t)).collect()
    }

    /// Plots: linked in Markdown, whole in HTML.
    pub fn plots(self, plots: &[Plot]) -> Vec<Value> {
        let plot = |p: &Plot| {
            let svg = Value::from_safe_string(if self == Self::Html { p.svg.clone() } else { String::new() });
            context! { title => p.title, file => p.file, caption => p.caption.as_str(), svg }
        };
        plots.iter().map(plot).collect()
    }

    /// Renders one of the built-in templates; in HTML all that is no table, plot or sentence is escaped.
    ///
    /// # Errors
    /// The template is broken.
    pub fn render(self, name: &'static str, template: &'static str, values: Value) -> Result<String> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build()?;
        let mut engine = minijinja::Environment::new();
        engine.set_syntax(syntax);
        engine.add_template("page.html", PAGE).context("page.html.jinja is broken")?;
        engine.add_template(name, template).with_context(|| format!("{name}.jinja is broken"))?;
        engine.get_template(name)?.render(values).with_context(|| format!("{name}.jinja is broken"))
    }
}

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
    Page::Markdown.render("report.md", MARKDOWN, values(Page::Markdown, results, env, config, plots))
}

/// The same as one HTML page with the plots in it.
///
/// # Errors
/// Only if the built-in template is broken.
pub fn render_html(
    results: &Results,
    env: Option<&Environment>,
    config: Option<&str>,
    plots: &[Plot],
) -> Result<String> {
    Page::Html.render("report.html", HTML, values(Page::Html, results, env, config, plots))
}

fn values(
    page: Page,
    results: &Results,
    env: Option<&Environment>,
    config: Option<&str>,
    plots: &[Plot],
) -> Value {
    let view = View::new(results);
    let shown = |grid: Option<Grid>| grid.map(|g| page.table(&g));
    let failures: Vec<String> =
        results.failures.iter().map(|f| format!("{} in {}: {}", f.sample, f.cell, f.error)).collect();
    context! {
        name => results.name.as_str(),
        status => terminal::status(results.status),
        n_done => results.n_done,
        n_planned => results.n_planned,
        n_failed => results.n_failed,
        model => Value::from(minijinja::value::Serde(&results.model)),
        protocol => results.protocol.as_str(),
        protocol_text => page.sentence(protocol(&results.protocol)),
        seed => results.seed,
        repeats => results.repeats,
        fingerprint => results.fingerprint.as_str(),
        invariants => page.sentences(&tables::invariants(&results.invariants)),
        warnings => page.sentences(&tables::warnings(&results.warnings, true)),
        main => page.table(&tables::main(&view, 3)),
        by_task => shown(tables::by_task(&view, 3)),
        notes => page.sentences(&tables::footnotes(&view)),
        plots => page.plots(plots),
        definitions => definitions(page),
        tasks => page.table(&tables::tasks(&view)),
        configuration => page.table(&tables::configuration(&view)),
        times => shown(tables::times(&view)),
        times_are => metric::TIMES,
        memory => shown(tables::memory(&view)),
        failures,
        environment => environment(page, results, env),
        config => config.map(str::trim_end),
    }
}

fn definitions(page: Page) -> Vec<Value> {
    let bars = if page == Page::Markdown { "\\|" } else { "|" };
    metric::DEFINITIONS
        .iter()
        .map(|(name, title, text)| context! { name => *name, title => *title, text => text.replace('|', bars) })
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

/// Rows of what is there: a machine without a GPU has none of them.
fn hardware(h: &HardwareRecord) -> Vec<(&'static str, String)> {
    let device = |g: &crate::record::GpuRecord| {
        let link = g.link.as_ref().map_or(String::new(), |l| format!(", link {l}"));
        let node = g.numa_node.map_or(String::new(), |n| format!(", NUMA node {n}"));
        format!("{} at {}{link}{node}", g.name, g.address)
    };
    let mut rows = Vec::new();
    if h.numa_nodes > 1 {
        rows.push(("NUMA nodes", h.numa_nodes.to_string()));
    }
    rows.extend(h.driver.iter().map(|d| ("NVIDIA driver", d.clone())));
    if !h.gpus.is_empty() {
        rows.push(("GPUs", h.gpus.iter().map(device).collect::<Vec<_>>().join("; ")));
    }
    rows
}

fn environment(page: Page, results: &Results, env: Option<&Environment>) -> Vec<(String, Value)> {
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
        rows.extend(e.hardware.iter().flat_map(hardware));
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
    rows.into_iter().map(|(k, v)| (k.to_owned(), page.sentence(&v.replace('|', "/")))).collect()
}
