//! What the program knows by name, and the builder with which another crate adds to it.

use crate::cli;
use crate::run::contents::Contents;
use oasis_core::Error;
use oasis_core::registry::{Entry, EvictorEntry, PredictorEntry, SummaryEntry};
use oasis_datasets::TASKS;
use oasis_policies::{EVICTORS, REPLAY_EVICTORS, SUMMARIES};
use oasis_predictors::PREDICTORS;
use std::process::ExitCode;
use std::sync::Arc;

/// The tables of everything that a configuration can name: the project's own rows and those of other crates.
#[derive(Debug, Clone)]
pub struct App {
    /// Summaries.
    pub summaries: Vec<SummaryEntry>,
    /// Evictors.
    pub evictors: Vec<EvictorEntry>,
    /// Evictors that replays of a trace have beside these.
    pub replay_evictors: &'static [EvictorEntry],
    /// Predictors.
    pub predictors: Vec<PredictorEntry>,
    /// Tasks.
    pub tasks: &'static [oasis_datasets::TaskEntry],
    /// Whether another crate has added rows: its code is then part of fingerprints.
    pub(crate) extended: bool,
    /// Hashes of files that are part of fingerprints.
    pub(crate) contents: Arc<Contents>,
}

impl Default for App {
    fn default() -> Self {
        Self {
            summaries: SUMMARIES.to_vec(),
            evictors: EVICTORS.to_vec(),
            replay_evictors: REPLAY_EVICTORS,
            predictors: PREDICTORS.to_vec(),
            tasks: TASKS,
            extended: false,
            contents: Arc::default(),
        }
    }
}

/// The command line, to which rows can be added before it runs.
#[derive(Debug, Default)]
pub struct Cli {
    app: App,
    error: Option<Error>,
}

impl Cli {
    /// Adds an evictor.
    pub fn with_evictor(mut self, entry: EvictorEntry) -> Self {
        let taken = add("evictor", &mut self.app.evictors, entry);
        self.added(taken)
    }

    /// Adds a summary.
    pub fn with_summary(mut self, entry: SummaryEntry) -> Self {
        let taken = add("summary", &mut self.app.summaries, entry);
        self.added(taken)
    }

    /// Adds a predictor.
    pub fn with_predictor(mut self, entry: PredictorEntry) -> Self {
        let taken = add("predictor", &mut self.app.predictors, entry);
        self.added(taken)
    }

    fn added(mut self, taken: Option<Error>) -> Self {
        self.app.extended = true;
        self.error = self.error.or(taken);
        self
    }

    /// Reads the process's arguments and runs the command.
    pub fn run(self) -> ExitCode {
        self.run_from(std::env::args_os())
    }

    /// Runs the command of these arguments; the first is the program's name.
    pub fn run_from<I: IntoIterator<Item = T>, T: Into<std::ffi::OsString> + Clone>(
        self,
        args: I,
    ) -> ExitCode {
        if let Some(error) = self.error {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
        cli::run(args, &self.app)
    }
}

/// Appends a row, unless its name is taken.
fn add<F>(kind: &str, table: &mut Vec<Entry<F>>, entry: Entry<F>) -> Option<Error> {
    if table.iter().any(|e| e.name == entry.name) {
        let what = format!("there is already an entry `{}`; give the added one another name", entry.name);
        return Some(Error::setting(format!("table of {kind} entries"), what));
    }
    table.push(entry);
    None
}
