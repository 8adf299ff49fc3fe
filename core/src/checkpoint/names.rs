//! Which tensors a model has, what they are called in each format, and the check that a checkpoint has
//! exactly these.

use super::tensors::Tensors;
use crate::model::ModelConfig;
use crate::{Error, Result};

/// How a format names tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`.
    HuggingFace,
    /// `blk.0.attn_q.weight`.
    Gguf,
}

/// A tensor's place in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Embedding table.
    Embedding,
    /// Norm before the head.
    FinalNorm,
    /// Output head.
    Head,
    /// A part of a layer.
    Layer(usize, Part),
}

/// A tensor's place in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Norm before attention.
    AttnNorm,
    /// Query, key and value projections.
    Q,
    /// See `Q`.
    K,
    /// See `Q`.
    V,
    /// Their biases.
    QBias,
    /// See `QBias`.
    KBias,
    /// See `QBias`.
    VBias,
    /// Norms of each head's query and key.
    QNorm,
    /// See `QNorm`.
    KNorm,
    /// Output projection.
    Out,
    /// Norm before the MLP.
    MlpNorm,
    /// MLP.
    Gate,
    /// See `Gate`.
    Up,
    /// See `Gate`.
    Down,
}

impl Part {
    /// Names after `model.layers.N.` and after `blk.N.`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::AttnNorm => ("input_layernorm.weight", "attn_norm.weight"),
            Self::Q => ("self_attn.q_proj.weight", "attn_q.weight"),
            Self::K => ("self_attn.k_proj.weight", "attn_k.weight"),
            Self::V => ("self_attn.v_proj.weight", "attn_v.weight"),
            Self::QBias => ("self_attn.q_proj.bias", "attn_q.bias"),
            Self::KBias => ("self_attn.k_proj.bias", "attn_k.bias"),
            Self::VBias => ("self_attn.v_proj.bias", "attn_v.bias"),
            Self::QNorm => ("self_attn.q_norm.weight", "attn_q_norm.weight"),
            Self::KNorm => ("self_attn.k_norm.weight", "attn_k_norm.weight"),
            Self::Out => ("self_attn.o_proj.weight", "attn_output.weight"),
            Self::MlpNorm => ("post_attention_layernorm.weight", "ffn_norm.weight"),
            Self::Gate => ("mlp.gate_proj.weight", "ffn_gate.weight"),
            Self::Up => ("mlp.up_proj.weight", "ffn_up.weight"),
            Self::Down => ("mlp.down_proj.weight", "ffn_down.weight"),
        }
    }
}

impl Role {
    /// The tensor's name in a format.
    pub fn name(self, naming: Naming) -> String {
        let (hf, gguf) = match self {
            Self::Embedding => ("model.embed_tokens.weight", "token_embd.weight"),
            Self::FinalNorm => ("model.norm.weight", "output_norm.weight"),
            Self::Head => ("lm_head.weight", "output.weight"),
            Self::Layer(layer, part) => {
                let (hf, gguf) = part.names();
                return match naming {
                    Naming::HuggingFace => format!("model.layers.{layer}.{hf}"),
                    Naming::Gguf => format!("blk.{layer}.{gguf}"),
                };
            }
        };
        (if naming == Naming::Gguf { gguf } else { hf }).to_owned()
    }

    /// The shape that the configuration demands, outermost first.
    pub fn shape(self, config: &ModelConfig) -> Vec<usize> {
        let g = &config.geometry;
        let Self::Layer(_, part) = self else {
            return if self == Self::FinalNorm { vec![g.hidden] } else { vec![g.vocab, g.hidden] };
        };
        match part {
            Part::AttnNorm | Part::MlpNorm => vec![g.hidden],
            Part::Q => vec![g.q_dim(), g.hidden],
            Part::K | Part::V => vec![g.kv_dim(), g.hidden],
            Part::QBias => vec![g.q_dim()],
            Part::KBias | Part::VBias => vec![g.kv_dim()],
            Part::QNorm | Part::KNorm => vec![g.head_dim],
            Part::Out => vec![g.hidden, g.q_dim()],
            Part::Gate | Part::Up => vec![g.intermediate, g.hidden],
            Part::Down => vec![g.hidden, g.intermediate],
        }
    }
}

/// Every tensor of a model.
pub fn roles(config: &ModelConfig) -> impl Iterator<Item = Role> {
    use Part::*;
    let always = [AttnNorm, Q, K, V, Out, MlpNorm, Gate, Up, Down];
    let bias = if config.qkv_bias { &[QBias, KBias, VBias][..] } else { &[] };
    let norm = if config.qk_norm { &[QNorm, KNorm][..] } else { &[] };
    let layer = move |l| {
        let parts = always.into_iter().chain(bias.iter().copied()).chain(norm.iter().copied());
        parts.map(move |part| Role::Layer(l, part))
    };
    let ends = [Role::Embedding, Role::FinalNorm].into_iter();
    ends.chain((!config.tied_embeddings).then_some(Role::Head))
        .chain((0..config.geometry.layers).flat_map(layer))
}

/// A tensor that some checkpoints carry and no computation needs.
fn harmless(name: &str, naming: Naming, config: &ModelConfig) -> bool {
    match naming {
        // Old exports store RoPE's frequencies as a buffer; they follow from the configuration. Others
        // store the tied head a second time.
        Naming::HuggingFace => {
            name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight")
        }
        // Frequency divisors of Llama 3; the configuration was derived from them.
        Naming::Gguf => name == "rope_freqs.weight",
    }
}

/// Problems that a message names one by one.
const NAMED: usize = 8;

/// Fails unless `tensors` has exactly the model's tensors with exactly their shapes.
pub fn check(tensors: &Tensors, naming: Naming, config: &ModelConfig) -> Result<()> {
    let have = tensors.entries();
    if config.geometry.layers > have.len() {
        let (layers, count) = (config.geometry.layers, have.len());
        let what = format!("{count} tensors are too few for the configuration's {layers} layers");
        return Err(Error::format(tensors.path_of(None), what));
    }
    let (mut problems, mut path, mut found) = (Vec::new(), None, 0);
    for role in roles(config) {
        let name = role.name(naming);
        let wanted = role.shape(config);
        match have.get(&name) {
            None => problems.push(format!("`{name}` {wanted:?} is missing")),
            Some(entry) if entry.shape != wanted => {
                path.get_or_insert(tensors.path_of(Some(entry)));
                problems.push(format!(
                    "`{name}` has shape {:?}, the configuration wants {wanted:?}",
                    entry.shape
                ));
            }
            Some(_) => found += 1,
        }
    }
    if problems.is_empty() && found == have.len() {
        return Ok(());
    }
    let wanted: std::collections::HashSet<String> = roles(config).map(|r| r.name(naming)).collect();
    for (name, entry) in have {
        if !wanted.contains(name) && !harmless(name, naming, config) {
            path.get_or_insert(tensors.path_of(Some(entry)));
            problems.push(format!("`{name}` {:?} is unexpected", entry.shape));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let more = problems.len().saturating_sub(NAMED);
    problems.truncate(NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let path = path.unwrap_or_else(|| tensors.path_of(None));
    Err(Error::format(path, format!("tensors do not fit the configuration: {}{more}", problems.join("; "))))
}
