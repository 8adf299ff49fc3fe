//! Tables of plug-ins. A plug-in is one file and one row; help, `list`, `show` and the conformance
//! matrix derive from the rows.

use crate::draft::{DraftFactory, DraftSetup};
use crate::policy::{Evictor, Predictor, Summary};
use crate::{Error, Result};
use serde::de::DeserializeOwned;

/// A parameter of a plug-in, for help texts. Its truth is the plug-in's own deserialised struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// TOML key.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// The default, as TOML would write it.
    pub default: &'static str,
}

/// One row of a table.
#[derive(Debug, Clone, Copy)]
pub struct Entry<F> {
    /// Name in configurations; kebab-case.
    pub name: &'static str,
    /// One sentence, with the paper it comes from where there is one.
    pub about: &'static str,
    /// Version of the decisions it makes; part of the fingerprint. Raise it when they change.
    pub version: u32,
    /// Its parameters.
    pub params: &'static [Param],
    /// Makes one instance.
    pub build: F,
}

/// A row of a table of predictors. One instance a sequence.
pub type PredictorEntry = Entry<fn(&Params) -> Result<Box<dyn Predictor>>>;

/// A row of a table of draft sources.
pub type DraftEntry<B> = Entry<fn(DraftSetup<'_, B>) -> Result<DraftFactory<B>>>;

/// A row of the summaries' table.
pub type SummaryEntry = Entry<fn(&Params) -> Result<Box<dyn Summary>>>;

/// A row of the evictors' table; the constructor makes one pool's instance.
pub type EvictorEntry = Entry<fn(&Params) -> Result<Box<dyn Evictor>>>;

/// What a constructor gets.
#[derive(Debug, Clone, Default)]
pub struct Params {
    /// The plug-in's own TOML table, without its name.
    pub table: toml::Table,
    /// A seed of this instance's own (from the run's seed, the sequence, the layer and the head).
    pub seed: u64,
}

impl Params {
    /// The table as the plug-in's own struct. Put `#[serde(default, deny_unknown_fields)]` on it:
    /// an unknown key is then an error that lists the known ones.
    pub fn parse<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.table
            .clone()
            .try_into()
            .map_err(|e: toml::de::Error| Error::setting(name, e.message().replace('\n', " ")))
    }
}

/// The row called `name`.
pub fn find<'a, F>(kind: &'static str, table: &'a [Entry<F>], name: &str) -> Result<&'a Entry<F>> {
    table
        .iter()
        .find(|e| e.name == name)
        .ok_or_else(|| Error::unknown_name(kind, name, table.iter().map(|e| e.name)))
}
