//! Real models on a GPU: the same greedy tokens as on the CPU, or, where they part, a near-tie that both devices see.
//!
//! Without a GPU these tests say SKIPPED; with `OASIS_REQUIRE_GPU=1` they fail instead.

use oasis_core::checkpoint::Checkpoint;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{DraftSetup, DraftShape};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::ops::Backend;
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Mode, Settings};
use oasis_kernels::{Cpu, Cuda};
use oasis_tests::{argmax, settings};
use std::sync::Arc;

/// Tokens that are decoded after each prompt.
const TOKENS: usize = 64;

/// What counts as a near-tie: two logits this close, as a share of the row's largest. The order of sums moves a logit by up
/// to a hundredth of that on its own (`models.rs`).
const NEAR: f32 = 0.02;

fn gpu(test: &str) -> Option<Cuda> {
    match Cuda::new(0) {
        Ok(cuda) => Some(cuda),
        Err(why) => {
            assert!(std::env::var_os("OASIS_REQUIRE_GPU").is_none(), "{test}: {why}");
            println!("SKIPPED {test}: {why}");
            None
        }
    }
}

fn policies<B: Backend>(engine: &mut Engine<B>) -> Policies<B> {
    let params = Params::default();
    let entry = find("draft", oasis_predictors::drafts::<B>(), "ngram").unwrap();
    let (backend, model) = (&mut engine.backend, &engine.model);
    let draft = (entry.build)(DraftSetup { params: &params, backend, model, bundled_eagle3: None }).unwrap();
    let predictor = find("predictor", oasis_predictors::PREDICTORS, "lookahead").unwrap().build;
    let evictor = find("evictor", oasis_policies::EVICTORS, "lrs").unwrap().build;
    let summary = (find("summary", oasis_policies::SUMMARIES, "minmax").unwrap().build)(&params).unwrap();
    Policies {
        summary: Arc::from(summary),
        predictor: Arc::new(move |seed| predictor(&Params { seed, ..Params::default() })),
        evictor: Arc::new(move |seed| evictor(&Params { seed, ..Params::default() })),
        draft,
        draft_shape: DraftShape { depth: 2, branches: 1 },
    }
}

/// The tokens after every prompt, and the logits that each was taken from, `[prompt][token]`. All prompts are one batch.
struct Answers {
    tokens: Vec<Vec<u32>>,
    logits: Vec<Vec<Vec<f32>>>,
}

fn decode<B: Backend>(engine: &mut Engine<B>, mode: Mode, prompts: &[Vec<u32>]) -> Answers {
    let settings = Settings {
        block_tokens: 16,
        budget_tokens: 16 * 16,
        window_blocks: 2,
        cap: Cap::Fraction(0.2),
        max_rows: 3,
        ..settings(mode, 0)
    };
    let options = PrefillOptions { block_tokens: 16, hidden_layers: vec![] };
    let policies = policies(engine);
    let mut logits = Vec::new();
    let mut batch = Vec::new();
    for prompt in prompts {
        let prefix = Arc::new(engine.prefill(prompt, &options).unwrap());
        let first = argmax(&prefix.logits);
        logits.push(vec![prefix.logits.clone()]);
        batch.push(Start { prefix, first, future: vec![], max_new: TOKENS, seed: 0 });
    }
    let mut decoder = Decoder::new(engine, &settings, &policies, batch).unwrap();
    for _ in 1..TOKENS {
        decoder.step(None).unwrap();
        for (seq, logits) in logits.iter_mut().enumerate() {
            logits.push(decoder.logits(seq).unwrap().to_vec());
        }
    }
    let tokens = prompts.iter().enumerate().map(|(seq, p)| decoder.tokens(seq)[p.len()..].to_vec()).collect();
    Answers { tokens, logits }
}

/// Compares prompt by prompt; returns how many are equal to the last token.
fn compare(what: &str, got: &Answers, want: &Answers) -> usize {
    let mut equal = 0;
    for (i, (a, b)) in got.tokens.iter().zip(&want.tokens).enumerate() {
        assert_eq!((a.len(), b.len()), (TOKENS, TOKENS));
        let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) else {
            equal += 1;
            continue;
        };
        let (a, b) = (a[at] as usize, b[at] as usize);
        let (own, reference) = (&got.logits[i][at], &want.logits[i][at]);
        println!(
            "{what}, prompt {i}: token {at} is {a} here and {b} on the CPU; their logits are {} and {} here, {} and {} there",
            own[a], own[b], reference[a], reference[b]
        );
        for row in [own, reference] {
            let largest = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let gap = (row[a] - row[b]).abs();
            assert!(gap <= NEAR * largest, "{what}, prompt {i}, token {at}: {gap} apart is no near-tie");
        }
    }
    println!("{what}: {equal} of {} answers of {TOKENS} tokens are equal", got.tokens.len());
    equal
}

/// Eight prompts of a task, each of another length, neither the shortest nor the longest first.
fn prompts(checkpoint: &Checkpoint, task: &str) -> Vec<Vec<u32>> {
    let task = oasis_datasets::find_task(task, &Params::default()).unwrap();
    [300, 1700, 260, 517, 800, 1100, 400, 1300]
        .iter()
        .enumerate()
        .map(|(i, &length)| {
            task.samples(&checkpoint.tokenizer, length, 1, i as u64).unwrap().remove(0).prompt
        })
        .collect()
}

/// Both modes on `backend` against the same on the CPU.
fn check<B: Backend>(name: &str, backend: B, checkpoint: &Checkpoint, task: &str) {
    let prompts = prompts(checkpoint, task);
    let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
    println!("{name}: prompts of {lengths:?} tokens");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    fn engine<B: Backend>(mut backend: B, checkpoint: &Checkpoint) -> Engine<B> {
        let model = Arc::new(checkpoint.build(&mut backend).unwrap());
        Engine::new(backend, model).unwrap()
    }
    let mut device = engine(backend, checkpoint);
    let mut cpu = engine(Cpu::new(threads), checkpoint);
    for mode in [Mode::Dense, Mode::Staged] {
        let (got, want) = (decode(&mut device, mode, &prompts), decode(&mut cpu, mode, &prompts));
        let equal = compare(&format!("{name}, {}", mode.name()), &got, &want);
        assert!(2 * equal >= prompts.len(), "near-ties are rare");
    }
}

fn nano() -> Checkpoint {
    let b = oasis_datasets::nano();
    Checkpoint::from_parts("nano", b.config, b.weights, b.tokenizer, Some(b.generation_config)).unwrap()
}

#[test]
fn nano_s_greedy_tokens_are_those_of_the_cpu() {
    let Some(cuda) = gpu("nano's greedy tokens") else { return };
    check("nano", cuda, &nano(), "niah_multikey");
}

#[test]
fn smollm2_s_greedy_tokens_are_those_of_the_cpu() {
    let Some(cuda) = gpu("SmolLM2's greedy tokens") else { return };
    let Some(Ok(path)) = oasis::fetch::resolve("smollm2") else {
        println!("SKIPPED SmolLM2's greedy tokens: run `oasis fetch smollm2` first");
        assert!(std::env::var_os("OASIS_REQUIRE_MODELS").is_none(), "SmolLM2 is required, not in the cache");
        return;
    };
    check("SmolLM2", cuda, &Checkpoint::open(&path).unwrap(), "needle");
}

/// The other order of sums of a CPU without matrix instructions stands in for the other device.
#[test]
fn nano_s_greedy_tokens_are_those_of_another_order_of_sums() {
    check("nano without AMX", Cpu::new(1).without_amx(), &nano(), "niah_multikey");
}
