//! Sixteen lanes of f32: the operations, and their portable form.

use half::bf16;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen f32.
///
/// # Safety of all methods
/// The CPU has the level's instructions; pointers are valid for the elements that the method names (unaligned).
pub(crate) trait Lanes: Copy {
    /// Vector registers that hold sixteen lanes: how much a kernel may unroll.
    const REGISTERS: usize;
    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// 16 floats.
    unsafe fn load(p: *const f32) -> Self;
    /// 16 floats.
    unsafe fn store(self, p: *mut f32);
    /// 16 bf16, in order.
    unsafe fn load_bf16(p: *const bf16) -> Self;
    /// 32 bf16: those at even places, those at odd places.
    unsafe fn load_bf16_pair(p: *const bf16) -> (Self, Self);
    /// 16 unsigned bytes as floats.
    unsafe fn load_u8(p: *const u8) -> Self;
    /// The lowest 16 · `BITS` bits of `bits` as 16 unsigned numbers, lowest bits first.
    unsafe fn unpack<const BITS: u32>(bits: u64) -> Self;
    /// As [`Lanes::unpack`], then the number's entry of `table`: where there are fewer than 16, the table repeats them.
    unsafe fn lookup<const BITS: u32>(bits: u64, table: Self) -> Self;
    /// Rounds to the nearest bf16, ties to even; NaN stays NaN. 16 elements.
    unsafe fn store_bf16(self, p: *mut bf16);
    /// The upper 16 bits of each lane, and those of what they leave: a bf16 and its remainder, both cut off. 16 elements
    /// each.
    unsafe fn split(self, high: *mut bf16, low: *mut bf16);
    /// self + o.
    unsafe fn add(self, o: Self) -> Self;
    /// self − o.
    unsafe fn sub(self, o: Self) -> Self;
    /// self · o.
    unsafe fn mul(self, o: Self) -> Self;
    /// self / o.
    unsafe fn div(self, o: Self) -> Self;
    /// self · b + c, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `if self > o { self } else { o }`: the second where either is NaN.
    unsafe fn max(self, o: Self) -> Self;
    /// `if self < o { self } else { o }`: the second where either is NaN.
    unsafe fn min(self, o: Self) -> Self;
    /// 0 where `x < limit`, self elsewhere (and where x is NaN).
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self;
    /// `2^n` from `1.5 · 2^23 + n`, for n in −126..=127.
    unsafe fn exp2_of_magic(self) -> Self;
    /// The sum of the lanes: i + (i+8), then + (i+4), + (i+2), + (i+1).
    unsafe fn sum(self) -> f32;
    /// The sums of 16 vectors, each as [`Lanes::sum`].
    unsafe fn sums(v: &[Self; LANES]) -> Self;
    /// The largest lane, by the rule of [`Lanes::max`].
    unsafe fn peak(self) -> f32;
}

const MAGIC: f32 = 12_582_912.0;
/// ln 2 = HI + LO; HI has so few bits that n · HI is exact.
const LN2_HI: f32 = 355.0 / 512.0;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Minimax of (e^r − 1 − r) / r² on |r| ≤ ln 2 / 2, as in Cephes' expf.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
/// Minimax of (ln(1 + r) − r + r²/2) / r³ on √½ ≤ 1 + r ≤ √2, as in Cephes' logf.
const LN: [f32; 9] = [
    7.037_683_6e-2,
    -0.115_146_1,
    0.116_769_98,
    -0.124_201_41,
    0.142_493_23,
    -0.166_680_57,
    0.200_007_15,
    -0.249_999_94,
    0.333_333_3,
];
const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.3;

/// e^x: relative error below 2·10⁻⁷, 0 below −87.3, at most e^88.3; NaN stays NaN.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: the caller vouches for the CPU; no pointers.
    unsafe {
        let lowest = L::splat(LOWEST);
        // Constants first: max and min give the second operand where that is NaN.
        let y = L::splat(HIGHEST).min(lowest.max(x));
        let magic = L::splat(MAGIC);
        let t = y.mul_add(L::splat(std::f32::consts::LOG2_E), magic);
        let n = t.sub(magic);
        let r = n.mul_add(L::splat(-LN2_LO), n.mul_add(L::splat(-LN2_HI), y));
        let mut p = L::splat(EXP[0]);
        for &c in &EXP[1..] {
            p = p.mul_add(r, L::splat(c));
        }
        let e = p.mul_add(r.mul(r), r).add(L::splat(1.0));
        e.mul(t.exp2_of_magic()).zero_below(x, lowest)
    }
}

/// [`exp`] of one number, the same bits. To be inlined where fused multiply-add is an instruction.
#[inline(always)]
pub(crate) fn exp1(x: f32) -> f32 {
    if x < LOWEST {
        return 0.0;
    }
    let y = if HIGHEST < x { HIGHEST } else { x };
    let t = y.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, y));
    let p = EXP[1..].iter().fold(EXP[0], |p, &c| p.mul_add(r, c));
    let e = p.mul_add(r * r, r) + 1.0;
    e * f32::from_bits((t.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// ln x: relative error below 2·10⁻⁷ away from 1; −∞ of 0, NaN of NaN and of negative numbers. Denormals count as 0. To be
/// inlined where fused multiply-add is an instruction.
#[inline(always)]
pub(crate) fn ln1(x: f32) -> f32 {
    if x == f32::INFINITY || x.is_nan() {
        return x;
    }
    if x < f32::MIN_POSITIVE {
        return if x < 0.0 { f32::NAN } else { f32::NEG_INFINITY };
    }
    // x = m · 2^e with √½ ≤ m < √2.
    let shifted = x.to_bits().wrapping_sub(0x3f35_04f3);
    let e = (shifted as i32 >> 23) as f32;
    let r = f32::from_bits((shifted & 0x7f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let p = LN[1..].iter().fold(LN[0], |p, &c| p.mul_add(r, c));
    let z = r * r;
    let y = (p * r).mul_add(z, e.mul_add(LN2_LO, -0.5 * z));
    e.mul_add(LN2_HI, r + y)
}

/// Sixteen lanes without vector instructions.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, o: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], o.0[i])))
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut v = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] = f(v[i], v[i + half]);
            }
        }
        v[0]
    }
}

// SAFETY of the blocks below: pointers are valid for 16 (or 32) elements, as the trait demands.
impl Lanes for Portable {
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 16 floats, by contract.
        Self(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 floats, by contract.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: 16 bf16, by contract.
        let v = unsafe { p.cast::<[bf16; LANES]>().read_unaligned() };
        Self(v.map(bf16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(p: *const bf16) -> (Self, Self) {
        // SAFETY: 32 bf16, by contract.
        let v = unsafe { p.cast::<[bf16; 2 * LANES]>().read_unaligned() };
        let at = |odd: usize| Self(std::array::from_fn(|i| v[2 * i + odd].to_f32()));
        (at(0), at(1))
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self {
        // SAFETY: 16 bytes, by contract.
        let v = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        Self(v.map(f32::from))
    }

    #[inline(always)]
    unsafe fn unpack<const BITS: u32>(bits: u64) -> Self {
        let mask = (1u64 << BITS) - 1;
        Self(std::array::from_fn(|i| (bits >> (i as u32 * BITS) & mask) as f32))
    }

    #[inline(always)]
    unsafe fn lookup<const BITS: u32>(bits: u64, table: Self) -> Self {
        let mask = (1u64 << BITS) - 1;
        Self(std::array::from_fn(|i| table.0[(bits >> (i as u32 * BITS) & mask) as usize]))
    }

    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16) {
        // SAFETY: 16 bf16, by contract.
        unsafe { p.cast::<[bf16; LANES]>().write_unaligned(self.0.map(bf16::from_f32)) }
    }

    #[inline(always)]
    unsafe fn split(self, high: *mut bf16, low: *mut bf16) {
        let cut = |x: f32| bf16::from_bits((x.to_bits() >> 16) as u16);
        // SAFETY: 16 bf16 each, by contract.
        unsafe {
            high.cast::<[bf16; LANES]>().write_unaligned(self.0.map(cut));
            low.cast::<[bf16; LANES]>().write_unaligned(self.0.map(|x| cut(x - cut(x).to_f32())));
        }
    }

    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        self.zip(o, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        self.zip(o, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        self.zip(o, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        self.zip(o, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        self.zip(o, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        self.zip(o, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        Self(std::array::from_fn(|i| if x.0[i] < limit.0[i] { 0.0 } else { self.0[i] }))
    }

    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        Self(self.0.map(|t| f32::from_bits((t.to_bits() << 23).wrapping_add(0x3f80_0000))))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sums(v: &[Self; LANES]) -> Self {
        Self(std::array::from_fn(|i| v[i].fold(|a, b| a + b)))
    }

    #[inline(always)]
    unsafe fn peak(self) -> f32 {
        self.fold(|a, b| if a > b { a } else { b })
    }
}
