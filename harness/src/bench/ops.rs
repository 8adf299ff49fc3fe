//! `oasis bench ops`: each op by itself, at the sizes of a decode step of a model.
//!
//! A row of calls, one for each layer, is recorded and replayed where the device can; weights and caches are as many as are needed
//! to pass the cache, as in a step. Times are medians of several rows.

mod attention;
mod blocks;
mod prompt;
mod rows;

use super::decode::model_record;
use super::flags::{list, one};
use super::record::{BandwidthRecord, OpRow, OpsRecord, SCHEMA_VERSION};
use super::render;
use super::shape::Shape;
use crate::app::App;
use crate::run::{self, BackendChoice, identity};
use crate::spec::{Many, PolicySpec};
use crate::{files, report};
use anyhow::{Context as _, Result, bail};
use oasis_core::Error;
use oasis_core::model::Model;
use oasis_core::ops::{Noise, PassKey, RowTable};
use oasis_core::registry::{Params, find};
use oasis_core::{Result as Done, bf16};
use oasis_kernels::Measure;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of `oasis bench ops`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model: `nano`, a fetched one, a folder, a .gguf file
    #[arg(long, conflicts_with = "shape")]
    model: Option<String>,
    /// A config.json alone
    #[arg(long, value_name = "FILE")]
    shape: Option<PathBuf>,
    /// Sequences; a list is allowed
    #[arg(long, value_parser = list::<usize>, default_value = "1")]
    batch: Many<usize>,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 4096)]
    context: usize,
    /// Resident tokens per KV head
    #[arg(long, default_value_t = 2048)]
    budget: usize,
    /// Blocks that a pool fetches
    #[arg(long, default_value_t = 7)]
    cap: usize,
    /// Draft rows beside the newest token
    #[arg(long, default_value_t = 0)]
    draft_rows: usize,
    /// Tokens of a block
    #[arg(long, default_value_t = 16)]
    block: usize,
    /// Summary that is scored
    #[arg(long, value_parser = one::<PolicySpec>, default_value = "minmax")]
    summary: PolicySpec,
    /// Also a whole prompt of so many tokens, and its share of the rate of a large product
    #[arg(long, value_name = "TOKENS")]
    prefill: Option<usize>,
    /// Timed rows of calls
    #[arg(long, default_value_t = 7)]
    repeats: usize,
    /// Seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to compute
    #[arg(long, value_enum, default_value = "auto")]
    backend: BackendChoice,
    /// Folder for ops.json and ops.md
    #[arg(short, long, value_name = "FOLDER", default_value = "bench")]
    output: PathBuf,
}

/// Runs `oasis bench ops`.
///
/// # Errors
/// Flags out of range, no memory for the arrays, a folder that cannot be written.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    if args.block == 0 || args.context < 2 * args.block || args.budget < args.block {
        let what = format!("{} tokens, budget {}, blocks of {}", args.context, args.budget, args.block);
        bail!(Error::setting("--context", format!("{what}; give a budget of a block and a context of two")));
    }
    if args.prefill == Some(0) {
        bail!(Error::setting("--prefill", "a prompt has at least 1 token"));
    }
    if args.batch.0.contains(&0) || args.repeats == 0 || args.draft_rows >= oasis_core::settings::MAX_ROWS {
        bail!(Error::setting("--batch", "batch and repeats are at least 1, draft rows at most 7"));
    }
    let shape = Shape::open(
        args.model.as_deref(),
        args.shape.as_deref(),
        args.prefill.unwrap_or(0).max(args.context + 1),
    )?;
    std::fs::create_dir_all(&args.output)
        .with_context(|| format!("{}: cannot be made", args.output.display()))?;
    match run::gpu(args.backend)? {
        Some(cuda) => on(args, app, &shape, cuda),
        None => on(
            args,
            app,
            &shape,
            args.backend.cpu(std::thread::available_parallelism().map_or(1, usize::from)),
        ),
    }
}

fn on<B: Measure>(args: &Args, app: &App, shape: &Shape, mut backend: B) -> Result<ExitCode> {
    let rates = backend.bandwidths()?.into();
    let model = shape.build(&mut backend, args.seed)?;
    let spec = &args.summary;
    let summary = find("summary", &app.summaries, &spec.name)?;
    let summary = (summary.build)(&Params { table: spec.table.clone(), seed: 0 })?;
    let name = backend.name();
    let mut record = OpsRecord {
        schema_version: SCHEMA_VERSION,
        kind: "ops",
        model: model_record(shape, &model.digest),
        backend: name.to_owned(),
        device: backend.describe(),
        bandwidths: rates,
        environment: identity::environment(BTreeMap::new(), name),
        rows: Vec::new(),
    };
    for &batch in &args.batch.0 {
        let rows = batch * (1 + args.draft_rows);
        let mut bench =
            Bench { args, backend: &mut backend, model: &model, rates, batch, rows, out: &mut record.rows };
        bench.row_ops()?;
        bench.attention()?;
        bench.blocks(summary.as_ref())?;
    }
    if let Some(tokens) = args.prefill {
        prompt::add(args, backend, model, (tokens, rates), &mut record.rows)?;
    }
    report::say(&render::ops_terminal(&record))?;
    for (name, content) in render::ops_files(&record)? {
        files::write_whole(&args.output.join(name), content.as_bytes())?;
    }
    report::say(&format!("record: {}\n", args.output.join("ops.json").display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The ops at one batch.
struct Bench<'a, B: Measure> {
    args: &'a Args,
    backend: &'a mut B,
    model: &'a Model<B>,
    rates: BandwidthRecord,
    batch: usize,
    /// Rows of a step.
    rows: usize,
    out: &'a mut Vec<OpRow>,
}

/// What a call must do.
#[derive(Clone, Copy, Default)]
struct Work {
    /// Bytes read from device memory.
    bytes: usize,
    /// Bytes fetched from the host store.
    fetched: usize,
    /// Floating-point operations.
    flops: usize,
    /// A row of calls can be recorded: the op takes nothing from the host.
    record: bool,
}

/// Bytes that pass any cache.
const LARGE: usize = 256 << 20;

impl<B: Measure> Bench<'_, B> {
    fn calls(&self) -> usize {
        self.model.layers.len().max(8)
    }

    /// Arrays of `bytes` each that calls take turns with: so many that the cache does not hold them.
    fn copies(&self, bytes: usize) -> usize {
        LARGE.div_ceil(bytes.max(1)).clamp(1, self.calls())
    }

    /// A random array.
    fn random(&mut self, len: usize) -> Done<B::Buf<bf16>> {
        let mut out = self.backend.alloc(len)?;
        self.backend.fill_half(Noise::normal(self.args.seed + len as u64), &mut out)?;
        Ok(out)
    }

    /// A random array of f32.
    fn random_f32(&mut self, len: usize) -> Done<B::Buf<f32>> {
        let mut out = self.backend.alloc(len)?;
        self.backend.fill(Noise::normal(self.args.seed + len as u64), &mut out)?;
        Ok(out)
    }

    /// Times `f(call)` and adds its row. An op that fails is a row that says so.
    fn add(
        &mut self,
        op: &'static str,
        size: String,
        work: Work,
        mut f: impl FnMut(&mut B, usize) -> Done<()>,
    ) -> Result<()> {
        let calls = self.calls();
        let timed = match work.record {
            true => match time(self.backend, true, calls, self.args.repeats, &mut f) {
                Ok(us) => Ok((us, self.backend.name() == "cuda")),
                Err(_) => time(self.backend, false, calls, self.args.repeats, &mut f).map(|us| (us, false)),
            },
            false => time(self.backend, false, calls, self.args.repeats, &mut f).map(|us| (us, false)),
        };
        let read = work.bytes as f64 / self.rates.device_read;
        let floor_us = 1e6 * read.max(work.fetched as f64 / self.rates.gather);
        let bytes = (work.bytes + work.fetched) as f64;
        let (us, recorded, error) = match timed {
            Ok((us, recorded)) => (us, recorded, None),
            Err(error) => (f64::NAN, false, Some(error.to_string())),
        };
        let flops = work.flops as f64;
        eprintln!("  {op} {size}: {us:.1} µs");
        self.out.push(OpRow { op, size, us, bytes, flops, floor_us, share: None, recorded, error });
        Ok(())
    }

    /// A step's row table: each sequence's newest token and its drafts.
    fn table(&mut self) -> Done<RowTable<B>> {
        let (seqs, each) = (self.batch as u32, (1 + self.args.draft_rows) as u32);
        let host_seq: Vec<u32> = (0..seqs).flat_map(|s| vec![s; each as usize]).collect();
        let host_first: Vec<u32> = (0..=seqs).map(|s| s * each).collect();
        let host_tail = vec![self.args.block as u32 / 2; self.batch];
        let chain = |r: u32| ((1_u64 << (r + 1)) - 1) as u32;
        let host_ancestors: Vec<u32> = (0..seqs).flat_map(|_| (0..each).map(chain)).collect();
        let tokens: Vec<u32> =
            (0..seqs * each).map(|r| r * 7919 % self.model.config.geometry.vocab as u32).collect();
        let last = self.args.context as u32;
        let positions: Vec<u32> = (0..seqs * each).map(|r| last - each + r % each).collect();
        let b = &mut *self.backend;
        Ok(RowTable {
            token: b.upload(&tokens)?,
            position: b.upload(&positions)?,
            seq: b.upload(&host_seq)?,
            first: b.upload(&host_first)?,
            tail: b.upload(&host_tail)?,
            ancestors: b.upload(&host_ancestors)?,
            host_seq,
            host_first,
            host_tail,
            host_ancestors,
        })
    }
}

/// Median microseconds of a call, over rows of `calls` calls.
fn time<B: Measure>(
    backend: &mut B,
    record: bool,
    calls: usize,
    repeats: usize,
    f: &mut dyn FnMut(&mut B, usize) -> Done<()>,
) -> Done<f64> {
    let flag = backend.upload(&[0_u32])?;
    let mut recording = B::Recording::default();
    let key = PassKey { rows: calls, most_rows: 1 };
    let mut row = |b: &mut B| (0..calls).try_for_each(|i| f(b, i));
    let mut once = |b: &mut B| match record {
        true => b.replay(&mut recording, key, &mut |b: &mut B| row(b)),
        false => row(b),
    };
    let wait = |b: &mut B| b.read(&flag, 0, &mut [0_u32]);
    // The first runs as it is, the second is recorded.
    for _ in 0..2 {
        once(backend)?;
    }
    wait(backend)?;
    let mut seconds = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let start = Instant::now();
        wait(backend)?;
        let empty = start.elapsed();
        let start = Instant::now();
        once(backend)?;
        wait(backend)?;
        seconds.push(start.elapsed().saturating_sub(empty).as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(1e6 * seconds[seconds.len() / 2] / calls as f64)
}
