//! Root-mean-square norm.

use super::need;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::simd::{Narrow, square_sum};
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::Result;
use oasis_core::ops::RmsNorm;

/// One rounding to bf16, that may fall the other way.
pub const TOLERANCE: f64 = 1.0 / 128.0;

/// `x / sqrt(mean(x²) + eps) · weight` in f32.
pub(super) fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let factor = 1.0 / (square_sum(x) / x.len() as f32 + eps).sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * w;
    }
}

impl RmsNorm for Cpu {
    fn rms_norm(
        &mut self,
        x: &CpuBuf<f32>,
        weight: &CpuBuf<f32>,
        eps: f32,
        rows: usize,
        dim: usize,
        out: &mut CpuBuf<bf16>,
    ) -> Result<()> {
        need("rms_norm", "x", x.len(), rows * dim)?;
        need("rms_norm", "weight", weight.len(), dim)?;
        need("rms_norm", "out", out.len(), rows * dim)?;
        let to = Parts::new(&mut out[..rows * dim]);
        self.team.run(rows, 2 * rows * dim, |worker, r| {
            let mut scratch = self.workers.get(worker);
            let [normed] = scratch.floats([dim]);
            norm(&x[r * dim..][..dim], weight, eps, normed);
            // SAFETY: row r is this task's.
            self.level.run(Narrow { from: normed, to: unsafe { to.slice(r * dim, dim) } });
        });
        Ok(())
    }
}

impl RmsNorm for Cuda {
    fn rms_norm(
        &mut self,
        x: &CudaBuf<f32>,
        weight: &CudaBuf<f32>,
        eps: f32,
        rows: usize,
        dim: usize,
        out: &mut CudaBuf<bf16>,
    ) -> Result<()> {
        need("rms_norm", "x", x.len(), rows * dim)?;
        need("rms_norm", "weight", weight.len(), dim)?;
        need("rms_norm", "out", out.len(), rows * dim)?;
        let (from, weight, to, width) = (x.at(0), weight.at(0), out.at(0), dim as u32);
        let mut args = [arg(&from), arg(&weight), arg(&eps), arg(&width), arg(&to)];
        // Four columns a thread, where there are threads enough.
        let threads = (dim.div_ceil(4).next_multiple_of(32)).min(1024) as u32;
        // SAFETY: rms_norm.cu's arguments, of the lengths checked above; it waits for its predecessor.
        unsafe { self.launch_early("rms_norm", [rows, 1, 1], threads, &mut args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close, f64s, poison16};
    use oasis_core::ops::Memory;

    #[test]
    fn as_in_double_precision() {
        let mut cpu = Cpu::new(2);
        let mut random = Random::new(2);
        for (rows, dim) in [(1, 1), (3, 100), (70, 576)] {
            let (x, w) = (random.f32(rows * dim), random.f32(dim));
            let mut want = Vec::new();
            for row in x.chunks(dim) {
                let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / dim as f64;
                want.extend(
                    row.iter().zip(&w).map(|(&v, &w)| f64::from(v) / (mean + 1e-5).sqrt() * f64::from(w)),
                );
            }
            let (x, w) = (cpu.upload(&x).unwrap(), cpu.upload(&w).unwrap());
            let mut out = cpu.upload(&poison16(rows * dim)).unwrap();
            cpu.rms_norm(&x, &w, 1e-5, rows, dim, &mut out).unwrap();
            assert_close(f64s(&out), &want, 0.5 * TOLERANCE);
        }
    }
}
