//! Device to host: a prompt's blocks, and full tails.

use super::fetch::Span;
use super::need;
use crate::cuda::{CudaBuf, CudaHostBuf, address, arg};
use crate::memory::{CpuBuf, CpuHostBuf};
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::ids::NONE;
use oasis_core::ops::{CacheShape, Seal};
use oasis_core::store::{ExtentLayout, HostStore};
use oasis_core::{Error, Result};

/// Copies are exact.
pub const TOLERANCE: f64 = 0.0;

impl Seal for Cpu {
    fn pack(
        &mut self,
        layout: &ExtentLayout,
        layer: usize,
        blocks: usize,
        k: &CpuBuf<bf16>,
        v: &CpuBuf<bf16>,
        extent: &mut CpuHostBuf<bf16>,
    ) -> Result<()> {
        let (block, d, heads) = (layout.block, layout.block.head_dim, layout.kv_heads);
        check_pack(layout, layer, blocks, [k.len(), v.len(), extent.len()])?;
        if blocks == 0 {
            return Ok(());
        }
        let chunk = block.chunk();
        let from = layout.offset(layer, 0, 0);
        let to = Parts::new(&mut extent[from..from + blocks * heads * chunk]);
        self.team.run(blocks, 4 * blocks * heads * chunk, |_, b| {
            for head in 0..heads {
                // SAFETY: the chunks of block b are this task's.
                let (keys, values) =
                    unsafe { to.slice((b * heads + head) * chunk, chunk) }.split_at_mut(block.half());
                for t in 0..block.tokens {
                    let at = ((b * block.tokens + t) * heads + head) * d;
                    keys[t * d..(t + 1) * d].copy_from_slice(&k[at..at + d]);
                    values[t * d..(t + 1) * d].copy_from_slice(&v[at..at + d]);
                }
            }
        });
        Ok(())
    }

    fn seal(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        seq: usize,
        block: usize,
        slots_of: &[u32],
        tail: &CpuBuf<bf16>,
        store: &mut HostStore<Self>,
        slots: &mut CpuBuf<bf16>,
    ) -> Result<()> {
        check_seal(shape, seq, slots_of, [tail.len(), slots.len()])?;
        let (half, chunk) = (shape.block.half(), shape.block.chunk());
        for (head, &slot) in slots_of[..shape.kv_heads].iter().enumerate() {
            let pool = seq * shape.kv_heads + head;
            let keys = pool * 2 * shape.tail_tokens * shape.block.head_dim;
            let values = keys + shape.tail_tokens * shape.block.head_dim;
            let to = store.chunk_mut(layer, seq, block, head)?;
            to[..half].copy_from_slice(&tail[keys..keys + half]);
            to[half..].copy_from_slice(&tail[values..values + half]);
            if slot != NONE {
                let at = (pool * shape.slots + slot as usize) * chunk;
                slots[at..at + chunk].copy_from_slice(to);
            }
        }
        Ok(())
    }
}

impl Seal for Cuda {
    fn pack(
        &mut self,
        layout: &ExtentLayout,
        layer: usize,
        blocks: usize,
        k: &CudaBuf<bf16>,
        v: &CudaBuf<bf16>,
        extent: &mut CudaHostBuf<bf16>,
    ) -> Result<()> {
        check_pack(layout, layer, blocks, [k.len(), v.len(), extent.len()])?;
        if blocks == 0 {
            return Ok(());
        }
        let (k, v, to) = (k.at(0), v.at(0), extent.at(layout.offset(layer, 0, 0)));
        let [heads, tokens, d] =
            [layout.kv_heads, layout.block.tokens, layout.block.head_dim].map(|x| x as u32);
        let mut args = [arg(&k), arg(&v), arg(&heads), arg(&tokens), arg(&d), arg(&to)];
        // SAFETY: seal.cu's arguments, of the lengths checked above; we have the extent to ourselves until we waited.
        unsafe { self.launch("pack", [blocks, layout.kv_heads, 1], 256, &mut args)? };
        self.wait()
    }

    fn seal(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        seq: usize,
        block: usize,
        slots_of: &[u32],
        tail: &CudaBuf<bf16>,
        store: &mut HostStore<Self>,
        slots: &mut CudaBuf<bf16>,
    ) -> Result<()> {
        check_seal(shape, seq, slots_of, [tail.len(), slots.len()])?;
        let (half, bytes) = (shape.block.half(), shape.block.bytes() as u64 / 2);
        let mut spans = Vec::with_capacity(4 * shape.kv_heads);
        for (head, &slot) in slots_of[..shape.kv_heads].iter().enumerate() {
            let pool = seq * shape.kv_heads + head;
            let keys = pool * 2 * shape.tail_tokens * shape.block.head_dim;
            let from = [keys, keys + shape.tail_tokens * shape.block.head_dim].map(|at| tail.at(at));
            let chunk = address(store.chunk_mut(layer, seq, block, head)?.as_mut_ptr());
            let mut copy = |to: [u64; 2]| {
                spans.extend(from.into_iter().zip(to).map(|(from, to)| Span { from, to, bytes }));
            };
            copy([chunk, chunk + bytes]);
            if slot != NONE {
                let at = (pool * shape.slots + slot as usize) * 2 * half;
                copy([slots.at(at), slots.at(at + half)]);
            }
        }
        // SAFETY: tails, slots and chunks of the lengths checked above; the store is ours until we waited.
        unsafe { self.copy(&spans)? };
        self.wait()
    }
}

fn check_pack(layout: &ExtentLayout, layer: usize, blocks: usize, [k, v, extent]: [usize; 3]) -> Result<()> {
    let elems = blocks * layout.block.half() * layout.kv_heads;
    need("pack", "k", k, elems)?;
    need("pack", "v", v, elems)?;
    need("pack", "extent", extent, layout.elems())?;
    if layer >= layout.layers || blocks > layout.blocks {
        return Err(Error::Invariant(format!("pack: {blocks} blocks of layer {layer} into {layout:?}")));
    }
    Ok(())
}

fn check_seal(shape: &CacheShape, seq: usize, slots_of: &[u32], [tail, slots]: [usize; 2]) -> Result<()> {
    need("seal", "slots_of", slots_of.len(), shape.kv_heads)?;
    need("seal", "tail", tail, shape.tail_elems())?;
    need("seal", "slots", slots, shape.slot_elems())?;
    need("seal", "tail tokens", shape.tail_tokens, shape.block.tokens)?;
    need("seal", "sequences", shape.seqs, seq + 1)?;
    for &slot in slots_of[..shape.kv_heads].iter().filter(|&&slot| slot != NONE) {
        need("seal", "slots of a pool", shape.slots, slot as usize + 1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::ops::Memory;
    use oasis_core::store::Extent;
    use std::sync::Arc;

    const BLOCK: BlockShape = BlockShape { tokens: 4, head_dim: 3 };

    #[test]
    fn a_prompt_is_packed_chunk_for_chunk() {
        let mut cpu = Cpu::new(2);
        let mut random = Random::new(6);
        let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 3, block: BLOCK };
        let (k, v) = (random.bf16(13 * 6), random.bf16(13 * 6));
        let mut extent = Extent::new(&cpu, layout).unwrap();
        let (bk, bv) = (cpu.upload(&k).unwrap(), cpu.upload(&v).unwrap());
        cpu.pack(&layout, 1, 3, &bk, &bv, &mut extent.data).unwrap();
        let (layer0, layer1) = extent.data.split_at(layout.elems() / 2);
        assert!(layer0.iter().all(|x| *x == bf16::ZERO));
        for (i, x) in layer1.iter().enumerate() {
            let (chunk, at) = (i / 24, i % 24);
            let (block, head, half, t, c) = (chunk / 2, chunk % 2, at / 12, at % 12 / 3, at % 3);
            let from = if half == 0 { &k } else { &v };
            assert_eq!(*x, from[((block * 4 + t) * 2 + head) * 3 + c]);
        }
        assert!(cpu.pack(&layout, 2, 3, &bk, &bv, &mut extent.data).is_err());
        assert!(cpu.pack(&layout, 0, 4, &bk, &bv, &mut extent.data).is_err());
    }

    #[test]
    fn a_full_tail_goes_to_the_store_and_to_its_slots() {
        let mut cpu = Cpu::new(1);
        let mut random = Random::new(7);
        let shape = CacheShape { seqs: 2, kv_heads: 2, slots: 3, tail_tokens: 5, blocks: 9, block: BLOCK };
        let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 1, block: BLOCK };
        let prompt = || Arc::new(Extent::new(&Cpu::new(1), layout).unwrap());
        let mut store = HostStore::new(vec![prompt(), prompt()], 2);
        let block = store.grow(&cpu, 1).unwrap();
        let tail = random.bf16(shape.tail_elems());
        let b_tail = cpu.upload(&tail).unwrap();
        let mut slots = cpu.upload(&vec![bf16::NAN; shape.slot_elems()]).unwrap();
        cpu.seal(&shape, 1, 1, block, &[NONE, 2], &b_tail, &mut store, &mut slots).unwrap();
        for head in 0..2 {
            let from = (2 + head) * 30;
            let want = [&tail[from..from + 12], &tail[from + 15..from + 27]].concat();
            assert_eq!(store.chunk(1, 1, block, head), &want[..]);
        }
        let written = (3 * 3 + 2) * 24..(3 * 3 + 3) * 24;
        assert_eq!(&slots[written.clone()], store.chunk(1, 1, block, 1));
        let others = slots.iter().enumerate().filter(|(i, _)| !written.contains(i));
        assert!(others.map(|(_, x)| x).all(|x| x.is_nan()));
        assert!(cpu.seal(&shape, 1, 1, 0, &[NONE, NONE], &b_tail, &mut store, &mut slots).is_err());
        assert!(cpu.seal(&shape, 1, 1, block, &[3, NONE], &b_tail, &mut store, &mut slots).is_err());
    }
}
