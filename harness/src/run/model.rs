//! Opening the model of a run.

use crate::fetch;
use anyhow::{Context, Result, bail};
use oasis_core::checkpoint::Checkpoint;
use oasis_core::draft::BundledHead;
use std::path::Path;

/// The bundled model's name.
pub const NANO: &str = "nano";

/// A checkpoint and the draft head that the program carries for it.
pub struct Opened {
    /// As configured.
    pub name: String,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head that `path = "bundled"` means.
    pub head: Option<BundledHead>,
}

/// Opens `nano` (bundled), a model that `oasis fetch` got, a folder, a `.gguf` file or `org/name`.
///
/// # Errors
/// No such file, or whatever is wrong with it.
pub fn open(name: &str) -> Result<Opened> {
    if name == NANO {
        let nano = oasis_datasets::nano();
        let generation = Some(nano.generation_config);
        let checkpoint = Checkpoint::from_parts(NANO, nano.config, nano.weights, nano.tokenizer, generation)?;
        let head = Some(BundledHead { config: nano.eagle3_config, weights: nano.eagle3_weights });
        return Ok(Opened { name: name.to_owned(), checkpoint, head });
    }
    let path = match fetch::resolve(name) {
        Some(path) => path?,
        None => Path::new(name).to_owned(),
    };
    let looks_like_hub = name.split('/').count() == 2 && !name.starts_with(['.', '/']);
    if !path.exists() && !looks_like_hub {
        let known: Vec<&str> = std::iter::once(NANO).chain(fetch::REMOTES.iter().map(|r| r.name)).collect();
        let near = oasis_core::error::nearest(name, known.iter().copied());
        let hint = near.map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default();
        bail!(
            "model.path: `{name}` is no file or folder{hint}; give a Hugging Face folder, a .gguf file, `org/name` in the \
             hub's cache, or one of: {}",
            known.join(", ")
        );
    }
    let checkpoint = Checkpoint::open(&path).context("model.path")?;
    Ok(Opened { name: name.to_owned(), checkpoint, head: None })
}
