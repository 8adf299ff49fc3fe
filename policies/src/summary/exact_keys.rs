//! Every key of the block in bf16: the score is ln of the block's exact attention mass. No saving (half the
//! KV cache stays on the device); the ceiling that other summaries are held against.

use super::{device_scaled_lift, scaled};
use crate::no_parameters;
use oasis_core::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{DeviceSummary, Keys, Reduce, Summary, SummaryShape};
use oasis_core::registry::{Entry, Params, SummaryEntry};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage};

/// The row.
pub const ENTRY: SummaryEntry = Entry {
    name: "exact-keys",
    about: "Every key in bf16, so that a score is the exact attention mass: the ceiling, at half the cache's bytes.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExactKeys;

fn build(params: &Params) -> Result<Box<dyn Summary>> {
    no_parameters(params, "exact-keys")?;
    Ok(Box::new(ExactKeys))
}

const ENCODE: &str = r"__device__ void summary_encode(const float*, const float* keys, float* out) {
    for (u32 i = threadIdx.x; i < TOKENS * HEAD_DIM; i += blockDim.x) out[i] = keys[i];
}
";

impl Summary for ExactKeys {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape {
            vectors: block.tokens,
            dim: block.head_dim,
            reduce: Reduce::LogSumExp,
            storage: Storage::Bf16,
            rounding: Rounding::Nearest,
        }
    }

    fn encode(&self, _fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        out.copy_from_slice(keys.data);
    }

    fn lift(&self, _fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        scaled(query, out);
        0.0
    }

    fn device(&self, block: BlockShape) -> Option<DeviceSummary> {
        Some(DeviceSummary { code: ENCODE.to_owned() + &device_scaled_lift(block.head_dim) })
    }

    fn group(&self) -> Group {
        Group::SoftmaxSum
    }
}
