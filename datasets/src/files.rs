//! Data files that the user gives: read, hashed, and asked for by address where they are missing.

use crate::task::hex;
use oasis_core::{Error, Result};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A file that a task has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// Where it lies.
    pub path: PathBuf,
    /// SHA-256 of its bytes, in hexadecimal.
    pub sha256: String,
    /// Its length.
    pub bytes: u64,
    /// Whether the hash is that of the published file; `None` if that one is not known.
    pub published: Option<bool>,
}

/// Where a published file comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The file's name and what it is.
    pub what: &'static str,
    /// Its address.
    pub url: &'static str,
    /// SHA-256 of the published file, where known.
    pub sha256: Option<&'static str>,
}

impl Origin {
    /// How to get the file, as the end of an error.
    fn advice(&self, key: &str) -> String {
        let hash = self.sha256.map(|hash| format!(" (SHA-256 {hash})")).unwrap_or_default();
        format!("get {}{hash} from {} and give its path as `{key}`", self.what, self.url)
    }
}

/// The text of the file at `path`, the value of the setting `task.key`.
///
/// # Errors
/// No path, a file that can't be read, with where to get it; a hash that is not `expected`; a text that is not UTF-8.
pub(crate) fn read(
    (task, key): (&str, &str),
    path: Option<&Path>,
    origin: &Origin,
    expected: Option<&str>,
) -> Result<(String, DataFile)> {
    let missing =
        |what: String| Error::setting(format!("{task}.{key}"), format!("{what}; {}", origin.advice(key)));
    let path = path.ok_or_else(|| missing("no file is given".to_owned()))?;
    let bytes =
        std::fs::read(path).map_err(|e| missing(format!("{} can't be read ({e})", path.display())))?;
    let sha256 = hex(&Sha256::digest(&bytes));
    if let Some(expected) = expected.filter(|expected| !expected.eq_ignore_ascii_case(&sha256)) {
        let what =
            format!("its SHA-256 is {sha256}, `{task}.sha256` demands {expected}: this is another file");
        return Err(Error::format(path, what));
    }
    let file = DataFile {
        path: path.to_owned(),
        bytes: bytes.len() as u64,
        published: origin.sha256.map(|published| published == sha256),
        sha256,
    };
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::format(path, format!("byte {at} is not UTF-8; {}", origin.advice(key)))
    })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    Ok((text, file))
}

/// One hash for all files of a task: that of the file if there is one, else of the list of hashes.
pub(crate) fn digest(files: &[DataFile]) -> Option<String> {
    match files {
        [] => None,
        [one] => Some(one.sha256.clone()),
        many => {
            let list: Vec<&str> = many.iter().map(|file| file.sha256.as_str()).collect();
            Some(hex(&Sha256::digest(list.join("\n"))))
        }
    }
}

/// The records of a JSON Lines file; empty lines are skipped.
///
/// # Errors
/// A line that is no such record, by number; a file without records.
pub(crate) fn jsonl<T: DeserializeOwned>(path: &Path, text: &str) -> Result<Vec<T>> {
    let records: Vec<T> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|e| Error::format(path, format!("line {}: {e}", i + 1)))
        })
        .collect::<Result<_>>()?;
    if records.is_empty() {
        return Err(Error::format(
            path,
            "holds no record; give the file as published, one JSON object a line",
        ));
    }
    Ok(records)
}

/// A whole JSON file.
pub(crate) fn json<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::format(path, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin {
        what: "test.jsonl",
        url: "https://example.org/x",
        sha256: Some("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
    };

    #[test]
    fn a_missing_file_says_where_to_get_it() {
        let none = read(("gsm8k", "data"), None, &ORIGIN, None).unwrap_err().to_string();
        let gone =
            read(("gsm8k", "data"), Some(Path::new("/no/such")), &ORIGIN, None).unwrap_err().to_string();
        for error in [&none, &gone] {
            for part in ["gsm8k.data", "https://example.org/x", "2cf24dba"] {
                assert!(error.contains(part), "{error}");
            }
        }
        assert!(gone.contains("/no/such"));
    }

    #[test]
    fn hashes_are_recorded_and_compared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, "hello").unwrap();
        let (text, file) = read(("t", "data"), Some(&path), &ORIGIN, None).unwrap();
        assert_eq!((text.as_str(), file.published, file.bytes), ("hello", Some(true), 5));
        let other = read(("t", "data"), Some(&path), &ORIGIN, Some("00")).unwrap_err().to_string();
        assert!(other.contains("2cf24dba") && other.contains("t.sha256"), "{other}");
        assert_eq!(digest(std::slice::from_ref(&file)).as_deref(), ORIGIN.sha256);
        let two = digest(&[file.clone(), file]).unwrap();
        assert!(two.len() == 64 && Some(two.as_str()) != ORIGIN.sha256);
        std::fs::write(&path, b"ab\xff").unwrap();
        let error = read(("t", "data"), Some(&path), &ORIGIN, None).unwrap_err().to_string();
        assert!(error.contains("byte 2 is not UTF-8"), "{error}");
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        let path = Path::new("x.jsonl");
        assert_eq!(jsonl::<u32>(path, "1\n\n2\n").unwrap(), [1, 2]);
        let error = jsonl::<u32>(path, "1\n\n{}\n").unwrap_err().to_string();
        assert!(error.contains("x.jsonl") && error.contains("line 3"), "{error}");
        assert!(jsonl::<u32>(path, "\n").unwrap_err().to_string().contains("no record"));
        assert!(json::<u32>(path, "x").is_err());
    }
}
