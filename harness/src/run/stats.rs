//! Means with standard errors.

use crate::record::Metric;
use std::collections::BTreeMap;

/// Values of samples; samples of one document stand and fall together.
#[derive(Debug, Clone, Default)]
pub struct Values {
    of: Vec<(String, f64)>,
}

impl Values {
    /// Adds a sample's value.
    pub fn push(&mut self, document: &str, value: f64) {
        self.of.push((document.to_owned(), value));
    }

    /// Samples.
    pub fn n(&self) -> usize {
        self.of.len()
    }

    /// Mean; none without samples.
    pub fn mean(&self) -> Option<f64> {
        let n = self.of.len();
        (n > 0).then(|| self.of.iter().map(|(_, v)| v).sum::<f64>() / n as f64)
    }

    /// Standard error of the mean, robust to clusters: with G documents,
    /// `√(G/(G−1) · Σ_g (Σ_{i∈g} (x_i − x̄))²) / n`. None for fewer than two documents.
    pub fn stderr(&self) -> Option<f64> {
        let mean = self.mean()?;
        let mut clusters: BTreeMap<&str, f64> = BTreeMap::new();
        for (document, value) in &self.of {
            *clusters.entry(document).or_default() += value - mean;
        }
        let g = clusters.len() as f64;
        let sum: f64 = clusters.values().map(|d| d * d).sum();
        (g > 1.0).then(|| (g / (g - 1.0) * sum).sqrt() / self.of.len() as f64)
    }

    /// The mean as a metric.
    pub fn metric(&self, unit: &str, higher_is_better: Option<bool>) -> Option<Metric> {
        self.metric_as(self.mean()?, unit, higher_is_better)
    }

    /// A pooled value with the standard error of the samples' mean.
    pub fn metric_as(&self, value: f64, unit: &str, higher_is_better: Option<bool>) -> Option<Metric> {
        let stderr = self.stderr().filter(|s| s.is_finite());
        let n = self.n() as u64;
        value.is_finite().then(|| Metric { value, stderr, n, unit: unit.to_owned(), higher_is_better })
    }
}

/// The value below which a share `p` of `sorted` lies (nearest rank).
pub fn percentile(sorted: &[f64], p: f64) -> Option<f64> {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_independent_samples_is_the_textbook_one() {
        let mut v = Values::default();
        [1.0, 2.0, 4.0, 5.0].iter().enumerate().for_each(|(i, x)| v.push(&i.to_string(), *x));
        // s² = 10/3, s.e. = √(s²/4).
        assert!((v.stderr().unwrap() - (10.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert_eq!(v.mean(), Some(3.0));
    }

    #[test]
    fn samples_of_one_document_count_as_one() {
        let mut clustered = Values::default();
        let mut single = Values::default();
        for (i, x) in [1.0, 2.0, 4.0, 5.0].iter().enumerate() {
            single.push(&i.to_string(), *x);
            (0..3).for_each(|_| clustered.push(&i.to_string(), *x));
        }
        assert!((clustered.stderr().unwrap() - single.stderr().unwrap()).abs() < 1e-12);
        let mut one = Values::default();
        one.push("a", 1.0);
        assert_eq!(one.stderr(), None);
        assert_eq!(Values::default().mean(), None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.5), Some(50.0));
        assert_eq!(percentile(&sorted, 0.99), Some(99.0));
        assert_eq!(percentile(&[7.0], 0.9), Some(7.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
