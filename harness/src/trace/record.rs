//! `oasis trace record`: decodes in one cell, a shard a sample.

use super::folder::{self, Header, Origin, Recorded, SCHEMA_VERSION, ShardHeader};
use super::shard::Shard;
use super::work;
use crate::app::App;
use crate::bench::{GibLimits, Limits};
use crate::plan::{Plan, PlannedCell};
use crate::report::{say, units};
use crate::run::decode::{Context, Ready, Reference};
use crate::run::model::{self, Opened};
use crate::run::progress::Progress;
use crate::run::samples::{self, Samples};
use crate::run::{dry, identity, policies, workers};
use crate::spec::{self, DECODE_KEYS, Limit};
use anyhow::{Context as _, Result, anyhow, bail};
use oasis_core::decode::Policies;
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::model::Model;
use oasis_core::ops::Memory;
use oasis_core::settings::Mode;
use oasis_kernels::{Cpu, Measure};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Arguments of `oasis trace record`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configuration, as for `oasis run`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// New folder of the trace
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Label of the cell to decode in; default: the first one that ranks blocks
    #[arg(long)]
    cell: Option<String>,
    /// Set a value over the file, e.g. decode.budget=256 or task.samples=4
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Samples of each task: a count or a share (4, 0.25, 25%), taken at equal strides
    #[arg(long)]
    limit: Option<Limit>,
    /// Workers; default: one a core for small models, one for large ones
    #[arg(long)]
    jobs: Option<usize>,
}

/// Records. Traces are recorded on the processor, whose loop is the reference.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    if args.jobs == Some(0) {
        bail!("--jobs: 0 workers decode nothing; give 1 or more, or leave it out");
    }
    let mut sets = work::sets(&args.set)?;
    sets.extend(args.limit.map(|l| ("run.limit".to_owned(), l.to_string())));
    let source = spec::load(&args.config, &sets)?;
    let mut plan = Plan::new(&source, app)?;
    let chosen = choose(&plan.cells, args.cell.as_deref())?;
    // Cell 0 is the dense one, of which ideal drafts and forced answers need the tokens.
    plan.cells = if chosen == 0 {
        vec![plan.cells[0].clone()]
    } else {
        vec![plan.cells[0].clone(), plan.cells[chosen].clone()]
    };
    let opened = model::open(&plan.model)?;
    let samples = samples::make(&plan, &opened.checkpoint)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (jobs, threads) = workers(args.jobs, dry::weights_bytes(&opened.checkpoint.config), cores);
    let mut loader = Cpu::new(cores);
    let limits = Limits::new(&GibLimits::default(), loader.room()?, loader.usage().device as u64);
    for cell in &plan.cells {
        dry::check(&plan, cell, app, &samples, &opened.checkpoint.config, jobs, &limits)?;
    }
    let model = Arc::new(opened.checkpoint.build(&mut loader)?);
    let mut builder = policies::Builder::new(app, &opened);
    let mut built = policies::Built::default();
    for cell in &plan.cells {
        built.add(Ok(builder.build(cell, &mut loader, &model)?));
    }
    folder::create(&args.output)?;
    let context = Context {
        plan: &plan,
        built: &built,
        tokenizer: &opened.checkpoint.tokenizer,
        eos: &model.config.eos,
    };
    let recording = Recording { args, context, samples: &samples, model: &model, threads };
    let shards = recording.run(jobs)?;
    let header = header(&plan, &opened, &model, shards);
    folder::finish(&args.output, &header, &decode_toml(plan.cells.last())?)?;
    summary(args, &header)?;
    Ok(ExitCode::SUCCESS)
}

/// The cell called `label`, or the first that ranks, or the dense one.
fn choose(cells: &[PlannedCell], label: Option<&str>) -> Result<usize> {
    let Some(label) = label else {
        let ranks = |c: &PlannedCell| !matches!(c.mode, Mode::Dense | Mode::Window);
        return Ok(cells.iter().position(ranks).unwrap_or(0));
    };
    let labels = || cells.iter().map(|c| c.label.as_str());
    let known = || oasis_core::Error::unknown_name("cell", label, labels());
    cells.iter().position(|c| c.label == label).ok_or_else(known).context("--cell")
}

/// What the workers share.
struct Recording<'a> {
    args: &'a Args,
    context: Context<'a, Cpu>,
    samples: &'a Samples,
    model: &'a Arc<Model<Cpu>>,
    threads: usize,
}

impl Recording<'_> {
    fn run(&self, jobs: usize) -> Result<Vec<ShardHeader>> {
        let progress = Progress::new(self.samples.jobs.len() as u64, 0);
        let engine = || Ok(Engine::new(Cpu::new(self.threads), self.model.clone())?);
        let done = work::each(jobs, self.samples.jobs.len(), engine, |engine, i| {
            let job = &self.samples.jobs[i];
            let named = || format!("sample {}", job.key);
            let Some(shard) = self.sample(engine, i).with_context(named)? else {
                progress.say(&format!("left out: {}: its first token ends the answer", job.key));
                return Ok(None);
            };
            let entry = folder::write_shard(&self.args.output, i, &shard)?;
            progress.advance(1, &job.key);
            Ok(Some(entry))
        });
        progress.finish();
        let shards: Vec<ShardHeader> = done?.into_iter().flatten().collect();
        if shards.is_empty() {
            bail!(
                "every sample's first token ends its answer: there is no step to record; take other samples"
            );
        }
        Ok(shards)
    }

    /// Policies of a cell of this recording.
    fn policies(&self, cell: usize) -> Result<(usize, &Policies<Cpu>)> {
        let built = self.context.built.cells[cell].as_ref();
        Ok((cell, built.map_err(|e| anyhow!("{e}"))?))
    }

    /// What was recorded of a sample; nothing if its first token ends the answer.
    fn sample(&self, engine: &mut Engine<Cpu>, i: usize) -> Result<Option<Shard>> {
        let context = &self.context;
        let (job, cell) = (&self.samples.jobs[i], context.plan.cells.len() - 1);
        let options = |cell: usize| PrefillOptions {
            block_tokens: context.plan.cells[cell].block,
            hidden_layers: context.built.hidden_layers.clone(),
        };
        let prefill = |engine: &mut Engine<Cpu>, cell: usize| -> Result<Ready<Cpu>> {
            Ok(Ready { prefix: Arc::new(engine.prefill(job.prefix(), &options(cell))?), seconds: 0.0 })
        };
        let mut reference: Option<Reference> = None;
        if cell > 0 && (job.fidelity || context.built.ideal[cell]) {
            let ready = prefill(engine, 0)?;
            let dense = context.decode(engine, self.policies(0)?, 0, &[(job, &ready, None)])?.pop();
            reference = dense.map(|(_, r)| r);
        }
        let ready = prefill(engine, cell)?;
        let tape = context.record(engine, self.policies(cell)?, &(job, &ready, reference.as_ref()))?;
        let length = context.plan.tasks[job.task].length;
        let shard = Shard { sample: job.key.clone(), length, tape };
        Ok(Some(shard).filter(|s| s.tape.steps() > 0))
    }
}

fn header(plan: &Plan, opened: &Opened, model: &Model<Cpu>, shards: Vec<ShardHeader>) -> Header {
    let recorded = plan.cells.last().map(|cell| Recorded {
        cell: cell.label.clone(),
        mode: cell.mode.name().to_owned(),
        block: cell.block,
        draft: cell.draft.as_ref().map(ToString::to_string),
    });
    Header {
        schema_version: SCHEMA_VERSION,
        origin: Origin::Recorded,
        model: opened.name.clone(),
        model_digest: model.digest.clone(),
        geometry: model.config.geometry.clone(),
        recorded,
        drafts: shards.iter().any(|s| s.rows > s.steps),
        code: identity::code(),
        shards,
    }
}

/// The cell's settings and policies, without what a tape has: tokens, drafts and what they were drawn with.
fn decode_toml(cell: Option<&PlannedCell>) -> Result<String> {
    let cell = cell.ok_or_else(|| anyhow!("a recording without a cell"))?;
    let ranks = !matches!(cell.mode, Mode::Dense | Mode::Window);
    let on_tape = ["temperature", "top_p", "batch", "audit", "draft"];
    let mut text =
        "# Settings and policies that a replay starts from: those that were recorded.\n[decode]\n".to_owned();
    for key in DECODE_KEYS.iter().filter(|k| !on_tape.contains(k) && (ranks || **k != "mode")) {
        if let Some(value) = cell.values.get(key) {
            text += &format!("{key} = {value}\n");
        }
    }
    Ok(text + "\n[[cell]]\n")
}

fn summary(args: &Args, header: &Header) -> Result<()> {
    let steps: usize = header.shards.iter().map(|s| s.steps).sum();
    let bytes: u64 = header.shards.iter().map(|s| s.bytes).sum();
    let cell = header.recorded.as_ref().map_or("", |r| r.cell.as_str());
    say(&format!(
        "recorded `{cell}`: {} sequences, {steps} steps, {}\ntrace: {}\n",
        header.shards.len(),
        units::bytes(bytes),
        args.output.display()
    ))
}
