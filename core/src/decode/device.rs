//! The loop's side of the device chain: when there is one, what a step tells it, what it counted.

use super::{Device, State};
use crate::Result;
use crate::chain::{ChainLayer, ChainSpec, ChainSummary, PoolCounts, SeqControl};
use crate::ops::{Backend, PassKey, TailMove};
use crate::policy::{Evictor, RowSet, When};
use crate::settings::Mode;

/// Pools on the device, and the scratch of talking to them.
pub(super) struct DeviceChain<B: Backend> {
    pools: B::Chain,
    control: Vec<SeqControl>,
    /// `[layers][pools]`.
    counts: Vec<PoolCounts>,
    seals: Vec<[u32; 2]>,
    rest: Vec<u32>,
}

impl<B: Backend> State<B> {
    /// Moves the pools to the device if the backend has a chain for these policies; else notes why not.
    pub(super) fn open_chain(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let evictors: Vec<&dyn Evictor> =
            self.layers.iter().flat_map(|l| l.residency.evictors.iter().map(|e| e.as_ref())).collect();
        let seeds: Vec<u64> = evictors.iter().map(|e| e.device().map_or(0, |e| e.seed)).collect();
        let spec = match self.chain_spec(d, evictors.first().copied()) {
            Ok(spec) => spec,
            Err(why) => {
                self.why_host = why;
                return Ok(());
            }
        };
        let layers: Vec<ChainLayer<'_, B>> = self
            .layers
            .iter()
            .map(|l| ChainLayer {
                slots: &l.slots,
                tail: &l.tail,
                summaries: &l.summaries,
                fit: &l.fit,
                entries: &l.entries,
                entry_count: &l.entry_count,
                q: &l.q,
                block_lse: &l.block_lse,
            })
            .collect();
        let mut pools = d.backend.open_chain(&spec, &layers, &self.store, &seeds)?;
        drop(layers);
        for (layer, cache) in self.layers.iter_mut().enumerate() {
            d.backend.load_pools(&mut pools, layer, &cache.residency.pools)?;
            // The device's are the pools now.
            (cache.residency.pools, cache.residency.evictors) = (Vec::new(), Vec::new());
        }
        self.chain = Some(DeviceChain {
            pools,
            control: Vec::with_capacity(self.seqs.len()),
            counts: vec![PoolCounts::default(); self.layers.len() * self.shape.pools()],
            seals: Vec::with_capacity(self.seqs.len()),
            rest: Vec::with_capacity(self.seqs.len()),
        });
        Ok(())
    }

    /// What a chain would be made for, or why there is none.
    pub(super) fn chain_spec<'a>(
        &'a self,
        d: &Device<'a, B>,
        evictor: Option<&dyn Evictor>,
    ) -> std::result::Result<ChainSpec<'a>, String> {
        if self.audit.is_some() {
            return Err("the run is audited".into());
        }
        if self.recorder.is_some() || self.play.replays {
            return Err("the decode is recorded or replayed".into());
        }
        let ranks = self.settings.ranks();
        if ranks && self.seqs.iter().any(|s| s.predictor.rows(1, &[0]).is_none()) {
            return Err("the predictor runs on the host".into());
        }
        let summary = match (ranks, self.summary.device(self.shape.block)) {
            (false, _) => None,
            (true, Some(device)) => {
                Some(ChainSummary { policy: self.summary.as_ref(), shape: self.summary_shape, device })
            }
            (true, None) => return Err("the summary has no device twin".into()),
        };
        let device_evictor = evictor.and_then(|e| e.device());
        if self.settings.mode != Mode::Dense && device_evictor.is_none() {
            return Err("the evictor has no device twin".into());
        }
        let spec = ChainSpec {
            geometry: &d.model.config.geometry,
            shape: &self.shape,
            pool_slots: self.settings.budget_blocks().min(self.shape.blocks),
            settings: &self.settings,
            group: self.group,
            summary,
            evictor: device_evictor,
        };
        d.backend.has_chain(&spec).map(|()| spec)
    }

    /// Runs the pass, or a recording of it where nothing in it asks the host.
    pub(super) fn run_pass(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        if self.chain.is_none() {
            return self.pass(d);
        }
        self.tell_chain(d)?;
        let first = &self.rows.host_first;
        let most_rows = first.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        let key = PassKey { rows: self.rows.rows(), most_rows };
        let mut recording = std::mem::take(&mut self.recording);
        let model = d.model;
        let mut pass = |backend: &mut B| self.pass(&mut Device { backend, model });
        let result = d.backend.replay(&mut recording, key, &mut pass);
        self.recording = recording;
        result
    }

    /// Step number, candidates and ranking rows.
    fn tell_chain(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        chain.control.clear();
        for (s, seq) in self.seqs.iter_mut().enumerate() {
            let rows = (self.rows.host_first[s + 1] - self.rows.host_first[s]) as usize;
            let blocks = self.store.blocks(s);
            let candidates = self.pins.candidates(blocks);
            let ranking = match rows {
                0 => RowSet::default(),
                _ => seq.predictor.rows(rows, &seq.row_parents).unwrap_or(RowSet::CURRENT),
            };
            // A pool that holds all its candidates has nothing to choose, and no draft decides anything.
            if self.settings.ranks() && candidates.len() > self.k {
                seq.ranking_rows = ranking.0;
            }
            let (first, end) = (candidates.start, candidates.end);
            chain.control.push(SeqControl { first, end, blocks: blocks as u32, rows: ranking.0 });
        }
        d.backend.begin_pass(&mut chain.pools, self.now, &chain.control)
    }

    /// The background chain of a layer.
    pub(super) fn rank_on_device(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        d.backend.begin_stage(layer)?;
        if self.needs.when == When::Ahead {
            d.backend.observe(&mut chain.pools, layer, &self.rows)?;
        }
        d.backend.rank(&mut chain.pools, layer, &self.rows)?;
        d.backend.end_stage(layer)
    }

    /// On demand the masses come after the selection.
    pub(super) fn observe_on_device(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        if !self.settings.ranks() || self.needs.when == When::Ahead {
            return Ok(());
        }
        d.backend.begin_stage(layer)?;
        d.backend.observe(&mut chain.pools, layer, &self.rows)?;
        d.backend.end_stage(layer)
    }

    /// Closes up accepted rows and seals full blocks, in all layers at once.
    pub(super) fn commit_on_device(&mut self, d: &mut Device<'_, B>, moves: &[TailMove]) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let (tokens, mut moves) = (self.settings.block_tokens, moves);
        loop {
            chain.seals.clear();
            chain.rest.clear();
            for (s, seq) in self.seqs.iter_mut().enumerate().filter(|(_, seq)| seq.tail >= tokens) {
                let block = self.store.grow(d.backend, s)?;
                if block >= self.shape.blocks {
                    let planned = self.shape.blocks;
                    return Err(crate::Error::Invariant(format!(
                        "block {block} beyond the planned {planned}"
                    )));
                }
                seq.tail -= tokens;
                chain.seals.push([s as u32, block as u32]);
                chain.rest.push(seq.tail as u32);
            }
            if chain.seals.is_empty() && moves.is_empty() {
                return Ok(());
            }
            d.backend.commit(&mut chain.pools, self.now, moves, &chain.seals, &chain.rest)?;
            moves = &[];
        }
    }

    /// What the device counted goes into the report.
    pub(super) fn count_device(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        if let Some(seconds) = d.backend.pass_seconds()? {
            self.report.seconds.device = seconds.total;
            self.report.seconds.fetch = seconds.fetch;
            self.report.seconds.fetch_exposed = seconds.exposed;
        }
        let (pools, heads) = (self.shape.pools(), self.shape.kv_heads);
        if self.settings.mode != Mode::Dense {
            d.backend.counts(&mut chain.pools, &mut chain.counts)?;
        }
        let fetched_bytes = if self.settings.mode.resident() { 0 } else { self.shape.block.bytes() as u64 };
        for (s, report) in self.report.seqs.iter_mut().enumerate().filter(|&(s, _)| !self.seqs[s].retired) {
            let by_head = report.heads.chunks_exact_mut(heads);
            for (layer, (stats, by_head)) in report.layers.iter_mut().zip(by_head).enumerate() {
                let own = &chain.counts[layer * pools + s * heads..][..heads];
                for (count, head) in own.iter().zip(by_head) {
                    head.wanted += u64::from(count.wanted);
                    head.hits += u64::from(count.hits);
                    stats.wanted += u64::from(count.wanted);
                    stats.hits += u64::from(count.hits);
                    stats.fetched += u64::from(count.fetched);
                    stats.dropped += u64::from(count.dropped);
                    stats.evicted += u64::from(count.evicted + count.seal_evicted);
                    stats.wasted += u64::from(count.wasted + count.seal_wasted);
                    stats.nans += u64::from(count.nans);
                    stats.attended += u64::from(count.attended);
                    stats.fetched_max = stats.fetched_max.max(count.fetched.into());
                }
                stats.bytes_h2d = stats.fetched * fetched_bytes;
                if !self.settings.ranks() {
                    // Nothing is counted where nothing is ranked: all that is resident is attended.
                    let sealed = chain.control.get(s).map_or(0, |c| c.blocks as usize);
                    let most = if self.settings.mode == Mode::Dense {
                        sealed
                    } else {
                        self.settings.budget_blocks()
                    };
                    stats.attended = (heads * sealed.min(most)) as u64;
                }
            }
        }
        Ok(())
    }

    /// The blocks of a layer's slots, `[pools][pool slots]`.
    pub(super) fn device_blocks(&mut self, backend: &mut B, layer: usize, out: &mut Vec<u32>) -> Result<()> {
        match &mut self.chain {
            Some(chain) => backend.resident(&mut chain.pools, layer, out),
            None => Ok(()),
        }
    }
}
