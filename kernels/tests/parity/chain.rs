//! The device's pools against the host's: the same decisions, counts and bytes, for every evictor, step after step.

use super::*;
use oasis_core::chain::{Chain, ChainLayer, ChainSpec, ChainSummary, PoolCounts, SeqControl};
use oasis_core::geometry::BlockShape;
use oasis_core::ids::NONE;
use oasis_core::ops::{CacheShape, Fetch, Memory, Order};
use oasis_core::policy::{DeviceSummary, Evictor, Keys, PoolEvent, Reduce, Summary, SummaryShape};
use oasis_core::pool::Pool;
use oasis_core::registry::{Params, find};
use oasis_core::select::{self, Outcome, select, top_k};
use oasis_core::settings::{Cap, Emit, Group, Mode, Sampling, Scope, Settings};
use oasis_core::storage::{Rounding, Storage};
use oasis_core::store::{Extent, ExtentLayout, HostStore};
use oasis_policies::EVICTORS;
use std::ops::Range;
use std::sync::Arc;

const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const BLOCK: BlockShape = BlockShape { tokens: 4, head_dim: 8 };
const ROWS: usize = 3;
const BLOCKS: usize = 100;
const GROWTH: usize = 3;
const STEPS: u32 = 14;

/// A block's first key; with the query e₀ its score is that key's first coordinate.
struct First;

impl Summary for First {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        let (storage, rounding) = (Storage::F32, Rounding::Nearest);
        SummaryShape { vectors: 1, dim: block.head_dim, reduce: Reduce::Max, storage, rounding }
    }

    fn encode(&self, _: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.copy_from_slice(&keys.data[..keys.head_dim]);
    }

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        out.copy_from_slice(query);
        0.0
    }

    fn device(&self, _: BlockShape) -> Option<DeviceSummary> {
        let code = "
            __device__ void summary_encode(const float* fit, const float* keys, float* out) {
                for (u32 i = threadIdx.x; i < DIM; i += blockDim.x) out[i] = keys[i];
            }
            __device__ float summary_lift(const float* fit, const float* query, float* out) {
                for (u32 i = threadIdx.x; i < DIM; i += blockDim.x) out[i] = query[i];
                return 0.0f;
            }
        ";
        Some(DeviceSummary { code: code.into() })
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    evictor: &'static str,
    mode: Mode,
    scope: Scope,
    cap: Cap,
    window: usize,
    prompts: [usize; 4],
}

impl Case {
    fn settings(&self) -> Settings {
        Settings {
            mode: self.mode,
            block_tokens: BLOCK.tokens,
            budget_tokens: 12 * BLOCK.tokens,
            sink_blocks: 1,
            window_blocks: self.window,
            cap: self.cap,
            scope: self.scope,
            group: None,
            normalise_resident: false,
            emit: Emit::One,
            sampling: Sampling::default(),
            max_rows: ROWS,
            audit: false,
            seed: 1,
        }
    }
}

/// Candidates when `n` blocks are sealed.
fn candidates(settings: &Settings, n: usize) -> Range<u32> {
    let from = settings.sink_blocks.min(n);
    from as u32..n.saturating_sub(settings.window()).max(from) as u32
}

/// One pool as the host keeps it.
struct HostPool {
    pool: Pool,
    evictor: Box<dyn Evictor>,
    attended: Vec<u32>,
    counts: PoolCounts,
}

impl HostPool {
    fn fill(&mut self, settings: &Settings, n: usize, scores: &[f32]) {
        let range = candidates(settings, n);
        let (mut order, mut wanted) = (vec![], vec![]);
        if settings.ranks() {
            top_k(scores, range.clone(), settings.k(), &mut order, &mut wanted);
        }
        let all = n <= self.pool.meta.len();
        for block in 0..n as u32 {
            let pinned = !range.contains(&block);
            if all || pinned || wanted.contains(&block) {
                let slot = self.pool.admit(block, 0) as usize;
                self.pool.selected[slot] = !pinned;
                self.evictor.observe(PoolEvent::Admit { block, now: 0 });
            }
        }
        self.refresh(settings, n);
    }

    fn refresh(&mut self, settings: &Settings, n: usize) {
        let range = candidates(settings, n);
        let selected_only = settings.scope == Scope::Selected;
        let keeps = |b: u32, s: u32| !selected_only || !range.contains(&b) || self.pool.selected[s as usize];
        let mut slots = vec![];
        self.pool.entries(keeps, &mut slots);
        self.attended = slots.iter().map(|&s| self.pool.meta[s as usize].block).collect();
    }

    /// As the loop's `observe_mass`.
    fn observe(&mut self, lse: &[&[f32]], n: usize, now: u32) {
        self.counts.attended = self.attended.len() as u32;
        let log_sum_exp = |values: &[f32]| {
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            max + values.iter().map(|v| (v - max).exp()).sum::<f32>().ln()
        };
        let fair = 1.0 / (n + 1) as f32;
        let mut mass = vec![0.0; self.attended.len()];
        for row in lse {
            let mut all = row[..mass.len()].to_vec();
            all.push(row[row.len() - 1]);
            let total = log_sum_exp(&all);
            mass.iter_mut().zip(*row).for_each(|(m, l)| *m += (l - total).exp() / lse.len() as f32);
        }
        for (&block, &m) in self.attended.iter().zip(&mass) {
            let slot = self.pool.slot(block).unwrap() as usize;
            self.pool.meta[slot].mass = m;
            if m >= fair {
                self.pool.meta[slot].last_attended = now;
                self.pool.unused[slot] = false;
            }
        }
    }

    fn select(&mut self, settings: &Settings, scores: &[f32], n: usize, now: u32) {
        let mut out = Outcome::default();
        let (range, k, cap) = (candidates(settings, n), settings.k(), settings.cap_blocks());
        select(scores, range, k, cap, now, &mut self.pool, self.evictor.as_mut(), &mut out).unwrap();
        self.counts = PoolCounts {
            wanted: out.wanted.len() as u32,
            hits: out.hits as u32,
            fetched: out.moves.len() as u32,
            dropped: out.dropped as u32,
            evicted: out.evicted.len() as u32,
            wasted: out.wasted as u32,
            nans: out.nans as u32,
            ..self.counts
        };
        self.refresh(settings, n);
    }

    /// As the loop's `admit_sealed`.
    fn seal(&mut self, settings: &Settings, block: u32, now: u32) {
        let range = candidates(settings, block as usize + 1);
        let p = &mut self.pool;
        if p.free.is_empty() {
            let mut out = Outcome::default();
            if p.meta.iter().zip(&p.selected).any(|(m, &s)| !s && range.contains(&m.block)) {
                select::evict(range, 1, now, p, self.evictor.as_mut(), &mut out).unwrap();
            }
            self.counts.seal_evicted += out.evicted.len() as u32;
            self.counts.seal_wasted += out.wasted as u32;
        }
        if !p.free.is_empty() {
            p.admit(block, now);
            self.evictor.observe(PoolEvent::Admit { block, now });
        }
        self.refresh(settings, block as usize + 1);
    }
}

struct LayerBufs {
    slots: <Cuda as Memory>::Buf<bf16>,
    tail: <Cuda as Memory>::Buf<bf16>,
    summaries: <Cuda as Memory>::Buf<u8>,
    fit: <Cuda as Memory>::Buf<f32>,
    entries: <Cuda as Memory>::Buf<u32>,
    entry_count: <Cuda as Memory>::Buf<u32>,
    q: <Cuda as Memory>::Buf<bf16>,
    block_lse: <Cuda as Memory>::Buf<f32>,
    host: Vec<HostPool>,
}

struct World {
    cuda: Cuda,
    case: Case,
    settings: Settings,
    shape: CacheShape,
    store: HostStore<Cuda>,
    layers: Vec<LayerBufs>,
    chain: <Cuda as Chain>::Chain,
    random: Random,
}

/// Scores with many ties, some NaN and infinities.
fn scores(random: &mut Random, n: usize) -> Vec<f32> {
    let mut one = || match random.below(40) {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => -0.0,
        _ => (random.below(65) as f32 - 32.0) / 4.0,
    };
    (0..n).map(|_| one()).collect()
}

impl World {
    fn new(mut cuda: Cuda, case: Case, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let settings = case.settings();
        let seqs = case.prompts.len();
        let pool_slots = settings.budget_blocks().min(BLOCKS);
        let slots = if case.mode.resident() { BLOCKS } else { pool_slots };
        let tail_tokens = BLOCK.tokens + ROWS;
        let shape = CacheShape { seqs, kv_heads: KV_HEADS, slots, tail_tokens, blocks: BLOCKS, block: BLOCK };
        let mut g = geometry(HEADS, KV_HEADS, BLOCK.head_dim);
        g.layers = LAYERS;
        let prompt = |blocks: usize| {
            let layout = ExtentLayout { layers: LAYERS, kv_heads: KV_HEADS, blocks, block: BLOCK };
            let mut extent = Extent::new(&cuda, layout).unwrap();
            extent.data.copy_from_slice(&random.bf16(layout.elems()));
            Arc::new(extent)
        };
        let mut store = HostStore::new(case.prompts.map(prompt).into(), GROWTH);
        (0..seqs).for_each(|s| store.reserve(&cuda, s, STEPS as usize).unwrap());
        let build = |seed: u64| {
            let entry = find("evictor", EVICTORS, case.evictor).unwrap();
            (entry.build)(&Params { seed, ..Params::default() }).unwrap()
        };
        let mut layers = Vec::new();
        let mut seeds = Vec::new();
        for layer in 0..LAYERS {
            let mut host = Vec::new();
            for pool in 0..shape.pools() {
                let evictor = build((layer * 1000 + pool) as u64 * 0x1234_5678_9abc_def1);
                seeds.push(evictor.device().unwrap().seed);
                let pool = Pool::new(pool_slots, BLOCKS);
                let mut pool = HostPool { pool, evictor, attended: vec![], counts: PoolCounts::default() };
                pool.fill(&settings, case.prompts[host.len() / KV_HEADS], &scores(&mut random, BLOCKS));
                host.push(pool);
            }
            layers.push(LayerBufs::new(&mut cuda, &shape, &store, case.mode, layer, host));
        }
        let views: Vec<ChainLayer<'_, Cuda>> = layers.iter().map(LayerBufs::view).collect();
        let spec = ChainSpec {
            geometry: &g,
            shape: &shape,
            pool_slots,
            settings: &settings,
            group: Group::Max,
            summary: settings.ranks().then(|| ChainSummary {
                policy: &First,
                shape: First.shape(BLOCK),
                device: First.device(BLOCK).unwrap(),
            }),
            evictor: build(0).device(),
        };
        assert_eq!(cuda.has_chain(&spec), Ok(()));
        let before = cuda.usage().device;
        let mut chain = cuda.open_chain(&spec, &views, &store, &seeds).unwrap();
        assert_eq!(cuda.usage().device - before, spec.bytes());
        drop(views);
        for (layer, l) in layers.iter().enumerate() {
            let pools: Vec<Pool> = l.host.iter().map(|h| h.pool.clone()).collect();
            cuda.load_pools(&mut chain, layer, &pools).unwrap();
        }
        Self { cuda, case, settings, shape, store, layers, chain, random }
    }

    fn step(&mut self, now: u32) {
        let seqs = self.shape.seqs;
        let retired = |s: usize| s == 1 && now > STEPS / 2;
        let counts: Vec<usize> =
            (0..seqs).map(|s| if retired(s) { 0 } else { 1 + self.random.below(ROWS) }).collect();
        let rows = table(&mut self.cuda, &counts, &vec![0; seqs], u64::from(now));
        let control: Vec<SeqControl> = (0..seqs)
            .map(|s| {
                let blocks = self.store.blocks(s);
                let range = candidates(&self.settings, blocks);
                let rows =
                    if counts[s] == 0 { 0 } else { 1 + self.random.below((1 << counts[s]) - 1) as u32 };
                SeqControl { first: range.start, end: range.end, blocks: blocks as u32, rows }
            })
            .collect();
        self.cuda.begin_pass(&mut self.chain, now, &control).unwrap();
        self.layers.iter_mut().flat_map(|l| &mut l.host).for_each(|h| h.counts = PoolCounts::default());
        for layer in 0..LAYERS {
            self.rank_layer(layer, &rows, now);
        }
        self.cuda.join().unwrap();
        self.compare(now, "ranked", &control);
        self.seal(now, &retired);
    }

    fn rank_layer(&mut self, layer: usize, rows: &RowTable<Cuda>, now: u32) {
        if !self.settings.ranks() {
            return;
        }
        let (cuda, l) = (&mut self.cuda, &mut self.layers[layer]);
        let width = self.shape.slots + 1;
        let mut q = vec![bf16::ZERO; rows.rows() * HEADS * BLOCK.head_dim];
        q.iter_mut().step_by(BLOCK.head_dim).for_each(|x| *x = bf16::ONE);
        cuda.write(&mut l.q, 0, &q).unwrap();
        let lse: Vec<f32> = self.random.f32(rows.rows() * HEADS * width).iter().map(|x| 3.0 * x).collect();
        cuda.write(&mut l.block_lse, 0, &lse).unwrap();
        let scores: Vec<Vec<f32>> = l.host.iter().map(|_| scores(&mut self.random, BLOCKS)).collect();
        let mut stored = vec![0.0_f32; self.shape.pools() * BLOCKS * BLOCK.head_dim];
        for (to, score) in stored.iter_mut().step_by(BLOCK.head_dim).zip(scores.iter().flatten()) {
            *to = *score;
        }
        cuda.write(&mut l.summaries, 0, bytemuck::cast_slice(&stored)).unwrap();
        let ahead = self.case.mode != Mode::OnDemand;
        cuda.begin_stage(layer).unwrap();
        if ahead {
            cuda.observe(&mut self.chain, layer, rows).unwrap();
        }
        cuda.rank(&mut self.chain, layer, rows).unwrap();
        cuda.end_stage(layer).unwrap();
        if !ahead {
            cuda.join().unwrap();
            cuda.begin_stage(layer).unwrap();
            cuda.observe(&mut self.chain, layer, rows).unwrap();
            cuda.end_stage(layer).unwrap();
        }
        let group = HEADS / KV_HEADS;
        for (p, h) in l.host.iter_mut().enumerate() {
            let (s, kv) = (p / KV_HEADS, p % KV_HEADS);
            let row = rows.host_first[s] as usize;
            if row == rows.host_first[s + 1] as usize {
                continue;
            }
            let n = self.store.blocks(s);
            let lse: Vec<&[f32]> =
                (0..group).map(|i| &lse[(row * HEADS + kv * group + i) * width..][..width]).collect();
            if ahead {
                h.observe(&lse, n, now);
            }
            h.select(&self.settings, &scores[p], n, now);
            if !ahead {
                h.observe(&lse, n, now);
            }
        }
    }

    /// Random tails; some sequences close up a row, some seal a block.
    fn seal(&mut self, now: u32, retired: &dyn Fn(usize) -> bool) {
        let (tokens, d) = (BLOCK.tokens, BLOCK.head_dim);
        let (mut moves, mut seals, mut rest) = (vec![], vec![], vec![]);
        for s in (0..self.shape.seqs).filter(|&s| !retired(s)) {
            if self.random.below(2) == 0 {
                moves.push([s as u32, tokens as u32 + 2, tokens as u32]);
                moves.push([s as u32, tokens as u32, 1]);
            }
            if self.random.below(3) > 0 {
                seals.push([s as u32, self.store.grow(&self.cuda, s).unwrap() as u32]);
                rest.push(self.random.below(ROWS + 1) as u32);
            }
        }
        let width = self.shape.tail_tokens * d;
        let mut tails: Vec<Vec<bf16>> = Vec::new();
        for l in &mut self.layers {
            let tail = self.random.bf16(self.shape.tail_elems());
            self.cuda.write(&mut l.tail, 0, &tail).unwrap();
            tails.push(tail);
        }
        self.cuda.commit(&mut self.chain, now, &moves, &seals, &rest).unwrap();
        let mut counts = vec![PoolCounts::default(); LAYERS * self.shape.pools()];
        // This waits for the commit, which writes host memory.
        self.cuda.counts(&mut self.chain, &mut counts).unwrap();
        for (layer, tail) in tails.iter_mut().enumerate() {
            for (i, column) in tail.chunks_exact_mut(width).enumerate() {
                let (p, half) = (i / 2, i % 2);
                let (s, head) = (p / KV_HEADS, p % KV_HEADS);
                for m in moves.iter().filter(|m| m[0] as usize == s) {
                    column.copy_within(m[1] as usize * d..(m[1] as usize + 1) * d, m[2] as usize * d);
                }
                let Some(at) = seals.iter().position(|seal| seal[0] as usize == s) else { continue };
                let block = seals[at][1];
                let chunk = self.store.chunk(layer, s, block as usize, head);
                let want = &column[..tokens * d];
                assert_eq!(bits(&chunk[half * tokens * d..][..tokens * d]), bits(want), "host chunk");
                if half == 0 && self.settings.ranks() {
                    let mut stored = vec![0_u8; 4 * d];
                    let l = &self.layers[layer];
                    self.cuda.read(&l.summaries, (p * BLOCKS + block as usize) * 4 * d, &mut stored).unwrap();
                    let key: Vec<u8> = wide(&want[..d]).iter().flat_map(|x| x.to_le_bytes()).collect();
                    assert_eq!(stored, key, "summary of a sealed block");
                }
                column.copy_within(tokens * d..(tokens + rest[at] as usize) * d, 0);
                if half == 0 {
                    self.layers[layer].host[p].seal(&self.settings, block, now);
                }
            }
            let got = all(&mut self.cuda, &self.layers[layer].tail);
            assert_eq!(bits(&got), bits(tail), "tail of layer {layer}");
        }
        self.compare(now, "sealed", &[]);
    }

    fn compare(&mut self, now: u32, when: &str, control: &[SeqControl]) {
        let pools = self.shape.pools();
        let mut counts = vec![PoolCounts::default(); LAYERS * pools];
        self.cuda.counts(&mut self.chain, &mut counts).unwrap();
        for (layer, l) in self.layers.iter().enumerate() {
            let mut resident = vec![];
            self.cuda.resident(&mut self.chain, layer, &mut resident).unwrap();
            let slots = resident.len() / pools;
            let (entries, entry_count) =
                (all(&mut self.cuda, &l.entries), all(&mut self.cuda, &l.entry_count));
            let bytes = all(&mut self.cuda, &l.slots);
            for (p, h) in l.host.iter().enumerate() {
                let what = format!("{:?}, step {now} {when}, layer {layer}, pool {p} {control:?}", self.case);
                assert_eq!(counts[layer * pools + p], h.counts, "{what}");
                let own = &resident[p * slots..][..slots];
                let sorted = |blocks: &mut dyn Iterator<Item = u32>| {
                    let mut blocks: Vec<u32> = blocks.filter(|&b| b != NONE).collect();
                    blocks.sort_unstable();
                    blocks
                };
                let want = sorted(&mut h.pool.meta.iter().map(|m| m.block));
                assert_eq!(sorted(&mut own.iter().copied()), want, "{what}");
                let physical = &entries[p * self.shape.slots..][..entry_count[p] as usize];
                let block_of = |&e: &u32| if self.case.mode.resident() { e } else { own[e as usize] };
                assert_eq!(physical.iter().map(block_of).collect::<Vec<_>>(), h.attended, "{what}");
                for &e in physical {
                    let block = block_of(&e);
                    let at = (p * self.shape.slots + e as usize) * BLOCK.chunk();
                    let chunk = self.store.chunk(layer, p / KV_HEADS, block as usize, p % KV_HEADS);
                    assert_eq!(bits(&bytes[at..at + BLOCK.chunk()]), bits(chunk), "{what}, block {block}");
                }
            }
        }
    }
}

impl LayerBufs {
    fn new(
        cuda: &mut Cuda,
        shape: &CacheShape,
        store: &HostStore<Cuda>,
        mode: Mode,
        layer: usize,
        host: Vec<HostPool>,
    ) -> Self {
        let rows = shape.seqs * ROWS;
        let mut entries = vec![NONE; shape.pools() * shape.slots];
        let mut slots = cuda.upload(&poison16(shape.slot_elems())).unwrap();
        let mut moves = vec![];
        for (p, h) in host.iter().enumerate() {
            let physical = |block: u32| if mode.resident() { block } else { h.pool.slot(block).unwrap() };
            let to = &mut entries[p * shape.slots..];
            to.iter_mut().zip(&h.attended).for_each(|(to, &block)| *to = physical(block));
            if mode.resident() {
                moves.extend((0..store.blocks(p / KV_HEADS) as u32).map(|b| [p as u32, b, b]));
            } else {
                let filled = h.pool.meta.iter().enumerate().filter(|(_, m)| m.block != NONE);
                moves.extend(filled.map(|(slot, m)| [p as u32, m.block, slot as u32]));
            }
        }
        cuda.fetch(shape, layer, store, &moves, &mut slots).unwrap();
        let entry_count: Vec<u32> = host.iter().map(|h| h.attended.len() as u32).collect();
        Self {
            slots,
            tail: cuda.upload(&poison16(shape.tail_elems())).unwrap(),
            summaries: cuda.alloc(shape.pools() * BLOCKS * First.shape(BLOCK).bytes()).unwrap(),
            fit: cuda.alloc(0).unwrap(),
            entries: cuda.upload(&entries).unwrap(),
            entry_count: cuda.upload(&entry_count).unwrap(),
            q: cuda.upload(&poison16(rows * HEADS * BLOCK.head_dim)).unwrap(),
            block_lse: cuda.upload(&poison(rows * HEADS * (shape.slots + 1))).unwrap(),
            host,
        }
    }

    fn view(&self) -> ChainLayer<'_, Cuda> {
        ChainLayer {
            slots: &self.slots,
            tail: &self.tail,
            summaries: &self.summaries,
            fit: &self.fit,
            entries: &self.entries,
            entry_count: &self.entry_count,
            q: &self.q,
            block_lse: &self.block_lse,
        }
    }
}

#[test]
fn the_device_decides_as_the_host_for_every_evictor() {
    let Some((_, cuda)) = devices("chain") else { return };
    // K is 9 with a window of 2, and 11 without one.
    let (around_k, others) = ([11, 12, 13, 60], [1, 9, 40, 75]);
    let mut run = 0;
    for entry in EVICTORS {
        for (mode, scope, cap, window, prompts) in [
            (Mode::Staged, Scope::Resident, Cap::Blocks(3), 2, around_k),
            (Mode::Staged, Scope::Selected, Cap::Blocks(1), 2, others),
            (Mode::Staged, Scope::Resident, Cap::Unlimited, 0, around_k),
            (Mode::Staged, Scope::Selected, Cap::Fraction(0.5), 2, others),
            (Mode::ResidentSparse, Scope::Selected, Cap::Blocks(3), 2, around_k),
            (Mode::OnDemand, Scope::Resident, Cap::Unlimited, 2, others),
            (Mode::Static, Scope::Resident, Cap::Unlimited, 2, around_k),
            (Mode::Window, Scope::Resident, Cap::Unlimited, 2, others),
        ] {
            let case = Case { evictor: entry.name, mode, scope, cap, window, prompts };
            let mut world = World::new(cuda.try_clone().unwrap(), case, 100 + run);
            (1..=STEPS).for_each(|now| world.step(now));
            run += 1;
        }
    }
    println!("{run} runs of {STEPS} steps");
}
