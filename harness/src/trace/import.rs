//! `oasis trace import`: shards that another program wrote become a trace.

use super::folder::{self, Header, Origin, SCHEMA_VERSION, ShardHeader};
use super::shard::Shard;
use crate::report::{say, units};
use crate::run::identity;
use crate::run::progress::Progress;
use anyhow::{Context, Result, bail};
use oasis_core::geometry::Geometry;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `oasis trace import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of safetensors shards, as tests/peers/export_trace.py writes them
    dir: PathBuf,
    /// New folder of the trace
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Name of the model, for tables
    #[arg(long, default_value = "imported")]
    name: String,
}

/// Settings of a replay of an import that names none.
const DECODE: &str = "# Settings and policies that a replay starts from; an import has none of its own.
[decode]
mode = \"staged\"
budget = \"25%\"
predictor = \"previous-token\"
sink = 16
window = 16

[[cell]]
";

/// Checks every shard, then writes the trace.
pub fn run(args: &Args) -> Result<ExitCode> {
    let files = files(&args.dir)?;
    let progress = Progress::new(2 * files.len() as u64, 0);
    let mut geometry: Option<Geometry> = None;
    for file in &files {
        let shard = Shard::read(file)?;
        let own = &shard.tape.geometry;
        if shard.tape.steps() == 0 {
            bail!("{}: it has no step; export at least one", file.display());
        }
        let first = geometry.get_or_insert_with(|| own.clone());
        if first != own {
            bail!("{}: its model is {own:?}, that of {} is {first:?}", file.display(), files[0].display());
        }
        progress.advance(1, &shard.sample);
    }
    let Some(geometry) = geometry else { bail!("{}: no shard", args.dir.display()) };
    folder::create(&args.output)?;
    let mut shards: Vec<ShardHeader> = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let shard = Shard::read(file)?;
        shards.push(folder::write_shard(&args.output, i, &shard)?);
        progress.advance(1, &shard.sample);
    }
    progress.finish();
    let header = Header {
        schema_version: SCHEMA_VERSION,
        origin: Origin::Imported,
        model: args.name.clone(),
        model_digest: String::new(),
        geometry,
        recorded: None,
        drafts: shards.iter().any(|s| s.rows > s.steps),
        code: identity::code(),
        shards,
    };
    folder::finish(&args.output, &header, DECODE)?;
    let steps: usize = header.shards.iter().map(|s| s.steps).sum();
    let bytes: u64 = header.shards.iter().map(|s| s.bytes).sum();
    say(&format!(
        "imported: {} sequences, {steps} steps, {}\ntrace: {}\n",
        header.shards.len(),
        units::bytes(bytes),
        args.output.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The shards of a folder, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("{}: cannot be read", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.retain(|f| f.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    if files.is_empty() {
        bail!("{}: no *.safetensors in it; tests/peers/export_trace.py writes them", dir.display());
    }
    Ok(files)
}
