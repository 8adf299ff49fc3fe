//! Block summaries: encoded by the policy, rounded by its storage.

use super::need;
use super::score::{ENCODE_SOURCES, score_defines};
use crate::cuda::{Shape, arg};
use crate::simd::Widen;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::ops::{CacheShape, Memory, Summarise, SummariseArgs};
use oasis_core::policy::{DeviceSummary, Keys, Summary};
use oasis_core::store::HostStore;
use oasis_core::{Error, Result, storage};
use std::ops::Range;

/// The same policy code on the same keys.
pub const TOLERANCE: f64 = 0.0;

impl Summarise for Cpu {
    fn summarise(&mut self, args: SummariseArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let bytes = args.summary.shape(args.shape.block).bytes();
        let (blocks, pool) = (args.blocks.clone(), args.seq * args.shape.kv_heads);
        let work = Work::of(args.shape, args.summary, args.store, (args.layer, args.seq, args.blocks));
        let to = Parts::new(&mut args.out[..]);
        on_host(self, &work, args.fit, |head, block| {
            let at = ((pool + head) * args.shape.blocks + blocks.start + block) * bytes;
            // SAFETY: the bytes of (head, block) are this task's.
            unsafe { to.slice(at, bytes) }
        });
        Ok(())
    }
}

impl Summarise for Cuda {
    /// On the device, from the host store's memory, where the policy has a twin; else on the host, and bytes go up.
    fn summarise(&mut self, args: SummariseArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        if args.summary.shape(args.shape.block).bytes() * args.blocks.len() == 0 {
            return Ok(());
        }
        match args.summary.device(args.shape.block) {
            Some(twin) if shared_bytes(&args) <= SHARED => self.summarise_here(&args, &twin),
            _ => self.summarise_on_host(args),
        }
    }
}

/// Most shared memory of a thread block: what every device with bf16 tensor cores has.
const SHARED: usize = 96 << 10;

/// Bytes of a block's keys and vectors, in f32.
fn shared_bytes<B: Memory>(args: &SummariseArgs<'_, B>) -> usize {
    let (block, form) = (args.shape.block, args.summary.shape(args.shape.block));
    size_of::<f32>() * (block.half() + form.vectors * form.dim)
}

impl Cuda {
    fn summarise_here(&mut self, args: &SummariseArgs<'_, Self>, twin: &DeviceSummary) -> Result<()> {
        let (shape, summary) = (args.shape, args.summary);
        let form = summary.shape(shape.block);
        let defines = score_defines(summary, &form, shape.block, 1);
        let module = self.gpu.module(&ENCODE_SOURCES, &twin.code, &defines, &["summarise"])?;
        let pool = args.seq * shape.kv_heads;
        let fit = args.fit.at(pool * summary.fit_len(shape.block));
        let mut start = 0;
        for extent in args.store.extents(args.seq) {
            let layout = &extent.layout;
            let here = args.blocks.start.max(start)..args.blocks.end.min(start + layout.blocks);
            let first = here.start - start;
            start += layout.blocks;
            if here.is_empty() {
                continue;
            }
            let chunk = shape.block.chunk() as u64;
            let chunks = extent.data.at(layout.offset(args.layer, first, 0));
            let block_stride = shape.kv_heads as u64 * chunk;
            let blocks = shape.blocks as u32;
            let out = args.out.at((pool * shape.blocks + here.start) * form.bytes());
            let mut list =
                [arg(&chunks), arg(&block_stride), arg(&chunk), arg(&fit), arg(&blocks), arg(&out)];
            let launch = Shape {
                grid: [here.len(), shape.kv_heads, 1],
                threads: 128,
                shared: shared_bytes(args) as u32,
                early: false,
            };
            // SAFETY: summarise.cu's arguments: the blocks lie in the extent, and `check` has seen `fit` and `out`.
            unsafe { self.launch_as(module.kernel("summarise")?, "summarise", launch, &mut list)? };
        }
        Ok(())
    }

    fn summarise_on_host(&mut self, args: SummariseArgs<'_, Self>) -> Result<()> {
        let shape = args.shape;
        let bytes = args.summary.shape(shape.block).bytes();
        let count = args.blocks.len();
        let fit_len = shape.pools() * args.summary.fit_len(shape.block);
        let fit = self.fetch_host(args.fit, fit_len)?;
        let mut stored = vec![0_u8; shape.kv_heads * count * bytes];
        let to = Parts::new(&mut stored);
        let work =
            Work::of(args.shape, args.summary, args.store, (args.layer, args.seq, args.blocks.clone()));
        on_host(&self.host, &work, &fit, |head, block| {
            // SAFETY: the bytes of (head, block) are this task's.
            unsafe { to.slice((head * count + block) * bytes, bytes) }
        });
        for (head, stored) in stored.chunks_exact(count * bytes).enumerate() {
            let at = (args.seq * shape.kv_heads + head) * shape.blocks + args.blocks.start;
            self.write(args.out, at * bytes, stored)?;
        }
        Ok(())
    }
}

fn check<B: Memory>(backend: &B, args: &SummariseArgs<'_, B>) -> Result<()> {
    let (shape, seq) = (args.shape, args.seq);
    let form = args.summary.shape(shape.block);
    form.storage.check(form.dim, form.rounding)?;
    let fit_len = args.summary.fit_len(shape.block);
    need("summarise", "fit", backend.len(args.fit), shape.pools() * fit_len)?;
    need("summarise", "out", backend.len(args.out), shape.pools() * shape.blocks * form.bytes())?;
    let sealed = if seq < args.store.seqs().min(shape.seqs) { args.store.blocks(seq) } else { 0 };
    if args.blocks.end > sealed.min(shape.blocks) {
        return Err(Error::Invariant(format!(
            "summarise: blocks {:?} of sequence {seq}; {sealed} are sealed, {} have room",
            args.blocks, shape.blocks
        )));
    }
    Ok(())
}

/// What is to be encoded.
struct Work<'a, B: Memory> {
    shape: &'a CacheShape,
    summary: &'a dyn Summary,
    store: &'a HostStore<B>,
    layer: usize,
    seq: usize,
    blocks: Range<usize>,
}

impl<'a, B: Memory> Work<'a, B> {
    fn of(
        shape: &'a CacheShape,
        summary: &'a dyn Summary,
        store: &'a HostStore<B>,
        (layer, seq, blocks): (usize, usize, Range<usize>),
    ) -> Self {
        Self { shape, summary, store, layer, seq, blocks }
    }
}

/// Encodes all blocks with the threads of `cpu`; `place(head, i)` is where the i-th block's bytes go.
fn on_host<'a, B: Memory>(
    cpu: &Cpu,
    work: &Work<'_, B>,
    fit: &[f32],
    place: impl Fn(usize, usize) -> &'a mut [u8] + Sync,
) {
    let &Work { shape, summary, store, layer, seq, ref blocks } = work;
    let form = summary.shape(shape.block);
    let fit_len = summary.fit_len(shape.block);
    let (count, bytes) = (blocks.len(), form.bytes());
    let cost = 8 * shape.kv_heads * count * shape.block.half();
    cpu.team.run(shape.kv_heads * count, cost, |worker, task| {
        let (head, i) = (task / count, task % count);
        let pool = seq * shape.kv_heads + head;
        let mut scratch = cpu.workers.get(worker);
        let [keys, vectors] = scratch.floats([shape.block.half(), form.vectors * form.dim]);
        let chunk = store.chunk(layer, seq, blocks.start + i, head);
        cpu.level.run(Widen { from: &chunk[..shape.block.half()], to: keys });
        let keys = Keys { data: keys, tokens: shape.block.tokens, head_dim: shape.block.head_dim };
        summary.encode(&fit[pool * fit_len..][..fit_len], keys, vectors);
        if bytes == 0 {
            return;
        }
        storage::encode(form.storage, form.rounding, form.dim, vectors, place(head, i));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::policy::{Reduce, SummaryShape};
    use oasis_core::storage::{Rounding, Storage};
    use oasis_core::store::{Extent, ExtentLayout};
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
