//! Tests across crates, in one binary.

mod invariants;
mod models;
mod oracles;
mod tidy;
