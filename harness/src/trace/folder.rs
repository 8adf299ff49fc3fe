//! The folder of a trace: `trace.json`, `decode.toml`, and a safetensors shard a sequence.

use super::shard::Shard;
use crate::files::write_whole;
use crate::record::CodeRecord;
use crate::run::samples::hex;
use anyhow::{Context, Result, bail};
use oasis_core::geometry::Geometry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// Version of `trace.json`.
pub const SCHEMA_VERSION: u32 = 1;
/// What the folder holds.
pub const HEADER: &str = "trace.json";
/// Settings and policies of a replay that names none: those that were recorded.
pub const DECODE: &str = "decode.toml";

/// Where a trace comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A decode of this program.
    Recorded,
    /// Another program's export.
    Imported,
}

/// The cell that was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// Its label.
    pub cell: String,
    /// Its mode.
    pub mode: String,
    /// Tokens of its blocks; masses are of these.
    pub block: usize,
    /// Its draft source, where it has one.
    pub draft: Option<String>,
}

/// One file of the folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShardHeader {
    /// Its name.
    pub file: String,
    /// Name of the sample.
    pub sample: String,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Steps.
    pub steps: usize,
    /// Rows of all steps, drafts included.
    pub rows: usize,
    /// Bytes.
    pub bytes: u64,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
}

/// `trace.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Where the trace comes from.
    pub origin: Origin,
    /// The model's name.
    pub model: String,
    /// SHA-256 of its weights, in hex; empty where it is not known.
    pub model_digest: String,
    /// Sizes of the model.
    pub geometry: Geometry,
    /// The cell that was recorded; none in an import.
    pub recorded: Option<Recorded>,
    /// Some step has draft rows, so that a predictor that looks ahead can be replayed.
    pub drafts: bool,
    /// The code that wrote the trace.
    pub code: CodeRecord,
    /// The sequences.
    pub shards: Vec<ShardHeader>,
}

/// An opened trace.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    /// What it holds.
    pub header: Header,
}

impl Folder {
    /// Reads the header.
    ///
    /// # Errors
    /// No trace, an unfinished one, or one of another version.
    pub fn open(path: &Path) -> Result<Self> {
        let file = path.join(HEADER);
        if !file.is_file() {
            bail!(
                "{}: no {HEADER}: this is no trace, or its recording did not end; `oasis trace record -c FILE -o {}` \
                 makes one",
                path.display(),
                path.display()
            );
        }
        let text =
            fs::read_to_string(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
        #[derive(Deserialize)]
        struct Versioned {
            schema_version: u32,
        }
        let not_ours = || format!("{}: is not what Oasis wrote", file.display());
        let version = serde_json::from_str::<Versioned>(&text).with_context(not_ours)?.schema_version;
        if version != SCHEMA_VERSION {
            bail!(
                "{}: schema_version is {version}, this program reads {SCHEMA_VERSION}; use the Oasis that wrote it",
                file.display()
            );
        }
        let header: Header = serde_json::from_str(&text).with_context(not_ours)?;
        if header.shards.is_empty() {
            bail!("{}: the trace has no sequence", file.display());
        }
        Ok(Self { path: path.to_owned(), header })
    }

    /// Reads sequence `i`.
    ///
    /// # Errors
    /// The file is not what the header says; names both.
    pub fn shard(&self, i: usize) -> Result<Shard> {
        let entry = &self.header.shards[i];
        let path = self.path.join(&entry.file);
        let shard = Shard::read(&path)?;
        let (tape, g) = (&shard.tape, &self.header.geometry);
        let own = &tape.geometry;
        let sizes = |g: &Geometry| [g.layers, g.heads, g.kv_heads, g.head_dim, g.vocab];
        if sizes(own) != sizes(g) || tape.steps() != entry.steps || tape.prompt.len() != entry.prompt {
            bail!(
                "{}: {} steps after {} tokens of a model of {:?}, and {HEADER} says {} after {} of {:?}",
                path.display(),
                tape.steps(),
                tape.prompt.len(),
                sizes(own),
                entry.steps,
                entry.prompt,
                sizes(g)
            );
        }
        Ok(shard)
    }

    /// Whether the file of sequence `i` is the one that was written.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn intact(&self, i: usize) -> Result<bool> {
        let entry = &self.header.shards[i];
        let path = self.path.join(&entry.file);
        let bytes = fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        Ok(hex(&Sha256::digest(&bytes)) == entry.sha256)
    }
}

/// Makes the folder of a new trace.
///
/// # Errors
/// It holds something already, or it can't be made.
pub fn create(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .with_context(|| format!("--output {}: no folder can be made there", path.display()))?;
    let mut entries = fs::read_dir(path).with_context(|| format!("--output {}", path.display()))?;
    if entries.next().is_some() {
        bail!("--output {}: the folder holds files already; give a new or an empty one", path.display());
    }
    Ok(())
}

/// Writes sequence `i` of a trace.
///
/// # Errors
/// The folder is not writable, the disk is full.
pub fn write_shard(path: &Path, i: usize, shard: &Shard) -> Result<ShardHeader> {
    let file = format!("{i:05}.safetensors");
    let (bytes, sha256) = shard.write(&path.join(&file))?;
    let tape = &shard.tape;
    Ok(ShardHeader {
        file,
        sample: shard.sample.clone(),
        prompt: tape.prompt.len(),
        steps: tape.steps(),
        rows: tape.tokens.len(),
        bytes,
        sha256,
    })
}

/// Writes what makes a folder of shards a trace, the header last.
///
/// # Errors
/// The folder is not writable, the disk is full.
pub fn finish(path: &Path, header: &Header, decode: &str) -> Result<()> {
    write_whole(&path.join(DECODE), decode.as_bytes())?;
    let text = serde_json::to_string_pretty(header)?;
    write_whole(&path.join(HEADER), (text + "\n").as_bytes())
}
