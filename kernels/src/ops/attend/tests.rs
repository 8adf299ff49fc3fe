use super::*;
use crate::Level;
use crate::ops::tail::tests::table;
use crate::testing::{Random, assert_close, bits, bits16, f64s, geometry, poison, poison16};
use half::bf16;
use oasis_core::geometry::{BlockShape, Geometry};
use oasis_core::ops::{CacheShape, ExactArgs, ExactAttend, Memory, RowTable};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use std::sync::Arc;

struct Case {
    g: Geometry,
    shape: CacheShape,
    rows: Vec<usize>,
    tails: Vec<u32>,
    ancestors: Vec<u32>,
    q: Vec<bf16>,
    slots: Vec<bf16>,
    entries: Vec<u32>,
    counts: Vec<u32>,
    tail: Vec<bf16>,
}

impl Case {
    fn new(group: usize, block: BlockShape, rows: &[usize], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let g = geometry(2 * group, 2, block.head_dim);
        let seqs = rows.len();
        let shape =
            CacheShape { seqs, kv_heads: 2, slots: 9, tail_tokens: block.tokens + 8, blocks: 1, block };
        let total: usize = rows.iter().sum();
        let mut entries = Vec::new();
        for _ in 0..shape.pools() {
            let mut order: Vec<u32> = (0..9).collect();
            random.shuffle(&mut order);
            entries.extend(order);
        }
        // Every third row is a branch: it does not see its predecessor.
        let masks = rows
            .iter()
            .flat_map(|&n| (0..n).map(|i| (1u32 << (i + 1)) - 1 - if i % 3 == 2 { 1 << (i - 1) } else { 0 }));
        Self {
            rows: rows.to_vec(),
            tails: (0..seqs).map(|_| random.below(block.tokens + 1) as u32).collect(),
            ancestors: masks.collect(),
            q: random.bf16(total * g.q_dim()),
            slots: random.bf16(shape.slot_elems()),
            entries,
            counts: (0..shape.pools()).map(|_| random.below(10) as u32).collect(),
            tail: random.bf16(shape.tail_elems()),
            g,
            shape,
        }
    }

    fn table(&self, cpu: &mut Cpu) -> RowTable<Cpu> {
        let mut rows = table(cpu, &self.rows, &self.tails);
        rows.host_ancestors.clone_from(&self.ancestors);
        rows.ancestors = cpu.upload(&self.ancestors).unwrap();
        rows
    }

    /// Output, and the masses of entries and tail, all rows poisoned before.
    fn attend(&self, cpu: &mut Cpu) -> (Vec<bf16>, Vec<f32>) {
        let rows = self.table(cpu);
        let [q, slots, tail] = [&self.q, &self.slots, &self.tail].map(|v| cpu.upload(v).unwrap());
        let (entries, count) = (cpu.upload(&self.entries).unwrap(), cpu.upload(&self.counts).unwrap());
        let mut out = cpu.upload(&poison16(self.q.len())).unwrap();
        let mut lse = cpu.upload(&poison(rows.rows() * self.g.heads * 10)).unwrap();
        let args = AttendArgs {
            geometry: &self.g,
            shape: &self.shape,
            rows: &rows,
            q: &q,
            slots: &slots,
            entries: &entries,
            entry_count: &count,
            tail: &tail,
            out: &mut out,
            block_lse: Some(&mut lse),
        };
        cpu.attend(args).unwrap();
        (out.to_vec(), lse.to_vec())
    }

    /// Keys and values of the tokens that (row, head) sees, block by block, the tail last.
    fn blocks(&self, seq: usize, row: usize, head: usize) -> Vec<Vec<(&[bf16], &[bf16])>> {
        let (d, tokens) = (self.shape.block.head_dim, self.shape.block.tokens);
        let pool = seq * 2 + head / self.g.group();
        let mut blocks = Vec::new();
        for &slot in &self.entries[pool * 9..][..self.counts[pool] as usize] {
            let (k, v) = self.slots[(pool * 9 + slot as usize) * 2 * tokens * d..][..2 * tokens * d]
                .split_at(tokens * d);
            blocks.push(k.chunks(d).zip(v.chunks(d)).collect());
        }
        let (k, v) = self.tail[pool * 2 * self.shape.tail_tokens * d..][..2 * self.shape.tail_tokens * d]
            .split_at(self.shape.tail_tokens * d);
        let first: usize = self.rows[..seq].iter().sum();
        let (committed, mask) = (self.tails[seq] as usize, self.ancestors[first + row]);
        let seen = |t: usize| t < committed || (t - committed < 32 && mask >> (t - committed) & 1 == 1);
        let tail = k.chunks(d).zip(v.chunks(d)).enumerate().filter(|&(t, _)| seen(t));
        blocks.push(tail.map(|(_, kv)| kv).collect());
        blocks
    }

    fn check(&self, out: &[bf16], lse: &[f32]) {
        let d = self.g.head_dim;
        let mut r = 0;
        for (seq, &count) in self.rows.iter().enumerate() {
            for row in 0..count {
                for head in 0..self.g.heads {
                    let at = r * self.g.heads + head;
                    let blocks = self.blocks(seq, row, head);
                    let (want, masses) = naive(&self.q[at * d..][..d], &blocks);
                    assert_close(f64s(&out[at * d..][..d]), &want, 0.5 * TOLERANCE);
                    let entries = blocks.len() - 1;
                    let got = lse[at * 10..][..entries].iter().chain(&lse[at * 10 + 9..][..1]);
                    for (got, want) in got.zip(&masses) {
                        assert!((f64::from(*got) - want).abs() < 0.5 * LSE_TOLERANCE, "{got} {want}");
                    }
                    assert!(lse[at * 10 + entries..at * 10 + 9].iter().all(|x| x.is_nan()), "not written");
                }
                r += 1;
            }
        }
    }
}

/// Softmax attention in double precision, and ln Σ exp of every block.
fn naive(q: &[bf16], blocks: &[Vec<(&[bf16], &[bf16])>]) -> (Vec<f64>, Vec<f64>) {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let q = f64s(q);
    let logit = |k: &[bf16]| f64s(k).iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() * scale;
    let (mut sum, mut out) = (0.0, vec![0.0; q.len()]);
    let mut masses = Vec::new();
    for block in blocks {
        let mut mass = 0.0;
        for (k, v) in block {
            let p = logit(k).exp();
            mass += p;
            out.iter_mut().zip(f64s(v)).for_each(|(o, v)| *o += p * v);
        }
        sum += mass;
        masses.push(mass.ln());
    }
    out.iter_mut().for_each(|o| *o /= sum);
    (out, masses)
}

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: 64 };

#[test]
fn as_in_double_precision() {
    let sizes = [
        (1, BLOCK),
        (3, BLOCK),
        (4, BlockShape { tokens: 5, head_dim: 20 }),
        (2, BlockShape { tokens: 32, head_dim: 96 }),
    ];
    for (i, (group, block)) in sizes.into_iter().enumerate() {
        let case = Case::new(group, block, &[1, 4, 8], 80 + i as u64);
        let (out, lse) = case.attend(&mut Cpu::new(2));
        case.check(&out, &lse);
    }
}

#[test]
fn slot_ids_threads_instructions_and_the_batch_leave_no_trace() {
    let case = Case::new(3, BLOCK, &[2, 1, 5], 90);
    let (out, lse) = case.attend(&mut Cpu::new(1));
    for level in Level::available() {
        let (o, l) = case.attend(&mut Cpu::new(2).at_level(level).unwrap());
        assert_eq!((bits16(&o), bits(&l)), (bits16(&out), bits(&lse)), "{level:?}");
    }
    // The same blocks in other slots.
    let mut moved = Case::new(3, BLOCK, &[2, 1, 5], 90);
    let mut random = Random::new(91);
    let chunk = BLOCK.chunk();
    for pool in 0..6 {
        let mut to: Vec<usize> = (0..9).collect();
        random.shuffle(&mut to);
        for (from, &to) in to.iter().enumerate() {
            let source = (pool * 9 + from) * chunk;
            moved.slots[(pool * 9 + to) * chunk..][..chunk]
                .copy_from_slice(&case.slots[source..source + chunk]);
        }
        moved.entries[pool * 9..][..9].iter_mut().for_each(|e| *e = to[*e as usize] as u32);
    }
    assert_eq!(bits16(&moved.attend(&mut Cpu::new(1)).0), bits16(&out));
    // The second sequence alone, and with fewer rows.
    let per_row = case.g.q_dim();
    let alone = Case {
        rows: vec![1],
        tails: vec![case.tails[1]],
        ancestors: vec![1],
        q: case.q[2 * per_row..3 * per_row].to_vec(),
        slots: case.slots[18 * chunk..36 * chunk].to_vec(),
        entries: case.entries[18..36].to_vec(),
        counts: case.counts[2..4].to_vec(),
        tail: case.tail[2 * case.shape.tail_elems() / 6..4 * case.shape.tail_elems() / 6].to_vec(),
        g: case.g.clone(),
        shape: CacheShape { seqs: 1, ..case.shape },
    };
    assert_eq!(bits16(&alone.attend(&mut Cpu::new(1)).0), bits16(&out[2 * per_row..3 * per_row]));
}

#[test]
fn what_a_row_does_not_see_may_be_anything() {
    let mut case = Case::new(2, BLOCK, &[3], 92);
    let (out, lse) = case.attend(&mut Cpu::new(1));
    let (d, half) = (64, case.shape.tail_tokens * 64);
    let end = case.tails[0] as usize + 3;
    for pool in 0..2 {
        for part in [0, half] {
            case.tail[pool * 2 * half + part..][end * d..half].fill(bf16::NAN);
        }
        let hidden = case.entries[pool * 9 + 8] as usize;
        if case.counts[pool] < 9 {
            case.slots[(pool * 9 + hidden) * BLOCK.chunk()..][..BLOCK.chunk()].fill(bf16::NAN);
        }
    }
    // Row 2 does not see row 1.
    let committed = case.tails[0] as usize + 1;
    for pool in 0..2 {
        case.tail[pool * 2 * half + committed * d..][..d].fill(bf16::NAN);
    }
    let (o, l) = case.attend(&mut Cpu::new(1));
    let per_row = case.g.q_dim();
    for row in [0, 2] {
        assert_eq!(bits16(&o[row * per_row..][..per_row]), bits16(&out[row * per_row..][..per_row]));
    }
    assert!(o[per_row..2 * per_row].iter().all(|x| x.is_nan()), "NaN in, NaN out");
    assert_eq!(bits(&l[..40]), bits(&lse[..40]));
}

#[test]
fn far_logits_do_not_overflow_and_small_masses_stay_exact() {
    let mut case = Case::new(1, BLOCK, &[1], 93);
    case.counts = vec![9, 9];
    case.slots.iter_mut().for_each(|x| *x = bf16::from_f32(x.to_f32() * 12.0));
    case.q.iter_mut().for_each(|x| *x = bf16::from_f32(x.to_f32() * 12.0));
    let (out, lse) = case.attend(&mut Cpu::new(1));
    for (i, head) in out.chunks(64).enumerate() {
        let blocks = case.blocks(0, 0, i);
        let (want, masses) = naive(&case.q[i * 64..][..64], &blocks);
        assert_close(f64s(head), &want, 2.0 * TOLERANCE);
        for (got, want) in lse[i * 10..].iter().zip(&masses) {
            assert!((f64::from(*got) - want).abs() < 1e-5 * want.abs().max(100.0), "{got} {want}");
        }
    }
}

#[test]
fn the_exact_attention_of_the_store_is_that_of_all_its_blocks_in_slots() {
    let mut cpu = Cpu::new(2);
    let mut random = Random::new(94);
    let mut case = Case::new(3, BLOCK, &[2, 0, 1], 94);
    case.counts = vec![9, 9, 0, 0, 9, 9];
    case.shape.blocks = 12;
    let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 9, block: BLOCK };
    let mut prompts = Vec::new();
    for seq in 0..3 {
        let mut extent = Extent::new(&cpu, layout).unwrap();
        extent.data.copy_from_slice(&random.bf16(layout.elems()));
        for block in 0..9 {
            for head in 0..2 {
                let pool = seq * 2 + head;
                let slot = case.entries[pool * 9 + block] as usize;
                let chunk = &case.slots[(pool * 9 + slot) * BLOCK.chunk()..][..BLOCK.chunk()];
                extent.data[layout.offset(1, block, head)..][..chunk.len()].copy_from_slice(chunk);
            }
        }
        prompts.push(Arc::new(extent));
    }
    let store = HostStore::new(prompts, 1);
    let rows = case.table(&mut cpu);
    let (q, tail) = (cpu.upload(&case.q).unwrap(), cpu.upload(&case.tail).unwrap());
    let (mut block_lse, mut out) = (poison(3 * 6 * 13), poison(3 * case.g.q_dim()));
    let args = ExactArgs {
        geometry: &case.g,
        shape: &case.shape,
        store: &store,
        layer: 1,
        rows: &rows,
        q: &q,
        tail: &tail,
        block_lse: &mut block_lse,
        out: &mut out,
    };
    cpu.exact_attend(args).unwrap();
    for (seq, row) in [(0, 0), (2, 2)] {
        for head in 0..6 {
            let (want, masses) = naive(&case.q[(row * 6 + head) * 64..][..64], &case.blocks(seq, 0, head));
            let at = seq * 6 + head;
            let got = out[at * 64..][..64].iter().map(|&x| f64::from(x));
            assert_close(got, &want, 0.5 * crate::ops::exact_attend::TOLERANCE);
            let got = block_lse[at * 13..][..9].iter().chain(&block_lse[at * 13 + 12..][..1]);
            for (got, want) in got.zip(&masses) {
                assert!((f64::from(*got) - want).abs() < 0.5 * LSE_TOLERANCE);
            }
        }
    }
    assert!(out[6 * 64..12 * 64].iter().all(|x| x.is_nan()), "a sequence without rows is skipped");
}
