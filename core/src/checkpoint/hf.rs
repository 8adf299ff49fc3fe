//! A Hugging Face folder.

use super::config::{ids, parse};
use super::names::{self, Naming};
use super::source::{Source, hex, read_small};
use super::tensors::{Entry, Tensors};
use super::{Checkpoint, safetensors};
use crate::text::{HfParts, Tokenizer};
use crate::{Error, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Largest `config.json`, `tokenizer.json` and the like.
pub(super) const MAX_JSON: u64 = 256 << 20;

/// The files of a folder, wherever they came from.
pub(super) struct Parts {
    pub(super) path: PathBuf,
    pub(super) config: Vec<u8>,
    pub(super) weights: Vec<Source>,
    pub(super) tokenizer: Vec<u8>,
    pub(super) tokenizer_config: Option<Vec<u8>>,
    pub(super) generation_config: Option<Vec<u8>>,
    pub(super) chat_template: Option<Vec<u8>>,
}

/// Opens a folder.
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let need = |name: &str, way_out: &str| {
        let file = folder.join(name);
        if file.exists() {
            return read_small(&file, MAX_JSON);
        }
        Err(Error::format(file, format!("is missing: {way_out}")))
    };
    let optional = |name: &str| {
        let file = folder.join(name);
        file.exists().then(|| read_small(&file, MAX_JSON)).transpose()
    };
    let config = need("config.json", "a model folder has config.json, *.safetensors and tokenizer.json")?;
    let (weights, index) = weights(folder)?;
    let tokenizer = need(
        "tokenizer.json",
        "only fast tokenizers are read; make one with transformers' \
         `AutoTokenizer.from_pretrained(..).save_pretrained(..)`, or use a GGUF file",
    )?;
    let parts = Parts {
        path: folder.to_owned(),
        config,
        weights,
        tokenizer,
        tokenizer_config: optional("tokenizer_config.json")?,
        generation_config: optional("generation_config.json")?,
        chat_template: optional("chat_template.jinja")?,
    };
    let checkpoint = parts.assemble()?;
    if let Some(index) = index {
        index.check(&checkpoint.tensors)?;
    }
    Ok(checkpoint)
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights files: `model.safetensors`, or the shards that the index names.
fn weights(folder: &Path) -> Result<(Vec<Source>, Option<Index>)> {
    let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
    if single.exists() {
        return Ok((vec![Source::open(&single)?], None));
    }
    if !index.exists() {
        let pickle =
            folder.join("pytorch_model.bin").exists() || folder.join("pytorch_model.bin.index.json").exists();
        let hint = if pickle { "; pytorch_model.bin is not read, convert it to safetensors" } else { "" };
        return Err(Error::format(folder, format!("has neither {SINGLE} nor {INDEX}{hint}")));
    }
    let json = read_small(&index, MAX_JSON)?;
    let raw: RawIndex = serde_json::from_slice(&json).map_err(|e| Error::format(&index, e.to_string()))?;
    let names: BTreeSet<&String> = raw.weight_map.values().collect();
    if let Some(name) = names.iter().find(|n| n.contains(['/', '\\']) || !n.ends_with(".safetensors")) {
        return Err(Error::format(
            &index,
            format!("`{name}` is no name of a safetensors file in this folder"),
        ));
    }
    if names.is_empty() {
        return Err(Error::format(&index, "weight_map is empty"));
    }
    let shards = names.iter().map(|name| Source::open(&folder.join(name))).collect::<Result<_>>()?;
    Ok((shards, Some(Index { path: index, weight_map: raw.weight_map })))
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

struct Index {
    path: PathBuf,
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Every tensor lies in the shard that the index says, and no other is there.
    fn check(&self, tensors: &Tensors) -> Result<()> {
        let bad = |what: String| Err(Error::format(&self.path, what));
        for (name, shard) in &self.weight_map {
            match tensors.entries.get(name) {
                None => return bad(format!("tensor `{name}` is not in {shard}")),
                Some(e) if tensors.files[e.file].path().file_name().is_none_or(|f| f != shard.as_str()) => {
                    return bad(format!("tensor `{name}` is in another file than {shard}"));
                }
                Some(_) => {}
            }
        }
        match tensors.entries.keys().find(|name| !self.weight_map.contains_key(*name)) {
            Some(name) => bad(format!("tensor `{name}` of a shard is not in weight_map")),
            None => Ok(()),
        }
    }
}

impl Parts {
    /// Reads the headers and checks that everything fits together.
    pub(super) fn assemble(self) -> Result<Checkpoint> {
        let mut config = parse(&self.path.join("config.json"), &self.config)?;
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for (file, source) in self.weights.iter().enumerate() {
            for (name, entry) in safetensors::entries(source, file)? {
                if entries.insert(name.clone(), entry).is_some() {
                    let what = format!("tensor `{name}` is in an earlier shard too");
                    return Err(Error::format(source.path(), what));
                }
            }
        }
        let tensors = Tensors { files: self.weights, entries };
        names::check(&tensors, Naming::HuggingFace, &config)?;
        if let Some(json) = &self.generation_config {
            let file = self.path.join("generation_config.json");
            let raw: Generation =
                serde_json::from_slice(json).map_err(|e| Error::format(&file, e.to_string()))?;
            let eos = ids(&file, "eos_token_id", raw.eos_token_id.as_ref())?;
            if !eos.is_empty() {
                config.eos = eos;
            }
        }
        let tokenizer = Tokenizer::from_hf(&HfParts {
            folder: &self.path,
            tokenizer: &self.tokenizer,
            tokenizer_config: self.tokenizer_config.as_deref(),
            chat_template: self.chat_template.as_deref(),
            bos: config.bos,
        })?;
        tokenizer.fits(&self.path.join("tokenizer.json"), &config)?;
        if config.eos.is_empty() {
            config.eos.extend(tokenizer.eos());
        }
        config.bos = tokenizer.bos();
        super::config::check(&self.path.join("generation_config.json"), &config)?;
        let mut hash = Sha256::new();
        hash.update(&self.config);
        for source in &tensors.files {
            source.hash_into(&mut hash)?;
        }
        Ok(Checkpoint {
            path: self.path,
            config,
            tokenizer,
            digest: hex(hash),
            tensors,
            naming: Naming::HuggingFace,
        })
    }
}

#[derive(Deserialize)]
struct Generation {
    eos_token_id: Option<serde_json::Value>,
}
