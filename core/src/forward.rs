//! The parts of a transformer layer that a prompt and a decode step share.

use crate::Result;
use crate::geometry::Geometry;
use crate::model::Model;
use crate::ops::{Backend, Memory, RopeArgs};
use half::bf16;

/// Activations of one pass of at most `rows` rows; allocated once.
pub(crate) struct Work<B: Memory> {
    /// Residual stream, `[rows][hidden]`.
    pub x: B::Buf<f32>,
    /// Input of a projection, `[rows][hidden]`.
    pub normed: B::Buf<bf16>,
    /// `[rows][qkv_dim]`.
    pub qkv: B::Buf<f32>,
    /// `[rows][q_dim]`.
    pub attended: B::Buf<bf16>,
    /// `[rows][2 · intermediate]`.
    pub gate_up: B::Buf<f32>,
    /// `[rows][intermediate]`.
    pub inner: B::Buf<bf16>,
}

/// Bytes of a [`Work`] of `rows` rows.
pub(crate) fn work_bytes(g: &Geometry, rows: usize) -> usize {
    rows * (4 * (g.hidden + g.qkv_dim() + 2 * g.intermediate) + 2 * (g.hidden + g.q_dim() + g.intermediate))
}

impl<B: Backend> Work<B> {
    pub fn new(backend: &B, g: &Geometry, rows: usize) -> Result<Self> {
        Ok(Self {
            x: backend.alloc(rows * g.hidden)?,
            normed: backend.alloc(rows * g.hidden)?,
            qkv: backend.alloc(rows * g.qkv_dim())?,
            attended: backend.alloc(rows * g.q_dim())?,
            gate_up: backend.alloc(rows * 2 * g.intermediate)?,
            inner: backend.alloc(rows * g.intermediate)?,
        })
    }
}

/// Norm, QKV projection, RoPE: `x` to `q` `[rows][heads][head_dim]`, and to rows `first ..` of `k` and `v`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn project<B: Backend>(
    backend: &mut B,
    model: &Model<B>,
    layer: usize,
    rows: usize,
    positions: &B::Buf<u32>,
    work: &mut Work<B>,
    q: &mut B::Buf<bf16>,
    k: &mut B::Buf<bf16>,
    v: &mut B::Buf<bf16>,
    first: usize,
) -> Result<()> {
    let (g, eps, w) = (&model.config.geometry, model.config.rms_eps, &model.layers[layer]);
    backend.rms_norm(&work.x, &w.attn_norm, eps, rows, g.hidden, &mut work.normed)?;
    backend.gemm(&work.normed, &w.qkv, rows, false, &mut work.qkv)?;
    backend.rope(RopeArgs {
        geometry: g,
        qkv: &work.qkv,
        q_norm: w.q_norm.as_ref(),
        k_norm: w.k_norm.as_ref(),
        eps,
        positions,
        inv_freq: &model.inv_freq,
        rows,
        q,
        k,
        v,
        first,
    })
}

/// Output projection and MLP: `attended` to `x`.
pub(crate) fn finish<B: Backend>(
    backend: &mut B,
    model: &Model<B>,
    layer: usize,
    rows: usize,
    work: &mut Work<B>,
) -> Result<()> {
    let (g, eps, w) = (&model.config.geometry, model.config.rms_eps, &model.layers[layer]);
    backend.gemm(&work.attended, &w.out, rows, true, &mut work.x)?;
    backend.rms_norm(&work.x, &w.mlp_norm, eps, rows, g.hidden, &mut work.normed)?;
    backend.gemm(&work.normed, &w.gate_up, rows, false, &mut work.gate_up)?;
    backend.swiglu(&work.gate_up, rows, g.intermediate, &mut work.inner)?;
    backend.gemm(&work.inner, &w.down, rows, true, &mut work.x)
}

/// Final norm and head: `x` to logits `[rows][vocab]`.
pub(crate) fn head<B: Backend>(
    backend: &mut B,
    model: &Model<B>,
    rows: usize,
    work: &mut Work<B>,
    logits: &mut B::Buf<f32>,
) -> Result<()> {
    let (g, eps) = (&model.config.geometry, model.config.rms_eps);
    backend.rms_norm(&work.x, &model.final_norm, eps, rows, g.hidden, &mut work.normed)?;
    backend.gemm(&work.normed, model.head(), rows, false, logits)
}
