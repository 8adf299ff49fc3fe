//! Predictors, which say what query ranks the blocks of the next step, and draft sources, which guess the
//! tokens that come next.
//!
//! One file and one row each: [`predictor::PREDICTORS`], [`draft::drafts`].
#![forbid(unsafe_code)]

pub mod draft;
pub mod predictor;

mod mix;

pub use draft::drafts;
pub use predictor::PREDICTORS;
