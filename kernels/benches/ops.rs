//! Speed of the CPU's ops at the sizes of SmolLM2-135M and nano, on one thread and on all cores.
//! NOTES.md says what each is bound by.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use oasis_core::geometry::{BlockShape, Geometry, World};
use oasis_core::ids::Step;
use oasis_core::model::Linear;
use oasis_core::ops::*;
use oasis_core::policy::{Evictor, Keys, Reduce, SlotMeta, Summary, SummaryShape};
use oasis_core::pool::Pool;
use oasis_core::select::Outcome;
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage, encode};
use oasis_kernels::Cpu;
use std::hint::black_box;
use std::time::Duration;

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 1009) as f32 / 504.5 - 1.0).collect()
}

fn halves(n: usize) -> Vec<bf16> {
    floats(n).into_iter().map(bf16::from_f32).collect()
}

/// One thread, and all cores if there are more.
fn devices() -> Vec<(String, Cpu)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if cores > 1 { vec![1, cores] } else { vec![1] };
    threads.into_iter().map(|n| (format!("{n} thread(s)"), Cpu::new(n))).collect()
}

fn smollm2() -> Geometry {
    Geometry {
        layers: 30,
        hidden: 576,
        intermediate: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocab: 49_152,
        max_positions: 8192,
        world: World::default(),
    }
}

fn gemm(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    let smollm2 = [(1, 3072, 576), (1, 576, 1536), (5, 3072, 576), (1, 49_152, 576), (2048, 3072, 576)];
    let nano = [(1, 1280, 256), (1, 256, 640), (2048, 1280, 256)];
    for (rows, n, k) in smollm2.into_iter().chain(nano) {
        group.throughput(if rows < 64 {
            Throughput::Bytes(2 * (n * k) as u64)
        } else {
            Throughput::Elements((rows * n * k) as u64)
        });
        for (name, mut cpu) in devices() {
            let weight = cpu.upload(&halves(n * k)).unwrap();
            let w = Linear { weight, bias: None, rows_out: n, cols_in: k };
            let x = cpu.upload(&halves(rows * k)).unwrap();
            let mut out = cpu.alloc(rows * n).unwrap();
            group.bench_function(format!("{rows} x {k} to {n}, {name}"), |b| {
                b.iter(|| cpu.gemm(&x, &w, rows, false, black_box(&mut out)).unwrap());
            });
        }
    }
}

fn prefill_attend(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefill_attend");
    let g = smollm2();
    let rows = 2048;
    group.throughput(Throughput::Elements((rows * rows * g.q_dim()) as u64));
    for (name, mut cpu) in devices() {
        let q = cpu.upload(&halves(rows * g.q_dim())).unwrap();
        let [k, v] = [0, 1].map(|_| cpu.upload(&halves(rows * g.kv_dim())).unwrap());
        let mut out = cpu.alloc(rows * g.q_dim()).unwrap();
        group.bench_function(format!("2048 tokens, one layer, {name}"), |b| {
            b.iter(|| {
                let out = black_box(&mut out);
                let args = PrefillArgs { geometry: &g, q: &q, k: &k, v: &v, first: 0, rows, out };
                cpu.prefill_attend(args).unwrap();
            });
        });
    }
}

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: 64 };
const SHAPE: CacheShape =
    CacheShape { seqs: 1, kv_heads: 3, slots: 128, tail_tokens: 24, blocks: 512, block: BLOCK };

/// `n` rows of one sequence, each seeing those before it.
fn table(cpu: &mut Cpu, n: usize) -> RowTable<Cpu> {
    RowTable {
        host_seq: vec![0; n],
        host_first: vec![0, n as u32],
        host_tail: vec![8],
        host_ancestors: (0..n).map(|i| (1 << (i + 1)) - 1).collect(),
        token: cpu.alloc(n).unwrap(),
        position: cpu.alloc(n).unwrap(),
        seq: cpu.alloc(n).unwrap(),
        first: cpu.alloc(2).unwrap(),
        tail: cpu.alloc(1).unwrap(),
        ancestors: cpu.alloc(n).unwrap(),
    }
}

fn attend(c: &mut Criterion) {
    let mut group = c.benchmark_group("attend");
    let g = smollm2();
    group.throughput(Throughput::Bytes(2 * SHAPE.slot_elems() as u64));
    for n in [1, 5] {
        for (name, mut cpu) in devices() {
            let rows = table(&mut cpu, n);
            let q = cpu.upload(&halves(n * g.q_dim())).unwrap();
            let slots = cpu.upload(&halves(SHAPE.slot_elems())).unwrap();
            let tail = cpu.upload(&halves(SHAPE.tail_elems())).unwrap();
            let order: Vec<u32> = (0..3).flat_map(|_| 0..128).collect();
            let (entries, count) = (cpu.upload(&order).unwrap(), cpu.upload(&[128; 3]).unwrap());
            let mut out = cpu.alloc(n * g.q_dim()).unwrap();
            let mut lse = cpu.alloc(n * g.heads * 129).unwrap();
            group.bench_function(format!("3 pools of 2048 tokens, {n} row(s), {name}"), |b| {
                b.iter(|| {
                    let args = AttendArgs {
                        geometry: &g,
                        shape: &SHAPE,
                        rows: &rows,
                        q: &q,
                        slots: &slots,
                        entries: &entries,
                        entry_count: &count,
                        tail: &tail,
                        out: black_box(&mut out),
                        block_lse: Some(&mut lse),
                    };
                    cpu.attend(args).unwrap();
                });
            });
        }
    }
}

/// A stored form; lifts by repeating.
struct Stored(SummaryShape);

impl Summary for Stored {
    fn shape(&self, _: BlockShape) -> SummaryShape {
        self.0
    }

    fn encode(&self, _: &[f32], _: Keys<'_>, _: &mut [f32]) {}

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        out.iter_mut().zip(query.iter().cycle()).for_each(|(out, q)| *out = q / 8.0);
        0.0
    }
}

fn score(c: &mut Criterion) {
    let mut group = c.benchmark_group("score");
    let g = smollm2();
    let minmax = |storage| SummaryShape {
        vectors: 1,
        dim: 128,
        reduce: Reduce::Max,
        storage,
        rounding: Rounding::Outward { upper: 64 },
    };
    let rotated = SummaryShape {
        vectors: 16,
        dim: 64,
        reduce: Reduce::LogSumExp,
        storage: Storage::Normal { bits: 2 },
        rounding: Rounding::Nearest,
    };
    let forms = [
        ("min/max bf16", minmax(Storage::Bf16), Group::Max),
        ("min/max int8", minmax(Storage::Affine { bits: 8 }), Group::Max),
        ("rotated keys, 2 bit", rotated, Group::SoftmaxSum),
    ];
    for (what, form, by) in forms {
        let mut stored = vec![0; SHAPE.pools() * SHAPE.blocks * form.bytes()];
        let mut values = floats(form.vectors * form.dim);
        for block in stored.chunks_exact_mut(form.bytes()) {
            values.rotate_left(1);
            encode(form.storage, form.rounding, form.dim, &values, block);
        }
        group.throughput(Throughput::Elements((SHAPE.pools() * 511) as u64));
        for (name, mut cpu) in devices() {
            let rows = table(&mut cpu, 1);
            let (summaries, q) = (cpu.upload(&stored).unwrap(), cpu.upload(&halves(g.q_dim())).unwrap());
            let (fit, mut out) = (cpu.alloc(0).unwrap(), cpu.alloc(SHAPE.pools() * SHAPE.blocks).unwrap());
            group.bench_function(format!("{what}, 3 pools of 511 blocks, {name}"), |b| {
                b.iter(|| {
                    let args = ScoreArgs {
                        geometry: &g,
                        shape: &SHAPE,
                        summary: &Stored(form),
                        summary_shape: &form,
                        summaries: &summaries,
                        fit: &fit,
                        rows: &rows,
                        q: &q,
                        query: RankQuery::Rows(&[1]),
                        candidates: &[(1, 512)],
                        group: by,
                        resident_lse: None,
                        out: black_box(&mut out),
                    };
                    cpu.score(args).unwrap();
                });
            });
        }
    }
}

struct LeastRecent;

impl Evictor for LeastRecent {
    fn keep(&self, slot: &SlotMeta, _: Step) -> f32 {
        slot.last_selected as f32
    }
}

fn select(c: &mut Criterion) {
    let mut group = c.benchmark_group("select");
    let pools = SHAPE.pools();
    group.throughput(Throughput::Elements((pools * 511) as u64));
    for (name, mut cpu) in devices() {
        // Two score arrays in turn: every step admits and evicts up to the cap.
        let scores = [0, 331].map(|shift| {
            let mut values = floats(pools * SHAPE.blocks);
            values.rotate_left(shift);
            cpu.upload(&values).unwrap()
        });
        let mut state = vec![Pool::new(123, SHAPE.blocks); pools];
        let mut evictors: Vec<Box<dyn Evictor>> = (0..pools).map(|_| Box::new(LeastRecent) as _).collect();
        let mut outcomes = vec![Outcome::default(); pools];
        let mut now = 0;
        group.bench_function(format!("3 pools of 511 blocks, K 123, cap 7, {name}"), |b| {
            b.iter(|| {
                now += 1;
                let args = SelectArgs {
                    shape: &SHAPE,
                    scores: &scores[now as usize % 2],
                    candidates: &[(1, 512)],
                    k: 123,
                    cap: 7,
                    now,
                    pools: &mut state,
                    evictors: &mut evictors,
                    outcomes: &mut outcomes,
                };
                cpu.select(args).unwrap();
            });
        });
    }
}

criterion_group! {
    name = ops;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = gemm, prefill_attend, attend, score, select
}
criterion_main!(ops);
