//! `oasis trace`: what a decode feeds its policies, recorded once; policies run over it without the model.

mod folder;
mod import;
mod info;
mod lists;
mod playback;
mod record;
mod render;
mod replay;
mod shard;
mod tally;
mod work;

pub use folder::{Header, Origin, Recorded, SCHEMA_VERSION, ShardHeader};
pub use tally::{Record, Row};

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Arguments of `oasis trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Decode the samples of a configuration in one of its cells and store what its policies were fed
    Record(Box<record::Args>),
    /// Make a trace of shards that another program wrote
    Import(import::Args),
    /// Say what a trace holds
    Info(info::Args),
    /// Run policies over a trace, without the model: every combination of the lists given
    Replay(Box<replay::Args>),
}

/// Runs `oasis trace`.
///
/// # Errors
/// A configuration or a trace that is none, policies that nobody knows, a folder that cannot be written.
pub fn run(args: &Args, app: &crate::App) -> Result<ExitCode> {
    match &args.what {
        What::Record(args) => record::run(args, app),
        What::Import(args) => import::run(args),
        What::Info(args) => info::run(args),
        What::Replay(args) => replay::run(args, app),
    }
}
