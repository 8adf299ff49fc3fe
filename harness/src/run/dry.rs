//! What a run would do: the complete configuration, the memory of every cell, the prompts.

use super::model::Opened;
use super::samples::Samples;
use crate::app::App;
pub(crate) use crate::bench::weights_bytes;
use crate::plan::Plan;
use anyhow::Result;
use oasis_core::plan::{MemoryPlan, PlanExtra, SeqLength};
use oasis_core::registry::{Params, find};
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
        let longest = samples.jobs.iter().max_by_key(|j| j.prefix + j.max_new());
        let Some(job) = longest else { continue };
        let settings = cell.settings(plan.tasks[job.task].length, plan.seed);
        let length = SeqLength { prompt: job.prefix, max_new: job.max_new() };
        let spec = cell.summary.as_ref();
        let (name, table) = spec.map_or(("", toml::Table::new()), |s| (s.name.as_str(), s.table.clone()));
        let entry = if name.is_empty() {
            app.summaries.first()
        } else {
            Some(find("summary", &app.summaries, name)?)
        };
        let Some(entry) = entry else { continue };
        let summary = (entry.build)(&Params { table, seed: 0 })?;
        let memory =
            MemoryPlan::new(g, &settings, &vec![length; cell.batch], summary.as_ref(), PlanExtra::default());
        let (k, c) = if settings.ranks() {
            (settings.k().to_string(), settings.cap_blocks().to_string())
        } else {
            ("–".to_owned(), "–".to_owned())
        };
        let largest = memory.pools.iter().max_by_key(|p| p.bytes).map_or("", |p| p.name);
        println!(
            "# {:<width$}  {k:>5} {c:>9} {:>6}  {:>9.2} {:>9.2}  {largest}",
            cell.label,
            cell.batch,
            memory.device() as f64 / MIB,
            memory.host() as f64 / MIB,
        );
    }
    Ok(())
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
