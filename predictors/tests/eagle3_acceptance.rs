//! Acceptance of the bundled EAGLE-3 head, teacher-forced on documents like those it was trained on.

use oasis_core::checkpoint::Checkpoint;
use oasis_core::draft::{Draft, DraftShape, DraftView, Target};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::model::Model;
use oasis_core::ops::{Gemm, Memory, RmsNorm};
use oasis_core::{Result, bf16};
use oasis_kernels::Cpu;
use oasis_predictors::draft::Eagle3;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

const DEPTH: usize = 3;

/// Tokens with `<bos>`, and the positions of the answers' tokens, `<eos>` included.
#[derive(Deserialize)]
struct Document {
    tokens: Vec<u32>,
    answer: Vec<usize>,
}

struct Shared(Arc<Model<Cpu>>);

impl Target<Cpu> for Shared {
    fn shallow_logits(&mut self, _: &mut Cpu, _: &[u32], _: usize) -> Result<Vec<f32>> {
        panic!("the head runs no layer of the target");
    }

    fn model(&self) -> &Model<Cpu> {
        &self.0
    }
}

/// Accepted and offered drafts at each depth.
#[derive(Default, Debug)]
struct Count([[usize; 2]; DEPTH]);

impl Count {
    fn rates(&self) -> [f64; DEPTH] {
        self.0.map(|[accepted, offered]| accepted as f64 / offered as f64)
    }
}

/// Hidden rows of the tapped layers, `[tokens][3][hidden]`, and the greedy next token of each position.
fn dense(engine: &mut Engine<Cpu>, tokens: &[u32]) -> (Vec<f32>, Vec<u32>) {
    let options = PrefillOptions { block_tokens: 16, hidden_layers: vec![0, 2, 4, 5] };
    let prefix = engine.prefill(tokens, &options).unwrap();
    let (model, backend) = (engine.model.clone(), &mut engine.backend);
    let g = &model.config.geometry;
    let (mut features, mut last) = (Vec::new(), Vec::new());
    for rows in prefix.hidden.chunks_exact(4 * g.hidden) {
        features.extend_from_slice(&rows[..3 * g.hidden]);
        last.extend_from_slice(&rows[3 * g.hidden..]);
    }
    let x = backend.upload(&last).unwrap();
    let mut normed = backend.alloc::<bf16>(last.len()).unwrap();
    let mut out = backend.alloc::<f32>(tokens.len() * g.vocab).unwrap();
    backend
        .rms_norm(&x, &model.final_norm, model.config.rms_eps, tokens.len(), g.hidden, &mut normed)
        .unwrap();
    backend.gemm(&normed, model.head(), tokens.len(), false, &mut out).unwrap();
    let mut logits = vec![0.0; tokens.len() * g.vocab];
    backend.read(&out, 0, &mut logits).unwrap();
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
    let greedy = logits.chunks_exact(g.vocab).map(|row| best(row).unwrap() as u32).collect();
    (features, greedy)
}

/// Adds a document's proposals to the counts of text and answers. A deeper draft is offered where the shallower ones
/// were accepted and the document itself took the greedy token.
fn measure(engine: &mut Engine<Cpu>, draft: &mut Eagle3<Cpu>, document: &Document, counts: &mut [Count; 2]) {
    let (features, greedy) = dense(engine, &document.tokens);
    let width = features.len() / document.tokens.len();
    let is_answer = |at: usize| document.answer.contains(&at);
    let mut target = Shared(engine.model.clone());
    for t in 0..document.tokens.len() - 2 - DEPTH {
        let text = !is_answer(t + 2);
        let view = DraftView {
            tokens: &document.tokens[..t + 2],
            hidden: &features[t * width..(t + 1) * width],
            shape: DraftShape { depth: DEPTH, branches: 1 },
            future: &[],
        };
        let tree = draft.propose(&mut engine.backend, &mut target, &view).unwrap();
        assert_eq!(tree.parents, [0, 1, 2]);
        for (ahead, token) in tree.tokens.iter().enumerate() {
            let wanted = greedy[t + 1 + ahead];
            let hit = (*token == wanted) as usize;
            let answer = is_answer(t + 2 + ahead) && is_answer(t + 1);
            for (count, counted) in counts.iter_mut().zip([text, answer]) {
                count.0[ahead][0] += hit * counted as usize;
                count.0[ahead][1] += counted as usize;
            }
            if hit == 0 || document.tokens[t + 2 + ahead] != wanted {
                break;
            }
        }
    }
}

/// `[text, answers]` at depths 1, 2, 3. `published`: of the head, on other documents. `reference`: of these documents, with
/// the program that trained the head, in float32.
fn check(length: usize, published: [[f64; DEPTH]; 2], reference: [[f64; DEPTH]; 2]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/bundled/nano");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let documents: Vec<Document> =
        serde_json::from_str(include_str!("fixtures/eagle3_documents.json")).unwrap();
    let mut backend = Cpu::new(1);
    let model = Arc::new(Checkpoint::open(&folder).unwrap().build(&mut backend).unwrap());
    let mut engine = Engine::new(backend, model.clone()).unwrap();
    let mut counts = <[Count; 2]>::default();
    for document in documents.iter().filter(|d| d.tokens.len() == length) {
        let (config, weights) = (read("eagle3_config.json"), read("eagle3.safetensors"));
        let mut draft = Eagle3::from_bytes(&config, &weights, &mut engine.backend, &model).unwrap();
        measure(&mut engine, &mut draft, document, &mut counts);
    }
    for (kind, count) in counts.iter().enumerate() {
        let rates = count.rates();
        println!("{length} {}: {rates:.4?} of {:?}", ["text", "answers"][kind], count.0);
        for depth in 0..DEPTH {
            let (rate, published, same) = (rates[depth], published[kind][depth], reference[kind][depth]);
            assert!(
                (rate - published).abs() < 0.02,
                "{length} depth {depth}: {rate:.4}, published {published}"
            );
            // The same positions of the same documents: nothing but rounding may differ.
            assert!((rate - same).abs() < 0.005, "{length} depth {depth}: {rate:.4}, reference {same}");
        }
    }
}

#[test]
fn acceptance_at_512_tokens_is_the_published_one() {
    check(
        512,
        [[0.864, 0.893, 0.883], [0.977, 0.996, 0.998]],
        [[0.8516, 0.9001, 0.8970], [0.9908, 0.9985, 0.9977]],
    );
}

#[test]
fn acceptance_at_2048_tokens_is_the_published_one() {
    check(
        2048,
        [[0.856, 0.891, 0.882], [0.962, 0.993, 0.997]],
        [[0.8560, 0.8842, 0.8721], [0.9467, 0.9922, 0.9925]],
    );
}
