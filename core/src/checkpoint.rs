//! Checkpoints: a Hugging Face folder, a GGUF file, or bytes in the binary, as one thing with a
//! configuration, a tokenizer and weights.
//!
//! Opening reads headers only; [`Checkpoint::build`] reads and decodes the weights.

mod build;
pub mod config;
pub mod dtype;
pub mod gguf;
mod gguf_config;
mod hf;
pub mod hub;
pub mod names;
pub mod safetensors;
pub mod source;
pub mod tensors;

use crate::Result;
use crate::model::ModelConfig;
use crate::text::Tokenizer;
use names::Naming;
use source::{Source, hex};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use tensors::Tensors;

pub(crate) use gguf_config::Metadata;

/// An opened checkpoint: everything checked but the values of the weights.
#[derive(Debug)]
pub struct Checkpoint {
    /// File, folder, or the name of embedded bytes.
    pub path: PathBuf,
    /// Configuration.
    pub config: ModelConfig,
    /// Tokenizer and chat template.
    pub tokenizer: Tokenizer,
    /// SHA-256 in hex: of a GGUF file, of `config.json` followed by the weights files in order of name.
    pub digest: String,
    pub(crate) tensors: Tensors,
    pub(crate) naming: Naming,
}

impl Checkpoint {
    /// Opens a Hugging Face folder, a `.gguf` file, or `org/name` in the local hub cache.
    pub fn open(path: &Path) -> Result<Self> {
        let path = hub::resolve(path)?;
        if path.is_dir() { hf::open(&path) } else { Self::from_gguf(Source::open(&path)?) }
    }

    /// A Hugging Face checkpoint whose files are in memory. `name` stands for the path in messages.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]: whatever is missing, unexpected or of the wrong shape, by name.
    pub fn from_parts(
        name: &str,
        config_json: &[u8],
        safetensors: impl Into<Cow<'static, [u8]>>,
        tokenizer_json: &[u8],
        generation_config: Option<&[u8]>,
    ) -> Result<Self> {
        let parts = hf::Parts {
            path: PathBuf::from(name),
            config: config_json.to_vec(),
            weights: vec![Source::memory(Path::new(name).join("model.safetensors"), safetensors)],
            tokenizer: tokenizer_json.to_vec(),
            tokenizer_config: None,
            generation_config: generation_config.map(<[u8]>::to_vec),
            chat_template: None,
        };
        parts.assemble()
    }

    /// A GGUF file, on disk or in memory.
    pub fn from_gguf(source: Source) -> Result<Self> {
        let gguf = gguf::Gguf::parse(&source)?;
        let path = source.path().to_owned();
        let tensors = Tensors { files: vec![source], entries: gguf.entries };
        let source = &tensors.files[0];
        let meta = Metadata { source, map: &gguf.metadata };
        let mut config = gguf_config::config(&meta, &tensors)?;
        names::check(&tensors, Naming::Gguf, &config)?;
        let tokenizer = Tokenizer::from_gguf(&meta, config.geometry.vocab)?;
        tokenizer.fits(&path, &config)?;
        config.bos = tokenizer.bos();
        let mut hash = Default::default();
        source.hash_into(&mut hash)?;
        Ok(Self { path, config, tokenizer, digest: hex(hash), tensors, naming: Naming::Gguf })
    }

    /// The configuration alone, for runs with random weights: a `config.json`, a folder with one, or a
    /// `.gguf` file.
    pub fn config_only(path: &Path) -> Result<ModelConfig> {
        if path.extension().is_some_and(|e| e == "gguf") {
            let source = Source::open(path)?;
            let gguf = gguf::Gguf::parse(&source)?;
            let tensors = Tensors { files: vec![source], entries: gguf.entries };
            return gguf_config::config(
                &Metadata { source: &tensors.files[0], map: &gguf.metadata },
                &tensors,
            );
        }
        let path = hub::resolve(path)?;
        let file = if path.is_dir() { path.join("config.json") } else { path };
        config::parse(&file, &source::read_small(&file, hf::MAX_JSON)?)
    }

    /// The weights as they are stored.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }
}
