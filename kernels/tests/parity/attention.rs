//! Attention of steps, of prompts, and the exact one.

use super::*;
use oasis_core::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::ops::{AttendArgs, CacheShape, ExactArgs, PrefillArgs};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_kernels::ops::{attend, exact_attend, prefill_attend};
use std::sync::Arc;

/// Query heads and KV heads: groups of 1, 2, 3, 4, 5, 7, 8, 16.
const HEADS: [(usize, usize); 8] = [(2, 2), (4, 2), (9, 3), (8, 2), (5, 1), (14, 2), (8, 1), (16, 1)];

#[derive(Clone)]
struct Step {
    g: Geometry,
    shape: CacheShape,
    counts: Vec<usize>,
    tails: Vec<u32>,
    q: Vec<bf16>,
    slots: Vec<bf16>,
    entries: Vec<u32>,
    entry_count: Vec<u32>,
    tail: Vec<bf16>,
    seed: u64,
}

impl Step {
    fn new(
        random: &mut Random,
        (heads, kv_heads): (usize, usize),
        d: usize,
        tokens: usize,
        slots: usize,
    ) -> Self {
        let g = geometry(heads, kv_heads, d);
        let counts = vec![1 + random.below(8), 1, 0, 8];
        let block = BlockShape { tokens, head_dim: d };
        let shape = CacheShape { seqs: 4, kv_heads, slots, tail_tokens: tokens + 8, blocks: slots, block };
        let rows: usize = counts.iter().sum();
        let tails = (0..4).map(|_| random.below(tokens) as u32).collect();
        let mut entries = Vec::new();
        let mut entry_count = Vec::new();
        for pool in 0..shape.pools() {
            // Empty, full, and in between.
            let count = [0, slots, random.below(slots + 1)][pool % 3];
            let start = random.below(slots);
            entries.extend(
                (0..slots).map(|i| if i < count { ((start + i * 7) % slots) as u32 } else { u32::MAX }),
            );
            entry_count.push(count as u32);
        }
        Self {
            q: random.bf16(rows * g.q_dim()),
            slots: random.bf16(shape.slot_elems()),
            tail: random.bf16(shape.tail_elems()),
            seed: random.below(1 << 20) as u64,
            g,
            shape,
            counts,
            tails,
            entries,
            entry_count,
        }
    }

    fn run<B: Backend>(&self, b: &mut B, with_lse: bool) -> (Vec<bf16>, Vec<f32>) {
        self.try_run(b, with_lse).unwrap()
    }

    fn try_run<B: Backend>(&self, b: &mut B, with_lse: bool) -> Result<(Vec<bf16>, Vec<f32>)> {
        let rows = table(b, &self.counts, &self.tails, self.seed);
        let [q, slots, tail] = [&self.q, &self.slots, &self.tail].map(|v| b.upload(v).unwrap());
        let [entries, entry_count] = [&self.entries, &self.entry_count].map(|v| b.upload(v).unwrap());
        let mut out = b.upload(&poison16(self.q.len())).unwrap();
        let mut lse = b.upload(&poison(rows.rows() * self.g.heads * (self.shape.slots + 1))).unwrap();
        b.attend(AttendArgs {
            geometry: &self.g,
            shape: &self.shape,
            rows: &rows,
            q: &q,
            slots: &slots,
            entries: &entries,
            entry_count: &entry_count,
            tail: &tail,
            out: &mut out,
            block_lse: with_lse.then_some(&mut lse),
        })?;
        Ok((all(b, &out), all(b, &lse)))
    }

    /// Whether an element of `block_lse` is to be written.
    fn written(&self, i: usize) -> bool {
        let columns = self.shape.slots + 1;
        let (row, head) = (i / columns / self.g.heads, i / columns % self.g.heads);
        let mut seq = 0;
        let mut end = self.counts[0];
        while row >= end {
            seq += 1;
            end += self.counts[seq];
        }
        let pool = seq * self.shape.kv_heads + head / self.g.group();
        i % columns == self.shape.slots || i % columns < self.entry_count[pool] as usize
    }
}

#[test]
fn attend_of_all_groups_widths_and_blocks() {
    let Some((mut cpu, mut cuda)) = devices("attend") else { return };
    let mut random = Random::new(11);
    for heads in HEADS {
        for d in [64, 96, 128] {
            // Slots: fewer and more than a split has; a prime number, so that entries are distinct.
            for (tokens, slots) in [(16, 37), (8, 5), (32, 17), (64, 3), (40, 1)] {
                let step = Step::new(&mut random, heads, d, tokens, slots);
                let what = format!("attend {heads:?} × {d}, {slots} blocks of {tokens}");
                let (got, lse) = step.run(&mut cuda, true);
                let (want, want_lse) = step.run(&mut cpu, true);
                close(&what, &wide(&got), &wide(&want), attend::TOLERANCE);
                near(&what, &lse, &want_lse, attend::LSE_TOLERANCE, |i| step.written(i));
                assert_eq!(bits(&step.run(&mut cuda, false).0), bits(&got), "without masses");
            }
        }
    }
}

#[test]
fn attend_of_odd_widths_and_large_logits() {
    let Some((mut cpu, mut cuda)) = devices("attend, odd") else { return };
    let mut random = Random::new(12);
    for d in [3, 8, 20, 33, 100] {
        let mut step = Step::new(&mut random, (6, 2), d, 4, 7);
        for factor in [1.0, 30.0] {
            step.q.iter_mut().for_each(|x| *x = bf16::from_f32(x.to_f32() * factor));
            let (got, want) = (step.run(&mut cuda, true), step.run(&mut cpu, true));
            close("odd", &wide(&got.0), &wide(&want.0), attend::TOLERANCE);
            near("odd", &got.1, &want.1, 50.0 * attend::LSE_TOLERANCE, |i| step.written(i));
        }
    }
    let wide = Step::new(&mut random, (2, 1), 160, 4, 3);
    assert!(wide.try_run(&mut cuda, true).is_err(), "refused, not computed wrongly");
}

#[test]
fn attend_does_not_see_slot_ids() {
    let Some((_, mut cuda)) = devices("attend, permuted") else { return };
    let mut random = Random::new(13);
    let step = Step::new(&mut random, (8, 2), 64, 16, 37);
    let chunk = step.shape.block.chunk();
    let mut moved = step.clone();
    // Slot s moves to 36 − s, and entries with it.
    for pool in 0..step.shape.pools() {
        for s in 0..37 {
            let (from, to) = ((pool * 37 + s) * chunk, (pool * 37 + 36 - s) * chunk);
            moved.slots[to..to + chunk].copy_from_slice(&step.slots[from..from + chunk]);
        }
    }
    moved.entries = step.entries.iter().map(|&s| if s < 37 { 36 - s } else { s }).collect();
    let (a, b) = (step.run(&mut cuda, true), moved.run(&mut cuda, true));
    assert_eq!(bits(&a.0), bits(&b.0));
    assert!(a.1.iter().zip(&b.1).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn attend_alone_as_in_a_batch_and_with_fewer_rows() {
    let Some((_, mut cuda)) = devices("attend, alone") else { return };
    let mut random = Random::new(16);
    // Pools of several splits; from 4 to 32 queries, so other kernels for the same row.
    let batch = Step::new(&mut random, (8, 2), 128, 16, 97);
    let (all_out, all_lse) = batch.run(&mut cuda, true);
    for _ in 0..20 {
        assert_eq!(bits(&batch.run(&mut cuda, true).0), bits(&all_out), "the same again");
    }
    let (chunk, tail) = (batch.shape.block.chunk(), 2 * batch.shape.tail_tokens * 128);
    let rows_before: usize = batch.counts[..1].iter().sum();
    let pools = 2..4;
    let mut alone = batch.clone();
    alone.shape.seqs = 1;
    alone.counts = vec![1];
    alone.tails = vec![batch.tails[1]];
    alone.q = batch.q[rows_before * 1024..][..1024].to_vec();
    alone.slots = batch.slots[pools.start * 97 * chunk..pools.end * 97 * chunk].to_vec();
    alone.entries = batch.entries[pools.start * 97..pools.end * 97].to_vec();
    alone.entry_count = batch.entry_count[pools.clone()].to_vec();
    alone.tail = batch.tail[pools.start * tail..pools.end * tail].to_vec();
    let (out, lse) = alone.run(&mut cuda, true);
    assert_eq!(bits(&out), bits(&all_out[rows_before * 1024..][..1024]));
    let masses = &all_lse[rows_before * 8 * 98..][..8 * 98];
    assert!(lse.iter().zip(masses).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn attend_of_an_entry_beyond_the_slots_is_nan_in_its_pool_alone() {
    let Some((_, mut cuda)) = devices("attend, beyond the slots") else { return };
    let mut random = Random::new(17);
    let mut step = Step::new(&mut random, (8, 2), 128, 16, 37);
    let want = step.run(&mut cuda, false).0;
    // Pool 1, the second KV head of the first sequence, is full.
    step.entries[37 + 35] = 37;
    let (out, lse) = step.run(&mut cuda, true);
    for (i, (got, want)) in out.iter().zip(&want).enumerate() {
        let of_pool = i / 1024 < step.counts[0] && i / 128 % 8 >= 4;
        assert!(if of_pool { got.is_nan() } else { got.to_bits() == want.to_bits() }, "element {i}");
    }
    for row in 0..step.counts[0] {
        assert!(lse[(row * 8 + 4) * 38 + 35].is_nan() && lse[(row * 8 + 4) * 38 + 34].is_finite());
    }
}

#[test]
fn prefill_attend() {
    let Some((mut cpu, mut cuda)) = devices("prefill_attend") else { return };
    struct Case {
        g: Geometry,
        q: Vec<bf16>,
        k: Vec<bf16>,
        v: Vec<bf16>,
        first: usize,
        rows: usize,
    }
    fn run<B: Backend>(b: &mut B, c: &Case) -> Vec<f32> {
        let [q, k, v] = [&c.q, &c.k, &c.v].map(|x| b.upload(x).unwrap());
        let mut out = b.upload(&poison16(c.q.len())).unwrap();
        let (geometry, first, rows) = (&c.g, c.first, c.rows);
        b.prefill_attend(PrefillArgs { geometry, q: &q, k: &k, v: &v, first, rows, out: &mut out }).unwrap();
        wide(&all(b, &out))
    }
    let mut random = Random::new(14);
    for (heads, kv_heads) in HEADS {
        for d in [64, 96, 128, 10] {
            for (first, rows) in [(0, 1), (0, 33), (70, 5), (31, 100), (1, 300)] {
                let g = geometry(heads, kv_heads, d);
                let tokens = first + rows;
                let c = Case {
                    q: random.bf16(rows * g.q_dim()),
                    k: random.bf16(tokens * g.kv_dim()),
                    v: random.bf16(tokens * g.kv_dim()),
                    g,
                    first,
                    rows,
                };
                let what = format!("prefill {heads}/{kv_heads} × {d}, {rows} rows at {first}");
                close(&what, &run(&mut cuda, &c), &run(&mut cpu, &c), prefill_attend::TOLERANCE);
            }
        }
    }
}

#[test]
fn exact_attend() {
    let Some((mut cpu, mut cuda)) = devices("exact_attend") else { return };
    fn run<B: Backend>(b: &mut B, step: &Step, keys: &[bf16]) -> (Vec<f32>, Vec<f32>) {
        let (shape, block) = (&step.shape, step.shape.block);
        let layout = ExtentLayout { layers: 2, kv_heads: shape.kv_heads, blocks: shape.slots, block };
        let prompt = |b: &mut B| {
            let mut extent = Extent::new(b, layout).unwrap();
            extent.data.copy_from_slice(&keys[..layout.elems()]);
            Arc::new(extent)
        };
        let prompts = (0..shape.seqs).map(|_| prompt(b)).collect();
        let store = HostStore::new(prompts, 2);
        let rows = table(b, &step.counts, &step.tails, step.seed);
        let (q, tail) = (b.upload(&step.q).unwrap(), b.upload(&step.tail).unwrap());
        let mut lse = poison(shape.seqs * step.g.heads * (shape.blocks + 1));
        let mut out = poison(shape.seqs * step.g.q_dim());
        b.exact_attend(ExactArgs {
            geometry: &step.g,
            shape,
            store: &store,
            layer: 1,
            rows: &rows,
            q: &q,
            tail: &tail,
            block_lse: &mut lse,
            out: &mut out,
        })
        .unwrap();
        (out, lse)
    }
    let mut random = Random::new(15);
    for (heads, d) in [((9, 3), 64), ((8, 2), 96), ((16, 1), 128)] {
        let step = Step::new(&mut random, heads, d, 16, 11);
        let keys = random.bf16(2 * 11 * heads.1 * step.shape.block.chunk());
        let (got, want) = (run(&mut cuda, &step, &keys), run(&mut cpu, &step, &keys));
        let rows_of = |i: usize, width: usize| step.counts[i / width] > 0;
        near("out", &got.0, &want.0, exact_attend::TOLERANCE, |i| rows_of(i, step.g.q_dim()));
        near("lse", &got.1, &want.1, exact_attend::TOLERANCE, |i| rows_of(i, step.g.heads * 12));
    }
}
