//! What the unit tests share: random data, poison, comparisons that no NaN passes.

use half::bf16;
use oasis_core::geometry::{Geometry, World};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seeded data.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Roughly normal, of unit variance.
    pub(crate) fn number(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.0.random_range(-1.0..1.0_f32)).sum();
        sum * 0.866
    }

    pub(crate) fn f32(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    pub(crate) fn bf16(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.number())).collect()
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    pub(crate) fn shuffle<T>(&mut self, v: &mut [T]) {
        for i in (1..v.len()).rev() {
            v.swap(i, self.below(i + 1));
        }
    }
}

/// Numbers to poison outputs with.
pub(crate) fn poison(n: usize) -> Vec<f32> {
    vec![f32::NAN; n]
}

/// As [`poison`].
pub(crate) fn poison16(n: usize) -> Vec<bf16> {
    vec![bf16::NAN; n]
}

pub(crate) fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

pub(crate) fn bits16(v: &[bf16]) -> Vec<u16> {
    v.iter().map(|x| x.to_bits()).collect()
}

pub(crate) fn f64s(v: &[bf16]) -> Vec<f64> {
    v.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// Fails unless `|got − want| ≤ tolerance · (|want| + scale)` everywhere, `scale` being the root mean square of `want`.
/// NaN fails.
#[track_caller]
pub(crate) fn assert_close(got: impl IntoIterator<Item = f64>, want: &[f64], tolerance: f64) {
    let scale = (want.iter().map(|x| x * x).sum::<f64>() / want.len().max(1) as f64).sqrt();
    let mut n = 0;
    for (i, got) in got.into_iter().enumerate() {
        let within = (got - want[i]).abs() <= tolerance * (want[i].abs() + scale);
        assert!(within, "element {i}: {got} instead of {} (tolerance {tolerance})", want[i]);
        n += 1;
    }
    assert_eq!(n, want.len(), "elements");
}

pub(crate) fn geometry(heads: usize, kv_heads: usize, head_dim: usize) -> Geometry {
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
