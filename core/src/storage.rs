//! How summary vectors are stored: a few bits a coordinate, a scale a vector, rounding that keeps bounds.
//!
//! A block's vectors are stored together: the codes of all vectors, then the scales of all vectors, so that codes
//! are aligned.
//!
//! [`encode`] and [`decode`] are the reference: a kernel that reads stored vectors gives the same numbers, or
//! numbers within its stated tolerance of them. Every decoded value is a product and at most one sum, each
//! rounded to f32 (no fused multiply-add), so that a bound which holds here holds wherever that is kept.
//!
//! What is not finite stays visible. `F32` and `Bf16` store NaN and ±∞ as they are. In `Affine` a NaN or ±∞
//! makes its part of the vector NaN, in `Normal` the whole vector: its scores are NaN, which rank below every
//! number and are counted. A finite value beyond bf16's largest number (3.39e38) becomes ±∞ where bounds or
//! rounding to nearest ask for it.

use crate::{Error, Result};
use half::bf16;

/// Bits of a stored coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit floats, little-endian.
    F32,
    /// bfloat16, little-endian.
    Bf16,
    /// 8- or 4-bit codes, `lo + step · code`; `lo` and `step` are bf16, one pair a part (see [`Rounding`]).
    Affine {
        /// 8 or 4.
        bits: u8,
    },
    /// 4-, 2- or 1-bit codes of a normal variable, `rms · level(code)`; the vector's root mean square is one
    /// byte, a sixteenth of an octave a unit (see [`normal_scale`]). Levels are the uniform quantiser's that
    /// loses least on a Gaussian ([`normal_levels`]). Rounds to nearest, whatever [`Rounding`] says.
    Normal {
        /// 4, 2 or 1.
        bits: u8,
    },
}

/// Which way a coordinate is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest storable value.
    Nearest,
    /// The first `upper` coordinates towards +∞, the others towards −∞, so that bounds stay bounds.
    Outward {
        /// Coordinates rounded up.
        upper: usize,
    },
}

impl Rounding {
    /// Parts of a vector that have a scale of their own.
    fn parts(self) -> usize {
        match self {
            Self::Nearest => 1,
            Self::Outward { .. } => 2,
        }
    }

    /// The parts: where each starts and ends among `dim` coordinates, and its direction.
    fn split(self, dim: usize) -> impl Iterator<Item = (std::ops::Range<usize>, Towards)> {
        let parts = match self {
            Self::Nearest => [Some((0..dim, Towards::Nearest)), None],
            Self::Outward { upper } => {
                let upper = upper.min(dim);
                [Some((0..upper, Towards::Above)), Some((upper..dim, Towards::Below))]
            }
        };
        parts.into_iter().flatten()
    }
}

/// Where a value that lies between two storable ones goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Towards {
    Nearest,
    Above,
    Below,
}

impl Storage {
    /// Bytes of a stored vector, codes and scales.
    pub fn vector_bytes(self, dim: usize, rounding: Rounding) -> usize {
        self.code_bytes(dim) + self.scale_bytes(rounding)
    }

    /// Bytes of a vector's coordinates: whole bytes, lowest bits first in a byte.
    pub fn code_bytes(self, dim: usize) -> usize {
        match self {
            Self::F32 => 4 * dim,
            Self::Bf16 => 2 * dim,
            Self::Affine { bits } | Self::Normal { bits } => (dim * bits as usize).div_ceil(8),
        }
    }

    /// Bytes of a vector's scales: `lo` and `step` of each part, or the byte of the root mean square.
    pub fn scale_bytes(self, rounding: Rounding) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 0,
            Self::Affine { .. } => 4 * rounding.parts(),
            Self::Normal { .. } => 1,
        }
    }

    /// Refuses what [`encode`] does not store as asked: widths that are not there, bounds in `Normal`.
    pub fn check(self, dim: usize, rounding: Rounding) -> Result<()> {
        let refuse = |what: String| Err(Error::setting("summary storage", what));
        match (self, rounding) {
            (Self::Affine { bits }, _) if !matches!(bits, 4 | 8) => {
                refuse(format!("affine codes of {bits} bits; 4 and 8 are there"))
            }
            (Self::Normal { bits }, _) if !matches!(bits, 1 | 2 | 4) => {
                refuse(format!("normal codes of {bits} bits; 1, 2 and 4 are there"))
            }
            (Self::Normal { .. }, Rounding::Outward { .. }) => {
                refuse("normal codes keep no bounds; use affine codes or bf16 with outward rounding".into())
            }
            (_, Rounding::Outward { upper }) if upper > dim => {
                refuse(format!("{upper} coordinates rounded up of a vector that has {dim}"))
            }
            _ => Ok(()),
        }
    }
}

/// Stores the vectors `[vectors][dim]` of a block.
///
/// # Panics
/// If `out` is not [`Storage::vector_bytes`] for each vector long, or [`Storage::check`] refuses the width.
pub fn encode(storage: Storage, rounding: Rounding, dim: usize, values: &[f32], out: &mut [u8]) {
    let vectors = values.len() / dim.max(1);
    assert_eq!(values.len(), vectors * dim, "coordinates of a block's vectors");
    assert_eq!(out.len(), vectors * storage.vector_bytes(dim, rounding), "bytes of a block's stored vectors");
    let (code_bytes, scale_bytes) = (storage.code_bytes(dim), storage.scale_bytes(rounding));
    let (codes, scales) = out.split_at_mut(vectors * code_bytes);
    for (i, (values, codes)) in
        values.chunks_exact(dim.max(1)).zip(codes.chunks_exact_mut(code_bytes.max(1))).enumerate()
    {
        encode_vector(storage, rounding, values, codes, &mut scales[i * scale_bytes..][..scale_bytes]);
    }
}

fn encode_vector(storage: Storage, rounding: Rounding, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    match storage {
        Storage::F32 => {
            for (bytes, value) in codes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Storage::Bf16 => {
            for (part, towards) in rounding.split(values.len()) {
                for i in part {
                    codes[2 * i..2 * i + 2].copy_from_slice(&to_bf16(values[i], towards).to_le_bytes());
                }
            }
        }
        Storage::Affine { bits } => {
            codes.fill(0);
            for ((part, towards), scale) in rounding.split(values.len()).zip(scales.chunks_exact_mut(4)) {
                let line = Line::through(&values[part.clone()], top_code(bits), towards);
                scale[..2].copy_from_slice(&line.lo.to_le_bytes());
                scale[2..].copy_from_slice(&line.step.to_le_bytes());
                for i in part {
                    put(codes, bits, i, line.code(values[i], towards));
                }
            }
        }
        Storage::Normal { bits } => {
            scales[0] = scale_byte(values);
            codes.fill(0);
            let unit = normal_scale(scales[0]) * normal_step(bits);
            if unit > 0.0 {
                let half = f32::from(top_code(bits) / 2 + 1);
                for (i, &value) in values.iter().enumerate() {
                    let code = (value / unit + half).floor().clamp(0.0, f32::from(top_code(bits)));
                    put(codes, bits, i, code as u8);
                }
            }
        }
    }
}

/// Reads a block's vectors of `dim` coordinates back, to `[vectors][dim]`.
///
/// # Panics
/// If `bytes` or `out` has the wrong length, or [`Storage::check`] refuses the width.
pub fn decode(storage: Storage, rounding: Rounding, dim: usize, bytes: &[u8], out: &mut [f32]) {
    let vectors = out.len() / dim.max(1);
    assert_eq!(out.len(), vectors * dim, "coordinates of a block's vectors");
    assert_eq!(
        bytes.len(),
        vectors * storage.vector_bytes(dim, rounding),
        "bytes of a block's stored vectors"
    );
    let (code_bytes, scale_bytes) = (storage.code_bytes(dim), storage.scale_bytes(rounding));
    let (codes, scales) = bytes.split_at(vectors * code_bytes);
    for (i, (out, codes)) in
        out.chunks_exact_mut(dim.max(1)).zip(codes.chunks_exact(code_bytes.max(1))).enumerate()
    {
        decode_vector(storage, rounding, codes, &scales[i * scale_bytes..][..scale_bytes], out);
    }
}

fn decode_vector(storage: Storage, rounding: Rounding, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    match storage {
        Storage::F32 => {
            for (value, bytes) in out.iter_mut().zip(codes.chunks_exact(4)) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Storage::Bf16 => {
            for (value, bytes) in out.iter_mut().zip(codes.chunks_exact(2)) {
                *value = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            }
        }
        Storage::Affine { bits } => {
            for ((part, _), scale) in rounding.split(out.len()).zip(scales.chunks_exact(4)) {
                let line = Line {
                    lo: bf16::from_le_bytes([scale[0], scale[1]]),
                    step: bf16::from_le_bytes([scale[2], scale[3]]),
                    top: top_code(bits),
                };
                let (lo, step) = (line.lo.to_f32(), line.step.to_f32());
                for i in part {
                    out[i] = lo + step * f32::from(get(codes, bits, i));
                }
            }
        }
        Storage::Normal { bits } => {
            let scale = normal_scale(scales[0]);
            let mut table = [0.0; 16];
            for (entry, level) in table.iter_mut().zip(normal_levels(bits)) {
                *entry = scale * level;
            }
            for (i, value) in out.iter_mut().enumerate() {
                *value = table[get(codes, bits, i) as usize];
            }
        }
    }
}

/// The levels of a standard normal variable's uniform quantiser, by code; ascending, symmetric (J. Max,
/// "Quantizing for minimum distortion", 1960, table II).
///
/// # Panics
/// If `bits` is not 1, 2 or 4.
pub fn normal_levels(bits: u8) -> &'static [f32] {
    const fn levels<const N: usize>(step: f32) -> [f32; N] {
        let mut out = [0.0; N];
        let mut code = 0;
        while code < N {
            out[code] = (code as f32 - (N - 1) as f32 / 2.0) * step;
            code += 1;
        }
        out
    }
    static ONE: [f32; 2] = levels(NORMAL_STEPS[0]);
    static TWO: [f32; 4] = levels(NORMAL_STEPS[1]);
    static FOUR: [f32; 16] = levels(NORMAL_STEPS[2]);
    match bits {
        1 => &ONE,
        2 => &TWO,
        4 => &FOUR,
        _ => panic!("normal codes of {bits} bits; 1, 2 and 4 are there"),
    }
}

/// Distance of neighbouring levels at 1, 2 and 4 bits.
const NORMAL_STEPS: [f32; 3] = [1.5958, 0.9957, 0.3352];

fn normal_step(bits: u8) -> f32 {
    let levels = normal_levels(bits);
    levels[1] - levels[0]
}

/// Byte of the scale 1 (2⁰); bytes 1 ..= 254 are 2^((byte − 94) / 16): 0.0178 to 1024.
const SCALE_ONE: i32 = 94;

/// Sixteenths of an octave, 2^(i/16).
#[allow(clippy::approx_constant)]
#[allow(clippy::excessive_precision)]
#[rustfmt::skip]
const SIXTEENTHS: [f32; 16] = [
    1.0, 1.044273782, 1.090507733, 1.138788635, 1.189207115, 1.241857812, 1.296839555, 1.354255547, 1.414213562,
    1.476826146, 1.542210825, 1.610490332, 1.681792831, 1.756252160, 1.834008086, 1.915206561,
];

/// The root mean square that a scale byte stands for: 0 is the zero vector, 255 is NaN.
pub fn normal_scale(byte: u8) -> f32 {
    match byte {
        0 => 0.0,
        255 => f32::NAN,
        _ => {
            let sixteenths = i32::from(byte) - SCALE_ONE;
            let mantissa = SIXTEENTHS[sixteenths.rem_euclid(16) as usize];
            f32::from_bits(mantissa.to_bits().wrapping_add_signed(sixteenths.div_euclid(16) << 23))
        }
    }
}

/// The byte nearest to the root mean square of `values`. Less than half the smallest scale is stored as zero
/// (closer than any code would be), more than the largest as the largest.
fn scale_byte(values: &[f32]) -> u8 {
    let squares: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    if !squares.is_finite() {
        return 255;
    }
    let rms = ((squares / values.len().max(1) as f64).sqrt() as f32).min(f32::MAX);
    if rms < normal_scale(1) / 2.0 {
        return 0;
    }
    // The rms's octave begins at or below it; the middle of two neighbouring scales, in octaves, is their
    // geometric mean.
    let octave = (rms.to_bits() >> 23) as i32 - 127;
    let from = (SCALE_ONE + 16 * octave).clamp(1, 254) as u8;
    let next = (from..254).find(|&byte| {
        let (here, above) = (f64::from(normal_scale(byte)), f64::from(normal_scale(byte + 1)));
        f64::from(rms) * f64::from(rms) < here * above
    });
    next.unwrap_or(254)
}

/// The largest code.
fn top_code(bits: u8) -> u8 {
    ((1u16 << bits) - 1) as u8
}

fn put(codes: &mut [u8], bits: u8, index: usize, code: u8) {
    let at = index * bits as usize;
    codes[at / 8] |= code << (at % 8);
}

fn get(codes: &[u8], bits: u8, index: usize) -> u8 {
    let at = index * bits as usize;
    codes[at / 8] >> (at % 8) & top_code(bits)
}

/// The values that a part can take: `lo + step · code`, `code ≤ top`.
#[derive(Debug, Clone, Copy)]
struct Line {
    lo: bf16,
    step: bf16,
    top: u8,
}

impl Line {
    /// A line from at or below the least value to at or above the largest.
    fn through(values: &[f32], top: u8, towards: Towards) -> Self {
        if values.is_empty() {
            return Self { lo: bf16::ZERO, step: bf16::ZERO, top };
        }
        if values.iter().any(|v| !v.is_finite()) {
            return Self { lo: bf16::NAN, step: bf16::ZERO, top };
        }
        // `min` may give either zero; the sum gives one.
        let min = values.iter().copied().fold(f32::INFINITY, f32::min) + 0.0;
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut lo = to_bf16(min, Towards::Below);
        if towards != Towards::Below && lo == bf16::NEG_INFINITY {
            lo = bf16::MIN;
        }
        // From the rounded `lo`, so that the codes make up for what its rounding added. The quotient is
        // widened first: the range of finite values may not be finite in f32.
        let range = f64::from(max) - f64::from(lo.to_f32());
        let mut line = Self { lo, step: to_bf16(up(range / f64::from(top)), Towards::Above), top };
        if lo.is_finite() && range > 0.0 {
            while line.at(top) < max {
                line.step = bf16::from_bits(line.step.to_bits() + 1);
            }
        } else {
            line.step = bf16::ZERO;
        }
        line
    }

    fn at(self, code: u8) -> f32 {
        self.lo.to_f32() + self.step.to_f32() * f32::from(code)
    }

    /// The code of `value`: the nearest, or the lowest that is not below it, or the highest that is not above.
    fn code(self, value: f32, towards: Towards) -> u8 {
        let (lo, step) = (f64::from(self.lo.to_f32()), f64::from(self.step.to_f32()));
        if !lo.is_finite() || step == 0.0 {
            return 0;
        }
        // A first guess, then exact: `at` rounds, but never out of order.
        let mut code = ((f64::from(value) - lo) / step).floor().clamp(0.0, f64::from(self.top)) as u8;
        while code > 0 && self.at(code) > value {
            code -= 1;
        }
        while code < self.top && self.at(code + 1) <= value {
            code += 1;
        }
        let next = code.saturating_add(1).min(self.top);
        let above = match towards {
            Towards::Below => false,
            Towards::Above => self.at(code) < value,
            Towards::Nearest => {
                (f64::from(self.at(next)) - f64::from(value)).abs()
                    < (f64::from(value) - f64::from(self.at(code))).abs()
            }
        };
        if above { next } else { code }
    }
}

/// The f32 that is nearest to `x` from above.
fn up(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) < x { near.next_up() } else { near }
}

fn to_bf16(value: f32, towards: Towards) -> bf16 {
    // One NaN, so that stored bytes do not hang on which device made it.
    if value.is_nan() {
        return bf16::NAN;
    }
    if towards == Towards::Nearest {
        return bf16::from_f32(value);
    }
    let bits = value.to_bits();
    let cut = (bits >> 16) as u16;
    let exact = bits & 0xffff == 0;
    // Cutting rounds towards zero; one more unit in the last place rounds away from it.
    let away = (towards == Towards::Above) == (bits >> 31 == 0);
    bf16::from_bits(if exact || !away { cut } else { cut + 1 })
}
