//! Records of one (sample, cell, repeat).

use super::PoolRecord;
use oasis_core::stats::{AuditStats, HeadStats, LayerStats};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sums over layers, KV heads and steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// |P|.
    pub wanted: u64,
    /// Wanted and resident.
    pub hits: u64,
    /// Wanted and copied.
    pub fetched: u64,
    /// Wanted, not resident, not copied.
    pub dropped: u64,
    /// Blocks that left.
    pub evicted: u64,
    /// Fetched blocks that left without having had the mean block's mass.
    pub wasted: u64,
    /// NaN scores.
    pub nans: u64,
    /// Most blocks fetched by one pool in one step.
    pub fetched_max: u64,
    /// Bytes from host to device.
    pub bytes_h2d: u64,
    /// Blocks attended.
    pub attended: u64,
}

impl Counters {
    /// Adds what one layer did in one step.
    pub fn add(&mut self, s: &LayerStats) {
        self.wanted += s.wanted;
        self.hits += s.hits;
        self.fetched += s.fetched;
        self.dropped += s.dropped;
        self.evicted += s.evicted;
        self.wasted += s.wasted;
        self.nans += s.nans;
        self.fetched_max = self.fetched_max.max(s.fetched_max);
        self.bytes_h2d += s.bytes_h2d;
        self.attended += s.attended;
    }

    /// Adds other sums.
    pub fn merge(&mut self, o: &Self) {
        self.wanted += o.wanted;
        self.hits += o.hits;
        self.fetched += o.fetched;
        self.dropped += o.dropped;
        self.evicted += o.evicted;
        self.wasted += o.wasted;
        self.nans += o.nans;
        self.fetched_max = self.fetched_max.max(o.fetched_max);
        self.bytes_h2d += o.bytes_h2d;
        self.attended += o.attended;
    }
}

/// What became of a (sample, cell).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Decoded.
    Done,
    /// An error or a panic.
    Failed,
}

/// One line of `samples.jsonl`: one sample decoded by one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleRecord {
    /// Task label and index, unique in the run.
    pub sample: String,
    /// Task label.
    pub task: String,
    /// Number of the sample in its series.
    pub index: usize,
    /// Samples of one document share their body.
    pub document: String,
    /// Cell label.
    pub cell: String,
    /// Which repeat, from 0.
    pub repeat: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The error, if it failed.
    pub error: Option<String>,
    /// SHA-256 of the prompt's token ids.
    pub prompt_sha256: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The budget covered the context: equals dense decoding.
    pub covered: bool,
    /// Tokens after the prompt, up to and including the end of text.
    pub generated: Vec<u32>,
    /// The same as text.
    pub text: String,
    /// Acceptable answers.
    pub references: Vec<String>,
    /// Score, 0 to 1; none for teacher-forced tasks.
    pub score: Option<f64>,
    /// Decode steps.
    pub steps: u32,
    /// Sums over steps, layers and KV heads.
    pub counters: Counters,
    /// Hash of the blocks that every step, layer and KV head selected, fetched and evicted; none where nothing was
    /// selected, and where a device decided and kept the lists.
    #[serde(default)]
    pub decisions: Option<String>,
    /// Drafts, where the cell has a draft source.
    pub drafts: Option<DraftSums>,
    /// Distance from dense decoding, for teacher-forced tasks.
    pub fidelity: Option<FidelitySums>,
    /// Host-to-device bytes of each step.
    pub step_bytes: Vec<u64>,
    /// Hits and wanted blocks of each step.
    pub step_hits: Vec<(u64, u64)>,
}

/// Fate of drafts, summed over steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DraftSums {
    /// Steps that had at least one draft row.
    pub drafted: u64,
    /// Drafts whose first position held the accepted token.
    pub right: u64,
    /// Accepted draft tokens.
    pub accepted: u64,
    /// Drafts that reached depth i+1.
    pub offered_at: Vec<u64>,
    /// Drafts accepted at depth i+1.
    pub accepted_at: Vec<u64>,
}

/// Distance from dense decoding on the same prefix, summed over positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FidelitySums {
    /// Positions.
    pub positions: u64,
    /// Σ KL(dense ‖ this), nats.
    pub kl: f64,
    /// Positions where the most probable token is dense's.
    pub top1: u64,
    /// Σ −ln p(text token), nats.
    pub nll: f64,
    /// The same of dense decoding.
    pub nll_dense: f64,
}

/// One line of `layers.jsonl`: one layer of a (sample, cell), summed over steps and KV heads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LayerRecord {
    /// As in [`SampleRecord`].
    pub sample: String,
    /// Task label.
    pub task: String,
    /// Cell label.
    pub cell: String,
    /// Which repeat.
    pub repeat: u32,
    /// Layer.
    pub layer: usize,
    /// Decode steps in the sums.
    pub steps: u32,
    /// Counters.
    pub counters: Counters,
    /// Comparison with the truth over all steps, when the cell audits.
    pub audit: Option<AuditStats>,
    /// The part of it under selections that a right draft had ranked.
    pub audit_right: Option<AuditStats>,
    /// The part of it under selections that a wrong draft had ranked.
    pub audit_wrong: Option<AuditStats>,
    /// The sums by KV head, where blocks were selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadSums>,
}

/// Sums of a layer over steps by KV head: every list has a number a head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeadSums {
    /// Blocks that the selection wanted.
    pub wanted: Vec<u64>,
    /// Wanted and resident.
    pub hits: Vec<u64>,
    /// `audit.agreement` by head, each over `audit.pools / heads` steps; empty without an audit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agreement: Vec<f64>,
    /// `audit.recall_exact` by head; empty without an audit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recall_exact: Vec<f64>,
}

impl HeadSums {
    /// Of one layer's heads; none where nothing was selected.
    pub fn of(heads: &[HeadStats], audited: bool) -> Option<Self> {
        let shares = |f: fn(&HeadStats) -> f64| heads.iter().filter(|_| audited).map(f).collect();
        heads.iter().any(|h| h.wanted > 0).then(|| Self {
            wanted: heads.iter().map(|h| h.wanted).collect(),
            hits: heads.iter().map(|h| h.hits).collect(),
            agreement: shares(|h| h.agreement),
            recall_exact: shares(|h| h.recall_exact),
        })
    }
}

/// One line of `timings.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimingRecord {
    /// As in [`SampleRecord`].
    pub sample: String,
    /// Task label.
    pub task: String,
    /// Cell label.
    pub cell: String,
    /// Which repeat.
    pub repeat: u32,
    /// Sequences that were decoded together in these times.
    pub batch: usize,
    /// Seconds of each step, in order.
    pub step_s: Vec<f64>,
    /// Tokens that this sequence emitted in each step.
    pub step_tokens: Vec<u32>,
    /// Seconds of exposed transfers of each step.
    pub exposed_s: Vec<f64>,
    /// Seconds of the prefill, shared by all cells of the sample.
    pub prefill_s: f64,
    /// Tokens of that prefill.
    pub prefill_tokens: usize,
    /// Pools as planned.
    pub pools: Vec<PoolRecord>,
    /// Bytes really held.
    pub allocated: u64,
}
