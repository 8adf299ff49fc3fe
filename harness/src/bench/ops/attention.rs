//! Attention: over a budget, over everything, and of a prompt.

use super::{Bench, Work};
use anyhow::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::ops::{AttendArgs, CacheShape, PrefillArgs};
use oasis_kernels::Measure;

impl<B: Measure> Bench<'_, B> {
    pub(super) fn shape(&self, slots: usize) -> CacheShape {
        let g = &self.model.config.geometry;
        CacheShape {
            seqs: self.batch,
            kv_heads: g.kv_heads,
            slots,
            tail_tokens: self.args.block + 1 + self.args.draft_rows,
            blocks: self.args.context / self.args.block,
            block: BlockShape { tokens: self.args.block, head_dim: g.head_dim },
        }
    }

    pub(super) fn attention(&mut self) -> Result<()> {
        let all = self.args.context / self.args.block;
        let resident = (self.args.budget / self.args.block).min(all);
        self.attend("attend", resident)?;
        if all > resident {
            self.attend("attend", all)?;
        }
        self.prefill()
    }

    fn attend(&mut self, op: &'static str, slots: usize) -> Result<()> {
        let g = &self.model.config.geometry;
        let (shape, rows) = (self.shape(slots), self.rows);
        let bytes = 2 * (shape.slot_elems() + shape.pools() * self.args.block * g.head_dim);
        let mut pools = Vec::new();
        for _ in 0..self.copies(bytes) {
            pools.push(self.random(shape.slot_elems())?);
        }
        let tail = self.random(shape.tail_elems())?;
        let entries: Vec<u32> = (0..shape.pools() * slots).map(|i| (i % slots) as u32).collect();
        let entries = self.backend.upload(&entries)?;
        let count = self.backend.upload(&vec![slots as u32; shape.pools()])?;
        let (table, q) = (self.table()?, self.random(rows * g.q_dim())?);
        let mut out = self.random(rows * g.q_dim())?;
        let mut lse = self.random_f32(rows * g.heads * (slots + 1))?;
        let flops = 4 * rows * g.q_dim() * slots * self.args.block;
        for mass in [false, true] {
            let what = if mass { ", with masses" } else { "" };
            let size = format!("{} × {} tokens, {rows} rows{what}", self.batch, slots * self.args.block);
            let bytes = bytes + if mass { 4 * rows * g.heads * slots } else { 0 };
            self.add(op, size, Work { bytes, flops, record: true, fetched: 0 }, |b, i| {
                b.attend(AttendArgs {
                    geometry: g,
                    shape: &shape,
                    rows: &table,
                    q: &q,
                    slots: &pools[i % pools.len()],
                    entries: &entries,
                    entry_count: &count,
                    tail: &tail,
                    out: &mut out,
                    block_lse: mass.then_some(&mut lse),
                })
            })?;
        }
        Ok(())
    }

    /// The last chunk of a prompt.
    fn prefill(&mut self) -> Result<()> {
        let g = &self.model.config.geometry;
        let rows = 512.min(self.args.context);
        let first = self.args.context - rows;
        let q = self.random(rows * g.q_dim())?;
        let (k, v) =
            (self.random(self.args.context * g.kv_dim())?, self.random(self.args.context * g.kv_dim())?);
        let mut out = self.random(rows * g.q_dim())?;
        // Row r sees first + r + 1 positions.
        let flops = 4 * g.q_dim() * (rows * first + rows * (rows + 1) / 2);
        let work = Work { bytes: 4 * self.args.context * g.kv_dim(), flops, record: true, fetched: 0 };
        self.add("prefill_attend", format!("{rows} rows at {first}"), work, |b, _| {
            b.prefill_attend(PrefillArgs { geometry: g, q: &q, k: &k, v: &v, first, rows, out: &mut out })
        })
    }
}
