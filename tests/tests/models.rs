//! Proofs against implementations that are not ours: logits, queries, keys and hidden rows that Hugging Face
//! transformers computed (tests/fixtures/models/README.md).
//!
//! `logits_rounded` has our rounding points (inputs of matrix products, queries, keys and values in bf16), so what is
//! left is the order of sums, which now and then tips a rounding to bf16; plain `logits` are f32 throughout and bound what rounding costs.

use oasis_core::checkpoint::Checkpoint;
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::settings::Mode;
use oasis_kernels::Cpu;
use oasis_tests::*;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    fn open(path: &Path) -> Self {
        Self { bytes: std::fs::read(path).unwrap() }
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let all = SafeTensors::deserialize(&self.bytes).unwrap();
        all.tensor(name)
            .unwrap()
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let all = SafeTensors::deserialize(&self.bytes).unwrap();
        all.tensor(name)
            .unwrap()
            .data()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }
}

/// The largest difference as a share of the largest reference value.
fn difference(ours: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(ours.len(), reference.len());
    let scale = reference.iter().fold(0.0f32, |m, r| m.max(r.abs()));
    ours.iter().zip(reference).fold(0.0f32, |m, (a, b)| {
        assert!(a.is_finite() && b.is_finite(), "{a} against {b}");
        m.max((a - b).abs())
    }) / scale
}

fn engine(checkpoint: &Checkpoint, threads: usize) -> Engine<Cpu> {
    let mut backend = Cpu::new(threads);
    let model = Arc::new(checkpoint.build(&mut backend).unwrap());
    Engine::new(backend, model).unwrap()
}

fn nano() -> Checkpoint {
    let b = oasis_datasets::nano();
    Checkpoint::from_parts("nano", b.config, b.weights, b.tokenizer, Some(b.generation_config)).unwrap()
}

/// Prefill and forced decode steps of the last four positions, against both variants of the reference.
fn prove(engine: &mut Engine<Cpu>, reference: &Reference, rounded: f32, plain: f32) {
    let ids = reference.ids("input_ids");
    let (want, want_plain) = (reference.floats("logits_rounded"), reference.floats("logits"));
    let vocab = want.len() / 4;
    for i in 0..4 {
        let options = PrefillOptions { block_tokens: 16, hidden_layers: vec![] };
        let prefix = engine.prefill(&ids[..ids.len() - 3 + i], &options).unwrap();
        let row = i * vocab..(i + 1) * vocab;
        let (d, p) =
            (difference(&prefix.logits, &want[row.clone()]), difference(&prefix.logits, &want_plain[row]));
        println!("prefill, position −{}: {d:.2e} rounded, {p:.2e} plain", 4 - i);
        assert!(d < rounded, "prefill: {d} of the largest logit");
        assert!(p < plain, "prefill against f32: {p} of the largest logit");
    }
    let prefix = prefill(engine, &ids[..ids.len() - 4], 16);
    let p = policies("minmax", "previous-token", "lrs", "none");
    let start =
        oasis_core::decode::Start { prefix, first: ids[ids.len() - 4], future: vec![], max_new: 4, seed: 0 };
    let s = oasis_core::settings::Settings { block_tokens: 16, ..settings(Mode::Dense, 0) };
    let mut decoder = oasis_core::decode::Decoder::new(engine, &s, &p, vec![start]).unwrap();
    for i in 0..4 {
        let next = ids.get(ids.len() - 3 + i).copied().unwrap_or(0);
        decoder.step(Some(&[next])).unwrap();
        let d = difference(decoder.logits(0).unwrap(), &want[i * vocab..(i + 1) * vocab]);
        println!("decode, position −{}: {d:.2e} rounded", 4 - i);
        assert!(d < rounded, "decode: {d} of the largest logit");
    }
}

#[test]
fn tiny_models_of_every_family_agree_with_transformers() {
    for name in ["llama3-tiny", "qwen2-tiny", "qwen3-tiny"] {
        println!("{name}");
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        let reference = Reference::open(&fixture(name).join("reference.safetensors"));
        prove(&mut engine(&checkpoint, 1), &reference, 1e-2, 3e-2);
    }
}

#[test]
fn nano_agrees_with_transformers() {
    let reference = Reference::open(&fixture("nano/nano_rounded.safetensors"));
    prove(&mut engine(&nano(), 1), &reference, 1e-2, 3e-2);
}

#[test]
fn nano_has_the_fixture_s_queries_keys_and_hidden_rows() {
    let mut engine = engine(&nano(), 1);
    let g = engine.model.config.geometry.clone();
    let bundled =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/bundled/nano/reference.safetensors");
    let reference = Reference::open(&bundled);
    let ids = reference.ids("input_ids");
    let options = PrefillOptions { block_tokens: 16, hidden_layers: (0..g.layers).collect() };
    let prefix = engine.prefill(&ids, &options).unwrap();
    let d = difference(&prefix.logits, &reference.floats("logits"));
    println!("logits: {d:.2e}");
    assert!(d < 2e-2);
    let (q, k, hidden) = (reference.floats("q_rope"), reference.floats("k_rope"), reference.floats("hidden"));
    let last = ids.len() - 1;
    for layer in 0..g.layers {
        let own_q = prefix.query(layer);
        let own_k: Vec<f32> = (0..g.kv_heads).flat_map(|h| prefix.key(layer, last, h)).collect();
        let row = &prefix.hidden[(last * g.layers + layer) * g.hidden..][..g.hidden];
        let dq = difference(own_q, &q[layer * g.q_dim()..(layer + 1) * g.q_dim()]);
        let dk = difference(&own_k, &k[layer * g.kv_dim()..(layer + 1) * g.kv_dim()]);
        let dh = difference(row, &hidden[(layer + 1) * g.hidden..(layer + 2) * g.hidden]);
        println!("layer {layer}: q {dq:.2e}, k {dk:.2e}, hidden {dh:.2e}");
        // bf16 keeps 8 bits; errors of a few roundings accumulate over six layers.
        assert!(dq < 2e-2 && dk < 2e-2 && dh < 2e-2);
    }
}

#[test]
fn smollm2_agrees_with_transformers() {
    let Some(Ok(path)) = oasis::fetch::resolve("smollm2") else {
        println!("SKIPPED smollm2_agrees_with_transformers: run `oasis fetch smollm2` first");
        assert!(
            std::env::var_os("OASIS_REQUIRE_MODELS").is_none(),
            "SmolLM2 is required and not in the cache"
        );
        return;
    };
    let mut engine = engine(&Checkpoint::open(&path).unwrap(), 2);
    let reference = Reference::open(&fixture("smollm2/reference.safetensors"));
    let ids = reference.ids("input_ids");
    let (top, rounded) = (reference.ids("top5"), reference.ids("top5_rounded"));
    let prefix = prefill(&mut engine, &ids, 16);
    let d = difference(&prefix.logits, &reference.floats("logits_rounded"));
    let p = difference(&prefix.logits, &reference.floats("logits"));
    println!("SmolLM2, last position: {d:.2e} rounded, {p:.2e} plain");
    // Over 30 layers a tipped rounding grows to the size of rounding itself (their two variants differ by 0.16).
    assert!(d < 2e-2 && p < 2e-2);
    let mut agree = 0;
    for i in 0..16 {
        let prefix = prefill(&mut engine, &ids[..ids.len() - 15 + i], 16);
        let best = argmax(&prefix.logits);
        assert!(top[i * 5..i * 5 + 2].contains(&best), "position {i}: {best} is not among the two best");
        agree += usize::from(best == rounded[i * 5]);
    }
    println!("top-1 of the last 16 positions: {agree} agree");
    assert!(agree >= 15);
}
