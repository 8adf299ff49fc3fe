//! What a step measured. Sums, never means: whoever reports divides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of one layer of one sequence in one step, summed over its KV heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerStats {
    /// |P|: blocks that the selection wanted. `hits + fetched + dropped == wanted`.
    pub wanted: u64,
    /// Wanted and resident.
    pub hits: u64,
    /// Wanted and copied from the host store ("misses" of the design).
    pub fetched: u64,
    /// Wanted, not resident and not copied, because C bound.
    pub dropped: u64,
    /// Blocks that left.
    pub evicted: u64,
    /// Fetched blocks that left without ever having had the mean block's share of attention mass.
    pub wasted: u64,
    /// Scores that were NaN.
    pub nans: u64,
    /// Most blocks fetched by one pool; never above C.
    pub fetched_max: u64,
    /// Bytes that the backend copied from host to device for this layer.
    pub bytes_h2d: u64,
    /// Blocks attended (resident entries, tail not counted).
    pub attended: u64,
    /// Hash of the blocks that every pool selected, as a set, and of those fetched and evicted, in their order; none where
    /// nothing was selected, or where a device decided and kept the lists. Equal on all machines that decide alike.
    #[serde(default)]
    pub decided: Option<u64>,
    /// True sets and dense outputs, when the run audits.
    pub audit: Option<AuditStats>,
}

impl LayerStats {
    /// Adds a list of blocks to [`LayerStats::decided`].
    pub fn decide(&mut self, blocks: impl ExactSizeIterator<Item = u32>) {
        let start = fold(self.decided.unwrap_or(0), blocks.len() as u64);
        self.decided = Some(blocks.fold(start, |hash, block| fold(hash, u64::from(block))));
    }

    /// Adds a set of blocks to [`LayerStats::decided`]: a selection that is all resident already is not put in order.
    pub fn decide_set(&mut self, blocks: &[u32]) {
        let sum = blocks.iter().fold(0u64, |sum, &block| sum.wrapping_add(fold(0, u64::from(block))));
        self.decided = Some(fold(fold(self.decided.unwrap_or(0), blocks.len() as u64), sum));
    }
}

/// A hash with one more word (the finaliser of MurmurHash3): no defence against anybody, but a changed word shows.
pub fn fold(hash: u64, word: u64) -> u64 {
    let mut x = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// Comparison with the truth of one layer of one sequence in one step; sums over KV heads (or heads), with counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditStats {
    /// Σ |P ∩ T| / min(K, n): T = the K best blocks by the same summary with the true query.
    pub agreement: f64,
    /// Σ |P ∩ T*| / min(K, n): T* = the K blocks with the largest exact mass summed over the group.
    pub recall_exact: f64,
    /// KV heads in the two sums above; 0 where there was nothing to select or no prediction yet.
    pub pools: u32,
    /// Σ over query heads of the share of the true attention mass that falls on attended blocks and the tail.
    pub mass_recall: f64,
    /// Query heads in that sum.
    pub heads: u32,
    /// Σ ‖sparse − dense‖² of the layer's attention output.
    pub error_sq: f64,
    /// Σ ‖dense‖².
    pub dense_sq: f64,
}

impl AuditStats {
    /// Adds another step's (or layer's) sums.
    pub fn add(&mut self, other: &Self) {
        self.agreement += other.agreement;
        self.recall_exact += other.recall_exact;
        self.pools += other.pools;
        self.mass_recall += other.mass_recall;
        self.heads += other.heads;
        self.error_sq += other.error_sq;
        self.dense_sq += other.dense_sq;
    }
}

/// What one KV head of a layer did in one step of a sequence; over the heads, the sums of [`LayerStats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadStats {
    /// Blocks that the selection wanted.
    pub wanted: u64,
    /// Wanted and resident.
    pub hits: u64,
    /// This head's part of [`AuditStats::agreement`].
    pub agreement: f64,
    /// This head's part of [`AuditStats::recall_exact`].
    pub recall_exact: f64,
}

impl HeadStats {
    /// Adds another step's (or sample's) sums.
    pub fn add(&mut self, other: &Self) {
        self.wanted += other.wanted;
        self.hits += other.hits;
        self.agreement += other.agreement;
        self.recall_exact += other.recall_exact;
    }
}

/// What one step did for one sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SeqReport {
    /// Tokens accepted by this step, in order; the last is the newest.
    pub emitted: Vec<u32>,
    /// Draft rows that went through the step.
    pub drafts: u32,
    /// Draft rows that were accepted (verified), whether emitted or not.
    pub accepted: u32,
    /// Whether a draft row held the token that was accepted after row 0; none without drafts.
    pub draft_right: Option<bool>,
    /// Whether the selection that this step attended under had been ranked by a draft row that proved right;
    /// none if no draft row ranked it. Audit figures are split by this.
    pub ranked_by_right_draft: Option<bool>,
    /// Longest chain of drafts that was offered.
    pub draft_depth: u32,
    /// Per layer.
    pub layers: Vec<LayerStats>,
    /// Per layer and KV head, `[layers][kv_heads]`.
    #[serde(default)]
    pub heads: Vec<HeadStats>,
}

/// Where a step's time went, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    /// All of it.
    pub total: f64,
    /// The pass by the device's own clock; 0 where it was not taken.
    pub device: f64,
    /// Copies from the host store by the device's own clock; 0 where it was not taken.
    pub fetch: f64,
    /// Copies from the host store that the foreground waited for (on the CPU: all of them).
    pub fetch_exposed: f64,
    /// Ranking and selection.
    pub rank: f64,
    /// Attention.
    pub attend: f64,
    /// Draft proposals.
    pub draft: f64,
    /// True sets (`audit`).
    pub audit: f64,
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub step: u32,
    /// Per sequence of the batch.
    pub seqs: Vec<SeqReport>,
    /// Times.
    pub seconds: StepSeconds,
}
