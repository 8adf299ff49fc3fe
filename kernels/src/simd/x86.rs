//! AVX2 and AVX-512 forms of [`Lanes`].
//!
//! SAFETY of every block in this file: the trait's contract. The CPU has the instructions (the only entries are
//! `run_avx2` and `run_avx512`, whose callers checked), and pointers are valid for the named number of elements.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::Job;
use super::lanes::{LANES, Lanes};
use half::bf16;
use std::arch::x86_64::*;

/// Runs `job` with AVX2 and FMA.
///
/// # Safety
/// The CPU has both.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<J: Job>(job: J) -> J::Out {
    unsafe { job.run::<Avx2>() }
}

/// Runs `job` with AVX-512.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn run_avx512<J: Job>(job: J) -> J::Out {
    unsafe { job.run::<Avx512>() }
}

/// Sixteen lanes in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Sixteen lanes in two registers: 0–7, 8–15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// The sum (or the largest) of eight lanes, halves first.
macro_rules! fold8 {
    ($v:expr, $op4:ident, $op1:ident) => {{
        let v = $v;
        let four = $op4(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = $op4(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($op1(two, _mm_shuffle_ps::<1>(two, two)))
    }};
}

/// Sixteen numbers of `BITS` bits, each with what is above it in its word.
#[inline(always)]
unsafe fn shift512<const BITS: u32>(bits: u64) -> __m512i {
    unsafe {
        let b = BITS as i32;
        let low = bits as i32;
        // Lanes 8–15 take the high word where 16 codes pass 32 bits.
        let (words, from) = if BITS == 4 {
            let high = _mm256_set1_epi32((bits >> 32) as i32);
            (_mm512_inserti64x4::<1>(_mm512_set1_epi32(low), high), 0)
        } else {
            (_mm512_set1_epi32(low), 8 * b)
        };
        let first = _mm256_setr_epi32(0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b);
        let second = _mm256_add_epi32(first, _mm256_set1_epi32(from));
        _mm512_srlv_epi32(words, _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second))
    }
}

/// Eight numbers of `BITS` bits, each with what is above it in its word.
#[inline(always)]
unsafe fn shift256<const BITS: u32>(word: u64) -> __m256i {
    unsafe {
        let b = BITS as i32;
        let shifts = _mm256_setr_epi32(0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b);
        _mm256_srlv_epi32(_mm256_set1_epi32(word as i32), shifts)
    }
}

impl Lanes for Avx512 {
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(p)) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(p: *const bf16) -> (Self, Self) {
        unsafe {
            let both = _mm512_loadu_si512(p.cast());
            let even = _mm512_slli_epi32::<16>(both);
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (Self(_mm512_castsi512_ps(even)), Self(_mm512_castsi512_ps(odd)))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))) }
    }

    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(bits: u64) -> Self {
        unsafe {
            let codes = _mm512_and_si512(shift512::<BITS>(bits), _mm512_set1_epi32((1 << BITS) - 1));
            Self(_mm512_cvtepi32_ps(codes))
        }
    }

    #[inline(always)]
    unsafe fn lookup<const BITS: u32>(bits: u64, table: Self) -> Self {
        // The permutation reads four bits of an index; a table that repeats makes the upper ones not matter.
        unsafe { Self(_mm512_permutexvar_ps(shift512::<BITS>(bits), table.0)) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let chosen = _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(up, nan, quiet));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(chosen));
        }
    }

    #[inline(always)]
    unsafe fn split(self, high: *mut bf16, low: *mut bf16) {
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let upper = _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            let rest = _mm512_castps_si512(_mm512_sub_ps(self.0, _mm512_castsi512_ps(upper)));
            let cut = |v| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v));
            _mm256_storeu_si256(high.cast(), cut(bits));
            _mm256_storeu_si256(low.cast(), cut(rest));
        }
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, o.0)) }
    }

    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        unsafe {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0);
            Self(_mm512_maskz_mov_ps(keep, self.0))
        }
    }

    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        unsafe {
            let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f80_0000))))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            fold8!(eight, _mm_add_ps, _mm_add_ss)
        }
    }

    #[inline(always)]
    unsafe fn sums(v: &[Self; LANES]) -> Self {
        unsafe {
            // Each round adds the lower to the upper half of every group of two vectors' lanes and packs both results
            // into one vector: 16 vectors of 16 lanes, 8 of 2·8, 4 of 4·4, 2 of 8·2, 1 of 16·1.
            let mut a = [_mm512_setzero_ps(); 8];
            for (i, out) in a.iter_mut().enumerate() {
                let (x, y) = (v[i].0, v[i + 8].0);
                let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y);
                let high = _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y);
                *out = _mm512_add_ps(low, high);
            }
            // a[i]: 128-bit parts (x0+x2, x1+x3, y0+y2, y1+y3) of x = v[i], y = v[i + 8].
            let mut b = [_mm512_setzero_ps(); 4];
            for (i, out) in b.iter_mut().enumerate() {
                let (x, y) = (a[i], a[i + 4]);
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y);
                let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y);
                *out = _mm512_add_ps(low, high);
            }
            // b[i]: parts are four lanes of v[i], v[i + 8], v[i + 4], v[i + 12].
            let pair = |x: __m512, y: __m512| {
                let low = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
                let high = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
                _mm512_add_ps(low, high)
            };
            let (c0, c1) = (pair(b[0], b[2]), pair(b[1], b[3]));
            // c0: parts (two lanes of v[j], two of v[j + 2]), j = 0, 8, 4, 12; c1: j = 1, 9, 5, 13.
            let low = _mm512_shuffle_ps::<0b10_00_10_00>(c0, c1);
            let high = _mm512_shuffle_ps::<0b11_01_11_01>(c0, c1);
            // Parts (j, j + 2, j + 1, j + 3) for j = 0, 8, 4, 12.
            let d = _mm512_add_ps(low, high);
            let order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
            Self(_mm512_permutexvar_ps(order, d))
        }
    }

    #[inline(always)]
    unsafe fn peak(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            fold8!(eight, _mm_max_ps, _mm_max_ss)
        }
    }
}

impl Lanes for Avx2 {
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let half = |p: *const bf16| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            };
            Self(half(p), half(p.add(8)))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(p: *const bf16) -> (Self, Self) {
        unsafe {
            let (a, b) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(16).cast()));
            let even = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let odd = |v| _mm256_castsi256_ps(_mm256_and_si256(v, high));
            (Self(even(a), even(b)), Self(odd(a), odd(b)))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        unsafe {
            let half = |p: *const u8| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
            Self(half(p), half(p.add(8)))
        }
    }

    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(bits: u64) -> Self {
        unsafe {
            let mask = _mm256_set1_epi32((1 << BITS) - 1);
            let half = |word| _mm256_cvtepi32_ps(_mm256_and_si256(shift256::<BITS>(word), mask));
            Self(half(bits), half(bits >> (8 * BITS)))
        }
    }

    #[inline(always)]
    unsafe fn lookup<const BITS: u32>(bits: u64, table: Self) -> Self {
        unsafe {
            let half = |word| {
                // The permutation reads three bits of an index; the fourth chooses the half of the table.
                let index = shift256::<BITS>(word);
                let low = _mm256_permutevar8x32_ps(table.0, index);
                if BITS < 4 {
                    return low;
                }
                let high = _mm256_permutevar8x32_ps(table.1, index);
                _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
            };
            Self(half(bits), half(bits >> (8 * BITS)))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        unsafe {
            let round = |v: __m256| {
                let bits = _mm256_castps_si256(v);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan))
            };
            let packed = _mm256_packus_epi32(round(self.0), round(self.1));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn split(self, high: *mut bf16, low: *mut bf16) {
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let upper = |v: __m256| _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), mask));
            let cut = |v: __m256| _mm256_srli_epi32::<16>(_mm256_castps_si256(v));
            let pack = |a: __m256, b: __m256, to: *mut bf16| {
                let packed = _mm256_packus_epi32(cut(a), cut(b));
                _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
            };
            pack(self.0, self.1, high);
            pack(_mm256_sub_ps(self.0, upper(self.0)), _mm256_sub_ps(self.1, upper(self.1)), low);
        }
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, o.0), _mm256_add_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, o.0), _mm256_sub_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, o.0), _mm256_mul_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, o.0), _mm256_div_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }

    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, o.0), _mm256_max_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, o.0), _mm256_min_ps(self.1, o.1)) }
    }

    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        unsafe {
            let half = |v, x, limit| _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), v);
            Self(half(self.0, x.0, limit.0), half(self.1, x.1, limit.1))
        }
    }

    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        unsafe {
            let half = |v| {
                let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
                _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f80_0000)))
            };
            Self(half(self.0), half(self.1))
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { fold8!(_mm256_add_ps(self.0, self.1), _mm_add_ps, _mm_add_ss) }
    }

    #[inline(always)]
    unsafe fn sums(v: &[Self; LANES]) -> Self {
        unsafe {
            let mut out = [0.0; LANES];
            for (sum, v) in out.iter_mut().zip(v) {
                *sum = v.sum();
            }
            Self::load(out.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn peak(self) -> f32 {
        unsafe { fold8!(_mm256_max_ps(self.0, self.1), _mm_max_ps, _mm_max_ss) }
    }
}
