//! Matrix product with a weight.
//!
//! Below [`BATCH`] rows the weight is read once, as bf16, in the fixed order of the inner products in `simd`: memory
//! bandwidth is the bound. From there on arithmetic is: AMX tiles where the CPU has them, otherwise both sides are
//! widened to f32 and multiplied by the `gemm` crate; where all machines are to give the same bits, as below.
//!
//! On CUDA the same holds below [`BATCH`] rows, with tensor cores: gemm_stream.cu where the device has a copy engine for
//! tiles, else gemm.cu. From there on cuBLASLt multiplies.

mod stream;

use super::need;
use crate::cpu::Many;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::simd::{Amx, GemmRows, PAIR, SIDE, TILE, Widen, deinterleave, pack_rows, prefetch};
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::Result;
use oasis_core::model::Linear;
use oasis_core::ops::Gemm;

/// Order of f32 sums; relative to the root mean square of the output.
pub const TOLERANCE: f64 = 1e-5;

/// Rows from which products are done in tiles, and a row's result may depend on the others in its last bits.
pub const BATCH: usize = 64;

/// Weight rows of a task below [`BATCH`] rows.
const PANEL: usize = 64;

/// Most weight rows of a task from [`BATCH`] rows on.
const PANEL_TILED: usize = 192;

/// Depth of an AMX tile.
const DEPTH: usize = 32;

impl Gemm for Cpu {
    fn gemm(
        &mut self,
        x: &CpuBuf<bf16>,
        w: &Linear<Self>,
        rows: usize,
        accumulate: bool,
        out: &mut CpuBuf<f32>,
    ) -> Result<()> {
        let (n, k) = (w.rows_out, w.cols_in);
        need("gemm", "x", x.len(), rows * k)?;
        need("gemm", "weight", w.weight.len(), n * k)?;
        need("gemm", "bias", w.bias.as_ref().map_or(n, |b| b.len()), n)?;
        need("gemm", "out", out.len(), rows * n)?;
        need("gemm", "columns", k, 1)?;
        let product = Product {
            x: &x[..rows * k],
            w: &w.weight[..n * k],
            bias: w.bias.as_ref().map(|b| &b[..n]),
            rows,
            n,
            k,
            accumulate,
        };
        let out = &mut out[..rows * n];
        match rows {
            0..BATCH => self.gemm_rows(&product, out),
            _ => match self.many {
                Many::Rows => self.gemm_rows(&product, out),
                Many::Amx if k.is_multiple_of(DEPTH) => self.gemm_amx(&product, out),
                Many::Amx | Many::Floats => self.gemm_tiles(&product, out),
            },
        }
        Ok(())
    }
}

/// Checked arguments.
struct Product<'a> {
    x: &'a [bf16],
    w: &'a [bf16],
    bias: Option<&'a [f32]>,
    rows: usize,
    n: usize,
    k: usize,
    accumulate: bool,
}

impl Cpu {
    fn gemm_rows(&mut self, p: &Product<'_>, out: &mut [f32]) {
        let (n, k) = (p.n, p.k);
        let stride = k.next_multiple_of(PAIR);
        let [xs] = self.whole.floats([p.rows * stride]);
        for (row, to) in p.x.chunks_exact(k).zip(xs.chunks_exact_mut(stride)) {
            deinterleave(row.iter().map(|v| v.to_f32()), to);
        }
        let xs = &*xs;
        let to = Parts::new(out);
        self.team.run(n.div_ceil(PANEL), n * k * p.rows.max(2), |_, panel| {
            let from = panel * PANEL;
            let until = n.min(from + PANEL);
            // As many rows at a time as stay in the second-level cache beside the panel.
            for (i, xs) in xs.chunks(BATCH * stride).enumerate() {
                // SAFETY: columns `from .. until` of every row are this task's, and within `out`.
                unsafe {
                    let job = GemmRows {
                        w: &p.w[from * k..until * k],
                        k,
                        x: xs,
                        stride,
                        bias: p.bias.map(|b| &b[from..until]),
                        accumulate: p.accumulate,
                        out: to.pointer(i * BATCH * n + from),
                        out_stride: n,
                    };
                    job.run_at(self.level);
                }
            }
        });
    }

    /// Weight rows of a task, so that the threads get equally many tasks.
    fn panel(&self, n: usize) -> usize {
        let tasks = n.div_ceil(PANEL_TILED).next_multiple_of(self.threads());
        n.div_ceil(tasks).next_multiple_of(SIDE)
    }

    fn gemm_tiles(&mut self, p: &Product<'_>, out: &mut [f32]) {
        let (n, k, rows) = (p.n, p.k, p.rows);
        let width = self.panel(n);
        let [xs] = self.whole.floats([rows * k]);
        self.level.run(Widen { from: p.x, to: xs });
        let xs = &*xs;
        let to = Parts::new(out);
        self.team.run(n.div_ceil(width), n * k * rows, |worker, task| {
            let from = task * width;
            let cols = width.min(n - from);
            let mut scratch = self.workers.get(worker);
            let [panel] = scratch.floats([cols * k]);
            self.level.run(Widen { from: &p.w[from * k..(from + cols) * k], to: panel });
            for r in 0..rows {
                // SAFETY: columns `from ..` of every row are this task's.
                p.begin(unsafe { to.slice(r * n + from, cols) }, from);
            }
            // SAFETY: as above, and within `out`.
            unsafe { add_product(rows, cols, k, xs, panel, to.pointer(from), n) };
        });
    }

    fn gemm_amx(&mut self, p: &Product<'_>, out: &mut [f32]) {
        let (k, rows) = (p.k, p.rows);
        let width = self.panel(p.n);
        // The last rows, as many as a tile has.
        let [last] = self.whole.halves([SIDE * k]);
        let whole = rows / SIDE * SIDE;
        last.fill(bf16::ZERO);
        last[..(rows - whole) * k].copy_from_slice(&p.x[whole * k..]);
        let last = &*last;
        let to = Parts::new(out);
        self.team.run(p.n.div_ceil(width), p.n * k * rows / 8, |worker, task| {
            let from = task * width;
            let cols = from..p.n.min(from + width);
            let mut scratch = self.workers.get(worker);
            let ([spare], [packed]) =
                scratch.floats_and_halves([SIDE * SIDE], [cols.len().next_multiple_of(SIDE) * k]);
            if let Some(amx) = Amx::start() {
                // SAFETY: these columns of every row are this task's.
                unsafe { p.amx_panel(&amx, cols, last, packed, spare, &to) };
            }
        });
    }
}

impl Product<'_> {
    /// What the product is added to: nothing, what is there, the bias; for columns from `from` on.
    fn begin(&self, row: &mut [f32], from: usize) {
        if !self.accumulate {
            row.fill(0.0);
        }
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&bias[from..]).for_each(|(out, b)| *out += b);
        }
    }

    /// All rows' results of some columns. `last` is the last, incomplete group of [`SIDE`] rows of x, filled with zeros.
    ///
    /// # Safety
    /// Nobody else has these columns of `out`.
    unsafe fn amx_panel(
        &self,
        amx: &Amx,
        cols: std::ops::Range<usize>,
        last: &[bf16],
        packed: &mut [bf16],
        spare: &mut [f32],
        out: &Parts<'_, f32>,
    ) {
        let (n, k) = (self.n, self.k);
        let steps = k / DEPTH;
        for (i, to) in packed.chunks_exact_mut(steps * TILE).enumerate() {
            let first = (cols.start + 16 * i).min(cols.end);
            let columns = (cols.end - first).min(16);
            pack_rows(&self.w[first * k..], k, columns, steps, to);
        }
        for r in (0..self.rows).step_by(SIDE) {
            let height = SIDE.min(self.rows - r);
            let a = if height == SIDE { &self.x[r * k..] } else { last };
            prefetch(&self.x[(r + height) * k..self.rows.min(r + 2 * SIDE) * k]);
            for (i, b) in packed.chunks_exact(2 * steps * TILE).enumerate() {
                let from = cols.start + SIDE * i;
                let width = SIDE.min(cols.end - from);
                let place = |row: usize| (r + row) * n + from;
                // SAFETY: rows r .. and columns `from ..` are this call's; `a` has 32 rows of k, `b` 2 · steps tiles.
                unsafe {
                    let (b, next) = (b.as_ptr(), b.as_ptr().add(steps * TILE));
                    if height == SIDE && width == SIDE {
                        let c = out.pointer(place(0));
                        if !self.accumulate && self.bias.is_none() {
                            amx.set_product(a.as_ptr(), 2 * k, b, next, steps, c, 4 * n);
                            continue;
                        }
                        (0..height).for_each(|row| self.begin(out.slice(place(row), width), from));
                        amx.add_product(a.as_ptr(), 2 * k, b, next, steps, c, 4 * n);
                        continue;
                    }
                    for row in 0..height {
                        let to = out.slice(place(row), width);
                        self.begin(to, from);
                        spare[row * SIDE..][..width].copy_from_slice(to);
                    }
                    amx.add_product(a.as_ptr(), 2 * k, b, next, steps, spare.as_mut_ptr(), 4 * SIDE);
                    for row in 0..height {
                        out.slice(place(row), width).copy_from_slice(&spare[row * SIDE..][..width]);
                    }
                }
            }
        }
    }
}

/// `out[r][j] += Σ x[r][i] w[j][i]`, x `[rows][k]`, w `[cols][k]`, rows of `out` at `stride`.
///
/// # Safety
/// `out` is valid, and nobody else's, for all these elements.
unsafe fn add_product(
    rows: usize,
    cols: usize,
    k: usize,
    x: &[f32],
    w: &[f32],
    out: *mut f32,
    stride: usize,
) {
    assert!(x.len() >= rows * k && w.len() >= cols * k);
    let (k_stride, out_stride) = (k as isize, stride as isize);
    let (x, w, one) = (x.as_ptr(), w.as_ptr(), gemm::Parallelism::None);
    // SAFETY: x and w are long enough, `out` by promise. The crate takes column strides before row strides.
    unsafe {
        gemm::gemm(
            rows, cols, k, out, 1, out_stride, true, x, 1, k_stride, w, k_stride, 1, 1.0_f32, 1.0_f32, false,
            false, false, one,
        );
    }
}

/// Weight rows of a thread block of gemm.cu.
const STRIPE: usize = 16;

impl Gemm for Cuda {
    fn gemm(
        &mut self,
        x: &CudaBuf<bf16>,
        w: &Linear<Self>,
        rows: usize,
        accumulate: bool,
        out: &mut CudaBuf<f32>,
    ) -> Result<()> {
        let (n, k) = (w.rows_out, w.cols_in);
        need("gemm", "x", x.len(), rows * k)?;
        need("gemm", "weight", w.weight.len(), n * k)?;
        need("gemm", "bias", w.bias.as_ref().map_or(n, |b| b.len()), n)?;
        need("gemm", "out", out.len(), rows * n)?;
        need("gemm", "columns", k, 1)?;
        let [x, weight, out] = [x.at(0), w.weight.at(0), out.at(0)];
        let bias = w.bias.as_ref().map_or(0, |b| b.at(0));
        let [rows_arg, n_arg, k_arg, add] = [rows, n, k, usize::from(accumulate)].map(|v| v as u32);
        if let (BATCH.., 0, Some(lt)) = (rows, k % 8, &mut self.lt) {
            // SAFETY: the lengths are checked above.
            unsafe { lt.product([x, weight, out], [rows, n, k], accumulate, self.lanes.current())? };
            if bias == 0 {
                return Ok(());
            }
            let mut args = [arg(&bias), arg(&n_arg), arg(&out)];
            // SAFETY: gemm.cu's arguments, of the lengths checked above.
            return unsafe { self.launch("add_bias", [n.div_ceil(256), rows, 1], 256, &mut args) };
        }
        if rows < BATCH && k % stream::CHUNK == 0 && self.streams() {
            // SAFETY: the lengths are checked above.
            return unsafe { self.stream_product([x, weight, bias, out], [rows, n, k], accumulate) };
        }
        let (kernel, grid) = match (k % 8, rows) {
            (0, ..=8) => ("gemm_rows_1", [n.div_ceil(STRIPE), 1, 1]),
            (0, ..=16) => ("gemm_rows_2", [n.div_ceil(STRIPE), 1, 1]),
            (0, _) => ("gemm_rows_4", [n.div_ceil(STRIPE), rows.div_ceil(32), 1]),
            _ => ("gemm_plain", [n.div_ceil(8), rows, 1]),
        };
        let mut args = [
            arg(&x),
            arg(&weight),
            arg(&bias),
            arg(&rows_arg),
            arg(&n_arg),
            arg(&k_arg),
            arg(&add),
            arg(&out),
        ];
        // SAFETY: as above.
        unsafe { self.launch(kernel, grid, 256, &mut args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;
    use crate::testing::{Random, assert_close, bits, poison};
    use oasis_core::ops::Memory;

    fn linear(cpu: &mut Cpu, w: &[bf16], bias: Option<&[f32]>, n: usize) -> Linear<Cpu> {
        let bias = bias.map(|b| cpu.upload(b).unwrap());
        Linear { weight: cpu.upload(w).unwrap(), bias, rows_out: n, cols_in: w.len() / n }
    }

    fn naive(x: &[bf16], w: &[bf16], k: usize, bias: Option<&[f32]>, before: Option<&[f32]>) -> Vec<f64> {
        let n = w.len() / k;
        let mut out = Vec::new();
        for (r, x) in x.chunks(k).enumerate() {
            for (j, w) in w.chunks(k).enumerate() {
                let dot: f64 =
                    x.iter().zip(w).map(|(a, b)| f64::from(a.to_f32()) * f64::from(b.to_f32())).sum();
                let bias = bias.map_or(0.0, |b| f64::from(b[j]));
                out.push(dot + bias + before.map_or(0.0, |b| f64::from(b[r * n + j])));
            }
        }
        out
    }

    #[test]
    fn as_in_double_precision() {
        as_in_double_precision_on(Cpu::new(2));
        as_in_double_precision_on(Cpu::new(2).without_amx());
        as_in_double_precision_on(Cpu::new(2).portable());
        as_in_double_precision_on(Cpu::new(1).at_level(Level::Portable).unwrap());
    }

    fn as_in_double_precision_on(mut cpu: Cpu) {
        let mut random = Random::new(20);
        for (rows, n, k) in [
            (1, 200, 96),
            (5, 70, 37),
            (63, 65, 576),
            (64, 300, 128),
            (150, 193, 100),
            (65, 1, 1),
            (97, 500, 64),
        ] {
            let (x, w) = (random.bf16(rows * k), random.bf16(n * k));
            let (bias, before) = (random.f32(n), random.f32(rows * n));
            let b_x = cpu.upload(&x).unwrap();
            for (with_bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let bias = with_bias.then_some(&bias[..]);
                let linear = linear(&mut cpu, &w, bias, n);
                let mut out =
                    cpu.upload(&if accumulate { before.clone() } else { poison(rows * n) }).unwrap();
                cpu.gemm(&b_x, &linear, rows, accumulate, &mut out).unwrap();
                let want = naive(&x, &w, k, bias, accumulate.then_some(&before[..]));
                assert_close(out.iter().map(|&v| v.into()), &want, 0.5 * TOLERANCE);
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_rows_threads_or_instructions() {
        let mut random = Random::new(21);
        let (n, k) = (1000, 300);
        let (x, w) = (random.bf16(40 * k), random.bf16(n * k));
        let mut first = None;
        for threads in [1, 2, 3] {
            for level in Level::available() {
                for rows in [40, 8, 7, 3, 1] {
                    let mut cpu = Cpu::new(threads).at_level(level).unwrap();
                    let linear = linear(&mut cpu, &w, None, n);
                    let b_x = cpu.upload(&x[..rows * k]).unwrap();
                    let mut out = cpu.upload(&poison(rows * n)).unwrap();
                    cpu.gemm(&b_x, &linear, rows, false, &mut out).unwrap();
                    let all = first.get_or_insert_with(|| bits(&out));
                    assert_eq!(bits(&out), all[..rows * n], "{threads} threads, {level:?}, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn nan_comes_out_where_it_went_in() {
        let mut random = Random::new(22);
        let mut cpu = Cpu::new(1);
        for rows in [3, 70] {
            let (mut x, w) = (random.bf16(rows * 64), random.bf16(10 * 64));
            x[2 * 64 + 5] = bf16::NAN;
            let linear = linear(&mut cpu, &w, None, 10);
            let b_x = cpu.upload(&x).unwrap();
            let mut out = cpu.upload(&vec![0.0; rows * 10]).unwrap();
            cpu.gemm(&b_x, &linear, rows, false, &mut out).unwrap();
            assert!(out.chunks(10).enumerate().all(|(r, row)| row.iter().all(|v| v.is_nan() == (r == 2))));
        }
    }

    #[test]
    fn short_buffers_are_refused() {
        let mut cpu = Cpu::new(1);
        let linear = linear(&mut cpu, &[bf16::ONE; 6], None, 2);
        let x = cpu.upload(&[bf16::ONE; 3]).unwrap();
        let mut out = cpu.upload(&[0.0; 1]).unwrap();
        let error = cpu.gemm(&x, &linear, 1, false, &mut out).unwrap_err();
        assert!(error.to_string().contains("`out` has 1 elements"), "{error}");
    }
}
