//! Where, when and with which code a run took place.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `env.json`: where and when the run took place. Part of no comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// Version of Oasis.
    pub version: String,
    /// Code that was run.
    pub code: CodeRecord,
    /// Processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Operating system and architecture.
    pub system: String,
    /// Backend that decoded.
    pub backend: String,
    /// Name and version of every policy, draft source and task that took part.
    pub versions: BTreeMap<String, u32>,
    /// Command line.
    pub command: Vec<String>,
    /// Begin, UTC, `YYYY-MM-DDThh:mm:ssZ`.
    pub started: String,
}

/// Which code a program was built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeRecord {
    /// Commit of the checkout that it was built in; none from a tarball.
    pub commit: Option<String>,
    /// The checkout had changes that are in no commit.
    pub dirty: bool,
    /// SHA-256 over all source files.
    pub source_sha256: String,
}
