//! What a replay counted.

use super::folder::Recorded;
use crate::record::{Counters, Environment};
use oasis_core::stats::{AuditStats, StepReport};
use schemars::JsonSchema;
use serde::Serialize;

/// `replay.json`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Record {
    /// Version of this file's layout.
    pub schema_version: u32,
    /// Folder of the trace as it was given.
    pub trace: String,
    /// The model's name.
    pub model: String,
    /// The cell that was recorded.
    pub recorded: Option<Recorded>,
    /// Sequences replayed.
    pub sequences: usize,
    /// Threads.
    pub jobs: usize,
    /// Seconds of the whole replay, reading included.
    pub wall_s: f64,
    /// Where, when, with which code.
    pub environment: Environment,
    /// Combination by combination.
    pub rows: Vec<Row>,
}

/// One combination.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// Mode of the loop.
    pub mode: String,
    /// Predictor, with its keys.
    pub predictor: String,
    /// Summary, with its keys.
    pub summary: String,
    /// Evictor, with its keys.
    pub evictor: String,
    /// Budget as written.
    pub budget: String,
    /// Fetch cap as written.
    pub cap: String,
    /// K, the selectable blocks of a pool, of the first sequence.
    pub k: Option<usize>,
    /// C, the blocks that a pool may fetch in a step, of the first sequence.
    pub c: Option<usize>,
    /// What was counted; none if the combination failed.
    pub figures: Option<Figures>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Sums over sequences, steps, layers and KV heads, and the ratios that reports show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// Sequences.
    pub sequences: usize,
    /// Steps of all sequences.
    pub steps: u64,
    /// Steps × layers × KV heads.
    pub decisions: u64,
    /// What was counted, as in the records of a run.
    #[serde(flatten)]
    pub counters: Counters,
    /// Attention's masses were computed; without them `wasted` is 0 and means nothing.
    pub masses: bool,
    /// `hits / wanted`.
    pub hit_rate: Option<f64>,
    /// Share of the selection that the true query would have wanted too.
    pub agreement: Option<f64>,
    /// Share of the K blocks with the largest exact mass that the selection held.
    pub recall_exact: Option<f64>,
    /// Share of the true attention mass on what was attended.
    pub mass_recall: Option<f64>,
    /// Seconds of one thread.
    pub seconds: f64,
    /// Sums of the comparison with the truth.
    #[serde(skip)]
    pub(super) audit: Option<AuditStats>,
}

impl Figures {
    /// Adds a step of a sequence.
    pub fn add(&mut self, report: &StepReport) {
        self.steps += 1;
        for layer in report.seqs.iter().flat_map(|s| &s.layers) {
            self.counters.add(layer);
            if let Some(audit) = &layer.audit {
                self.audit.get_or_insert_default().add(audit);
            }
        }
    }

    /// Adds another sequence's.
    pub fn merge(&mut self, other: &Self) {
        self.sequences += other.sequences;
        self.steps += other.steps;
        self.decisions += other.decisions;
        self.counters.merge(&other.counters);
        self.masses |= other.masses;
        self.seconds += other.seconds;
        if let Some(audit) = &other.audit {
            self.audit.get_or_insert_default().add(audit);
        }
    }

    /// Computes the ratios.
    pub fn finish(&mut self) {
        let ratio = |sum: f64, n: f64| (n > 0.0).then_some(sum / n);
        self.hit_rate = ratio(self.counters.hits as f64, self.counters.wanted as f64);
        if let Some(a) = &self.audit {
            self.agreement = ratio(a.agreement, a.pools.into());
            // Without exact attention, agreement is all that is known.
            self.recall_exact = ratio(a.recall_exact, a.pools.into()).filter(|_| a.heads > 0);
            self.mass_recall = ratio(a.mass_recall, a.heads.into());
        }
    }
}
