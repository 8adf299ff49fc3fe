//! Settings that data sets have in common.

use crate::{
    files::{self, DataFile, Origin},
    prompt::{MAX_NEW_TOKENS, TEMPLATE, Template, TooLong},
};
use oasis_core::{
    Error, Result,
    error::nearest,
    registry::{Param, Params},
};
use serde::{Deserialize, de::DeserializeOwned};
use std::path::PathBuf;

/// Path of a task's file.
pub(crate) const DATA: Param = Param {
    name: "data",
    about: "path of the published file",
    default: "none; an error says where to get it",
};
/// Hash that the file must have.
pub(crate) const SHA256: Param = Param {
    name: "sha256",
    about: "SHA-256 that `data` must have, in hexadecimal",
    default: "any; it is recorded",
};
/// What becomes of long prompts.
pub(crate) const TOO_LONG: Param = Param {
    name: "too_long",
    about: "what becomes of a prompt that is longer than the length: `refuse`, or `middle`: cut tokens out there",
    default: "\"refuse\"; \"middle\" for LongBench and InfiniteBench, as published",
};

/// Parameters of every data set.
pub(crate) const COMMON: [Param; 5] = [DATA, SHA256, TEMPLATE, MAX_NEW_TOKENS, TOO_LONG];

/// [`COMMON`] and `own`; `M` is five more than `N`.
pub(crate) const fn with<const N: usize, const M: usize>(own: [Param; N]) -> [Param; M] {
    assert!(M == N + COMMON.len(), "M is five more than N");
    let mut out = [COMMON[0]; M];
    let mut i = 0;
    while i < M {
        out[i] = if i < COMMON.len() { COMMON[i] } else { own[i - COMMON.len()] };
        i += 1;
    }
    out
}

/// Values of [`COMMON`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Common {
    pub data: Option<PathBuf>,
    pub sha256: Option<String>,
    pub template: Template,
    pub max_new_tokens: Option<usize>,
    pub too_long: Option<TooLong>,
}

impl Common {
    /// Text and description of `data`.
    pub fn read(&self, task: &str, origin: &Origin) -> Result<(String, DataFile)> {
        files::read((task, "data"), self.data.as_deref(), origin, self.sha256.as_deref())
    }
}

/// Refuses keys that are not `known`, naming those that are.
pub(crate) fn check_keys(name: &str, params: &Params, known: &[Param]) -> Result<()> {
    let names = || known.iter().map(|param| param.name);
    let Some(bad) = params.table.keys().find(|key| !names().any(|name| name == key.as_str())) else {
        return Ok(());
    };
    let list: Vec<String> = names().map(|name| format!("`{name}`")).collect();
    let hint = nearest(bad, names()).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    Err(Error::setting(name, format!("unknown field `{bad}`{hint}, expected one of {}", list.join(", "))))
}

/// A task's table as the common settings and its own. `known`: all its parameters.
pub(crate) fn parse<T: DeserializeOwned>(
    name: &str,
    params: &Params,
    known: &[Param],
) -> Result<(Common, T)> {
    check_keys(name, params, known)?;
    let is_common = |key: &str| COMMON.iter().any(|param| param.name == key);
    let (common, own): (toml::Table, toml::Table) =
        params.table.clone().into_iter().partition(|(key, _)| is_common(key));
    let common = Params { table: common, seed: params.seed }.parse(name)?;
    Ok((common, Params { table: own, seed: params.seed }.parse(name)?))
}

/// Tokens of the answer: as set, or as published.
pub(crate) fn answer_tokens(name: &str, set: Option<usize>, published: usize) -> Result<usize> {
    match set {
        Some(0) => {
            let what = format!("0 tokens hold no answer; give at least 1 (published: {published})");
            Err(Error::setting(format!("{name}.max_new_tokens"), what))
        }
        set => Ok(set.unwrap_or(published)),
    }
}
