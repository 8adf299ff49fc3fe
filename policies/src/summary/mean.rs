//! The mean key: its logit is the mean of the block's logits, so by Jensen a lower bound on ln of the mean
//! weight. The cheapest summary; blind to single keys that stand out.

use super::{device_scaled_lift, mean_key, scaled};
use crate::no_parameters;
use oasis_core::Result;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{DeviceSummary, Keys, Reduce, Summary, SummaryShape};
use oasis_core::registry::{Entry, Params, SummaryEntry};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage};

/// The row.
pub const ENTRY: SummaryEntry = Entry {
    name: "mean",
    about: "The mean key of a block in bf16, softmax over blocks: the cheapest summary.",
    version: 1,
    params: &[],
    build,
};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean;

fn build(params: &Params) -> Result<Box<dyn Summary>> {
    no_parameters(params, "mean")?;
    Ok(Box::new(Mean))
}

/// Sums start from −0, as those of the host do.
const ENCODE: &str = r"__device__ void summary_encode(const float*, const float* keys, float* out) {
    for (u32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
        double sum = -0.0;
        for (u32 t = 0; t < TOKENS; t++) sum += (double)keys[t * HEAD_DIM + i];
        out[i] = (float)(sum / (double)TOKENS);
    }
}
";

impl Summary for Mean {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape {
            vectors: 1,
            dim: block.head_dim,
            reduce: Reduce::Max,
            storage: Storage::Bf16,
            rounding: Rounding::Nearest,
        }
    }

    fn encode(&self, _fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        mean_key(keys.data, out);
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
