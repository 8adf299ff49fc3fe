//! The core of Oasis: words, traits and the one decode loop.
//!
//! A reader who wants to see how a step works starts at [`decode`]; one who writes a policy needs only
//! [`policy`]; one who writes a kernel needs only [`ops`].
#![forbid(unsafe_code)]

pub mod chain;
pub mod checkpoint;
pub mod conformance;
pub mod decode;
pub mod draft;
pub mod engine;
pub mod error;
mod forward;
pub mod geometry;
pub mod ids;
pub mod model;
pub mod ops;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod registry;
pub mod select;
pub mod settings;
pub mod stats;
pub mod storage;
pub mod store;
pub mod synthetic;
pub mod tape;
pub mod text;

pub use error::{Error, Result};
pub use half::bf16;
