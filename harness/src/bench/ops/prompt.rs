//! A whole prompt, beside the rate of a large product.

use super::{Args, Bench};
use crate::bench::record::{BandwidthRecord, OpRow};
use anyhow::Result;
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::geometry::{BlockShape, Geometry};
use oasis_core::model::Model;
use oasis_core::store::{Extent, ExtentLayout};
use oasis_kernels::Measure;
use std::sync::Arc;
use std::time::Instant;

/// Rows of the large products: enough that arithmetic is all that counts.
const MANY: usize = 8192;

/// Whole prompts that are timed, after one that is not.
const TIMED: usize = 3;

/// Adds products of [`MANY`] rows, the allocation of the prompt's host store, and the prompt itself with it.
pub(super) fn add<B: Measure>(
    args: &Args,
    mut backend: B,
    model: Model<B>,
    (tokens, rates): (usize, BandwidthRecord),
    out: &mut Vec<OpRow>,
) -> Result<()> {
    let before = out.len();
    Bench { args, backend: &mut backend, model: &model, rates, batch: 1, rows: 1, out }.products(MANY)?;
    let rate = |r: &OpRow| if r.error.is_none() { r.flops / r.us } else { 0.0 };
    let product = out[before..].iter().map(rate).fold(0.0, f64::max);
    let g = model.config.geometry.clone();
    let head = model.head().rows_out * model.head().cols_in;
    let mut engine = Engine::new(backend, Arc::new(model))?;
    let prompt: Vec<u32> = (0..tokens as u64).map(|i| (i * 7919 % g.vocab as u64) as u32).collect();
    let options = PrefillOptions { block_tokens: args.block, hidden_layers: Vec::new() };
    let mut seconds = [0.0; TIMED];
    for timed in std::iter::once(&mut 0.0).chain(&mut seconds) {
        let start = Instant::now();
        engine.prefill(&prompt, &options)?;
        *timed = start.elapsed().as_secs_f64();
    }
    let layout = ExtentLayout {
        layers: g.layers,
        kv_heads: g.kv_heads,
        blocks: tokens / args.block,
        block: BlockShape { tokens: args.block, head_dim: g.head_dim },
    };
    let start = Instant::now();
    let store = Extent::new(&engine.backend, layout)?.data.len() * size_of::<oasis_core::bf16>();
    let allocation = start.elapsed().as_secs_f64();
    seconds.sort_by(f64::total_cmp);
    let row = |op, size, seconds: f64, bytes: usize| OpRow {
        op,
        size,
        us: 1e6 * seconds,
        bytes: bytes as f64,
        flops: 0.0,
        floor_us: 1e6 * bytes as f64 / rates.device_read,
        share: None,
        recorded: false,
        error: None,
    };
    out.push(row("host store", format!("{tokens} tokens, its allocation"), allocation, store));
    let (weights, flops) = work(&g, tokens, head);
    let mut whole = row("prefill", format!("{tokens} tokens, whole"), seconds[TIMED / 2], 2 * weights);
    whole.flops = flops;
    whole.share = (product > 0.0).then(|| flops / whole.us / product);
    out.push(whole);
    Ok(())
}

/// Weights, and the operations of a prompt: products of every token, causal attention, logits of the last token.
fn work(g: &Geometry, tokens: usize, head: usize) -> (usize, f64) {
    let layer = g.hidden * (g.qkv_dim() + g.q_dim() + 3 * g.intermediate);
    let attention = 2 * g.q_dim() * tokens * (tokens + 1);
    let flops = g.layers as f64 * (2 * layer * tokens + attention) as f64 + 2.0 * head as f64;
    (g.layers * layer + head, flops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::geometry::World;

    #[test]
    fn a_prompt_s_operations_are_two_a_weight_and_token_and_four_a_pair_of_tokens() {
        let g = Geometry {
            layers: 3,
            hidden: 8,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            intermediate: 16,
            vocab: 32,
            max_positions: 64,
            world: World::default(),
        };
        // qkv 8 × 16, out 8 × 8, three of 8 × 16; four tokens make ten pairs, q · k and p · v are 2 · 8 each.
        let (weights, flops) = work(&g, 4, 256);
        assert_eq!(weights, 3 * (128 + 64 + 384) + 256);
        assert_eq!(flops, 3.0 * (2.0 * 576.0 * 4.0 + 10.0 * 32.0) + 512.0);
    }
}
