//! What Oasis measures accuracy and fidelity on: tasks with their scorers, and the bundled model `nano`.
//!
//! A [`Task`] turns a tokenizer, a length and a seed into [`Sample`]s; the harness decodes them and asks the
//! task for the score. Tasks are listed in one table, [`TASKS`]; [`find_task`] builds one by name.
//!
//! Five kinds exist ([`TaskKind`]). *Grammar* tasks are documents in the 1,417-word language that `nano`
//! was trained on, so they need its tokenizer. *Retrieval* tasks hide one number in English text and work with
//! any tokenizer. *Ruler* tasks follow the rules of RULER's thirteen types. *Dataset* tasks are published benchmarks in
//! files that the user gives, with their published [`scorers`]. *Fidelity* has no score: a text is continued with its own tokens, and sparse decoding is
//! compared with dense decoding position by position.
//!
//! [`workload`] reads recorded request traces, as sources of batch shapes for benchmarks.
//!
//! Every sample is a pure function of (seed, task, length, index): neither the number of samples nor the
//! platform nor the order in which they are made changes one.
#![forbid(unsafe_code)]

mod draw;
mod fidelity;
mod files;
mod grammar;
mod haystack;
mod loaders;
mod nano;
mod needle;
mod passkey;
mod prompt;
mod prose;
mod ruler;
pub mod scorers;
mod table;
mod task;
pub mod workload;

pub use files::DataFile;
pub use nano::{Bundle, nano};
pub use table::{BuildTask, TASKS, TaskEntry, find_task};
pub use task::{Sample, Scoring, Task, TaskKind, prompt_sha256, sample_seed};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
