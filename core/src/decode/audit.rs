//! The truth beside the step: exact attention over everything, and the sets that a perfect predictor would want.

use super::attend::log_sum_exp;
use super::{Device, State};
use crate::Result;
use crate::geometry::Geometry;
use crate::ops::{Backend, CacheShape, ExactArgs, Memory, RankQuery};
use crate::policy::When;
use crate::select::top_k;
use half::bf16;
use std::time::Instant;

/// Buffers of an audit.
pub(super) struct Audit<B: Memory> {
    /// Scores with the true query, `[pools][blocks]`.
    pub scores: B::Buf<f32>,
    host_scores: Vec<f32>,
    /// `[seqs][heads][blocks + 1]`.
    block_lse: Vec<f32>,
    /// ln of each head's whole mass, `[seqs][heads]`.
    totals: Vec<f32>,
    /// `[seqs][q_dim]`.
    dense: Vec<f32>,
    sparse: Vec<bf16>,
    order: Vec<u64>,
    truth: Vec<u32>,
    member: Vec<bool>,
}

impl<B: Backend> Audit<B> {
    pub fn new(backend: &B, shape: &CacheShape, g: &Geometry, ranks: bool) -> Result<Self> {
        let (seqs, heads, q_dim, blocks) = (shape.seqs, g.heads, g.q_dim(), shape.blocks);
        Ok(Self {
            scores: backend.alloc(if ranks { shape.pools() * blocks } else { 0 })?,
            host_scores: vec![0.0; blocks],
            block_lse: vec![0.0; seqs * heads * (blocks + 1)],
            totals: vec![0.0; seqs * heads],
            dense: vec![0.0; seqs * q_dim],
            sparse: vec![bf16::ZERO; q_dim],
            order: Vec::with_capacity(blocks),
            truth: Vec::with_capacity(blocks),
            member: vec![false; blocks],
        })
    }
}

impl<B: Backend> State<B> {
    /// Compares this layer's attention and the selection in force with the truth.
    pub(super) fn audit(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let Some(mut audit) = self.audit.take() else { return Ok(()) };
        let start = Instant::now();
        let result = self.run_audit(d, layer, &mut audit);
        self.audit = Some(audit);
        self.report.seconds.audit += start.elapsed().as_secs_f64();
        result
    }

    fn run_audit(&mut self, d: &mut Device<'_, B>, layer: usize, audit: &mut Audit<B>) -> Result<()> {
        let g = &d.model.config.geometry;
        d.backend.exact_attend(ExactArgs {
            geometry: g,
            shape: &self.shape,
            store: &self.store,
            layer,
            rows: &self.rows,
            q: &self.layers[layer].q,
            tail: &self.layers[layer].tail,
            block_lse: &mut audit.block_lse,
            out: &mut audit.dense,
        })?;
        // The initial selection is not the predictor's: there is no prediction yet at step 1.
        let predicted = self.settings.ranks() && (self.now > 1 || self.needs.when == When::OnDemand);
        if predicted {
            self.true_scores(d, layer, audit)?;
        }
        for s in 0..self.seqs.len() {
            let first = self.rows.host_first[s] as usize;
            if self.rows.host_first[s + 1] as usize == first {
                continue;
            }
            self.audit_output(d, layer, s, first, audit)?;
            self.audit_mass(g.heads, g.group(), layer, s, audit);
            if predicted {
                self.audit_selection(d, layer, s, audit)?;
            }
        }
        Ok(())
    }

    /// Scores of row 0 by the same summary, combination and normalisation.
    fn true_scores(&mut self, d: &mut Device<'_, B>, layer: usize, audit: &mut Audit<B>) -> Result<()> {
        let masks: Vec<u32> = self.seqs.iter().map(|s| u32::from(!s.retired)).collect();
        self.find_candidates();
        let candidates = std::mem::take(&mut self.buf.candidates);
        let result = self.score(d, layer, RankQuery::Rows(&masks), &candidates, &mut audit.scores);
        self.buf.candidates = candidates;
        result
    }

    fn audit_output(
        &mut self,
        d: &mut Device<'_, B>,
        layer: usize,
        s: usize,
        first: usize,
        audit: &mut Audit<B>,
    ) -> Result<()> {
        let width = d.model.config.geometry.q_dim();
        d.backend.read(&self.buf.work.attended, first * width, &mut audit.sparse)?;
        let stats = self.report.seqs[s].layers[layer].audit.get_or_insert_default();
        for (sparse, &dense) in audit.sparse.iter().zip(&audit.dense[s * width..]) {
            // Both sides are rounded alike, so that equal sets give an error of nearly zero.
            let dense = bf16::from_f32(dense).to_f32();
            stats.error_sq += f64::from(sparse.to_f32() - dense).powi(2);
            stats.dense_sq += f64::from(dense).powi(2);
        }
        Ok(())
    }

    fn audit_mass(&mut self, heads: usize, group: usize, layer: usize, s: usize, audit: &mut Audit<B>) {
        let (n, width) = (self.store.blocks(s), self.shape.blocks + 1);
        let stats = self.report.seqs[s].layers[layer].audit.get_or_insert_default();
        for h in 0..heads {
            let row = &audit.block_lse[(s * heads + h) * width..][..width];
            let total = log_sum_exp(row[..n].iter().chain(&row[width - 1..]).copied());
            audit.totals[s * heads + h] = total;
            let pool = s * self.shape.kv_heads + h / group;
            let attended = &self.layers[layer].residency.attended[pool];
            let got = attended.iter().map(|&b| row[b as usize]).chain(std::iter::once(row[width - 1]));
            stats.mass_recall += f64::from(libm::expf(log_sum_exp(got) - total).min(1.0));
            stats.heads += 1;
        }
    }

    fn audit_selection(
        &mut self,
        d: &mut Device<'_, B>,
        layer: usize,
        s: usize,
        audit: &mut Audit<B>,
    ) -> Result<()> {
        let g = &d.model.config.geometry;
        let candidates = self.pins.candidates(self.store.blocks(s));
        let wanted_most = self.k.min(candidates.len());
        if wanted_most == 0 {
            return Ok(());
        }
        let width = self.shape.blocks + 1;
        for kv in 0..g.kv_heads {
            let pool = s * g.kv_heads + kv;
            let wanted = &self.layers[layer].residency.outcomes[pool].wanted;
            audit.member.fill(false);
            wanted.iter().for_each(|&b| audit.member[b as usize] = true);
            let share = |truth: &[u32]| {
                truth.iter().filter(|&&b| audit.member[b as usize]).count() as f64 / wanted_most as f64
            };
            let report = &mut self.report.seqs[s];
            let stats = report.layers[layer].audit.get_or_insert_default();
            let head = &mut report.heads[layer * g.kv_heads + kv];
            d.backend.read(&audit.scores, pool * self.shape.blocks, &mut audit.host_scores)?;
            top_k(&audit.host_scores, candidates.clone(), self.k, &mut audit.order, &mut audit.truth);
            head.agreement = share(&audit.truth);
            stats.agreement += head.agreement;
            for b in candidates.clone() {
                // The exact mass of the block, each head's as a share of that head's whole mass.
                audit.host_scores[b as usize] = (kv * g.group()..(kv + 1) * g.group())
                    .map(|h| {
                        let row = &audit.block_lse[(s * g.heads + h) * width..][..width];
                        libm::expf(row[b as usize] - audit.totals[s * g.heads + h])
                    })
                    .sum();
            }
            top_k(&audit.host_scores, candidates.clone(), self.k, &mut audit.order, &mut audit.truth);
            head.recall_exact = share(&audit.truth);
            stats.recall_exact += head.recall_exact;
            stats.pools += 1;
        }
        Ok(())
    }
}
