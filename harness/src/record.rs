//! The records of a run, as they lie on disk. Reports are pure functions of these types.
//!
//! A run folder holds `config.toml` (resolved), `env.json` ([`Environment`]), `samples.jsonl` (one
//! [`SampleRecord`] a line), `layers.jsonl` ([`LayerRecord`]), `timings.jsonl` ([`TimingRecord`]) and
//! `results.json` ([`Results`]). The same seed gives the same bytes in `config.toml`, `samples.jsonl`,
//! `layers.jsonl` and, but for its `machine` part, in `results.json`.

mod environment;
mod sweep;
mod unit;

pub use environment::{CodeRecord, Environment, GpuRecord, HardwareRecord};
pub use sweep::{KeyValues, Shard, SweepAxis, SweepCell, SweepPlan, SweepResults, SweepRun, SweepRunPlan};
pub use unit::{
    Counters, DraftSums, FidelitySums, HeadSums, LayerRecord, Outcome, SampleRecord, TimingRecord,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of every file of a run folder. Raise it when a field changes its name or meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Every planned (sample, cell) was decoded.
    Complete,
    /// Interrupted; `--resume` goes on.
    Partial,
    /// Every planned (sample, cell) was tried, some failed.
    Failed,
}

/// One number with everything that is needed to read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metric {
    /// The mean (or the percentile that the name says).
    pub value: f64,
    /// Standard error over samples, clustered by document; none for n < 2 and for percentiles.
    pub stderr: Option<f64>,
    /// Samples in it.
    pub n: u64,
    /// `share`, `nat`, `byte/step`, ...
    pub unit: String,
    /// Direction; none where neither is better by itself.
    pub higher_is_better: Option<bool>,
}

/// Metrics by name, sorted.
pub type Metrics = BTreeMap<String, Metric>;

/// `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Results {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Name of the run's folder.
    pub fingerprint: String,
    /// `run.name`.
    pub name: String,
    /// How far the run came.
    pub status: Status,
    /// (sample, cell, repeat) triples of the plan.
    pub n_planned: u64,
    /// Those that were decoded.
    pub n_done: u64,
    /// Those that failed.
    pub n_failed: u64,
    /// `decode` or `question`.
    pub protocol: String,
    /// Seed of the run.
    pub seed: u64,
    /// Repeats of every (sample, cell).
    pub repeats: u32,
    /// The model.
    pub model: ModelRecord,
    /// The tasks, in the order of the configuration.
    pub tasks: Vec<TaskRecord>,
    /// The cells, dense first.
    pub cells: Vec<CellRecord>,
    /// Results of a cell on a task; ordered by cell, then task.
    pub rows: Vec<RowRecord>,
    /// Invariants that were checked.
    pub invariants: Vec<Invariant>,
    /// What a reader must know before believing a number.
    pub warnings: Vec<String>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Times and memory: the part that differs from machine to machine.
    pub machine: Machine,
}

/// The model of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRecord {
    /// As configured: `nano`, `smollm2`, a path or `org/name`.
    pub name: String,
    /// `llama`, `qwen2`, `qwen3`.
    pub family: String,
    /// SHA-256 of the weights.
    pub digest: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer_digest: String,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions the model was made for.
    pub max_positions: usize,
    /// K and V of one token over all layers in bf16.
    pub kv_bytes_per_token: usize,
}

/// A task of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRecord {
    /// Unique in the run.
    pub label: String,
    /// Name in the table of tasks.
    pub name: String,
    /// Version of its samples and its scorer.
    pub version: u32,
    /// Tokens of prompt and answer.
    pub length: usize,
    /// Samples of this run.
    pub samples: usize,
    /// It has no score: its tokens are forced and distributions are compared with dense decoding.
    pub teacher_forced: bool,
    /// Score without reading the prompt; none where there is no score.
    pub chance: Option<f64>,
    /// Unit of the score.
    pub unit: String,
    /// SHA-256 over the hashes of all prompts.
    pub prompts_sha256: String,
    /// SHA-256 of the text that samples are cut from, where there is one.
    pub data_sha256: Option<String>,
}

/// A cell of a run: one way of decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellRecord {
    /// Unique in the run.
    pub label: String,
    /// The label without budget, cap and other axes of the grid: cells of one line in a plot.
    pub family: String,
    /// Mode.
    pub mode: String,
    /// It was not configured; the run added it as the reference.
    pub added: bool,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Resident tokens per KV head; none for `dense`. A budget given in per cent is worked out for each task:
    /// then this is that of the longest one.
    pub budget_tokens: Option<usize>,
    /// The budget as it was written.
    pub budget: Option<String>,
    /// Pinned blocks at the start.
    pub sink_blocks: usize,
    /// Pinned blocks at the end.
    pub window_blocks: usize,
    /// K: selectable blocks of a pool.
    pub k: Option<usize>,
    /// C: most blocks fetched per pool and step; none: no cap, or the mode fetches nothing.
    pub cap_blocks: Option<usize>,
    /// The cap as it was written.
    pub cap: Option<String>,
    /// Predictor, with its parameters.
    pub predictor: Option<String>,
    /// Summary, with its parameters.
    pub summary: Option<String>,
    /// Evictor, with its parameters.
    pub evictor: Option<String>,
    /// Draft source, with its parameters.
    pub draft: Option<String>,
    /// The draft source knows the right tokens: an upper bound, no method.
    pub ideal: bool,
    /// `one` or `accepted`.
    pub emit: String,
    /// `resident` or `selected`.
    pub attend: String,
    /// Sequences decoded together.
    pub batch: usize,
    /// True sets were computed (and no throughput is reported).
    pub audit: bool,
}

/// A figure by layer and KV head, `[layers][kv_heads]`; none where there was nothing to count.
pub type LayerHeads = Vec<Vec<Option<f64>>>;

/// Results of one cell on one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowRecord {
    /// [`CellRecord::label`].
    pub cell: String,
    /// [`TaskRecord::label`].
    pub task: String,
    /// Samples decoded.
    pub n_done: u64,
    /// Samples failed.
    pub n_failed: u64,
    /// Dense decoding is at chance here: differences between cells say nothing.
    pub non_discriminative: bool,
    /// The budget covered the context in all samples: the cell is dense decoding by another name.
    pub covered: bool,
    /// Metrics by name.
    pub metrics: Metrics,
    /// The same by layer: `layers[l]` holds `topk_agreement`, `topk_recall_exact`, `mass_recall`, `output_error`,
    /// `bytes_h2d`, `fetches`, `dropped`, `hit_rate`, `wasted_fetches` where they exist.
    pub layers: Vec<Metrics>,
    /// The same by KV head: `topk_agreement`, `topk_recall_exact` and `hit_rate`, where they exist.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub heads: BTreeMap<String, LayerHeads>,
    /// By step number.
    pub steps: Vec<StepPoint>,
}

/// Traffic of one step, all layers and KV heads together, mean over the samples that came so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepPoint {
    /// Step, from 1.
    pub step: u32,
    /// Samples that had this step.
    pub n: u64,
    /// Bytes from host to device.
    pub bytes_h2d: f64,
    /// Share of wanted blocks that were resident; none where nothing was wanted.
    pub hit_rate: Option<f64>,
}

/// Outcome of an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It held.
    Held,
    /// It did not, within what chance explains or a reader should see.
    Warning,
    /// It broke: a bug, the figures are not to be trusted.
    Violated,
    /// Nothing to check it on.
    NotChecked,
}

/// An invariant that the run checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Invariant {
    /// What should hold.
    pub name: String,
    /// Whether it did.
    pub verdict: Verdict,
    /// How many cases were looked at, or where it broke.
    pub detail: String,
}

/// A (sample, cell) that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// [`SampleRecord::sample`].
    pub sample: String,
    /// Cell.
    pub cell: String,
    /// The error or the panic's message.
    pub error: String,
}

/// What depends on the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Seconds of the run, all sittings together.
    pub wall_s: f64,
    /// Workers.
    pub jobs: usize,
    /// Threads of each worker's engine.
    pub threads: usize,
    /// Bytes of the weights in device memory.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Most memory that the process held at once in this sitting, as the system counts it; 0 where it does not say.
    #[serde(default)]
    pub peak_bytes: u64,
    /// `decode_tok_s`, `tpot_ms_p50`, `step_ms_p50`, ..., `exposed_transfer_ms`, `prefill_tok_s` by cell and task.
    pub rows: Vec<TimingRow>,
    /// Memory by cell.
    pub memory: Vec<MemoryRow>,
}

/// Times of a cell on a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimingRow {
    /// Cell.
    pub cell: String,
    /// Task.
    pub task: String,
    /// Metrics by name.
    pub metrics: Metrics,
}

/// Memory of a cell: the largest over its samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// Cell.
    pub cell: String,
    /// Pools as planned.
    pub pools: Vec<PoolRecord>,
    /// Bytes that the decoder really held.
    pub allocated: u64,
}

/// One planned pool of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// Planned bytes.
    pub bytes: u64,
    /// In host memory.
    pub host: bool,
}
