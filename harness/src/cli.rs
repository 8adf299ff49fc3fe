//! The command line: one module a command.

use crate::app::App;
use crate::{bench, check, compare, doctor, export, fetch, list, report, run, scaffold, show, sweep, trace};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Sparse decode attention with an offloaded KV cache: replace one policy, measure agreement, accuracy and
/// traffic in one run.
#[derive(Debug, Parser)]
#[command(name = "oasis", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a configuration: decode every sample in every cell, measure, report
    Run(run::Args),
    /// Run a configuration for every combination of values of its axes
    Sweep(sweep::Args),
    /// Join the shards of a sweep
    Merge(sweep::merge::Args),
    /// Measure decode steps or single ops, beside what their bytes allow
    Bench(bench::Args),
    /// Record what a decode feeds its policies; run policies over it without the model
    Trace(trace::Args),
    /// Render the report of a run folder again
    Report(report::Args),
    /// Give the records of a run as CSV, or the JSON Schemas of all records
    Export(export::Args),
    /// Compare two runs sample by sample; a gate for pull requests
    Compare(compare::Args),
    /// List summaries, evictors, predictors, drafts, tasks and models
    List(list::Args),
    /// Describe one of them
    Show(show::Args),
    /// Test a policy against its contract
    Check(check::Args),
    /// Write the skeleton of a new policy
    New(scaffold::Args),
    /// Look at the machine: processor, memory, limits, libraries
    Doctor(doctor::Args),
    /// Get a model that is too large to bundle
    Fetch(fetch::Args),
}

/// Runs the command of these arguments.
pub fn run<I: IntoIterator<Item = T>, T: Into<OsString> + Clone>(args: I, app: &App) -> ExitCode {
    let arguments = match Arguments::try_parse_from(args) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version come this way too, with exit code 0. A closed pipe is nobody's error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let done = match &arguments.command {
        Command::Run(args) => run::run(args, app),
        Command::Sweep(args) => sweep::run(args, app),
        Command::Merge(args) => sweep::merge::run(args, app),
        Command::Bench(args) => bench::run(args, app),
        Command::Trace(args) => trace::run(args, app),
        Command::Report(args) => report::run(args, app),
        Command::Export(args) => export::run(args, app),
        Command::Compare(args) => compare::run(args, app),
        Command::List(args) => list::run(args, app),
        Command::Show(args) => show::run(args, app),
        Command::Check(args) => check::run(args, app),
        Command::New(args) => scaffold::run(args, app),
        Command::Doctor(args) => doctor::run(args, app),
        Command::Fetch(args) => fetch::run(args, app),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
