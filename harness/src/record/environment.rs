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
    /// NUMA nodes, NVIDIA's driver and devices; older records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareRecord>,
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

/// What the operating system says of the machine; a container may hide some of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareRecord {
    /// NUMA nodes; 0 where nothing is said of them.
    pub numa_nodes: usize,
    /// Version of NVIDIA's driver.
    pub driver: Option<String>,
    /// NVIDIA's devices, by address.
    pub gpus: Vec<GpuRecord>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuRecord {
    /// On the PCI bus, `domain:bus:device.function`.
    pub address: String,
    /// Its name, or its number if the driver does not name it.
    pub name: String,
    /// Speed of a lane and number of lanes, as they were at the run's start: an idle device slows its link down.
    pub link: Option<String>,
    /// The NUMA node it hangs on.
    pub numa_node: Option<u32>,
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
