//! Quantiles of a workload.

use super::Request;
use serde::Serialize;

/// Smallest, mean, largest and nearest-rank quantiles of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 % are at most this.
    pub p90: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Quantiles {
    /// Of some values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (min, max) = (*values.first()?, *values.last()?);
        let rank = |percent: usize| values[(n * percent).div_ceil(100).max(1) - 1];
        let mean = values.iter().sum::<f64>() / n as f64;
        Some(Self { min, mean, p50: rank(50), p90: rank(90), p99: rank(99), max })
    }
}

/// A workload in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Statistics {
    /// Requests.
    pub requests: usize,
    /// Seconds from the first arrival to the last.
    pub duration_s: f64,
    /// Requests a second over that time; 0 if all arrive at once.
    pub rate: f64,
    /// Prompt lengths in tokens.
    pub prompt_tokens: Option<Quantiles>,
    /// Output lengths in tokens.
    pub output_tokens: Option<Quantiles>,
    /// Seconds between an arrival and the next.
    pub gap_s: Option<Quantiles>,
}

impl Statistics {
    /// Of requests in the order of their arrival.
    pub fn of(requests: &[Request]) -> Self {
        let duration_s = match requests {
            [first, .., last] => last.arrival_s - first.arrival_s,
            _ => 0.0,
        };
        let gaps = requests.windows(2).map(|w| w[1].arrival_s - w[0].arrival_s);
        Self {
            requests: requests.len(),
            duration_s,
            rate: if duration_s > 0.0 { (requests.len() - 1) as f64 / duration_s } else { 0.0 },
            prompt_tokens: Quantiles::of(requests.iter().map(|r| r.prompt_tokens as f64)),
            output_tokens: Quantiles::of(requests.iter().map(|r| r.output_tokens as f64)),
            gap_s: Quantiles::of(gaps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let q = Quantiles::of((1..=200).rev().map(f64::from)).unwrap();
        assert_eq!((q.min, q.p50, q.p90, q.p99, q.max, q.mean), (1.0, 100.0, 180.0, 198.0, 200.0, 100.5));
        assert_eq!(Quantiles::of([7.0]).map(|q| (q.p50, q.p99)), Some((7.0, 7.0)));
        assert_eq!(Quantiles::of([]), None);
    }

    #[test]
    fn rates_count_gaps() {
        let at = |arrival_s| Request { arrival_s, prompt_tokens: 5, output_tokens: 1 };
        let s = Statistics::of(&[at(0.0), at(1.0), at(4.0)]);
        assert_eq!((s.requests, s.duration_s, s.rate), (3, 4.0, 0.5));
        assert_eq!(s.gap_s.map(|g| g.max), Some(3.0));
        let one = Statistics::of(&[at(0.0)]);
        assert_eq!((one.rate, one.gap_s), (0.0, None));
    }
}
