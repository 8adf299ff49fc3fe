//! The record of a benchmark: `bench.json`.

use super::limits::{Limits, Need};
use crate::record::Environment;
use oasis_core::geometry::Geometry;
use oasis_core::model::Family;
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the records' layout.
pub const SCHEMA_VERSION: u32 = 1;

/// A benchmark of decode steps.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DecodeRecord {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `decode`.
    pub kind: &'static str,
    /// The model.
    pub model: ModelRecord,
    /// `cpu`, `cuda`.
    pub backend: String,
    /// The device in words.
    pub device: String,
    /// Measured in this run.
    pub bandwidths: BandwidthRecord,
    /// What was allowed.
    pub limits: Limits,
    /// What was asked for, complete.
    pub request: serde_json::Value,
    /// Where, when, with which code.
    pub environment: Environment,
    /// Mode by mode.
    pub rows: Vec<Row>,
    /// Step time over context.
    pub fits: Vec<super::fit::Fit>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// The model of a benchmark.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ModelRecord {
    /// Name.
    pub name: String,
    /// Family.
    pub family: Family,
    /// Sizes.
    pub geometry: Geometry,
    /// Bytes on the device.
    pub weights_bytes: u64,
    /// Bytes that a step reads.
    pub step_weights_bytes: u64,
    /// K and V of a token, all layers.
    pub kv_bytes_per_token: u64,
    /// SHA-256 of the weights, or how they were drawn.
    pub digest: String,
    /// Weights and prompts are random numbers: only times and bytes mean something.
    pub synthetic: bool,
}

/// Bytes a second.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct BandwidthRecord {
    /// Streaming read of device memory.
    pub device_read: f64,
    /// Copy within device memory, read and written bytes.
    pub device_copy: f64,
    /// Gather of 8 KiB chunks from the host store.
    pub gather: f64,
    /// One large copy to the device.
    pub to_device: f64,
    /// One large copy to the host.
    pub to_host: f64,
}

impl From<oasis_kernels::Bandwidths> for BandwidthRecord {
    fn from(b: oasis_kernels::Bandwidths) -> Self {
        let (device_read, device_copy) = (b.device_read, b.device_copy);
        Self { device_read, device_copy, gather: b.gather, to_device: b.to_device, to_host: b.to_host }
    }
}

/// One way of decoding at one batch and context.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Row {
    /// Mode that ran.
    pub mode: String,
    /// How `auto` came to it.
    pub auto: Option<super::auto::Choice>,
    /// Sequences.
    pub batch: usize,
    /// Tokens of the longest prompt.
    pub context: usize,
    /// Resident tokens per KV head; none in `dense`.
    pub budget: Option<usize>,
    /// K and C, where blocks are ranked and fetched.
    pub k: Option<usize>,
    /// See `k`.
    pub cap_blocks: Option<usize>,
    /// Rows of a sequence in a step.
    pub rows: usize,
    /// All sequences read one prompt's KV.
    pub shared_prompt: bool,
    /// Planned before anything was allocated.
    pub need: Need,
    /// What was measured, or why nothing was.
    pub outcome: Outcome,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Measured.
    Done(Box<Timing>),
    /// It would not fit.
    Refused(String),
    /// It broke.
    Failed(String),
}

/// Measured.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Timing {
    /// Times of the timed steps, in milliseconds.
    pub step_ms: Quantiles,
    /// Tokens a second, all sequences together.
    pub tok_s: f64,
    /// Bytes of a step.
    pub bytes: StepBytes,
    /// The shortest time that these bytes allow, in milliseconds.
    pub floor_ms: f64,
    /// Median step over floor.
    pub over_floor: f64,
    /// Blocks of a step, all layers, heads and sequences.
    pub blocks: StepBlocks,
    /// Times within a step by the device's clock, of steps of their own.
    pub transfer: Option<Transfer>,
    /// Ranking, selection and seals ran on the device; else why not.
    pub on_device: Result<(), String>,
    /// Bytes that were allocated for the decode: device, host (prompts included).
    pub allocated: (u64, u64),
    /// Bytes that ops work in on the device; 512 MiB are kept free for them and the driver.
    #[schemars(default)]
    pub scratch: u64,
    /// Allocated bytes are the planned ones, and scratch stays within what is kept free.
    pub as_planned: bool,
    /// Seconds from the prompts to the first step: summaries, first residents.
    pub start_s: f64,
    /// The device's clocks after the timed steps.
    pub clocks: Option<super::clocks::Clocks>,
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// Nine of ten are shorter.
    pub p90: f64,
    /// Ninety-nine of a hundred are shorter.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
    /// Steps.
    pub n: usize,
}

/// Bytes that a step reads or moves.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct StepBytes {
    /// Weights.
    pub weights: f64,
    /// Attended K and V, tails included.
    pub kv: f64,
    /// Summaries of the candidates.
    pub summaries: f64,
    /// Copied from the host store.
    pub fetched: f64,
}

/// Blocks of a step, means over the timed steps.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct StepBlocks {
    /// Selected.
    pub wanted: f64,
    /// Selected and resident.
    pub hits: f64,
    /// Copied.
    pub fetched: f64,
    /// Wanted and not copied.
    pub dropped: f64,
    /// Attended.
    pub attended: f64,
    /// What the cap allows.
    pub allowed: f64,
    /// Fetched over allowed; 1: the cap binds everywhere.
    pub saturation: Option<f64>,
}

/// Means over the probed steps, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct Transfer {
    /// The pass.
    pub device_ms: f64,
    /// Copies from the host store.
    pub fetch_ms: f64,
    /// Of these, what the foreground waited for.
    pub exposed_ms: f64,
    /// The rest.
    pub hidden_ms: f64,
    /// Exposed over the pass.
    pub exposed_share: f64,
    /// Steps.
    pub n: usize,
}

/// A benchmark of single ops.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OpsRecord {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `ops`.
    pub kind: &'static str,
    /// The model whose sizes are taken.
    pub model: ModelRecord,
    /// `cpu`, `cuda`.
    pub backend: String,
    /// The device in words.
    pub device: String,
    /// Measured in this run.
    pub bandwidths: BandwidthRecord,
    /// Where, when, with which code.
    pub environment: Environment,
    /// Op by op.
    pub rows: Vec<OpRow>,
}

/// One op at one size.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OpRow {
    /// The op.
    pub op: &'static str,
    /// Its size in words.
    pub size: String,
    /// Median time of a call in microseconds.
    pub us: f64,
    /// Bytes that it must read or move.
    pub bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Shortest time that its bytes allow, in microseconds.
    pub floor_us: f64,
    /// Of a whole prompt: its operations a second over those of the fastest product of many rows in this run.
    pub share: Option<f64>,
    /// Calls were replayed from a recording rather than launched one by one.
    pub recorded: bool,
    /// Why there is no time.
    pub error: Option<String>,
}
