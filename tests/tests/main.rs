//! Tests across crates, in one binary.

mod cli;
mod conformance;
mod invariants;
mod models;
mod oracles;
mod tidy;
