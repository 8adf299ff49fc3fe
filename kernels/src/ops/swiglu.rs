//! SwiGLU.

use super::need;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::simd::SiluMul;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::Result;
use oasis_core::ops::Swiglu;

/// One rounding to bf16, that may fall the other way.
pub const TOLERANCE: f64 = 1.0 / 128.0;

impl Swiglu for Cpu {
    fn swiglu(
        &mut self,
        gate_up: &CpuBuf<f32>,
        rows: usize,
        inner: usize,
        out: &mut CpuBuf<bf16>,
    ) -> Result<()> {
        need("swiglu", "gate_up", gate_up.len(), 2 * rows * inner)?;
        need("swiglu", "out", out.len(), rows * inner)?;
        let to = Parts::new(&mut out[..rows * inner]);
        self.team.run(rows, 8 * rows * inner, |_, r| {
            let (gate, up) = gate_up[2 * r * inner..][..2 * inner].split_at(inner);
            // SAFETY: row r is this task's.
            self.level.run(SiluMul { gate, up, out: unsafe { to.slice(r * inner, inner) } });
        });
        Ok(())
    }
}

impl Swiglu for Cuda {
    fn swiglu(
        &mut self,
        gate_up: &CudaBuf<f32>,
        rows: usize,
        inner: usize,
        out: &mut CudaBuf<bf16>,
    ) -> Result<()> {
        need("swiglu", "gate_up", gate_up.len(), 2 * rows * inner)?;
        need("swiglu", "out", out.len(), rows * inner)?;
        let (from, to, width) = (gate_up.at(0), out.at(0), inner as u32);
        let mut args = [arg(&from), arg(&width), arg(&to)];
        let columns = if inner.is_multiple_of(4) { 4 } else { 1 };
        let grid = [inner.div_ceil(256 * columns), rows, 1];
        // SAFETY: swiglu.cu's arguments, of the lengths checked above; it waits for its predecessor.
        unsafe { self.launch_early("swiglu", grid, 256, &mut args) }
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
        let mut random = Random::new(3);
        for (rows, inner) in [(1, 5), (3, 640), (40, 1000)] {
            let x: Vec<f32> = random.f32(2 * rows * inner).iter().map(|v| 6.0 * v).collect();
            let mut want = Vec::new();
            for row in x.chunks(2 * inner) {
                let (gate, up) = row.split_at(inner);
                let silu = |g: f64| g / (1.0 + (-g).exp());
                want.extend(gate.iter().zip(up).map(|(&g, &u)| silu(g.into()) * f64::from(u)));
            }
            let x = cpu.upload(&x).unwrap();
            let mut out = cpu.upload(&poison16(rows * inner)).unwrap();
            cpu.swiglu(&x, rows, inner, &mut out).unwrap();
            assert_close(f64s(&out), &want, 0.5 * TOLERANCE);
        }
    }

    #[test]
    fn large_gates_and_nan() {
        let mut cpu = Cpu::new(1);
        let x = cpu.upload(&[-200.0, 200.0, f32::NAN, 1.0, 1.0, 1.0]).unwrap();
        let mut out = cpu.upload(&poison16(3)).unwrap();
        cpu.swiglu(&x, 1, 3, &mut out).unwrap();
        assert!(
            out[0].to_f32().abs() < 1e-30 && out[1].to_f32() == 200.0 && out[2].is_nan(),
            "{:?}",
            &out[..]
        );
    }
}
