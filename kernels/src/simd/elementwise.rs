//! Elementwise work: widening, narrowing, SwiGLU; and sums of squares.

use super::Job;
use super::lanes::{LANES, Lanes, exp};
use half::bf16;

/// `to[i] = from[i]` in f32, without vector instructions of its own; for short rows.
pub(crate) fn widen(from: &[bf16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

/// `to[i] = from[i]` in f32.
pub(crate) struct Widen<'a> {
    /// Source.
    pub from: &'a [bf16],
    /// As long.
    pub to: &'a mut [f32],
}

impl Job for Widen<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let n = self.from.len().min(self.to.len());
        let whole = n / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            // SAFETY: i + 16 ≤ n.
            unsafe { L::load_bf16(self.from.as_ptr().add(i)).store(self.to.as_mut_ptr().add(i)) };
        }
        widen(&self.from[whole..n], &mut self.to[whole..n]);
    }
}

/// `to[i] = bf16(from[i])`.
pub(crate) struct Narrow<'a> {
    /// Source.
    pub from: &'a [f32],
    /// As long.
    pub to: &'a mut [bf16],
}

impl Job for Narrow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let n = self.from.len().min(self.to.len());
        let whole = n / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            // SAFETY: i + 16 ≤ n.
            unsafe { L::load(self.from.as_ptr().add(i)).store_bf16(self.to.as_mut_ptr().add(i)) };
        }
        for i in whole..n {
            self.to[i] = bf16::from_f32(self.from[i]);
        }
    }
}

/// `out[i] = bf16(gate[i] / (1 + e^−gate[i]) · up[i])`.
pub(crate) struct SiluMul<'a> {
    /// Gate.
    pub gate: &'a [f32],
    /// As long.
    pub up: &'a [f32],
    /// As long.
    pub out: &'a mut [bf16],
}

/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn silu_mul<L: Lanes>(g: L, u: L) -> L {
    // SAFETY: the caller vouches for the CPU.
    unsafe {
        let one = L::splat(1.0);
        g.div(exp::<L>(L::splat(0.0).sub(g)).add(one)).mul(u)
    }
}

impl Job for SiluMul<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let n = self.out.len();
        assert!(self.gate.len() == n && self.up.len() == n);
        let whole = n / LANES * LANES;
        // SAFETY: i + 16 ≤ n; the rest goes through buffers of 16.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                let (g, u) = (L::load(self.gate.as_ptr().add(i)), L::load(self.up.as_ptr().add(i)));
                silu_mul(g, u).store_bf16(self.out.as_mut_ptr().add(i));
            }
            if whole < n {
                let mut g = [0.0; LANES];
                let mut u = [0.0; LANES];
                g[..n - whole].copy_from_slice(&self.gate[whole..]);
                u[..n - whole].copy_from_slice(&self.up[whole..]);
                let mut out = [bf16::ZERO; LANES];
                silu_mul(L::load(g.as_ptr()), L::load(u.as_ptr())).store_bf16(out.as_mut_ptr());
                self.out[whole..].copy_from_slice(&out[..n - whole]);
            }
        }
    }
}

/// Σ x², lane by lane (element i in lane i % 16).
pub(crate) fn square_sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let whole = x.chunks_exact(LANES);
    for (lane, v) in lanes.iter_mut().zip(whole.remainder()) {
        *lane += v * v;
    }
    for chunk in whole {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v * v;
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::super::{Level, exp1, ln1};
    use super::*;
    use crate::testing::Random;

    struct Exp<'a>(&'a [f32; LANES], &'a mut [f32; LANES]);

    impl Job for Exp<'_> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            // SAFETY: 16 floats each.
            unsafe { exp(L::load(self.0.as_ptr())).store(self.1.as_mut_ptr()) }
        }
    }

    fn exp16(level: Level, x: &[f32; LANES]) -> [f32; LANES] {
        let mut out = [f32::NAN; LANES];
        level.run(Exp(x, &mut out));
        out
    }

    #[test]
    fn exp_is_good_to_two_ten_millionths_and_the_same_at_every_level() {
        let mut worst = 0.0_f64;
        for i in 0..200_000 {
            let x: [f32; LANES] = std::array::from_fn(|j| -87.3 + (i * 16 + j) as f32 * (175.6 / 3.2e6));
            let e = exp16(Level::detect(), &x);
            for (x, e) in x.iter().zip(e) {
                let exact = f64::from(*x).exp();
                worst = worst.max((f64::from(e) / exact - 1.0).abs());
            }
            if i % 1000 == 0 {
                for level in Level::available() {
                    assert_eq!(exp16(level, &x).map(f32::to_bits), e.map(f32::to_bits), "{level:?}");
                }
                assert_eq!(x.map(exp1).map(f32::to_bits), e.map(f32::to_bits));
            }
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn exp_of_what_is_no_finite_number() {
        for level in Level::available() {
            let mut x = [0.0; LANES];
            x[..5].copy_from_slice(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.0, -1e30]);
            let e = exp16(level, &x);
            assert!(
                e[0].is_nan() && e[1] == 0.0 && e[2] > 2e38 && e[3] == 1.0 && e[4] == 0.0,
                "{level:?} {e:?}"
            );
            assert!(x[1..].iter().zip(&e[1..]).all(|(x, e)| exp1(*x) == *e) && exp1(f32::NAN).is_nan());
        }
    }

    #[test]
    fn ln_is_good_to_two_ten_millionths() {
        let mut worst = 0.0_f64;
        for i in 0..400_000_u32 {
            let x = f32::from_bits(0x0080_0000 + i * 5_300);
            let exact = f64::from(x).ln();
            worst = worst.max((f64::from(ln1(x)) - exact).abs() / exact.abs().max(1.0));
        }
        assert!(worst < 2e-7, "{worst:e}");
        assert_eq!([ln1(1.0), ln1(0.0), ln1(f32::INFINITY)], [0.0, f32::NEG_INFINITY, f32::INFINITY]);
        assert!(ln1(f32::NAN).is_nan() && ln1(-1.0).is_nan());
    }

    #[test]
    fn narrowing_is_that_of_half_at_every_level() {
        let mut random = Random::new(2);
        let mut x = random.f32(1000);
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::MAX, -0.0, 1e-42, f32::from_bits(0x3f80_8000)];
        x.extend(odd);
        x.push(f32::from_bits(0x7f80_0001));
        x.extend((0..16).map(|i| f32::from_bits(0x3f81_8000 + i)));
        x.extend([f32::from_bits(0x7f80_0001); 16]);
        let right: Vec<u16> = x.iter().map(|&v| bf16::from_f32(v).to_bits()).collect();
        for level in Level::available() {
            let mut out = vec![bf16::ZERO; x.len()];
            level.run(Narrow { from: &x, to: &mut out });
            assert_eq!(out.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), right, "{level:?}");
            let mut back = vec![0.0; x.len()];
            level.run(Widen { from: &out, to: &mut back });
            assert!(back.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_f32().to_bits()), "{level:?}");
        }
    }

    struct Split<'a>(&'a [f32; LANES], &'a mut [[bf16; LANES]; 2]);

    impl Job for Split<'_> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            let [high, low] = self.1;
            // SAFETY: 16 elements each.
            unsafe { L::load(self.0.as_ptr()).split(high.as_mut_ptr(), low.as_mut_ptr()) }
        }
    }

    #[test]
    fn a_split_number_is_the_sum_of_its_parts() {
        let mut random = Random::new(4);
        let x: [f32; LANES] = random.f32(LANES).try_into().unwrap();
        let mut first = None;
        for level in Level::available() {
            let mut parts = [[bf16::NAN; LANES]; 2];
            level.run(Split(&x, &mut parts));
            assert_eq!(*first.get_or_insert(parts), parts, "{level:?}");
            for (i, x) in x.iter().enumerate() {
                let sum = parts[0][i].to_f32() + parts[1][i].to_f32();
                assert!((x - sum).abs() <= x.abs() / 32_768.0, "{x} {sum}");
            }
        }
    }

    struct Sums<'a>(&'a [[f32; LANES]; LANES], &'a mut [f32; LANES], &'a mut [f32; LANES]);

    impl Job for Sums<'_> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            // SAFETY: 16 floats each.
            unsafe {
                let v: [L; LANES] = std::array::from_fn(|i| L::load(self.0[i].as_ptr()));
                L::sums(&v).store(self.1.as_mut_ptr());
                *self.2 = std::array::from_fn(|i| v[i].sum());
            }
        }
    }

    /// Codes, their numbers, their entries in a table of negative numbers.
    struct Unpack<const BITS: u32>(u64, [f32; LANES], [f32; LANES]);

    impl<const BITS: u32> Job for &mut Unpack<BITS> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            let table: [f32; LANES] = std::array::from_fn(|i| -((i % (1 << BITS)) as f32));
            // SAFETY: 16 floats.
            unsafe {
                L::unpack::<BITS>(self.0).store(self.1.as_mut_ptr());
                L::lookup::<BITS>(self.0, L::load(table.as_ptr())).store(self.2.as_mut_ptr());
            }
        }
    }

    #[test]
    fn sums_and_codes_are_the_same_at_every_level() {
        let mut random = Random::new(3);
        let v: [[f32; LANES]; LANES] = std::array::from_fn(|_| random.f32(LANES).try_into().unwrap());
        let word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut first = None;
        for level in Level::available() {
            let (mut all, mut each) = ([f32::NAN; LANES], [f32::NAN; LANES]);
            level.run(Sums(&v, &mut all, &mut each));
            assert_eq!(all.map(f32::to_bits), each.map(f32::to_bits), "{level:?}");
            assert_eq!(*first.get_or_insert(all), all, "{level:?}");
            let poison = [9.0; LANES];
            let mut one = Unpack::<1>(word, poison, poison);
            let mut two = Unpack::<2>(word, poison, poison);
            let mut four = Unpack::<4>(word, poison, poison);
            level.run(&mut one);
            level.run(&mut two);
            level.run(&mut four);
            for i in 0..LANES {
                assert_eq!(one.1[i], (word >> i & 1) as f32, "{level:?}");
                assert_eq!(two.1[i], (word >> (2 * i) & 3) as f32, "{level:?}");
                assert_eq!(four.1[i], (word >> (4 * i) & 15) as f32, "{level:?}");
                assert_eq!([-one.1[i], -two.1[i], -four.1[i]], [one.2[i], two.2[i], four.2[i]], "{level:?}");
            }
        }
    }
}
