//! Sizes, by name. No code reads a size off a tensor's shape.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The part of a model's attention and MLP that one process owns.
///
/// KV heads divide among `world.size` devices; one device is world 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Geometry {
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; `heads` is a multiple of it.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Largest position the model was made for.
    pub max_positions: usize,
    /// Which part of the heads lives here.
    pub world: World,
}

/// Rank and size of a tensor-parallel group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct World {
    /// This process.
    pub rank: usize,
    /// All of them.
    pub size: usize,
}

impl Default for World {
    fn default() -> Self {
        Self { rank: 0, size: 1 }
    }
}

impl Geometry {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all KV heads together.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of a fused Q, K, V projection.
    pub fn qkv_dim(&self) -> usize {
        self.q_dim() + 2 * self.kv_dim()
    }

    /// The factor of every attention logit, 1/√head_dim.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Bytes of K and V of one token over all layers, in bf16, counted per KV head (never per query head).
    pub fn kv_bytes_per_token(&self) -> usize {
        self.layers * self.kv_dim() * 2 * 2
    }
}

/// The shape of a block: K and V of `tokens` consecutive tokens of one KV head.
///
/// A *chunk* is a block's storage: `[K: tokens × head_dim][V: tokens × head_dim]` in bf16, contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockShape {
    /// Tokens in a block.
    pub tokens: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl BlockShape {
    /// Elements of K (or of V) of one block.
    pub fn half(&self) -> usize {
        self.tokens * self.head_dim
    }

    /// Elements of a chunk.
    pub fn chunk(&self) -> usize {
        2 * self.half()
    }

    /// Bytes of a chunk in bf16.
    pub fn bytes(&self) -> usize {
        2 * self.chunk()
    }
}
