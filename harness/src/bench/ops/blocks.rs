//! Ops on blocks: the tail, scores, fetches.

use super::{Bench, Work};
use anyhow::Result;
use oasis_core::ops::{Move, Noise, RankQuery, ScoreArgs};
use oasis_core::policy::Summary;
use oasis_core::settings::Group;
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_kernels::Measure;
use std::sync::Arc;

impl<B: Measure> Bench<'_, B> {
    pub(super) fn blocks(&mut self, summary: &dyn Summary) -> Result<()> {
        self.append()?;
        self.score(summary)?;
        self.fetch()
    }

    fn append(&mut self) -> Result<()> {
        let g = &self.model.config.geometry;
        let shape = self.shape(1);
        let (table, rows) = (self.table()?, self.rows);
        let (k, v) = (self.random(rows * g.kv_dim())?, self.random(rows * g.kv_dim())?);
        let mut tail = self.random(shape.tail_elems())?;
        let work = Work { bytes: 4 * rows * g.kv_dim(), record: true, ..Work::default() };
        self.add("append", format!("{rows} rows"), work, |b, _| b.append(&shape, &table, &k, &v, &mut tail))
    }

    /// Every block but the first, by the newest token's query. Summaries are zeros: any content takes as long.
    fn score(&mut self, summary: &dyn Summary) -> Result<()> {
        let g = &self.model.config.geometry;
        let shape = self.shape(1);
        let form = summary.shape(shape.block);
        let each = shape.pools() * shape.blocks * form.bytes();
        let mut stored = Vec::new();
        for _ in 0..self.copies(each) {
            stored.push(self.backend.alloc::<u8>(each)?);
        }
        let fit = self.random_f32(shape.pools() * summary.fit_len(shape.block))?;
        let (table, q) = (self.table()?, self.random(self.rows * g.q_dim())?);
        let mut out = self.backend.alloc::<f32>(shape.pools() * shape.blocks)?;
        let ranking = vec![if self.args.draft_rows > 0 { 2 } else { 1 }; self.batch];
        let candidates = vec![(1, shape.blocks as u32); self.batch];
        let group = summary.group();
        let softmax = if group == Group::SoftmaxSum { ", softmax-sum" } else { "" };
        let size =
            format!("{} × {} tokens, {} B a block{softmax}", self.batch, self.args.context, form.bytes());
        self.add("score", size, Work { bytes: each, ..Work::default() }, |b, i| {
            b.score(ScoreArgs {
                geometry: g,
                shape: &shape,
                summary,
                summary_shape: &form,
                summaries: &stored[i % stored.len()],
                fit: &fit,
                rows: &table,
                q: &q,
                query: RankQuery::Rows(&ranking),
                candidates: &candidates,
                group,
                resident_lse: None,
                out: &mut out,
            })
        })
    }

    /// The cap of every pool, of blocks that lie apart.
    fn fetch(&mut self) -> Result<()> {
        let g = &self.model.config.geometry;
        let shape = self.shape(self.args.cap.max(1));
        let layout =
            ExtentLayout { layers: 1, kv_heads: g.kv_heads, blocks: shape.blocks, block: shape.block };
        let mut prompts = Vec::new();
        for s in 0..self.batch as u64 {
            let mut extent = Extent::new(self.backend, layout)?;
            self.backend.fill_host(Noise::normal(self.args.seed + s), &mut extent.data)?;
            prompts.push(Arc::new(extent));
        }
        let store = HostStore::new(prompts, 1);
        let mut slots = self.backend.alloc(shape.slot_elems())?;
        let (blocks, cap) = (shape.blocks as u32, self.args.cap.min(shape.blocks) as u32);
        let of_pool = |pool: u32| {
            (0..cap).map(move |i| [pool, (pool * 37 + i * (blocks / cap.max(1)).max(1)) % blocks, i])
        };
        let moves: Vec<Move> = (0..shape.pools() as u32).flat_map(of_pool).collect();
        let bytes = moves.len() * shape.block.bytes();
        let size = format!("{} chunks of {} B", moves.len(), shape.block.bytes());
        self.add("fetch", size, Work { fetched: bytes, ..Work::default() }, |b, _| {
            b.fetch(&shape, 0, &store, &moves, &mut slots).map(|_| ())
        })
    }
}
