//! Every op on the GPU against the CPU: random data, outputs poisoned first, the op's own tolerance; NaN fails.
//!
//! Without a GPU each test says SKIPPED; with `OASIS_REQUIRE_GPU=1` it fails instead.

#[path = "parity/attention.rs"]
mod attention;
#[path = "parity/blocks.rs"]
mod blocks;
#[path = "parity/chain.rs"]
mod chain;
#[path = "parity/chain_decode.rs"]
mod chain_decode;
#[path = "parity/decode.rs"]
mod decode;
#[path = "parity/fill.rs"]
mod fill;
#[path = "parity/large.rs"]
mod large;
#[path = "parity/long.rs"]
mod long;
#[path = "parity/rows.rs"]
mod rows;
#[path = "parity/scores.rs"]
mod scores;

use bytemuck::Pod;
use half::bf16;
use oasis_core::geometry::{Geometry, World};
use oasis_core::ops::{Backend, RowTable};
use oasis_kernels::{Cpu, Cuda};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Both devices, or none where there is no GPU. Every test opens its own, since handles of one device share its meter and
/// some tests count bytes; the first opening compiles for all.
fn devices(op: &str) -> Option<(Cpu, Cuda)> {
    static GPU: OnceLock<Result<(), String>> = OnceLock::new();
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    match GPU.get_or_init(|| Cuda::new(0).map(drop).map_err(|e| e.to_string())) {
        Ok(()) => Some((Cpu::new(2), Cuda::new(0).unwrap())),
        Err(why) => {
            assert!(std::env::var_os("OASIS_REQUIRE_GPU").is_none(), "{op}: {why}");
            println!("SKIPPED {op} (the {}th): {why}", SKIPPED.fetch_add(1, Relaxed) + 1);
            None
        }
    }
}

/// Seeded data.
struct Random(ChaCha8Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn f32(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (0..4).map(|_| self.0.random_range(-1.0..1.0_f32)).sum::<f32>() * 0.866).collect()
    }

    fn bf16(&mut self, n: usize) -> Vec<bf16> {
        self.f32(n).into_iter().map(bf16::from_f32).collect()
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }
}

/// All elements of a device array.
fn all<B: Backend, T: Pod + Send + Sync>(b: &mut B, buf: &B::Buf<T>) -> Vec<T> {
    let mut out = bytemuck::zeroed_vec(b.len(buf));
    b.read(buf, 0, &mut out).unwrap();
    out
}

fn poison(n: usize) -> Vec<f32> {
    vec![f32::NAN; n]
}

fn poison16(n: usize) -> Vec<bf16> {
    vec![bf16::NAN; n]
}

fn wide(v: &[bf16]) -> Vec<f32> {
    v.iter().map(|x| x.to_f32()).collect()
}

fn bits(v: &[bf16]) -> Vec<u16> {
    v.iter().map(|x| x.to_bits()).collect()
}

/// `|got − want| ≤ tolerance · (|want| + rms(want))` everywhere; NaN fails, on either side.
#[track_caller]
fn close(what: &str, got: &[f32], want: &[f32], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let squares: f64 = want.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rms = (squares / want.len().max(1) as f64).sqrt();
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let (got, want) = (f64::from(got), f64::from(want));
        let within = (got - want).abs() <= tolerance * (want.abs() + rms);
        assert!(within, "{what}, element {i}: {got} on CUDA, {want} on the CPU (tolerance {tolerance})");
    }
}

/// `|got − want| ≤ tolerance`, or the same infinity, where `want` was written; poison elsewhere.
#[track_caller]
fn near(what: &str, got: &[f32], want: &[f32], tolerance: f64, written: impl Fn(usize) -> bool) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        if written(i) {
            let within = got == want || f64::from((got - want).abs()) <= tolerance;
            assert!(within, "{what}, element {i}: {got} on CUDA, {want} on the CPU (tolerance {tolerance})");
        } else {
            assert!(got.is_nan() && want.is_nan(), "{what}, element {i} is not to be written: {got}, {want}");
        }
    }
}

fn geometry(heads: usize, kv_heads: usize, head_dim: usize) -> Geometry {
    Geometry {
        layers: 1,
        hidden: heads * head_dim,
        intermediate: 1,
        heads,
        kv_heads,
        head_dim,
        vocab: 1,
        max_positions: 1 << 20,
        world: World::default(),
    }
}

/// A table with `counts[s]` rows of sequence s and `tails[s]` tokens in its tail; each row's parent is any earlier one.
fn table<B: Backend>(b: &mut B, counts: &[usize], tails: &[u32], seed: u64) -> RowTable<B> {
    let mut random = Random::new(seed);
    let mut first = vec![0];
    let (mut seq, mut ancestors) = (vec![], vec![]);
    for (s, &n) in counts.iter().enumerate() {
        let start = ancestors.len();
        for i in 0..n {
            let above: u32 = if i == 0 { 0 } else { ancestors[start + random.below(i)] };
            ancestors.push(above | 1 << i);
            seq.push(s as u32);
        }
        first.push(seq.len() as u32);
    }
    let zeros = vec![0_u32; seq.len()];
    RowTable {
        token: b.upload(&zeros).unwrap(),
        position: b.upload(&zeros).unwrap(),
        seq: b.upload(&seq).unwrap(),
        first: b.upload(&first).unwrap(),
        tail: b.upload(tails).unwrap(),
        ancestors: b.upload(&ancestors).unwrap(),
        host_seq: seq,
        host_first: first,
        host_tail: tails.to_vec(),
        host_ancestors: ancestors,
    }
}
