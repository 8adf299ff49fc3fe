//! No op allocates once it has seen its sizes.
//!
//! (The `gemm` crate, which multiplies many rows where there is no AMX, keeps a small list of its own; it is left out.)

use half::bf16;
use oasis_core::geometry::{BlockShape, Geometry, World};
use oasis_core::ids::{NONE, Step};
use oasis_core::model::Linear;
use oasis_core::ops::*;
use oasis_core::policy::{Evictor, Keys, Reduce, SlotMeta, Summary, SummaryShape};
use oasis_core::pool::Pool;
use oasis_core::select::Outcome;
use oasis_core::settings::{Group, Sampling};
use oasis_core::storage::{Rounding, Storage};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_kernels::Cpu;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The system's allocator, counted, on all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promises are the system allocator's demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: 64 };
const SHAPE: CacheShape =
    CacheShape { seqs: 2, kv_heads: 3, slots: 20, tail_tokens: 24, blocks: 100, block: BLOCK };
/// Rows of the decode step and of the prompt.
const ROWS: usize = 5;
const PROMPT: usize = 200;

struct TwoBits;

impl Summary for TwoBits {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape {
            vectors: block.tokens,
            dim: block.head_dim,
            reduce: Reduce::LogSumExp,
            storage: Storage::Normal { bits: 2 },
            rounding: Rounding::Nearest,
        }
    }

    fn encode(&self, _: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.copy_from_slice(keys.data);
    }

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        out.copy_from_slice(query);
        0.0
    }
}

struct Recent;

impl Evictor for Recent {
    fn keep(&self, slot: &SlotMeta, _: Step) -> f32 {
        slot.last_selected as f32
    }
}

type Buf<T> = <Cpu as Memory>::Buf<T>;

/// Everything that the ops of two passes need.
struct Everything {
    cpu: Cpu,
    g: Geometry,
    rows: RowTable<Cpu>,
    weight: Linear<Cpu>,
    floats: Buf<f32>,
    norm: Buf<f32>,
    wide: Buf<f32>,
    draws: Buf<f32>,
    tokens: Buf<u32>,
    q: Buf<bf16>,
    queries: Vec<bf16>,
    k: Buf<bf16>,
    v: Buf<bf16>,
    out: Buf<bf16>,
    positions: Buf<u32>,
    tail: Buf<bf16>,
    slots: Buf<bf16>,
    entries: Buf<u32>,
    count: Buf<u32>,
    lse: Buf<f32>,
    summaries: Buf<u8>,
    fit: Buf<f32>,
    scores: Buf<f32>,
    store: HostStore<Cpu>,
    layout: ExtentLayout,
    extent: <Cpu as Memory>::HostBuf<bf16>,
    pools: Vec<Pool>,
    evictors: Vec<Box<dyn Evictor>>,
    outcomes: Vec<Outcome>,
    block: usize,
    exact_lse: Vec<f32>,
    exact: Vec<f32>,
}

impl Everything {
    fn new(threads: usize) -> Self {
        let mut cpu = Cpu::new(threads);
        let g = Geometry {
            layers: 1,
            hidden: 576,
            intermediate: 640,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            vocab: 1000,
            max_positions: 4096,
            world: World::default(),
        };
        let noise = |n: usize| (0..n).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 504.0).collect::<Vec<_>>();
        let halves = |n: usize| noise(n).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let layout = ExtentLayout { layers: 1, kv_heads: 3, blocks: 80, block: BLOCK };
        let prompt = |cpu: &Cpu| {
            let mut extent = Extent::new(cpu, layout).unwrap();
            extent.data.copy_from_slice(&halves(layout.elems()));
            Arc::new(extent)
        };
        let mut store = HostStore::new(vec![prompt(&cpu), prompt(&cpu)], 4);
        let block = store.grow(&cpu, 0).unwrap();
        let seq: Vec<u32> = vec![0, 0, 0, 1, 1];
        let zeros = vec![0_u32; ROWS];
        let rows = RowTable {
            host_first: vec![0, 3, 5],
            host_tail: vec![16, 3],
            host_ancestors: vec![1, 3, 5, 1, 3],
            token: cpu.upload(&zeros).unwrap(),
            position: cpu.upload(&zeros).unwrap(),
            seq: cpu.upload(&seq).unwrap(),
            first: cpu.upload(&zeros).unwrap(),
            tail: cpu.upload(&zeros).unwrap(),
            ancestors: cpu.upload(&zeros).unwrap(),
            host_seq: seq,
        };
        let entries: Vec<u32> = (0..SHAPE.pools()).flat_map(|_| 0..20).collect();
        let positions: Vec<u32> = (0..PROMPT as u32).collect();
        let weight = cpu.upload(&halves(960 * 576)).unwrap();
        Self {
            weight: Linear { weight, bias: None, rows_out: 960, cols_in: 576 },
            floats: cpu.upload(&noise(PROMPT * 576)).unwrap(),
            norm: cpu.upload(&noise(576)).unwrap(),
            wide: cpu.upload(&noise(PROMPT * 1280)).unwrap(),
            draws: cpu.upload(&[0.3; ROWS]).unwrap(),
            tokens: cpu.alloc(ROWS).unwrap(),
            q: cpu.upload(&halves(PROMPT * 576)).unwrap(),
            queries: halves(PROMPT * 576),
            k: cpu.upload(&halves(1280 * 192)).unwrap(),
            v: cpu.upload(&halves(1280 * 192)).unwrap(),
            out: cpu.upload(&halves(PROMPT * 640)).unwrap(),
            positions: cpu.upload(&positions).unwrap(),
            tail: cpu.upload(&halves(SHAPE.tail_elems())).unwrap(),
            slots: cpu.upload(&halves(SHAPE.slot_elems())).unwrap(),
            entries: cpu.upload(&entries).unwrap(),
            count: cpu.upload(&[20; 6]).unwrap(),
            lse: cpu.alloc(ROWS * 9 * 21).unwrap(),
            summaries: cpu.alloc(SHAPE.pools() * 100 * TwoBits.shape(BLOCK).bytes()).unwrap(),
            fit: cpu.alloc(0).unwrap(),
            scores: cpu.alloc(SHAPE.pools() * 100).unwrap(),
            extent: cpu.alloc_host(layout.elems()).unwrap(),
            pools: vec![Pool::new(20, 100); 6],
            evictors: (0..6).map(|_| Box::new(Recent) as _).collect(),
            outcomes: vec![Outcome::default(); 6],
            exact_lse: vec![0.0; 2 * 9 * 101],
            exact: vec![0.0; 2 * 576],
            cpu,
            g,
            rows,
            store,
            layout,
            block,
        }
    }

    fn dense(&mut self, rows: usize) {
        let Self { cpu, g, weight, floats, norm, wide, q, k, v, out, positions, .. } = self;
        cpu.embed(&weight.weight, positions, rows, 576, floats).unwrap();
        cpu.rms_norm(floats, norm, 1e-5, rows, 576, q).unwrap();
        cpu.gemm(q, weight, rows, false, wide).unwrap();
        cpu.swiglu(wide, rows, 640, out).unwrap();
        let (geometry, first, eps) = (&*g, 0, 1e-5);
        let rope = RopeArgs {
            geometry,
            qkv: wide,
            q_norm: Some(norm),
            k_norm: None,
            eps,
            positions,
            inv_freq: norm,
            rows,
            q,
            k,
            v,
            first,
        };
        cpu.rope(rope).unwrap();
        cpu.prefill_attend(PrefillArgs { geometry, q, k, v, first, rows, out }).unwrap();
    }

    fn sparse(&mut self, now: Step) {
        let candidates = [(1, 75), (1, 70)];
        // Another query each time, so that every step fetches and evicts.
        self.cpu.write(&mut self.q, 0, &self.queries[now as usize * 500..][..ROWS * 576]).unwrap();
        let Self { cpu, g, rows, q, k, v, out, tail, slots, store, summaries, fit, scores, .. } = self;
        let (geometry, shape, rows) = (&*g, &SHAPE, &*rows);
        cpu.append(shape, rows, k, v, tail).unwrap();
        cpu.compact(shape, &[[0, 18, 17]], tail).unwrap();
        let (entries, entry_count, block_lse) = (&self.entries, &self.count, Some(&mut self.lse));
        let attend =
            AttendArgs { geometry, shape, rows, q, slots, entries, entry_count, tail, out, block_lse };
        cpu.attend(attend).unwrap();
        let (block_lse, exact) = (&mut self.exact_lse[..], &mut self.exact[..]);
        let args = ExactArgs { geometry, shape, store, layer: 0, rows, q, tail, block_lse, out: exact };
        cpu.exact_attend(args).unwrap();
        cpu.pack(&self.layout, 0, 80, k, v, &mut self.extent).unwrap();
        cpu.seal(shape, 0, 0, self.block, &[NONE, 3, NONE], tail, store, slots).unwrap();
        let (summary, layer) = (&TwoBits, 0);
        for seq in 0..2 {
            let args =
                SummariseArgs { shape, summary, store, layer, seq, blocks: 0..80, fit, out: summaries };
            cpu.summarise(args).unwrap();
        }
        let summary_shape = &summary.shape(BLOCK);
        let (query, group, resident_lse) = (RankQuery::Rows(&[0b101, 0b11]), Group::SoftmaxSum, None);
        let (summaries, candidates) = (&*summaries, &candidates);
        let args = ScoreArgs {
            geometry,
            shape,
            summary,
            summary_shape,
            summaries,
            fit,
            rows,
            q,
            query,
            candidates,
            group,
            resident_lse,
            out: scores,
        };
        cpu.score(args).unwrap();
        let (pools, evictors, outcomes) =
            (&mut self.pools[..], &mut self.evictors[..], &mut self.outcomes[..]);
        let (scores, k, cap) = (&*scores, 20, 9);
        cpu.select(SelectArgs { shape, scores, candidates, k, cap, now, pools, evictors, outcomes }).unwrap();
        let mut moves = [[0; 3]; 9];
        for (i, &(block, slot)) in outcomes[1].moves.iter().enumerate() {
            moves[i] = [1, block, slot];
        }
        let bytes = cpu.fetch(shape, 0, store, &moves[..outcomes[1].moves.len()], slots).unwrap();
        assert!(bytes > 0, "the step moves something");
        assert_eq!(bytes, (outcomes[1].moves.len() * BLOCK.bytes()) as u64);
        for (temperature, top_p) in [(0.0, 1.0), (0.8, 1.0), (0.8, 0.9)] {
            let sampling = Sampling { temperature, top_p };
            cpu.sample(&self.wide, ROWS, 960, &sampling, &self.draws, &mut self.tokens).unwrap();
        }
    }
}

#[test]
fn ops_do_not_allocate_after_warm_up() {
    for threads in [1, 2] {
        let mut world = Everything::new(threads);
        let many = world.cpu.describe().contains("amx");
        let mut pass = |now| {
            if many {
                world.dense(PROMPT);
            }
            world.dense(ROWS);
            world.sparse(now);
        };
        // Lists of misses and victims grow to their largest.
        (1..=30).for_each(&mut pass);
        let before = ALLOCATIONS.load(SeqCst);
        (31..=40).for_each(&mut pass);
        assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "{threads} thread(s)");
    }
}
