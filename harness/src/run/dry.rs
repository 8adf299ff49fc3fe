//! What a run would do: the complete configuration, the memory of every cell, the prompts.

use super::model::Opened;
use super::samples::Samples;
use crate::app::App;
pub(crate) use crate::bench::weights_bytes;
use crate::bench::{Limits, Need, Size, check_memory};
use crate::plan::{Plan, PlannedCell};
use anyhow::Result;
use oasis_core::geometry::{BlockShape, Geometry};
use oasis_core::model::ModelConfig;
use oasis_core::plan::{MemoryPlan, PlanExtra, SeqLength};
use oasis_core::policy::Summary;
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Mode, Settings};
use oasis_core::text::Tokenizer;

const MIB: f64 = (1 << 20) as f64;

/// Prints the resolved configuration and the memory plan of every cell.
pub fn print(plan: &Plan, app: &App, samples: &Samples, opened: &Opened) -> Result<()> {
    let g = &opened.checkpoint.config.geometry;
    println!("{}", plan.resolved().text);
    for note in &plan.notes {
        println!("# note: {note}");
    }
    println!("# {} samples × {} cells × {} repeats", plan.samples(), plan.cells.len(), plan.repeats);
    println!("# weights: {:.2} MiB in bf16", weights_bytes(&opened.checkpoint.config) as f64 / MIB);
    println!("# memory beside the weights, for the longest sample (MiB)");
    let width = plan.cells.iter().map(|c| c.label.len()).max().unwrap_or(4).max(4);
    println!(
        "# {:<width$}  {:>5} {:>9} {:>6}  {:>9} {:>9}  largest",
        "cell", "K", "C", "batch", "device", "host"
    );
    for cell in &plan.cells {
        let Some(cost) = cost(plan, app, samples, cell, g)? else { continue };
        println!(
            "# {:<width$}  {:>5} {:>9} {:>6}  {:>9.2} {:>9.2}  {}",
            cell.label,
            cost.k.map_or("–".to_owned(), |k| k.to_string()),
            cost.c.map_or("–".to_owned(), |c| c.to_string()),
            cell.batch,
            cost.device as f64 / MIB,
            cost.host as f64 / MIB,
            cost.largest,
        );
    }
    Ok(())
}

/// What a cell takes.
pub struct Cost {
    /// Selectable blocks, where the cell ranks.
    pub k: Option<usize>,
    /// Most blocks that a pool fetches in a step.
    pub c: Option<usize>,
    /// Bytes of device memory beside the weights, for the longest sample.
    pub device: u64,
    /// Bytes of host memory.
    pub host: u64,
    /// The largest pool.
    pub largest: &'static str,
    /// Most bytes that a step of one sequence copies from the host store.
    pub moved: u64,
}

/// The cost of a cell; none without samples.
pub fn cost(
    plan: &Plan,
    app: &App,
    samples: &Samples,
    cell: &PlannedCell,
    g: &Geometry,
) -> Result<Option<Cost>> {
    let Some(decode) = Decode::longest(plan, app, samples, cell)? else { return Ok(None) };
    let memory = decode.memory(g, (cell.batch, decode.length.prompt), PlanExtra::default());
    let settings = &decode.settings;
    let ranks = settings.ranks();
    let (k, c) = (settings.k(), settings.cap_blocks());
    let block = BlockShape { tokens: cell.block, head_dim: g.head_dim }.bytes();
    let fetches = matches!(cell.mode, Mode::Staged | Mode::OnDemand);
    let moved = if fetches { c.min(k) * g.layers * g.kv_heads * block } else { 0 };
    Ok(Some(Cost {
        k: ranks.then_some(k),
        c: ranks.then_some(c),
        device: memory.device(),
        host: memory.host(),
        largest: memory.pools.iter().max_by_key(|p| p.bytes).map_or("", |p| p.name),
        moved: moved as u64,
    }))
}

/// The decode of a cell that needs most memory: its longest sample, over and over.
struct Decode {
    settings: Settings,
    summary: Box<dyn Summary>,
    length: SeqLength,
}

impl Decode {
    fn longest(plan: &Plan, app: &App, samples: &Samples, cell: &PlannedCell) -> Result<Option<Self>> {
        let Some(job) = samples.jobs.iter().max_by_key(|j| j.prefix + j.max_new()) else { return Ok(None) };
        let settings = cell.settings(plan.tasks[job.task].length, plan.seed);
        let length = SeqLength { prompt: job.prefix, max_new: job.max_new() };
        let (entry, table) = match cell.summary.as_ref() {
            Some(spec) => (Some(find("summary", &app.summaries, &spec.name)?), spec.table.clone()),
            // A cell that ranks nothing keeps no summaries.
            None => (app.summaries.first(), toml::Table::new()),
        };
        let Some(entry) = entry else { return Ok(None) };
        Ok(Some(Self { settings, summary: (entry.build)(&Params { table, seed: 0 })?, length }))
    }

    /// For a batch of prompts of `context` tokens.
    fn memory(&self, g: &Geometry, (batch, context): Size, extra: PlanExtra) -> MemoryPlan {
        let length = SeqLength { prompt: context, ..self.length };
        MemoryPlan::new(g, &self.settings, &vec![length; batch], self.summary.as_ref(), extra)
    }
}

/// Refuses a cell that does not fit, before anything is allocated. `workers` decode at the same time, and each
/// holds one batch; the scratch of prefills and the arrays of a device's chain are not counted here.
///
/// # Errors
/// [`oasis_core::Error::Capacity`] with the cell's plan, the limit, and the largest batch and prompt that fit.
pub fn check(
    plan: &Plan,
    cell: &PlannedCell,
    app: &App,
    samples: &Samples,
    config: &ModelConfig,
    workers: usize,
    limits: &Limits,
) -> Result<()> {
    let Some(decode) = Decode::longest(plan, app, samples, cell)? else { return Ok(()) };
    let need = |size: Size| {
        let mut plan = decode.memory(&config.geometry, size, PlanExtra::default());
        plan.pools.iter_mut().for_each(|p| p.bytes *= workers as u64);
        Need { backend: 0, weights: weights_bytes(config) as u64, plan }
    };
    let workers = if workers > 1 { format!(" ({workers} workers)") } else { String::new() };
    let what = format!("cell `{}`{workers}", cell.label);
    Ok(check_memory(&what, &need, limits, (cell.batch, decode.length.prompt), cell.block)?)
}

/// Prints the first prompt of every task, as text with its token count and hash.
pub fn write_out(plan: &Plan, samples: &Samples, tokenizer: &Tokenizer) -> Result<()> {
    for (t, task) in plan.tasks.iter().enumerate() {
        let Some(job) = samples.jobs.iter().find(|j| j.task == t) else { continue };
        let s = &job.sample;
        println!("=== {}: {} tokens, sha256 {}", job.key, s.prompt.len(), s.prompt_sha256);
        println!("--- prefilled densely ({} tokens)", job.prefix);
        println!("{}", tokenizer.decode(job.prefix())?);
        if job.prefix < s.prompt.len() {
            println!("--- decoded sparsely: the question ({} tokens)", s.prompt.len() - job.prefix);
            println!("{}", tokenizer.decode(&s.prompt[job.prefix..])?);
        }
        let what = if task.forced() { "text that is forced" } else { "answer" };
        println!("--- {what}: {}", tokenizer.decode(&s.answer)?);
    }
    Ok(())
}
