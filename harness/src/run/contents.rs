//! What files hold that are part of a fingerprint beside the model's: a draft head's weights, another crate's program.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// SHA-256 of files and folders; each is read once.
#[derive(Debug, Default)]
pub struct Contents(Mutex<BTreeMap<PathBuf, String>>);

impl Contents {
    /// The hash of a file, or of a folder's files with their names. None where nothing is there: who needs it says so.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn digest(&self, path: &Path) -> Result<Option<String>> {
        if !path.exists() {
            return Ok(None);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(digest) = known.get(path) {
            return Ok(Some(digest.clone()));
        }
        let digest = hash(path).with_context(|| format!("{}: can't be read", path.display()))?;
        known.insert(path.to_owned(), digest.clone());
        Ok(Some(digest))
    }

    /// The hash of the program that runs.
    ///
    /// # Errors
    /// Its file is not known or can't be read.
    pub fn program(&self) -> Result<String> {
        // On Linux this is the file that was started, also where a build has put another in its place.
        let started = PathBuf::from("/proc/self/exe");
        let path = if started.exists() { started } else { std::env::current_exe()? };
        self.digest(&path)?.with_context(|| format!("{}: the program's own file is gone", path.display()))
    }
}

fn hash(path: &Path) -> io::Result<String> {
    let mut sha = Sha256::new();
    if path.is_dir() {
        let mut files: Vec<PathBuf> =
            fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<io::Result<_>>()?;
        files.retain(|f| f.is_file());
        files.sort();
        for file in &files {
            sha.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            sha.update(fs::metadata(file)?.len().to_le_bytes());
            io::copy(&mut File::open(file)?, &mut sha)?;
        }
    } else {
        io::copy(&mut File::open(path)?, &mut sha)?;
    }
    Ok(super::samples::hex(&sha.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_or_name_is_another_hash_and_a_missing_one_none() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &Path| Contents::default().digest(path).unwrap();
        let file = dir.path().join("head.bin");
        assert_eq!(of(&file), None);
        fs::write(&file, "one").unwrap();
        let (one, folder) = (of(&file), of(dir.path()));
        fs::write(&file, "two").unwrap();
        assert!(of(&file).is_some() && of(&file) != one && of(dir.path()) != folder);
        fs::write(&file, "one").unwrap();
        assert_eq!((of(&file), of(dir.path())), (one, folder.clone()));
        fs::rename(&file, dir.path().join("other.bin")).unwrap();
        assert_ne!(of(dir.path()), folder);
    }

    #[test]
    fn the_program_is_read_once() {
        let contents = Contents::default();
        let program = contents.program().unwrap();
        assert_eq!((program.len(), contents.0.lock().unwrap().len()), (64, 1));
        assert_eq!(contents.program().unwrap(), program);
    }
}
