//! Prompts of a benchmark: random tokens, prefilled if the weights are real, else with random keys and values.

use super::flags::Request;
use super::policies::random_token;
use super::shape::Shape;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::engine::{Engine, PrefillOptions, Prefix};
use oasis_core::ops::Backend;
use oasis_core::plan::SeqLength;
use oasis_core::synthetic;
use std::sync::Arc;
use std::time::Instant;

/// Prompts differ by up to this many tokens, or a quarter of the context.
const SPREAD: usize = 64;

/// Tokens of sequence `i`: at most `context`, never the same for two neighbours.
pub fn length(context: usize, i: usize) -> usize {
    let spread = SPREAD.min(context / 4).max(1);
    context - i * 37 % spread
}

/// Lengths of a batch.
pub fn lengths(context: usize, batch: usize, steps: usize, shared: bool) -> Vec<SeqLength> {
    let one = |i| SeqLength { prompt: length(context, if shared { 0 } else { i }), max_new: steps };
    (0..batch).map(one).collect()
}

/// Prompts that are ready to be decoded.
pub struct Prompts<B: Backend> {
    /// One a sequence.
    pub prefixes: Vec<Arc<Prefix<B>>>,
    /// Seconds that they took.
    pub seconds: f64,
    /// They went through the model.
    pub prefilled: bool,
    /// Their tokens, a shared one counted once.
    pub tokens: usize,
}

/// Makes `batch` prompts.
///
/// # Errors
/// A context beyond the model's positions; no memory.
pub fn make<B: Backend>(
    engine: &mut Engine<B>,
    request: &Request,
    shape: &Shape,
    context: usize,
    batch: usize,
) -> Result<Prompts<B>> {
    let g = engine.model.config.geometry.clone();
    if context + request.all_steps() > g.max_positions {
        let what = format!(
            "{context} tokens and {} steps; `{}` has {} positions: give a shorter context",
            request.all_steps(),
            shape.name,
            g.max_positions
        );
        bail!(Error::setting("--context", what));
    }
    let start = Instant::now();
    let mut prefixes: Vec<Arc<Prefix<B>>> = Vec::with_capacity(batch);
    for i in 0..batch {
        if let Some(first) = prefixes.first().filter(|_| request.share_prompt) {
            prefixes.push(first.clone());
            continue;
        }
        let (tokens, seed) = (length(context, i), seed_of(request.seed, i));
        prefixes.push(Arc::new(if shape.synthetic() {
            synthetic::prefix(&mut engine.backend, &g, tokens, request.block, seed)?
        } else {
            let prompt: Vec<u32> = (0..tokens as u64).map(|t| random_token(seed, t, g.vocab)).collect();
            let options = PrefillOptions { block_tokens: request.block, hidden_layers: Vec::new() };
            engine.prefill(&prompt, &options)?
        }));
    }
    let own = if request.share_prompt { 1 } else { batch };
    let tokens = prefixes.iter().take(own).map(|p| p.tokens.len()).sum();
    let seconds = start.elapsed().as_secs_f64();
    Ok(Prompts { prefixes, seconds, prefilled: !shape.synthetic(), tokens })
}

/// The seed of a sequence.
pub fn seed_of(seed: u64, i: usize) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1 + i as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_differ_and_stay_near_the_context() {
        let all = lengths(16_384, 64, 10, false);
        assert_eq!(all.iter().map(|l| l.prompt).max(), Some(16_384));
        assert!(all.iter().all(|l| l.prompt > 16_384 - SPREAD && l.max_new == 10));
        assert!(all.windows(2).all(|w| w[0].prompt != w[1].prompt));
        assert!(lengths(32, 9, 1, false).iter().all(|l| (25..=32).contains(&l.prompt)));
        assert!(lengths(64, 9, 1, true).iter().all(|l| l.prompt == 64));
    }
}
