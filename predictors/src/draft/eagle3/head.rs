//! The weights of a head: from a config and a safetensors file to a backend.

use super::tensors::*;
use half::bf16;
use oasis_core::checkpoint::config;
use oasis_core::geometry::Geometry;
use oasis_core::model::{Family, Linear, Model, ModelConfig};
use oasis_core::ops::{Backend, Memory};
use oasis_core::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// A head on a backend.
pub struct Head<B: Memory> {
    /// Its one layer; `geometry.vocab` is the number of draft ids.
    pub(super) config: ModelConfig,
    taps: Vec<usize>,
    feature_dim: usize,
    /// Target id of each draft id; none: they are the same.
    to_target: Option<Vec<u32>>,
    /// `[hidden][taps × target hidden]`.
    pub(super) fc: Linear<B>,
    pub(super) input_norm: B::Buf<f32>,
    pub(super) hidden_norm: B::Buf<f32>,
    /// The half of the fused Q, K, V projection that reads the embedding, `[qkv_dim][hidden]`.
    pub(super) qkv_token: Linear<B>,
    /// The half that reads the hidden row, `[qkv_dim][hidden]`.
    pub(super) qkv_hidden: Linear<B>,
    pub(super) out: Linear<B>,
    pub(super) mlp_norm: B::Buf<f32>,
    pub(super) gate_up: Linear<B>,
    pub(super) down: Linear<B>,
    pub(super) norm: B::Buf<f32>,
    pub(super) inv_freq: B::Buf<f32>,
    /// Own embedding table; none: the target's.
    pub(super) embedding: Option<Linear<B>>,
    /// Own output head; none: the target's.
    pub(super) lm_head: Option<Linear<B>>,
}

/// What the config says beyond the layer itself.
pub struct Described {
    pub layer: ModelConfig,
    pub taps: Vec<usize>,
    pub target_hidden: usize,
    pub vocab: usize,
}

impl<B: Backend> Head<B> {
    /// Reads a head from its config and its safetensors file, each a name for messages and the content.
    ///
    /// # Errors
    /// A missing, unexpected or wrongly shaped tensor, or one that does not fit the target, by name.
    pub fn load(
        config: (&Path, &[u8]),
        weights: (&Path, &[u8]),
        backend: &mut B,
        model: &Model<B>,
    ) -> Result<Self> {
        let described = describe(config.0, config.1)?;
        let target = &model.config.geometry;
        fit_config(config.0, &described, target)?;
        let tensors = Tensors::open(weights.0, weights.1)?;
        tensors.check(&described, target)?;
        let to_target = tensors.target_ids(described.vocab)?;
        Self::upload(&tensors, described, to_target, backend)
    }

    fn upload(
        tensors: &Tensors<'_>,
        described: Described,
        to_target: Option<Vec<u32>>,
        backend: &mut B,
    ) -> Result<Self> {
        let Described { layer: config, taps, target_hidden, vocab } = described;
        let g = &config.geometry;
        let (h, features) = (g.hidden, taps.len() * target_hidden);
        let qkv = tensors.matrices(&[Q, K, V])?;
        let half = |first: usize| -> Vec<bf16> {
            qkv.chunks_exact(2 * h).flat_map(|row| &row[first..first + h]).copied().collect()
        };
        let mut norm = |name| -> Result<B::Buf<f32>> { backend.upload(&tensors.floats(name)?) };
        let (input_norm, hidden_norm) = (norm(INPUT_NORM)?, norm(HIDDEN_NORM)?);
        let (mlp_norm, last_norm) = (norm(MLP_NORM)?, norm(NORM)?);
        let mut linear = |data: Vec<bf16>, rows_out: usize, cols_in: usize| -> Result<Linear<B>> {
            Ok(Linear { weight: backend.upload(&data)?, bias: None, rows_out, cols_in })
        };
        let optional = |name| tensors.has(name).then(|| tensors.matrices(&[name])).transpose();
        Ok(Self {
            fc: linear(tensors.matrices(&[FC])?, h, features)?,
            qkv_token: linear(half(0), g.qkv_dim(), h)?,
            qkv_hidden: linear(half(h), g.qkv_dim(), h)?,
            out: linear(tensors.matrices(&[O])?, h, g.q_dim())?,
            gate_up: linear(tensors.matrices(&[GATE, UP])?, 2 * g.intermediate, h)?,
            down: linear(tensors.matrices(&[DOWN])?, h, g.intermediate)?,
            embedding: optional(EMBEDDING)?.map(|data| linear(data, vocab, h)).transpose()?,
            lm_head: optional(LM_HEAD)?.map(|data| linear(data, g.vocab, h)).transpose()?,
            inv_freq: backend.upload(&config.inv_freq())?,
            feature_dim: features,
            config,
            taps,
            to_target,
            input_norm,
            hidden_norm,
            mlp_norm,
            norm: last_norm,
        })
    }
}

impl<B: Memory> Head<B> {
    /// Target layers (0-based) whose output rows it reads, in this order.
    pub fn taps(&self) -> &[usize] {
        &self.taps
    }

    /// Floats of all those rows of one token.
    pub fn feature_dim(&self) -> usize {
        self.feature_dim
    }

    /// Positions the head may be used for.
    pub fn max_positions(&self) -> usize {
        self.config.geometry.max_positions
    }

    /// Allows as many positions, whatever its config says.
    pub fn set_max_positions(&mut self, positions: usize) {
        self.config.geometry.max_positions = positions;
    }

    /// The target's id of a draft id.
    pub fn target_id(&self, draft: u32) -> u32 {
        self.to_target.as_ref().map_or(draft, |ids| ids[draft as usize])
    }
}

/// The config as that of a Llama of one layer, and the keys that only heads have.
fn describe(path: &Path, json: &[u8]) -> Result<Described> {
    let bad = |what: String| Error::format(path, what);
    let mut value: Value = serde_json::from_slice(json).map_err(|e| bad(e.to_string()))?;
    let taps = taps(path, &value)?;
    let size = |key: &str| value.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let (target_hidden, draft_vocab) = (size("target_hidden_size"), size("draft_vocab_size"));
    if let Some(object) = value.as_object_mut() {
        // Heads name classes of their own; what counts is that the layer is a Llama's.
        object.remove("architectures");
    }
    let mut layer = config::parse(path, value.to_string().as_bytes())?;
    if layer.family != Family::Llama || layer.geometry.layers != 1 {
        let what = format!("{:?} with {} layers", layer.family, layer.geometry.layers);
        return Err(Error::Unsupported(format!(
            "{}: an EAGLE-3 head of type {what} is not supported; known: llama with 1 layer",
            path.display()
        )));
    }
    let vocab = layer.geometry.vocab;
    layer.geometry.vocab = draft_vocab.unwrap_or(vocab);
    if layer.geometry.vocab == 0 || layer.geometry.vocab > vocab {
        let what =
            format!("draft_vocab_size is {}; 1 to vocab_size, {vocab}, are possible", layer.geometry.vocab);
        return Err(bad(what));
    }
    Ok(Described { taps, target_hidden: target_hidden.unwrap_or(layer.geometry.hidden), vocab, layer })
}

pub const TAPS: &str = "eagle_config.eagle_aux_hidden_state_layer_ids";

fn taps(path: &Path, value: &Value) -> Result<Vec<usize>> {
    let list = value.pointer("/eagle_config/eagle_aux_hidden_state_layer_ids");
    let ids = list.and_then(Value::as_array).map(|ids| ids.iter().map(|id| id.as_u64().map(|n| n as usize)));
    match ids.and_then(|ids| ids.collect::<Option<Vec<usize>>>()) {
        Some(ids) if !ids.is_empty() => Ok(ids),
        _ => Err(Error::format(
            path,
            format!(
                "{TAPS} is missing or no list of layers; write the layers whose outputs the head reads, e.g. [0, 2, 4]"
            ),
        )),
    }
}

/// The head was made for a target of these sizes.
fn fit_config(path: &Path, described: &Described, target: &Geometry) -> Result<()> {
    let bad = |what: String| Err(Error::format(path, what));
    if described.target_hidden != target.hidden {
        let (head, model) = (described.target_hidden, target.hidden);
        return bad(format!("the head reads hidden rows of width {head}, the model's have {model}"));
    }
    if described.vocab != target.vocab {
        let (head, model) = (described.vocab, target.vocab);
        return bad(format!("vocab_size is {head}, the model's is {model}: a head of another model"));
    }
    match described.taps.iter().find(|tap| **tap >= target.layers) {
        Some(tap) => {
            bad(format!("{TAPS} names layer {tap}; the model has layers 0 to {}", target.layers - 1))
        }
        None => Ok(()),
    }
}
