//! The errors of the libraries. Each names the value, the limit and the way out.

use std::path::{Path, PathBuf};

/// What can go wrong below the command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read, written or mapped.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file's content is not what its format or the model's configuration demands.
    #[error("{path}: {what}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, with value and limit.
        what: String,
    },
    /// A setting, a policy parameter or an argument is out of its range.
    #[error("{key}: {what}")]
    Setting {
        /// The key as the user typed it (`decode.budget`).
        key: String,
        /// What is wrong, with value, limit and way out.
        what: String,
    },
    /// A name that is in no table.
    #[error("unknown {kind} `{name}`{}; known: {known}", suggest(.suggestion))]
    UnknownName {
        /// `evictor`, `summary`, ...
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// The nearest known name, if one is near.
        suggestion: Option<String>,
        /// All known names.
        known: String,
    },
    /// Something the format allows and Oasis does not do.
    #[error("{0}")]
    Unsupported(String),
    /// A request does not fit: memory, positions, rows.
    #[error("{0}")]
    Capacity(String),
    /// The backend failed (driver, launch, library).
    #[error("backend: {0}")]
    Backend(String),
    /// An invariant of the loop broke; a bug in Oasis or in a policy.
    #[error("invariant broken: {0}")]
    Invariant(String),
}

fn suggest(name: &Option<String>) -> String {
    name.as_ref().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default()
}

impl Error {
    /// An I/O error at `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// A file whose content is wrong.
    pub fn format(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::Format { path: path.as_ref().to_owned(), what: what.into() }
    }

    /// A setting that is out of range.
    pub fn setting(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Setting { key: key.into(), what: what.into() }
    }

    /// An unknown name, with the nearest of the known ones as a suggestion.
    pub fn unknown_name<'a>(
        kind: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        Self::UnknownName {
            kind,
            name: name.to_owned(),
            suggestion: nearest(name, known.iter().copied()).map(str::to_owned),
            known: known.join(", "),
        }
    }
}

/// The known name that is nearest to `name`, when it is near enough to be what was meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(name, k), k))
        .min()
        .filter(|(distance, k)| *distance <= 1 + k.len() / 3)
        .map(|(_, k)| k)
}

/// The result type of the libraries.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_met_with_a_suggestion() {
        let e = Error::unknown_name("evictor", "lsr", ["lrs", "lru", "sieve"]);
        assert_eq!(e.to_string(), "unknown evictor `lsr` (did you mean `lrs`?); known: lrs, lru, sieve");
        assert_eq!(nearest("completely-else", ["lrs", "lru"]), None);
    }
}
