//! `oasis bench decode`: whole steps, mode beside mode, in one run.

use super::case::{Case, Planner};
use super::flags::{Flags, Request};
use super::limits::{Limits, RESERVE};
use super::policies::Way;
use super::prompts::{self, Prompts};
use super::record::{
    DecodeRecord, ModelRecord, Outcome, Quantiles, Row, SCHEMA_VERSION, StepBlocks, StepBytes, Timing,
    Transfer,
};
use super::shape::{Shape, step_weights, weights_bytes};
use super::steps::{self, Steps};
use super::{fit, floor, render};
use crate::app::App;
use crate::report;
use crate::run::{self as runs, identity, percentile};
use anyhow::{Context as _, Result, bail};
use oasis_core::engine::Engine;
use oasis_core::settings::Mode;
use oasis_kernels::Measure;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Arguments of `oasis bench decode`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    flags: Flags,
    /// A file whose [bench] table gives flags; the command line's come first
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for bench.json, bench.md and bench.svg
    #[arg(short, long, value_name = "FOLDER", default_value = "bench")]
    output: PathBuf,
    /// Print the memory of every case and what does not fit; run nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs `oasis bench decode`.
///
/// # Errors
/// Flags out of range; nothing that was asked for fits; the folder is not writable. The exit code is not 0 if a case failed.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let request = args.flags.clone().over(args.config.as_deref())?.complete()?;
    let longest = request.context.iter().copied().max().unwrap_or(0);
    let positions = longest + request.all_steps() + 1;
    let shape = Shape::open(request.model.as_deref(), request.shape.as_deref(), positions)?;
    if !args.dry_run {
        std::fs::create_dir_all(&args.output)
            .with_context(|| format!("{}: cannot be made", args.output.display()))?;
    }
    let bench = Bench { args, app, request: &request, shape: &shape };
    match runs::gpu(request.backend)? {
        Some(cuda) => bench.on(cuda),
        None => bench.on(request.backend.cpu(std::thread::available_parallelism().map_or(1, usize::from))),
    }
}

/// One benchmark, before a backend is chosen.
struct Bench<'a> {
    args: &'a Args,
    app: &'a App,
    request: &'a Request,
    shape: &'a Shape,
}

impl Bench<'_> {
    fn on<B: Measure>(&self, mut backend: B) -> Result<ExitCode> {
        let held = backend.usage().device as u64;
        let limits = Limits::new(&self.request.limits, backend.room()?, held);
        let rates = backend.bandwidths()?.into();
        let planner = Planner {
            app: self.app,
            request: self.request,
            shape: self.shape,
            backend: &backend,
            held,
            limits,
            rates: &rates,
        };
        let cases = planner.cases()?;
        if self.args.dry_run {
            report::say(&render::plans(&cases, &limits))?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(why) = cases.iter().all(|c| c.refused.is_some()).then(|| cases.first()).flatten() {
            bail!("{}", why.refused.as_deref().unwrap_or_default());
        }
        let (name, device) = (backend.name().to_owned(), backend.describe());
        let model = Arc::new(self.shape.build(&mut backend, self.request.seed)?);
        let mut record = DecodeRecord {
            schema_version: SCHEMA_VERSION,
            kind: "decode",
            model: model_record(self.shape, &model.digest),
            backend: name.clone(),
            device,
            bandwidths: rates,
            limits,
            request: serde_json::to_value(self.request)?,
            environment: identity::environment(BTreeMap::new(), &name),
            rows: Vec::new(),
            fits: Vec::new(),
            notes: self.shape.note.iter().cloned().collect(),
        };
        let mut engine = Engine::new(backend, model)?;
        self.measure(&mut engine, cases, &mut record)?;
        record.fits = fits(&record.rows);
        self.finish(&record)
    }

    /// Context by context: its prompts are made once, and every case starts from as many as it needs.
    fn measure<B: Measure>(
        &self,
        engine: &mut Engine<B>,
        cases: Vec<Case<B>>,
        record: &mut DecodeRecord,
    ) -> Result<()> {
        let mut made: Option<(usize, Prompts<B>)> = None;
        let most = |context: usize| {
            let of_context = cases.iter().filter(|c| c.context == context && c.refused.is_none());
            of_context.map(|c| c.batch).max().unwrap_or(0)
        };
        for case in &cases {
            if made.as_ref().is_none_or(|(context, _)| *context != case.context) {
                // The old ones go first.
                drop(made.take());
                let n = most(case.context);
                let prompts = prompts::make(engine, self.request, self.shape, case.context, n)?;
                if prompts.prefilled && prompts.seconds > 0.0 {
                    record.notes.push(format!(
                        "prefill at context {}: {:.1} tokens a second",
                        case.context,
                        prompts.tokens as f64 / prompts.seconds
                    ));
                }
                eprintln!("context {}: {n} prompts in {:.1} s", case.context, prompts.seconds);
                made = Some((case.context, prompts));
            }
            let prompts = made.as_ref().map_or(&[][..], |(_, p)| &p.prefixes[..]);
            let row = self.row(engine, case, prompts, record)?;
            eprintln!("  {}", render::progress(&row));
            record.rows.push(row);
        }
        Ok(())
    }

    fn row<B: Measure>(
        &self,
        engine: &mut Engine<B>,
        case: &Case<B>,
        prompts: &[Arc<oasis_core::engine::Prefix<B>>],
        record: &DecodeRecord,
    ) -> Result<Row> {
        let Way { mode, budget, .. } = case.way;
        let ranks = case.settings.ranks();
        let mut row = Row {
            mode: mode.name().to_owned(),
            auto: case.auto.clone(),
            batch: case.batch,
            context: case.context,
            budget: (mode != Mode::Dense).then_some(budget),
            k: ranks.then(|| case.settings.k()),
            cap_blocks: ranks.then(|| case.settings.cap_blocks()),
            rows: case.settings.max_rows,
            shared_prompt: self.request.share_prompt,
            need: case.need.clone(),
            outcome: Outcome::Refused(case.refused.clone().unwrap_or_default()),
        };
        if case.refused.is_some() {
            return Ok(row);
        }
        let prompts = &prompts[..case.batch];
        let done = steps::run(engine, self.request, &case.settings, &case.policies, prompts);
        row.outcome = match done {
            Ok(steps) => Outcome::Done(Box::new(self.timing(case, &steps, record))),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        Ok(row)
    }

    fn timing<B: Measure>(&self, case: &Case<B>, steps: &Steps, record: &DecodeRecord) -> Timing {
        let g = &self.shape.config.geometry;
        let n = steps.seconds.len() as f64;
        let mean = |sum: u64| sum as f64 / n;
        let block = oasis_core::geometry::BlockShape { tokens: self.request.block, head_dim: g.head_dim };
        let sums = &steps.sums;
        let ranked = if case.settings.ranks() { mean(sums.candidates) } else { 0.0 };
        let summary = case.policies.summary.shape(block).bytes();
        let bytes = StepBytes {
            weights: record.model.step_weights_bytes as f64,
            kv: mean(sums.attended) * block.bytes() as f64
                + mean(sums.tail_tokens) * g.kv_bytes_per_token() as f64,
            summaries: ranked * (g.layers * g.kv_heads * summary) as f64,
            fetched: mean(sums.bytes_h2d),
        };
        let fetches = case.settings.ranks() && !case.way.mode.resident();
        let pools = (case.batch * g.layers * g.kv_heads) as f64;
        let allowed = if fetches { pools * case.settings.cap_blocks() as f64 } else { 0.0 };
        let floor_ms = 1e3 * floor::seconds(&bytes, &record.bandwidths);
        let step_ms = quantiles(&steps.seconds);
        let total: f64 = steps.seconds.iter().sum();
        Timing {
            tok_s: sums.tokens as f64 / total,
            floor_ms,
            over_floor: step_ms.p50 / floor_ms,
            step_ms,
            bytes,
            blocks: StepBlocks {
                wanted: mean(sums.wanted),
                hits: mean(sums.hits),
                fetched: mean(sums.fetched),
                dropped: mean(sums.dropped),
                attended: mean(sums.attended),
                allowed,
                saturation: (allowed > 0.0).then(|| mean(sums.fetched) / allowed),
            },
            transfer: transfer(steps),
            on_device: steps.on_device.clone(),
            allocated: steps.allocated,
            scratch: steps.scratch,
            as_planned: steps.allocated == (case.need.plan.device(), case.need.plan.host())
                && steps.scratch <= RESERVE,
            start_s: steps.start_s,
            clocks: steps.clocks,
        }
    }

    fn finish(&self, record: &DecodeRecord) -> Result<ExitCode> {
        report::say(&render::terminal(record))?;
        let folder = &self.args.output;
        for (name, content) in render::files(record)? {
            crate::files::write_whole(&folder.join(name), content.as_bytes())?;
        }
        report::say(&format!("record: {}\n", folder.join("bench.json").display()))?;
        let failed = record.rows.iter().any(|r| matches!(r.outcome, Outcome::Failed(_)));
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The model of a record.
pub fn model_record(shape: &Shape, digest: &str) -> ModelRecord {
    let g = &shape.config.geometry;
    ModelRecord {
        name: shape.name.clone(),
        family: shape.config.family,
        geometry: g.clone(),
        weights_bytes: weights_bytes(&shape.config) as u64,
        step_weights_bytes: step_weights(&shape.config) as u64,
        kv_bytes_per_token: g.kv_bytes_per_token() as u64,
        digest: digest.to_owned(),
        synthetic: shape.synthetic(),
    }
}

fn quantiles(seconds: &[f64]) -> Quantiles {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |p| 1e3 * percentile(&sorted, p).unwrap_or(f64::NAN);
    let mean = 1e3 * sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
    Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), mean, n: sorted.len() }
}

/// Means over the probed steps; none where the device has no clock.
fn transfer(steps: &Steps) -> Option<Transfer> {
    let n = steps.probed.len();
    let mean = |f: fn(&oasis_core::stats::StepSeconds) -> f64| {
        1e3 * steps.probed.iter().map(f).sum::<f64>() / n.max(1) as f64
    };
    let (device_ms, fetch_ms, exposed_ms) =
        (mean(|s| s.device), mean(|s| s.fetch), mean(|s| s.fetch_exposed));
    (n > 0 && device_ms > 0.0).then(|| Transfer {
        device_ms,
        fetch_ms,
        exposed_ms,
        hidden_ms: (fetch_ms - exposed_ms).max(0.0),
        exposed_share: exposed_ms / device_ms,
        n,
    })
}

/// A line for every way of decoding that was measured at several contexts.
fn fits(rows: &[Row]) -> Vec<fit::Fit> {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        if let Outcome::Done(t) = &row.outcome {
            let name = format!("{}, batch {}", render::name(row), row.batch);
            lines.entry(name).or_default().push((row.context as f64, t.step_ms.p50));
        }
    }
    lines.iter().filter_map(|(name, points)| fit::line(name, points)).collect()
}
