//! Host to device: blocks into slots.

use super::need;
use crate::cuda::{CudaBuf, address, arg};
use crate::memory::CpuBuf;
use crate::{Cpu, Cuda};
use bytemuck::{Pod, Zeroable};
use half::bf16;
use oasis_core::ops::{CacheShape, Fetch, Memory, Move};
use oasis_core::store::HostStore;
use oasis_core::{Error, Result};

/// Copies are exact.
pub const TOLERANCE: f64 = 0.0;

impl Fetch for Cpu {
    fn fetch(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        store: &HostStore<Self>,
        moves: &[Move],
        slots: &mut CpuBuf<bf16>,
    ) -> Result<u64> {
        need("fetch", "slots", slots.len(), shape.slot_elems())?;
        let chunk = shape.block.chunk();
        let mut bytes = 0;
        for &mv in moves {
            let [pool, block, slot] = check_move(shape, store, mv)?;
            let (seq, head) = (pool / shape.kv_heads, pool % shape.kv_heads);
            let from = store.chunk(layer, seq, block, head);
            let to = &mut slots[(pool * shape.slots + slot) * chunk..][..chunk];
            to.copy_from_slice(from);
            bytes += size_of_val(to) as u64;
        }
        Ok(bytes)
    }
}

/// A piece of memory to be copied, as fetch.cu has it; either side may be pinned host memory.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Span {
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

/// Spans that one launch copies.
const SPANS: usize = 1 << 16;

/// Thread blocks of a copy: few, so that they leave the device to others, and enough to keep the link full.
const COPIERS: usize = 32;

impl Cuda {
    /// Copies, in any order: spans must not overlap.
    ///
    /// # Safety
    /// Both sides of every span are the device's to use.
    pub(super) unsafe fn copy(&mut self, spans: &[Span]) -> Result<()> {
        for part in spans.chunks(SPANS) {
            let Some(list) = self.staging.put(&self.lanes, bytemuck::cast_slice(part))? else { continue };
            let count = part.len() as u32;
            let mut args = [arg(&list), arg(&count)];
            let blocks = COPIERS.min(part.len().div_ceil(8));
            // SAFETY: the caller's promise.
            unsafe { self.launch("copy_spans", [blocks, 1, 1], 256, &mut args)? };
        }
        Ok(())
    }
}

impl Fetch for Cuda {
    fn fetch(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        store: &HostStore<Self>,
        moves: &[Move],
        slots: &mut CudaBuf<bf16>,
    ) -> Result<u64> {
        need("fetch", "slots", slots.len(), shape.slot_elems())?;
        let bytes = shape.block.bytes() as u64;
        let mut spans = Vec::with_capacity(moves.len());
        for &mv in moves {
            let [pool, block, slot] = check_move(shape, store, mv)?;
            let from =
                address(store.chunk(layer, pool / shape.kv_heads, block, pool % shape.kv_heads).as_ptr());
            let to = slots.at((pool * shape.slots + slot) * shape.block.chunk());
            spans.push(Span { from, to, bytes });
        }
        // SAFETY: chunks of pinned memory, and slots of a checked length. A chunk is not written while it may be read:
        // sealed blocks never change.
        unsafe { self.copy(&spans)? };
        Ok(bytes * moves.len() as u64)
    }
}

fn check_move<B: Memory>(shape: &CacheShape, store: &HostStore<B>, mv: Move) -> Result<[usize; 3]> {
    let [pool, block, slot] = mv.map(|x| x as usize);
    let seq = pool / shape.kv_heads;
    let there = pool < shape.pools() && slot < shape.slots && seq < store.seqs();
    if !there || block >= store.blocks(seq) {
        return Err(Error::Invariant(format!("fetch: pool {pool}, block {block}, slot {slot} of {shape:?}")));
    }
    Ok([pool, block, slot])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::store::{Extent, ExtentLayout};
    use std::sync::Arc;

    #[test]
    fn slot_bytes_equal_host_bytes_and_are_counted() {
        let mut cpu = Cpu::new(1);
        let mut random = Random::new(8);
        let block = BlockShape { tokens: 4, head_dim: 3 };
        let shape = CacheShape { seqs: 2, kv_heads: 2, slots: 3, tail_tokens: 5, blocks: 9, block };
        let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 4, block };
        let mut prompt = || {
            let mut extent = Extent::new(&cpu, layout).unwrap();
            extent.data.copy_from_slice(&random.bf16(layout.elems()));
            Arc::new(extent)
        };
        let store = HostStore::new(vec![prompt(), prompt()], 2);
        let mut slots = cpu.upload(&vec![bf16::NAN; shape.slot_elems()]).unwrap();
        let moves = [[3, 2, 1], [0, 0, 2], [2, 3, 0]];
        assert_eq!(cpu.fetch(&shape, 1, &store, &moves, &mut slots).unwrap(), 3 * 48);
        let at = |pool: usize, slot: usize| (pool * 3 + slot) * 24..(pool * 3 + slot + 1) * 24;
        for [pool, block, slot] in moves.map(|m| m.map(|x| x as usize)) {
            assert_eq!(&slots[at(pool, slot)], store.chunk(1, pool / 2, block, pool % 2));
        }
        assert_eq!(slots.iter().filter(|x| !x.is_nan()).count(), 3 * 24);
        for bad in [[4, 0, 0], [0, 4, 0], [0, 0, 3]] {
            assert!(cpu.fetch(&shape, 1, &store, &[bad], &mut slots).is_err());
        }
    }
}
