//! The bundled head in the decode loop: what it verifies it emits, and the text stays greedy decoding's.

use oasis_core::Result;
use oasis_core::checkpoint::Checkpoint;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{Draft, DraftFactory, DraftShape};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::geometry::BlockShape;
use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, Keys, Predictor, Reduce, SlotMeta, Summary, SummaryShape};
use oasis_core::settings::{Cap, Emit, Mode, Sampling, Scope, Settings};
use oasis_core::storage::{Rounding, Storage};
use oasis_kernels::Cpu;
use oasis_predictors::draft::{Eagle3, NoDraft};
use oasis_predictors::predictor::Lookahead;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// As many answer tokens are decoded at most.
const MAX_NEW: usize = 24;

const EOS: u32 = 2;

#[derive(Deserialize)]
struct Document {
    tokens: Vec<u32>,
    answer: Vec<usize>,
}

/// Dense decoding asks neither of these two.
struct FirstKey;

impl Summary for FirstKey {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        let (storage, rounding) = (Storage::Bf16, Rounding::Nearest);
        SummaryShape { vectors: 1, dim: block.head_dim, reduce: Reduce::Max, storage, rounding }
    }

    fn encode(&self, _: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.copy_from_slice(&keys.data[..keys.head_dim]);
    }

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        out.copy_from_slice(query);
        0.0
    }
}

struct Nobody;

impl Evictor for Nobody {
    fn keep(&self, _: &SlotMeta, _: Step) -> f32 {
        0.0
    }
}

fn settings(emit: Emit) -> Settings {
    Settings {
        mode: Mode::Dense,
        block_tokens: 16,
        budget_tokens: 256,
        sink_blocks: 1,
        window_blocks: 1,
        cap: Cap::Unlimited,
        scope: Scope::Resident,
        group: None,
        normalise_resident: true,
        emit,
        sampling: Sampling::default(),
        max_rows: 4,
        audit: false,
        seed: 0,
    }
}

fn policies(draft: DraftFactory<Cpu>) -> Policies<Cpu> {
    Policies {
        summary: Arc::new(FirstKey),
        predictor: Arc::new(|_| Ok(Box::new(Lookahead { blend: false }) as Box<dyn Predictor>)),
        evictor: Arc::new(|_| Ok(Box::new(Nobody) as Box<dyn Evictor>)),
        draft,
        draft_shape: DraftShape { depth: 3, branches: 1 },
    }
}

/// Text after the prompt, steps, drafts offered and drafts accepted.
#[derive(Default)]
struct Outcome {
    text: Vec<u32>,
    steps: usize,
    drafts: u32,
    accepted: u32,
}

fn decode(engine: &mut Engine<Cpu>, prompt: &[u32], emit: Emit, policies: &Policies<Cpu>) -> Outcome {
    let options = PrefillOptions { block_tokens: 16, hidden_layers: vec![0, 2, 4] };
    let prefix = Arc::new(engine.prefill(prompt, &options).unwrap());
    let best = prefix.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = prefix.logits.iter().position(|&l| l == best).unwrap() as u32;
    let start = Start { prefix, first, future: Vec::new(), max_new: MAX_NEW, seed: 1 };
    let mut decoder = Decoder::new(engine, &settings(emit), policies, vec![start]).unwrap();
    let mut out = Outcome { text: vec![first], ..Outcome::default() };
    while out.text.len() < MAX_NEW && !out.text.contains(&EOS) {
        let report = &decoder.step(None).unwrap().seqs[0];
        out.text.extend_from_slice(&report.emitted);
        (out.drafts, out.accepted, out.steps) =
            (out.drafts + report.drafts, out.accepted + report.accepted, out.steps + 1);
    }
    // A step may accept tokens beyond the end of the answer.
    let end = out.text.iter().position(|&t| t == EOS).map_or(MAX_NEW, |at| at + 1);
    out.text.truncate(end);
    out
}

#[test]
fn verified_drafts_are_emitted_and_change_nothing_but_the_number_of_steps() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/bundled/nano");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let documents: Vec<Document> =
        serde_json::from_str(include_str!("fixtures/eagle3_documents.json")).unwrap();
    let mut backend = Cpu::new(1);
    let model = Arc::new(Checkpoint::open(&folder).unwrap().build(&mut backend).unwrap());
    let (config, weights) = (read("eagle3_config.json"), read("eagle3.safetensors"));
    let head = Eagle3::from_bytes(&config, &weights, &mut backend, &model).unwrap().head().clone();
    let mut engine = Engine::new(backend, model).unwrap();
    let plain = policies(Arc::new(|_| Ok(Box::new(NoDraft) as Box<dyn Draft<Cpu>>)));
    let eagle: DraftFactory<Cpu> =
        Arc::new(move |_| -> Result<Box<dyn Draft<Cpu>>> { Ok(Box::new(Eagle3::new(head.clone()))) });
    let eagle = policies(eagle);
    let mut total = Outcome::default();
    for document in documents.iter().filter(|d| d.tokens.len() == 512) {
        let question = document.answer.windows(2).rposition(|w| w[1] != w[0] + 1).map_or(0, |at| at + 1);
        let prompt = &document.tokens[..document.answer[question]];
        let one = decode(&mut engine, prompt, Emit::One, &plain);
        let many = decode(&mut engine, prompt, Emit::Accepted, &eagle);
        assert_eq!(one.text, many.text);
        assert_eq!(one.steps + 1, one.text.len());
        total.text.extend(one.text);
        total.steps += many.steps;
        total.drafts += many.drafts;
        total.accepted += many.accepted;
    }
    let share = f64::from(total.accepted) / f64::from(total.drafts);
    println!("{} tokens in {} steps, {share:.3} of the drafts accepted", total.text.len(), total.steps);
    // The first token of each answer is the prefill's. Three drafts a step, most of them right: under half a step a token.
    let decoded = total.text.len() - documents.iter().filter(|d| d.tokens.len() == 512).count();
    assert!(2 * total.steps < decoded, "{decoded} tokens in {} steps", total.steps);
    assert!(share > 0.9, "{share}");
}
