//! Summaries, one a file.

pub mod exact_keys;
pub mod mean;
pub mod minmax;
pub mod quantized;
pub mod rotated_keys;
pub mod rotation;

#[cfg(test)]
mod tests;

/// The factor of every attention logit, 1/√head_dim.
fn logit_scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// A query times the factor of logits.
fn scaled(query: &[f32], out: &mut [f32]) {
    let scale = logit_scale(query.len());
    for (out, q) in out.iter_mut().zip(query) {
        *out = q * scale;
    }
}

/// The mean of `[n][out.len()]` keys; zero of none.
fn mean_key(keys: &[f32], out: &mut [f32]) {
    let dim = out.len();
    let n = (keys.len() / dim.max(1)).max(1) as f64;
    for (i, out) in out.iter_mut().enumerate() {
        let sum: f64 = keys.iter().skip(i).step_by(dim).map(|&k| f64::from(k)).sum();
        *out = (sum / n) as f32;
    }
}

/// A float of CUDA C++, to the bit.
fn device_float(x: f32) -> String {
    format!("__int_as_float(0x{:08x})", x.to_bits())
}

/// [`scaled`] of `query` on the device.
fn device_scaled(head_dim: usize) -> String {
    let scale = device_float(logit_scale(head_dim));
    format!("    for (u32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) out[i] = query[i] * {scale};\n")
}

/// A `summary_lift` that is [`scaled`], and adds nothing.
fn device_scaled_lift(head_dim: usize) -> String {
    let scaled = device_scaled(head_dim);
    format!(
        "__device__ float summary_lift(const float*, const float* query, float* out) {{\n{scaled}    return 0.0f;\n}}\n"
    )
}
