//! Text to tokens and back, and the chat template: all three come from the checkpoint.

mod chat;
mod gguf;

use crate::checkpoint::source::hex;
use crate::model::ModelConfig;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Tokenizer, special tokens and chat template of a model.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The token that goes in front of a text, if this checkpoint wants one there.
    bos: Option<u32>,
    specials: Specials,
    template: Option<String>,
    vocab: usize,
    largest_id: u32,
    digest: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens, bos {:?}, {})", self.vocab, self.bos, &self.digest[..12])
    }
}

/// Special tokens as texts, which chat templates and `tokenizer_config.json` use.
#[derive(Debug, Clone, Default)]
struct Specials {
    bos: Option<String>,
    eos: Option<String>,
    unk: Option<String>,
    pad: Option<String>,
}

/// The parts of a Hugging Face folder that make a tokenizer.
pub(crate) struct HfParts<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) tokenizer: &'a [u8],
    pub(crate) tokenizer_config: Option<&'a [u8]>,
    pub(crate) chat_template: Option<&'a [u8]>,
    /// `bos_token_id` of `config.json`.
    pub(crate) bos: Option<u32>,
}

#[derive(Deserialize, Default)]
struct RawConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    unk_token: Option<Value>,
    pad_token: Option<Value>,
    chat_template: Option<Value>,
}

impl Tokenizer {
    /// Tokens of `text`. Special tokens that are written out in it (`<|im_end|>`) become their ids.
    ///
    /// `with_bos` puts the model's BOS in front if the checkpoint says that texts start with one, and the
    /// text does not start with one already (chat templates may write it).
    pub fn encode(&self, text: &str, with_bos: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| failed("encode", &e))?;
        let ids = encoding.get_ids();
        let bos = self.bos.filter(|bos| with_bos && ids.first() != Some(bos));
        Ok(bos.into_iter().chain(ids.iter().copied()).collect())
    }

    /// Text of tokens, without special tokens. Ids that the tokenizer does not know (spare rows of the
    /// embedding table) have no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|e| failed("decode", &e))
    }

    /// Tokens it knows, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// Id of a token, written as in the vocabulary.
    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    /// The token of an id, written as in the vocabulary.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The token that goes in front of a text; none if this checkpoint wants none.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends an answer, if the tokenizer names one.
    pub fn eos(&self) -> Option<u32> {
        self.token_id(self.specials.eos.as_deref()?)
    }

    /// The checkpoint came with a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// SHA-256 in hex of vocabulary, chat template and BOS rule: part of every fingerprint.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Fails if it knows a token that the model has no embedding for.
    pub(crate) fn fits(&self, path: &Path, config: &ModelConfig) -> Result<()> {
        let (id, rows) = (self.largest_id, config.geometry.vocab);
        if (id as usize) < rows {
            return Ok(());
        }
        Err(Error::format(path, format!("token id {id}, but the model's embedding table has {rows} rows")))
    }

    /// From the bytes of a `tokenizer.json` and, if there is one, a `tokenizer_config.json`.
    pub fn from_json(tokenizer: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self> {
        let folder = Path::new("");
        Self::from_hf(&HfParts { folder, tokenizer, tokenizer_config, chat_template: None, bos: None })
    }

    /// From `tokenizer.json` and, if they are there, `tokenizer_config.json` and `chat_template.jinja`.
    pub(crate) fn from_hf(parts: &HfParts<'_>) -> Result<Self> {
        let file = parts.folder.join("tokenizer.json");
        let inner = read(&file, parts.tokenizer)?;
        let config_file = parts.folder.join("tokenizer_config.json");
        let raw: RawConfig = match parts.tokenizer_config {
            Some(json) => {
                serde_json::from_slice(json).map_err(|e| Error::format(&config_file, e.to_string()))?
            }
            None => RawConfig::default(),
        };
        let mut specials = Specials {
            bos: content(raw.bos_token.as_ref()),
            eos: content(raw.eos_token.as_ref()),
            unk: content(raw.unk_token.as_ref()),
            pad: content(raw.pad_token.as_ref()),
        };
        let named = specials.bos.as_deref().and_then(|t| inner.token_to_id(t)).or(parts.bos);
        let bos = match raw.add_bos_token {
            Some(true) if named.is_none() => {
                return Err(Error::format(&config_file, "add_bos_token is true, but no BOS token is named"));
            }
            Some(true) => named,
            Some(false) => None,
            None => first_added(&inner).filter(|id| named.is_none_or(|n| n == *id)),
        };
        if specials.bos.is_none() {
            specials.bos = named.and_then(|id| inner.id_to_token(id));
        }
        let template = match parts.chat_template {
            Some(bytes) => Some(
                String::from_utf8(bytes.to_vec())
                    .map_err(|_| Error::format(parts.folder.join("chat_template.jinja"), "is no UTF-8"))?,
            ),
            None => default_template(raw.chat_template.as_ref()),
        };
        let mut hash = Sha256::new();
        hash.update(parts.tokenizer);
        Ok(Self::finish(inner, bos, specials, template, hash))
    }

    fn finish(
        inner: tokenizers::Tokenizer,
        bos: Option<u32>,
        specials: Specials,
        template: Option<String>,
        mut hash: Sha256,
    ) -> Self {
        let vocab = inner.get_vocab(true);
        let largest_id = vocab.values().copied().max().unwrap_or(0);
        hash.update([0]);
        hash.update(template.as_deref().unwrap_or_default());
        hash.update([0]);
        hash.update(format!("{bos:?}"));
        Self { vocab: vocab.len(), inner, bos, specials, template, largest_id, digest: hex(hash) }
    }
}

#[derive(Deserialize)]
struct Probe {
    decoder: Option<Value>,
}

/// Reads a `tokenizer.json`.
fn read(file: &Path, json: &[u8]) -> Result<tokenizers::Tokenizer> {
    let bad = |e: &dyn std::fmt::Display| Error::format(file, format!("is no tokenizer: {e}"));
    // The crate panics where `decoder` is no JSON value (an `expect` in its deserialiser): look at it first.
    let Probe { decoder } = serde_json::from_slice(json).map_err(|e| bad(&e))?;
    drop(decoder);
    let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| bad(&e))?;
    // The file may ask for padding to a fixed length and for truncation: both would change prompts behind
    // the user's back.
    inner.with_padding(None).with_truncation(None).map_err(|e| bad(&e))?;
    Ok(inner)
}

fn failed(what: &str, e: &dyn std::fmt::Display) -> Error {
    Error::Unsupported(format!("the tokenizer cannot {what} this: {e}"))
}

/// The token that the post-processor puts in front of a text.
fn first_added(inner: &tokenizers::Tokenizer) -> Option<u32> {
    let with = inner.encode_fast("a", true).ok()?;
    let without = inner.encode_fast("a", false).ok()?;
    let (with, without) = (with.get_ids(), without.get_ids());
    let first = *with.first()?;
    (with.len() > without.len() && with[1..].starts_with(without)).then_some(first)
}

/// A special token: a text, or an object with its text as `content`.
fn content(token: Option<&Value>) -> Option<String> {
    let token = token?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// A template, or the one called `default` of a list of named ones.
fn default_template(value: Option<&Value>) -> Option<String> {
    let value = value?;
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let named =
        value.as_array()?.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"))?;
    named.get("template")?.as_str().map(str::to_owned)
}
