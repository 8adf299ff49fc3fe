//! Summaries, scores, selection.

use super::*;
use oasis_core::geometry::BlockShape;
use oasis_core::ids::Step;
use oasis_core::ops::{CacheShape, RankQuery, ScoreArgs, SelectArgs, SummariseArgs};
use oasis_core::policy::{Evictor, Keys, Reduce, SlotMeta, Summary, SummaryShape};
use oasis_core::pool::Pool;
use oasis_core::registry::{Params, find};
use oasis_core::select::Outcome;
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_kernels::ops::score;
use oasis_policies::SUMMARIES;
use std::sync::Arc;

/// Some of a block's keys, minus a fitted number, in any stored form; coordinates repeat beyond a key's width.
#[derive(Clone, Copy)]
struct SomeKeys {
    vectors: usize,
    dim: usize,
    reduce: Reduce,
    storage: Storage,
    rounding: Rounding,
}

impl Summary for SomeKeys {
    fn shape(&self, _: BlockShape) -> SummaryShape {
        let Self { vectors, dim, reduce, storage, rounding } = *self;
        SummaryShape { vectors, dim, reduce, storage, rounding }
    }

    fn fit_len(&self, _: BlockShape) -> usize {
        2
    }

    fn encode(&self, fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        for (v, out) in out.chunks_exact_mut(self.dim).enumerate() {
            for (i, x) in out.iter_mut().enumerate() {
                *x = keys.data[v * keys.head_dim + i % keys.head_dim] - fit[0];
            }
        }
    }

    fn lift(&self, fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let scale = 1.0 / (query.len() as f32).sqrt();
        for (i, x) in out.iter_mut().enumerate() {
            *x = query[i % query.len()] * scale;
        }
        fit[1]
    }
}

/// All stored forms, with one and several vectors, and all reductions.
fn summaries(d: usize) -> Vec<SomeKeys> {
    let nearest = Rounding::Nearest;
    let outward = |upper| Rounding::Outward { upper };
    let (affine, normal) = (|bits| Storage::Affine { bits }, |bits| Storage::Normal { bits });
    [
        (1, 2 * d, Reduce::Max, Storage::Bf16, outward(d)),
        (1, d, Reduce::Max, Storage::F32, nearest),
        (2, d, Reduce::Max, affine(8), nearest),
        (1, 2 * d, Reduce::Max, affine(4), outward(d)),
        (1, 2 * d - 3, Reduce::Max, affine(4), outward(d - 5)),
        (4, d, Reduce::Sum, affine(8), outward(7)),
        (4, d, Reduce::LogSumExp, normal(4), nearest),
        (4, d, Reduce::LogSumExp, normal(2), nearest),
        (3, d, Reduce::LogSumExp, normal(1), nearest),
        (3, d, Reduce::LogSumExp, Storage::Bf16, nearest),
        (2, 5, Reduce::Sum, Storage::F32, nearest),
        (1, 2 * d, Reduce::Max, affine(8), outward(d)),
        (2, d, Reduce::LogSumExp, Storage::Bf16, nearest),
        (1, d, Reduce::Max, Storage::Bf16, nearest),
    ]
    .map(|(vectors, dim, reduce, storage, rounding)| SomeKeys { vectors, dim, reduce, storage, rounding })
    .to_vec()
}

struct Case {
    g: Geometry,
    shape: CacheShape,
    summary: SomeKeys,
    group: Group,
    /// Ranking rows of each sequence; none: a stand-in query.
    masks: Option<[u32; 3]>,
    resident: bool,
}

const COUNTS: [usize; 3] = [4, 1, 3];
const CANDIDATES: [(u32, u32); 3] = [(1, 60), (2, 2), (0, 37)];

/// The summaries' bytes and the scores.
fn run<B: Backend>(b: &mut B, c: &Case) -> (Vec<u8>, Vec<f32>) {
    let mut random = Random::new(41);
    let (shape, block) = (&c.shape, c.shape.block);
    let layout = ExtentLayout { layers: 1, kv_heads: shape.kv_heads, blocks: 60, block };
    let mut prompt = || {
        let mut extent = Extent::new(b, layout).unwrap();
        extent.data.copy_from_slice(&random.bf16(layout.elems()));
        Arc::new(extent)
    };
    let store = HostStore::new((0..3).map(|_| prompt()).collect(), 1);
    let form = c.summary.shape(block);
    let fit = b.upload(&random.f32(2 * shape.pools())).unwrap();
    let mut stored = b.upload(&vec![0xa5_u8; shape.pools() * shape.blocks * form.bytes()]).unwrap();
    for seq in 0..3 {
        for blocks in [0..1, 1..60] {
            let (summary, store, fit, out) = (&c.summary, &store, &fit, &mut stored);
            b.summarise(SummariseArgs { shape, summary, store, layer: 0, seq, blocks, fit, out }).unwrap();
        }
    }
    let rows = table(b, &COUNTS, &[0; 3], 1);
    let q = random.bf16(rows.rows() * c.g.q_dim());
    let stand_in = random.f32(3 * c.g.q_dim());
    let lse: Vec<f32> = random.f32(rows.rows() * c.g.heads);
    let q = b.upload(&q).unwrap();
    let mut out = b.upload(&poison(shape.pools() * shape.blocks)).unwrap();
    b.score(ScoreArgs {
        geometry: &c.g,
        shape,
        summary: &c.summary,
        summary_shape: &form,
        summaries: &stored,
        fit: &fit,
        rows: &rows,
        q: &q,
        query: c.masks.as_ref().map_or(RankQuery::Query(&stand_in), |m| RankQuery::Rows(m)),
        candidates: &CANDIDATES,
        group: c.group,
        resident_lse: c.resident.then_some(&lse),
        out: &mut out,
    })
    .unwrap();
    (all(b, &stored), all(b, &out))
}

#[test]
fn summarise_and_score() {
    let Some((mut cpu, mut cuda)) = devices("summarise and score") else { return };
    for (heads, kv_heads, d) in [(8, 2, 64), (9, 3, 96), (5, 1, 128), (16, 1, 64), (2, 2, 128)] {
        let block = BlockShape { tokens: 4, head_dim: d };
        let shape = CacheShape { seqs: 3, kv_heads, slots: 3, tail_tokens: 12, blocks: 70, block };
        for summary in summaries(d) {
            for (masks, group, resident) in [
                (Some([1, 1, 1]), Group::Max, false),
                (Some([0b1011, 1, 0b110]), Group::Max, false),
                (Some([0b1111, 1, 0b1]), Group::Mean, false),
                (Some([0b11, 1, 0b101]), Group::SoftmaxSum, false),
                (Some([1, 1, 1]), Group::SoftmaxSum, true),
                (None, Group::Max, false),
                (None, Group::SoftmaxSum, false),
            ] {
                let c = Case { g: geometry(heads, kv_heads, d), shape, summary, group, masks, resident };
                let what =
                    format!("{heads}/{kv_heads} × {d}, {:?}, {group:?}, {masks:?}", summary.shape(block));
                let (stored, got) = run(&mut cuda, &c);
                let (want_stored, want) = run(&mut cpu, &c);
                assert!(stored == want_stored, "{what}: stored bytes");
                let written = |i: usize| {
                    let (first, end) = CANDIDATES[i / 70 / kv_heads];
                    (first..end).contains(&((i % 70) as u32))
                };
                near(&what, &got, &want, score::TOLERANCE, written);
            }
        }
    }
}

/// Keys of which some blocks are all zeros of either sign, hold a NaN or an infinity, are denormal, huge, or all alike.
fn nasty_keys(random: &mut Random, layout: &ExtentLayout) -> Vec<bf16> {
    let mut keys = random.bf16(layout.elems());
    let (chunk, pools) = (layout.block.chunk(), layout.kv_heads);
    for (i, keys) in keys.chunks_exact_mut(chunk).enumerate() {
        let odd = random.below(chunk / 2);
        let mut scale = |by: f32| keys.iter_mut().for_each(|k| *k = bf16::from_f32(k.to_f32() * by));
        match i / pools % 12 {
            0 => keys.iter_mut().for_each(|k| *k = bf16::from_bits(k.to_bits() & 0x8000)),
            1 => keys[odd] = bf16::from_bits(0xffc1),
            2 => keys[odd] = bf16::INFINITY,
            3 => keys[odd] = bf16::NEG_INFINITY,
            4 => keys.iter_mut().for_each(|k| *k = bf16::from_bits(k.to_bits() & 0x807f)),
            5 => scale(1e38),
            6 => keys.fill(bf16::from_f32(-0.3)),
            7 => scale(1e-3),
            8 => scale(300.0),
            9 => keys.iter_mut().for_each(|k| *k = bf16::from_f32(k.to_f32() + 40.0)),
            _ => {}
        }
    }
    keys
}

/// The bytes of all summaries of a prompt and of what was grown behind it.
fn encoded<B: Backend>(b: &mut B, summary: &dyn Summary, block: BlockShape) -> Vec<u8> {
    let mut random = Random::new(61);
    let shape =
        CacheShape { seqs: 2, kv_heads: 2, slots: 1, tail_tokens: block.tokens + 1, blocks: 60, block };
    let layout = ExtentLayout { layers: 2, kv_heads: 2, blocks: 48, block };
    let mut prompt = || {
        let mut extent = Extent::new(b, layout).unwrap();
        extent.data.copy_from_slice(&nasty_keys(&mut random, &layout));
        Arc::new(extent)
    };
    let mut store = HostStore::new(vec![prompt(), prompt()], 3);
    for _ in 0..5 {
        let block_id = store.grow(b, 1).unwrap();
        for head in 0..2 {
            store.chunk_mut(1, 1, block_id, head).unwrap().copy_from_slice(&random.bf16(block.chunk()));
        }
    }
    let fit = b.upload(&random.f32(shape.pools() * summary.fit_len(block))).unwrap();
    let bytes = summary.shape(block).bytes();
    let mut out = b.upload(&vec![0xa5_u8; shape.pools() * shape.blocks * bytes]).unwrap();
    for (seq, blocks) in [(0, 0..1), (0, 1..48), (1, 3..53)] {
        let (shape, store, fit, out) = (&shape, &store, &fit, &mut out);
        b.summarise(SummariseArgs { shape, summary, store, layer: 1, seq, blocks, fit, out }).unwrap();
    }
    all(b, &out)
}

#[test]
fn summaries_are_encoded_alike_to_the_bit() {
    let Some((mut cpu, mut cuda)) = devices("encode") else { return };
    for (name, parameters) in [
        ("minmax", ""),
        ("quantized", ""),
        ("quantized", "bits = 4"),
        ("quantized", "inner = 'mean'"),
        ("quantized", "inner = 'exact-keys'\nbits = 4"),
        ("mean", ""),
        ("exact-keys", ""),
        ("rotated-keys", "bits = 1"),
        ("rotated-keys", ""),
        ("rotated-keys", "bits = 4"),
    ] {
        let entry = find("summary", SUMMARIES, name).unwrap();
        let summary = (entry.build)(&Params { table: parameters.parse().unwrap(), seed: 0 }).unwrap();
        for (tokens, head_dim) in [(16, 64), (16, 96), (16, 128), (8, 112), (4, 80), (3, 20), (5, 7)] {
            let block = BlockShape { tokens, head_dim };
            assert!(summary.device(block).is_some(), "{name} has a twin");
            let (got, want) =
                (encoded(&mut cuda, summary.as_ref(), block), encoded(&mut cpu, summary.as_ref(), block));
            let bytes = summary.shape(block).bytes();
            let differs = got.iter().zip(&want).position(|(a, b)| a != b);
            let place = differs.map(|i| (i / bytes / 60, i / bytes % 60, i % bytes, got[i], want[i]));
            assert_eq!(place, None, "{name} {parameters}, {block:?}: (pool, block, byte, CUDA's, the CPU's)");
        }
    }
}

/// Keeps what was selected last.
struct LeastRecent;

impl Evictor for LeastRecent {
    fn keep(&self, slot: &SlotMeta, _: Step) -> f32 {
        slot.last_selected as f32
    }
}

#[test]
fn select() {
    let Some((mut cpu, mut cuda)) = devices("select") else { return };
    fn run<B: Backend>(b: &mut B) -> (Vec<Pool>, Vec<Vec<oasis_core::ops::Move>>) {
        let block = BlockShape { tokens: 4, head_dim: 3 };
        let shape = CacheShape { seqs: 3, kv_heads: 2, slots: 20, tail_tokens: 5, blocks: 400, block };
        let mut random = Random::new(51);
        let mut pools = vec![Pool::new(20, 400); 6];
        let mut evictors: Vec<Box<dyn Evictor>> = (0..6).map(|_| Box::new(LeastRecent) as _).collect();
        let mut outcomes = vec![Outcome::default(); 6];
        let mut log = Vec::new();
        for now in 1..20 {
            let mut scores: Vec<f32> = random.f32(6 * 400).iter().map(|x| (8.0 * x).round()).collect();
            scores[random.below(2400)] = f32::NAN;
            let scores = b.upload(&scores).unwrap();
            b.select(SelectArgs {
                shape: &shape,
                scores: &scores,
                candidates: &[(1, 390), (1, 17), (1, 1)],
                k: 20,
                cap: 5,
                now,
                pools: &mut pools,
                evictors: &mut evictors,
                outcomes: &mut outcomes,
            })
            .unwrap();
            for (pool, outcome) in outcomes.iter().enumerate() {
                let moves = outcome.moves.iter().map(|m| [pool as u32, m.0, m.1]);
                log.push(moves.collect());
            }
        }
        (pools, log)
    }
    let (got, want) = (run(&mut cuda), run(&mut cpu));
    assert!(got.0 == want.0, "pools");
    assert_eq!(got.1, want.1);
}
