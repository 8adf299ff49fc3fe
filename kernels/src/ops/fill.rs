//! Seeded random content, made where it lies.

use crate::cuda::{CudaBuf, CudaHostBuf, arg};
use crate::memory::{CpuBuf, CpuHostBuf};
use crate::team::Parts;
use crate::{Cpu, Cuda};
use half::bf16;
use oasis_core::Result;
use oasis_core::ops::{Fill, Noise};

/// The same bits everywhere.
pub const TOLERANCE: f64 = 0.0;

/// Elements of a task.
const STRIP: usize = 1 << 16;

impl Cpu {
    fn noise<T: Send>(&mut self, noise: Noise, out: &mut [T], round: impl Fn(f32) -> T + Sync) {
        let n = out.len();
        let to = Parts::new(out);
        // Some ten operations an element.
        self.team.run(n.div_ceil(STRIP), n.saturating_mul(10), |_, task| {
            let first = task * STRIP;
            // SAFETY: strip `task` is this task's.
            let strip = unsafe { to.slice(first, STRIP.min(n - first)) };
            for (i, x) in strip.iter_mut().enumerate() {
                *x = round(noise.at((first + i) as u64));
            }
        });
    }
}

impl Fill for Cpu {
    fn fill(&mut self, noise: Noise, out: &mut CpuBuf<f32>) -> Result<()> {
        self.noise(noise, out, |x| x);
        Ok(())
    }

    fn fill_half(&mut self, noise: Noise, out: &mut CpuBuf<bf16>) -> Result<()> {
        self.noise(noise, out, bf16::from_f32);
        Ok(())
    }

    fn fill_host(&mut self, noise: Noise, out: &mut CpuHostBuf<bf16>) -> Result<()> {
        self.noise(noise, out, bf16::from_f32);
        Ok(())
    }
}

/// Threads of a block, and most blocks: enough to keep a device or its link busy.
const THREADS: u32 = 256;
const BLOCKS: usize = 4096;

impl Cuda {
    /// # Safety
    /// `to` is the address of `n` elements of the kernel's kind, at a whole 16 bytes.
    unsafe fn noise(&self, kernel: &'static str, noise: Noise, n: usize, each: usize, to: u64) -> Result<()> {
        let (seed, mean, unit, count) = (noise.seed, noise.mean, noise.unit(), n as u64);
        let mut args = [arg(&seed), arg(&mean), arg(&unit), arg(&count), arg(&to)];
        let blocks = n.div_ceil(each * THREADS as usize).min(BLOCKS);
        // SAFETY: fill.cu's arguments; the rest is the caller's promise.
        unsafe { self.launch(kernel, [blocks, 1, 1], THREADS, &mut args) }
    }
}

impl Fill for Cuda {
    fn fill(&mut self, noise: Noise, out: &mut CudaBuf<f32>) -> Result<()> {
        // SAFETY: all elements of an array.
        unsafe { self.noise("fill_f32", noise, out.len(), 1, out.at(0)) }
    }

    fn fill_half(&mut self, noise: Noise, out: &mut CudaBuf<bf16>) -> Result<()> {
        // SAFETY: all elements of an array; allocations are aligned to 256 bytes.
        unsafe { self.noise("fill_bf16", noise, out.len(), 8, out.at(0)) }
    }

    /// Waits: the host may read the array as soon as this returns.
    fn fill_host(&mut self, noise: Noise, out: &mut CudaHostBuf<bf16>) -> Result<()> {
        // SAFETY: all elements of an array of pinned memory, which starts at a page.
        unsafe { self.noise("fill_bf16", noise, out.len(), 8, out.at(0))? };
        self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::ops::Memory;

    #[test]
    fn roughly_normal_and_never_twice_the_same() {
        let mut cpu = Cpu::new(2);
        let n = 300_000;
        let mut out = cpu.upload(&vec![f32::NAN; n]).unwrap();
        cpu.fill(Noise { seed: 7, mean: 2.0, deviation: 3.0 }, &mut out).unwrap();
        let mean = out.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        let variance = out.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(
            (mean - 2.0).abs() < 0.02 && (variance - 9.0).abs() < 0.1,
            "mean {mean}, variance {variance}"
        );
        // Neighbours, and two arrays, have nothing to do with each other.
        let along = out.windows(2).map(|w| f64::from(w[0] - 2.0) * f64::from(w[1] - 2.0)).sum::<f64>();
        let mut other = cpu.upload(&vec![f32::NAN; n]).unwrap();
        cpu.fill(Noise { seed: 8, mean: 2.0, deviation: 3.0 }, &mut other).unwrap();
        let across =
            out.iter().zip(&other[..]).map(|(&a, &b)| f64::from(a - 2.0) * f64::from(b - 2.0)).sum::<f64>();
        assert!((along / n as f64).abs() < 0.1 && (across / n as f64).abs() < 0.1, "{along} {across}");
    }

    #[test]
    fn an_element_depends_on_seed_and_place_alone() {
        let noise = Noise::normal(u64::MAX - 3);
        let mut one = Cpu::new(1);
        let mut three = Cpu::new(3);
        let n = STRIP + 37;
        let (mut a, mut b) = (one.alloc::<bf16>(n).unwrap(), three.alloc_host::<bf16>(n).unwrap());
        one.fill_half(noise, &mut a).unwrap();
        three.fill_host(noise, &mut b).unwrap();
        assert!(a.iter().zip(&b[..]).all(|(x, y)| x.to_bits() == y.to_bits()));
        for i in [0, 1, STRIP - 1, STRIP, n - 1] {
            assert_eq!(a[i], bf16::from_f32(noise.at(i as u64)));
        }
    }
}
