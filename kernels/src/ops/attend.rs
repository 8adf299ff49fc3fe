//! Decode attention: all rows of a step over the resident entries and the tail.
//!
//! One task a pool. Each block of K and V is widened once and used by all rows and query heads of the pool. A (row,
//! head) pair sees the blocks in the order of its entries, each as one unit: `exp` against the block's own maximum, then
//! merged into the running sum. So a result depends on the blocks' content and order alone.

mod running;

use super::{check_heads, need};
use crate::Cpu;
use crate::team::Parts;
use oasis_core::ops::{Attend, AttendArgs};
use oasis_core::{Error, Result};

pub(super) use running::{Queries, Running};

/// One rounding to bf16, that may fall the other way, and the order of f32 sums.
pub const TOLERANCE: f64 = 1.0 / 100.0;

/// Of `block_lse`, absolute.
pub const LSE_TOLERANCE: f64 = 1e-4;

impl Attend for Cpu {
    fn attend(&mut self, args: AttendArgs<'_, Self>) -> Result<()> {
        check(&args)?;
        let (g, shape, rows) = (args.geometry, args.shape, args.rows);
        let (q_dim, columns) = (g.q_dim(), shape.slots + 1);
        let entries = &args.entries[..shape.pools() * shape.slots];
        let visible: usize = args.entry_count[..shape.pools()].iter().map(|&n| n as usize + 2).sum();
        let work = visible * shape.block.chunk() * g.group();
        let out = Parts::new(&mut args.out[..rows.rows() * q_dim]);
        let lse_len = rows.rows() * g.heads * columns;
        let lse = args.block_lse.map(|lse| Parts::new(&mut lse[..lse_len]));
        self.team.run(shape.pools(), work, |worker, pool| {
            let (seq, head) = (pool / shape.kv_heads, pool % shape.kv_heads);
            let from = rows.host_first[seq] as usize;
            let count = rows.host_first[seq + 1] as usize - from;
            let queries =
                Queries { q: args.q, first: from, rows: count, head, group: g.group(), heads: g.heads };
            let mut scratch = self.workers.get(worker);
            let mut run =
                Running::new(&mut scratch, queries, g.head_dim, shape.tail_tokens.max(shape.block.tokens));
            let put = |column: usize, run: &Running<'_>| {
                let Some(lse) = &lse else { return };
                for (i, value) in run.block_lse.iter().enumerate() {
                    // SAFETY: the rows and heads of this pool are this task's.
                    unsafe { lse.slice(queries.place(i) * columns + column, 1)[0] = *value };
                }
            };
            let half = shape.block.half();
            let chosen = &entries[pool * shape.slots..][..args.entry_count[pool] as usize];
            for (i, &slot) in chosen.iter().enumerate() {
                let chunk = &args.slots[(pool * shape.slots + slot as usize) * 2 * half..][..2 * half];
                run.load(self.level, chunk, half, shape.block.tokens, g.head_dim);
                run.whole_block(self.level, shape.block.tokens);
                put(i, &run);
            }
            let half = shape.tail_tokens * g.head_dim;
            let committed = rows.host_tail[seq] as usize;
            let tail = &args.tail[pool * 2 * half..][..2 * half];
            run.load(self.level, tail, half, committed + count, g.head_dim);
            let ancestors = &rows.host_ancestors[from..from + count];
            run.block(self.level, committed + count, |row, token| {
                token < committed || ancestors[row] >> (token - committed) & 1 == 1
            });
            put(shape.slots, &run);
            for i in 0..count * g.group() {
                // SAFETY: the rows and heads of this pool are this task's.
                let to = unsafe { out.slice(queries.place(i) * g.head_dim, g.head_dim) };
                run.finish(self.level, i, to);
            }
        });
        Ok(())
    }
}

fn check(args: &AttendArgs<'_, Cpu>) -> Result<()> {
    let (g, shape, rows) = (args.geometry, args.shape, args.rows);
    check_heads("attend", g, Some(shape))?;
    let n = rows.rows() * g.q_dim();
    need("attend", "q", args.q.len(), n)?;
    need("attend", "out", args.out.len(), n)?;
    need("attend", "slots", args.slots.len(), shape.slot_elems())?;
    need("attend", "tail", args.tail.len(), shape.tail_elems())?;
    need("attend", "entries", args.entries.len(), shape.pools() * shape.slots)?;
    need("attend", "entry_count", args.entry_count.len(), shape.pools())?;
    need("attend", "rows' sequences", rows.seqs(), shape.seqs)?;
    need("attend", "rows' first", rows.host_first.len(), shape.seqs + 1)?;
    if let Some(lse) = &args.block_lse {
        need("attend", "block_lse", lse.len(), rows.rows() * g.heads * (shape.slots + 1))?;
    }
    for (pool, &count) in args.entry_count[..shape.pools()].iter().enumerate() {
        need("attend", "slots of a pool", shape.slots, count as usize)?;
        let entries = &args.entries[pool * shape.slots..][..count as usize];
        if let Some(slot) = entries.iter().find(|&&s| s as usize >= shape.slots) {
            return Err(Error::Invariant(format!(
                "attend: entry {slot} of pool {pool}, which has {}",
                shape.slots
            )));
        }
    }
    for seq in 0..shape.seqs {
        let count = rows.host_first[seq + 1] - rows.host_first[seq];
        need("attend", "tail tokens", shape.tail_tokens, (rows.host_tail[seq] + count) as usize)?;
        need("attend", "bits of an ancestor mask", 32, count as usize)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
