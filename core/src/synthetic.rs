//! Models and prompts that stand for real ones where only speed is asked: seeded random weights and caches, made on the
//! device. Whatever is measured with them is labelled; nothing that they say means anything.

use crate::engine::Prefix;
use crate::geometry::{BlockShape, Geometry};
use crate::model::{LayerWeights, Linear, Model, ModelConfig};
use crate::ops::{Fill, Memory, Noise};
use crate::store::{Extent, ExtentLayout};
use crate::{Error, Result};
use half::bf16;
use std::sync::Arc;

/// Draws weights: each array gets a seed of its own.
struct Weights<'a, B: Memory> {
    backend: &'a mut B,
    seed: u64,
}

impl<B: Fill> Weights<'_, B> {
    fn noise(&mut self, mean: f32, deviation: f32) -> Noise {
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        Noise { seed: self.seed, mean, deviation }
    }

    /// Of a deviation that keeps the variance of its input, times `gain`.
    fn linear(&mut self, rows_out: usize, cols_in: usize, gain: f32) -> Result<Linear<B>> {
        let mut weight = self.backend.alloc::<bf16>(rows_out * cols_in)?;
        let noise = self.noise(0.0, gain / (cols_in as f32).sqrt());
        self.backend.fill_half(noise, &mut weight)?;
        Ok(Linear { weight, bias: None, rows_out, cols_in })
    }

    fn vector(&mut self, len: usize, mean: f32, deviation: f32) -> Result<B::Buf<f32>> {
        let mut out = self.backend.alloc::<f32>(len)?;
        let noise = self.noise(mean, deviation);
        self.backend.fill(noise, &mut out)?;
        Ok(out)
    }

    fn layer(&mut self, config: &ModelConfig) -> Result<LayerWeights<B>> {
        let g = &config.geometry;
        // Both branches of every layer add to the residual stream: together they double its variance.
        let branch = 1.0 / (2.0 * g.layers as f32).sqrt();
        let mut qkv = self.linear(g.qkv_dim(), g.hidden, 1.0)?;
        if config.qkv_bias {
            qkv.bias = Some(self.vector(g.qkv_dim(), 0.0, 0.1)?);
        }
        let head_norm = |w: &mut Self| config.qk_norm.then(|| w.vector(g.head_dim, 1.0, 0.0)).transpose();
        let (q_norm, k_norm) = (head_norm(self)?, head_norm(self)?);
        Ok(LayerWeights {
            attn_norm: self.vector(g.hidden, 1.0, 0.0)?,
            qkv,
            q_norm,
            k_norm,
            out: self.linear(g.hidden, g.q_dim(), branch)?,
            mlp_norm: self.vector(g.hidden, 1.0, 0.0)?,
            gate_up: self.linear(2 * g.intermediate, g.hidden, 1.0)?,
            down: self.linear(g.hidden, g.intermediate, branch)?,
        })
    }
}

/// A model of this configuration with seeded random weights, scaled so that no activation grows without bound.
///
/// # Errors
/// If there is no memory for it.
pub fn model<B: Fill>(backend: &mut B, config: ModelConfig, seed: u64) -> Result<Model<B>> {
    let g = config.geometry.clone();
    let mut w = Weights { backend, seed: seed ^ 0x6f61_7369_735f_7731 };
    // Rows of unit variance: what comes in is as large as what a norm makes of it.
    let embedding = w.linear(g.vocab, g.hidden, (g.hidden as f32).sqrt())?;
    let layers = (0..g.layers).map(|_| w.layer(&config)).collect::<Result<_>>()?;
    let head = (!config.tied_embeddings).then(|| w.linear(g.vocab, g.hidden, 1.0)).transpose()?;
    let final_norm = w.vector(g.hidden, 1.0, 0.0)?;
    let inv_freq = backend.upload(&config.inv_freq())?;
    Ok(Model {
        embedding,
        layers,
        final_norm,
        head,
        inv_freq,
        digest: format!("synthetic, seed {seed}"),
        config,
    })
}

/// A prompt that was never prefilled: random tokens, and random keys, values and last queries of unit variance, different in
/// every layer, head and position. [`Prefix::logits`] is empty: nobody knows what comes next.
///
/// # Errors
/// [`Error::Capacity`] for no tokens or more than the model has positions, or if there is no memory.
pub fn prefix<B: Fill>(
    backend: &mut B,
    g: &Geometry,
    tokens: usize,
    block_tokens: usize,
    seed: u64,
) -> Result<Prefix<B>> {
    if tokens == 0 || tokens > g.max_positions || block_tokens == 0 {
        return Err(Error::Capacity(format!(
            "a prompt of {tokens} tokens in blocks of {block_tokens}; give 1 to {} tokens and blocks of at least 1",
            g.max_positions
        )));
    }
    let block = BlockShape { tokens: block_tokens, head_dim: g.head_dim };
    let layout =
        ExtentLayout { layers: g.layers, kv_heads: g.kv_heads, blocks: tokens / block_tokens, block };
    let part = |i: u64| Noise::normal(seed.wrapping_mul(4).wrapping_add(i));
    let mut extent = Extent::new(backend, layout)?;
    backend.fill_host(part(0), &mut extent.data)?;
    let rest = g.layers * 2 * (tokens % block_tokens) * g.kv_dim();
    let (tail, queries, words) = (part(1), part(2), part(3));
    Ok(Prefix {
        tokens: (0..tokens as u64).map(|i| (words.word(i) % g.vocab as u64) as u32).collect(),
        logits: Vec::new(),
        extent: Arc::new(extent),
        tail: (0..rest as u64).map(|i| bf16::from_f32(tail.at(i))).collect(),
        queries: (0..(g.layers * g.q_dim()) as u64).map(|i| queries.at(i)).collect(),
        hidden: Vec::new(),
        hidden_layers: Vec::new(),
    })
}
