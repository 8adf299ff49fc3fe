//! Where the two files of a head are.

use super::Head;
use oasis_core::draft::BundledHead;
use oasis_core::model::Model;
use oasis_core::ops::Backend;
use oasis_core::{Error, Result};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Config and weights in a folder, by name; the first pair that is there counts. A head may lie in the folder
/// of its target, whose own files have the usual names.
const PAIRS: [(&str, &str); 2] =
    [("eagle3_config.json", "eagle3.safetensors"), ("config.json", "model.safetensors")];

/// Largest config file.
const MAX_CONFIG: u64 = 1 << 20;

/// The content of a head's files, with names for messages.
pub struct Files {
    config: (PathBuf, Cow<'static, [u8]>),
    weights: (PathBuf, Cow<'static, [u8]>),
}

impl Files {
    /// The head that the program carries.
    pub fn bundled(head: BundledHead) -> Self {
        Self {
            config: ("bundled eagle3_config.json".into(), head.config.into()),
            weights: ("bundled eagle3.safetensors".into(), head.weights.into()),
        }
    }

    /// A folder, or a safetensors file with its config beside it.
    pub fn open(path: &Path) -> Result<Self> {
        let (config, weights) = if path.is_dir() { in_folder(path)? } else { beside(path)? };
        let size = std::fs::metadata(&config).map_err(|e| Error::io(&config, e))?.len();
        if size > MAX_CONFIG {
            let what = format!("{size} bytes; the config of a draft head has at most {MAX_CONFIG}");
            return Err(Error::format(&config, what));
        }
        let read = |path: PathBuf| match std::fs::read(&path) {
            Ok(bytes) => Ok((path, Cow::Owned(bytes))),
            Err(error) => Err(Error::io(path, error)),
        };
        Ok(Self { config: read(config)?, weights: read(weights)? })
    }

    /// The head on a backend.
    pub fn load<B: Backend>(&self, backend: &mut B, model: &Model<B>) -> Result<Head<B>> {
        let config = (self.config.0.as_path(), self.config.1.as_ref());
        let weights = (self.weights.0.as_path(), self.weights.1.as_ref());
        Head::load(config, weights, backend, model)
    }
}

fn in_folder(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let pairs = PAIRS.map(|(config, weights)| (folder.join(config), folder.join(weights)));
    pairs.into_iter().find(|(config, weights)| config.is_file() && weights.is_file()).ok_or_else(|| {
        let names = PAIRS.map(|(config, weights)| format!("{config} with {weights}")).join(", or ");
        Error::format(folder, format!("holds no EAGLE-3 head; looked for {names}"))
    })
}

fn beside(weights: &Path) -> Result<(PathBuf, PathBuf)> {
    if !weights.is_file() {
        let what = "there is no such file or folder; eagle3.path is the folder or safetensors file of a head";
        return Err(Error::format(weights, what));
    }
    let stem = weights.file_stem().unwrap_or_default().to_string_lossy();
    let names = [format!("{stem}_config.json"), "config.json".to_owned()];
    let config = names.iter().map(|name| weights.with_file_name(name)).find(|config| config.is_file());
    let config = config.ok_or_else(|| {
        Error::format(weights, format!("has no config beside it; looked for {}", names.join(" and ")))
    })?;
    Ok((config, weights.to_owned()))
}
