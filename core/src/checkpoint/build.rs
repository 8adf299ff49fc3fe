//! From tensors in files to a model on a backend.

use super::Checkpoint;
use super::names::{Naming, Part, Role};
use super::tensors::RowOrder;
use crate::Result;
use crate::model::{Family, LayerWeights, Linear, Model};
use crate::ops::Memory;
use half::bf16;

/// Elements that are decoded before they go to the device: bounds the staging memory.
const STRIP: usize = 1 << 23;

/// One build: the source, and one staging buffer for all tensors.
struct Builder<'a, B: Memory> {
    checkpoint: &'a Checkpoint,
    backend: &'a mut B,
    staging: Vec<bf16>,
}

impl Checkpoint {
    /// Uploads the weights: matrices in bf16, norms and biases in f32; Q, K and V fused, gate and up fused.
    pub fn build<B: Memory>(&self, backend: &mut B) -> Result<Model<B>> {
        let config = self.config.clone();
        let g = &config.geometry;
        let mut b = Builder { checkpoint: self, backend, staging: Vec::new() };
        let embedding = b.linear(&[Role::Embedding], g.vocab, g.hidden)?;
        let layers = (0..g.layers).map(|l| b.layer(l)).collect::<Result<_>>()?;
        let final_norm = b.vector(Role::FinalNorm)?;
        let head =
            (!config.tied_embeddings).then(|| b.linear(&[Role::Head], g.vocab, g.hidden)).transpose()?;
        let inv_freq = b.backend.upload(&config.inv_freq())?;
        let digest = self.digest.clone();
        Ok(Model { embedding, layers, final_norm, head, inv_freq, digest, config })
    }

    fn row_order(&self, role: Role) -> RowOrder {
        let head_dim = self.config.geometry.head_dim;
        let moved = matches!(role, Role::Layer(_, Part::Q | Part::K))
            && self.naming == Naming::Gguf
            && self.config.family == Family::Llama;
        if moved { RowOrder::Interleaved { head_dim } } else { RowOrder::Halves }
    }
}

impl<B: Memory> Builder<'_, B> {
    fn layer(&mut self, layer: usize) -> Result<LayerWeights<B>> {
        let config = self.checkpoint.config.clone();
        let (g, of) = (&config.geometry, |part| Role::Layer(layer, part));
        let mut qkv = self.linear(&[of(Part::Q), of(Part::K), of(Part::V)], g.qkv_dim(), g.hidden)?;
        if config.qkv_bias {
            let mut bias = Vec::with_capacity(g.qkv_dim());
            for part in [Part::QBias, Part::KBias, Part::VBias] {
                bias.extend(self.values(of(part))?);
            }
            qkv.bias = Some(self.backend.upload(&bias)?);
        }
        let gate_up = [of(Part::Gate), of(Part::Up)];
        Ok(LayerWeights {
            attn_norm: self.vector(of(Part::AttnNorm))?,
            qkv,
            q_norm: config.qk_norm.then(|| self.vector(of(Part::QNorm))).transpose()?,
            k_norm: config.qk_norm.then(|| self.vector(of(Part::KNorm))).transpose()?,
            out: self.linear(&[of(Part::Out)], g.hidden, g.q_dim())?,
            mlp_norm: self.vector(of(Part::MlpNorm))?,
            gate_up: self.linear(&gate_up, 2 * g.intermediate, g.hidden)?,
            down: self.linear(&[of(Part::Down)], g.hidden, g.intermediate)?,
        })
    }

    fn linear(&mut self, parts: &[Role], rows_out: usize, cols_in: usize) -> Result<Linear<B>> {
        Ok(Linear { weight: self.matrix(parts, rows_out, cols_in)?, bias: None, rows_out, cols_in })
    }

    /// Matrices below one another in one buffer of `rows × cols`.
    fn matrix(&mut self, parts: &[Role], rows: usize, cols: usize) -> Result<B::Buf<bf16>> {
        let mut buf = self.backend.alloc::<bf16>(rows * cols)?;
        let mut at = 0;
        for role in parts {
            let entry = self.checkpoint.tensors.get(&role.name(self.checkpoint.naming))?;
            let order = self.checkpoint.row_order(*role);
            // Strips are whole heads where rows change places.
            let unit = if let RowOrder::Interleaved { head_dim } = order { head_dim } else { 1 };
            let strip = (STRIP / (unit * cols)).max(1) * unit;
            let part_rows = entry.elements() / cols;
            for first in (0..part_rows).step_by(strip) {
                let len = strip.min(part_rows - first) * cols;
                if self.staging.len() < len {
                    self.staging.resize(len, bf16::ZERO);
                }
                let staging = &mut self.staging[..len];
                self.checkpoint.tensors.rows_bf16(entry, first, order, staging)?;
                self.backend.write(&mut buf, at, staging)?;
                at += len;
            }
        }
        Ok(buf)
    }

    fn values(&self, role: Role) -> Result<Vec<f32>> {
        self.checkpoint.tensors.f32(&role.name(self.checkpoint.naming))
    }

    fn vector(&mut self, role: Role) -> Result<B::Buf<f32>> {
        let values = self.values(role)?;
        self.backend.upload(&values)
    }
}
