//! Tests and intervals for paired differences. All draws are seeded: the same records give the same figures.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, Normal};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 10_000;
/// Documents up to which every assignment of signs is tried; above that [`FLIPS`] random ones.
const EXACT: usize = 16;
/// Random assignments of signs.
const FLIPS: usize = 20_000;
/// Halvings of the interval in which a limit is sought.
const HALVINGS: usize = 80;

/// The difference of one document: its samples stand and fall together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Sum of the differences of its samples.
    pub sum: f64,
    /// Samples.
    pub n: usize,
}

fn normal() -> Normal {
    Normal::standard()
}

/// McNemar's exact test: two-sided p of `gained` against `lost` of the discordant pairs under a fair coin.
///
/// McNemar, *Note on the sampling error of the difference between correlated proportions*, Psychometrika 12 (1947); the
/// exact form is the binomial test on the discordant pairs.
pub fn mcnemar(gained: u64, lost: u64) -> f64 {
    let discordant = gained + lost;
    let Ok(coin) = Binomial::new(0.5, discordant) else { return f64::NAN };
    if discordant == 0 { 1.0 } else { (2.0 * coin.cdf(gained.min(lost))).min(1.0) }
}

/// Score interval for the difference `(gained − lost) / n` of paired proportions at confidence `level`.
///
/// Tango, *Equivalence test and confidence interval for the difference in proportions for the paired-sample design*,
/// Statistics in Medicine 17 (1998). The limits are where the score statistic reaches the normal quantile, with the
/// nuisance parameter at its constrained maximum; they stay within −1 and 1 and do not collapse without discordant pairs.
pub fn tango(gained: u64, lost: u64, n: u64, level: f64) -> Option<(f64, f64)> {
    if n == 0 || gained + lost > n {
        return None;
    }
    let z = normal().inverse_cdf(0.5 + level / 2.0);
    let (b, c, n) = (gained as f64, lost as f64, n as f64);
    let inside = |delta: f64| (b - c - n * delta).abs() <= z * (n * null_variance(b, c, n, delta)).sqrt();
    let estimate = (b - c) / n;
    let limit = |end: f64| {
        if inside(end) {
            return end;
        }
        let (mut within, mut beyond) = (estimate, end);
        for _ in 0..HALVINGS {
            let middle = 0.5 * (within + beyond);
            if inside(middle) { within = middle } else { beyond = middle }
        }
        within
    };
    Some((limit(-1.0), limit(1.0)))
}

/// n times the variance of the estimate if the true difference is `delta`.
fn null_variance(b: f64, c: f64, n: f64, delta: f64) -> f64 {
    let p = constrained(b, c, n, delta);
    (2.0 * p + delta * (1.0 - delta)).max(0.0)
}

/// The most likely probability of a lost pair given the difference: the larger root of Tango's equation (8).
fn constrained(b: f64, c: f64, n: f64, delta: f64) -> f64 {
    let quadratic = 2.0 * n;
    let linear = -b - c + (2.0 * n - b + c) * delta;
    let constant = -c * delta * (1.0 - delta);
    let root = (linear * linear - 4.0 * quadratic * constant).max(0.0).sqrt();
    (root - linear) / (2.0 * quadratic)
}

/// Two-sided p of the mean difference under random signs of the documents' differences (Fisher's randomisation test).
///
/// Exact for few documents, so that a handful of samples can't look significant; with scores of 0 and 1 and one sample a
/// document it is McNemar's exact test.
pub fn sign_flip(clusters: &[Cluster], seed: u64) -> f64 {
    let sums: Vec<f64> = clusters.iter().map(|c| c.sum).filter(|s| *s != 0.0).collect();
    if sums.iter().any(|s| !s.is_finite()) {
        return f64::NAN;
    }
    let size: f64 = sums.iter().map(|s| s.abs()).sum();
    // Sums in another order differ in their last bits; what ties must count as a tie.
    let reached = |sum: f64, seen: f64| sum.abs() >= seen - 1e-12 * size;
    let seen = sums.iter().sum::<f64>().abs();
    if sums.len() <= EXACT {
        let signed = |mask: usize| -> f64 {
            sums.iter().enumerate().map(|(i, s)| if mask >> i & 1 == 1 { -s } else { *s }).sum()
        };
        let all = 1_usize << sums.len();
        return (0..all).filter(|&mask| reached(signed(mask), seen)).count() as f64 / all as f64;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || -> f64 { sums.iter().map(|s| if random.random::<bool>() { -s } else { *s }).sum() };
    let hits = (0..FLIPS).filter(|_| reached(draw(), seen)).count();
    (hits + 1) as f64 / (FLIPS + 1) as f64
}

/// Bias-corrected and accelerated bootstrap interval of the mean difference over documents at confidence `level`; none
/// for fewer than two documents.
///
/// Efron, *Better bootstrap confidence intervals*, Journal of the American Statistical Association 82 (1987).
pub fn bootstrap(clusters: &[Cluster], level: f64, seed: u64) -> Option<(f64, f64)> {
    let mean = |sum: f64, n: usize| sum / n.max(1) as f64;
    let total: f64 = clusters.iter().map(|c| c.sum).sum();
    let n: usize = clusters.iter().map(|c| c.n).sum();
    if clusters.len() < 2 || !total.is_finite() {
        return None;
    }
    let seen = mean(total, n);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draws: Vec<f64> = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let (mut sum, mut size) = (0.0, 0);
        for _ in 0..clusters.len() {
            let picked = clusters[random.random_range(0..clusters.len())];
            (sum, size) = (sum + picked.sum, size + picked.n);
        }
        draws.push(mean(sum, size));
    }
    draws.sort_by(f64::total_cmp);
    let left_out: Vec<f64> = clusters.iter().map(|c| mean(total - c.sum, n - c.n)).collect();
    let (bias, acceleration) = (bias(&draws, seen), acceleration(&left_out));
    let quantile = |p: f64| {
        let z = bias + normal().inverse_cdf(p);
        let share = normal().cdf(bias + z / (1.0 - acceleration * z));
        draws[((share * RESAMPLES as f64) as usize).min(RESAMPLES - 1)]
    };
    let tail = 0.5 - level / 2.0;
    Some((quantile(tail), quantile(1.0 - tail)))
}

/// How far the median of the resamples is from what was seen, in normal quantiles; ties count half.
fn bias(sorted: &[f64], seen: f64) -> f64 {
    let below = sorted.partition_point(|d| *d < seen) as f64;
    let upto = sorted.partition_point(|d| *d <= seen) as f64;
    let share = 0.5 * (below + upto) / sorted.len() as f64;
    // No resample on one side: no correction can be made out.
    if share <= 0.0 || share >= 1.0 { 0.0 } else { normal().inverse_cdf(share) }
}

/// Skewness of the jackknife values, a sixth of it.
fn acceleration(left_out: &[f64]) -> f64 {
    let mean = left_out.iter().sum::<f64>() / left_out.len() as f64;
    let power = |e: i32| left_out.iter().map(|x| (mean - x).powi(e)).sum::<f64>();
    let spread = power(2).powf(1.5);
    if spread > 0.0 { power(3) / (6.0 * spread) } else { 0.0 }
}

/// Holm's adjusted p values: each is significant at α if it is at most α, with an error of α for all of them together.
///
/// Holm, *A simple sequentially rejective multiple test procedure*, Scandinavian Journal of Statistics 6 (1979).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![f64::NAN; p.len()];
    let mut least = 0.0_f64;
    for (rank, &i) in order.iter().enumerate() {
        if p[i].is_nan() {
            continue;
        }
        least = least.max((p.len() - rank) as f64 * p[i]).min(1.0);
        adjusted[i] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, within: f64) {
        assert!((a - b).abs() <= within, "{a} is not {b}");
    }

    fn single(sums: &[f64]) -> Vec<Cluster> {
        sums.iter().map(|&sum| Cluster { sum, n: 1 }).collect()
    }

    #[test]
    fn mcnemar_is_the_binomial_test() {
        // By hand: 1 of 8 discordant pairs, 2 · (1 + 8) / 256.
        close(mcnemar(1, 7), 18.0 / 256.0, 1e-12);
        close(mcnemar(7, 1), 18.0 / 256.0, 1e-12);
        // 0 of 5: 2 / 32. 3 of 6: both halves, cut at 1.
        close(mcnemar(0, 5), 0.0625, 1e-12);
        assert_eq!(mcnemar(3, 3), 1.0);
        assert_eq!(mcnemar(0, 0), 1.0);
        // 40 and 20 of 60 discordant pairs: Σ_{k ≤ 20} C(60, k) / 2^59.
        let mut term = 1.0_f64;
        let mut sum = 1.0;
        for k in 1..=20 {
            term *= f64::from(61 - k) / f64::from(k);
            sum += term;
        }
        close(mcnemar(40, 20), 2.0 * sum / 2f64.powi(60), 1e-10);
    }

    /// Airway hyper-responsiveness before and after stem cell transplantation (Bentur et al. 2009), as in Fagerland,
    /// Lydersen & Laake, *Recommended tests and confidence intervals for paired binomial proportions*, Statistics in
    /// Medicine 33 (2014): 1 and 7 discordant of 21; McNemar's exact p is 0.0703, Tango's interval −0.517 to −0.026.
    #[test]
    fn tango_is_as_published() {
        close(mcnemar(1, 7), 0.0703, 5e-5);
        let (low, high) = tango(1, 7, 21, 0.95).unwrap();
        close(low, -0.517, 6e-4);
        close(high, -0.026, 6e-4);
    }

    /// The log-likelihood of the pairs at its maximum over the nuisance parameter, found by brute force.
    fn brute_force(b: f64, c: f64, n: f64, delta: f64) -> f64 {
        let value = |p: f64| {
            let term = |count: f64, p: f64| if count == 0.0 { 0.0 } else { count * p.ln() };
            term(c, p) + term(b, p + delta) + term(n - b - c, 1.0 - 2.0 * p - delta)
        };
        let (low, high) = ((-delta).max(0.0), 0.5 * (1.0 - delta));
        let points = (1..200_000).map(|i| low + (high - low) * f64::from(i) / 200_000.0);
        points.max_by(|x, y| value(*x).total_cmp(&value(*y))).unwrap()
    }

    #[test]
    fn at_tangos_limits_the_score_statistic_is_the_quantile() {
        for (b, c, n) in [(12, 2, 50), (1, 7, 21), (40, 20, 160), (0, 3, 20), (5, 0, 9)] {
            let (low, high) = tango(b, c, n, 0.95).unwrap();
            let (b, c, n) = (b as f64, c as f64, n as f64);
            for limit in [low, high] {
                let p = brute_force(b, c, n, limit);
                close(constrained(b, c, n, limit), p, 1e-4);
                let score = (b - c - n * limit) / (n * (2.0 * p + limit * (1.0 - limit))).sqrt();
                close(score.abs(), 1.959_964, 2e-2);
            }
            assert!(low < (b - c) / n && (b - c) / n < high);
        }
    }

    #[test]
    fn tango_has_a_width_without_discordant_pairs() {
        // With b = c = 0 the statistic is −nΔ / √(n |Δ| (1 − |Δ|)): |Δ| = z² / (n + z²).
        let (low, high) = tango(0, 0, 20, 0.95).unwrap();
        let want = 3.841_459 / (20.0 + 3.841_459);
        close(high, want, 1e-6);
        close(low, -want, 1e-6);
        assert_eq!(tango(0, 0, 0, 0.95), None);
    }

    #[test]
    fn signs_of_one_sample_documents_are_mcnemars_test() {
        let scores = [1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 0.0, 0.0];
        close(sign_flip(&single(&scores), 0), mcnemar(1, 7), 1e-12);
        // Four equal graded differences: 2 of 16 assignments reach them.
        close(sign_flip(&single(&[0.1; 4]), 0), 0.125, 1e-12);
        // Above the exact size: 20 gains and no loss, 2 / 2^20 by hand, bounded by the draws here.
        close(sign_flip(&single(&[1.0; 20]), 0), 1.0 / 20_001.0, 1e-9);
        assert!(sign_flip(&single(&[f64::NAN, 1.0]), 0).is_nan());
        assert_eq!(sign_flip(&[], 0), 1.0);
    }

    #[test]
    fn random_signs_are_near_the_exact_test() {
        let sums: Vec<f64> = (0..30).map(|i| if i < 20 { 1.0 } else { -1.0 }).collect();
        close(sign_flip(&single(&sums), 3), mcnemar(20, 10), 0.01);
    }

    #[test]
    fn the_bootstrap_of_many_samples_is_the_normal_interval() {
        let sums: Vec<f64> = (0..400).map(|i| f64::from(i % 20) / 20.0).collect();
        let n = sums.len() as f64;
        let mean = sums.iter().sum::<f64>() / n;
        let error = (sums.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n / n).sqrt();
        let (low, high) = bootstrap(&single(&sums), 0.95, 1).unwrap();
        close(low, mean - 1.96 * error, 0.15 * error);
        close(high, mean + 1.96 * error, 0.15 * error);
        assert_eq!(bootstrap(&single(&sums), 0.95, 1), Some((low, high)), "the same seed");
        assert_eq!(bootstrap(&single(&[1.0]), 0.95, 1), None);
    }

    #[test]
    fn the_bootstrap_follows_the_skew() {
        let sums: Vec<f64> = (1..=40).map(|i| (f64::from(i) / 8.0).exp()).collect();
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        let (low, high) = bootstrap(&single(&sums), 0.95, 2).unwrap();
        assert!(high - mean > 1.2 * (mean - low), "{low} {mean} {high}");
    }

    #[test]
    fn a_document_of_many_samples_is_drawn_as_one() {
        let spread = |clusters: &[Cluster]| bootstrap(clusters, 0.95, 4).map(|(l, h)| h - l).unwrap();
        let single = single(&[0.0, 1.0, 0.0, 1.0, 1.0, 0.0]);
        let tripled: Vec<Cluster> = single.iter().map(|c| Cluster { sum: 3.0 * c.sum, n: 3 }).collect();
        close(spread(&tripled), spread(&single), 1e-9);
        close(sign_flip(&tripled, 0), sign_flip(&single, 0), 1e-12);
    }

    #[test]
    fn holm_multiplies_the_smallest_most_and_keeps_the_order() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            close(*got, want, 1e-12);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
        let with_nan = holm(&[f64::NAN, 0.5]);
        assert!(with_nan[0].is_nan() && with_nan[1] == 1.0);
    }
}
