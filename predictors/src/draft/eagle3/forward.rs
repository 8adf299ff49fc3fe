//! The head's forward pass over one sequence.

use super::Head;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use oasis_core::Result;
use oasis_core::model::Model;
use oasis_core::ops::{Backend, Memory, PrefillArgs, RopeArgs};

/// Rows that go through the layer at once.
const CHUNK: usize = 256;

/// Keys and values of the accepted tokens, and the buffers of a pass.
///
/// Only the newest position needs the layer's output; of all others the keys and values are enough. So a long
/// prompt costs two projections a token and no attention.
pub struct Sequence<B: Memory> {
    /// `[capacity][kv_heads][head_dim]`. What lies beyond `positions` belongs to drafts and is overwritten.
    k: B::Buf<bf16>,
    v: B::Buf<bf16>,
    capacity: usize,
    positions: usize,
    work: Work<B>,
}

struct Work<B: Memory> {
    rows: usize,
    token: B::Buf<u32>,
    position: B::Buf<u32>,
    /// The target's hidden rows, `[rows][feature_dim]`.
    features: B::Buf<bf16>,
    /// `[rows][hidden]`.
    embedded: B::Buf<f32>,
    /// `fc` output, then the layer's output, `[rows][hidden]`.
    x: B::Buf<f32>,
    /// `[rows][hidden]`.
    normed: B::Buf<bf16>,
    /// `[rows][qkv_dim]`.
    qkv: B::Buf<f32>,
    /// `[rows][heads][head_dim]`.
    q: B::Buf<bf16>,
    /// One row from here on: `[q_dim]`.
    attended: B::Buf<bf16>,
    gate_up: B::Buf<f32>,
    inner: B::Buf<bf16>,
    logits: B::Buf<f32>,
    host_position: Vec<u32>,
    host_features: Vec<bf16>,
    host_logits: Vec<f32>,
}

impl<B: Backend> Work<B> {
    fn new(backend: &B, head: &Head<B>, rows: usize) -> Result<Self> {
        let g = &head.config.geometry;
        Ok(Self {
            rows,
            token: backend.alloc(rows)?,
            position: backend.alloc(rows)?,
            features: backend.alloc(rows * head.feature_dim())?,
            embedded: backend.alloc(rows * g.hidden)?,
            x: backend.alloc(rows * g.hidden)?,
            normed: backend.alloc(rows * g.hidden)?,
            qkv: backend.alloc(rows * g.qkv_dim())?,
            q: backend.alloc(rows * g.q_dim())?,
            attended: backend.alloc(g.q_dim())?,
            gate_up: backend.alloc(2 * g.intermediate)?,
            inner: backend.alloc(g.intermediate)?,
            logits: backend.alloc(g.vocab)?,
            host_position: Vec::new(),
            host_features: Vec::new(),
            host_logits: vec![0.0; g.vocab],
        })
    }
}

impl<B: Backend> Sequence<B> {
    /// Nothing absorbed yet.
    pub fn new(backend: &B, head: &Head<B>) -> Result<Self> {
        let elems = CHUNK * head.config.geometry.kv_dim();
        let (k, v) = (backend.alloc(elems)?, backend.alloc(elems)?);
        Ok(Self { k, v, capacity: CHUNK, positions: 0, work: Work::new(backend, head, 1)? })
    }

    /// Positions whose keys and values are kept.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Takes in the hidden rows of all positions but the newest token's, `[new][feature_dim]`, and runs the
    /// layer at the last of them, which is returned. Makes room for a chain of `depth`.
    pub fn absorb(
        &mut self,
        backend: &mut B,
        head: &Head<B>,
        model: &Model<B>,
        tokens: &[u32],
        hidden: &[f32],
        depth: usize,
    ) -> Result<usize> {
        let last = tokens.len() - 2;
        self.reserve(backend, head, last + 1 + depth)?;
        let old = last - self.positions;
        if self.work.rows < old.min(CHUNK) {
            self.work = Work::new(backend, head, old.min(CHUNK))?;
        }
        let (earlier, newest) = hidden.split_at(old * head.feature_dim());
        for rows in earlier.chunks(CHUNK * head.feature_dim()) {
            let (first, count) = (self.positions, rows.len() / head.feature_dim());
            self.fuse(backend, head, rows, count)?;
            self.project(backend, head, model, &tokens[first + 1..][..count], first)?;
            self.positions += count;
        }
        self.fuse(backend, head, newest, 1)?;
        self.advance(backend, head, model, tokens[last + 1], last)?;
        self.positions += 1;
        Ok(last)
    }

    /// Runs the layer at `position` with row 0 of `x` and `token`, the one after that position. The output takes
    /// the row's place.
    pub fn advance(
        &mut self,
        backend: &mut B,
        head: &Head<B>,
        model: &Model<B>,
        token: u32,
        position: usize,
    ) -> Result<()> {
        self.project(backend, head, model, &[token], position)?;
        let (g, eps, work) = (&head.config.geometry, head.config.rms_eps, &mut self.work);
        let (k, v, out) = (&self.k, &self.v, &mut work.attended);
        backend.prefill_attend(PrefillArgs {
            geometry: g,
            q: &work.q,
            k,
            v,
            first: position,
            rows: 1,
            out,
        })?;
        backend.gemm(&work.attended, &head.out, 1, true, &mut work.x)?;
        backend.rms_norm(&work.x, &head.mlp_norm, eps, 1, g.hidden, &mut work.normed)?;
        backend.gemm(&work.normed, &head.gate_up, 1, false, &mut work.gate_up)?;
        backend.swiglu(&work.gate_up, 1, g.intermediate, &mut work.inner)?;
        backend.gemm(&work.inner, &head.down, 1, true, &mut work.x)
    }

    /// Logits over the draft ids after row 0 of `x`.
    pub fn logits(&mut self, backend: &mut B, head: &Head<B>, model: &Model<B>) -> Result<&[f32]> {
        let (g, eps, work) = (&head.config.geometry, head.config.rms_eps, &mut self.work);
        let lm_head = head.lm_head.as_ref().unwrap_or_else(|| model.head());
        backend.rms_norm(&work.x, &head.norm, eps, 1, g.hidden, &mut work.normed)?;
        backend.gemm(&work.normed, lm_head, 1, false, &mut work.logits)?;
        backend.read(&work.logits, 0, &mut work.host_logits)?;
        Ok(&work.host_logits)
    }

    /// The target's rows through `fc`, to `x`.
    fn fuse(&mut self, backend: &mut B, head: &Head<B>, hidden: &[f32], rows: usize) -> Result<()> {
        let work = &mut self.work;
        work.host_features.resize(hidden.len(), bf16::ZERO);
        work.host_features.convert_from_f32_slice(hidden);
        backend.write(&mut work.features, 0, &work.host_features)?;
        backend.gemm(&work.features, &head.fc, rows, false, &mut work.x)
    }

    /// Queries, and keys and values to positions `first ..`, of `x` and the tokens after those positions.
    fn project(
        &mut self,
        backend: &mut B,
        head: &Head<B>,
        model: &Model<B>,
        tokens: &[u32],
        first: usize,
    ) -> Result<()> {
        let (g, eps, rows) = (&head.config.geometry, head.config.rms_eps, tokens.len());
        let work = &mut self.work;
        let table = head.embedding.as_ref().unwrap_or(&model.embedding);
        work.host_position.clear();
        work.host_position.extend((first..first + rows).map(|p| p as u32));
        backend.write(&mut work.token, 0, tokens)?;
        backend.write(&mut work.position, 0, &work.host_position)?;
        backend.embed(&table.weight, &work.token, rows, g.hidden, &mut work.embedded)?;
        // The projection of [embedding | hidden row] is the sum of the projections of its halves.
        backend.rms_norm(&work.embedded, &head.input_norm, eps, rows, g.hidden, &mut work.normed)?;
        backend.gemm(&work.normed, &head.qkv_token, rows, false, &mut work.qkv)?;
        backend.rms_norm(&work.x, &head.hidden_norm, eps, rows, g.hidden, &mut work.normed)?;
        backend.gemm(&work.normed, &head.qkv_hidden, rows, true, &mut work.qkv)?;
        backend.rope(RopeArgs {
            geometry: g,
            qkv: &work.qkv,
            q_norm: None,
            k_norm: None,
            eps,
            positions: &work.position,
            inv_freq: &head.inv_freq,
            rows,
            q: &mut work.q,
            k: &mut self.k,
            v: &mut self.v,
            first,
        })
    }

    /// Room for `wanted` positions, at least twice the old room, so that growing costs little a token.
    fn reserve(&mut self, backend: &mut B, head: &Head<B>, wanted: usize) -> Result<()> {
        if wanted <= self.capacity {
            return Ok(());
        }
        let (capacity, row) = (wanted.max(2 * self.capacity), head.config.geometry.kv_dim());
        let mut kept = vec![bf16::ZERO; self.positions * row];
        for buf in [&mut self.k, &mut self.v] {
            let mut grown = backend.alloc(capacity * row)?;
            backend.read(buf, 0, &mut kept)?;
            backend.write(&mut grown, 0, &kept)?;
            *buf = grown;
        }
        self.capacity = capacity;
        Ok(())
    }
}
