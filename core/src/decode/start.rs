//! The beginning of a decode: checks, memory, summaries of the prompts, first residents.

use super::audit::Audit;
use super::cache::{LayerCache, LayerSizes, Pins, Residency};
use super::record::Recorder;
use super::replay::{Play, Purpose};
use super::{Buffers, Device, Policies, Seq, Start, State, rows, verify};
use crate::engine::Prefix;
use crate::forward::Work;
use crate::ops::{Backend, CacheShape, RankQuery, SummariseArgs};
use crate::plan::{GROWTH_BLOCKS, MemoryPlan, PlanExtra, SeqLength, cache_shape};
use crate::policy::{Evictor, Keys, Needs, When};
use crate::select::top_k;
use crate::settings::{Mode, Settings};
use crate::stats::{SeqReport, StepReport};
use crate::store::HostStore;
use crate::{Error, Result};
use half::bf16;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// A seed of its own for every part that draws.
fn derive(seed: u64, parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(seed, |s, &p| ChaCha8Rng::seed_from_u64(s ^ p.wrapping_mul(0x9e37_79b9_7f4a_7c15)).random())
}

impl<B: Backend> State<B> {
    pub(super) fn start(
        d: &mut Device<'_, B>,
        settings: &Settings,
        policies: &Policies<B>,
        batch: Vec<Start<B>>,
        purpose: Purpose,
    ) -> Result<(Self, MemoryPlan, u64)> {
        let g = &d.model.config.geometry;
        let lengths: Vec<SeqLength> =
            batch.iter().map(|s| SeqLength { prompt: s.prefix.tokens.len(), max_new: s.max_new }).collect();
        check(d, settings, &batch)?;
        let shape = cache_shape(g, settings, &lengths);
        let mut state = Self::build(d, settings, policies, &batch, shape)?;
        let records = matches!(purpose, Purpose::Record | Purpose::Replay { record: true, .. });
        state.recorder = records.then(|| Recorder::new(d, &batch));
        if let Purpose::Replay { play, .. } = purpose {
            state.play = play;
        }
        state.settle_play()?;
        for (s, length) in lengths.iter().enumerate() {
            let sealed = (length.prompt + length.max_new) / settings.block_tokens;
            state.store.reserve(d.backend, s, sealed - state.store.blocks(s))?;
        }
        let evictor = state.layers[0].residency.evictors.first();
        let chain = state.chain_spec(d, evictor.map(|e| e.as_ref())).map_or(0, |spec| spec.bytes());
        let extra = PlanExtra { chain, hidden_layers: state.hidden_layers.len() };
        let plan = MemoryPlan::new(g, settings, &lengths, policies.summary.as_ref(), extra);
        let mut initial = 0;
        for layer in 0..g.layers {
            state.write_tails(d, layer, &batch)?;
            initial += state.fill_layer(d, layer, &batch)?;
        }
        state.open_chain(d)?;
        state.propose(d)?;
        Ok((state, plan, initial))
    }

    fn build(
        d: &mut Device<'_, B>,
        settings: &Settings,
        policies: &Policies<B>,
        batch: &[Start<B>],
        shape: CacheShape,
    ) -> Result<Self> {
        let g = &d.model.config.geometry;
        let seqs: Vec<Seq<B>> = batch.iter().map(|s| new_seq(policies, s)).collect::<Result<_>>()?;
        let needs = seqs.first().map(|s| s.predictor.needs()).unwrap_or_default();
        check_timing(settings, needs)?;
        let hidden_layers = seqs.first().map(|s| s.draft.hidden_layers().to_vec()).unwrap_or_default();
        let summary_shape = policies.summary.shape(shape.block);
        let rows = seqs.len() * settings.max_rows;
        let ranked = usize::from(settings.ranks());
        let sizes = LayerSizes {
            summary_bytes: ranked * summary_shape.bytes(),
            fit_len: ranked * policies.summary.fit_len(shape.block),
            q: rows * g.q_dim(),
            lse: ranked * rows * g.heads * (shape.slots + 1),
        };
        let layers = (0..g.layers)
            .map(|layer| {
                let evictors = new_evictors(policies, settings, batch, layer, g.kv_heads)?;
                let residency = Residency::new(settings, &shape, evictors);
                LayerCache::new(d.backend, &shape, sizes, residency)
            })
            .collect::<Result<_>>()?;
        let audit = match settings.audit {
            true => Some(Audit::new(d.backend, &shape, g, settings.ranks())?),
            false => None,
        };
        let report = StepReport {
            seqs: (0..seqs.len())
                .map(|_| SeqReport {
                    layers: vec![Default::default(); g.layers],
                    heads: vec![Default::default(); g.layers * g.kv_heads],
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let mut state = Self {
            pins: Pins::of(settings),
            k: settings.k(),
            cap: settings.cap_blocks(),
            summary: policies.summary.clone(),
            summary_shape,
            group: settings.group.unwrap_or_else(|| policies.summary.group()),
            draft_shape: policies.draft_shape,
            needs,
            rows: rows::table(d.backend, seqs.len(), rows)?,
            store: HostStore::new(batch.iter().map(|s| s.prefix.extent.clone()).collect(), GROWTH_BLOCKS),
            layers,
            buf: Buffers::new(d, settings, &shape, hidden_layers.len())?,
            audit,
            chain: None,
            recording: B::Recording::default(),
            why_host: String::new(),
            play: Play::default(),
            recorder: None,
            now: 0,
            report,
            settings: settings.clone(),
            shape,
            hidden_layers,
            seqs,
        };
        for (seq, start) in state.seqs.iter_mut().zip(batch) {
            if state.needs.drafts || state.settings.emit == crate::settings::Emit::Accepted {
                seq.hidden = hidden_columns(&start.prefix, &state.hidden_layers, g.hidden)?;
            }
            verify::first_rows(seq);
        }
        Ok(state)
    }

    /// The tokens of the prompt after its last full block go to the tail.
    fn write_tails(&mut self, d: &mut Device<'_, B>, layer: usize, batch: &[Start<B>]) -> Result<()> {
        let (heads, dim) = (self.shape.kv_heads, self.shape.block.head_dim);
        for (s, start) in batch.iter().enumerate() {
            let n = start.prefix.tail_tokens();
            let width = heads * dim;
            let of_layer = &start.prefix.tail[layer * 2 * n * width..(layer + 1) * 2 * n * width];
            for (half, rows) in of_layer.chunks_exact((n * width).max(1)).enumerate() {
                for head in 0..heads {
                    let own: Vec<bf16> = rows
                        .chunks_exact(width)
                        .flat_map(|r| &r[head * dim..(head + 1) * dim])
                        .copied()
                        .collect();
                    let at = ((s * heads + head) * 2 + half) * self.shape.tail_tokens * dim;
                    d.backend.write(&mut self.layers[layer].tail, at, &own)?;
                }
            }
        }
        Ok(())
    }

    /// Summaries of all prompt blocks, then the first residents and their copies. Returns the bytes copied.
    fn fill_layer(&mut self, d: &mut Device<'_, B>, layer: usize, batch: &[Start<B>]) -> Result<u64> {
        if self.settings.ranks() && self.play.scores {
            for s in 0..batch.len() {
                self.summarise_prompt(d, layer, s)?;
            }
            self.find_candidates();
            if self.buf.candidates.iter().any(|&(a, b)| (b - a) as usize > self.k) {
                let queries: Vec<f32> = batch.iter().flat_map(|s| s.prefix.query(layer)).copied().collect();
                let candidates = self.buf.candidates.clone();
                self.score_own(d, layer, RankQuery::Query(&queries), &candidates)?;
            }
        }
        let mut bytes = 0;
        for s in 0..batch.len() {
            bytes += self.fill_sequence(d, layer, s)?;
        }
        Ok(bytes)
    }

    fn summarise_prompt(&mut self, d: &mut Device<'_, B>, layer: usize, s: usize) -> Result<()> {
        let n = self.store.blocks(s);
        let fit_len = self.summary.fit_len(self.shape.block);
        let cache = &mut self.layers[layer];
        let mut fit = vec![0.0; fit_len];
        for head in 0..self.shape.kv_heads {
            if fit_len > 0 {
                let dim = self.shape.block.head_dim;
                // Without block 0, whose sink keys are outliers, unless it is the only one.
                let keys: Vec<f32> = (usize::from(n > 1)..n)
                    .flat_map(|b| &self.store.chunk(layer, s, b, head)[..self.shape.block.half()])
                    .map(|x| x.to_f32())
                    .collect();
                self.summary.fit(Keys { data: &keys, tokens: keys.len() / dim, head_dim: dim }, &mut fit);
                d.backend.write(&mut cache.fit, (s * self.shape.kv_heads + head) * fit_len, &fit)?;
            }
        }
        d.backend.summarise(SummariseArgs {
            shape: &self.shape,
            summary: self.summary.as_ref(),
            store: &self.store,
            layer,
            seq: s,
            blocks: 0..n,
            fit: &cache.fit,
            out: &mut cache.summaries,
        })
    }

    fn fill_sequence(&mut self, d: &mut Device<'_, B>, layer: usize, s: usize) -> Result<u64> {
        let n = self.store.blocks(s);
        let candidates = self.pins.candidates(n);
        let mut scores = vec![0.0; self.shape.blocks];
        let (mut order, mut wanted) = (Vec::new(), Vec::new());
        self.buf.moves.clear();
        for pool in s * self.shape.kv_heads..(s + 1) * self.shape.kv_heads {
            if let Some(rankings) = &self.play.rankings {
                let list = rankings.wanted(0, layer, pool);
                wanted.clear();
                wanted.extend_from_slice(&list[..self.k.min(list.len())]);
            } else if self.settings.ranks() && candidates.len() > self.k {
                d.backend.read(self.buf.own_scores()?, pool * self.shape.blocks, &mut scores)?;
                top_k(&scores, candidates.clone(), self.k, &mut order, &mut wanted);
            }
            if self.play.book.is_some() {
                self.note_order(d.backend, layer, pool, &mut scores)?;
            }
            let cache = &mut self.layers[layer];
            if self.settings.mode != Mode::Dense {
                cache.residency.fill(pool, n, self.pins, &wanted);
            }
            cache.refresh(d.backend, &self.settings, &self.shape, pool, n)?;
            if self.settings.mode.resident() {
                self.buf.moves.extend((0..n as u32).map(|b| [pool as u32, b, b]));
            } else {
                let meta = cache.residency.pools[pool].meta.iter().enumerate();
                let resident = meta.filter(|(_, m)| m.block != crate::ids::NONE);
                self.buf.moves.extend(resident.map(|(slot, m)| [pool as u32, m.block, slot as u32]));
            }
        }
        if !self.play.masses {
            return Ok((self.buf.moves.len() * self.shape.block.bytes()) as u64);
        }
        d.backend.fetch(&self.shape, layer, &self.store, &self.buf.moves, &mut self.layers[layer].slots)
    }

    pub(super) fn shuffle_free_slots(&mut self, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for pool in self.layers.iter_mut().flat_map(|l| &mut l.residency.pools) {
            pool.free.shuffle(&mut rng);
        }
    }

    pub(super) fn verify_slots(&mut self, backend: &mut B) -> Result<()> {
        let chunk = self.shape.block.chunk();
        let mut own = vec![bf16::ZERO; chunk];
        let mut blocks = Vec::new();
        for layer in 0..self.layers.len() {
            blocks.clear();
            self.device_blocks(backend, layer, &mut blocks)?;
            let cache = &self.layers[layer];
            blocks.extend(cache.residency.pools.iter().flat_map(|p| p.meta.iter().map(|m| m.block)));
            let slots = (blocks.len() / self.shape.pools()).max(1);
            for (i, &block) in blocks.iter().enumerate().filter(|&(_, &block)| block != crate::ids::NONE) {
                let (p, slot) = (i / slots, i % slots);
                let (s, head) = (p / self.shape.kv_heads, p % self.shape.kv_heads);
                let slot = if self.settings.mode.resident() { block as usize } else { slot };
                backend.read(&cache.slots, (p * self.shape.slots + slot) * chunk, &mut own)?;
                let host = self.store.chunk(layer, s, block as usize, head);
                if own.iter().zip(host).any(|(a, b)| a.to_bits() != b.to_bits()) {
                    return Err(Error::Invariant(format!(
                        "layer {layer}, sequence {s}, KV head {head}: slot {slot} differs from host block {block}"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl<B: Backend> Buffers<B> {
    fn new(d: &Device<'_, B>, settings: &Settings, shape: &CacheShape, hidden_layers: usize) -> Result<Self> {
        let g = &d.model.config.geometry;
        let rows = shape.seqs * settings.max_rows;
        let ranks = settings.ranks();
        let lse = if ranks { rows * g.heads * (shape.slots + 1) } else { 0 };
        Ok(Self {
            work: Work::new(d.backend, g, rows)?,
            k: d.backend.alloc(rows * g.kv_dim())?,
            v: d.backend.alloc(rows * g.kv_dim())?,
            logits: d.backend.alloc(rows * g.vocab)?,
            scores: Some(d.backend.alloc(if ranks { shape.pools() * shape.blocks } else { 0 })?),
            host_lse: vec![0.0; lse],
            pinned_lse: vec![0.0; rows * g.heads],
            hidden: d.backend.alloc(rows * hidden_layers * g.hidden)?,
            host_hidden: vec![0.0; rows * hidden_layers * g.hidden],
            shallow_logits: d.backend.alloc(g.vocab)?,
            tokens: d.backend.alloc(rows)?,
            draws: d.backend.alloc(rows)?,
            sampled: Vec::with_capacity(rows),
            host_draws: Vec::with_capacity(rows),
            logit_rows: Vec::with_capacity(shape.seqs),
            asked_logits: vec![0.0; g.vocab],
            mass: Vec::with_capacity(shape.slots),
            rows: (Vec::with_capacity(rows), Vec::with_capacity(rows)),
            candidates: Vec::with_capacity(shape.seqs),
            scratch_candidates: Vec::with_capacity(shape.seqs),
            masks: Vec::with_capacity(shape.seqs),
            queries: Vec::new(),
            q_rows: Vec::new(),
            moves: Vec::with_capacity(shape.kv_heads * shape.slots),
            tail_moves: Vec::with_capacity(rows),
            slots_of: Vec::with_capacity(shape.kv_heads),
        })
    }
}

fn check<B: Backend>(d: &Device<'_, B>, settings: &Settings, batch: &[Start<B>]) -> Result<()> {
    let g = &d.model.config.geometry;
    settings.check()?;
    if batch.is_empty() {
        return Err(Error::Capacity("a batch of 0 sequences; it needs at least 1".into()));
    }
    for start in batch {
        let (prompt, block) = (start.prefix.tokens.len(), start.prefix.extent.layout.block.tokens);
        if block != settings.block_tokens {
            let want = settings.block_tokens;
            return Err(Error::Invariant(format!(
                "a prefix of {block}-token blocks for {want}-token blocks"
            )));
        }
        if prompt + start.max_new > g.max_positions {
            return Err(Error::Capacity(format!(
                "{prompt} prompt tokens and {} new ones pass the model's {} positions; shorten task.length",
                start.max_new, g.max_positions
            )));
        }
        if start.first as usize >= g.vocab {
            return Err(Error::Capacity(format!(
                "token {} is not in the vocabulary of {}",
                start.first, g.vocab
            )));
        }
    }
    Ok(())
}

fn check_timing(settings: &Settings, needs: Needs) -> Result<()> {
    if settings.mode == Mode::OnDemand && needs.when != When::OnDemand {
        return Err(Error::setting(
            "decode.predictor",
            "mode on-demand ranks with the step's own query, which this predictor does not; use `oracle`, or mode staged",
        ));
    }
    Ok(())
}

fn new_seq<B: Backend>(policies: &Policies<B>, start: &Start<B>) -> Result<Seq<B>> {
    let mut tokens = Vec::with_capacity(start.prefix.tokens.len() + start.max_new + 1);
    tokens.extend_from_slice(&start.prefix.tokens);
    tokens.push(start.first);
    Ok(Seq {
        tokens,
        prompt: start.prefix.tokens.len(),
        max_new: start.max_new,
        tail: start.prefix.tail_tokens(),
        predictor: (policies.predictor)(derive(start.seed, &[1]))?,
        draft: (policies.draft)(derive(start.seed, &[2]))?,
        future: start.future.clone(),
        row_tokens: Vec::new(),
        row_parents: Vec::new(),
        hidden: Vec::new(),
        ranking_rows: 0,
        ranked_by_draft: None,
        rng: ChaCha8Rng::seed_from_u64(derive(start.seed, &[0])),
        retired: false,
    })
}

fn new_evictors<B: Backend>(
    policies: &Policies<B>,
    settings: &Settings,
    batch: &[Start<B>],
    layer: usize,
    heads: usize,
) -> Result<Vec<Box<dyn Evictor>>> {
    if settings.mode == Mode::Dense {
        return Ok(Vec::new());
    }
    let seed = |s: &Start<B>, head: usize| derive(s.seed, &[3, layer as u64, head as u64]);
    batch.iter().flat_map(|s| (0..heads).map(move |h| (policies.evictor)(seed(s, h)))).collect()
}

/// The columns of a prefix's hidden rows that the draft reads, `[tokens][layers][hidden]`.
fn hidden_columns<B: Backend>(prefix: &Arc<Prefix<B>>, layers: &[usize], width: usize) -> Result<Vec<f32>> {
    let column = |layer: &usize| {
        prefix.hidden_layers.iter().position(|l| l == layer).ok_or_else(|| {
            Error::Invariant(format!("the prefill did not keep layer {layer}, which the draft source reads"))
        })
    };
    let columns: Vec<usize> = layers.iter().map(column).collect::<Result<_>>()?;
    let stride = prefix.hidden_layers.len() * width;
    let mut out = Vec::with_capacity(prefix.tokens.len() * columns.len() * width);
    for row in prefix.hidden.chunks_exact(stride.max(1)) {
        columns.iter().for_each(|&c| out.extend_from_slice(&row[c * width..(c + 1) * width]));
    }
    Ok(out)
}
