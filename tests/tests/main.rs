//! Tests across crates, in one binary.

mod cli;
mod invariants;
mod models;
mod oracles;
mod tidy;
