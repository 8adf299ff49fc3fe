//! `oasis export`: the records of a run as CSV, and the JSON Schemas of all records.

mod flat;
pub mod schema;

use crate::app::App;
use crate::files::write_whole;
use crate::record::{LayerRecord, SampleRecord};
use crate::report::{Records, say};
use crate::run::output::{self, RunDir};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `oasis export`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["csv", "schema"])))]
pub struct Args {
    /// Folder of a run: the one with `results.json`
    #[arg(required_unless_present = "schema", conflicts_with = "schema")]
    dir: Option<PathBuf>,
    /// A table as CSV, objects flattened to columns such as `counters.hits`
    #[arg(long, value_name = "TABLE", num_args = 0..=1, default_missing_value = "samples")]
    csv: Option<Table>,
    /// The JSON Schema of every record
    #[arg(long)]
    schema: bool,
    /// File of the table, or folder of the schemas; default: stdout
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

/// A table of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// One row a (sample, cell, repeat)
    Samples,
    /// One row a layer of each of them
    Layers,
}

/// Runs `oasis export`.
///
/// # Errors
/// No folder of a run, records of another version, an output that cannot be written.
pub fn run(args: &Args, _app: &App) -> Result<ExitCode> {
    match (args.csv, &args.dir) {
        (Some(table), Some(dir)) => csv(dir, table, args.output.as_deref())?,
        _ => schemas(args.output.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn csv(dir: &Path, table: Table, output: Option<&Path>) -> Result<()> {
    // It knows what is no run folder, and a version that this program can't read.
    Records::open(dir)?;
    let file = dir.join(if table == Table::Samples { output::SAMPLES } else { output::LAYERS });
    if !file.is_file() {
        bail!("{}: is not there; a finished or interrupted run has it", file.display());
    }
    let records = RunDir::reader(dir.to_path_buf()).read()?;
    let text = match table {
        Table::Samples => flat::csv::<SampleRecord>(&records.samples)?,
        Table::Layers => flat::csv::<LayerRecord>(&records.layers)?,
    };
    let Some(path) = output else { return say(&text) };
    if path.is_dir() {
        bail!(
            "--output {}: is a folder; give a file, such as {}/samples.csv",
            path.display(),
            path.display()
        );
    }
    write_whole(path, text.as_bytes())
}

fn schemas(output: Option<&Path>) -> Result<()> {
    let Some(dir) = output else {
        let all: serde_json::Map<_, _> = schema::all().into_iter().map(|(n, s)| (n.to_owned(), s)).collect();
        return say(&schema::text(&all.into()));
    };
    std::fs::create_dir_all(dir)
        .with_context(|| format!("--output {}: no folder can be made there", dir.display()))?;
    for (name, schema) in schema::all() {
        write_whole(&dir.join(schema::file(name)), schema::text(&schema).as_bytes())?;
    }
    Ok(())
}
