//! Tests across crates, in one binary.

mod alloc;
mod cli;
mod conformance;
mod invariants;
mod kernels;
mod models;
mod oracles;
mod tidy;
mod traces;
