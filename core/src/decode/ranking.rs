//! What a predictor and a summary want of a tape, step by step: found once, used by every replay that ranks alike.
//!
//! A ranking hangs on queries and summaries, not on what is resident. So evictors, budgets and caps can share it, and the
//! next use of a block is known.

use super::State;
use crate::ids::Step;
use crate::ops::Backend;
use crate::policy::When;
use crate::select::{self, top_k};
use crate::{Error, Result};

/// The best blocks of every (step, layer, KV head) of one sequence, best first; step 0 is the end of the prefill.
#[derive(Debug, Clone, PartialEq)]
pub struct Rankings {
    layers: usize,
    kv_heads: usize,
    depth: usize,
    first: Vec<usize>,
    blocks: Vec<u32>,
    nans: Vec<u32>,
}

impl Rankings {
    pub(super) fn new(layers: usize, kv_heads: usize, depth: usize) -> Self {
        Self { layers, kv_heads, depth, first: vec![0], blocks: Vec::new(), nans: Vec::new() }
    }

    fn push(&mut self, wanted: &[u32], nans: usize) {
        self.blocks.extend_from_slice(wanted);
        self.first.push(self.blocks.len());
        self.nans.push(nans as u32);
    }

    /// Most blocks of a list: the largest K that it can be used for.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Steps, the end of the prefill not counted.
    pub fn steps(&self) -> usize {
        (self.nans.len() / (self.layers * self.kv_heads)).saturating_sub(1)
    }

    fn number(&self, step: Step, layer: usize, head: usize) -> usize {
        (step as usize * self.layers + layer) * self.kv_heads + head
    }

    /// The best blocks by (score descending, block id ascending), at most [`Rankings::depth`].
    pub fn wanted(&self, step: Step, layer: usize, head: usize) -> &[u32] {
        let i = self.number(step, layer, head);
        &self.blocks[self.first[i]..self.first[i + 1]]
    }
}

/// Steps whose selections hold a block.
pub(super) struct NextUses {
    /// `[layers · kv_heads][blocks]`, ascending.
    steps: Vec<Vec<Vec<Step>>>,
}

impl NextUses {
    /// Of selections of `k` blocks.
    pub fn new(rankings: &Rankings, k: usize) -> Self {
        let mut steps = vec![Vec::new(); rankings.layers * rankings.kv_heads];
        for step in 1..=rankings.steps() as Step {
            for (i, own) in steps.iter_mut().enumerate() {
                let list = rankings.wanted(step, i / rankings.kv_heads, i % rankings.kv_heads);
                for &block in list.iter().take(k) {
                    if own.len() <= block as usize {
                        own.resize(block as usize + 1, Vec::new());
                    }
                    own[block as usize].push(step);
                }
            }
        }
        Self { steps }
    }

    /// The first use of a block after `now`.
    pub fn after(&self, pool: usize, block: u32, now: Step) -> Step {
        let Some(steps) = self.steps[pool].get(block as usize) else { return Step::MAX };
        steps.get(steps.partition_point(|&s| s <= now)).copied().unwrap_or(Step::MAX)
    }
}

impl<B: Backend> State<B> {
    /// Notes the order of a layer's candidates; nothing is selected.
    pub(super) fn note_orders(&mut self, backend: &mut B, layer: usize) -> Result<()> {
        let mut scores = vec![0.0; self.shape.blocks];
        for pool in 0..self.shape.kv_heads {
            self.note_order(backend, layer, pool, &mut scores)?;
        }
        Ok(())
    }

    /// Notes the order of one pool's candidates; `scores` is scratch.
    pub(super) fn note_order(
        &mut self,
        backend: &mut B,
        layer: usize,
        pool: usize,
        scores: &mut [f32],
    ) -> Result<()> {
        let candidates = self.pins.candidates(self.store.blocks(0));
        backend.read(self.buf.own_scores()?, pool * self.shape.blocks, scores)?;
        let out = &mut self.layers[layer].residency.outcomes[pool];
        let Some(book) = &mut self.play.book else { return Ok(()) };
        // Where nothing was ranked the scores are old, and all candidates are wanted.
        let nans = top_k(scores, candidates, book.depth, &mut self.play.order, &mut out.wanted);
        book.push(&out.wanted, nans);
        out.wanted.clear();
        Ok(())
    }

    /// The selection of a layer from the rankings that are known.
    pub(super) fn select_ranked(&mut self, layer: usize) -> Result<()> {
        let Some(rankings) = self.play.rankings.clone() else {
            return Err(Error::Invariant("a selection without rankings".into()));
        };
        let (first, end) = self.buf.candidates[0];
        let r = &mut self.layers[layer].residency;
        for head in 0..rankings.kv_heads {
            let (pool, evictor) = (&mut r.pools[head], r.evictors[head].as_mut());
            let out = &mut r.outcomes[head];
            let list = rankings.wanted(self.now, layer, head);
            out.wanted.clear();
            out.wanted.extend_from_slice(&list[..self.k.min(list.len())]);
            out.nans = rankings.nans[rankings.number(self.now, layer, head)] as usize;
            let next = self.play.next.as_ref();
            let number = layer * rankings.kv_heads + head;
            if let Some(next) = next {
                for meta in pool.meta.iter_mut() {
                    meta.next_use = next.after(number, meta.block, self.now);
                }
            }
            select::settle(first..end, self.cap, self.now, pool, evictor, out)?;
            if let Some(next) = next {
                for &(block, slot) in &out.moves {
                    pool.meta[slot as usize].next_use = next.after(number, block, self.now);
                }
            }
        }
        Ok(())
    }

    /// Agreement of the selection in force with what the true query wants, where that is known: an audit's, to the bit.
    pub(super) fn compare_with_truth(&mut self, layer: usize) {
        let Some(truth) = &self.play.truth else { return };
        let candidates = self.pins.candidates(self.store.blocks(0));
        let wanted_most = self.k.min(candidates.len());
        // The initial selection is not the predictor's: there is no prediction yet at step 1.
        let predicted = self.now > 1 || self.needs.when == When::OnDemand;
        if !predicted || wanted_most == 0 {
            return;
        }
        let (member, report) = (&mut self.play.member, &mut self.report.seqs[0]);
        let heads = &mut report.heads[layer * self.shape.kv_heads..];
        let audit = report.layers[layer].audit.get_or_insert_default();
        for (head, out) in self.layers[layer].residency.outcomes.iter().enumerate() {
            member.clear();
            member.resize(self.shape.blocks, false);
            out.wanted.iter().for_each(|&b| member[b as usize] = true);
            let best = truth.wanted(self.now, layer, head).iter().take(wanted_most);
            let share = best.filter(|&&b| member[b as usize]).count() as f64 / wanted_most as f64;
            audit.agreement += share;
            audit.pools += 1;
            heads[head].agreement += share;
        }
    }
}
