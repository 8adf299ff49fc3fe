//! What the tests across crates share: tiny random models, policies by name, short runs.

use oasis_core::bf16;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{DraftSetup, DraftShape};
use oasis_core::engine::{Engine, PrefillOptions, Prefix};
use oasis_core::geometry::{Geometry, World};
use oasis_core::model::{Family, LayerWeights, Linear, Model, ModelConfig, RopeScaling};
use oasis_core::ops::Memory;
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Emit, Mode, Sampling, Scope, Settings};
use oasis_core::stats::StepReport;
use oasis_kernels::Cpu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Sizes of a model that runs thousands of steps a second.
pub fn tiny_geometry() -> Geometry {
    Geometry {
        layers: 2,
        hidden: 32,
        intermediate: 48,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        vocab: 64,
        max_positions: 4096,
        world: World::default(),
    }
}

/// A model with random weights, spiky enough that attention prefers some blocks to others.
pub fn random_model(geometry: Geometry, family: Family, seed: u64) -> Engine<Cpu> {
    let mut backend = Cpu::new(1);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let g = geometry.clone();
    let config = ModelConfig {
        family,
        geometry,
        rms_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        qkv_bias: family == Family::Qwen2,
        qk_norm: family == Family::Qwen3,
        tied_embeddings: true,
        bos: None,
        eos: Vec::new(),
    };
    let mut linear = |backend: &mut Cpu, rows_out: usize, cols_in: usize, gain: f32, bias: bool| {
        let scale = gain / (cols_in as f32).sqrt();
        let mut draw = || (rng.random::<f32>() + rng.random::<f32>() + rng.random::<f32>() - 1.5) * 2.0;
        let weight: Vec<bf16> = (0..rows_out * cols_in).map(|_| bf16::from_f32(draw() * scale)).collect();
        let bias: Option<Vec<f32>> = bias.then(|| (0..rows_out).map(|_| draw() * 0.3).collect());
        Linear::<Cpu> {
            weight: backend.upload(&weight).unwrap(),
            bias: bias.map(|b| backend.upload(&b).unwrap()),
            rows_out,
            cols_in,
        }
    };
    let ones = |backend: &mut Cpu, n: usize| backend.upload(&vec![1.0f32; n]).unwrap();
    let layers = (0..g.layers)
        .map(|_| LayerWeights {
            attn_norm: ones(&mut backend, g.hidden),
            qkv: linear(&mut backend, g.qkv_dim(), g.hidden, 2.0, config.qkv_bias),
            q_norm: config.qk_norm.then(|| ones(&mut backend, g.head_dim)),
            k_norm: config.qk_norm.then(|| ones(&mut backend, g.head_dim)),
            out: linear(&mut backend, g.hidden, g.q_dim(), 1.0, false),
            mlp_norm: ones(&mut backend, g.hidden),
            gate_up: linear(&mut backend, 2 * g.intermediate, g.hidden, 1.0, false),
            down: linear(&mut backend, g.hidden, g.intermediate, 1.0, false),
        })
        .collect();
    let model = Model {
        embedding: linear(&mut backend, g.vocab, g.hidden, 4.0, false),
        layers,
        final_norm: ones(&mut backend, g.hidden),
        head: None,
        inv_freq: backend.upload(&config.inv_freq()).unwrap(),
        digest: format!("random-{seed}"),
        config,
    };
    Engine::new(backend, Arc::new(model)).unwrap()
}

/// Random tokens below `vocab`.
pub fn random_prompt(vocab: usize, len: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(0..vocab as u32)).collect()
}

/// Settings of the tests: blocks of 4 tokens, a sink and a window block.
pub fn settings(mode: Mode, budget_blocks: usize) -> Settings {
    Settings {
        mode,
        block_tokens: 4,
        budget_tokens: 4 * budget_blocks,
        sink_blocks: 1,
        window_blocks: 1,
        cap: Cap::Unlimited,
        scope: Scope::Resident,
        group: None,
        normalise_resident: true,
        emit: Emit::One,
        sampling: Sampling::default(),
        max_rows: 4,
        audit: false,
        seed: 0,
    }
}

/// Policies by name; parameters as TOML (`"name"` or `"name {bits = 4}"`).
pub fn policies(summary: &str, predictor: &str, evictor: &str, draft: &str) -> Policies<Cpu> {
    let split = |spec: &str| {
        let (name, table) = spec.split_once(' ').unwrap_or((spec, "{}"));
        let table = format!("t = {table}").parse::<toml::Table>().unwrap()["t"].as_table().unwrap().clone();
        (name.to_owned(), Params { table, seed: 0 })
    };
    let (name, params) = split(summary);
    let summary = (find("summary", oasis_policies::SUMMARIES, &name).unwrap().build)(&params).unwrap();
    let (name, predictor_params) = split(predictor);
    let build_predictor = find("predictor", oasis_predictors::PREDICTORS, &name).unwrap().build;
    let (name, evictor_params) = split(evictor);
    let build_evictor = find("evictor", oasis_policies::EVICTORS, &name).unwrap().build;
    let (name, draft_params) = split(draft);
    let entry = find("draft", oasis_predictors::drafts::<Cpu>(), &name).unwrap();
    // Sources without weights of their own look at the model only for its sizes.
    let mut engine = random_model(tiny_geometry(), Family::Llama, 0);
    let (backend, model) = (&mut engine.backend, &engine.model);
    let draft =
        (entry.build)(DraftSetup { params: &draft_params, backend, model, bundled_eagle3: None }).unwrap();
    Policies {
        summary: Arc::from(summary),
        predictor: Arc::new(move |seed| build_predictor(&Params { seed, ..predictor_params.clone() })),
        evictor: Arc::new(move |seed| build_evictor(&Params { seed, ..evictor_params.clone() })),
        draft,
        draft_shape: DraftShape { depth: 2, branches: 1 },
    }
}

/// A dense prefill with the tests' block size.
pub fn prefill(engine: &mut Engine<Cpu>, prompt: &[u32], block_tokens: usize) -> Arc<Prefix<Cpu>> {
    Arc::new(engine.prefill(prompt, &PrefillOptions { block_tokens, hidden_layers: Vec::new() }).unwrap())
}

/// The token that greedy decoding takes.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&l| l == best).expect("logits without NaN") as u32
}

/// What a short decode leaves behind, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Trail {
    /// Accepted tokens of each sequence after its prompt.
    pub tokens: Vec<Vec<u32>>,
    /// Bits of row 0's logits, step by step, sequence by sequence.
    pub logits: Vec<Vec<u32>>,
    /// Reports without their times.
    pub reports: Vec<StepReport>,
}

/// Decodes a batch for `steps` steps; `each` looks at the decoder after every step.
pub fn decode(
    engine: &mut Engine<Cpu>,
    settings: &Settings,
    policies: &Policies<Cpu>,
    prefixes: &[Arc<Prefix<Cpu>>],
    steps: usize,
    mut each: impl FnMut(&mut Decoder<'_, Cpu>, &StepReport),
) -> Trail {
    let max_new = steps * settings.max_rows;
    let batch = prefixes
        .iter()
        .map(|p| Start { prefix: p.clone(), first: argmax(&p.logits), future: Vec::new(), max_new, seed: 7 })
        .collect();
    let mut decoder = Decoder::new(engine, settings, policies, batch).unwrap();
    let mut trail = Trail { tokens: Vec::new(), logits: Vec::new(), reports: Vec::new() };
    for _ in 0..steps {
        let mut report = decoder.step(None).unwrap().clone();
        report.seconds = Default::default();
        for s in 0..prefixes.len() {
            trail.logits.push(decoder.logits(s).unwrap().iter().map(|l| l.to_bits()).collect());
        }
        each(&mut decoder, &report);
        trail.reports.push(report);
    }
    trail.tokens =
        (0..prefixes.len()).map(|s| decoder.tokens(s)[prefixes[s].tokens.len()..].to_vec()).collect();
    trail
}
