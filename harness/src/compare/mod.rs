//! `oasis compare A B`: two runs, sample by sample.
//!
//! Differences are B − A. Scores of 0 and 1 are tested with McNemar's exact test and get Tango's interval; graded ones, and
//! documents with several samples, with random signs and a bootstrap over documents. See docs/compare.md.

mod build;
mod cells;
mod pairs;
pub mod record;
mod render;
mod rule;
mod same;
mod side;
mod statistics;

use crate::app::App;
use crate::files::write_whole;
use crate::report::{WIDTH, say};
use anyhow::{Context, Result, bail};
use build::Request;
pub use cells::CellPair;
use oasis_core::Error;
use pairs::Settings;
use record::Comparison;
use rule::Rule;
pub use side::Head;
use side::Side;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of a comparison that can't be made: wrong usage, or runs that are no pairs.
const REFUSED: u8 = 2;

/// How a comparison is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables of 120 columns
    Terminal,
    /// For a pull request
    Markdown,
    /// Everything, for programs
    Json,
}

/// Arguments of `oasis compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the run that is measured against
    a: PathBuf,
    /// Folder of the run in question; differences are B − A
    b: PathBuf,
    /// Compare the samples that both runs have, and leave out the others
    #[arg(long)]
    common: bool,
    /// Compare this cell of A with that one of B, not those of one label; may be repeated
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    cells: Vec<String>,
    /// Exit with 1 if a rule fires: `accuracy<-0.5` (points), `decode_tok_s<-5%`, `worse`, `tokens`, `counters`, `bytes`,
    /// `decisions`; several between commas
    #[arg(long, value_name = "RULES")]
    fail_on: Vec<String>,
    /// Confidence of intervals and verdicts
    #[arg(long, default_value_t = 0.95)]
    level: f64,
    /// Seed of resamples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How to write it
    #[arg(long, value_enum, default_value = "terminal")]
    format: Format,
    /// Write it to a file instead of the terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `oasis compare`. Exit codes: 0 no rule fired; 1 one did, or a run violates an invariant; 2 it can't be made.
pub fn run(args: &Args, _app: &App) -> Result<ExitCode> {
    let comparison = match compared(args) {
        Ok(comparison) => comparison,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(REFUSED));
        }
    };
    let text = match args.format {
        Format::Terminal => render::terminal(&comparison, WIDTH),
        Format::Markdown => render::markdown(&comparison),
        Format::Json => serde_json::to_string_pretty(&comparison).context("the comparison as JSON")? + "\n",
    };
    match &args.output {
        Some(path) => {
            write_whole(path, text.as_bytes())?;
            for line in render::fired(&comparison) {
                eprintln!("{line}");
            }
        }
        None => say(&text)?,
    }
    Ok(if comparison.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compared(args: &Args) -> Result<Comparison> {
    if !(args.level > 0.5 && args.level < 1.0) {
        let what = format!("{} is no confidence; give more than 0.5 and less than 1, as in 0.95", args.level);
        bail!(Error::setting("--level", what));
    }
    let rules: Vec<Vec<Rule>> = args.fail_on.iter().map(|text| Rule::list(text)).collect::<Result<_, _>>()?;
    let (a, b) = (Side::open(&args.a)?, Side::open(&args.b)?);
    let settings = Settings { level: args.level, seed: args.seed };
    let request = Request { common: args.common, cells: &args.cells, settings };
    let mut comparison = build::compare(a, b, &request)?;
    comparison.rules = rules.iter().flatten().map(|r| r.check(&comparison)).collect::<Result<_>>()?;
    Ok(comparison)
}
