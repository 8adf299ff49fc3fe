//! How weights are stored, and how they become bf16 or f32.
//!
//! Block formats are ggml's (`ggml-common.h`, `ggml-quants.c`); each test value comes from the `gguf`
//! Python package, an implementation that is not ours.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A storage format. Quantised ones hold blocks of [`Dtype::block`] elements in [`Dtype::block_bytes`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 32 × i8, one f16 scale.
    Q8_0,
    /// 32 × 4 bits, offset 8, one f16 scale.
    Q4_0,
    /// 32 × 4 bits, one f16 scale and minimum.
    Q4_1,
    /// 256 × 4 bits in 8 groups, each with a 6-bit scale and minimum.
    Q4K,
    /// 256 × 6 bits in 16 groups, each with an 8-bit scale.
    Q6K,
}

/// Elements that are decoded at a time; every block length divides it.
const PIECE: usize = 256;

impl Dtype {
    /// The format of a ggml type number.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// The format of a safetensors name.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            _ => return None,
        })
    }

    /// Elements of a block.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q4K => 144,
            Self::Q6K => 210,
        }
    }

    /// Bytes of `elements`, if they are whole blocks and the number can be counted.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let whole = elements.is_multiple_of(self.block() as u64);
        whole.then_some(elements / self.block() as u64)?.checked_mul(self.block_bytes() as u64)
    }

    /// Decodes whole blocks. `bytes` holds exactly `out.len()` elements.
    pub fn decode_f32(self, bytes: &[u8], out: &mut [f32]) {
        debug_assert_eq!(Some(bytes.len() as u64), self.bytes(out.len() as u64));
        let blocks = bytes.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block()));
        match self {
            Self::F32 => blocks.for_each(|(b, y)| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Self::F16 => decode_f16(bytes, out),
            Self::Bf16 => blocks.for_each(|(b, y)| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            Self::Q8_0 => blocks.for_each(|(b, y)| q8_0(b, y)),
            Self::Q4_0 => blocks.for_each(|(b, y)| q4_0(b, y)),
            Self::Q4_1 => blocks.for_each(|(b, y)| q4_1(b, y)),
            Self::Q4K => blocks.for_each(|(b, y)| q4_k(b, y)),
            Self::Q6K => blocks.for_each(|(b, y)| q6_k(b, y)),
        }
    }

    /// Decodes whole blocks and rounds to the nearest bf16, ties to even.
    pub fn decode_bf16(self, bytes: &[u8], out: &mut [bf16]) {
        if self == Self::Bf16 {
            for (b, y) in bytes.chunks_exact(2).zip(out) {
                *y = bf16::from_le_bytes([b[0], b[1]]);
            }
            return;
        }
        let mut values = [0.0; PIECE];
        let piece_bytes = PIECE / self.block() * self.block_bytes();
        for (b, y) in bytes.chunks(piece_bytes).zip(out.chunks_mut(PIECE)) {
            let values = &mut values[..y.len()];
            self.decode_f32(b, values);
            y.convert_from_f32_slice(values);
        }
    }
}

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut halves = [f16::ZERO; PIECE];
    for (b, y) in bytes.chunks(2 * PIECE).zip(out.chunks_mut(PIECE)) {
        let halves = &mut halves[..y.len()];
        for (h, b) in halves.iter_mut().zip(b.chunks_exact(2)) {
            *h = f16::from_le_bytes([b[0], b[1]]);
        }
        halves.convert_to_f32_slice(y);
    }
}

fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = scale(b, 0);
    for (y, q) in y.iter_mut().zip(&b[2..]) {
        *y = d * f32::from(*q as i8);
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = scale(b, 0);
    let (low, high) = y.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&b[2..]) {
        *low = d * f32::from((q & 15) as i8 - 8);
        *high = d * f32::from((q >> 4) as i8 - 8);
    }
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (scale(b, 0), scale(b, 2));
    let (low, high) = y.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(&b[4..]) {
        *low = d * f32::from(q & 15) + m;
        *high = d * f32::from(q >> 4) + m;
    }
}

/// Scale and minimum of group `j` of a Q4_K block: 6 bits each, packed in 12 bytes.
fn q4_k_group(s: &[u8], j: usize) -> (f32, f32) {
    let (d, m) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4))
    };
    (f32::from(d), f32::from(m))
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin) = (scale(b, 0), scale(b, 2));
    let (scales, quants) = b[4..].split_at(12);
    for (pair, (q, y)) in quants.chunks_exact(32).zip(y.chunks_exact_mut(64)).enumerate() {
        let (s0, m0) = q4_k_group(scales, 2 * pair);
        let (s1, m1) = q4_k_group(scales, 2 * pair + 1);
        let (d0, m0, d1, m1) = (d * s0, dmin * m0, d * s1, dmin * m1);
        let (low, high) = y.split_at_mut(32);
        for ((low, high), q) in low.iter_mut().zip(high).zip(q) {
            *low = d0 * f32::from(q & 15) - m0;
            *high = d1 * f32::from(q >> 4) - m1;
        }
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let d = scale(b, 208);
    for (half, y) in y.chunks_exact_mut(128).enumerate() {
        let low = &b[64 * half..][..64];
        let high = &b[128 + 32 * half..][..32];
        let scales = &b[192 + 8 * half..][..8];
        for (quarter, y) in y.chunks_exact_mut(32).enumerate() {
            for (l, y) in y.iter_mut().enumerate() {
                let nibble = low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
                let q = (nibble | (high[l] >> (2 * quarter) & 3) << 4) as i8 - 32;
                *y = d * f32::from(scales[l / 16 + 2 * quarter] as i8) * f32::from(q);
            }
        }
    }
}
