//! What each summary estimates, beside the contract that all share.

use crate::SUMMARIES;
use crate::summary::rotation::Rotation;
use oasis_core::conformance::score_block;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{Keys, Reduce, Summary, SummaryShape};
use oasis_core::registry::{Params, find};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage, encode};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn build(toml: &str) -> oasis_core::Result<Box<dyn Summary>> {
    let mut table: toml::Table = toml.parse().unwrap();
    let Some(toml::Value::String(name)) = table.remove("name") else { panic!("no name in {toml}") };
    (find("summary", SUMMARIES, &name)?.build)(&Params { table, seed: 0 })
}

fn normals(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut one = || {
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        half::bf16::from_f64((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()).to_f32()
    };
    (0..n).map(|_| one()).collect()
}

/// ln of the attention mass of a block of keys.
fn exact_mass(keys: &[f32], query: &[f32]) -> f64 {
    let logit = |key: &[f32]| {
        let product: f64 = key.iter().zip(query).map(|(k, q)| f64::from(k * q)).sum();
        product / (query.len() as f64).sqrt()
    };
    keys.chunks_exact(query.len()).map(|k| logit(k).exp()).sum::<f64>().ln()
}

/// The score of one block; `storage` none: as the summary stores it.
fn score(summary: &dyn Summary, keys: &[f32], query: &[f32], storage: Option<Storage>) -> f32 {
    let head_dim = query.len();
    let block = BlockShape { tokens: keys.len() / head_dim, head_dim };
    let mut shape = summary.shape(block);
    shape.storage = storage.unwrap_or(shape.storage);
    let keys = Keys { data: keys, tokens: block.tokens, head_dim };
    let mut fit = vec![0.0; summary.fit_len(block)];
    summary.fit(keys, &mut fit);
    let mut vectors = vec![0.0; shape.vectors * shape.dim];
    summary.encode(&fit, keys, &mut vectors);
    let mut stored = vec![0; shape.bytes()];
    encode(shape.storage, shape.rounding, shape.dim, &vectors, &mut stored);
    let mut lifted = vec![0.0; shape.dim];
    let bias = summary.lift(&fit, query, &mut lifted);
    score_block(&shape, &stored, &lifted, bias)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rotations_keep_lengths_and_angles(dim in 1usize..260, seed in any::<u64>()) {
        let rotation = Rotation::new(dim);
        let (mut a, mut b) = (normals(seed, dim), normals(!seed, dim));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
        let before = [dot(&a, &a), dot(&b, &b), dot(&a, &b)];
        rotation.apply(&mut a);
        rotation.apply(&mut b);
        for (was, is) in before.into_iter().zip([dot(&a, &a), dot(&b, &b), dot(&a, &b)]) {
            prop_assert!((was - is).abs() <= 1e-5 * (before[0] + before[1]), "{dim}: {was} became {is}");
        }
    }

    #[test]
    fn exact_keys_and_unrounded_rotated_keys_score_the_exact_mass(
        dim in prop::sample::select(vec![3usize, 64, 80, 96, 128]),
        tokens in 1usize..20,
        seed in any::<u64>(),
    ) {
        let (keys, query) = (normals(seed, dim * tokens), normals(!seed, dim));
        let exact = exact_mass(&keys, &query);
        let all = score(build("name = 'exact-keys'").unwrap().as_ref(), &keys, &query, None);
        prop_assert!((f64::from(all) - exact).abs() < 1e-4, "{all} instead of {exact}");
        let rotated = build("name = 'rotated-keys'").unwrap();
        let rotated = score(rotated.as_ref(), &keys, &query, Some(Storage::F32));
        prop_assert!((f64::from(rotated) - exact).abs() < 1e-4, "{rotated} instead of {exact}");
    }

    #[test]
    fn mean_scores_the_mean_logit(tokens in 1usize..20, seed in any::<u64>()) {
        let (keys, query) = (normals(seed, 64 * tokens), normals(!seed, 64));
        let logits = keys.chunks_exact(64).map(|k| exact_mass(k, &query)).sum::<f64>() / tokens as f64;
        let mean = score(build("name = 'mean'").unwrap().as_ref(), &keys, &query, Some(Storage::F32));
        prop_assert!((f64::from(mean) - logits).abs() < 1e-4, "{mean} instead of {logits}");
    }
}

#[test]
fn a_spike_is_spread_evenly_where_a_hadamard_matrix_exists() {
    for dim in [1, 2, 64, 80, 96, 120, 128, 256] {
        let rotation = Rotation::new(dim);
        for at in 0..dim {
            let mut spike = vec![0.0; dim];
            spike[at] = 1.0;
            rotation.apply(&mut spike);
            let even = 1.0 / (dim as f32).sqrt();
            assert!(spike.iter().all(|v| (v.abs() - even).abs() < 1e-6), "{dim}, {at}: {spike:?}");
        }
    }
    // 112 = 7 · 16: there only over its own part.
    let mut spike = vec![0.0; 112];
    spike[20] = 1.0;
    Rotation::new(112).apply(&mut spike);
    assert!(
        spike
            .iter()
            .enumerate()
            .all(|(i, v)| (v.abs() - 0.25 * f32::from((16..32).contains(&i) as u8)).abs() < 1e-6)
    );
}

/// More bits, less error, and a mean key or a loud channel costs nothing: both are taken away before rounding.
#[test]
fn rotated_keys_get_better_with_bits_and_do_not_mind_outlying_channels() {
    for dim in [64, 96, 128] {
        let mut errors = [[0.0f64; 3]; 2];
        for seed in 0..200 {
            let (mut keys, query) = (normals(seed, dim * 16), normals(seed + 1000, dim));
            for (loud, errors) in errors.iter_mut().enumerate() {
                if loud == 1 {
                    keys.chunks_exact_mut(dim).for_each(|k| k[5] += 40.0);
                }
                let exact = exact_mass(&keys, &query);
                for (error, bits) in errors.iter_mut().zip([1, 2, 4]) {
                    let summary = build(&format!("name = 'rotated-keys'\nbits = {bits}")).unwrap();
                    let got = f64::from(score(summary.as_ref(), &keys, &query, None));
                    *error += (got - exact).powi(2) / 200.0;
                }
            }
        }
        for e in errors {
            assert!(e[0] > 2.0 * e[1] && e[1] > 4.0 * e[2], "{dim}: {errors:?}");
            // Logits here have a standard deviation of 1: an rms error of 0.2 in ln mass at 2 bits is small.
            assert!(e[1].sqrt() < 0.2, "{dim}: {errors:?}");
        }
        assert!(errors[1][1] < 2.0 * errors[0][1], "{dim}: {errors:?}");
    }
}

#[test]
fn shapes_cost_what_the_design_says() {
    // Bytes a token and KV head at head width 64, blocks of 16.
    let block = BlockShape { tokens: 16, head_dim: 64 };
    for (toml, bytes) in [
        ("name = 'exact-keys'", 16.0 * 8.0),
        ("name = 'rotated-keys'\nbits = 4", 33.0),
        ("name = 'rotated-keys'", 17.0),
        ("name = 'rotated-keys'\nbits = 1", 9.0),
        ("name = 'minmax'", 16.0),
        ("name = 'quantized'", 8.5),
        ("name = 'quantized'\nbits = 4", 4.5),
        ("name = 'mean'", 8.0),
        ("name = 'quantized'\ninner = 'mean'\nbits = 4", 2.25),
    ] {
        let shape = build(toml).unwrap().shape(block);
        assert_eq!(shape.bytes() as f64 / 16.0, bytes, "{toml}: {shape:?}");
    }
}

#[test]
fn quantized_keeps_what_its_inner_summary_is() {
    let block = BlockShape { tokens: 16, head_dim: 64 };
    let bound = build("name = 'quantized'\ninner = { name = 'minmax' }\nbits = 4").unwrap();
    let expected = SummaryShape {
        vectors: 1,
        dim: 128,
        reduce: Reduce::Max,
        storage: Storage::Affine { bits: 4 },
        rounding: Rounding::Outward { upper: 64 },
    };
    assert_eq!(bound.shape(block), expected);
    assert!(bound.is_upper_bound());
    assert_eq!(bound.group(), Group::Max);
    assert_eq!(build("name = 'quantized'\ninner = 'mean'").unwrap().group(), Group::SoftmaxSum);
}

#[test]
fn bad_parameters_are_refused_by_name() {
    for (toml, words) in [
        ("name = 'rotated-keys'\nbits = 3", ["rotated-keys.bits", "1, 2 or 4"]),
        ("name = 'rotated-keys'\nbit = 2", ["rotated-keys", "bits"]),
        ("name = 'rotated-keys'\nbits = 'two'", ["rotated-keys", "string"]),
        ("name = 'rotated-keys'\nbits = 1000", ["rotated-keys", "1000"]),
        ("name = 'quantized'\nbits = 2", ["quantized.bits", "8 or 4"]),
        ("name = 'quantized'\ninner = 'rotated-keys'", ["quantized.inner", "`rotated-keys.bits`"]),
        ("name = 'quantized'\ninner = 'quantized'", ["quantized.inner", "itself"]),
        ("name = 'quantized'\ninner = 'minmx'", ["`minmx`", "did you mean `minmax`"]),
        ("name = 'quantized'\ninner = { name = 'mean', k = 1 }", ["mean", "`k`"]),
        ("name = 'quantized'\ninner = { bits = 1 }", ["quantized.inner", "`name`"]),
        ("name = 'quantized'\ninner = 3", ["quantized.inner", "integer"]),
        ("name = 'minmax'\nk = 1", ["minmax", "`k`"]),
    ] {
        let error = build(toml).err().map(|e| e.to_string()).unwrap_or_else(|| panic!("accepted: {toml}"));
        assert!(words.iter().all(|w| error.contains(w)), "{toml}: {error}");
    }
}
