//! The CUDA backend's ops at the sizes of an 8-billion-parameter model: time from the call to the end of the work, in a
//! row of calls, and the bytes a second that a step must read.

use half::bf16;
use oasis_core::geometry::{BlockShape, Geometry, World};
use oasis_core::model::Linear;
use oasis_core::ops::*;
use oasis_core::policy::{Keys, Reduce, Summary, SummaryShape};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_kernels::Cuda;
use std::sync::Arc;
use std::time::Instant;

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: 128 };
const G: Geometry = Geometry {
    layers: 36,
    hidden: 4096,
    intermediate: 12_288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
    max_positions: 40_960,
    world: World { rank: 0, size: 1 },
};

/// Stands for min/max: one vector of twice the width, bf16.
struct Twice;

impl Summary for Twice {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        let (storage, rounding) = (Storage::Bf16, Rounding::Nearest);
        SummaryShape { vectors: 1, dim: 2 * block.head_dim, reduce: Reduce::Max, storage, rounding }
    }

    fn encode(&self, _: &[f32], _: Keys<'_>, out: &mut [f32]) {
        out.fill(0.0);
    }

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let (a, b) = out.split_at_mut(query.len());
        a.copy_from_slice(query);
        b.copy_from_slice(query);
        0.0
    }
}

/// Runs `f` until the time can be read off, and prints it.
fn time(gpu: &mut Cuda, name: &str, bytes: usize, mut f: impl FnMut(&mut Cuda, usize)) {
    let flag = gpu.upload(&[0_u32]).unwrap();
    let wait = |gpu: &mut Cuda| gpu.read(&flag, 0, &mut [0]).unwrap();
    (0..3).for_each(|i| f(gpu, i));
    wait(gpu);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        (0..20).for_each(|i| f(gpu, i));
        wait(gpu);
        best = best.min(start.elapsed().as_secs_f64() / 20.0);
    }
    println!("{name:44} {:9.1} µs {:8.1} GB/s", best * 1e6, bytes as f64 / best / 1e9);
}

/// Values that are not all alike, the same few million over and over.
fn fill(gpu: &mut Cuda, n: usize) -> <Cuda as Memory>::Buf<bf16> {
    let some: Vec<bf16> = (0..1_u32 << 22)
        .map(|i| bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65_536.0 - 0.5))
        .collect();
    let mut buf = gpu.alloc(n).unwrap();
    for at in (0..n).step_by(some.len()) {
        gpu.write(&mut buf, at, &some[..some.len().min(n - at)]).unwrap();
    }
    buf
}

fn products(gpu: &mut Cuda) {
    for (rows_out, cols_in) in [(6144, 4096), (4096, 4096), (24_576, 4096), (4096, 12_288), (151_936, 4096)] {
        // Copies enough to pass the L2 cache.
        let copies = (200_usize << 20).div_ceil(2 * rows_out * cols_in).max(1);
        let weights: Vec<Linear<Cuda>> = (0..copies)
            .map(|_| Linear { weight: fill(gpu, rows_out * cols_in), bias: None, rows_out, cols_in })
            .collect();
        for rows in [1, 16, 48, 512] {
            let x = fill(gpu, rows * cols_in);
            let mut out = gpu.alloc::<f32>(rows * rows_out).unwrap();
            let name = format!("gemm {rows_out} × {cols_in}, {rows} rows");
            time(gpu, &name, 2 * rows_out * cols_in, |gpu, i| {
                gpu.gemm(&x, &weights[i % copies], rows, false, &mut out).unwrap();
            });
        }
    }
}

fn table(gpu: &mut Cuda, seqs: usize) -> RowTable<Cuda> {
    let first: Vec<u32> = (0..=seqs as u32).collect();
    let (ones, tails) = (vec![1_u32; seqs], vec![7_u32; seqs]);
    RowTable {
        token: gpu.upload(&ones).unwrap(),
        position: gpu.upload(&ones).unwrap(),
        seq: gpu.upload(&first[..seqs]).unwrap(),
        first: gpu.upload(&first).unwrap(),
        tail: gpu.upload(&tails).unwrap(),
        ancestors: gpu.upload(&ones).unwrap(),
        host_seq: first[..seqs].to_vec(),
        host_first: first,
        host_tail: tails,
        host_ancestors: ones,
    }
}

fn attention(gpu: &mut Cuda) {
    for (seqs, slots) in [(16, 128), (64, 128), (1, 1024), (16, 1024)] {
        let shape =
            CacheShape { seqs, kv_heads: G.kv_heads, slots, tail_tokens: 24, blocks: 1024, block: BLOCK };
        let pool = fill(gpu, shape.slot_elems());
        let tail = fill(gpu, shape.tail_elems());
        let entries: Vec<u32> = (0..shape.pools() * slots).map(|i| (i % slots) as u32).collect();
        let entries = gpu.upload(&entries).unwrap();
        let count = gpu.upload(&vec![slots as u32; shape.pools()]).unwrap();
        let rows = table(gpu, seqs);
        let q = fill(gpu, seqs * G.q_dim());
        let mut out = gpu.alloc::<bf16>(seqs * G.q_dim()).unwrap();
        let name = format!("attend {seqs} × {} tokens", slots * 16);
        time(gpu, &name, 2 * shape.slot_elems(), |gpu, _| {
            gpu.attend(AttendArgs {
                geometry: &G,
                shape: &shape,
                rows: &rows,
                q: &q,
                slots: &pool,
                entries: &entries,
                entry_count: &count,
                tail: &tail,
                out: &mut out,
                block_lse: None,
            })
            .unwrap();
        });
    }
    for (first, rows) in [(0, 512), (15_872, 512)] {
        let (q, k) = (fill(gpu, rows * G.q_dim()), fill(gpu, (first + rows) * G.kv_dim()));
        let mut out = gpu.alloc::<bf16>(rows * G.q_dim()).unwrap();
        let name = format!("prefill attention, {rows} rows at {first}");
        time(gpu, &name, 4 * (first + rows) * G.kv_dim(), |gpu, _| {
            gpu.prefill_attend(PrefillArgs { geometry: &G, q: &q, k: &k, v: &k, first, rows, out: &mut out })
                .unwrap();
        });
    }
}

fn blocks(gpu: &mut Cuda) {
    let (seqs, blocks) = (16, 1024);
    let shape = CacheShape { seqs, kv_heads: G.kv_heads, slots: 128, tail_tokens: 24, blocks, block: BLOCK };
    let layout = ExtentLayout { layers: 1, kv_heads: G.kv_heads, blocks, block: BLOCK };
    let extent = |gpu: &Cuda| Arc::new(Extent::new(gpu, layout).unwrap());
    let store = HostStore::new((0..seqs).map(|_| extent(gpu)).collect(), 1);
    let mut slots = gpu.alloc::<bf16>(shape.slot_elems()).unwrap();
    for each in [6, 64] {
        let moves: Vec<Move> = (0..shape.pools() as u32)
            .flat_map(|pool| (0..each).map(move |i| [pool, (pool * 37 + i * 97) % 1024, i]))
            .collect();
        let name = format!("fetch {} chunks of 8 KiB", moves.len());
        time(gpu, &name, moves.len() * BLOCK.bytes(), |gpu, _| {
            gpu.fetch(&shape, 0, &store, &moves, &mut slots).unwrap();
        });
    }
    let form = Twice.shape(BLOCK);
    let summaries = gpu.alloc::<u8>(shape.pools() * blocks * form.bytes()).unwrap();
    let fit = gpu.alloc::<f32>(0).unwrap();
    let rows = table(gpu, seqs);
    let q = fill(gpu, seqs * G.q_dim());
    let mut out = gpu.alloc::<f32>(shape.pools() * blocks).unwrap();
    let (masks, candidates) = (vec![1_u32; seqs], vec![(0, blocks as u32); seqs]);
    time(gpu, "score 16 × 16384 tokens, 512 B a block", shape.pools() * blocks * form.bytes(), |gpu, _| {
        gpu.score(ScoreArgs {
            geometry: &G,
            shape: &shape,
            summary: &Twice,
            summary_shape: &form,
            summaries: &summaries,
            fit: &fit,
            rows: &rows,
            q: &q,
            query: RankQuery::Rows(&masks),
            candidates: &candidates,
            group: Group::Max,
            resident_lse: None,
            out: &mut out,
        })
        .unwrap();
    });
}

fn main() {
    let mut gpu = match Cuda::new(0) {
        Ok(gpu) => gpu,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    println!("{}", gpu.describe());
    products(&mut gpu);
    attention(&mut gpu);
    blocks(&mut gpu);
}
