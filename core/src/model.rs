//! What a model is: its configuration, and its weights on a backend.

use crate::geometry::Geometry;
use crate::ops::Memory;
use half::bf16;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The families whose layers the loop can run. They differ in two flags only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama 2 and 3, SmolLM2.
    Llama,
    /// Qwen2: biases on Q, K and V.
    Qwen2,
    /// Qwen3: RMS norms on each head's query and key before RoPE.
    Qwen3,
}

/// How RoPE stretches its frequencies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Plain RoPE.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Positions the model was first trained on.
        original_max_positions: usize,
    },
}

/// Everything about a model but its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub family: Family,
    /// Sizes.
    pub geometry: Geometry,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Base of RoPE.
    pub rope_theta: f64,
    /// Stretching of RoPE.
    pub rope_scaling: RopeScaling,
    /// Q, K and V have biases.
    pub qkv_bias: bool,
    /// Each head's query and key is RMS-normed before RoPE.
    pub qk_norm: bool,
    /// The output head is the embedding table.
    pub tied_embeddings: bool,
    /// Token put in front of a text, if the tokenizer does so.
    pub bos: Option<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
}

impl ModelConfig {
    /// Inverse frequencies of RoPE, `[head_dim / 2]`, in radians a position.
    /// Pairs are (i, i + head_dim/2), as in Hugging Face's Llama.
    pub fn inv_freq(&self) -> Vec<f32> {
        let d = self.geometry.head_dim;
        let plain = (0..d / 2).map(|i| libm::pow(self.rope_theta, -2.0 * i as f64 / d as f64));
        plain.map(|f| self.rope_scaling.stretch(f) as f32).collect()
    }
}

impl RopeScaling {
    fn stretch(&self, freq: f64) -> f64 {
        match *self {
            Self::None => freq,
            Self::Linear { factor } => freq / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let turns = original_max_positions as f64 * freq / std::f64::consts::TAU;
                let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let keep = smooth.clamp(0.0, 1.0);
                (1.0 - keep) * freq / factor + keep * freq
            }
        }
    }
}

/// A weight matrix `[rows_out][cols_in]`, row-major, and its bias `[rows_out]`.
pub struct Linear<B: Memory + ?Sized> {
    /// The matrix.
    pub weight: B::Buf<bf16>,
    /// The bias, if the model has one.
    pub bias: Option<B::Buf<f32>>,
    /// Outputs.
    pub rows_out: usize,
    /// Inputs.
    pub cols_in: usize,
}

/// One transformer layer.
pub struct LayerWeights<B: Memory + ?Sized> {
    /// Norm before attention, `[hidden]`.
    pub attn_norm: B::Buf<f32>,
    /// Fused projection `[q_dim + 2 kv_dim][hidden]`: all query heads, then all keys, then all values.
    pub qkv: Linear<B>,
    /// Norm of each head's query, `[head_dim]` (Qwen3).
    pub q_norm: Option<B::Buf<f32>>,
    /// Norm of each head's key, `[head_dim]` (Qwen3).
    pub k_norm: Option<B::Buf<f32>>,
    /// Output projection `[hidden][q_dim]`.
    pub out: Linear<B>,
    /// Norm before the MLP, `[hidden]`.
    pub mlp_norm: B::Buf<f32>,
    /// Fused `[2 * intermediate][hidden]`: gate, then up.
    pub gate_up: Linear<B>,
    /// `[hidden][intermediate]`.
    pub down: Linear<B>,
}

/// A model on a backend.
pub struct Model<B: Memory + ?Sized> {
    /// Its configuration.
    pub config: ModelConfig,
    /// Embedding table `[vocab][hidden]`, as a matrix, since it may be the head too.
    pub embedding: Linear<B>,
    /// The layers.
    pub layers: Vec<LayerWeights<B>>,
    /// Norm before the head, `[hidden]`.
    pub final_norm: B::Buf<f32>,
    /// Output head `[vocab][hidden]`; none: the embedding table is the head.
    pub head: Option<Linear<B>>,
    /// Inverse frequencies of RoPE, `[head_dim / 2]`.
    pub inv_freq: B::Buf<f32>,
    /// SHA-256 of the weights as loaded, in hex: part of every fingerprint.
    pub digest: String,
}

impl<B: Memory> Model<B> {
    /// The output head.
    pub fn head(&self) -> &Linear<B> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
