//! A model on a backend, and the dense prefill that every mode starts from.

use crate::forward::{self, Work};
use crate::geometry::BlockShape;
use crate::model::Model;
use crate::ops::{Backend, Memory, PrefillArgs};
use crate::store::{Extent, ExtentLayout};
use crate::{Error, Result};
use half::bf16;
use std::sync::Arc;

/// Rows of a prompt that go through a layer at once.
const CHUNK: usize = 512;

/// A backend and the model on it. One a worker thread; the model is shared.
pub struct Engine<B: Backend> {
    /// The backend.
    pub backend: B,
    /// The model.
    pub model: Arc<Model<B>>,
}

/// What a prefill must keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefillOptions {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Layers whose output rows are kept for draft sources.
    pub hidden_layers: Vec<usize>,
}

/// A prompt after its dense prefill: its KV in host memory, shared by every decode that starts from it.
pub struct Prefix<B: Memory> {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Logits of its last position, `[vocab]`.
    pub logits: Vec<f32>,
    /// Its full blocks.
    pub extent: Arc<Extent<B>>,
    /// K and V of the tokens after the last full block, `[layers][K | V][tokens][kv_heads][head_dim]`.
    pub(crate) tail: Vec<bf16>,
    /// Queries of the last position, `[layers][heads][head_dim]`.
    pub(crate) queries: Vec<f32>,
    /// `[tokens][hidden_layers][hidden]`.
    pub hidden: Vec<f32>,
    /// Layers in `hidden`.
    pub hidden_layers: Vec<usize>,
}

impl<B: Memory> Prefix<B> {
    /// Tokens after the last full block.
    pub fn tail_tokens(&self) -> usize {
        self.tokens.len() % self.extent.layout.block.tokens
    }

    /// Queries of the last position in a layer, after RoPE, `[heads][head_dim]`.
    pub fn query(&self, layer: usize) -> &[f32] {
        let width = self.queries.len() / self.extent.layout.layers;
        &self.queries[layer * width..(layer + 1) * width]
    }

    /// The key of a position in a layer and KV head, after RoPE, `[head_dim]`.
    pub fn key(&self, layer: usize, position: usize, head: usize) -> Vec<f32> {
        let layout = &self.extent.layout;
        let (dim, block) = (layout.block.head_dim, position / layout.block.tokens);
        let from = |data: &[bf16], at: usize| data[at..at + dim].iter().map(|x| x.to_f32()).collect();
        if block < layout.blocks {
            let at = layout.offset(layer, block, head) + position % layout.block.tokens * dim;
            return from(&self.extent.data, at);
        }
        let (n, row) = (self.tail_tokens(), position - layout.blocks * layout.block.tokens);
        from(&self.tail, (layer * 2 * n + row) * layout.kv_heads * dim + head * dim)
    }
}

/// Buffers of one prefill.
struct Prompt<B: Memory> {
    /// Residual stream of each chunk, `[CHUNK][hidden]`.
    xs: Vec<B::Buf<f32>>,
    positions: Vec<B::Buf<u32>>,
    work: Work<B>,
    q: B::Buf<bf16>,
    k: B::Buf<bf16>,
    v: B::Buf<bf16>,
}

impl<B: Backend> Engine<B> {
    /// Puts a model and a backend together.
    pub fn new(backend: B, model: Arc<Model<B>>) -> Result<Self> {
        let g = &model.config.geometry;
        if g.kv_heads == 0 || !g.heads.is_multiple_of(g.kv_heads) {
            return Err(Error::Unsupported(format!(
                "{} query heads do not divide among {} KV heads",
                g.heads, g.kv_heads
            )));
        }
        Ok(Self { backend, model })
    }

    /// Runs a prompt through the model with full attention.
    pub fn prefill(&mut self, prompt: &[u32], options: &PrefillOptions) -> Result<Prefix<B>> {
        self.check_prompt(prompt, options)?;
        let model = self.model.clone();
        let g = &model.config.geometry;
        let block = BlockShape { tokens: options.block_tokens, head_dim: g.head_dim };
        let layout = ExtentLayout {
            layers: g.layers,
            kv_heads: g.kv_heads,
            blocks: prompt.len() / block.tokens,
            block,
        };
        let mut extent = Extent::new(&self.backend, layout)?;
        let mut hidden = vec![0.0; prompt.len() * options.hidden_layers.len() * g.hidden];
        let (mut tail, mut queries) = (Vec::new(), Vec::with_capacity(g.layers * g.q_dim()));
        let mut p = self.embed_prompt(prompt)?;
        for layer in 0..g.layers {
            self.prefill_layer(layer, prompt.len(), &mut p, &mut queries)?;
            self.backend.pack(&layout, layer, layout.blocks, &p.k, &p.v, &mut extent.data)?;
            self.keep_tail(layout.blocks * block.tokens, prompt.len(), &p, &mut tail)?;
            for (i, _) in options.hidden_layers.iter().enumerate().filter(|&(_, &l)| l == layer) {
                self.keep_hidden(i, options.hidden_layers.len(), prompt.len(), &p, &mut hidden)?;
            }
        }
        let logits = self.last_logits(prompt.len(), &mut p)?;
        Ok(Prefix {
            tokens: prompt.to_vec(),
            logits,
            extent: Arc::new(extent),
            tail,
            queries,
            hidden,
            hidden_layers: options.hidden_layers.clone(),
        })
    }

    fn check_prompt(&self, prompt: &[u32], options: &PrefillOptions) -> Result<()> {
        let g = &self.model.config.geometry;
        if prompt.is_empty() {
            return Err(Error::Capacity("the prompt has 0 tokens; it needs at least 1".into()));
        }
        if prompt.len() > g.max_positions {
            return Err(Error::Capacity(format!(
                "the prompt has {} tokens and the model {} positions; shorten the prompt (task.length)",
                prompt.len(),
                g.max_positions
            )));
        }
        if options.block_tokens == 0 {
            return Err(Error::setting("decode.block", "0 tokens; a block needs at least 1 (default 16)"));
        }
        if let Some(t) = prompt.iter().find(|&&t| t as usize >= g.vocab) {
            return Err(Error::Capacity(format!("token {t} is not in the vocabulary of {}", g.vocab)));
        }
        match options.hidden_layers.iter().find(|&&l| l >= g.layers) {
            Some(l) => Err(Error::Capacity(format!("no layer {l}: the model has {} layers", g.layers))),
            None => Ok(()),
        }
    }

    fn embed_prompt(&mut self, prompt: &[u32]) -> Result<Prompt<B>> {
        let model = self.model.clone();
        let g = &model.config.geometry;
        let chunk = CHUNK.min(prompt.len());
        let mut p = Prompt {
            xs: Vec::new(),
            positions: Vec::new(),
            work: Work::new(&self.backend, g, chunk)?,
            q: self.backend.alloc(chunk * g.q_dim())?,
            k: self.backend.alloc(prompt.len() * g.kv_dim())?,
            v: self.backend.alloc(prompt.len() * g.kv_dim())?,
        };
        for (i, tokens) in prompt.chunks(chunk).enumerate() {
            let positions: Vec<u32> = (0..tokens.len()).map(|t| (i * chunk + t) as u32).collect();
            p.positions.push(self.backend.upload(&positions)?);
            let tokens_buf = self.backend.upload(tokens)?;
            let mut x = self.backend.alloc(chunk * g.hidden)?;
            self.backend.embed(&model.embedding.weight, &tokens_buf, tokens.len(), g.hidden, &mut x)?;
            p.xs.push(x);
        }
        Ok(p)
    }

    /// One layer over all chunks; the queries of the last position are appended to `queries`.
    fn prefill_layer(
        &mut self,
        layer: usize,
        tokens: usize,
        p: &mut Prompt<B>,
        queries: &mut Vec<f32>,
    ) -> Result<()> {
        let (backend, model) = (&mut self.backend, &self.model);
        let g = &model.config.geometry;
        let chunk = CHUNK.min(tokens);
        for i in 0..p.xs.len() {
            let (first, rows) = (i * chunk, chunk.min(tokens - i * chunk));
            std::mem::swap(&mut p.work.x, &mut p.xs[i]);
            forward::project(
                backend,
                model,
                layer,
                rows,
                &p.positions[i],
                &mut p.work,
                &mut p.q,
                &mut p.k,
                &mut p.v,
                first,
            )?;
            let (q, k, v, out) = (&p.q, &p.k, &p.v, &mut p.work.attended);
            backend.prefill_attend(PrefillArgs { geometry: g, q, k, v, first, rows, out })?;
            forward::finish(backend, model, layer, rows, &mut p.work)?;
            std::mem::swap(&mut p.work.x, &mut p.xs[i]);
        }
        let last = (tokens - 1) % chunk;
        let mut q = vec![bf16::ZERO; g.q_dim()];
        backend.read(&p.q, last * g.q_dim(), &mut q)?;
        queries.extend(q.iter().map(|x| x.to_f32()));
        Ok(())
    }

    fn keep_tail(&mut self, from: usize, tokens: usize, p: &Prompt<B>, tail: &mut Vec<bf16>) -> Result<()> {
        let width = self.model.config.geometry.kv_dim();
        for source in [&p.k, &p.v] {
            let at = tail.len();
            tail.resize(at + (tokens - from) * width, bf16::ZERO);
            self.backend.read(source, from * width, &mut tail[at..])?;
        }
        Ok(())
    }

    fn keep_hidden(
        &mut self,
        column: usize,
        columns: usize,
        tokens: usize,
        p: &Prompt<B>,
        hidden: &mut [f32],
    ) -> Result<()> {
        let width = self.model.config.geometry.hidden;
        let chunk = CHUNK.min(tokens);
        let mut rows = vec![0.0; chunk * width];
        for (i, x) in p.xs.iter().enumerate() {
            let n = chunk.min(tokens - i * chunk);
            self.backend.read(x, 0, &mut rows[..n * width])?;
            for (r, row) in rows[..n * width].chunks_exact(width).enumerate() {
                let at = ((i * chunk + r) * columns + column) * width;
                hidden[at..at + width].copy_from_slice(row);
            }
        }
        Ok(())
    }

    fn last_logits(&mut self, tokens: usize, p: &mut Prompt<B>) -> Result<Vec<f32>> {
        let model = self.model.clone();
        let g = &model.config.geometry;
        let mut row = vec![0.0; g.hidden];
        let last = (tokens - 1) % CHUNK.min(tokens);
        let x = p.xs.last().ok_or_else(|| Error::Invariant("a prompt without chunks".into()))?;
        self.backend.read(x, last * g.hidden, &mut row)?;
        self.backend.write(&mut p.work.x, 0, &row)?;
        let mut logits = self.backend.alloc(g.vocab)?;
        forward::head(&mut self.backend, &model, 1, &mut p.work, &mut logits)?;
        let mut out = vec![0.0; g.vocab];
        self.backend.read(&logits, 0, &mut out)?;
        Ok(out)
    }
}
