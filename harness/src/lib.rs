//! The `oasis` command line as a library: configuration, plan, run, records, reports.
//!
//! Another crate gets all of it, with policies of its own added, from a `main` of a few lines:
//!
//! ```no_run
//! # use oasis_core::registry::EvictorEntry;
//! # fn run(my_evictor: EvictorEntry) -> std::process::ExitCode {
//! oasis::cli().with_evictor(my_evictor).run()
//! # }
//! ```
#![forbid(unsafe_code)]

mod app;
pub mod bench;
pub mod check;
mod cli;
pub mod compare;
pub mod doctor;
pub mod export;
pub mod fetch;
mod files;
pub mod list;
pub mod plan;
pub mod record;
pub mod report;
pub mod run;
pub mod scaffold;
pub mod show;
pub mod spec;
pub mod sweep;
pub mod trace;

pub use app::{App, Cli};

/// The command line with the project's own policies.
pub fn cli() -> Cli {
    Cli::default()
}
