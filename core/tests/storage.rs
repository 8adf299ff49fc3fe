//! The storage codec: bounds, errors, layout, and what happens to numbers that are none.

use half::bf16;
use oasis_core::storage::{Rounding, Storage, decode, encode, normal_levels, normal_scale};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

const AFFINE: [Storage; 2] = [Storage::Affine { bits: 8 }, Storage::Affine { bits: 4 }];
const NORMAL: [Storage; 3] =
    [Storage::Normal { bits: 1 }, Storage::Normal { bits: 2 }, Storage::Normal { bits: 4 }];

fn stored(storage: Storage, rounding: Rounding, values: &[f32]) -> Vec<u8> {
    // Poisoned, so that a byte which encode forgets shows.
    let mut bytes = vec![0xa5; storage.vector_bytes(values.len(), rounding)];
    encode(storage, rounding, values.len(), values, &mut bytes);
    bytes
}

fn round_trip(storage: Storage, rounding: Rounding, values: &[f32]) -> Vec<f32> {
    let mut out = vec![7.0; values.len()];
    decode(storage, rounding, values.len(), &stored(storage, rounding, values), &mut out);
    out
}

/// Any finite number, all magnitudes alike.
fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(|bits| {
        let value = f32::from_bits(bits);
        if value.is_finite() { value } else { f32::from_bits(bits & !(1 << 30)) }
    })
}

/// Vectors of the kinds that break quantisers: wild, constant, narrow far from zero, subnormal, spiky, plain.
fn vectors() -> impl Strategy<Value = Vec<f32>> {
    let len = 1usize..70;
    prop_oneof![
        prop::collection::vec(finite(), len.clone()),
        (finite(), len.clone()).prop_map(|(v, n)| vec![v; n]),
        (-1e6f32..1e6, prop::collection::vec(-1e-2f32..1e-2, len.clone()))
            .prop_map(|(at, v)| v.into_iter().map(|x| at + x).collect()),
        prop::collection::vec((0u32..1 << 23, any::<bool>()), len.clone()).prop_map(|v| {
            v.into_iter().map(|(bits, minus)| f32::from_bits(bits | u32::from(minus) << 31)).collect()
        }),
        (prop::collection::vec(-1f32..1.0, len.clone()), finite(), 0usize..70).prop_map(
            |(mut v, spike, at)| {
                let at = at % v.len();
                v[at] = spike;
                v
            }
        ),
        prop::collection::vec(-10f32..10.0, len),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn outward_rounding_keeps_bounds(values in vectors(), upper in 0usize..80) {
        let upper = upper.min(values.len());
        for storage in [Storage::F32, Storage::Bf16, AFFINE[0], AFFINE[1]] {
            let out = round_trip(storage, Rounding::Outward { upper }, &values);
            for (i, (&value, &got)) in values.iter().zip(&out).enumerate() {
                prop_assert!(!got.is_nan(), "{storage:?} {i}: {value} became NaN");
                if i < upper {
                    prop_assert!(got >= value, "{storage:?} {i}: {value} became {got}");
                } else {
                    prop_assert!(got <= value, "{storage:?} {i}: {value} became {got}");
                }
            }
        }
    }

    #[test]
    fn affine_loses_less_than_a_step(
        values in prop::collection::vec(-100f32..100.0, 2..70),
        at in -1e4f32..1e4,
    ) {
        let values: Vec<f32> = values.iter().map(|v| v + at).collect();
        let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        let n = values.len();
        for (storage, top) in AFFINE.into_iter().zip([255.0f32, 15.0]) {
            // A step covers the range, what bf16 adds to it at its lower end, and its own rounding up.
            let step = (max - min + min.abs() / 128.0) / top * (1.0 + 1.0 / 64.0) + at.abs() * 1e-6;
            for (rounding, most) in [
                (Rounding::Nearest, 0.5),
                (Rounding::Outward { upper: n }, 1.0),
                (Rounding::Outward { upper: 0 }, 1.0),
            ] {
                for (&value, got) in values.iter().zip(round_trip(storage, rounding, &values)) {
                    let loss = (got - value).abs();
                    prop_assert!(loss <= most * step, "{storage:?} {rounding:?}: {value} {got} {step}");
                }
            }
        }
    }

    #[test]
    fn normal_takes_the_nearest_level(values in prop::collection::vec(-8f32..8.0, 1..70), by in -6i32..8) {
        let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(by)).collect();
        for (storage, bits) in NORMAL.into_iter().zip([1u8, 2, 4]) {
            let scale = normal_scale(*stored(storage, Rounding::Nearest, &values).last().unwrap());
            for (&value, got) in values.iter().zip(round_trip(storage, Rounding::Nearest, &values)) {
                let loss = |level: &f32| (level * scale - value).abs();
                let least = normal_levels(bits).iter().map(loss).fold(f32::MAX, f32::min);
                prop_assert!((got - value).abs() <= least + 1e-5 * value.abs(), "{bits}: {value} {got}");
            }
        }
    }

    #[test]
    fn the_scale_is_within_half_a_sixteenth_of_an_octave(
        values in prop::collection::vec(-1f32..1.0, 1..70),
        by in -5.5f32..9.5,
    ) {
        let values: Vec<f32> = values.iter().map(|v| v * by.exp2()).collect();
        let rms = (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64).sqrt();
        prop_assume!((0.018..1000.0).contains(&rms));
        let scale = f64::from(normal_scale(*stored(NORMAL[0], Rounding::Nearest, &values).last().unwrap()));
        prop_assert!((scale / rms).log2().abs() <= 1.0 / 32.0 + 1e-6, "{rms} became {scale}");
    }

    #[test]
    fn parts_do_not_see_each_other(values in vectors(), other in finite(), upper in 0usize..70) {
        let upper = upper % values.len();
        let mut changed = values.clone();
        changed[upper..].fill(other);
        for storage in [Storage::Bf16, AFFINE[0], AFFINE[1]] {
            let rounding = Rounding::Outward { upper };
            let (a, b) = (round_trip(storage, rounding, &values), round_trip(storage, rounding, &changed));
            prop_assert_eq!(&a[..upper], &b[..upper]);
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible(
        mut values in vectors(),
        at in 0usize..70,
        upper in 0usize..70,
        odd in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let (at, upper) = (at % values.len(), upper.min(values.len()));
        values[at] = odd;
        for rounding in [Rounding::Nearest, Rounding::Outward { upper }] {
            for storage in [Storage::F32, Storage::Bf16] {
                let got = round_trip(storage, rounding, &values)[at];
                prop_assert!(got == odd || got.is_nan() && odd.is_nan());
            }
            let part = match rounding {
                Rounding::Nearest => 0..values.len(),
                Rounding::Outward { .. } if at < upper => 0..upper,
                Rounding::Outward { .. } => upper..values.len(),
            };
            for storage in AFFINE {
                for (i, got) in round_trip(storage, rounding, &values).iter().enumerate() {
                    prop_assert_eq!(part.contains(&i), got.is_nan(), "{:?} {:?} {}", storage, rounding, i);
                }
            }
        }
        for storage in NORMAL {
            prop_assert!(round_trip(storage, Rounding::Nearest, &values).iter().all(|v| v.is_nan()));
        }
    }

    #[test]
    fn nearest_bf16_and_f32_are_what_their_types_say(values in vectors()) {
        prop_assert_eq!(&round_trip(Storage::F32, Rounding::Nearest, &values), &values);
        let halves: Vec<f32> = values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect();
        prop_assert_eq!(round_trip(Storage::Bf16, Rounding::Nearest, &values), halves);
    }
}

#[test]
fn bf16_values_and_constants_are_exact_in_every_bound() {
    for value in [0.0, -0.0, 1.0, -3.5, 1024.0, -1e-3, 6e-39] {
        let value = bf16::from_f32(value).to_f32();
        for storage in [Storage::Bf16, AFFINE[0], AFFINE[1]] {
            for rounding in [Rounding::Nearest, Rounding::Outward { upper: 2 }] {
                assert_eq!(
                    round_trip(storage, rounding, &[value; 5]),
                    [value; 5],
                    "{storage:?} {rounding:?}"
                );
            }
        }
    }
}

#[test]
fn zero_is_exact_and_scales_cover_what_keys_are() {
    for storage in NORMAL {
        assert_eq!(round_trip(storage, Rounding::Nearest, &[0.0; 9]), [0.0; 9]);
        assert_eq!(
            round_trip(storage, Rounding::Nearest, &[1e-3; 9]),
            [0.0; 9],
            "zero is nearer than any code"
        );
    }
    assert_eq!(normal_scale(94), 1.0);
    assert_eq!(normal_scale(254), 1024.0);
    assert!((normal_scale(1) - 0.017_785).abs() < 1e-5);
    for byte in 1..=254u8 {
        // A vector whose rms is a scale gets that very byte.
        assert_eq!(stored(NORMAL[0], Rounding::Nearest, &[normal_scale(byte); 4])[1], byte);
        if byte < 254 {
            let octaves = (f64::from(normal_scale(byte + 1)) / f64::from(normal_scale(byte))).log2();
            assert!((octaves - 1.0 / 16.0).abs() < 1e-6, "{byte}: {octaves}");
        }
    }
    let beyond = round_trip(NORMAL[1], Rounding::Nearest, &[f32::MAX, 0.0]);
    assert_eq!(beyond[0], normal_levels(2)[3] * 1024.0, "the largest scale, not infinity");
}

#[test]
fn gaussian_error_is_the_textbook_s() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut normal = || {
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    };
    let values: Vec<f32> = (0..200_000).map(|_| normal()).collect();
    // Mean squared errors of the best uniform quantisers of a unit normal variable with 2, 4 and 16 levels.
    for (storage, mse) in NORMAL.into_iter().zip([0.3634, 0.1188, 0.01154]) {
        let out = round_trip(storage, Rounding::Nearest, &values);
        let got = values.iter().zip(&out).map(|(a, b)| f64::from((a - b) * (a - b))).sum::<f64>() / 2e5;
        assert!((got / mse - 1.0).abs() < 0.03, "{storage:?}: {got} instead of {mse}");
    }
}

#[test]
fn layout_is_fixed() {
    let outward = Rounding::Outward { upper: 2 };
    assert_eq!(stored(Storage::F32, outward, &[1.0, -2.0]), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
    // 1/3 = 0x3eaaaaab: up is 0x3eab, down is 0x3eaa.
    let first = Rounding::Outward { upper: 1 };
    assert_eq!(stored(Storage::Bf16, first, &[1.0 / 3.0; 2]), [0xab, 0x3e, 0xaa, 0x3e]);
    assert_eq!(stored(Storage::Bf16, first, &[-1.0 / 3.0; 2]), [0xaa, 0xbe, 0xab, 0xbe]);
    // lo = 0, step = 1; then lo = -12, step just above 12/15; codes 15 and 0, 0 and 14, low nibbles first.
    let four = stored(Storage::Affine { bits: 4 }, outward, &[15.0, 0.0, -12.0, 0.0]);
    assert_eq!(four, [0x0f, 0xe0, 0, 0, 0x80, 0x3f, 0x40, 0xc1, 0x4d, 0x3f]);
    let eight = stored(Storage::Affine { bits: 8 }, Rounding::Nearest, &[0.0, 255.0, 7.4]);
    assert_eq!(eight, [0, 255, 7, 0, 0, 0x80, 0x3f]);
    // rms 0.87: byte 91; levels −1.49, −0.5, 0.5, 1.49 are codes 0 to 3, two bits each.
    let two = stored(Storage::Normal { bits: 2 }, Rounding::Nearest, &[-1.4, -0.4, 0.4, 1.4, 0.4, -0.4]);
    assert_eq!(two, [0b11_10_01_00, 0b01_10, 91]);
    assert_eq!(Storage::Normal { bits: 1 }.vector_bytes(64, Rounding::Nearest), 9);
    assert_eq!(Storage::Normal { bits: 2 }.vector_bytes(64, Rounding::Nearest), 17);
    assert_eq!(Storage::Affine { bits: 4 }.vector_bytes(3, Rounding::Nearest), 6);
}

#[test]
fn unknown_widths_are_refused_with_the_known_ones() {
    let refused = |storage: Storage, rounding| storage.check(8, rounding).unwrap_err().to_string();
    assert!(refused(Storage::Affine { bits: 3 }, Rounding::Nearest).contains("4 and 8"));
    assert!(refused(Storage::Normal { bits: 8 }, Rounding::Nearest).contains("1, 2 and 4"));
    assert!(refused(Storage::Normal { bits: 2 }, Rounding::Outward { upper: 1 }).contains("no bounds"));
    assert!(refused(Storage::Bf16, Rounding::Outward { upper: 9 }).contains("9 coordinates"));
    assert!(Storage::Bf16.check(8, Rounding::Outward { upper: 8 }).is_ok());
}

#[test]
fn a_block_is_the_codes_of_its_vectors_and_then_their_scales() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
    for (storage, rounding) in [
        (Storage::F32, Rounding::Nearest),
        (Storage::Bf16, Rounding::Nearest),
        (AFFINE[0], Rounding::Outward { upper: 4 }),
        (AFFINE[1], Rounding::Nearest),
        (NORMAL[0], Rounding::Nearest),
        (NORMAL[1], Rounding::Nearest),
    ] {
        let (dim, vectors) = (9, 5);
        let values: Vec<f32> = (0..dim * vectors).map(|_| rng.random_range(-2.0..2.0)).collect();
        let mut block = vec![0xa5; vectors * storage.vector_bytes(dim, rounding)];
        encode(storage, rounding, dim, &values, &mut block);
        let (codes, scales) = (storage.code_bytes(dim), storage.scale_bytes(rounding));
        for (v, values) in values.chunks_exact(dim).enumerate() {
            let alone = stored(storage, rounding, values);
            assert_eq!(block[v * codes..][..codes], alone[..codes], "{storage:?}, codes of vector {v}");
            assert_eq!(
                block[vectors * codes + v * scales..][..scales],
                alone[codes..],
                "{storage:?}, scales of {v}"
            );
        }
        let mut back = vec![7.0; values.len()];
        decode(storage, rounding, dim, &block, &mut back);
        for (values, back) in values.chunks_exact(dim).zip(back.chunks_exact(dim)) {
            assert_eq!(round_trip(storage, rounding, values), back, "{storage:?}");
        }
    }
}
