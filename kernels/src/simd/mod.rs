//! Vector code, written once over sixteen lanes of f32 and compiled for three instruction sets.
//!
//! Every level does the same operations in the same order, fused multiply-adds included, so that a result does not
//! depend on the machine, bit for bit.

mod amx;
mod dot;
mod elementwise;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use amx::{Amx, SIDE, TILE, pack_columns, pack_rows};
pub(crate) use dot::{GemmRows, PAIR, deinterleave, dot, dots};
pub(crate) use elementwise::{Narrow, SiluMul, Widen, square_sum, widen};
pub(crate) use lanes::{LANES, Lanes, Portable, exp, exp1, ln1};

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Any CPU; slow where fused multiply-add is a library call.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// The best level of this CPU.
    pub fn detect() -> Self {
        *Self::available().last().expect("the portable level is always there")
    }

    /// The levels of this CPU, slowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(Self::Avx2);
            }
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if wide && levels.len() == 2 {
                levels.push(Self::Avx512);
            }
        }
        levels
    }

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Runs `job` with this level's instructions.
    ///
    /// Levels come from [`Level::available`] only, so that the CPU has what the code needs.
    #[inline]
    pub(crate) fn run<J: Job>(self, job: J) -> J::Out {
        match self {
            // SAFETY: the portable level needs nothing of the CPU.
            Self::Portable => unsafe { job.run::<Portable>() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` found AVX2 and FMA.
            Self::Avx2 => unsafe { x86::run_avx2(job) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` found AVX-512 F, BW, DQ and VL.
            Self::Avx512 => unsafe { x86::run_avx512(job) },
            #[cfg(not(target_arch = "x86_64"))]
            // SAFETY: as above; other levels are never available here.
            _ => unsafe { job.run::<Portable>() },
        }
    }
}

/// Asks for `data` to come into the second-level cache; it will be read soon.
#[inline]
pub(crate) fn prefetch(data: &[half::bf16]) {
    #[cfg(target_arch = "x86_64")]
    for line in data.chunks(32) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint; it reads nothing, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// Code that is compiled once for each level.
pub(crate) trait Job {
    /// What it gives.
    type Out;
    /// The code; `#[inline(always)]`, so that it is compiled with the caller's instructions.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    unsafe fn run<L: Lanes>(self) -> Self::Out;
}
