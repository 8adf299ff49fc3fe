//! Next tokens.

use super::need;
use crate::cpu::Scratch;
use crate::cuda::{CudaBuf, arg};
use crate::memory::CpuBuf;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::ids::NONE;
use oasis_core::ops::Sample;
use oasis_core::settings::Sampling;
use oasis_core::{Error, Result};

/// Exact on equal logits, but for draws that hit the border of two tokens up to the rounding of a sum in f64.
pub const TOLERANCE: f64 = 0.0;

impl Sample for Cpu {
    fn sample(
        &mut self,
        logits: &CpuBuf<f32>,
        rows: usize,
        vocab: usize,
        sampling: &Sampling,
        draws: &CpuBuf<f32>,
        out: &mut CpuBuf<u32>,
    ) -> Result<()> {
        check(sampling, [rows, vocab], [logits.len(), draws.len(), out.len()])?;
        on_host(self, logits, [rows, vocab], sampling, draws, out);
        Ok(())
    }
}

impl Sample for Cuda {
    fn sample(
        &mut self,
        logits: &CudaBuf<f32>,
        rows: usize,
        vocab: usize,
        sampling: &Sampling,
        draws: &CudaBuf<f32>,
        out: &mut CudaBuf<u32>,
    ) -> Result<()> {
        check(sampling, [rows, vocab], [logits.len(), draws.len(), out.len()])?;
        let (from, width, draws, to) = (logits.at(0), vocab as u32, draws.at(0), out.at(0));
        let (name, threads, mut args) = if sampling.greedy() {
            ("argmax", 1024, vec![arg(&from), arg(&width), arg(&to)])
        } else {
            let Sampling { temperature, top_p } = sampling;
            ("draw", 512, vec![arg(&from), arg(&width), arg(temperature), arg(top_p), arg(&draws), arg(&to)])
        };
        // SAFETY: sample.cu's arguments, of the lengths checked above.
        unsafe { self.launch(name, [rows, 1, 1], threads, &mut args) }
    }
}

/// One token a row, with the threads of `cpu`.
fn on_host(
    cpu: &Cpu,
    logits: &[f32],
    [rows, vocab]: [usize; 2],
    sampling: &Sampling,
    draws: &[f32],
    out: &mut [u32],
) {
    let to = Parts::new(&mut out[..rows]);
    cpu.team.run(rows, rows * vocab, |worker, r| {
        let row = &logits[r * vocab..][..vocab];
        let token = match argmax(row) {
            Some(best) if sampling.greedy() || row[best] == f32::INFINITY => best as u32,
            Some(best) if row[best] == f32::NEG_INFINITY => best as u32,
            Some(best) => draw(row, row[best], sampling, draws[r], &mut cpu.workers.get(worker)) as u32,
            None => NONE,
        };
        // SAFETY: element r is this task's.
        unsafe { to.slice(r, 1)[0] = token };
    });
}

fn check(sampling: &Sampling, [rows, vocab]: [usize; 2], [logits, draws, out]: [usize; 3]) -> Result<()> {
    need("sample", "logits", logits, rows * vocab)?;
    need("sample", "out", out, rows)?;
    if sampling.greedy() {
        return Ok(());
    }
    need("sample", "draws", draws, rows)?;
    let (t, p) = (sampling.temperature, sampling.top_p);
    if !(t > 0.0 && t.is_finite()) {
        return Err(Error::setting("temperature", format!("{t} is no temperature: use 0 (greedy) or more")));
    }
    if !(p > 0.0 && p <= 1.0) {
        return Err(Error::setting("top_p", format!("{p} is out of range: use 0 < top_p ≤ 1")));
    }
    Ok(())
}

/// The lowest index of the largest logit.
fn argmax(row: &[f32]) -> Option<usize> {
    // The largest first, in sixteen independent lanes; NaN loses every comparison.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = row.chunks_exact(16);
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = if x > *lane { x } else { *lane };
    }
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let best = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == best)
}

/// Draws from the softmax of `row / temperature` (largest logit `max`), cut to its nucleus. Likelier tokens come first
/// in the nucleus, ties by id; without a nucleus tokens come in the order of their ids.
fn draw(row: &[f32], max: f32, sampling: &Sampling, uniform: f32, scratch: &mut Scratch) -> usize {
    let weight = |x: f32| {
        let w = libm::exp(f64::from(x - max) / f64::from(sampling.temperature));
        if w.is_nan() { 0.0 } else { w }
    };
    let total: f64 = row.iter().map(|&x| weight(x)).sum();
    if sampling.top_p >= 1.0 {
        let all = row.iter().enumerate().map(|(i, &x)| (i, weight(x)));
        return pick(all, f64::from(uniform) * total);
    }
    // Likeliest first: the key orders by (logit descending, id ascending).
    let key = |(i, &x): (usize, &f32)| {
        let bits = (x + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        u64::from(!ascending) << 32 | i as u64
    };
    scratch.keys.clear();
    scratch.keys.extend(row.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(key));
    let keys = &mut scratch.keys;
    let goal = f64::from(sampling.top_p) * total;
    let (mut sorted, mut reached) = (0, 0.0);
    let mut nucleus = 0;
    while reached < goal && nucleus < keys.len() {
        if nucleus == sorted {
            // Sort as much as is needed, in growing steps.
            let more = (sorted.max(128)).min(keys.len() - sorted);
            if sorted + more < keys.len() {
                keys[sorted..].select_nth_unstable(more);
            }
            keys[sorted..sorted + more].sort_unstable();
            sorted += more;
        }
        reached += weight(row[keys[nucleus] as u32 as usize]);
        nucleus += 1;
    }
    let tokens = keys[..nucleus].iter().map(|&key| key as u32 as usize);
    pick(tokens.map(|i| (i, weight(row[i]))), f64::from(uniform) * reached)
}

/// The token at which the running sum passes `goal`; the last one of any weight if rounding keeps it below.
fn pick(tokens: impl Iterator<Item = (usize, f64)>, goal: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for (i, w) in tokens {
        if w > 0.0 {
            sum += w;
            last = i;
            if sum > goal {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::ops::Memory;

    fn sample(logits: &[f32], vocab: usize, temperature: f32, top_p: f32, draws: &[f32]) -> Result<Vec<u32>> {
        let mut cpu = Cpu::new(1);
        let rows = logits.len() / vocab;
        let (logits, draws) = (cpu.upload(logits)?, cpu.upload(draws)?);
        let mut out = cpu.upload(&vec![u32::MAX - 1; rows])?;
        cpu.sample(&logits, rows, vocab, &Sampling { temperature, top_p }, &draws, &mut out)?;
        Ok(out.to_vec())
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_largest_and_never_nan() {
        let nan = f32::NAN;
        let logits = [nan, 1.0, 3.0, 3.0, -1.0, nan, -2.0, nan, -3.0, -2.0];
        assert_eq!(sample(&logits, 5, 0.0, 1.0, &[]).unwrap(), [2, 1]);
        assert_eq!(sample(&[f32::NEG_INFINITY; 3], 3, 0.0, 1.0, &[]).unwrap(), [0]);
        assert_eq!(sample(&[1.0, f32::INFINITY, f32::INFINITY], 3, 1.0, 1.0, &[0.9]).unwrap(), [1]);
        assert_eq!(sample(&[nan; 4], 4, 0.0, 1.0, &[]).unwrap(), [NONE]);
        let mut random = Random::new(10);
        let wide = random.f32(3 * 1003);
        let best =
            |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap();
        let want: Vec<u32> = wide.chunks(1003).map(|row| best(row) as u32).collect();
        assert_eq!(sample(&wide, 1003, 0.0, 1.0, &[]).unwrap(), want);
    }

    #[test]
    fn draws_follow_the_probabilities_and_stay_in_the_nucleus() {
        let p = [0.1, 0.4, 0.2, 0.3_f32];
        let logits = p.map(f32::ln);
        for (top_p, want) in [(1.0, p), (0.65, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]), (0.1, [0.0, 1.0, 0.0, 0.0])]
        {
            let mut counts = [0; 4];
            for i in 0..1000 {
                let uniform = (i as f32 + 0.5) / 1000.0;
                counts[sample(&logits, 4, 1.0, top_p, &[uniform]).unwrap()[0] as usize] += 1;
            }
            for (count, want) in counts.iter().zip(want) {
                assert!((f64::from(*count) - 1000.0 * f64::from(want)).abs() <= 1.5, "{top_p}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_wide_nucleus_is_that_of_a_full_sort() {
        let mut random = Random::new(11);
        let logits = random.f32(5000);
        let mut order: Vec<usize> = (0..5000).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        for top_p in [0.05, 0.5, 0.9] {
            let mut sum = 0.0;
            let inside = |&i: &usize| {
                let before = sum;
                sum += f64::from(logits[i]).exp();
                before < f64::from(top_p) * total
            };
            let nucleus: Vec<usize> = order.iter().copied().take_while(inside).collect();
            let last = sample(&logits, 5000, 1.0, top_p, &[0.999_999_94]).unwrap()[0] as usize;
            assert_eq!(last, *nucleus.last().unwrap(), "{top_p}");
            assert_eq!(sample(&logits, 5000, 1.0, top_p, &[0.0]).unwrap()[0] as usize, nucleus[0]);
        }
        assert!(sample(&logits, 5000, -1.0, 1.0, &[0.0]).is_err());
        assert!(sample(&logits, 5000, 1.0, f32::NAN, &[0.0]).is_err());
    }
}
