//! Times: only of runs without audit, without the first step, counted by token ids.

use super::stats::{Values, percentile};
use crate::record::{MemoryRow, Metric, Metrics, PoolRecord, TimingRecord};

/// Steps at the start of a decode that are warm-up.
const WARM_UP: usize = 1;

fn milliseconds(metrics: &mut Metrics, name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    for (p, suffix) in [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")] {
        if let Some(value) = percentile(&values, p) {
            metrics.insert(
                format!("{name}_{suffix}"),
                Metric {
                    value: 1e3 * value,
                    stderr: None,
                    n: values.len() as u64,
                    unit: "ms".to_owned(),
                    higher_is_better: Some(false),
                },
            );
        }
    }
}

/// Times of one (cell, task). `decode`: the cell did not audit, so that its steps are worth timing.
pub fn metrics(records: &[&TimingRecord], decode: bool) -> Metrics {
    let mut metrics = Metrics::new();
    if !decode {
        return metrics;
    }
    let (mut prefill, mut ttft) = (Values::default(), Vec::new());
    for r in records.iter().filter(|r| r.prefill_s > 0.0) {
        prefill.push(&r.sample, r.prefill_tokens as f64 / r.prefill_s);
        // The first token is drawn from the prompt's last logits.
        ttft.push(r.prefill_s);
    }
    milliseconds(&mut metrics, "ttft_ms", ttft);
    metrics.extend(prefill.metric("token/s", Some(true)).map(|m| ("prefill_tok_s".to_owned(), m)));
    let (mut steps, mut tpot, mut rate, mut exposed) =
        (Vec::new(), Vec::new(), Values::default(), Values::default());
    let (mut all_tokens, mut all_seconds) = (0.0, 0.0);
    for r in records {
        let (after, tokens) =
            (&r.step_s[WARM_UP.min(r.step_s.len())..], &r.step_tokens[WARM_UP.min(r.step_tokens.len())..]);
        let (seconds, tokens) = (after.iter().sum::<f64>(), f64::from(tokens.iter().sum::<u32>()));
        if tokens == 0.0 || seconds <= 0.0 {
            continue;
        }
        steps.extend_from_slice(after);
        // Time from the first token to the last over the gaps between tokens.
        tpot.push(seconds / tokens);
        // Its share of the batch's time.
        let share = seconds / r.batch as f64;
        (all_tokens, all_seconds) = (all_tokens + tokens, all_seconds + share);
        rate.push(&r.sample, tokens / share);
        let waits = &r.exposed_s[WARM_UP.min(r.exposed_s.len())..];
        exposed.push(&r.sample, 1e3 * waits.iter().sum::<f64>() / after.len() as f64);
    }
    if all_seconds > 0.0 {
        let value = rate.metric_as(all_tokens / all_seconds, "token/s", Some(true));
        metrics.extend(value.map(|m| ("decode_tok_s".to_owned(), m)));
    }
    metrics.extend(exposed.metric("ms/step", Some(false)).map(|m| ("exposed_transfer_ms".to_owned(), m)));
    milliseconds(&mut metrics, "step_ms", steps);
    milliseconds(&mut metrics, "tpot_ms", tpot);
    metrics
}

/// The largest memory among a cell's records.
pub fn memory(cell: &str, records: &[&TimingRecord]) -> MemoryRow {
    let planned = |pools: &[PoolRecord]| pools.iter().map(|p| p.bytes).sum::<u64>();
    let largest = records.iter().max_by_key(|r| planned(&r.pools));
    let Some(largest) = largest else { return MemoryRow { cell: cell.to_owned(), ..MemoryRow::default() } };
    MemoryRow { cell: cell.to_owned(), pools: largest.pools.clone(), allocated: largest.allocated }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step_s: &[f64], step_tokens: &[u32], batch: usize) -> TimingRecord {
        TimingRecord {
            sample: "s".into(),
            task: "t".into(),
            cell: "c".into(),
            repeat: 0,
            batch,
            step_s: step_s.to_vec(),
            step_tokens: step_tokens.to_vec(),
            exposed_s: vec![0.0; step_s.len()],
            prefill_s: 2.0,
            prefill_tokens: 100,
            pools: Vec::new(),
            allocated: 0,
        }
    }

    #[test]
    fn one_token_has_no_time_per_output_token() {
        let m = metrics(&[&record(&[0.5], &[1], 1)], true);
        assert!(!m.contains_key("tpot_ms_p50") && !m.contains_key("decode_tok_s"));
        assert_eq!(m["prefill_tok_s"].value, 50.0);
        assert_eq!(m["ttft_ms_p50"].value, 2000.0);
    }

    #[test]
    fn four_tokens_have_three_gaps() {
        let m = metrics(&[&record(&[0.5, 0.1, 0.1, 0.1], &[1, 1, 1, 1], 1)], true);
        assert!((m["tpot_ms_p50"].value - 100.0).abs() < 1e-9);
        assert!((m["decode_tok_s"].value - 10.0).abs() < 1e-9);
        assert_eq!(m["step_ms_p99"].n, 3);
        assert!(!metrics(&[&record(&[0.5, 0.1], &[1, 1], 1)], false).contains_key("step_ms_p50"));
    }

    #[test]
    fn a_batch_shares_its_time_and_accepted_drafts_count() {
        let m = metrics(&[&record(&[1.0, 0.2], &[1, 4], 2), &record(&[1.0, 0.2], &[1, 4], 2)], true);
        assert!((m["decode_tok_s"].value - 40.0).abs() < 1e-9);
        assert!((m["tpot_ms_p50"].value - 50.0).abs() < 1e-9);
    }
}
