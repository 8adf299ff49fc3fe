//! Writes to the tail: appended rows, and the moves that follow a verification or a seal.

use super::need;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::ops::{CacheShape, RowTable, Tail, TailMove};
use oasis_core::{Error, Result};

/// Copies are exact.
pub const TOLERANCE: f64 = 0.0;

impl Tail for Cpu {
    fn append(
        &mut self,
        shape: &CacheShape,
        rows: &RowTable<Self>,
        k: &CpuBuf<bf16>,
        v: &CpuBuf<bf16>,
        tail: &mut CpuBuf<bf16>,
    ) -> Result<()> {
        let d = shape.block.head_dim;
        let width = shape.kv_heads * d;
        need("append", "k", k.len(), rows.rows() * width)?;
        need("append", "v", v.len(), rows.rows() * width)?;
        need("append", "tail", tail.len(), shape.tail_elems())?;
        let half = shape.tail_tokens * d;
        for (r, &seq) in rows.host_seq.iter().enumerate() {
            let seq = seq as usize;
            let i = r - rows.host_first[seq] as usize;
            let at = rows.host_tail[seq] as usize + i;
            if at >= shape.tail_tokens || seq >= shape.seqs {
                return Err(Error::Invariant(format!(
                    "append: row {i} of sequence {seq} goes to token {at} of a tail of {}",
                    shape.tail_tokens
                )));
            }
            for head in 0..shape.kv_heads {
                let from = r * width + head * d;
                let to = (seq * shape.kv_heads + head) * 2 * half + at * d;
                tail[to..to + d].copy_from_slice(&k[from..from + d]);
                tail[to + half..to + half + d].copy_from_slice(&v[from..from + d]);
            }
        }
        Ok(())
    }

    fn compact(&mut self, shape: &CacheShape, moves: &[TailMove], tail: &mut CpuBuf<bf16>) -> Result<()> {
        let d = shape.block.head_dim;
        need("compact", "tail", tail.len(), shape.tail_elems())?;
        check_moves(shape, moves)?;
        let half = shape.tail_tokens * d;
        for &[seq, from, to] in moves {
            let [seq, from, to] = [seq, from, to].map(|x| x as usize);
            for head in 0..shape.kv_heads {
                let k = (seq * shape.kv_heads + head) * 2 * half;
                for part in [k, k + half] {
                    tail.copy_within(part + from * d..part + (from + 1) * d, part + to * d);
                }
            }
        }
        Ok(())
    }
}

impl Tail for Cuda {
    fn append(
        &mut self,
        shape: &CacheShape,
        rows: &RowTable<Self>,
        k: &CudaBuf<bf16>,
        v: &CudaBuf<bf16>,
        tail: &mut CudaBuf<bf16>,
    ) -> Result<()> {
        let width = shape.kv_heads * shape.block.head_dim;
        need("append", "k", k.len(), rows.rows() * width)?;
        need("append", "v", v.len(), rows.rows() * width)?;
        need("append", "tail", tail.len(), shape.tail_elems())?;
        need("append", "sequences", shape.seqs, rows.seqs())?;
        for (seq, &committed) in rows.host_tail.iter().enumerate() {
            let count = rows.host_first[seq + 1] - rows.host_first[seq];
            need("append", "tail tokens", shape.tail_tokens, (committed + count) as usize)?;
        }
        let (k, v, to) = (k.at(0), v.at(0), tail.at(0));
        let (seq, first, committed) = (rows.seq.at(0), rows.first.at(0), rows.tail.at(0));
        let [heads, tokens, d] = sizes(shape);
        let mut args = [
            arg(&k),
            arg(&v),
            arg(&seq),
            arg(&first),
            arg(&committed),
            arg(&heads),
            arg(&tokens),
            arg(&d),
            arg(&to),
        ];
        // SAFETY: tail.cu's arguments, of the lengths checked above; the table's device copies equal its host copies. It waits
        // for its predecessor before it reads more than the table, which is written before the pass.
        unsafe { self.launch_early("tail_append", [rows.rows(), shape.kv_heads, 1], 128, &mut args) }
    }

    fn compact(&mut self, shape: &CacheShape, moves: &[TailMove], tail: &mut CudaBuf<bf16>) -> Result<()> {
        need("compact", "tail", tail.len(), shape.tail_elems())?;
        check_moves(shape, moves)?;
        let to = tail.at(0);
        let [heads, tokens, d] = sizes(shape);
        // In parts, in their order, that the staging ring holds.
        for part in moves.chunks(1 << 16) {
            let Some(list) = self.staging.put(&self.lanes, bytemuck::cast_slice(part))? else { continue };
            let count = part.len() as u32;
            let mut args = [arg(&list), arg(&count), arg(&heads), arg(&tokens), arg(&d), arg(&to)];
            // SAFETY: tail.cu's arguments; all moves stay within the tail (checked above).
            unsafe { self.launch("tail_compact", [shape.kv_heads, 2, 1], 128, &mut args)? };
        }
        Ok(())
    }
}

fn sizes(shape: &CacheShape) -> [u32; 3] {
    [shape.kv_heads, shape.tail_tokens, shape.block.head_dim].map(|x| x as u32)
}

fn check_moves(shape: &CacheShape, moves: &[TailMove]) -> Result<()> {
    for &[seq, from, to] in moves {
        let [seq, from, to] = [seq, from, to].map(|x| x as usize);
        if seq >= shape.seqs || from.max(to) >= shape.tail_tokens {
            return Err(Error::Invariant(format!(
                "compact: token {from} to {to} of sequence {seq}; {} sequences, tails of {}",
                shape.seqs, shape.tail_tokens
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::ops::Memory;

    /// A table with `counts[s]` rows of sequence s, `tails[s]` tokens in its tail, chains as ancestors.
    pub(crate) fn table(cpu: &mut Cpu, counts: &[usize], tails: &[u32]) -> RowTable<Cpu> {
        let mut first = vec![0];
        let (mut seq, mut ancestors) = (vec![], vec![]);
        for (s, &n) in counts.iter().enumerate() {
            seq.extend(vec![s as u32; n]);
            ancestors.extend((0..n).map(|i| (1u32 << (i + 1)) - 1));
            first.push(seq.len() as u32);
        }
        let zeros = vec![0_u32; seq.len()];
        RowTable {
            token: cpu.upload(&zeros).unwrap(),
            position: cpu.upload(&zeros).unwrap(),
            seq: cpu.upload(&seq).unwrap(),
            first: cpu.upload(&first).unwrap(),
            tail: cpu.upload(tails).unwrap(),
            ancestors: cpu.upload(&ancestors).unwrap(),
            host_seq: seq,
            host_first: first,
            host_tail: tails.to_vec(),
            host_ancestors: ancestors,
        }
    }

    #[test]
    fn rows_land_behind_the_committed_tokens_and_moves_follow_each_other() {
        let mut cpu = Cpu::new(1);
        let mut random = Random::new(5);
        let block = BlockShape { tokens: 4, head_dim: 3 };
        let shape = CacheShape { seqs: 2, kv_heads: 2, slots: 1, tail_tokens: 6, blocks: 1, block };
        let rows = table(&mut cpu, &[1, 2], &[5, 2]);
        let (k, v) = (random.bf16(3 * 6), random.bf16(3 * 6));
        let before = random.bf16(shape.tail_elems());
        let mut want = before.clone();
        let at = |seq: usize, head: usize, v: usize, t: usize| ((seq * 2 + head) * 2 + v) * 18 + t * 3;
        for (r, (seq, t)) in [(0, 5), (1, 2), (1, 3)].into_iter().enumerate() {
            for head in 0..2 {
                for i in 0..3 {
                    want[at(seq, head, 0, t) + i] = k[r * 6 + head * 3 + i];
                    want[at(seq, head, 1, t) + i] = v[r * 6 + head * 3 + i];
                }
            }
        }
        let mut tail = cpu.upload(&before).unwrap();
        let (k, v) = (cpu.upload(&k).unwrap(), cpu.upload(&v).unwrap());
        cpu.append(&shape, &rows, &k, &v, &mut tail).unwrap();
        assert_eq!(tail[..], want[..]);

        cpu.compact(&shape, &[[1, 3, 2], [1, 2, 0]], &mut tail).unwrap();
        for head in 0..2 {
            for half in 0..2 {
                for i in 0..3 {
                    let moved = want[at(1, head, half, 3) + i];
                    want[at(1, head, half, 2) + i] = moved;
                    want[at(1, head, half, 0) + i] = moved;
                }
            }
        }
        assert_eq!(tail[..], want[..]);

        let full = table(&mut cpu, &[1, 1], &[6, 0]);
        assert!(cpu.append(&shape, &full, &k, &v, &mut tail).is_err());
        assert!(cpu.compact(&shape, &[[0, 6, 0]], &mut tail).is_err());
    }
}
