//! What Oasis measures accuracy and fidelity on: tasks with their scorers, and the bundled model `nano`.
//!
//! A [`Task`] turns a tokenizer, a length and a seed into [`Sample`]s; the harness decodes them and asks the
//! task for the score. Tasks are listed in one table, [`TASKS`]; [`find_task`] builds one by name.
//!
//! Three kinds exist ([`TaskKind`]). *Grammar* tasks are documents in the 1,417-word language that `nano`
//! was trained on, so they need its tokenizer. *Retrieval* tasks hide one number in English text and work with
//! any tokenizer. *Fidelity* has no score: a text is continued with its own tokens, and sparse decoding is
//! compared with dense decoding position by position.
//!
//! Every sample is a pure function of (seed, task, length, index): neither the number of samples nor the
//! platform nor the order in which they are made changes one.
#![forbid(unsafe_code)]

mod draw;
mod fidelity;
mod grammar;
mod haystack;
mod nano;
mod needle;
mod passkey;
mod prose;
mod table;
mod task;

pub use nano::{Bundle, nano};
pub use table::{BuildTask, TASKS, TaskEntry, find_task};
pub use task::{Sample, Scoring, Task, TaskKind, prompt_sha256, sample_seed};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
