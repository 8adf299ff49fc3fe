//! Mooncake's traces.

use super::Request;
use crate::files::{self, Origin};
use oasis_core::Result;
use serde::Deserialize;
use std::path::Path;

pub(super) const ORIGIN: Origin = Origin {
    what: "a Mooncake trace (conversation_trace.jsonl, synthetic_trace.jsonl, toolagent_trace.jsonl)",
    url: "https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)",
    sha256: None,
};

#[derive(Deserialize)]
struct Record {
    /// Milliseconds from the trace's beginning.
    timestamp: f64,
    input_length: usize,
    output_length: usize,
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Request>> {
    let records: Vec<Record> = files::jsonl(path, text)?;
    let request = |r: Record| Request {
        arrival_s: r.timestamp / 1000.0,
        prompt_tokens: r.input_length,
        output_tokens: r.output_length,
    };
    Ok(records.into_iter().map(request).collect())
}
