//! Host to device: blocks into slots.

use super::need;
use crate::Cpu;
use crate::memory::CpuBuf;
use half::bf16;
use oasis_core::ops::{CacheShape, Fetch, Move};
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
        for &[pool, block, slot] in moves {
            let [pool, block, slot] = [pool, block, slot].map(|x| x as usize);
            let (seq, head) = (pool / shape.kv_heads, pool % shape.kv_heads);
            let there = pool < shape.pools() && slot < shape.slots && seq < store.seqs();
            if !there || block >= store.blocks(seq) {
                return Err(Error::Invariant(format!(
                    "fetch: pool {pool}, block {block}, slot {slot} of {shape:?}"
                )));
            }
            let from = store.chunk(layer, seq, block, head);
            let to = &mut slots[(pool * shape.slots + slot) * chunk..][..chunk];
            to.copy_from_slice(from);
            bytes += size_of_val(to) as u64;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::ops::Memory;
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
