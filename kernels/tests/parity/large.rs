//! Offsets beyond 2³¹ elements. Arrays are filled where they lie, or hold zeros; the CPU computes the few blocks involved
//! from a small copy of them. The same code runs at small sizes on the CPU alone, so that it is known to be right.

use super::chain_decode::{MeanTwin, OnHost};
use super::decode::{Counting, VOCAB, model_config, settings};
use super::*;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::DraftShape;
use oasis_core::engine::Engine;
use oasis_core::geometry::BlockShape;
use oasis_core::model::ModelConfig;
use oasis_core::ops::{AttendArgs, CacheShape, Memory, Move, Noise, RankQuery, ScoreArgs, SummariseArgs};
use oasis_core::policy::{Predictor, RowSet, Summary};
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Group, Mode, Settings};
use oasis_core::storage::Storage;
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_core::synthetic;
use oasis_kernels::Measure;
use oasis_kernels::ops::{attend, score};
use oasis_policies::{EVICTORS, SUMMARIES};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Elements that these tests must pass.
const LIMIT: usize = 1 << 31;

const D: usize = 128;
const KV_HEADS: usize = 8;
const HEADS: usize = 32;
const SEQS: usize = 4;
const POOLS: usize = SEQS * KV_HEADS;

/// Rows of each sequence: most are of the last, whose pools lie beyond the limit.
const COUNTS: [usize; SEQS] = [1, 0, 2, 4];

/// One of these tests at a time, where the device has room for it.
fn device(op: &str, gib: u64, host_gib: u64) -> Option<(MutexGuard<'static, ()>, Cpu, Cuda)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let (cpu, cuda) = devices(op)?;
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let room = cuda.room().unwrap();
    if room.device < gib << 30 || room.host < host_gib << 30 {
        let why = format!("needs {gib} GiB of device and {host_gib} GiB of host memory; there is {room:?}");
        assert!(std::env::var_os("OASIS_REQUIRE_GPU").is_none(), "{op}: {why}");
        println!("SKIPPED {op}: {why}");
        return None;
    }
    Some((alone, cpu, cuda))
}

fn shape(block: BlockShape, slots: usize, blocks: usize) -> CacheShape {
    CacheShape { seqs: SEQS, kv_heads: KV_HEADS, slots, tail_tokens: block.tokens + 8, blocks, block }
}

/// Attention of `entries` blocks of each pool, spread over its slots.
struct Attended {
    shape: CacheShape,
    q: Vec<bf16>,
    tail: Vec<bf16>,
    /// `[pools][entries]`.
    entries: Vec<Vec<u32>>,
}

/// Content of all slots.
const SLOTS: Noise = Noise { seed: 71, mean: 0.0, deviation: 1.0 };

impl Attended {
    fn new(block: BlockShape, slots: usize) -> Self {
        let mut random = Random::new(72);
        let shape = shape(block, slots, slots);
        let mut pool = |p: usize| {
            let n = [0, 1, 7, 100][p % 4].min(slots) as u32;
            let last = slots as u32 - 1;
            let step = 1 + random.below(slots / 100) as u32;
            (0..n).map(|i| last - i * step).collect()
        };
        let entries = (0..POOLS).map(&mut pool).collect();
        let rows: usize = COUNTS.iter().sum();
        let (q, tail) = (random.bf16(rows * HEADS * D), random.bf16(shape.tail_elems()));
        Self { shape, q, tail, entries }
    }

    /// Output, and log masses of each pool's entries and tail.
    fn run<B: Backend>(
        &self,
        b: &mut B,
        shape: &CacheShape,
        slots: &B::Buf<bf16>,
        lists: &[Vec<u32>],
    ) -> (Vec<bf16>, Vec<f32>) {
        let g = geometry(HEADS, KV_HEADS, D);
        let rows = table(b, &COUNTS, &[0, 3, 7, 5], 1);
        let mut entries = vec![u32::MAX; POOLS * shape.slots];
        for (to, from) in entries.chunks_exact_mut(shape.slots).zip(lists) {
            to[..from.len()].copy_from_slice(from);
        }
        let counts: Vec<u32> = lists.iter().map(|l| l.len() as u32).collect();
        let [entries, entry_count] = [&entries, &counts].map(|v| b.upload(v).unwrap());
        let [q, tail] = [&self.q, &self.tail].map(|v| b.upload(v).unwrap());
        let mut out = b.upload(&poison16(self.q.len())).unwrap();
        let mut lse = b.upload(&poison(rows.rows() * HEADS * (shape.slots + 1))).unwrap();
        b.attend(AttendArgs {
            geometry: &g,
            shape,
            rows: &rows,
            q: &q,
            slots,
            entries: &entries,
            entry_count: &entry_count,
            tail: &tail,
            out: &mut out,
            block_lse: Some(&mut lse),
        })
        .unwrap();
        let (lse, mut masses) = (all(b, &lse), vec![]);
        for (i, columns) in lse.chunks_exact(shape.slots + 1).enumerate() {
            let pool = rows.host_seq[i / HEADS] as usize * KV_HEADS + i % HEADS / (HEADS / KV_HEADS);
            masses.extend_from_slice(&columns[..lists[pool].len()]);
            masses.push(columns[shape.slots]);
        }
        (all(b, &out), masses)
    }

    fn check<B: Backend>(&self, b: &mut B, cpu: &mut Cpu) {
        let chunk = self.shape.block.chunk();
        let mut slots = b.alloc::<bf16>(self.shape.slot_elems()).unwrap();
        b.fill_half(SLOTS, &mut slots).unwrap();
        let (got, lse) = self.run(b, &self.shape, &slots, &self.entries);
        let small = CacheShape { slots: 100, blocks: 100, ..self.shape };
        let mut few = vec![bf16::ZERO; small.slot_elems()];
        for (pool, list) in self.entries.iter().enumerate() {
            for (i, &slot) in list.iter().enumerate() {
                let from = (pool * self.shape.slots + slot as usize) * chunk;
                let to = &mut few[(pool * 100 + i) * chunk..][..chunk];
                let content = (from as u64..).map(|at| bf16::from_f32(SLOTS.at(at)));
                to.iter_mut().zip(content).for_each(|(to, x)| *to = x);
            }
        }
        let few = cpu.upload(&few).unwrap();
        let lists: Vec<Vec<u32>> = self.entries.iter().map(|l| (0..l.len() as u32).collect()).collect();
        let (want, want_lse) = self.run(cpu, &small, &few, &lists);
        close("attend", &wide(&got), &wide(&want), attend::TOLERANCE);
        near("masses", &lse, &want_lse, attend::LSE_TOLERANCE, |_| true);
    }
}

const BLOCK: BlockShape = BlockShape { tokens: 16, head_dim: D };

/// The last four pools begin beyond the limit.
const SLOT_COUNT: usize = 18_800;

#[test]
fn attend_beyond_two_to_the_31() {
    let Some((_alone, mut cpu, mut cuda)) = device("attend, large", 7, 1) else { return };
    // Blocks of whole tiles go to the tensor cores, blocks of 8 tokens do not.
    for (block, slots) in [(BLOCK, SLOT_COUNT), (BlockShape { tokens: 8, head_dim: D }, 2 * SLOT_COUNT)] {
        let attended = Attended::new(block, slots);
        assert!((POOLS - 4) * slots * block.chunk() > LIMIT);
        attended.check(&mut cuda, &mut cpu);
    }
}

/// Blocks that are summarised and scored in every pool.
const FEW: usize = 70;

/// Keys of a small store, one prompt a sequence.
fn store<B: Backend>(b: &B) -> HostStore<B> {
    let layout = ExtentLayout { layers: 1, kv_heads: KV_HEADS, blocks: FEW, block: BLOCK };
    let mut random = Random::new(73);
    let mut prompt = || {
        let mut extent = Extent::new(b, layout).unwrap();
        extent.data.copy_from_slice(&random.bf16(layout.elems()));
        Arc::new(extent)
    };
    HostStore::new((0..SEQS).map(|_| prompt()).collect(), 1)
}

/// Summaries of the first few blocks of every pool, and the scores of blocks `first ..`.
fn scored<B: Backend>(b: &mut B, summary: &dyn Summary, blocks: usize, first: usize) -> (Vec<u8>, Vec<f32>) {
    let (g, shape, form) = (geometry(HEADS, KV_HEADS, D), shape(BLOCK, 1, blocks), summary.shape(BLOCK));
    let (store, bytes) = (store(b), form.bytes());
    let fit = b.upload(&vec![0.0_f32; POOLS * summary.fit_len(BLOCK)]).unwrap();
    let mut stored = b.alloc::<u8>(POOLS * blocks * bytes).unwrap();
    for seq in 0..SEQS {
        let (shape, store, fit, out) = (&shape, &store, &fit, &mut stored);
        b.summarise(SummariseArgs { shape, summary, store, layer: 0, seq, blocks: 0..FEW, fit, out })
            .unwrap();
    }
    let mut own = vec![0; POOLS * FEW * bytes];
    for (pool, own) in own.chunks_exact_mut(FEW * bytes).enumerate() {
        b.read(&stored, pool * blocks * bytes, own).unwrap();
        b.write(&mut stored, (pool * blocks + first) * bytes, own).unwrap();
    }
    let rows = table(b, &COUNTS, &[0; SEQS], 1);
    let q = b.upload(&Random::new(74).bf16(rows.rows() * g.q_dim())).unwrap();
    let mut out = b.upload(&poison(POOLS * blocks)).unwrap();
    b.score(ScoreArgs {
        geometry: &g,
        shape: &shape,
        summary,
        summary_shape: &form,
        summaries: &stored,
        fit: &fit,
        rows: &rows,
        q: &q,
        query: RankQuery::Rows(&[1, 0, 0b11, 0b1011]),
        candidates: &COUNTS.map(|n| (first as u32, (first + FEW.min(FEW * n)) as u32)),
        group: Group::Max,
        resident_lse: None,
        out: &mut out,
    })
    .unwrap();
    let out = all(b, &out);
    (own, out.chunks_exact(blocks).flat_map(|of_pool| of_pool[first..first + FEW].to_vec()).collect())
}

fn summaries() -> [(Box<dyn Summary>, usize); 2] {
    let build = |name: &str| (find("summary", SUMMARIES, name).unwrap().build)(&Params::default()).unwrap();
    // Blocks of a pool with which the last four pools begin beyond 2³¹ elements: of two bytes, and of one.
    [(build("minmax"), 300_200), (build("rotated-keys"), 145_500)]
}

#[test]
fn score_beyond_two_to_the_31() {
    let Some((_alone, mut cpu, mut cuda)) = device("score, large", 7, 1) else { return };
    for (summary, blocks) in summaries() {
        let form = summary.shape(BLOCK);
        let wide = if form.storage == Storage::Bf16 { 2 } else { 1 };
        assert!((POOLS - 4) * blocks * form.bytes() / wide > LIMIT, "{form:?}");
        let (stored, got) = scored(&mut cuda, summary.as_ref(), blocks, blocks - FEW);
        let (want_stored, want) = scored(&mut cpu, summary.as_ref(), 2 * FEW, FEW);
        assert!(stored == want_stored, "stored bytes");
        near("scores", &got, &want, score::TOLERANCE, |i| COUNTS[i / FEW / KV_HEADS] > 0);
    }
}

/// Moves from the end of a store of 2 layers of `blocks` to the end of `slots`, and what they leave.
fn fetched<B: Backend>(b: &mut B, blocks: usize, slots: usize) {
    let shape = CacheShape { seqs: 1, ..shape(BLOCK, slots, blocks) };
    let (chunk, noise) = (BLOCK.chunk(), Noise::normal(75));
    let layout = ExtentLayout { layers: 2, kv_heads: KV_HEADS, blocks, block: BLOCK };
    let mut extent = Extent::new(b, layout).unwrap();
    b.fill_host(noise, &mut extent.data).unwrap();
    let store = HostStore::new(vec![Arc::new(extent)], 1);
    let mut to = b.alloc::<bf16>(shape.slot_elems()).unwrap();
    let (last_block, last_slot) = (blocks as u32 - 1, slots as u32 - 1);
    let moves: Vec<Move> = (0..KV_HEADS as u32)
        .flat_map(|head| (0..40).map(move |i| [head, last_block - i * (1 + head), last_slot - 2 * i]))
        .collect();
    assert_eq!(b.fetch(&shape, 1, &store, &moves, &mut to).unwrap(), (moves.len() * BLOCK.bytes()) as u64);
    let mut got = vec![bf16::ZERO; chunk];
    for [head, block, slot] in moves.iter().map(|m| m.map(|x| x as usize)) {
        let from = layout.offset(1, block, head) as u64;
        let want: Vec<bf16> = (from..).take(chunk).map(|i| bf16::from_f32(noise.at(i))).collect();
        b.read(&to, (head * slots + slot) * chunk, &mut got).unwrap();
        assert!(bits(&got) == bits(&want), "head {head}, block {block}, slot {slot}");
        b.read(&to, (head * slots + slot - 1) * chunk, &mut got).unwrap();
        assert!(got.iter().all(|x| x.to_bits() == 0), "the slot before {slot} was written");
    }
}

#[test]
fn fetch_beyond_two_to_the_31() {
    let Some((_alone, _, mut cuda)) = device("fetch, large", 7, 7) else { return };
    let (blocks, slots) = (36_000, 72_000);
    assert!(KV_HEADS * 2 * (blocks - 400) * BLOCK.chunk() > LIMIT);
    assert!((KV_HEADS * slots - 100) * BLOCK.chunk() > LIMIT);
    fetched(&mut cuda, blocks, slots);
}

/// Rows appended at the end of tails of `tokens`, and moved by `back`.
fn appended<B: Backend>(b: &mut B, tokens: usize, back: u32) {
    let shape = CacheShape { tail_tokens: tokens, ..shape(BLOCK, 1, 1) };
    let committed = tokens as u32 - 4;
    let rows = table(b, &COUNTS, &[committed; SEQS], 1);
    let mut random = Random::new(76);
    let [k, v] = [(); 2].map(|()| random.bf16(rows.rows() * KV_HEADS * D));
    let (k_rows, v_rows) = (b.upload(&k).unwrap(), b.upload(&v).unwrap());
    let mut tail = b.alloc::<bf16>(shape.tail_elems()).unwrap();
    b.append(&shape, &rows, &k_rows, &v_rows, &mut tail).unwrap();
    let moves: Vec<_> = (0..3).map(|i| [3, committed + i, committed - back + i]).collect();
    b.compact(&shape, &moves, &mut tail).unwrap();
    let mut got = vec![bf16::ZERO; D];
    let mut expect = |seq: usize, head: usize, at: u32, half: usize, want: &[bf16]| {
        let token = (((seq * KV_HEADS + head) * 2 + half) * tokens + at as usize) * D;
        b.read(&tail, token, &mut got).unwrap();
        assert!(bits(&got) == bits(want), "sequence {seq}, head {head}, token {at}, half {half}");
    };
    for (r, &seq) in rows.host_seq.iter().enumerate() {
        let i = r as u32 - rows.host_first[seq as usize];
        for head in 0..KV_HEADS {
            for (half, from) in [&k, &v].into_iter().enumerate() {
                let want = &from[(r * KV_HEADS + head) * D..][..D];
                expect(seq as usize, head, committed + i, half, want);
                let moved = seq == 3 && i < 3;
                expect(
                    seq as usize,
                    head,
                    committed - back + i,
                    half,
                    if moved { want } else { &[bf16::ZERO; D] },
                );
            }
        }
    }
}

#[test]
fn append_and_compact_beyond_two_to_the_31() {
    let Some((_alone, _, mut cuda)) = device("append, large", 7, 1) else { return };
    let tokens = 300_000;
    assert!((POOLS - 4) * 2 * tokens * D > LIMIT);
    appended(&mut cuda, tokens, 100_000);
}

/// Ranks with the newest token's query.
struct Newest;

impl Predictor for Newest {
    fn rows(&self, _: usize, _: &[u32]) -> Option<RowSet> {
        Some(RowSet::CURRENT)
    }
}

/// Logits of `steps` steps of `seqs` sequences that share a prompt of `budget` blocks and a third more, as bits; and the
/// elements of a layer's slots. Pools live on the device if the backend and a `twin` of the evictor allow.
fn decoded<B: Backend>(mut b: B, seqs: usize, budget: usize, steps: usize, twin: bool) -> (Vec<u32>, usize) {
    let config = ModelConfig {
        geometry: Geometry { hidden: 256, intermediate: 64, vocab: VOCAB, ..geometry(KV_HEADS, KV_HEADS, D) },
        ..model_config()
    };
    let prefix =
        Arc::new(synthetic::prefix(&mut b, &config.geometry, 16 * budget * 4 / 3 + 9, 16, 77).unwrap());
    let model = Arc::new(synthetic::model(&mut b, config, 78).unwrap());
    let mut engine = Engine::new(b, model).unwrap();
    let policies = Policies {
        summary: Arc::new(MeanTwin),
        predictor: Arc::new(|_| Ok(Box::new(Newest) as _)),
        evictor: Arc::new(move |seed| {
            let inner = (find("evictor", EVICTORS, "lrs")?.build)(&Params { seed, ..Params::default() })?;
            Ok(if twin { inner } else { Box::new(OnHost(inner)) })
        }),
        draft: Arc::new(|_| Ok(Box::new(Counting) as _)),
        draft_shape: DraftShape { depth: 1, branches: 1 },
    };
    let settings = Settings { budget_tokens: 16 * budget, max_rows: 1, ..settings(Mode::Staged, false) };
    let start = |seq: usize| {
        let (prefix, first, seed) = (prefix.clone(), (seq % VOCAB) as u32, seq as u64);
        Start { prefix, first, future: vec![], max_new: steps + 1, seed }
    };
    let batch = (0..seqs).map(start).collect();
    let mut decoder = Decoder::new(&mut engine, &settings, &policies, batch).unwrap();
    let on_device = decoder.on_device().map_err(str::to_owned);
    assert_eq!(on_device.is_ok(), twin && decoder.backend().name() == "cuda", "{on_device:?}");
    let (mut logits, mut fetched) = (vec![], 0);
    for _ in 0..steps {
        let report = decoder.step(None).unwrap();
        fetched += report.seqs[seqs - 1].layers[0].fetched;
        for seq in [0, seqs / 2, seqs - 1] {
            logits.extend(decoder.logits(seq).unwrap().iter().map(|x| x.to_bits()));
        }
    }
    assert!(fetched > 0 && decoder.sealed_blocks(seqs - 1) > prefix.tokens.len() / 16);
    if twin {
        decoder.verify_slots().unwrap();
    }
    (logits, seqs * KV_HEADS * budget * BLOCK.chunk())
}

#[test]
fn a_decode_with_slots_beyond_two_to_the_31() {
    let Some((_alone, _, cuda)) = device("decode, large", 8, 2) else { return };
    let (device, elements) = decoded(cuda.try_clone().unwrap(), 36, 1900, 20, true);
    assert!(elements > LIMIT);
    assert!(device == decoded(cuda, 36, 1900, 20, false).0, "pools on the device and on the host");
}

#[test]
fn the_same_at_small_sizes_on_the_cpu() {
    let mut cpu = Cpu::new(2);
    Attended::new(BLOCK, 200).check(&mut cpu.clone(), &mut cpu);
    for (summary, _) in summaries() {
        let (stored, got) = scored(&mut cpu, summary.as_ref(), 300, 300 - FEW);
        let (want_stored, want) = scored(&mut cpu, summary.as_ref(), 2 * FEW, FEW);
        assert!(stored == want_stored);
        near("scores", &got, &want, 0.0, |i| COUNTS[i / FEW / KV_HEADS] > 0);
        assert!(got[(POOLS - 1) * FEW..].iter().any(|x| *x != got[(POOLS - 1) * FEW]));
    }
    fetched(&mut cpu, 400, 100);
    appended(&mut cpu, 40, 20);
    assert!(decoded(cpu.clone(), 2, 6, 20, true).0 == decoded(Cpu::new(1), 2, 6, 20, false).0);
}
