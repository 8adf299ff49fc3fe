//! Stored vectors to f32, inner products with all queries, and the reduction over a block's vectors.

use crate::cpu::Scratch;
use crate::simd::{Job, LANES, Lanes, Level, dots, exp, ln1};
use half::bf16;
use oasis_core::policy::{Reduce, SummaryShape};
use oasis_core::storage::{Rounding, Storage, normal_levels};

/// Vectors that are decoded before any is used: at 128 floats each, half of a first-level cache of 32 KB.
const TILE: usize = 32;

/// The scores of neighbouring blocks of a pool for each of its queries.
pub(super) struct TileScores<'a> {
    /// The summary's stored form.
    pub form: &'a SummaryShape,
    /// `[blocks][summary bytes]`.
    pub stored: &'a [u8],
    /// Floats of a decoded vector: dim, rounded up to a multiple of [`LANES`].
    pub width: usize,
    /// `[queries][width]`, zero behind dim.
    pub lifted: &'a [f32],
    /// `[queries]`, added to every inner product.
    pub bias: &'a [f32],
    /// Query i, block b: to `out[i · line + b]`. Valid, and nobody else's, for all of these.
    pub out: *mut f32,
    /// Distance of queries in `out`.
    pub line: usize,
    /// What scale bytes stand for, `[256]`; with [`Storage::Normal`] only.
    pub scales: &'a [f32],
}

impl TileScores<'_> {
    pub(super) fn fill(self, level: Level, scratch: &mut Scratch) {
        let blocks = (TILE / self.form.vectors).max(1);
        let vectors = (blocks * self.form.vectors).next_multiple_of(LANES);
        let padded = self.form.vectors.next_multiple_of(LANES);
        let [values, scales, products, spare] =
            scratch.floats([vectors * self.width, vectors, vectors, padded]);
        // Behind the last coordinate, and behind the last vector, there are zeros.
        values.fill(0.0);
        scales.fill(1.0);
        level.run(Tiles { of: self, blocks, values, scales, products, spare });
    }
}

struct Tiles<'r, 'a> {
    of: TileScores<'a>,
    /// Blocks of a tile.
    blocks: usize,
    /// `[vectors of a tile][width]`.
    values: &'r mut [f32],
    /// `[vectors of a tile]`: the factor of a vector that is not in its values.
    scales: &'r mut [f32],
    /// `[vectors of a tile]`, of one query.
    products: &'r mut [f32],
    /// `[vectors of a block]`, in whole lanes.
    spare: &'r mut [f32],
}

impl Job for Tiles<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Self { of, blocks, values, scales, products, spare } = self;
        let form = of.form;
        let (code_bytes, scale_bytes) =
            (form.storage.code_bytes(form.dim), form.storage.scale_bytes(form.rounding));
        for (tile, stored) in of.stored.chunks(blocks * form.bytes()).enumerate() {
            let count = stored.len() / form.bytes() * form.vectors;
            // Codes and scales of every vector.
            let parts = stored.chunks_exact(form.bytes()).flat_map(|block| {
                let (codes, scales) = block.split_at(form.vectors * code_bytes);
                (0..form.vectors)
                    .map(move |v| (&codes[v * code_bytes..][..code_bytes], &scales[v * scale_bytes..]))
            });
            // SAFETY: the CPU has L's instructions; `values` and `products` hold a tile's vectors in whole lanes, and
            // `out` is as its description says.
            unsafe {
                let vectors = parts.zip(values.chunks_exact_mut(of.width));
                match form.storage {
                    Storage::Normal { bits } => {
                        let table = levels::<L>(bits);
                        for (((codes, byte), to), scale) in vectors.zip(&mut *scales) {
                            *scale = of.scales[usize::from(byte[0])];
                            codes_to_levels::<L>(bits, codes, table, form.dim, to);
                        }
                    }
                    _ => vectors.for_each(|((bytes, scales), to)| decode::<L>(form, bytes, scales, to)),
                }
                for (i, &bias) in of.bias.iter().enumerate() {
                    let query = of.lifted.as_ptr().add(i * of.width);
                    for at in (0..count).step_by(LANES) {
                        let dots = dots::<L>(values.as_ptr().add(at * of.width), query, of.width);
                        let scaled = dots.mul_add(L::load(scales.as_ptr().add(at)), L::splat(bias));
                        scaled.store(products.as_mut_ptr().add(at));
                    }
                    let out = of.out.add(i * of.line + tile * blocks);
                    for (b, block) in products[..count].chunks_exact(form.vectors).enumerate() {
                        out.add(b).write(reduce::<L>(form.reduce, block, spare));
                    }
                }
            }
        }
    }
}

/// One number of a block's inner products. NaN stays NaN.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn reduce<L: Lanes>(by: Reduce, products: &[f32], spare: &mut [f32]) -> f32 {
    if let [only] = products {
        return *only;
    }
    match by {
        Reduce::Max => {
            products.iter().fold(f32::NEG_INFINITY, |a, &b| if a >= b || a.is_nan() { a } else { b })
        }
        Reduce::Sum => products.iter().sum(),
        Reduce::LogSumExp => {
            if products.len().is_multiple_of(LANES) {
                // SAFETY: whole lanes.
                return unsafe { log_sum_exp::<L>(products) };
            }
            spare[products.len()..].fill(f32::NEG_INFINITY);
            spare[..products.len()].copy_from_slice(products);
            // SAFETY: `spare` is whole lanes.
            unsafe { log_sum_exp::<L>(spare) }
        }
    }
}

/// ln Σ exp, of whole lanes.
///
/// # Safety
/// The CPU has the instructions of `L`; `x.len()` is a multiple of [`LANES`].
#[inline(always)]
unsafe fn log_sum_exp<L: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: at + 16 ≤ len.
    unsafe {
        let mut top = L::splat(f32::NEG_INFINITY);
        for at in (0..x.len()).step_by(LANES) {
            top = L::load(x.as_ptr().add(at)).max(top);
        }
        let max = top.peak();
        if max.is_infinite() {
            return if x.iter().any(|v| v.is_nan()) { f32::NAN } else { max };
        }
        let max_lanes = L::splat(max);
        let mut sum = L::splat(0.0);
        for at in (0..x.len()).step_by(LANES) {
            sum = sum.add(exp(L::load(x.as_ptr().add(at)).sub(max_lanes)));
        }
        max + ln1(sum.sum())
    }
}

/// One stored vector to `to[..dim]`.
///
/// # Safety
/// The CPU has the instructions of `L`; `to` is dim rounded up to whole lanes, or longer.
#[inline(always)]
unsafe fn decode<L: Lanes>(form: &SummaryShape, bytes: &[u8], scales: &[u8], to: &mut [f32]) {
    let dim = form.dim;
    // SAFETY: below.
    unsafe {
        match form.storage {
            Storage::F32 => {
                // SAFETY: 4 · dim bytes are there; a float may have any bits.
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_mut_ptr().cast::<u8>(), 4 * dim);
            }
            Storage::Bf16 => {
                let whole = dim / LANES * LANES;
                for at in (0..whole).step_by(LANES) {
                    L::load_bf16(bytes.as_ptr().add(2 * at).cast()).store(to.as_mut_ptr().add(at));
                }
                for at in whole..dim {
                    to[at] = bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32();
                }
            }
            Storage::Affine { bits } => {
                let (upper, second) = match form.rounding {
                    Rounding::Nearest => (dim, 0),
                    Rounding::Outward { upper } => (upper.min(dim), 4),
                };
                let lines = [line(scales), line(&scales[second..])];
                codes::<L>(bits, bytes, dim, upper, lines, to);
            }
            Storage::Normal { .. } => unreachable!("normal codes have a path of their own"),
        }
    }
}

/// The levels of normal codes, repeated.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn levels<L: Lanes>(bits: u8) -> L {
    let levels = normal_levels(bits);
    let table: [f32; LANES] = std::array::from_fn(|i| levels[i % levels.len()]);
    // SAFETY: 16 floats.
    unsafe { L::load(table.as_ptr()) }
}

/// Normal codes to their levels, not yet scaled.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn codes_to_levels<L: Lanes>(bits: u8, codes: &[u8], table: L, dim: usize, to: &mut [f32]) {
    // SAFETY: as promised.
    unsafe {
        match bits {
            1 => words::<L, 1>(codes, to, |word| L::lookup::<1>(word, table)),
            2 => words::<L, 2>(codes, to, |word| L::lookup::<2>(word, table)),
            _ => words::<L, 4>(codes, to, |word| L::lookup::<4>(word, table)),
        }
    }
    to[dim..].fill(0.0);
}

/// `f` of every 16 codes.
///
/// # Safety
/// The CPU has the instructions of `L`; `to` has whole lanes.
#[inline(always)]
unsafe fn words<L: Lanes, const BITS: usize>(codes: &[u8], to: &mut [f32], f: impl Fn(u64) -> L) {
    let mut chunks = codes.chunks_exact(2 * BITS);
    let mut to = to.chunks_exact_mut(LANES);
    for (from, to) in (&mut chunks).zip(&mut to) {
        let p = from.as_ptr();
        // SAFETY: 2 · BITS bytes are there, 16 floats to write.
        unsafe {
            let word = match BITS {
                1 => u64::from(u16::from_le_bytes(p.cast::<[u8; 2]>().read())),
                2 => u64::from(u32::from_le_bytes(p.cast::<[u8; 4]>().read())),
                _ => u64::from_le_bytes(p.cast::<[u8; 8]>().read()),
            };
            f(word).store(to.as_mut_ptr());
        }
    }
    if let Some(to) = to.next() {
        let mut word = [0; 8];
        let rest = chunks.remainder();
        word[..rest.len()].copy_from_slice(rest);
        // SAFETY: 16 floats to write.
        unsafe { f(u64::from_le_bytes(word)).store(to.as_mut_ptr()) };
    }
}

/// `lo`, `step` of a part.
#[inline(always)]
fn line(bytes: &[u8]) -> (f32, f32) {
    let at = |i: usize| bf16::from_le_bytes([bytes[i], bytes[i + 1]]).to_f32();
    (at(0), at(2))
}

/// Codes of `bits` bits to `to[..dim]`: `lo + step · code`, the first `upper` by the first line, the others by the second.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn codes<L: Lanes>(
    bits: u8,
    codes: &[u8],
    dim: usize,
    upper: usize,
    lines: [(f32, f32); 2],
    to: &mut [f32],
) {
    // SAFETY: as promised.
    unsafe {
        match bits {
            4 => codes_of::<L, 4>(codes, dim, upper, lines, to),
            _ => codes_of::<L, 8>(codes, dim, upper, lines, to),
        }
    }
}

/// As [`codes`].
///
/// # Safety
/// As [`codes`].
#[inline(always)]
unsafe fn codes_of<L: Lanes, const BITS: u32>(
    codes: &[u8],
    dim: usize,
    upper: usize,
    lines: [(f32, f32); 2],
    to: &mut [f32],
) {
    let each = 2 * BITS as usize;
    let mixed = upper < dim && !upper.is_multiple_of(LANES);
    for (i, from) in codes.chunks(each).enumerate() {
        let at = i * LANES;
        // SAFETY: `to` has whole lanes; a whole chunk is read as it is, the last one may be short and is copied.
        unsafe {
            let raw = if from.len() == each {
                unpack::<L, BITS>(from.as_ptr())
            } else {
                let mut padded = [0; LANES];
                padded[..from.len()].copy_from_slice(from);
                unpack::<L, BITS>(padded.as_ptr())
            };
            let (lo, step) = if mixed { (0.0, 1.0) } else { lines[usize::from(at >= upper)] };
            raw.mul_add(L::splat(step), L::splat(lo)).store(to.as_mut_ptr().add(at));
        }
    }
    to[dim..].fill(0.0);
    if mixed {
        // A vector of lanes has both parts in it.
        for (i, x) in to[..dim].iter_mut().enumerate() {
            let (lo, step) = lines[usize::from(i >= upper)];
            *x = lo + step * *x;
        }
    }
}

/// 16 codes as floats.
///
/// # Safety
/// The CPU has the instructions of `L`; 2 · BITS bytes are there.
#[inline(always)]
unsafe fn unpack<L: Lanes, const BITS: u32>(p: *const u8) -> L {
    // SAFETY: as promised.
    unsafe {
        match BITS {
            4 => L::unpack::<4>(u64::from_le_bytes(p.cast::<[u8; 8]>().read())),
            _ => L::load_u8(p),
        }
    }
}
