//! Decode attention: all rows of a step over the resident entries and the tail.
//!
//! One task a pool. Each block of K and V is widened once and used by all rows and query heads of the pool. A (row,
//! head) pair sees the blocks in the order of its entries, each as one unit: `exp` against the block's own maximum, then
//! merged into the running sum. So a result depends on the blocks' content and order alone.

mod running;
mod stream;

use super::{check_heads, need};
use crate::cuda::arg;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::ops::{Attend, AttendArgs, Memory};
use oasis_core::{Error, Result};

pub(super) use running::{Queries, Running};
pub(crate) use stream::{STREAM_SOURCES, defines};

/// One rounding to bf16, that may fall the other way, and the order of f32 sums.
pub const TOLERANCE: f64 = 1.0 / 100.0;

/// Of `block_lse`, absolute.
pub const LSE_TOLERANCE: f64 = 1e-4;

impl Attend for Cpu {
    fn attend(&mut self, args: AttendArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        check_entries(&args)?;
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

/// Most coordinates of a head in attend.cu.
const WIDEST: usize = 128;

/// Queries of a thread block, and entries of a split, in attend.cu. Splits depend on the pool's size alone, so a row's
/// result does not depend on the batch.
const QUERIES: usize = 16;
const ENTRIES: usize = 16;

/// Arguments of attend.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    q: u64,
    slots: u64,
    tail: u64,
    entries: u64,
    entry_count: u64,
    first: u64,
    committed: u64,
    ancestors: u64,
    part: u64,
    lse: u64,
    heads: u32,
    kv_heads: u32,
    slot_count: u32,
    tail_tokens: u32,
    block_tokens: u32,
    d: u32,
    splits: u32,
    split_entries: u32,
    scale: f32,
}

/// The instance of a kernel for heads of `d` coordinates.
pub(super) fn by_width(op: &str, names: [&'static str; 4], d: usize) -> Result<&'static str> {
    names.get(d.div_ceil(32) - 1).copied().ok_or_else(|| {
        Error::Unsupported(format!("{op}: heads of {d} coordinates; CUDA kernels have up to {WIDEST}"))
    })
}

impl Attend for Cuda {
    /// As on the CPU, but entries stay on the device: one beyond the slots makes its rows NaN.
    fn attend(&mut self, args: AttendArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        if stream::fits(args.shape) {
            return stream::launch(self, args);
        }
        let (g, shape, rows) = (args.geometry, args.shape, args.rows);
        let plain = ["attend_part_1", "attend_part_2", "attend_part_3", "attend_part_4"];
        let kernel = by_width("attend", plain, g.head_dim)?;
        let splits = shape.slots.div_ceil(ENTRIES) + 1;
        let places = rows.rows() * g.heads;
        let part = self.scratch(0, places * splits * (g.head_dim + 2) * size_of::<f32>())?;
        let most = rows.host_first.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        let part_args = Part {
            q: args.q.at(0),
            slots: args.slots.at(0),
            tail: args.tail.at(0),
            entries: args.entries.at(0),
            entry_count: args.entry_count.at(0),
            first: rows.first.at(0),
            committed: rows.tail.at(0),
            ancestors: rows.ancestors.at(0),
            part,
            lse: args.block_lse.map_or(0, |lse| lse.at(0)),
            heads: g.heads as u32,
            kv_heads: g.kv_heads as u32,
            slot_count: shape.slots as u32,
            tail_tokens: shape.tail_tokens as u32,
            block_tokens: shape.block.tokens as u32,
            d: g.head_dim as u32,
            splits: splits as u32,
            split_entries: ENTRIES as u32,
            scale: g.scale(),
        };
        let grid = [shape.pools(), splits, (most * g.group()).div_ceil(QUERIES)];
        // SAFETY: attend.cu's arguments, of the lengths checked above; it compares entries with the number of slots.
        unsafe { self.launch(kernel, grid, 128, &mut [arg(&part_args)])? };
        let out = args.out.at(0);
        let mut merge = [arg(&part), arg(&part_args.splits), arg(&part_args.d), arg(&out)];
        // SAFETY: as above.
        unsafe { self.launch("attend_merge", [places, 1, 1], 128, &mut merge) }
    }
}

fn check<B: Memory>(backend: &B, args: &AttendArgs<'_, B>) -> Result<()> {
    let (g, shape, rows) = (args.geometry, args.shape, args.rows);
    check_heads("attend", g, Some(shape))?;
    let n = rows.rows() * g.q_dim();
    need("attend", "q", backend.len(args.q), n)?;
    need("attend", "out", backend.len(args.out), n)?;
    need("attend", "slots", backend.len(args.slots), shape.slot_elems())?;
    need("attend", "tail", backend.len(args.tail), shape.tail_elems())?;
    need("attend", "entries", backend.len(args.entries), shape.pools() * shape.slots)?;
    need("attend", "entry_count", backend.len(args.entry_count), shape.pools())?;
    need("attend", "rows' sequences", rows.seqs(), shape.seqs)?;
    need("attend", "rows' first", rows.host_first.len(), shape.seqs + 1)?;
    if let Some(lse) = &args.block_lse {
        need("attend", "block_lse", backend.len(lse), rows.rows() * g.heads * (shape.slots + 1))?;
    }
    for seq in 0..shape.seqs {
        let count = rows.host_first[seq + 1] - rows.host_first[seq];
        need("attend", "tail tokens", shape.tail_tokens, (rows.host_tail[seq] + count) as usize)?;
        need("attend", "bits of an ancestor mask", 32, count as usize)?;
    }
    Ok(())
}

/// What a pool attends must be there.
fn check_entries(args: &AttendArgs<'_, Cpu>) -> Result<()> {
    let shape = args.shape;
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
    Ok(())
}

#[cfg(test)]
mod tests;
