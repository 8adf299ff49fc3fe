//! Block summaries: encoded by the policy, rounded by its storage.

use super::need;
use crate::Cpu;
use crate::simd::Widen;
use crate::team::Parts;
use oasis_core::ops::{Summarise, SummariseArgs};
use oasis_core::policy::Keys;
use oasis_core::{Error, Result, storage};

/// The same policy code on the same keys.
pub const TOLERANCE: f64 = 0.0;

impl Summarise for Cpu {
    fn summarise(&mut self, args: SummariseArgs<'_, Self>) -> Result<()> {
        let (shape, seq) = (args.shape, args.seq);
        let form = args.summary.shape(shape.block);
        let fit_len = args.summary.fit_len(shape.block);
        let bytes = form.bytes();
        form.storage.check(form.dim, form.rounding)?;
        need("summarise", "fit", args.fit.len(), shape.pools() * fit_len)?;
        need("summarise", "out", args.out.len(), shape.pools() * shape.blocks * bytes)?;
        let sealed = if seq < args.store.seqs().min(shape.seqs) { args.store.blocks(seq) } else { 0 };
        if args.blocks.end > sealed.min(shape.blocks) {
            return Err(Error::Invariant(format!(
                "summarise: blocks {:?} of sequence {seq}; {sealed} are sealed, {} have room",
                args.blocks, shape.blocks
            )));
        }
        let count = args.blocks.len();
        let to = Parts::new(&mut args.out[..]);
        let work = 8 * shape.kv_heads * count * shape.block.half();
        self.team.run(shape.kv_heads * count, work, |worker, task| {
            let (head, block) = (task / count, args.blocks.start + task % count);
            let pool = seq * shape.kv_heads + head;
            let mut scratch = self.workers.get(worker);
            let [keys, vectors] = scratch.floats([shape.block.half(), form.vectors * form.dim]);
            let chunk = args.store.chunk(args.layer, seq, block, head);
            self.level.run(Widen { from: &chunk[..shape.block.half()], to: keys });
            let keys = Keys { data: keys, tokens: shape.block.tokens, head_dim: shape.block.head_dim };
            args.summary.encode(&args.fit[pool * fit_len..][..fit_len], keys, vectors);
            if bytes == 0 {
                return;
            }
            // SAFETY: the bytes of (pool, block) are this task's.
            let stored = unsafe { to.slice((pool * shape.blocks + block) * bytes, bytes) };
            let each = stored.chunks_exact_mut(bytes / form.vectors);
            for (vector, stored) in vectors.chunks_exact(form.dim).zip(each) {
                storage::encode(form.storage, form.rounding, vector, stored);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::ops::{CacheShape, Memory};
    use oasis_core::policy::{Reduce, Summary, SummaryShape};
    use oasis_core::storage::{Rounding, Storage};
    use oasis_core::store::{Extent, ExtentLayout, HostStore};
    use std::sync::Arc;

    /// The first and the last key, minus the fitted offset.
    struct Ends;

    impl Summary for Ends {
        fn shape(&self, block: BlockShape) -> SummaryShape {
            SummaryShape {
                vectors: 2,
                dim: block.head_dim,
                reduce: Reduce::Max,
                storage: Storage::F32,
                rounding: Rounding::Nearest,
            }
        }

        fn fit_len(&self, _: BlockShape) -> usize {
            1
        }

        fn encode(&self, fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
            let d = keys.head_dim;
            let ends = keys.data[..d].iter().chain(&keys.data[(keys.tokens - 1) * d..]);
            out.iter_mut().zip(ends).for_each(|(out, key)| *out = key - fit[0]);
        }

        fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
            out.copy_from_slice(query);
            0.0
        }
    }

    #[test]
    fn keys_of_the_store_become_bytes_of_their_block() {
        let mut cpu = Cpu::new(2);
        let mut random = Random::new(23);
        let block = BlockShape { tokens: 4, head_dim: 3 };
        let shape = CacheShape { seqs: 2, kv_heads: 2, slots: 3, tail_tokens: 5, blocks: 9, block };
        let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 4, block };
        let mut prompt = || {
            let mut extent = Extent::new(&cpu, layout).unwrap();
            extent.data.copy_from_slice(&random.bf16(layout.elems()));
            Arc::new(extent)
        };
        let store = HostStore::new(vec![prompt(), prompt()], 2);
        let fit = cpu.upload(&[0.0_f32, 1.0, 2.0, 3.0]).unwrap();
        let mut out = cpu.upload(&[0xff_u8; 4 * 9 * 24]).unwrap();
        let mut args = |blocks: std::ops::Range<usize>, cpu: &mut Cpu| {
            let (summary, out) = (&Ends, &mut out);
            cpu.summarise(SummariseArgs {
                shape: &shape,
                summary,
                store: &store,
                layer: 1,
                seq: 1,
                blocks,
                fit: &fit,
                out,
            })
        };
        args(1..4, &mut cpu).unwrap();
        assert!(args(3..5, &mut cpu).is_err());
        for pool in 0..4 {
            for b in 0..9 {
                let stored = &out[(pool * 9 + b) * 24..][..24];
                if pool < 2 || !(1..4).contains(&b) {
                    assert!(stored.iter().all(|&x| x == 0xff));
                    continue;
                }
                let chunk = store.chunk(1, 1, b, pool - 2);
                for (i, value) in stored.chunks(4).enumerate() {
                    let key = chunk[if i < 3 { i } else { 9 + i - 3 }].to_f32();
                    assert_eq!(f32::from_le_bytes(value.try_into().unwrap()), key - pool as f32);
                }
            }
        }
    }
}
