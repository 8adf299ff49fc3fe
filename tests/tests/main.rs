//! Tests across crates, in one binary.

mod alloc;
mod cli;
mod conformance;
mod device;
mod invariants;
mod kernels;
mod models;
mod oracles;
mod portable;
mod regression;
mod tidy;
mod traces;
