//! `config.json` of a Hugging Face folder, and the checks that every configuration passes.

use crate::geometry::{Geometry, World};
use crate::model::{Family, ModelConfig, RopeScaling};
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The keys of `config.json` that change what a model computes. Unknown keys are left alone: the
/// format has hundreds that only steer training or other libraries.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Option<Vec<String>>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    partial_rotary_factor: Option<f64>,
    quantization_config: Option<Value>,
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
}

#[derive(Deserialize)]
struct Rope {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

/// Names of a family as `model_type` and as `architectures` write them.
const FAMILIES: [(Family, &str, &str); 3] = [
    (Family::Llama, "llama", "LlamaForCausalLM"),
    (Family::Qwen2, "qwen2", "Qwen2ForCausalLM"),
    (Family::Qwen3, "qwen3", "Qwen3ForCausalLM"),
];

/// Reads `config.json`; `path` is for messages.
pub fn parse(path: &Path, json: &[u8]) -> Result<ModelConfig> {
    let raw: Raw = serde_json::from_slice(json).map_err(|e| Error::format(path, e.to_string()))?;
    let family = family(path, &raw)?;
    refuse_extras(path, &raw, family)?;
    let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    let heads = raw.num_attention_heads;
    let kv_heads = raw.num_key_value_heads.unwrap_or(heads);
    let geometry = Geometry {
        layers: raw.num_hidden_layers,
        hidden: raw.hidden_size,
        intermediate: raw.intermediate_size,
        heads,
        kv_heads,
        head_dim: raw.head_dim.unwrap_or_else(|| raw.hidden_size.checked_div(heads).unwrap_or(0)),
        vocab: raw.vocab_size,
        max_positions: raw.max_position_embeddings,
        world: World::default(),
    };
    let config = ModelConfig {
        family,
        geometry,
        rms_eps: raw.rms_norm_eps.unwrap_or(1e-6) as f32,
        rope_theta: rope.and_then(|r| r.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0),
        rope_scaling: rope.map_or(Ok(RopeScaling::None), |r| scaling(path, r, &raw))?,
        qkv_bias: family == Family::Qwen2,
        qk_norm: family == Family::Qwen3,
        tied_embeddings: raw.tie_word_embeddings.unwrap_or(false),
        bos: ids(path, "bos_token_id", raw.bos_token_id.as_ref())?.first().copied(),
        eos: ids(path, "eos_token_id", raw.eos_token_id.as_ref())?,
    };
    check(path, &config)?;
    Ok(config)
}

fn family(path: &Path, raw: &Raw) -> Result<Family> {
    let architectures = raw.architectures.as_deref().unwrap_or_default();
    let known = FAMILIES.iter().find(|(_, kind, class)| match &raw.model_type {
        Some(name) => name == kind && (architectures.is_empty() || architectures.iter().any(|a| a == class)),
        None => architectures.iter().any(|a| a == class),
    });
    known.map(|(family, ..)| *family).ok_or_else(|| {
        let kind = raw.model_type.as_deref().unwrap_or("none");
        unsupported(
            path,
            format!("model_type `{kind}`, architectures {architectures:?}"),
            "llama (LlamaForCausalLM), qwen2 (Qwen2ForCausalLM), qwen3 (Qwen3ForCausalLM)",
        )
    })
}

pub(crate) fn unsupported(path: &Path, what: String, known: &str) -> Error {
    Error::Unsupported(format!("{}: {what} is not supported; known: {known}", path.display()))
}

/// Settings that the format allows in these families and the loop does not compute.
fn refuse_extras(path: &Path, raw: &Raw, family: Family) -> Result<()> {
    let refuse =
        |key: &str, found: String, known: &str| Err(unsupported(path, format!("{key} = {found}"), known));
    if let Some(act) = raw.hidden_act.as_deref().filter(|a| *a != "silu") {
        return refuse("hidden_act", act.into(), "silu");
    }
    // Qwen2 always has biases on Q, K and V and never one on the output, whatever the key says.
    if raw.attention_bias == Some(true) && family != Family::Qwen2 {
        return refuse("attention_bias", "true".into(), "false (only qwen2 has biases, on Q, K and V)");
    }
    if raw.mlp_bias == Some(true) {
        return refuse("mlp_bias", "true".into(), "false");
    }
    if raw.use_sliding_window == Some(true) {
        return refuse("use_sliding_window", "true".into(), "false");
    }
    if let Some(kind) = raw.layer_types.iter().flatten().find(|k| *k != "full_attention") {
        return refuse("layer_types", format!("[.., {kind}, ..]"), "full_attention in every layer");
    }
    if let Some(part) = raw.partial_rotary_factor.filter(|p| *p != 1.0) {
        return refuse("partial_rotary_factor", part.to_string(), "1");
    }
    if let Some(q) = raw.quantization_config.as_ref().filter(|q| !q.is_null()) {
        let method = q.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return refuse("quantization_config", method.into(), "unquantised bf16, f16, f32, or a GGUF file");
    }
    Ok(())
}

fn scaling(path: &Path, rope: &Rope, raw: &Raw) -> Result<RopeScaling> {
    let need = |key: &str, value: Option<f64>| {
        value.ok_or_else(|| Error::format(path, format!("rope_scaling has no `{key}`")))
    };
    match rope.rope_type.as_deref().or(rope.old_type.as_deref()).unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: need("factor", rope.factor)? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: need("factor", rope.factor)?,
            low_freq_factor: need("low_freq_factor", rope.low_freq_factor)?,
            high_freq_factor: need("high_freq_factor", rope.high_freq_factor)?,
            original_max_positions: rope
                .original_max_position_embeddings
                .unwrap_or(raw.max_position_embeddings),
        }),
        other => Err(unsupported(path, format!("rope_scaling of type `{other}`"), "default, linear, llama3")),
    }
}

/// A token id, a list of them, or null.
pub(super) fn ids(path: &Path, key: &str, value: Option<&Value>) -> Result<Vec<u32>> {
    let bad = || Error::format(path, format!("`{key}` is neither a token id nor a list of them"));
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(bad);
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Sizes are possible and fit together; anything above these limits is a damaged file.
pub(super) fn check(path: &Path, config: &ModelConfig) -> Result<()> {
    let g = &config.geometry;
    let sizes = [
        ("hidden_size", g.hidden, 1 << 20),
        ("intermediate_size", g.intermediate, 1 << 22),
        ("num_hidden_layers", g.layers, 1 << 12),
        ("num_attention_heads", g.heads, 1 << 14),
        ("num_key_value_heads", g.kv_heads, 1 << 14),
        ("head_dim", g.head_dim, 1 << 12),
        ("vocab_size", g.vocab, 1 << 26),
        ("max_position_embeddings", g.max_positions, 1 << 31),
    ];
    if let Some((key, value, limit)) = sizes.into_iter().find(|(_, v, limit)| !(1..=*limit).contains(v)) {
        return Err(Error::format(path, format!("{key} is {value}; 1 to {limit} are possible")));
    }
    if !g.heads.is_multiple_of(g.kv_heads) {
        let (heads, kv) = (g.heads, g.kv_heads);
        return Err(Error::format(
            path,
            format!("{heads} query heads are no multiple of {kv} key-value heads"),
        ));
    }
    if !g.head_dim.is_multiple_of(2) {
        return Err(Error::format(path, format!("head_dim is {}; RoPE needs an even one", g.head_dim)));
    }
    let positive = |v: f64| v.is_finite() && v > 0.0;
    if !positive(config.rms_eps.into()) || !positive(config.rope_theta) {
        let (eps, theta) = (config.rms_eps, config.rope_theta);
        return Err(Error::format(
            path,
            format!("rms_norm_eps {eps} and rope_theta {theta} must be above 0"),
        ));
    }
    let good = match config.rope_scaling {
        RopeScaling::None => true,
        RopeScaling::Linear { factor } => positive(factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            positive(factor)
                && positive(low_freq_factor)
                && positive(high_freq_factor - low_freq_factor)
                && original_max_positions > 0
        }
    };
    if !good {
        let what = format!(
            "{:?}: factors must be above 0, high_freq_factor above low_freq_factor",
            config.rope_scaling
        );
        return Err(Error::format(path, what));
    }
    ids_in_vocab(path, config)
}

fn ids_in_vocab(path: &Path, config: &ModelConfig) -> Result<()> {
    let rows = config.geometry.vocab;
    match config.eos.iter().chain(&config.bos).find(|id| **id as usize >= rows) {
        Some(id) => Err(Error::format(path, format!("token id {id} (bos or eos), vocab_size is {rows}"))),
        None => Ok(()),
    }
}
