//! Flags of the commands that decode: `oasis run` and `oasis sweep`.

use super::BackendChoice;
use super::output::Existing;
use crate::spec::Limit;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// What to set over the file, where to put records, where to compute.
#[derive(Debug, clap::Args)]
pub struct Flags {
    /// Set a value over the file, e.g. decode.budget=256 or task.samples=4
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Samples of each task: a count or a share (4, 0.25, 25%), taken at equal strides
    #[arg(long)]
    pub limit: Option<Limit>,
    /// Seed of samples and draws
    #[arg(long)]
    pub seed: Option<u64>,
    /// Times that every (sample, cell) is decoded
    #[arg(long)]
    pub repeats: Option<u32>,
    /// Workers; default: one a core for small models, one for large ones
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Folder of runs; each gets a folder of its own in it
    #[arg(short, long, value_name = "FOLDER", default_value = "runs")]
    pub output: PathBuf,
    /// Go on with a run that was interrupted or failed
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Start again, dropping what the run's folder holds
    #[arg(long)]
    pub overwrite: bool,
    /// Print the complete configuration with the origin of every value and the memory of every cell; run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Where to compute
    #[arg(long, value_enum, default_value = "auto")]
    pub backend: BackendChoice,
    #[command(flatten)]
    pub limits: crate::bench::GibLimits,
}

impl Flags {
    /// `--set`s and the flags that are short for one.
    ///
    /// # Errors
    /// A `--set` without `=`.
    pub fn sets(&self) -> Result<Vec<(String, String)>> {
        let mut sets = Vec::new();
        for set in &self.set {
            let Some((key, value)) = set.split_once('=') else {
                bail!("--set {set}: no `=`; write KEY=VALUE, as in decode.budget=256");
            };
            sets.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        let mut flag = |key: &str, value: Option<String>| sets.extend(value.map(|v| (key.to_owned(), v)));
        flag("run.limit", self.limit.map(|l| l.to_string()));
        flag("run.seed", self.seed.map(|s| s.to_string()));
        flag("run.repeats", self.repeats.map(|r| r.to_string()));
        flag("run.jobs", self.jobs.map(|j| j.to_string()));
        Ok(sets)
    }

    /// What to do with a folder that is there already.
    pub fn existing(&self) -> Existing {
        match (self.resume, self.overwrite) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Overwrite,
            _ => Existing::Refuse,
        }
    }
}
