//! Full attention over the host store: the truth that an audit compares with.

use super::attend::{Queries, Running};
use super::{check_heads, need};
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::Result;
use oasis_core::ops::{ExactArgs, ExactAttend, Memory};

/// Order of f32 sums.
pub const TOLERANCE: f64 = 1e-4;

impl ExactAttend for Cpu {
    fn exact_attend(&mut self, args: ExactArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let (q, tail) = (args.q, args.tail);
        on_host(self, args, q, tail)
    }
}

impl ExactAttend for Cuda {
    /// On the host, where the store is: an audit, not a part of decoding.
    fn exact_attend(&mut self, args: ExactArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let q = self.fetch_host(args.q, args.rows.rows() * args.geometry.q_dim())?;
        let tail = self.fetch_host(args.tail, args.shape.tail_elems())?;
        on_host(&self.host, args, &q, &tail)
    }
}

/// With the threads of `cpu`; q `[rows][heads][head_dim]`, the tail as [`oasis_core::ops::CacheShape::tail_elems`] says.
fn on_host<B: Memory>(cpu: &Cpu, args: ExactArgs<'_, B>, q: &[bf16], tail: &[bf16]) -> Result<()> {
    let (g, shape, rows) = (args.geometry, args.shape, args.rows);
    let (d, columns) = (g.head_dim, shape.blocks + 1);
    let (store, layer) = (args.store, args.layer);
    let sealed = |seq: usize| store.blocks(seq);
    let work = (0..shape.seqs).map(|s| sealed(s) + 2).sum::<usize>() * shape.block.chunk() * g.heads;
    let out = Parts::new(&mut args.out[..shape.seqs * g.q_dim()]);
    let lse = Parts::new(&mut args.block_lse[..shape.seqs * g.heads * columns]);
    cpu.team.run(shape.pools(), work, |worker, pool| {
        let (seq, head) = (pool / shape.kv_heads, pool % shape.kv_heads);
        let first = rows.host_first[seq] as usize;
        if rows.host_first[seq + 1] as usize == first {
            return;
        }
        let queries = Queries { q, first, rows: 1, head, group: g.group(), heads: g.heads };
        let place = |i: usize| seq * g.heads + head * g.group() + i;
        let mut scratch = cpu.workers.get(worker);
        let mut run = Running::new(&mut scratch, queries, d, shape.tail_tokens.max(shape.block.tokens));
        let put = |column: usize, run: &Running<'_>| {
            for (i, value) in run.block_lse.iter().enumerate() {
                // SAFETY: the heads of this pool are this task's.
                unsafe { lse.slice(place(i) * columns + column, 1)[0] = *value };
            }
        };
        for block in 0..sealed(seq) {
            let chunk = store.chunk(layer, seq, block, head);
            run.load(cpu.level, chunk, shape.block.half(), shape.block.tokens, d);
            run.whole_block(cpu.level, shape.block.tokens);
            put(block, &run);
        }
        let half = shape.tail_tokens * d;
        let tokens = rows.host_tail[seq] as usize + 1;
        run.load(cpu.level, &tail[pool * 2 * half..][..2 * half], half, tokens, d);
        run.block(cpu.level, tokens, |_, t| t < tokens);
        put(shape.blocks, &run);
        for i in 0..g.group() {
            // SAFETY: the heads of this pool are this task's.
            run.finish_exact(i, unsafe { out.slice(place(i) * d, d) });
        }
    });
    Ok(())
}

fn check<B: Memory>(backend: &B, args: &ExactArgs<'_, B>) -> Result<()> {
    let (g, shape, rows) = (args.geometry, args.shape, args.rows);
    check_heads("exact_attend", g, Some(shape))?;
    need("exact_attend", "q", backend.len(args.q), rows.rows() * g.q_dim())?;
    need("exact_attend", "tail", backend.len(args.tail), shape.tail_elems())?;
    need("exact_attend", "rows' sequences", rows.seqs().min(args.store.seqs()), shape.seqs)?;
    need("exact_attend", "rows' first", rows.host_first.len(), shape.seqs + 1)?;
    need("exact_attend", "block_lse", args.block_lse.len(), shape.seqs * g.heads * (shape.blocks + 1))?;
    need("exact_attend", "out", args.out.len(), shape.seqs * g.q_dim())?;
    for seq in 0..shape.seqs {
        need("exact_attend", "blocks of a pool", shape.blocks, args.store.blocks(seq))?;
        need("exact_attend", "tail tokens", shape.tail_tokens, rows.host_tail[seq] as usize + 1)?;
    }
    Ok(())
}
