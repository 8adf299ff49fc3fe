//! Inner products of bf16 rows with f32 rows, in one fixed order.
//!
//! Element e of a row goes to lane (e / 2) % 16 of the accumulator of its parity: 32 bf16 are one load, a shift and a
//! mask. The f32 row is stored accordingly, see [`deinterleave`].

use super::lanes::{LANES, Lanes};
use super::{Job, Level, prefetch};
use half::bf16;

/// Elements that one load of a bf16 row brings.
pub(crate) const PAIR: usize = 2 * LANES;

/// Bytes of weight that are asked for ahead of their use.
const AHEAD: usize = 9216;

/// Writes `row` (at most `out.len()` long) as [`GemmRows`] wants it: of every 32 elements first those at even
/// places, then those at odd places; zeros behind the end. `out.len()` is a multiple of [`PAIR`].
pub(crate) fn deinterleave(row: impl ExactSizeIterator<Item = f32>, out: &mut [f32]) {
    debug_assert!(out.len().is_multiple_of(PAIR) && row.len() <= out.len());
    out[row.len() / PAIR * PAIR..].fill(0.0);
    for (e, value) in row.enumerate() {
        out[e / PAIR * PAIR + e % 2 * LANES + e % PAIR / 2] = value;
    }
}

/// `W` bf16 rows of `k` elements (stride `k`) against `R` f32 rows (stride `xs`, deinterleaved).
///
/// # Safety
/// The CPU has the instructions of `L`; the rows are there.
#[inline(always)]
unsafe fn tile<L: Lanes, const W: usize, const R: usize>(
    w: *const bf16,
    k: usize,
    x: *const f32,
    xs: usize,
) -> [[f32; R]; W] {
    // SAFETY: `i + 32 <= k` in the loop; the rest is copied to a buffer of 32; x rows are padded to a multiple of 32.
    unsafe {
        let zero = L::splat(0.0);
        let mut even = [[zero; R]; W];
        let mut odd = [[zero; R]; W];
        let whole = k / PAIR * PAIR;
        let mut i = 0;
        while i < whole {
            for a in 0..W {
                let (e, o) = L::load_bf16_pair(w.add(a * k + i));
                for b in 0..R {
                    let at = x.add(b * xs + i);
                    even[a][b] = e.mul_add(L::load(at), even[a][b]);
                    odd[a][b] = o.mul_add(L::load(at.add(LANES)), odd[a][b]);
                }
            }
            i += PAIR;
        }
        if whole < k {
            for a in 0..W {
                let mut rest = [bf16::ZERO; PAIR];
                std::ptr::copy_nonoverlapping(w.add(a * k + whole), rest.as_mut_ptr(), k - whole);
                let (e, o) = L::load_bf16_pair(rest.as_ptr());
                for b in 0..R {
                    let at = x.add(b * xs + whole);
                    even[a][b] = e.mul_add(L::load(at), even[a][b]);
                    odd[a][b] = o.mul_add(L::load(at.add(LANES)), odd[a][b]);
                }
            }
        }
        let mut out = [[0.0; R]; W];
        for a in 0..W {
            for b in 0..R {
                out[a][b] = even[a][b].add(odd[a][b]).sum();
            }
        }
        out
    }
}

/// The inner products of one row with 16 others, all of `width` floats (a multiple of [`LANES`]). Element e goes to lane
/// e % 16, whose sums are added as in [`Lanes::sum`].
///
/// # Safety
/// The CPU has the instructions of `L`; `one` has `width` floats, and so has each of 16 rows `width` apart from `rows` on.
#[inline(always)]
pub(crate) unsafe fn dots<L: Lanes>(rows: *const f32, one: *const f32, width: usize) -> L {
    // SAFETY: c + 16 ≤ width.
    unsafe {
        let mut acc = [L::splat(0.0); LANES];
        if L::REGISTERS >= 32 {
            for c in (0..width).step_by(LANES) {
                let x = L::load(one.add(c));
                for (t, acc) in acc.iter_mut().enumerate() {
                    *acc = L::load(rows.add(t * width + c)).mul_add(x, *acc);
                }
            }
        } else {
            for (t, acc) in acc.iter_mut().enumerate() {
                for c in (0..width).step_by(LANES) {
                    *acc = L::load(rows.add(t * width + c)).mul_add(L::load(one.add(c)), *acc);
                }
            }
        }
        L::sums(&acc)
    }
}

/// The inner product of two rows, as one of [`dots`].
///
/// # Safety
/// The CPU has the instructions of `L`; both have `width` floats, a multiple of [`LANES`].
#[inline(always)]
pub(crate) unsafe fn dot<L: Lanes>(a: *const f32, b: *const f32, width: usize) -> f32 {
    // SAFETY: c + 16 ≤ width.
    unsafe {
        let mut acc = L::splat(0.0);
        for c in (0..width).step_by(LANES) {
            acc = L::load(a.add(c)).mul_add(L::load(b.add(c)), acc);
        }
        acc.sum()
    }
}

/// Some rows of a weight against all rows of x.
pub(crate) struct GemmRows<'a> {
    /// `[n][k]`.
    pub w: &'a [bf16],
    /// Columns.
    pub k: usize,
    /// `[rows][stride]`, deinterleaved.
    pub x: &'a [f32],
    /// Floats of a row of `x`, k rounded up to [`PAIR`].
    pub stride: usize,
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Add to what is there.
    pub accumulate: bool,
    /// Row r of x, row j of w: to `out[r · out_stride + j]`. Valid, and nobody else's, for all of these.
    pub out: *mut f32,
    /// Distance of rows in `out`.
    pub out_stride: usize,
}

impl GemmRows<'_> {
    /// Computes.
    ///
    /// # Safety
    /// `out` is as its description says.
    pub(crate) unsafe fn run_at(self, level: Level) {
        assert!(self.stride.is_multiple_of(PAIR) && self.stride >= self.k);
        assert!(self.x.len().is_multiple_of(self.stride));
        level.run(self);
    }

    #[inline(always)]
    unsafe fn put<const W: usize, const R: usize>(&self, j: usize, r: usize, dots: [[f32; R]; W]) {
        for (a, dots) in dots.iter().enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[j + a]);
            for (b, dot) in dots.iter().enumerate() {
                // SAFETY: within `out`, by the promise of `run_at`.
                unsafe {
                    let to = self.out.add((r + b) * self.out_stride + j + a);
                    let before = if self.accumulate { to.read() } else { 0.0 };
                    to.write(dot + bias + before);
                }
            }
        }
    }

    /// `W` weight rows from `j` against all rows of x.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const W: usize>(&self, j: usize) {
        // SAFETY: rows j .. j + W of w and r .. r + R of x are there.
        unsafe {
            let w = self.w.as_ptr().add(j * self.k);
            let rows = self.x.len() / self.stride;
            let x = |r: usize| self.x.as_ptr().add(r * self.stride);
            let mut r = 0;
            while r + 4 <= rows {
                self.put(j, r, tile::<L, W, 4>(w, self.k, x(r), self.stride));
                r += 4;
            }
            if r + 2 <= rows {
                self.put(j, r, tile::<L, W, 2>(w, self.k, x(r), self.stride));
                r += 2;
            }
            if r < rows {
                self.put(j, r, tile::<L, W, 1>(w, self.k, x(r), self.stride));
            }
        }
    }
}

impl Job for GemmRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let n = self.w.len() / self.k;
        let mut j = 0;
        // SAFETY: j + W ≤ n.
        unsafe {
            if L::REGISTERS >= 32 {
                while j + 4 <= n {
                    // The weight is one stream, but four rows of it are read side by side.
                    let ahead = j * self.k + AHEAD / 2;
                    prefetch(&self.w[ahead.min(self.w.len())..(ahead + 4 * self.k).min(self.w.len())]);
                    if self.x.len() <= 2 * self.stride {
                        self.rows::<L, 4>(j);
                    } else {
                        self.rows::<L, 2>(j);
                        self.rows::<L, 2>(j + 2);
                    }
                    j += 4;
                }
            }
            while j < n {
                self.rows::<L, 1>(j);
                j += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits};

    fn gemm(level: Level, w: &[bf16], k: usize, x: &[Vec<f32>]) -> Vec<f32> {
        let stride = k.next_multiple_of(PAIR);
        let mut xs = vec![f32::NAN; x.len() * stride];
        for (row, out) in x.iter().zip(xs.chunks_exact_mut(stride)) {
            deinterleave(row.iter().copied(), out);
        }
        let n = w.len() / k;
        let mut out = vec![f32::NAN; x.len() * n];
        let to = out.as_mut_ptr();
        let job = GemmRows { w, k, x: &xs, stride, bias: None, accumulate: false, out: to, out_stride: n };
        // SAFETY: out is [rows][n].
        unsafe { job.run_at(level) };
        out
    }

    #[test]
    fn every_instruction_set_and_every_row_count_gives_the_same_bits() {
        let mut random = Random::new(1);
        for (n, k) in [(7, 1), (9, 31), (13, 64), (6, 100), (11, 576)] {
            let w = random.bf16(n * k);
            let x: Vec<Vec<f32>> = (0..13).map(|_| random.f32(k)).collect();
            let all = gemm(Level::Portable, &w, k, &x);
            for level in Level::available() {
                for rows in 1..=x.len() {
                    let some = gemm(level, &w, k, &x[..rows]);
                    assert_eq!(bits(&some), bits(&all[..rows * n]), "{level:?} {rows} rows {n}×{k}");
                }
            }
        }
    }
}
