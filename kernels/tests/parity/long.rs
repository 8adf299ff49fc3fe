//! A decode of ten thousand steps, by recorded passes: its context grows past every boundary of budgets, extents and
//! recordings. Every sealed block is what the steps wrote, every counter adds up, and the same decode with pools on the host
//! (bit for bit) and on the CPU (within what rounding does) says the same.

use super::chain_decode::{MeanTwin, OnHost, Rows};
use super::decode::{Counting, VOCAB, distance, model, settings};
use super::*;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::DraftShape;
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::policy::When;
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Mode, Settings};
use oasis_core::stats::SeqReport;
use oasis_policies::EVICTORS;
use std::sync::Arc;

/// The first two fit their budget of 12 blocks at first.
const PROMPTS: [usize; 3] = [20, 180, 333];

/// When the second sequence leaves, and passes have fewer rows.
fn leaves(steps: usize) -> usize {
    steps * 3 / 5
}

/// A token that follows: half of the time the draft's.
fn forced(steps: usize) -> Vec<[u32; 3]> {
    let mut random = Random::new(81);
    let mut now = [7_u32; 3];
    (0..steps)
        .map(|_| {
            for token in &mut now {
                let next = if random.below(2) == 0 { *token as usize + 1 } else { random.below(VOCAB) };
                *token = (next % VOCAB) as u32;
            }
            now
        })
        .collect()
}

struct Trace {
    /// Of row 0, step by step, sequence by sequence.
    logits: Vec<Vec<f32>>,
    reports: Vec<Vec<SeqReport>>,
}

/// Copies of all sealed blocks, in their order: `[sequence][block]` of `[layer][head]` chunks.
type Sealed = Vec<Vec<Vec<Vec<u16>>>>;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;

fn places() -> impl Iterator<Item = (usize, usize)> {
    (0..LAYERS).flat_map(|layer| (0..KV_HEADS).map(move |head| (layer, head)))
}

/// Takes in the blocks that a step sealed, and compares them with the tail, where they still lie.
fn watch<B: Backend>(decoder: &mut Decoder<'_, B>, block_tokens: usize, sealed: &mut Sealed) {
    for (seq, own) in sealed.iter_mut().enumerate() {
        while own.len() < decoder.sealed_blocks(seq) {
            let (block, last) = (own.len(), own.len() + 1 == decoder.sealed_blocks(seq));
            let prompt = block < PROMPTS[seq] / block_tokens;
            let chunks = places().map(|(layer, head)| {
                let chunk = bits(decoder.sealed(layer, seq, block, head).unwrap());
                if !prompt {
                    assert!(last, "a step seals one block of a sequence");
                    let tail = bits(&decoder.tail(layer, seq, head).unwrap());
                    let half = chunk.len() / 2;
                    let wrote = [&tail[..half], &tail[tail.len() / 2..][..half]].concat();
                    assert!(chunk == wrote, "sequence {seq}, block {block}, layer {layer}, head {head}");
                    assert!(chunk.iter().any(|&x| x != 0));
                }
                chunk
            });
            own.push(chunks.collect());
        }
    }
}

/// What must hold of every step's counters.
fn check_counters(report: &[SeqReport], cap: usize, block_bytes: u64, what: &str) {
    for layer in report.iter().flat_map(|seq| &seq.layers) {
        assert_eq!(layer.hits + layer.fetched + layer.dropped, layer.wanted, "{what}");
        assert_eq!(layer.bytes_h2d, layer.fetched * block_bytes, "{what}");
        assert!(layer.fetched_max <= cap as u64 && layer.nans == 0, "{what}: {layer:?}");
        assert!(layer.attended <= (KV_HEADS * 12) as u64, "{what}: {layer:?}");
    }
}

fn run<B: Backend>(mut backend: B, settings: &Settings, twin: bool, steps: usize) -> Trace {
    let policies = Policies {
        summary: Arc::new(MeanTwin),
        predictor: Arc::new(move |_| Ok(Box::new(Rows(When::Ahead)) as _)),
        evictor: Arc::new(move |seed| {
            let inner = (find("evictor", EVICTORS, "lrs")?.build)(&Params { seed, ..Params::default() })?;
            Ok(if twin { inner } else { Box::new(OnHost(inner)) })
        }),
        draft: Arc::new(|_| Ok(Box::new(Counting) as _)),
        draft_shape: DraftShape { depth: 2, branches: 1 },
    };
    let weights = Arc::new(model(&mut backend));
    let mut engine = Engine::new(backend, weights).unwrap();
    let options = PrefillOptions { block_tokens: settings.block_tokens, hidden_layers: vec![] };
    let mut random = Random::new(82);
    let mut start = |n: usize| {
        let prompt: Vec<u32> = (0..n).map(|_| random.below(VOCAB) as u32).collect();
        let prefix = Arc::new(engine.prefill(&prompt, &options).unwrap());
        Start { prefix, first: 7, future: vec![], max_new: steps + 3, seed: n as u64 }
    };
    let batch = PROMPTS.map(&mut start).into();
    let mut decoder = Decoder::new(&mut engine, settings, &policies, batch).unwrap();
    assert_eq!(decoder.on_device().is_ok(), twin && decoder.backend().name() == "cuda");
    let before = decoder.allocated();
    let mut sealed = vec![vec![]; PROMPTS.len()];
    let mut trace = Trace { logits: vec![], reports: vec![] };
    let (cap, block_bytes) = (decoder.k_and_cap().1, (2 * 16 * 64 * 2) as u64);
    let forced = forced(steps);
    for (step, next) in forced.iter().enumerate() {
        if step == leaves(steps) {
            decoder.retire(1);
        }
        watch(&mut decoder, settings.block_tokens, &mut sealed);
        let mut report = decoder.step(Some(next)).unwrap().seqs.clone();
        // A device that decides keeps no lists.
        report.iter_mut().flat_map(|r| &mut r.layers).for_each(|l| l.decided = None);
        check_counters(&report, cap, block_bytes, &format!("step {step}"));
        for seq in (0..PROMPTS.len()).filter(|&s| s != 1 || step < leaves(steps)) {
            assert_eq!(report[seq].emitted, [next[seq]], "step {step}");
            trace.logits.push(decoder.logits(seq).unwrap().to_vec());
        }
        trace.reports.push(report);
        if step % 500 == 499 {
            decoder.verify_slots().unwrap();
        }
    }
    watch(&mut decoder, settings.block_tokens, &mut sealed);
    decoder.verify_slots().unwrap();
    assert_eq!(decoder.allocated(), before, "nothing is allocated between steps");
    for (seq, own) in sealed.iter().enumerate() {
        let done = if seq == 1 { leaves(steps) } else { steps };
        assert_eq!(own.len(), (PROMPTS[seq] + done) / settings.block_tokens);
        let tokens = forced[..done].iter().map(|next| next[seq]);
        assert!(decoder.tokens(seq)[PROMPTS[seq] + 1..].iter().copied().eq(tokens));
        for (block, chunks) in own.iter().enumerate() {
            for ((layer, head), chunk) in places().zip(chunks) {
                assert!(
                    bits(decoder.sealed(layer, seq, block, head).unwrap()) == *chunk,
                    "sequence {seq}, block {block}, layer {layer}, head {head} changed after it was sealed"
                );
            }
        }
    }
    trace
}

/// Sums over all steps, layers and sequences.
fn totals(trace: &Trace) -> [u64; 3] {
    let layers = || trace.reports.iter().flatten().flat_map(|r| &r.layers);
    [layers().map(|l| l.wanted).sum(), layers().map(|l| l.attended).sum(), layers().map(|l| l.fetched).sum()]
}

/// How far logits of `got` are from those of `want`: the largest distance, and the share that is beyond 0.02.
fn far(got: &Trace, want: &Trace) -> (f64, f64) {
    assert_eq!(got.logits.len(), want.logits.len());
    let distances = got.logits.iter().zip(&want.logits).map(|(a, b)| distance(a, b));
    let (mut largest, mut beyond) = (0.0_f64, 0);
    for d in distances {
        assert!(!d.is_nan());
        largest = largest.max(d);
        beyond += usize::from(d > 0.02);
    }
    (largest, beyond as f64 / got.logits.len() as f64)
}

#[test]
fn ten_thousand_steps() {
    let Some((cpu, cuda)) = devices("ten thousand steps") else { return };
    const STEPS: usize = 10_000;
    let staged = settings(Mode::Staged, false);
    let device = run(cuda.try_clone().unwrap(), &staged, true, STEPS);
    let host = run(cuda.try_clone().unwrap(), &staged, false, STEPS);
    for (step, (a, b)) in device.reports.iter().zip(&host.reports).enumerate() {
        assert_eq!(a, b, "pools on the device and on the host, step {step}");
    }
    let differs = device
        .logits
        .iter()
        .zip(&host.logits)
        .position(|(a, b)| a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits()));
    assert_eq!(differs, None, "the first logits that differ between pools on the device and on the host");
    let want = run(cpu.clone(), &staged, true, STEPS);
    let (got_totals, want_totals) = (totals(&device), totals(&want));
    let (largest, beyond) = far(&device, &want);
    println!("wanted, attended, fetched: {got_totals:?} on CUDA, {want_totals:?} on the CPU");
    println!("logits: largest distance {largest:.4}, {:.2} % beyond 0.02", 100.0 * beyond);
    assert_eq!(got_totals[..2], want_totals[..2]);
    // Two blocks that score almost alike may change places.
    assert!(got_totals[2].abs_diff(want_totals[2]) * 50 <= want_totals[2]);
    assert!(beyond <= 0.25 && largest <= 0.5);
}

/// Nothing is selected in a window, so nothing changes places: all steps stay close.
#[test]
fn two_thousand_steps_of_a_window() {
    let Some((cpu, cuda)) = devices("two thousand steps of a window") else { return };
    let window = settings(Mode::Window, false);
    let (got, want) = (run(cuda, &window, true, 2_000), run(cpu, &window, true, 2_000));
    assert_eq!(totals(&got), totals(&want));
    let (largest, _) = far(&got, &want);
    println!("logits: largest distance {largest:.4}");
    assert!(largest <= 0.02);
}

#[test]
fn the_same_over_fewer_steps_on_the_cpu() {
    let staged = settings(Mode::Staged, false);
    let (a, b) = (run(Cpu::new(1), &staged, true, 400), run(Cpu::new(2), &staged, false, 400));
    assert!(a.logits == b.logits && a.reports == b.reports);
    let [wanted, attended, fetched] = totals(&a);
    assert!(wanted > fetched && fetched > 0 && attended > wanted, "{:?}", totals(&a));
}
