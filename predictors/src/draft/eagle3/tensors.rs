//! The safetensors file of a head: names, shapes, contents.

use super::head::{Described, TAPS};
use half::bf16;
use oasis_core::checkpoint::dtype::Dtype;
use oasis_core::geometry::Geometry;
use oasis_core::{Error, Result};
use safetensors::{SafeTensors, tensor::TensorView};
use std::path::Path;

pub const FC: &str = "fc.weight";
pub const INPUT_NORM: &str = "midlayer.input_layernorm.weight";
pub const HIDDEN_NORM: &str = "midlayer.hidden_norm.weight";
pub const Q: &str = "midlayer.self_attn.q_proj.weight";
pub const K: &str = "midlayer.self_attn.k_proj.weight";
pub const V: &str = "midlayer.self_attn.v_proj.weight";
pub const O: &str = "midlayer.self_attn.o_proj.weight";
pub const MLP_NORM: &str = "midlayer.post_attention_layernorm.weight";
pub const GATE: &str = "midlayer.mlp.gate_proj.weight";
pub const UP: &str = "midlayer.mlp.up_proj.weight";
pub const DOWN: &str = "midlayer.mlp.down_proj.weight";
pub const NORM: &str = "norm.weight";
pub const EMBEDDING: &str = "embed_tokens.weight";
pub const LM_HEAD: &str = "lm_head.weight";
const D2T: &str = "d2t";
const T2D: &str = "t2d";

/// The tensors of one file.
pub struct Tensors<'a> {
    path: &'a Path,
    file: SafeTensors<'a>,
}

impl<'a> Tensors<'a> {
    /// Reads the table; `path` is for messages.
    pub fn open(path: &'a Path, bytes: &'a [u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|e| Error::format(path, format!("is no safetensors file, or truncated: {e}")))?;
        Ok(Self { path, file })
    }

    /// Every tensor is there, has its shape, and there is no other.
    pub fn check(&self, described: &Described, target: &Geometry) -> Result<()> {
        let Described { layer, taps, target_hidden, vocab } = described;
        let g = &layer.geometry;
        let (h, kv) = (g.hidden, g.kv_dim());
        self.check_fc(h, taps.len(), *target_hidden)?;
        let needed: [(&str, &[usize]); 11] = [
            (INPUT_NORM, &[h]),
            (HIDDEN_NORM, &[h]),
            (Q, &[g.q_dim(), 2 * h]),
            (K, &[kv, 2 * h]),
            (V, &[kv, 2 * h]),
            (O, &[h, g.q_dim()]),
            (MLP_NORM, &[h]),
            (GATE, &[g.intermediate, h]),
            (UP, &[g.intermediate, h]),
            (DOWN, &[h, g.intermediate]),
            (NORM, &[h]),
        ];
        let optional: [(&str, &[usize]); 4] =
            [(EMBEDDING, &[*vocab, h]), (LM_HEAD, &[g.vocab, h]), (D2T, &[g.vocab]), (T2D, &[*vocab])];
        let present = optional.into_iter().filter(|(name, _)| self.has(name));
        for (name, shape) in needed.into_iter().chain(present) {
            self.shaped(name, shape)?;
        }
        let known = |name: &str| name == FC || needed.iter().chain(&optional).any(|(n, _)| *n == name);
        if let Some(name) = self.file.names().into_iter().find(|name| !known(name)) {
            return Err(self.bad(format!("unexpected tensor `{name}`: not the native EAGLE-3 format")));
        }
        self.check_shared(g, *vocab, target)
    }

    /// The width of `fc` counts the tapped layers; the error says so, since it is what configs get wrong.
    fn check_fc(&self, hidden: usize, taps: usize, target_hidden: usize) -> Result<()> {
        let view = self.view(FC)?;
        if let [rows, cols] = *view.shape()
            && rows == hidden
            && cols != taps * target_hidden
        {
            return Err(self.bad(format!(
                "tensor `{FC}` reads {cols} values a token; {TAPS} names {taps} layers of width {target_hidden}, \
                 {} values: the list must have {:.1} layers",
                taps * target_hidden,
                cols as f64 / target_hidden as f64
            )));
        }
        self.shaped(FC, &[hidden, taps * target_hidden])
    }

    /// What the head does not bring must be the target's, and fit.
    fn check_shared(&self, g: &Geometry, vocab: usize, target: &Geometry) -> Result<()> {
        if g.hidden != target.hidden
            && let Some(name) = [EMBEDDING, LM_HEAD].into_iter().find(|name| !self.has(name))
        {
            let (head, model) = (g.hidden, target.hidden);
            return Err(self.bad(format!("has no `{name}`, and the model's has width {model}, not {head}")));
        }
        if g.vocab != vocab
            && let Some(name) = [LM_HEAD, D2T].into_iter().find(|name| !self.has(name))
        {
            return Err(self.bad(format!("has no `{name}`, which {} of {vocab} draft ids need", g.vocab)));
        }
        Ok(())
    }

    /// Whether it holds this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_ok()
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        self.file.tensor(name).map_err(|_| self.bad(format!("tensor `{name}` is missing")))
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<()> {
        let view = self.view(name)?;
        if view.shape() == shape {
            return Ok(());
        }
        Err(self.bad(format!("tensor `{name}` has shape {:?}; the config asks for {shape:?}", view.shape())))
    }

    /// Content and storage of a tensor of numbers.
    fn numbers(&self, name: &str) -> Result<(TensorView<'_>, Dtype)> {
        let view = self.view(name)?;
        let dtype = match view.dtype() {
            safetensors::Dtype::BF16 => Dtype::Bf16,
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::F32 => Dtype::F32,
            other => return Err(self.bad(format!("tensor `{name}` is {other:?}; known: BF16, F16, F32"))),
        };
        Ok((view, dtype))
    }

    /// A vector.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let (view, dtype) = self.numbers(name)?;
        let mut out = vec![0.0; view.shape().iter().product()];
        dtype.decode_f32(view.data(), &mut out);
        Ok(out)
    }

    /// Matrices below one another.
    pub fn matrices(&self, names: &[&str]) -> Result<Vec<bf16>> {
        let mut out = Vec::new();
        for name in names {
            let (view, dtype) = self.numbers(name)?;
            let first = out.len();
            out.resize(first + view.shape().iter().product::<usize>(), bf16::ZERO);
            dtype.decode_bf16(view.data(), &mut out[first..]);
        }
        Ok(out)
    }

    fn bad(&self, what: String) -> Error {
        Error::format(self.path, what)
    }

    /// `d2t` holds, for each draft id, the distance to its target id; `t2d` marks the target ids that have one.
    pub fn target_ids(&self, vocab: usize) -> Result<Option<Vec<u32>>> {
        if !self.has(D2T) {
            return Ok(None);
        }
        let view = self.view(D2T)?;
        if view.dtype() != safetensors::Dtype::I64 {
            return Err(self.bad(format!("tensor `{D2T}` is {:?}; known: I64", view.dtype())));
        }
        let mask = self.has(T2D).then(|| self.view(T2D)).transpose()?;
        if let Some(other) = mask.as_ref().map(|m| m.dtype()).filter(|d| *d != safetensors::Dtype::BOOL) {
            return Err(self.bad(format!("tensor `{T2D}` is {other:?}; known: BOOL")));
        }
        let marked = |id: usize| mask.as_ref().is_none_or(|mask| mask.data()[id] != 0);
        let (offsets, _) = view.data().as_chunks::<8>();
        let mut ids = Vec::with_capacity(offsets.len());
        for (draft, offset) in offsets.iter().enumerate() {
            let id = (draft as i64).saturating_add(i64::from_le_bytes(*offset));
            let Some(id) = usize::try_from(id).ok().filter(|id| *id < vocab) else {
                let last = vocab - 1;
                return Err(
                    self.bad(format!("`{D2T}` maps draft id {draft} to {id}; the vocabulary is 0 to {last}"))
                );
            };
            if !marked(id) {
                return Err(
                    self.bad(format!("`{D2T}` maps draft id {draft} to {id}, which `{T2D}` leaves out"))
                );
            }
            ids.push(id as u32);
        }
        Ok(Some(ids))
    }
}
