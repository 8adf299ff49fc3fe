//! What one sequence did, added up step by step.

use crate::record::{
    Counters, DraftSums, FidelitySums, HeadSums, LayerRecord, Outcome, PoolRecord, SampleRecord, TimingRecord,
};
use oasis_core::stats::{AuditStats, HeadStats, SeqReport, StepSeconds, fold};

/// Names of a (sample, cell, repeat).
#[derive(Debug, Clone)]
pub struct Key {
    /// Sample.
    pub sample: String,
    /// Task label.
    pub task: String,
    /// Cell label.
    pub cell: String,
    /// Repeat.
    pub repeat: u32,
}

/// Sums of one layer.
#[derive(Debug, Clone, Copy, Default)]
struct LayerTally {
    counters: Counters,
    audit: Option<AuditStats>,
    right: Option<AuditStats>,
    wrong: Option<AuditStats>,
    decided: Option<u64>,
}

fn add(into: &mut Option<AuditStats>, stats: &AuditStats) {
    into.get_or_insert_default().add(stats);
}

/// Sums of one sequence.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    layers: Vec<LayerTally>,
    /// `[layers][kv_heads]`.
    heads: Vec<HeadStats>,
    steps: u32,
    step_bytes: Vec<u64>,
    step_hits: Vec<(u64, u64)>,
    drafts: Option<DraftSums>,
    step_s: Vec<f64>,
    exposed_s: Vec<f64>,
    step_tokens: Vec<u32>,
}

impl Tally {
    /// An empty one; `drafts`: the cell has a draft source of this depth.
    pub fn new(layers: usize, drafts: Option<usize>) -> Self {
        let sums = |depth| DraftSums {
            offered_at: vec![0; depth],
            accepted_at: vec![0; depth],
            ..Default::default()
        };
        Self { layers: vec![LayerTally::default(); layers], drafts: drafts.map(sums), ..Self::default() }
    }

    /// Adds a step of which this sequence took `tokens` tokens.
    pub fn add(&mut self, report: &SeqReport, seconds: &StepSeconds, tokens: u32) {
        self.steps += 1;
        let (mut bytes, mut hits, mut wanted) = (0, 0, 0);
        for (sums, layer) in self.layers.iter_mut().zip(&report.layers) {
            sums.counters.add(layer);
            if let Some(decided) = layer.decided {
                sums.decided = Some(fold(sums.decided.unwrap_or(u64::from(self.steps)), decided));
            }
            (bytes, hits, wanted) = (bytes + layer.bytes_h2d, hits + layer.hits, wanted + layer.wanted);
            if let Some(audit) = &layer.audit {
                add(&mut sums.audit, audit);
                match report.ranked_by_right_draft {
                    Some(true) => add(&mut sums.right, audit),
                    Some(false) => add(&mut sums.wrong, audit),
                    None => {}
                }
            }
        }
        self.heads.resize(report.heads.len(), HeadStats::default());
        self.heads.iter_mut().zip(&report.heads).for_each(|(sums, head)| sums.add(head));
        self.step_bytes.push(bytes);
        self.step_hits.push((hits, wanted));
        self.step_s.push(seconds.total);
        self.exposed_s.push(seconds.fetch_exposed);
        self.step_tokens.push(tokens);
        self.add_drafts(report);
    }

    fn add_drafts(&mut self, report: &SeqReport) {
        let Some(sums) = self.drafts.as_mut().filter(|_| report.drafts > 0) else { return };
        sums.drafted += 1;
        sums.right += u64::from(report.draft_right == Some(true));
        sums.accepted += u64::from(report.accepted);
        for i in 0..sums.offered_at.len() {
            sums.offered_at[i] += u64::from(report.draft_depth as usize > i);
            sums.accepted_at[i] += u64::from(report.accepted as usize > i);
        }
    }

    /// Sums over layers.
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.layers.iter().for_each(|l| all.merge(&l.counters));
        all
    }

    /// One hash of all decisions; none where a layer has none.
    fn decisions(&self) -> Option<String> {
        let of_layers: Option<Vec<u64>> = self.layers.iter().map(|l| l.decided).collect();
        let of_layers = of_layers.filter(|l| !l.is_empty())?;
        Some(format!("{:016x}", of_layers.into_iter().fold(0, fold)))
    }

    /// Writes what was added up into the sample's record.
    pub fn finish(&self, record: &mut SampleRecord) {
        record.outcome = Outcome::Done;
        record.steps = self.steps;
        record.counters = self.counters();
        record.decisions = self.decisions();
        record.drafts = self.drafts.clone();
        record.step_bytes = self.step_bytes.clone();
        record.step_hits = self.step_hits.clone();
    }

    /// Records of the layers.
    pub fn layer_records(&self, key: &Key) -> Vec<LayerRecord> {
        let kv_heads = self.heads.len() / self.layers.len().max(1);
        let heads = |layer: usize| &self.heads[layer * kv_heads..][..kv_heads];
        let record = |(layer, sums): (usize, &LayerTally)| LayerRecord {
            sample: key.sample.clone(),
            task: key.task.clone(),
            cell: key.cell.clone(),
            repeat: key.repeat,
            layer,
            steps: self.steps,
            counters: sums.counters,
            audit: sums.audit,
            audit_right: sums.right,
            audit_wrong: sums.wrong,
            heads: HeadSums::of(heads(layer), sums.audit.is_some()),
        };
        self.layers.iter().enumerate().map(record).collect()
    }

    /// Record of the times.
    pub fn timing_record(&self, key: &Key, batch: usize) -> TimingRecord {
        TimingRecord {
            sample: key.sample.clone(),
            task: key.task.clone(),
            cell: key.cell.clone(),
            repeat: key.repeat,
            batch,
            step_s: self.step_s.clone(),
            step_tokens: self.step_tokens.clone(),
            exposed_s: self.exposed_s.clone(),
            prefill_s: 0.0,
            prefill_tokens: 0,
            pools: Vec::<PoolRecord>::new(),
            allocated: 0,
        }
    }
}

/// Adds one position: distributions of dense decoding and of this cell, and the token of the text.
pub fn add_position(sums: &mut FidelitySums, dense: &[f32], own: &[f32], token: u32) {
    let (lse_dense, lse) = (log_sum_exp(dense), log_sum_exp(own));
    let kl: f64 = dense
        .iter()
        .zip(own)
        .map(|(&d, &o)| {
            let ln_p = f64::from(d) - lse_dense;
            libm::exp(ln_p) * (ln_p - (f64::from(o) - lse))
        })
        .sum();
    sums.positions += 1;
    sums.kl += kl;
    sums.top1 += u64::from(argmax(dense) == argmax(own));
    let nll = |logits: &[f32], lse: f64| logits.get(token as usize).map_or(f64::NAN, |&l| lse - f64::from(l));
    sums.nll += nll(own, lse);
    sums.nll_dense += nll(dense, lse_dense);
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l) - f64::from(max))).sum();
    f64::from(max) + libm::log(sum)
}

/// The largest logit's place; ties go to the lowest, a NaN never wins.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (i, &l) in logits.iter().enumerate() {
        if l > best.0 {
            best = (l, i as u32);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_distributions_have_no_distance() {
        let logits = [0.5, -1.0, 3.0, f32::NEG_INFINITY.max(-90.0)];
        let mut sums = FidelitySums::default();
        add_position(&mut sums, &logits, &logits.map(|l| l + 7.0), 2);
        assert!(sums.kl.abs() < 1e-6, "{}", sums.kl);
        assert_eq!((sums.positions, sums.top1), (1, 1));
        assert!((sums.nll - sums.nll_dense).abs() < 1e-6);
    }

    #[test]
    fn kl_is_that_of_the_definition() {
        // p = (1/2, 1/2), q = (1/4, 3/4): KL = ½ ln 2 + ½ ln(2/3).
        let (p, q) = ([0.0, 0.0], [1f32.ln(), 3f32.ln()]);
        let mut sums = FidelitySums::default();
        add_position(&mut sums, &p, &q, 0);
        assert!((sums.kl - (0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln())).abs() < 1e-6);
        assert!((sums.nll - 4f64.ln()).abs() < 1e-6 && (sums.nll_dense - 2f64.ln()).abs() < 1e-6);
        assert_eq!(sums.top1, 0);
    }

    #[test]
    fn argmax_passes_over_nan_and_takes_the_first_of_ties() {
        assert_eq!(argmax(&[f32::NAN, 1.0, 2.0, 2.0, f32::NAN]), 2);
        assert_eq!(argmax(&[f32::NAN]), 0);
    }
}
