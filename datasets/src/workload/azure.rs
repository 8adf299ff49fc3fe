//! Azure's traces of LLM inference.

use super::Request;
use crate::files::Origin;
use oasis_core::{Error, Result};
use serde::Deserialize;
use std::path::Path;

pub(super) const ORIGIN: Origin = Origin {
    what: "an Azure LLM inference trace (AzureLLMInferenceTrace_code.csv, AzureLLMInferenceTrace_conv.csv)",
    url: "https://github.com/Azure/AzurePublicDataset (data)",
    sha256: None,
};

#[derive(Deserialize)]
struct Record {
    /// `YYYY-MM-DD hh:mm:ss.fffffff`.
    #[serde(rename = "TIMESTAMP")]
    timestamp: String,
    #[serde(rename = "ContextTokens")]
    context: usize,
    #[serde(rename = "GeneratedTokens")]
    generated: usize,
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Request>> {
    let bad = |i: usize, what: String| Error::format(path, format!("record {}: {what}", i + 1));
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let one = |(i, record): (usize, csv::Result<Record>)| {
        let record = record.map_err(|e| bad(i, e.to_string()))?;
        let arrival_s = seconds(&record.timestamp).ok_or_else(|| {
            bad(i, format!("TIMESTAMP `{}` is no time of the form YYYY-MM-DD hh:mm:ss.f", record.timestamp))
        })?;
        Ok(Request { arrival_s, prompt_tokens: record.context, output_tokens: record.generated })
    };
    reader.deserialize().enumerate().map(one).collect()
}

/// Seconds from 2000-03-01, without leap seconds.
fn seconds(timestamp: &str) -> Option<f64> {
    let (date, time) = timestamp.trim().split_once([' ', 'T'])?;
    // The traces of 2024 end in an offset, always the same one.
    let time = time.split_once('+').map_or(time, |(time, _)| time);
    let numbers =
        |text: &str, by: char| text.split(by).map(|n| n.parse::<u32>().ok()).collect::<Option<Vec<_>>>();
    let date = numbers(date, '-')?;
    let &[year, month, day] = date.as_slice() else { return None };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let clock = numbers(clock, ':')?;
    let &[hour, minute, second] = clock.as_slice() else { return None };
    let in_range =
        year >= 2001 && (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60;
    if !in_range || second > 60 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Years begin in March, so that the leap day is their last.
    let (year, month) = if month < 3 { (year - 2001, month + 9) } else { (year - 2000, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    let whole = ((days * 24 + hour) * 60 + minute) as f64 * 60.0 + f64::from(second);
    Some(whole + fraction)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn days_of_all_months_follow_each_other() {
        let day = 86_400.0;
        let at = |text: &str| seconds(text).unwrap();
        for (before, after) in [
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
            ("2023-02-28", "2023-03-01"),
            ("2023-11-30", "2023-12-01"),
            ("2023-12-31", "2024-01-01"),
            ("2023-07-31", "2023-08-01"),
        ] {
            assert_eq!(at(&format!("{after} 00:00:00")) - at(&format!("{before} 00:00:00")), day, "{after}");
        }
        assert_eq!(at("2024-05-10 00:00:01.5+00:00") - at("2024-05-10 00:00:00"), 1.5);
        for bad in
            ["", "2023-11-16", "2023-11-16 25:00:00", "2023-00-16 1:1:1", "x 1:1:1", "2023-11-16 1:1:1.x"]
        {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
