//! A full tail block becomes a sealed one: host store, summary, window, slot.

use super::{Decoder, Device, State};
use crate::ids::NONE;
use crate::ops::{Backend, SummariseArgs};
use crate::settings::Mode;
use crate::stats::fold;
use crate::{Error, Result};
use half::bf16;

impl<B: Backend> State<B> {
    /// Seals the first block of a sequence's tail.
    pub(super) fn seal(&mut self, d: &mut Device<'_, B>, s: usize) -> Result<()> {
        let block = self.store.grow(d.backend, s)?;
        if block >= self.shape.blocks {
            return Err(Error::Invariant(format!("block {block} beyond the planned {}", self.shape.blocks)));
        }
        let rest = self.seqs[s].tail - self.settings.block_tokens;
        let mut moves = std::mem::take(&mut self.buf.tail_moves);
        moves.clear();
        moves.extend((0..rest as u32).map(|i| [s as u32, self.settings.block_tokens as u32 + i, i]));
        for layer in 0..self.layers.len() {
            self.seal_layer(d, layer, s, block)?;
            if !moves.is_empty() {
                d.backend.compact(&self.shape, &moves, &mut self.layers[layer].tail)?;
            }
        }
        self.buf.tail_moves = moves;
        self.seqs[s].tail = rest;
        Ok(())
    }

    fn seal_layer(&mut self, d: &mut Device<'_, B>, layer: usize, s: usize, block: usize) -> Result<()> {
        let heads = self.shape.kv_heads;
        let cache = &mut self.layers[layer];
        self.buf.slots_of.clear();
        for pool in s * heads..(s + 1) * heads {
            let slot = match self.settings.mode {
                Mode::Dense => NONE,
                _ => cache.residency.admit_sealed(pool, s, block as u32, self.pins, self.now)?,
            };
            // All KV in device memory: block b sits in physical slot b.
            self.buf.slots_of.push(if self.settings.mode.resident() { block as u32 } else { slot });
        }
        let (slots_of, slots) = (&self.buf.slots_of, &mut cache.slots);
        if self.play.masses || self.play.scores {
            d.backend.seal(&self.shape, layer, s, block, slots_of, &cache.tail, &mut self.store, slots)?;
        }
        if self.settings.ranks() && self.play.scores {
            d.backend.summarise(SummariseArgs {
                shape: &self.shape,
                summary: self.summary.as_ref(),
                store: &self.store,
                layer,
                seq: s,
                blocks: block..block + 1,
                fit: &cache.fit,
                out: &mut cache.summaries,
            })?;
        }
        for pool in (s * heads..(s + 1) * heads).filter(|_| self.play.masses) {
            cache.refresh(d.backend, &self.settings, &self.shape, pool, block + 1)?;
        }
        let (evicted, wasted, left) = std::mem::take(&mut cache.residency.sealed_out[s]);
        let stats = &mut self.report.seqs[s].layers[layer];
        stats.evicted += evicted;
        stats.wasted += wasted;
        if evicted > 0 {
            stats.decided = Some(fold(stats.decided.unwrap_or(0), left));
        }
        Ok(())
    }
}

impl<B: Backend> Decoder<'_, B> {
    /// Sealed blocks of a sequence.
    pub fn sealed_blocks(&self, seq: usize) -> usize {
        self.state.store.blocks(seq)
    }

    /// A sealed block as it lies in the host store, `[K: block_tokens × head_dim][V: …]`; waits for the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn sealed(&mut self, layer: usize, seq: usize, block: usize, head: usize) -> Result<&[bf16]> {
        // A read comes after all that was ordered before it, writes to the host store included.
        self.engine.backend.read(&self.state.layers[layer].tail, 0, &mut [bf16::ZERO])?;
        Ok(self.state.store.chunk(layer, seq, block, head))
    }

    /// A pool's tail as it lies in device memory, `[K: tail tokens × head_dim][V: …]`, where a tail has room for a block and
    /// the most rows of a step. What a step seals stays in place until the next one writes over it.
    ///
    /// # Errors
    /// Those of a copy from the device.
    pub fn tail(&mut self, layer: usize, seq: usize, head: usize) -> Result<Vec<bf16>> {
        let shape = &self.state.shape;
        let mut out = vec![bf16::ZERO; 2 * shape.tail_tokens * shape.block.head_dim];
        let at = (seq * shape.kv_heads + head) * out.len();
        self.engine.backend.read(&self.state.layers[layer].tail, at, &mut out)?;
        Ok(out)
    }
}
