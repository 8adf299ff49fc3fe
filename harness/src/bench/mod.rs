//! `oasis bench`: how fast decoding is, beside what the bytes allow.

mod auto;
mod case;
mod clocks;
mod decode;
mod fit;
mod flags;
mod floor;
mod limits;
mod memory;
mod ops;
mod policies;
mod prompts;
pub mod record;
mod render;
mod shape;
mod steps;

pub use limits::GibLimits;
pub(crate) use limits::{Limits, Need, Size, check as check_memory};
pub(crate) use shape::weights_bytes;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Arguments of `oasis bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Whole decode steps, mode beside mode, with the floor that their bytes set
    Decode(Box<decode::Args>),
    /// Each op by itself, at the sizes of a decode step
    Ops(Box<ops::Args>),
}

/// Runs `oasis bench`.
///
/// # Errors
/// Flags out of range, a model that cannot be read, memory that is not there, a folder that cannot be written.
pub fn run(args: &Args, app: &crate::App) -> Result<ExitCode> {
    match &args.what {
        What::Decode(args) => decode::run(args, app),
        What::Ops(args) => ops::run(args, app),
    }
}
