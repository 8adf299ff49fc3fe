//! Summaries (what the device remembers of a block) and evictors (who leaves a pool).
//!
//! A policy is one file and one row of a table. Its contract is on its trait in [`oasis_core::policy`], and
//! [`oasis_core::conformance`] runs that contract over every row.
#![forbid(unsafe_code)]

pub mod evictor;
pub mod summary;

use oasis_core::Result;
use oasis_core::registry::{EvictorEntry, Params, SummaryEntry};
use serde::Deserialize;

/// The summaries, in the order of lists.
pub const SUMMARIES: &[SummaryEntry] = &[
    summary::minmax::ENTRY,
    summary::quantized::ENTRY,
    summary::mean::ENTRY,
    summary::rotated_keys::ENTRY,
    summary::exact_keys::ENTRY,
];

/// The evictors, in the order of lists.
pub const EVICTORS: &[EvictorEntry] = &[
    evictor::lrs::ENTRY,
    evictor::lru::ENTRY,
    evictor::fifo::ENTRY,
    evictor::lfu::ENTRY,
    evictor::sieve::ENTRY,
    evictor::random::ENTRY,
];

/// Evictors that know the next use of a block, for replays of a trace only.
pub const REPLAY_EVICTORS: &[EvictorEntry] = &[evictor::belady::ENTRY];

/// For policies without parameters: any key is one too many.
fn no_parameters(params: &Params, name: &str) -> Result<()> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    params.parse::<Nothing>(name).map(|Nothing {}| ())
}
