use super::*;
use crate::ops::tail::tests::table;
use crate::testing::{Random, assert_close, geometry, poison};
use half::bf16;
use oasis_core::geometry::BlockShape;
use oasis_core::ops::{CacheShape, Memory};
use oasis_core::policy::{Keys, Reduce, Summary, SummaryShape};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage, decode, encode};

/// Any stored form; lifts by scaling, repeating where dim is larger, and adds the fitted bias.
struct Plain(SummaryShape);

impl Summary for Plain {
    fn shape(&self, _: BlockShape) -> SummaryShape {
        self.0
    }

    fn fit_len(&self, _: BlockShape) -> usize {
        1
    }

    fn encode(&self, _: &[f32], _: Keys<'_>, _: &mut [f32]) {}

    fn lift(&self, fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        for (i, x) in out.iter_mut().enumerate() {
            *x = query[i % query.len()] * 0.25;
        }
        fit[0]
    }
}

fn form(vectors: usize, dim: usize, reduce: Reduce, storage: Storage, rounding: Rounding) -> SummaryShape {
    SummaryShape { vectors, dim, reduce, storage, rounding }
}

fn forms() -> Vec<SummaryShape> {
    let (near, out) = (Rounding::Nearest, Rounding::Outward { upper: 64 });
    let mut all = vec![
        form(1, 128, Reduce::Max, Storage::Bf16, out),
        form(1, 70, Reduce::Sum, Storage::F32, near),
        form(3, 37, Reduce::LogSumExp, Storage::Bf16, near),
        form(1, 128, Reduce::Max, Storage::Affine { bits: 8 }, out),
        form(1, 128, Reduce::Max, Storage::Affine { bits: 4 }, out),
        form(1, 75, Reduce::Max, Storage::Affine { bits: 4 }, Rounding::Outward { upper: 41 }),
        form(5, 30, Reduce::Sum, Storage::Affine { bits: 8 }, near),
        form(100, 20, Reduce::Max, Storage::F32, near),
    ];
    for bits in [1, 2, 4] {
        all.push(form(16, 64, Reduce::LogSumExp, Storage::Normal { bits }, near));
        all.push(form(7, 33, Reduce::LogSumExp, Storage::Normal { bits }, near));
    }
    all
}

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: 32 };
const SHAPE: CacheShape =
    CacheShape { seqs: 3, kv_heads: 2, slots: 2, tail_tokens: 20, blocks: 300, block: BLOCK };
const CANDIDATES: [(u32, u32); 3] = [(1, 290), (2, 9), (5, 5)];
/// Rows of each sequence, and those that rank.
const ROWS: ([usize; 3], [u32; 3]) = ([3, 1, 1], [0b101, 0b1, 0]);

struct Case {
    form: SummaryShape,
    stored: Vec<u8>,
    q: Vec<bf16>,
    resident: Vec<f32>,
}

impl Case {
    fn new(form: SummaryShape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut stored = vec![0; SHAPE.pools() * SHAPE.blocks * form.bytes()];
        for bytes in stored.chunks_exact_mut(form.bytes()) {
            encode(form.storage, form.rounding, form.dim, &random.f32(form.vectors * form.dim), bytes);
        }
        Self { form, stored, q: random.bf16(5 * 6 * 32), resident: random.f32(5 * 6) }
    }

    /// Scores in double precision.
    fn naive(&self, group: Group, resident: bool) -> Vec<Vec<f64>> {
        (0..SHAPE.pools()).map(|pool| self.naive_pool(pool, group, resident)).collect()
    }

    fn naive_pool(&self, pool: usize, group: Group, resident: bool) -> Vec<f64> {
        let (seq, head) = (pool / 2, pool % 2);
        let (first, end) = CANDIDATES[seq];
        let first_row: usize = ROWS.0[..seq].iter().sum();
        let mut scores: Vec<(Vec<f64>, f64)> = Vec::new();
        for row in (0..ROWS.0[seq]).filter(|r| ROWS.1[seq] >> r & 1 == 1) {
            for h in head * 3..head * 3 + 3 {
                let place = (first_row + row) * 6 + h;
                let q: Vec<f64> =
                    self.q[place * 32..][..32].iter().map(|x| f64::from(x.to_f32()) * 0.25).collect();
                let s = (first..end).map(|b| self.naive_block(pool, b as usize, &q)).collect();
                scores.push((s, f64::from(self.resident[place])));
            }
        }
        let combine = |b: usize| {
            let each = scores.iter().map(|(s, lse)| match group {
                Group::Max | Group::Mean => s[b],
                Group::SoftmaxSum => {
                    let mass: f64 = s.iter().map(|x| x.exp()).sum();
                    s[b].exp() / (mass + if resident { lse.exp() } else { 0.0 })
                }
            });
            match group {
                Group::Max => each.fold(f64::NEG_INFINITY, f64::max),
                Group::Mean => each.sum::<f64>() / scores.len() as f64,
                Group::SoftmaxSum => each.sum(),
            }
        };
        (0..(end - first) as usize).map(combine).collect()
    }

    fn naive_block(&self, pool: usize, block: usize, q: &[f64]) -> f64 {
        let form = self.form;
        let stored = &self.stored[(pool * SHAPE.blocks + block) * form.bytes()..][..form.bytes()];
        let mut vectors = vec![f32::NAN; form.vectors * form.dim];
        decode(form.storage, form.rounding, form.dim, stored, &mut vectors);
        let products = vectors.chunks_exact(form.dim).map(|values| {
            let dot: f64 = values.iter().enumerate().map(|(i, &v)| f64::from(v) * q[i % 32]).sum();
            dot + pool as f64
        });
        match form.reduce {
            Reduce::Max => products.fold(f64::NEG_INFINITY, f64::max),
            Reduce::Sum => products.sum(),
            Reduce::LogSumExp => products.map(f64::exp).sum::<f64>().ln(),
        }
    }

    fn score(&self, cpu: &mut Cpu, group: Group, resident: bool) -> Vec<f32> {
        let summary = Plain(self.form);
        let g = geometry(6, 2, 32);
        let rows = table(cpu, &ROWS.0, &[0; 3]);
        let (summaries, q) = (cpu.upload(&self.stored).unwrap(), cpu.upload(&self.q).unwrap());
        let fit = cpu.upload(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let mut out = cpu.upload(&poison(SHAPE.pools() * SHAPE.blocks)).unwrap();
        let args = ScoreArgs {
            geometry: &g,
            shape: &SHAPE,
            summary: &summary,
            summary_shape: &self.form,
            summaries: &summaries,
            fit: &fit,
            rows: &rows,
            q: &q,
            query: RankQuery::Rows(&ROWS.1),
            candidates: &CANDIDATES,
            group,
            resident_lse: resident.then_some(&self.resident[..]),
            out: &mut out,
        };
        cpu.score(args).unwrap();
        out.to_vec()
    }
}

fn candidates_of(out: &[f32], pool: usize) -> &[f32] {
    let (first, end) = CANDIDATES[pool / 2];
    &out[pool * SHAPE.blocks..][first as usize..end as usize]
}

#[test]
fn every_storage_reduction_and_group_as_in_double_precision() {
    for (i, form) in forms().into_iter().enumerate() {
        let case = Case::new(form, 30 + i as u64);
        for (group, resident) in
            [(Group::Max, false), (Group::Mean, false), (Group::SoftmaxSum, false), (Group::SoftmaxSum, true)]
        {
            let out = case.score(&mut Cpu::new(2), group, resident);
            for (pool, want) in case.naive(group, resident).iter().enumerate() {
                let got = candidates_of(&out, pool);
                assert_close(got.iter().map(|&x| x.into()), want, 0.5 * TOLERANCE);
            }
            let written = out.iter().filter(|x| !x.is_nan()).count();
            assert_eq!(written, 2 * (289 + 7), "only candidates are written");
        }
    }
}

#[test]
fn threads_and_instructions_leave_no_trace() {
    for form in forms() {
        let case = Case::new(form, 50);
        let first = case.score(&mut Cpu::new(1), Group::SoftmaxSum, true);
        for level in crate::Level::available() {
            let out = case.score(&mut Cpu::new(2).at_level(level).unwrap(), Group::SoftmaxSum, true);
            assert_eq!(crate::testing::bits(&out), crate::testing::bits(&first), "{level:?} {form:?}");
        }
    }
}

#[test]
fn a_block_of_nan_is_nan_and_alone() {
    let near = Rounding::Nearest;
    for form in
        [form(1, 32, Reduce::Max, Storage::Bf16, near), form(4, 32, Reduce::LogSumExp, Storage::F32, near)]
    {
        for group in [Group::Max, Group::Mean, Group::SoftmaxSum] {
            for (bad, at) in [(f32::NAN, 7), (f32::INFINITY, 8), (f32::NEG_INFINITY, 9)] {
                let mut case = Case::new(form, 60);
                // Against positive queries, so that an infinity keeps its sign.
                case.q.iter_mut().for_each(|q| *q = bf16::from_f32(q.to_f32().abs() + 0.1));
                let mut values = vec![0.5; form.vectors * form.dim];
                values[3] = bad;
                encode(
                    form.storage,
                    near,
                    form.dim,
                    &values,
                    &mut case.stored[at * form.bytes()..][..form.bytes()],
                );
                let out = case.score(&mut Cpu::new(1), group, false);
                let got = candidates_of(&out, 0);
                for (i, x) in got.iter().enumerate() {
                    assert_eq!(x.is_nan(), i + 1 == at && bad.is_nan(), "{group:?} {bad} block {}", i + 1);
                }
                let best = got.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                assert!(bad != f32::INFINITY || got[at - 1] == best, "{group:?}: +∞ is the best");
            }
        }
    }
}

#[test]
fn a_stand_in_query_ranks_as_a_row_would() {
    let case = Case::new(form(1, 32, Reduce::Max, Storage::Bf16, Rounding::Nearest), 70);
    let mut cpu = Cpu::new(1);
    let g = geometry(6, 2, 32);
    let rows = table(&mut cpu, &[1, 1, 1], &[0; 3]);
    let stand_in: Vec<f32> = case.q[..3 * 192].iter().map(|x| x.to_f32()).collect();
    let (summaries, q) = (cpu.upload(&case.stored).unwrap(), cpu.upload(&case.q).unwrap());
    let fit = cpu.upload(&[0.0_f32; 6]).unwrap();
    let summary = Plain(case.form);
    let mut run = |query: RankQuery<'_>| {
        let mut out = cpu.upload(&poison(SHAPE.pools() * SHAPE.blocks)).unwrap();
        let args = ScoreArgs {
            geometry: &g,
            shape: &SHAPE,
            summary: &summary,
            summary_shape: &case.form,
            summaries: &summaries,
            fit: &fit,
            rows: &rows,
            q: &q,
            query,
            candidates: &CANDIDATES,
            group: Group::Max,
            resident_lse: None,
            out: &mut out,
        };
        cpu.score(args).map(|()| crate::testing::bits(&out))
    };
    assert_eq!(run(RankQuery::Query(&stand_in)).unwrap(), run(RankQuery::Rows(&[1, 1, 1])).unwrap());
    let error = run(RankQuery::Rows(&[2, 1, 1])).unwrap_err();
    assert!(error.to_string().contains("row mask"), "{error}");
    assert!(run(RankQuery::Rows(&[0, 1, 1])).is_err());
}
