//! Names of the Hugging Face hub in its local cache. Nothing is downloaded.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// `path` itself if it exists; else, for `org/name`, the newest snapshot in the local hub cache.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    resolve_in(path, cache_folder().as_deref())
}

/// Where the hub's client keeps its files: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME`, `~/.cache`.
fn cache_folder() -> Option<PathBuf> {
    let folder = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
    folder("HF_HUB_CACHE")
        .or_else(|| Some(folder("HF_HOME")?.join("hub")))
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| Some(folder("HOME")?.join(".cache/huggingface/hub")))
}

/// [`resolve`] with the cache folder given.
pub fn resolve_in(path: &Path, cache: Option<&Path>) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path.to_owned());
    }
    let Some((org, name)) = hub_name(path) else {
        return Err(Error::format(
            path,
            "no such file or folder; wanted a Hugging Face folder, a .gguf file or org/name",
        ));
    };
    let missing = |where_: String| {
        let what =
            format!("no such folder, and {where_}; get it with `huggingface-cli download {org}/{name}`");
        Error::format(path, what)
    };
    let Some(cache) = cache else {
        return Err(missing("no hub cache is known (HF_HOME and HOME are unset)".into()));
    };
    let repo = cache.join(format!("models--{org}--{name}"));
    let head = repo.join("refs/main");
    let revision =
        std::fs::read_to_string(&head).map_err(|_| missing(format!("{} is not there", head.display())))?;
    let snapshot = repo.join("snapshots").join(revision.trim());
    let plain = !revision.trim().is_empty() && revision.trim().bytes().all(|b| b.is_ascii_alphanumeric());
    if plain && snapshot.is_dir() {
        return Ok(snapshot);
    }
    Err(missing(format!("{} names no snapshot", head.display())))
}

/// Splits `org/name`; neither part may lead out of the cache.
fn hub_name(path: &Path) -> Option<(&str, &str)> {
    let (org, name) = path.to_str()?.split_once('/')?;
    let plain = |s: &str| {
        !s.is_empty()
            && !s.starts_with('.')
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    (plain(org) && plain(name)).then_some((org, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_name_is_found_in_the_cache_and_missing_ones_say_where_they_were_sought() {
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--org--small-1.5");
        std::fs::create_dir_all(repo.join("refs")).unwrap();
        std::fs::create_dir_all(repo.join("snapshots/abc123")).unwrap();
        std::fs::write(repo.join("refs/main"), "abc123\n").unwrap();
        let found = resolve_in(Path::new("org/small-1.5"), Some(cache.path())).unwrap();
        assert_eq!(found, repo.join("snapshots/abc123"));
        let e = resolve_in(Path::new("org/other"), Some(cache.path())).unwrap_err().to_string();
        assert!(e.contains("models--org--other") && e.contains("huggingface-cli download org/other"), "{e}");
        std::fs::write(repo.join("refs/main"), "../..").unwrap();
        assert!(resolve_in(Path::new("org/small-1.5"), Some(cache.path())).is_err());
        assert!(resolve_in(Path::new("../org/x"), Some(cache.path())).is_err());
    }
}
