//! Who ran what: the fingerprint of a run and its environment.

use super::hardware;
use super::model::Opened;
use super::samples::{Samples, hex};
use crate::app::App;
use crate::plan::{Plan, PlannedCell, PlannedTask};
use crate::record::{CodeRecord, Environment, SCHEMA_VERSION};
use anyhow::Result;
use oasis_core::registry::find;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Hex digits of a fingerprint.
const DIGITS: usize = 16;

/// Kinds of policies, as cells name them.
const KINDS: [&str; 4] = ["summary", "evictor", "predictor", "draft"];

/// Name and version of everything that took part.
pub fn versions(cells: &[PlannedCell], tasks: &[PlannedTask], app: &App) -> Result<BTreeMap<String, u32>> {
    let mut versions = BTreeMap::new();
    for cell in cells {
        for kind in KINDS {
            let Some(spec) = cell.policy(kind) else { continue };
            let version = match kind {
                "summary" => find(kind, &app.summaries, &spec.name)?.version,
                "evictor" => find(kind, &app.evictors, &spec.name)?.version,
                "predictor" => find(kind, &app.predictors, &spec.name)?.version,
                _ => find("draft", oasis_predictors::drafts::<oasis_kernels::Cpu>(), &spec.name)?.version,
            };
            versions.insert(format!("{kind} {}", spec.name), version);
        }
    }
    versions.extend(tasks.iter().map(|t| (format!("task {}", t.name), t.task.version())));
    Ok(versions)
}

/// The code that this program was built from.
pub fn code() -> CodeRecord {
    let commit = env!("OASIS_COMMIT");
    CodeRecord {
        commit: (!commit.is_empty()).then(|| commit.to_owned()),
        dirty: env!("OASIS_DIRTY") == "true",
        source_sha256: env!("OASIS_SOURCE_SHA256").to_owned(),
    }
}

/// What a fingerprint is made of.
///
/// The output folder, the number of workers and the log level are no part of it: they change no result. The code is
/// in it as the hash of its sources, which names dirty checkouts and tarballs as exactly as commits.
pub struct Identity<'a> {
    /// What can be named.
    pub app: &'a App,
    /// The run.
    pub plan: &'a Plan,
    /// Its model.
    pub opened: &'a Opened,
    /// Its prompts.
    pub samples: &'a Samples,
    /// The backend's name.
    pub backend: &'a str,
}

impl Identity<'_> {
    /// The parts of the run's fingerprint, itself, and the run's name.
    ///
    /// # Errors
    /// A policy that nobody knows; a file that a policy names and that can't be read.
    pub fn of_run(&self) -> Result<BTreeMap<String, String>> {
        let mut parts = self.parts(&self.plan.resolved().canonical, &self.plan.cells)?;
        parts.insert("fingerprint".to_owned(), digest(&parts));
        parts.insert("name".to_owned(), self.plan.name.clone());
        Ok(parts)
    }

    /// The fingerprint of one cell alone: equal wherever the same measurement is planned, whatever the run and the cell are called.
    ///
    /// # Errors
    /// As [`Identity::of_run`].
    pub fn of_cell(&self, cell: &PlannedCell) -> Result<String> {
        Ok(digest(&self.parts(&self.plan.canonical_of(cell), std::slice::from_ref(cell))?))
    }

    fn parts(&self, config: &str, cells: &[PlannedCell]) -> Result<BTreeMap<String, String>> {
        let Self { app, plan, opened, samples, backend } = *self;
        let data: Vec<&str> = plan.tasks.iter().filter_map(|t| t.task.data_sha256()).collect();
        let versions = versions(cells, &plan.tasks, app)?;
        let all = versions.iter().map(|(name, v)| format!("{name}@{v}")).collect::<Vec<_>>().join(" ");
        Ok(BTreeMap::from([
            ("schema".to_owned(), SCHEMA_VERSION.to_string()),
            ("config".to_owned(), sha(config)),
            ("prompts".to_owned(), sha(&samples.digests.join(" "))),
            ("data".to_owned(), sha(&data.join(" "))),
            ("weights".to_owned(), opened.checkpoint.digest.clone()),
            ("tokenizer".to_owned(), opened.checkpoint.tokenizer.digest().to_owned()),
            ("policies".to_owned(), all),
            ("files".to_owned(), sha(&self.files(cells)?.join(" "))),
            ("code".to_owned(), code_part(app)?),
            ("backend".to_owned(), backend.to_owned()),
        ]))
    }

    /// Hashes of the files and folders that policies name as their `path`, and of the bundled draft head where something drafts.
    fn files(&self, cells: &[PlannedCell]) -> Result<Vec<String>> {
        let policies = cells.iter().flat_map(|c| KINDS.iter().filter_map(|kind| c.policy(kind)));
        let paths: BTreeSet<&str> = policies.filter_map(|p| p.table.get("path")?.as_str()).collect();
        let mut digests = Vec::new();
        for path in paths {
            digests.extend(self.app.contents.digest(Path::new(path))?);
        }
        if let Some(head) = self.opened.head.filter(|_| cells.iter().any(|c| c.draft.is_some())) {
            digests.push(hex(&Sha256::new().chain_update(head.config).chain_update(head.weights).finalize()));
        }
        Ok(digests)
    }
}

/// The hash of our sources; with policies of another crate also that of the program, which has their code in it.
pub fn code_part(app: &App) -> Result<String> {
    let ours = code().source_sha256;
    Ok(if app.extended { format!("{ours} {}", app.contents.program()?) } else { ours })
}

/// SHA-256 in hex.
pub fn sha(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// A short hash over named parts.
pub fn digest(parts: &BTreeMap<String, String>) -> String {
    let text: String = parts.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
    sha(&text)[..DIGITS].to_owned()
}

/// Where and when the run takes place.
pub fn environment(versions: BTreeMap<String, u32>, backend: &str) -> Environment {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        code: code(),
        cpu: cpu_name(),
        cores,
        memory_bytes: memory_bytes(),
        hardware: Some(hardware::read(Path::new("/"))),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        backend: backend.to_owned(),
        versions,
        command: std::env::args().collect(),
        started: utc(SystemTime::now()),
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn cpu_name() -> String {
    field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned())
}

fn memory_bytes() -> u64 {
    kib("/proc/meminfo", "MemTotal")
}

/// Most memory that this process held at once.
pub fn peak_bytes() -> u64 {
    kib("/proc/self/status", "VmHWM")
}

fn kib(file: &str, name: &str) -> u64 {
    let kib = field(file, name).and_then(|v| v.trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(0, |k| k * 1024)
}

/// `YYYY-MM-DDThh:mm:ssZ`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one (the usual civil-from-days arithmetic).
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_at_the_edges_of_months_and_leap_years() {
        let at = |s| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
