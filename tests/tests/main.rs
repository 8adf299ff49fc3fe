//! Tests across crates, in one binary.

mod alloc;
mod cli;
mod conformance;
mod invariants;
mod models;
mod oracles;
mod tidy;
