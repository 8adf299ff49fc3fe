//! A model's configuration from GGUF metadata.

use super::config::{check, unsupported};
use super::gguf::Value;
use super::source::Source;
use super::tensors::Tensors;
use crate::geometry::{Geometry, World};
use crate::model::{Family, ModelConfig, RopeScaling};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Typed look-ups in GGUF metadata; a wrong type is an error that names the key.
pub(crate) struct Metadata<'a> {
    pub(crate) source: &'a Source,
    pub(crate) map: &'a BTreeMap<String, Value>,
}

impl<'a> Metadata<'a> {
    pub(crate) fn path(&self) -> &Path {
        self.source.path()
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        let found = self.map.get(key).map_or("missing".to_owned(), |v| match v {
            Value::Array(a) => format!("an array of {}", a.count),
            other => format!("{other:?}"),
        });
        Error::format(self.path(), format!("`{key}` is {found}, not {wanted}"))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>> {
        let n = match self.map.get(key) {
            None => return Ok(None),
            Some(Value::Unsigned(n)) => Some(*n),
            Some(Value::Signed(n)) => u64::try_from(*n).ok(),
            Some(_) => None,
        };
        let n = n.and_then(|n| usize::try_from(n).ok());
        n.map(Some).ok_or_else(|| self.wrong(key, "a count"))
    }

    pub(crate) fn need_count(&self, key: &str) -> Result<usize> {
        self.count(key)?.ok_or_else(|| self.wrong(key, "a count"))
    }

    pub(crate) fn id(&self, key: &str) -> Result<Option<u32>> {
        let id = self.count(key)?.map(|n| u32::try_from(n).map_err(|_| self.wrong(key, "a token id")));
        id.transpose()
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) => Ok(Some(*x)),
            Some(Value::Unsigned(n)) => Ok(Some(*n as f64)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }
}

/// Reads the configuration. `tensors` are the file's own, for what the metadata does not say: rows of the
/// embedding table, a tied head, Llama 3's frequency divisors.
pub(crate) fn config(meta: &Metadata<'_>, tensors: &Tensors) -> Result<ModelConfig> {
    let arch = meta.text("general.architecture")?.unwrap_or("none");
    let family = match arch {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let what = format!("general.architecture = {other}");
            return Err(unsupported(meta.path(), what, "llama, qwen2, qwen3"));
        }
    };
    let key = |name: &str| format!("{arch}.{name}");
    refuse_extras(meta, &key)?;
    let (heads, hidden) =
        (meta.need_count(&key("attention.head_count"))?, meta.need_count(&key("embedding_length"))?);
    let head_dim = match meta.count(&key("attention.key_length"))? {
        Some(n) => n,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(n) = meta.count(&key(name))?.filter(|n| *n != head_dim) {
            return Err(unsupported(
                meta.path(),
                format!("{arch}.{name} = {n}"),
                &format!("{head_dim} (head_dim)"),
            ));
        }
    }
    let embedding = tensors.get("token_embd.weight")?;
    let geometry = Geometry {
        layers: meta.need_count(&key("block_count"))?,
        hidden,
        intermediate: meta.need_count(&key("feed_forward_length"))?,
        heads,
        kv_heads: meta.count(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        vocab: embedding.shape[0],
        max_positions: meta.need_count(&key("context_length"))?,
        world: World::default(),
    };
    let eps_key = key("attention.layer_norm_rms_epsilon");
    let rms_eps = meta.float(&eps_key)?.ok_or_else(|| meta.wrong(&eps_key, "a number"))? as f32;
    let eos = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"].map(|k| meta.id(k));
    let mut config = ModelConfig {
        family,
        geometry,
        rms_eps,
        rope_theta: meta.float(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling: scaling(meta, &key)?,
        qkv_bias: family == Family::Qwen2,
        qk_norm: family == Family::Qwen3,
        tied_embeddings: !tensors.entries().contains_key("output.weight"),
        bos: meta.id("tokenizer.ggml.bos_token_id")?,
        eos: eos.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?,
    };
    config.eos.dedup();
    check(meta.path(), &config)?;
    if tensors.entries().contains_key("rope_freqs.weight") {
        config.rope_scaling = llama3_scaling(meta, tensors, &config)?;
    }
    Ok(config)
}

fn refuse_extras(meta: &Metadata<'_>, key: &impl Fn(&str) -> String) -> Result<()> {
    if let Some(parts) = meta.count("split.count")?.filter(|n| *n > 1) {
        let what = format!("split.count = {parts} (one part of a split file)");
        return Err(unsupported(
            meta.path(),
            what,
            "whole files; join the parts with `llama-gguf-split --merge`",
        ));
    }
    let experts = key("expert_count");
    if let Some(n) = meta.count(&experts)?.filter(|n| *n > 0) {
        return Err(unsupported(meta.path(), format!("{experts} = {n}"), "dense MLPs"));
    }
    let window = key("attention.sliding_window");
    if let Some(n) = meta.count(&window)?.filter(|n| *n > 0) {
        return Err(unsupported(meta.path(), format!("{window} = {n}"), "full attention"));
    }
    Ok(())
}

fn scaling(meta: &Metadata<'_>, key: &impl Fn(&str) -> String) -> Result<RopeScaling> {
    let (kind_key, factor_key) = (key("rope.scaling.type"), key("rope.scaling.factor"));
    let factor = match meta.float(&factor_key)? {
        Some(factor) => Some(factor),
        None => meta.float(&key("rope.scale_linear"))?, // files before 2023-11
    };
    match (meta.text(&kind_key)?, factor) {
        (Some("none"), _) | (None, None) => Ok(RopeScaling::None),
        (Some("linear") | None, Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("linear"), None) => Err(meta.wrong(&factor_key, "a number")),
        (Some(other), _) => Err(unsupported(meta.path(), format!("{kind_key} = {other}"), "none, linear")),
    }
}

/// GGUF keeps Llama 3's scaling as a tensor of divisors, one for each frequency. Its parameters are found
/// again (the largest divisor is `factor`; Meta's other three are the same in every release) and must
/// give back the tensor.
fn llama3_scaling(meta: &Metadata<'_>, tensors: &Tensors, config: &ModelConfig) -> Result<RopeScaling> {
    let divisors = tensors.f32("rope_freqs.weight")?;
    let scaling = RopeScaling::Llama3 {
        factor: divisors.iter().fold(0.0f32, |a, b| a.max(*b)).into(),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    let plain = ModelConfig { rope_scaling: RopeScaling::None, ..config.clone() }.inv_freq();
    let scaled = ModelConfig { rope_scaling: scaling.clone(), ..config.clone() };
    let near = |((p, s), d): ((&f32, &f32), &f32)| (p / s / d - 1.0).abs() < 1e-3;
    let same = divisors.len() == plain.len()
        && check(meta.path(), &scaled).is_ok()
        && plain.iter().zip(&scaled.inv_freq()).zip(&divisors).all(near);
    if same {
        return Ok(scaling);
    }
    let what =
        "rope_freqs.weight with divisors other than Llama 3's (low 1, high 4, original 8192)".to_owned();
    Err(unsupported(meta.path(), what, "Llama 3.1, 3.2 and 3.3; or use the model's Hugging Face folder"))
}
