//! How long a run will take, measured on its own first steps.

use super::decode::{Context, Ready, Reference};
use super::samples::{self, Job};
use super::sitting::{Request, Work};
use anyhow::Result;
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_kernels::Measure;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Steps that are decoded in every cell.
pub const STEPS: usize = 4;

/// Seconds that a run will take.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Of all prefills, on one worker.
    pub prefill: f64,
    /// Of all decodes of each cell, on one worker; none where the cell fails.
    pub cells: Vec<Option<f64>>,
    /// Workers that will have work.
    pub workers: usize,
}

impl Estimate {
    /// Seconds until the run ends, if its workers share the work evenly.
    pub fn seconds(&self) -> f64 {
        (self.prefill + self.cells.iter().flatten().sum::<f64>()) / self.workers as f64
    }
}

/// Prefills the first sample of every task and decodes [`STEPS`] steps of it in every cell.
pub struct Probe;

impl Work for Probe {
    type Out = Estimate;

    fn work<B: Measure>(
        self,
        request: &Request<'_>,
        mut loader: B,
        (jobs, _): (usize, usize),
        another: impl Fn(&B) -> oasis_core::Result<B> + Sync,
    ) -> Result<Estimate> {
        let (model, built) = request.set_up(&mut loader, jobs)?;
        let mut engine = Engine::new(another(&loader)?, model.clone())?;
        let Request { plan, opened, samples, only, .. } = *request;
        let context =
            Context { plan, built: &built, tokenizer: &opened.checkpoint.tokenizer, eos: &model.config.eos };
        let mut estimate = Estimate { prefill: 0.0, cells: vec![Some(0.0); plan.cells.len()], workers: 1 };
        let batch = plan.cells.iter().map(|c| c.batch).max().unwrap_or(1);
        let bundles = samples::bundles(&samples.jobs, batch).len();
        let parts = samples::parts(bundles, jobs, plan.cells.len());
        estimate.workers = jobs.clamp(1, (bundles * parts).max(1));
        let prefixes = samples::bundles(&samples.jobs, 1);
        for t in 0..plan.tasks.len() {
            let of_task: Vec<&Job> = samples.jobs.iter().filter(|j| j.task == t).collect();
            let Some(first) = of_task.first() else { continue };
            let short = shortened(first);
            let blocks: BTreeSet<usize> = plan.cells.iter().map(|c| c.block).collect();
            let prefills = prefixes.iter().filter(|r| samples.jobs[r.start].task == t).count() * parts;
            let share = |steps: usize| {
                of_task.iter().map(|j| j.max_new()).sum::<usize>() as f64 / steps.max(1) as f64
            };
            for block in blocks {
                let options =
                    PrefillOptions { block_tokens: block, hidden_layers: built.hidden_layers.clone() };
                let start = Instant::now();
                let prefix = Arc::new(engine.prefill(short.prefix(), &options)?);
                let ready = Ready { prefix, seconds: start.elapsed().as_secs_f64() };
                estimate.prefill += ready.seconds * prefills as f64;
                let own = (0..plan.cells.len()).filter(|&c| plan.cells[c].block == block || c == 0);
                let mut reference = None;
                for cell in own {
                    let seconds = decode(&context, &mut engine, cell, (&short, &ready), &mut reference);
                    if plan.cells[cell].block != block || !only[cell] {
                        continue;
                    }
                    let all = seconds.map(|(fixed, stepping)| {
                        let whole = fixed * of_task.len() as f64 + stepping * share(short.max_new());
                        whole * f64::from(plan.repeats)
                    });
                    estimate.cells[cell] = estimate.cells[cell].zip(all).map(|(a, b)| a + b);
                }
            }
        }
        Ok(estimate)
    }
}

/// The sample with its first [`STEPS`] tokens only.
fn shortened(job: &Job) -> Job {
    let forced: Vec<u32> = job.forced.iter().copied().take(STEPS).collect();
    let free = job.free.min(STEPS - forced.len());
    Job {
        task: job.task,
        key: job.key.clone(),
        sample: job.sample.clone(),
        prefix: job.prefix,
        first: job.first,
        forced,
        free,
        fidelity: job.fidelity,
    }
}

/// Seconds before the first step and of all steps; none where the cell fails. Cell 0 leaves the reference.
fn decode<B: Measure>(
    context: &Context<'_, B>,
    engine: &mut Engine<B>,
    cell: usize,
    (job, ready): (&Job, &Ready<B>),
    reference: &mut Option<Reference>,
) -> Option<(f64, f64)> {
    let policies = context.built.cells[cell].as_ref().ok()?;
    let seen = if cell == 0 { None } else { reference.as_ref() };
    let start = Instant::now();
    let (measured, left) =
        context.decode(engine, (cell, policies), 0, &[(job, ready, seen)]).ok()?.into_iter().next()?;
    let whole = start.elapsed().as_secs_f64();
    if cell == 0 {
        *reference = Some(left);
    }
    let stepping: f64 = measured.timing?.step_s.iter().sum();
    Some(((whole - stepping).max(0.0), stepping))
}
