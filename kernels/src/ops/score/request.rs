//! What score.cu gets.

use oasis_core::policy::{Reduce, SummaryShape};
use oasis_core::storage::{Rounding, Storage, normal_levels};

/// A summary's stored form, as score.cu numbers it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Form {
    storage: u32,
    bits: u32,
    vectors: u32,
    dim: u32,
    reduce: u32,
    vector_bytes: u32,
    upper: u32,
    scale_bytes: u32,
    level_step: f32,
}

impl Form {
    pub(super) fn of(form: &SummaryShape) -> Self {
        let (storage, bits) = match form.storage {
            Storage::F32 => (0, 32),
            Storage::Bf16 => (1, 16),
            Storage::Affine { bits } => (2, bits),
            Storage::Normal { bits } => (3, bits),
        };
        let (upper, scale_bytes) = match form.rounding {
            Rounding::Nearest => (form.dim, 4),
            Rounding::Outward { upper } => (upper.min(form.dim), 8),
        };
        let level_step = match form.storage {
            // The distance of the middle levels: ± half a step, exactly.
            Storage::Normal { bits } => 2.0 * normal_levels(bits)[1 << (bits - 1)],
            _ => 0.0,
        };
        let reduce = match form.reduce {
            Reduce::Max => 0,
            Reduce::LogSumExp => 1,
            Reduce::Sum => 2,
        };
        Self {
            storage,
            bits: bits.into(),
            vectors: form.vectors as u32,
            dim: form.dim as u32,
            reduce,
            vector_bytes: (form.bytes() / form.vectors) as u32,
            upper: upper as u32,
            scale_bytes,
            level_step,
        }
    }
}

/// What the device needs to score, in one upload: floats, then `[seqs]` × (first, count, queries).
pub(super) struct Request {
    pub bytes: Vec<u8>,
    /// Where lifted queries, their bias, resident masses, scales and candidates start.
    pub starts: [u64; 5],
}

impl Request {
    pub(super) fn new(parts: [&[u8]; 5]) -> Self {
        let mut bytes = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
        let starts = parts.map(|part| {
            let start = bytes.len() as u64;
            bytes.extend_from_slice(part);
            start
        });
        Self { bytes, starts }
    }
}
