//! Recorded request traces: arrivals and lengths of prompts and outputs, as sources of batch shapes.
//!
//! A [`Workload`] says nothing of texts; `bench` fills prompts of these lengths with tokens of its own.

mod azure;
mod mooncake;
mod statistics;

pub use statistics::{Quantiles, Statistics};

use crate::{
    draw::Draw,
    files::{self, DataFile, Origin},
};
use oasis_core::{Error, Result};
use std::path::Path;

/// Formats that [`Workload::load`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceFormat {
    /// Mooncake (Qin et al. 2025): JSON Lines with `timestamp` in milliseconds, `input_length`, `output_length`.
    Mooncake,
    /// Azure LLM inference traces (Patel et al. 2024): CSV with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
    Azure,
}

impl TraceFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Mooncake, Self::Azure];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Azure => "azure",
        }
    }

    /// The format called `name`.
    ///
    /// # Errors
    /// No such format, with the known ones.
    pub fn find(name: &str) -> Result<Self> {
        let known = Self::ALL.map(Self::name);
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| Error::unknown_name("trace format", name, known))
    }

    fn origin(self) -> &'static Origin {
        match self {
            Self::Mooncake => &mooncake::ORIGIN,
            Self::Azure => &azure::ORIGIN,
        }
    }
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Seconds from the trace's first request.
    pub arrival_s: f64,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens of the output, at least 1.
    pub output_tokens: usize,
}

/// Requests in the order of their arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The requests.
    pub requests: Vec<Request>,
    /// Where they come from.
    pub file: DataFile,
    /// Records without a prompt or without an output, which were left out.
    pub skipped: usize,
}

impl Workload {
    /// Reads the trace at `path`; `None` is an error that says where to get one.
    ///
    /// # Errors
    /// A file that can't be read or is not of this format, by record; a trace without requests.
    pub fn load(format: TraceFormat, path: Option<&Path>) -> Result<Self> {
        let (text, file) = files::read(("workload", "trace"), path, format.origin(), None)?;
        let mut requests = match format {
            TraceFormat::Mooncake => mooncake::parse(&file.path, &text)?,
            TraceFormat::Azure => azure::parse(&file.path, &text)?,
        };
        let all = requests.len();
        requests.retain(|r| r.prompt_tokens > 0 && r.output_tokens > 0);
        let skipped = all - requests.len();
        requests.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        let Some(first) = requests.first().map(|r| r.arrival_s) else {
            return Err(Error::format(&file.path, "holds no request; give the trace as published"));
        };
        for request in &mut requests {
            request.arrival_s -= first;
        }
        Ok(Self { requests, file, skipped })
    }

    /// `n` different requests, drawn by `seed`, in the order of their arrival; arrivals stay what they are.
    ///
    /// # Errors
    /// More than there are.
    pub fn sample(&self, n: usize, seed: u64) -> Result<Vec<Request>> {
        let all = self.requests.len();
        if n > all {
            let what =
                format!("{n} requests of {}, which has {all}; give at most {all}", self.file.path.display());
            return Err(Error::setting("workload.requests", what));
        }
        let mut drawn = Draw::new(seed).distinct(all as u32, n);
        drawn.sort_unstable();
        Ok(drawn.into_iter().map(|i| self.requests[i as usize]).collect())
    }

    /// Statistics of all requests.
    pub fn statistics(&self) -> Statistics {
        Statistics::of(&self.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOONCAKE: &str = r#"{"timestamp": 500, "input_length": 30, "output_length": 4, "hash_ids": [1]}
{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [0]}
{"timestamp": 700, "input_length": 10, "output_length": 0, "hash_ids": [0]}
{"timestamp": 2000, "input_length": 20, "output_length": 3, "hash_ids": []}
"#;
    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,4808,10\r\n\
                         2023-11-17 00:00:01.2500000,3180,8\r\n";

    fn load(format: TraceFormat, text: &str) -> Result<Workload> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        std::fs::write(&path, text).unwrap();
        Workload::load(format, Some(&path))
    }

    #[test]
    fn both_formats_give_requests_by_arrival() {
        let workload = load(TraceFormat::Mooncake, MOONCAKE).unwrap();
        let request =
            |arrival_s, prompt_tokens, output_tokens| Request { arrival_s, prompt_tokens, output_tokens };
        assert_eq!(workload.requests, [request(0.0, 10, 2), request(0.5, 30, 4), request(2.0, 20, 3)]);
        assert_eq!(workload.skipped, 1);
        let workload = load(TraceFormat::Azure, AZURE).unwrap();
        assert_eq!(workload.requests, [request(0.0, 4808, 10), request(1.75, 3180, 8)]);
    }

    #[test]
    fn samples_are_seeded_and_keep_their_order() {
        let workload = load(TraceFormat::Mooncake, MOONCAKE).unwrap();
        assert_eq!(workload.sample(3, 9).unwrap(), workload.requests);
        let some: Vec<Vec<Request>> = (0..20).map(|seed| workload.sample(2, seed).unwrap()).collect();
        assert!(some.iter().all(|s| s.len() == 2 && s[0].arrival_s < s[1].arrival_s));
        assert!(some.iter().any(|s| *s != some[0]));
        assert_eq!(some[3], workload.sample(2, 3).unwrap());
        assert!(workload.sample(4, 0).unwrap_err().to_string().contains("at most 3"));
        assert!(workload.sample(0, 0).unwrap().is_empty());
    }

    #[test]
    fn bad_traces_are_refused_by_record() {
        let error = |format, text: &str| load(format, text).unwrap_err().to_string();
        assert!(error(TraceFormat::Mooncake, "{\"timestamp\": 1}").contains("line 1"));
        assert!(
            error(TraceFormat::Azure, "TIMESTAMP,ContextTokens,GeneratedTokens\n").contains("no request")
        );
        let time = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 10:00:00,1,1\n";
        assert!(error(TraceFormat::Azure, time).contains("2023-13-16 10:00:00"));
        assert!(error(TraceFormat::Azure, "a,b\n1,2\n").contains("record 1"));
        let missing = Workload::load(TraceFormat::Azure, None).unwrap_err().to_string();
        assert!(missing.contains("https://") && missing.contains("workload.trace"), "{missing}");
        assert!(TraceFormat::find("azur").unwrap_err().to_string().contains("`azure`"));
        assert_eq!(TraceFormat::find("mooncake").unwrap(), TraceFormat::Mooncake);
    }
}
