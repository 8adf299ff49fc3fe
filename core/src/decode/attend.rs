//! Attention of a step, and what it tells about the resident blocks.

use super::{Device, State};
use crate::Result;
use crate::ops::{AttendArgs, Backend};
use std::time::Instant;

/// ln Σ exp, with the largest taken out.
pub(super) fn log_sum_exp(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let max = values.clone().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        max
    } else {
        max + libm::logf(values.map(|v| libm::expf(v - max)).sum::<f32>())
    }
}

impl<B: Backend> State<B> {
    /// Attends what is resident once its copies have landed; notes the mass of every block.
    pub(super) fn attend(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let start = Instant::now();
        self.run_attend(d, layer, true)?;
        if self.chain.is_some() {
            return self.observe_on_device(d, layer);
        }
        let cache = &self.layers[layer];
        for (s, report) in self.report.seqs.iter_mut().enumerate() {
            if !self.seqs[s].retired {
                let pools = s * self.shape.kv_heads..(s + 1) * self.shape.kv_heads;
                let attended = &cache.residency.attended[pools];
                report.layers[layer].attended = attended.iter().map(|a| a.len() as u64).sum();
            }
        }
        self.observe_mass(d, layer);
        self.report.seconds.attend += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// The op itself; with `lse` also the masses of blocks, and their host copies where pools are the host's.
    pub(super) fn run_attend(&mut self, d: &mut Device<'_, B>, layer: usize, lse: bool) -> Result<()> {
        let cache = &mut self.layers[layer];
        let lse = lse && self.settings.ranks();
        d.backend.attend(AttendArgs {
            geometry: &d.model.config.geometry,
            shape: &self.shape,
            rows: &self.rows,
            q: &cache.q,
            slots: &cache.slots,
            entries: &cache.entries,
            entry_count: &cache.entry_count,
            tail: &cache.tail,
            out: &mut self.buf.work.attended,
            block_lse: lse.then_some(&mut cache.block_lse),
        })?;
        if lse && self.chain.is_none() {
            let n = self.rows.rows() * d.model.config.geometry.heads * (self.shape.slots + 1);
            d.backend.read(&self.layers[layer].block_lse, 0, &mut self.buf.host_lse[..n])?;
            self.find_pinned_lse(d, layer);
        }
        Ok(())
    }

    /// ln of the mass of pinned entries and tail, for every row and head.
    fn find_pinned_lse(&mut self, d: &Device<'_, B>, layer: usize) {
        let g = &d.model.config.geometry;
        let width = self.shape.slots + 1;
        for (r, &s) in self.rows.host_seq.iter().enumerate() {
            let n = self.store.blocks(s as usize);
            let candidates = self.pins.candidates(n);
            for h in 0..g.heads {
                let pool = s as usize * g.kv_heads + h / g.group();
                let blocks = &self.layers[layer].residency.attended[pool];
                let row = &self.buf.host_lse[(r * g.heads + h) * width..][..width];
                let pinned = blocks.iter().zip(row).filter(|(b, _)| !candidates.contains(b)).map(|(_, &l)| l);
                let all = pinned.chain(std::iter::once(row[width - 1]));
                self.buf.pinned_lse[r * g.heads + h] = log_sum_exp(all);
            }
        }
    }

    /// Row 0's mass on every attended block goes into the histories that evictors read.
    fn observe_mass(&mut self, d: &Device<'_, B>, layer: usize) {
        if !self.settings.ranks() {
            return;
        }
        let g = &d.model.config.geometry;
        let (width, group) = (self.shape.slots + 1, g.group());
        let r = &mut self.layers[layer].residency;
        for s in 0..self.seqs.len() {
            let (first, end) = (self.rows.host_first[s] as usize, self.rows.host_first[s + 1] as usize);
            if first == end {
                continue;
            }
            // The mean block's share: of all sealed blocks and the tail.
            let fair = 1.0 / (self.store.blocks(s) + 1) as f32;
            for kv in 0..g.kv_heads {
                let pool = s * g.kv_heads + kv;
                let blocks = &r.attended[pool];
                let rows = &self.buf.host_lse[(first * g.heads + kv * group) * width..][..group * width];
                let mass = &mut self.buf.mass;
                mass.clear();
                mass.resize(blocks.len(), 0.0);
                for row in rows.chunks_exact(width) {
                    let all = row[..blocks.len()].iter().chain(&row[width - 1..]);
                    let total = log_sum_exp(all.copied());
                    for (m, l) in mass.iter_mut().zip(row) {
                        *m += libm::expf(l - total) / group as f32;
                    }
                }
                if let Some(recorder) = &mut self.recorder {
                    recorder.mass(s, blocks, mass);
                }
                let pool = &mut r.pools[pool];
                for (&block, &m) in blocks.iter().zip(mass.iter()) {
                    let Some(slot) = pool.slot(block) else { continue };
                    pool.meta[slot as usize].mass = m;
                    if m >= fair {
                        pool.meta[slot as usize].last_attended = self.now;
                        pool.unused[slot as usize] = false;
                    }
                }
            }
        }
    }
}
