//! The largest and the smallest value of each key coordinate: an upper bound on every logit of the block.
//!
//! Quest (Tang et al. 2024, §3) and OasisKV (arXiv 2608.08097). For one coordinate, q·k ≤ q⁺·max + q⁻·min;
//! the sum over coordinates is one inner product of `[max | min]` with `[q⁺ | q⁻]/√d`. Max is stored rounded
//! up and min rounded down, so that the bound survives storage.

use super::{device_float, logit_scale};
use crate::no_parameters;
use oasis_core::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{DeviceSummary, Keys, Reduce, Summary, SummaryShape};
use oasis_core::registry::{Entry, Params, SummaryEntry};
use oasis_core::storage::{Rounding, Storage};

/// The row.
pub const ENTRY: SummaryEntry = Entry {
    name: "minmax",
    about: "Largest and smallest value of each key coordinate in bf16: a bound on the largest logit (Quest, OasisKV).",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinMax;

fn build(params: &Params) -> Result<Box<dyn Summary>> {
    no_parameters(params, "minmax")?;
    Ok(Box::new(MinMax))
}

/// The larger; NaN if either is.
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller; NaN if either is.
fn smaller(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

const CODE: &str = r"__device__ void summary_encode(const float*, const float* keys, float* out) {
    for (u32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
        float most = -INF, least = INF;
        for (u32 t = 0; t < TOKENS; t++) {
            float k = keys[t * HEAD_DIM + i];
            most = most > k || isnan(most) ? most : k;
            least = least < k || isnan(least) ? least : k;
        }
        out[i] = most;
        out[HEAD_DIM + i] = least;
    }
}
__device__ float summary_lift(const float*, const float* query, float* out) {
    for (u32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
        float q = query[i];
        out[i] = q < 0.0f ? 0.0f : q * SCALE;
        out[HEAD_DIM + i] = q > 0.0f ? 0.0f : q * SCALE;
    }
    return 0.0f;
}
";

impl Summary for MinMax {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape {
            vectors: 1,
            dim: 2 * block.head_dim,
            reduce: Reduce::Max,
            storage: Storage::Bf16,
            rounding: Rounding::Outward { upper: block.head_dim },
        }
    }

    fn encode(&self, _fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        let (max, min) = out.split_at_mut(keys.head_dim);
        max.fill(f32::NEG_INFINITY);
        min.fill(f32::INFINITY);
        for key in keys.iter() {
            for (i, &k) in key.iter().enumerate() {
                max[i] = larger(max[i], k);
                min[i] = smaller(min[i], k);
            }
        }
    }

    fn lift(&self, _fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let scale = logit_scale(query.len());
        let (plus, minus) = out.split_at_mut(query.len());
        for (i, &q) in query.iter().enumerate() {
            // Compared so that NaN passes into both.
            plus[i] = if q < 0.0 { 0.0 } else { q * scale };
            minus[i] = if q > 0.0 { 0.0 } else { q * scale };
        }
        0.0
    }

    fn device(&self, block: BlockShape) -> Option<DeviceSummary> {
        Some(DeviceSummary { code: CODE.replace("SCALE", &device_float(logit_scale(block.head_dim))) })
    }

    fn is_upper_bound(&self) -> bool {
        true
    }
}
