//! The whole loop, prompt and steps, on both devices: the same model, the same forced tokens, logits alike.

use super::*;
use oasis_core::Result;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{Draft, DraftShape, DraftTree, DraftView, Target};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::geometry::BlockShape;
use oasis_core::ids::Step;
use oasis_core::model::{Family, LayerWeights, Linear, Model, ModelConfig, RopeScaling};
use oasis_core::policy::{
    Evictor, Keys, Predictor, Ranking, Reduce, RowSet, SlotMeta, StepView, Summary, SummaryShape,
};
use oasis_core::settings::{Cap, Emit, Mode, Sampling, Scope, Settings};
use oasis_core::storage::{Rounding, Storage};
use std::sync::Arc;

/// A block's mean key.
pub(super) struct Mean;

impl Summary for Mean {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        let (storage, rounding) = (Storage::Bf16, Rounding::Nearest);
        SummaryShape { vectors: 1, dim: block.head_dim, reduce: Reduce::Max, storage, rounding }
    }

    fn encode(&self, _: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.fill(0.0);
        for key in keys.iter() {
            out.iter_mut().zip(key).for_each(|(out, x)| *out += x / keys.tokens as f32);
        }
    }

    fn lift(&self, _: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let scale = 1.0 / (query.len() as f32).sqrt();
        out.iter_mut().zip(query).for_each(|(out, x)| *out = x * scale);
        0.0
    }
}

struct AllRows;

impl Predictor for AllRows {
    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        Ranking::Rows(RowSet::CURRENT.union(RowSet::drafts(step.rows)))
    }
}

struct LeastRecent;

impl Evictor for LeastRecent {
    fn keep(&self, slot: &SlotMeta, _: Step) -> f32 {
        slot.last_selected as f32
    }
}

/// The next two ids.
pub(super) struct Counting;

impl<B: Backend> Draft<B> for Counting {
    fn propose(&mut self, _: &mut B, _: &mut dyn Target<B>, view: &DraftView<'_>) -> Result<DraftTree> {
        let last = view.tokens.last().copied().unwrap_or(0);
        Ok(DraftTree::chain((1..=view.shape.depth as u32).map(|i| (last + i) % VOCAB as u32).collect()))
    }
}

pub(super) const VOCAB: usize = 300;

fn linear<B: Backend>(b: &mut B, random: &mut Random, rows_out: usize, cols_in: usize) -> Linear<B> {
    let scale = 1.0 / (cols_in as f32).sqrt();
    let values: Vec<bf16> =
        random.f32(rows_out * cols_in).iter().map(|x| bf16::from_f32(x * scale)).collect();
    Linear { weight: b.upload(&values).unwrap(), bias: None, rows_out, cols_in }
}

/// Of [`model`].
pub(super) fn model_config() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        geometry: Geometry { layers: 2, hidden: 256, intermediate: 384, vocab: VOCAB, ..geometry(6, 2, 64) },
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::None,
        qkv_bias: false,
        qk_norm: true,
        tied_embeddings: true,
        bos: None,
        eos: vec![],
    }
}

pub(super) fn model<B: Backend>(b: &mut B) -> Model<B> {
    let mut random = Random::new(61);
    let config = model_config();
    let g = config.geometry.clone();
    let ones = |b: &mut B, n: usize| b.upload(&vec![1.0_f32; n]).unwrap();
    let layers = (0..g.layers)
        .map(|_| LayerWeights {
            attn_norm: ones(b, g.hidden),
            qkv: linear(b, &mut random, g.qkv_dim(), g.hidden),
            q_norm: Some(ones(b, g.head_dim)),
            k_norm: Some(ones(b, g.head_dim)),
            out: linear(b, &mut random, g.hidden, g.q_dim()),
            mlp_norm: ones(b, g.hidden),
            gate_up: linear(b, &mut random, 2 * g.intermediate, g.hidden),
            down: linear(b, &mut random, g.hidden, g.intermediate),
        })
        .collect();
    Model {
        embedding: linear(b, &mut random, VOCAB, g.hidden),
        layers,
        final_norm: ones(b, g.hidden),
        head: None,
        inv_freq: b.upload(&config.inv_freq()).unwrap(),
        digest: String::new(),
        config,
    }
}

pub(super) fn settings(mode: Mode, audit: bool) -> Settings {
    Settings {
        mode,
        block_tokens: 16,
        budget_tokens: 12 * 16,
        sink_blocks: 1,
        window_blocks: 2,
        cap: Cap::Blocks(2),
        scope: Scope::Resident,
        group: None,
        normalise_resident: false,
        emit: Emit::One,
        sampling: Sampling::default(),
        max_rows: 3,
        audit,
        seed: 1,
    }
}

/// Logits of prompts and of every step, of every sequence.
fn run<B: Backend>(mut b: B, settings: &Settings) -> Vec<Vec<f32>> {
    const STEPS: usize = 40;
    let policies = Policies {
        summary: Arc::new(Mean),
        predictor: Arc::new(|_| Ok(Box::new(AllRows) as _)),
        evictor: Arc::new(|_| Ok(Box::new(LeastRecent) as _)),
        draft: Arc::new(|_| Ok(Box::new(Counting) as _)),
        draft_shape: DraftShape { depth: 2, branches: 1 },
    };
    let model = Arc::new(model(&mut b));
    let mut engine = Engine::new(b, model).unwrap();
    let mut random = Random::new(62);
    let options = PrefillOptions { block_tokens: settings.block_tokens, hidden_layers: vec![] };
    let mut logits = Vec::new();
    let mut batch = Vec::new();
    for n in [700, 333] {
        let prompt: Vec<u32> = (0..n).map(|_| random.below(VOCAB) as u32).collect();
        let prefix = Arc::new(engine.prefill(&prompt, &options).unwrap());
        logits.push(prefix.logits.clone());
        batch.push(Start { prefix, first: 7, future: vec![], max_new: STEPS + 2, seed: n as u64 });
    }
    let mut decoder = Decoder::new(&mut engine, settings, &policies, batch).unwrap();
    for _ in 0..STEPS {
        let forced = [random.below(VOCAB) as u32, random.below(VOCAB) as u32];
        decoder.step(Some(&forced)).unwrap();
        logits.extend((0..2).map(|seq| decoder.logits(seq).unwrap().to_vec()));
    }
    if settings.mode != Mode::Dense {
        decoder.verify_slots().unwrap();
        assert!(decoder.is_sparse());
    }
    logits
}

/// ‖got − want‖ / ‖want‖.
pub(super) fn distance(got: &[f32], want: &[f32]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(want).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut want.iter().map(|&x| f64::from(x)))
}

#[test]
fn the_loop_gives_the_same_logits() {
    let Some((cpu, cuda)) = devices("decode") else { return };
    // Where blocks are selected, two that score almost alike may change places, and that shows.
    for (mode, audit, tolerance) in [
        (Mode::Dense, false, 0.02),
        (Mode::Window, false, 0.02),
        (Mode::Staged, false, 0.2),
        (Mode::Staged, true, 0.2),
    ] {
        let settings = settings(mode, audit);
        let (got, want) = (run(cuda.try_clone().unwrap(), &settings), run(cpu.clone(), &settings));
        let distances: Vec<f64> = got.iter().zip(&want).map(|(a, b)| distance(a, b)).collect();
        let far = distances.iter().filter(|&&d| d.is_nan() || d > 0.02).count();
        let largest = distances.iter().fold(0.0, |a, &b| if b.is_nan() || b > a { b } else { a });
        println!(
            "{mode:?}, audit {audit}: largest distance of logits {largest:.4}, {far} of {} above 0.02",
            got.len()
        );
        assert!(largest <= tolerance, "{mode:?}: {distances:?}");
        assert!(far * 4 <= got.len(), "{mode:?}: {distances:?}");
    }
}

#[test]
fn two_runs_are_the_same_bit_for_bit() {
    let Some((_, cuda)) = devices("decode, twice") else { return };
    let settings = settings(Mode::Staged, false);
    let runs = [(); 2].map(|()| run(cuda.try_clone().unwrap(), &settings));
    assert!(runs[0].iter().flatten().zip(runs[1].iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits()));
}
