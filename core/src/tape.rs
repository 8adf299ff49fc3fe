//! A tape: all that one sequence's decode feeds its policies, so that policies can be run again without the model.
//!
//! It holds the keys once, the queries of every row of every step, the draft rows with their parents, the tokens that
//! were sampled and forced, and the attention mass that the recorded decode put on its resident blocks. Keys are stored
//! by token, not by block: a replay may cut them into blocks of another size.
//!
//! What a tape can't tell: under other policies the model would have attended other blocks, and its later queries would
//! have been others. A replay of other policies answers "what would they have decided about these queries".

use crate::geometry::{BlockShape, Geometry};
use crate::ops::Memory;
use crate::settings::MAX_ROWS;
use crate::store::{Extent, ExtentLayout};
use crate::{Error, Result};
use half::bf16;
use std::ops::Range;
use std::sync::Arc;

/// What one sequence's decode fed its policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Tape {
    /// Sizes of the model.
    pub geometry: Geometry,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The newest accepted token before the first step.
    pub first: u32,
    /// Most tokens decoded after `first`.
    pub max_new: usize,
    /// Seed of the sequence's draws and policies.
    pub seed: u64,
    /// Keys of the prompt after RoPE, `[layers][kv_heads][prompt][head_dim]`.
    pub prompt_keys: Vec<bf16>,
    /// Queries of the prompt's last position after RoPE, `[layers][heads][head_dim]`.
    pub prompt_queries: Vec<bf16>,
    /// First row of each step and, last, the number of rows, `[steps + 1]`.
    pub row_first: Vec<u32>,
    /// Token of each row, `[rows]`; the first of a step is the newest accepted one, the others are drafts.
    pub tokens: Vec<u32>,
    /// Parent of each row within its step, `[rows]`; 0 for the first.
    pub parents: Vec<u32>,
    /// Token that the model sampled after each row, `[rows]`.
    pub sampled: Vec<u32>,
    /// Token that was accepted whatever the model said, `[steps]`; [`crate::ids::NONE`]: none was.
    pub forced: Vec<u32>,
    /// Queries after RoPE, `[rows][layers][heads][head_dim]`.
    pub queries: Vec<bf16>,
    /// Keys after RoPE, `[rows][layers][kv_heads][head_dim]`.
    pub keys: Vec<bf16>,
    /// Attention mass of the recorded decode; empty where it ranked nothing.
    pub mass: Masses,
}

/// Where the first row of every step put its attention mass, as the recorded decode saw it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Masses {
    /// First entry of each (step, layer, KV head) and, last, the number of entries; `[steps · layers · kv_heads + 1]`,
    /// or empty.
    pub first: Vec<u32>,
    /// Attended blocks, ascending, `[entries]`.
    pub blocks: Vec<u32>,
    /// Their share of the mass, mean over the group's heads, `[entries]`; what is missing to 1 is the tail's.
    pub share: Vec<f32>,
}

impl Masses {
    /// Blocks and shares of one (step, layer, KV head), by its number.
    pub fn get(&self, i: usize) -> Option<(&[u32], &[f32])> {
        let (from, to) = (*self.first.get(i)? as usize, *self.first.get(i + 1)? as usize);
        Some((self.blocks.get(from..to)?, self.share.get(from..to)?))
    }

    /// Appends the next (step, layer, KV head).
    pub(crate) fn push(&mut self, blocks: &[u32], share: &[f32]) {
        if self.first.is_empty() {
            self.first.push(0);
        }
        self.blocks.extend_from_slice(blocks);
        self.share.extend_from_slice(share);
        self.first.push(self.blocks.len() as u32);
    }
}

impl Tape {
    /// A tape of no steps.
    pub fn new(geometry: Geometry, prompt: Vec<u32>, first: u32, max_new: usize, seed: u64) -> Self {
        Self {
            geometry,
            prompt,
            first,
            max_new,
            seed,
            prompt_keys: Vec::new(),
            prompt_queries: Vec::new(),
            row_first: vec![0],
            tokens: Vec::new(),
            parents: Vec::new(),
            sampled: Vec::new(),
            forced: Vec::new(),
            queries: Vec::new(),
            keys: Vec::new(),
            mass: Masses::default(),
        }
    }

    /// Steps.
    pub fn steps(&self) -> usize {
        self.row_first.len().saturating_sub(1)
    }

    /// Rows of a step.
    pub fn rows(&self, step: usize) -> Range<usize> {
        self.row_first[step] as usize..self.row_first[step + 1] as usize
    }

    /// Most rows of a step; at least 1.
    pub fn most_rows(&self) -> usize {
        (0..self.steps()).map(|s| self.rows(s).len()).max().unwrap_or(0).max(1)
    }

    /// Decisions that a replay makes: steps × layers × KV heads.
    pub fn decisions(&self) -> u64 {
        (self.steps() * self.geometry.layers * self.geometry.kv_heads) as u64
    }

    /// The queries of a row in a layer, `[heads][head_dim]`.
    pub fn query(&self, row: usize, layer: usize) -> &[bf16] {
        let width = self.geometry.q_dim();
        &self.queries[(row * self.geometry.layers + layer) * width..][..width]
    }

    /// The keys of a row in a layer, `[kv_heads][head_dim]`.
    pub fn key(&self, row: usize, layer: usize) -> &[bf16] {
        let width = self.geometry.kv_dim();
        &self.keys[(row * self.geometry.layers + layer) * width..][..width]
    }

    /// The key of a prompt position, `[head_dim]`.
    fn prompt_key(&self, layer: usize, head: usize, position: usize) -> &[bf16] {
        let g = &self.geometry;
        let at = (layer * g.kv_heads + head) * self.prompt.len() + position;
        &self.prompt_keys[at * g.head_dim..][..g.head_dim]
    }

    /// The prompt as a decode starts from it, cut into blocks of `block_tokens`. Values are not on the tape and are zero.
    ///
    /// # Errors
    /// Those of [`Tape::check`]; no memory.
    pub fn prefix<B: Memory>(&self, backend: &B, block_tokens: usize) -> Result<crate::engine::Prefix<B>> {
        self.check()?;
        if block_tokens == 0 {
            return Err(Error::setting("decode.block", "0 tokens; a block needs at least 1 (default 16)"));
        }
        let g = &self.geometry;
        let block = BlockShape { tokens: block_tokens, head_dim: g.head_dim };
        let blocks = self.prompt.len() / block_tokens;
        let layout = ExtentLayout { layers: g.layers, kv_heads: g.kv_heads, blocks, block };
        let mut extent = Extent::new(backend, layout)?;
        let mut tail = Vec::new();
        for layer in 0..g.layers {
            for b in 0..blocks {
                for head in 0..g.kv_heads {
                    let at = (layer * g.kv_heads + head) * self.prompt.len() + b * block_tokens;
                    let from = &self.prompt_keys[at * g.head_dim..][..block.half()];
                    let to = layout.offset(layer, b, head);
                    extent.data[to..to + block.half()].copy_from_slice(from);
                }
            }
            let keys = tail.len();
            for position in blocks * block_tokens..self.prompt.len() {
                (0..g.kv_heads).for_each(|h| tail.extend_from_slice(self.prompt_key(layer, h, position)));
            }
            // The values' half.
            tail.resize(2 * tail.len() - keys, bf16::ZERO);
        }
        Ok(crate::engine::Prefix {
            tokens: self.prompt.clone(),
            logits: Vec::new(),
            extent: Arc::new(extent),
            tail,
            queries: self.prompt_queries.iter().map(|x| x.to_f32()).collect(),
            hidden: Vec::new(),
            hidden_layers: Vec::new(),
        })
    }

    /// Checks that all lengths fit together, that rows are what a decode accepts, and that no query or key is NaN or
    /// infinite.
    ///
    /// # Errors
    /// [`Error::Invariant`] that names the part, its length and the one it should have.
    pub fn check(&self) -> Result<()> {
        let g = &self.geometry;
        let bad = |what: String| Err(Error::Invariant(format!("tape: {what}")));
        let sizes = [g.layers, g.heads, g.kv_heads, g.head_dim, g.vocab];
        if sizes.contains(&0) || !g.heads.is_multiple_of(g.kv_heads) {
            return bad(format!(
                "a model of {sizes:?} (layers, query heads, KV heads, head width, vocabulary)"
            ));
        }
        let (steps, rows, prompt) = (self.steps(), self.tokens.len(), self.prompt.len());
        if prompt == 0 {
            return bad("the prompt has 0 tokens; it needs at least 1".into());
        }
        let lengths = [
            ("prompt_keys", self.prompt_keys.len(), g.layers * prompt * g.kv_dim()),
            ("prompt_queries", self.prompt_queries.len(), g.layers * g.q_dim()),
            ("parents", self.parents.len(), rows),
            ("sampled", self.sampled.len(), rows),
            ("forced", self.forced.len(), steps),
            ("queries", self.queries.len(), rows * g.layers * g.q_dim()),
            ("keys", self.keys.len(), rows * g.layers * g.kv_dim()),
            ("mass shares", self.mass.share.len(), self.mass.blocks.len()),
        ];
        for (name, have, want) in lengths {
            if have != want {
                return bad(format!(
                    "{name} has {have} elements where {rows} rows of {steps} steps need {want}"
                ));
            }
        }
        self.check_rows()?;
        self.check_mass()?;
        let arrays = [&self.prompt_keys, &self.prompt_queries, &self.queries, &self.keys];
        match arrays.iter().flat_map(|a| a.iter()).find(|x| !x.is_finite()) {
            Some(x) => bad(format!("a query or key holds {x}; all must be finite")),
            None => Ok(()),
        }
    }

    fn check_rows(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Invariant(format!("tape: {what}")));
        let ends = (self.row_first.first(), self.row_first.last());
        if ends != (Some(&0), Some(&(self.tokens.len() as u32))) {
            return bad(format!(
                "row_first runs from {:?} to {:?}, not from 0 to {}",
                ends.0,
                ends.1,
                self.tokens.len()
            ));
        }
        let steps = self.row_first.windows(2).enumerate();
        for (step, (from, to)) in steps.map(|(s, w)| (s, (w[0] as usize, w[1] as usize))) {
            if to <= from || to - from > MAX_ROWS || to > self.tokens.len() {
                return bad(format!("step {step} has rows {from}..{to}; a step has 1 to {MAX_ROWS}"));
            }
            let parents = &self.parents[from..to];
            if parents.iter().enumerate().any(|(r, &p)| p as usize >= r.max(1)) {
                return bad(format!("step {step}: parents {parents:?}; each row comes after its parent"));
            }
        }
        let known = |t: &u32| (*t as usize) < self.geometry.vocab;
        let forced = self.forced.iter().filter(|&&t| t != crate::ids::NONE);
        let tokens = [&self.prompt, &self.tokens, &self.sampled];
        let mut all = tokens.into_iter().flatten().chain([&self.first]).chain(forced);
        match all.find(|t| !known(t)) {
            Some(t) => bad(format!("token {t} is not in the vocabulary of {}", self.geometry.vocab)),
            None => Ok(()),
        }
    }

    fn check_mass(&self) -> Result<()> {
        let first = &self.mass.first;
        let entries = self.mass.blocks.len() as u32;
        let fits = first.len() as u64 == self.decisions() + 1 && first.first() == Some(&0);
        let rising = first.windows(2).all(|w| w[0] <= w[1]) && first.last() == Some(&entries);
        if (first.is_empty() && entries == 0) || (fits && rising) {
            return Ok(());
        }
        let (have, want) = (first.len(), self.decisions() + 1);
        Err(Error::Invariant(format!(
            "tape: mass_first has {have} elements (it needs {want} that rise from 0 to {entries}, or none)"
        )))
    }
}
