//! The background chain of a layer: predict → rank → select → fetch.

use super::{Device, State};
use crate::ops::{Backend, RankQuery, ScoreArgs, SelectArgs};
use crate::policy::{Ranking, RowSet, StepView};
use crate::settings::Group;
use crate::{Error, Result};
use std::time::Instant;

impl<B: Backend> State<B> {
    /// Ranks, selects and fetches for the next step.
    pub(super) fn stage(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        if !self.settings.ranks() {
            return Ok(());
        }
        if self.chain.is_some() {
            return self.rank_on_device(d, layer);
        }
        d.backend.begin_stage(layer)?;
        let start = Instant::now();
        self.find_candidates();
        if self.play.rankings.is_none() {
            self.rank(d, layer)?;
        }
        self.select(d, layer)?;
        let ranked = Instant::now();
        self.report.seconds.rank += (ranked - start).as_secs_f64();
        self.fetch(d, layer)?;
        self.report.seconds.fetch_exposed += ranked.elapsed().as_secs_f64();
        d.backend.end_stage(layer)
    }

    /// The same before attention, for this step. Where scores are normalised with the exact mass of what is
    /// pinned, attention runs once more to find it: on-demand ranking is a baseline, not a design.
    pub(super) fn stage_on_demand(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let normalises = self.group == Group::SoftmaxSum && self.settings.normalise_resident;
        if self.settings.ranks() && normalises && self.play.rankings.is_none() {
            self.run_attend(d, layer, true)?;
        }
        self.stage(d, layer)?;
        d.backend.join()
    }

    /// Unpinned blocks of every sequence that takes part.
    pub(super) fn find_candidates(&mut self) {
        self.buf.candidates.clear();
        for (s, seq) in self.seqs.iter().enumerate() {
            let range = self.pins.candidates(self.store.blocks(s));
            self.buf.candidates.push(if seq.retired { (0, 0) } else { (range.start, range.end) });
        }
    }

    /// Scores of all candidates, in `buf.scores`.
    fn rank(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        // A pool that holds all its candidates has nothing to choose.
        let choice = self.buf.candidates.iter().any(|&(a, b)| (b - a) as usize > self.k);
        if !choice {
            return Ok(());
        }
        self.buf.masks.clear();
        self.buf.masks.resize(self.seqs.len(), 0);
        for s in 0..self.seqs.len() {
            if !self.seqs[s].retired {
                self.ask_predictor(d, layer, s)?;
            }
        }
        if self.buf.masks.iter().any(|&m| m != 0) {
            let masks = std::mem::take(&mut self.buf.masks);
            let candidates = std::mem::take(&mut self.buf.candidates);
            // Sequences whose predictor gave scores or a query are done already.
            let mine: &mut Vec<(u32, u32)> = &mut self.buf.scratch_candidates;
            mine.clear();
            mine.extend(candidates.iter().zip(&masks).map(|(&c, &m)| if m == 0 { (0, 0) } else { c }));
            let mine = std::mem::take(mine);
            self.score_own(d, layer, RankQuery::Rows(&masks), &mine)?;
            (self.buf.masks, self.buf.candidates, self.buf.scratch_candidates) = (masks, candidates, mine);
        }
        Ok(())
    }

    /// Takes one predictor's answer: a row mask is noted, anything else is scored at once.
    fn ask_predictor(&mut self, d: &mut Device<'_, B>, layer: usize, s: usize) -> Result<()> {
        let g = &d.model.config.geometry;
        let (first, end) = (self.rows.host_first[s] as usize, self.rows.host_first[s + 1] as usize);
        let rows = end - first;
        if self.needs.queries {
            self.read_queries(d, layer, first, rows)?;
        }
        let (from, to) = self.buf.candidates[s];
        let mut predictor = std::mem::replace(&mut self.seqs[s].predictor, Box::new(Nobody));
        let view = StepView {
            geometry: g,
            step: self.now,
            layer,
            rows,
            parents: &self.seqs[s].row_parents,
            candidates: from..to,
            queries: if self.needs.queries { &self.buf.queries[..rows * g.q_dim()] } else { &[] },
        };
        let mut mask = None;
        let mut query = None;
        match predictor.rank_with(&view) {
            Ranking::Rows(set) => mask = Some(set),
            Ranking::Query(q) if q.len() == g.q_dim() => query = Some(q.into_owned()),
            Ranking::Scores(scores) if scores.len() == g.kv_heads * (to - from) as usize => {
                for (kv, row) in scores.chunks_exact((to - from).max(1) as usize).enumerate() {
                    let at = (s * g.kv_heads + kv) * self.shape.blocks + from as usize;
                    if let Some(own) = &mut self.buf.scores {
                        d.backend.write(own, at, row)?;
                    }
                }
            }
            _ => return Err(Error::Invariant("the predictor's query or scores have a wrong length".into())),
        }
        self.seqs[s].predictor = predictor;
        if let Some(set) = mask {
            self.note_rows(s, rows, set)?;
        }
        match query {
            Some(q) => self.score_query(d, layer, s, &q),
            None => Ok(()),
        }
    }

    fn note_rows(&mut self, s: usize, rows: usize, set: RowSet) -> Result<()> {
        if set.is_empty() || u64::from(set.0) >= 1u64 << rows {
            let bits = set.0;
            return Err(Error::Invariant(format!("the predictor ranks with rows {bits:#b} of {rows}")));
        }
        self.buf.masks[s] = set.0;
        // Which draft this selection stands on; whether it was right is known after verification. A pool that holds all
        // its candidates has nothing to choose, whatever others of the batch have.
        let (from, to) = self.buf.candidates[s];
        if (to - from) as usize > self.k {
            self.seqs[s].ranking_rows = set.0;
        }
        Ok(())
    }

    fn score_query(&mut self, d: &mut Device<'_, B>, layer: usize, s: usize, query: &[f32]) -> Result<()> {
        let width = query.len();
        let mut queries = vec![0.0; self.seqs.len() * width];
        queries[s * width..(s + 1) * width].copy_from_slice(query);
        let mut candidates = vec![(0, 0); self.seqs.len()];
        candidates[s] = self.buf.candidates[s];
        self.score_own(d, layer, RankQuery::Query(&queries), &candidates)
    }

    fn read_queries(&mut self, d: &mut Device<'_, B>, layer: usize, first: usize, rows: usize) -> Result<()> {
        let width = d.model.config.geometry.q_dim();
        self.buf.q_rows.resize(rows * width, half::bf16::ZERO);
        d.backend.read(&self.layers[layer].q, first * width, &mut self.buf.q_rows)?;
        self.buf.queries.clear();
        self.buf.queries.extend(self.buf.q_rows.iter().map(|x| x.to_f32()));
        Ok(())
    }

    /// Scores into `buf.scores`.
    pub(super) fn score_own(
        &mut self,
        d: &mut Device<'_, B>,
        layer: usize,
        query: RankQuery<'_>,
        candidates: &[(u32, u32)],
    ) -> Result<()> {
        let taken = self.buf.scores.take();
        let mut scores = taken.ok_or_else(|| Error::Invariant("the score buffer is in use".into()))?;
        let result = self.score(d, layer, query, candidates, &mut scores);
        self.buf.scores = Some(scores);
        result
    }

    /// The score op with this decode's summary, combination and normalisation.
    pub(super) fn score(
        &self,
        d: &mut Device<'_, B>,
        layer: usize,
        query: RankQuery<'_>,
        candidates: &[(u32, u32)],
        out: &mut B::Buf<f32>,
    ) -> Result<()> {
        let normalise = self.settings.normalise_resident && matches!(query, RankQuery::Rows(_));
        let cache = &self.layers[layer];
        d.backend.score(ScoreArgs {
            geometry: &d.model.config.geometry,
            shape: &self.shape,
            summary: self.summary.as_ref(),
            summary_shape: &self.summary_shape,
            summaries: &cache.summaries,
            fit: &cache.fit,
            rows: &self.rows,
            q: &cache.q,
            query,
            candidates,
            group: self.group,
            resident_lse: normalise.then_some(&self.buf.pinned_lse[..]),
            out,
        })
    }

    fn select(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        if self.play.rankings.is_some() {
            return self.select_ranked(layer);
        }
        if self.play.book.is_some() {
            return self.note_orders(d.backend, layer);
        }
        let r = &mut self.layers[layer].residency;
        d.backend.select(SelectArgs {
            shape: &self.shape,
            scores: self.buf.own_scores()?,
            candidates: &self.buf.candidates,
            k: self.k,
            cap: self.cap,
            now: self.now,
            pools: &mut r.pools,
            evictors: &mut r.evictors,
            outcomes: &mut r.outcomes,
        })
    }

    /// Copies the admitted blocks, counts, and renews the lists of what is attended.
    fn fetch(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let kv_heads = self.shape.kv_heads;
        for s in 0..self.seqs.len() {
            if self.seqs[s].retired {
                continue;
            }
            let report = &mut self.report.seqs[s];
            let (stats, heads) = (&mut report.layers[layer], &mut report.heads[layer * kv_heads..]);
            self.buf.moves.clear();
            for (head, pool) in (s * kv_heads..(s + 1) * kv_heads).enumerate() {
                let out = &self.layers[layer].residency.outcomes[pool];
                heads[head].wanted += out.wanted.len() as u64;
                heads[head].hits += out.hits as u64;
                stats.wanted += out.wanted.len() as u64;
                stats.hits += out.hits as u64;
                stats.fetched += out.moves.len() as u64;
                stats.dropped += out.dropped as u64;
                stats.evicted += out.evicted.len() as u64;
                stats.wasted += out.wasted as u64;
                stats.nans += out.nans as u64;
                stats.fetched_max = stats.fetched_max.max(out.moves.len() as u64);
                stats.decide_set(&out.wanted);
                stats.decide(out.moves.iter().map(|m| m.0));
                stats.decide(out.evicted.iter().copied());
                self.buf.moves.extend(out.moves.iter().map(|&(block, slot)| [pool as u32, block, slot]));
            }
            let cache = &mut self.layers[layer];
            if !self.play.masses {
                let copied = if self.settings.mode.resident() { 0 } else { self.buf.moves.len() };
                stats.bytes_h2d += (copied * self.shape.block.bytes()) as u64;
                continue;
            }
            if !self.settings.mode.resident() {
                let moves = &self.buf.moves;
                stats.bytes_h2d +=
                    d.backend.fetch(&self.shape, layer, &self.store, moves, &mut cache.slots)?;
            }
            let n = self.store.blocks(s);
            for pool in s * kv_heads..(s + 1) * kv_heads {
                cache.refresh(d.backend, &self.settings, &self.shape, pool, n)?;
            }
        }
        Ok(())
    }
}

/// Stands in for a predictor while it is being asked.
struct Nobody;

impl crate::policy::Predictor for Nobody {
    fn rank_with<'a>(&'a mut self, _: &'a StepView<'a>) -> Ranking<'a> {
        Ranking::Rows(RowSet::CURRENT)
    }
}
