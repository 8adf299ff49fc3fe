//! The contract of [`Summary`].

use super::{Checked, Finding, Findings, ensure, rng};
use crate::Result;
use crate::geometry::BlockShape;
use crate::policy::{Keys, Reduce, Summary, SummaryShape};
use crate::storage::{decode, encode};
use half::bf16;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Runs the contract of [`Summary`] over `cases` instances, each on the keys of a few random blocks: normal,
/// spiky, constant, large and tiny ones, of head widths 1 to 128.
///
/// Stored forms are consistent; `fit`, `encode` and `lift` write all that they should, depend on their
/// arguments alone (a block encoded alone is what it is among others) and keep finite numbers finite; NaN in a
/// key or a query reaches the score; a claimed upper bound holds after storage has rounded the summary.
pub fn check_summary(build: &dyn Fn(u64) -> Result<Box<dyn Summary>>, cases: usize) -> Vec<Finding> {
    let mut findings = Findings::default();
    for seed in 0..cases as u64 {
        findings.note(seed, || stored_form(build, seed));
        findings.note(seed, || maps(build, seed));
        findings.note(seed, || bound(build, seed));
        findings.note(seed, || not_a_number(build, seed));
    }
    findings.0
}

/// One block's score for one query head, straight from the definition: `reduce` of the inner products of the
/// lifted query with the decoded vectors, `bias` (what `lift` returned) added to each. NaN stays NaN.
///
/// `lifted` is `[dim]`, `stored` one block's [`SummaryShape::bytes`]. For checks; kernels have their own.
pub fn score_block(shape: &SummaryShape, stored: &[u8], lifted: &[f32], bias: f32) -> f32 {
    let mut vectors = vec![0.0; shape.vectors * shape.dim];
    decode(shape.storage, shape.rounding, shape.dim, stored, &mut vectors);
    let logits: Vec<f64> = vectors
        .chunks_exact(shape.dim)
        .map(|vector| {
            let product = |(&a, &b): (&f32, &f32)| f64::from(a) * f64::from(b);
            f64::from(bias) + vector.iter().zip(lifted).map(product).sum::<f64>()
        })
        .collect();
    if logits.iter().any(|l| l.is_nan()) {
        return f32::NAN;
    }
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let score = match shape.reduce {
        Reduce::Max => max,
        Reduce::Sum => logits.iter().sum(),
        Reduce::LogSumExp if max.is_infinite() => max,
        Reduce::LogSumExp => max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln(),
    };
    score as f32
}

/// Keys of a few blocks and a query.
struct Sample {
    block: BlockShape,
    /// `[blocks][tokens][head_dim]`.
    keys: Vec<f32>,
    query: Vec<f32>,
}

impl Sample {
    fn new(seed: u64) -> Self {
        let mut rng = rng(seed, 5);
        let widths = [1, 2, 3, 16, 64, 80, 96, 112, 128];
        let head_dim = widths[(seed as usize).min(8).min(rng.random_range(0..9))];
        let tokens = [1, 2, 8, 16, 32][rng.random_range(0..5)];
        let block = BlockShape { tokens, head_dim };
        let blocks = rng.random_range(1..5);
        let kind = rng.random_range(0..6);
        let scale = [1e-3, 0.1, 1.0, 10.0, 1e3][rng.random_range(0..5)];
        let centre: Vec<f32> = (0..head_dim).map(|_| normal(&mut rng) * scale).collect();
        let spike = rng.random_range(0..head_dim);
        let key = |i: usize, rng: &mut ChaCha8Rng| match kind {
            0 => centre[i],
            1 => 0.0,
            2 if i == spike => 30.0 * scale * normal(rng),
            3 => centre[i] * 8.0 + normal(rng) * scale,
            _ => normal(rng) * scale,
        };
        // The cache holds bf16, so no other keys exist.
        let keys = (0..blocks * block.half()).map(|i| bf16::from_f32(key(i % head_dim, &mut rng)).to_f32());
        let keys: Vec<f32> = keys.collect();
        let query = match rng.random_range(0..6) {
            0 => vec![0.0; head_dim],
            1 => (0..head_dim).map(|i| if i == spike { -20.0 } else { 0.0 }).collect(),
            _ => (0..head_dim).map(|_| bf16::from_f32(3.0 * normal(&mut rng)).to_f32()).collect(),
        };
        Self { block, keys, query }
    }

    fn blocks(&self) -> impl DoubleEndedIterator<Item = Keys<'_>> + ExactSizeIterator {
        let BlockShape { tokens, head_dim } = self.block;
        self.keys.chunks_exact(self.block.half()).map(move |data| Keys { data, tokens, head_dim })
    }

    fn all(&self) -> Keys<'_> {
        let head_dim = self.block.head_dim;
        Keys { data: &self.keys, tokens: self.keys.len() / head_dim, head_dim }
    }

    fn show(&self) -> String {
        let few = |v: &[f32]| format!("{:?}{}", &v[..v.len().min(8)], if v.len() > 8 { "…" } else { "" });
        let block = self.block;
        format!(
            "blocks {}×{}, keys {}, query {}",
            block.tokens,
            block.head_dim,
            few(&self.keys),
            few(&self.query)
        )
    }
}

/// A normal variable (Box, Muller).
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let (u, v) = (1.0 - rng.random::<f32>(), rng.random::<f32>());
    (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
}

/// Filled with what no summary makes, so that a forgotten number shows.
fn blank(len: usize) -> Vec<f32> {
    vec![f32::from_bits(0x7fc0_dead); len]
}

fn fitted(summary: &dyn Summary, sample: &Sample) -> Vec<f32> {
    let mut fit = blank(summary.fit_len(sample.block));
    summary.fit(sample.all(), &mut fit);
    fit
}

fn encoded(summary: &dyn Summary, fit: &[f32], keys: Keys<'_>, shape: &SummaryShape) -> Vec<f32> {
    let mut out = blank(shape.vectors * shape.dim);
    summary.encode(fit, keys, &mut out);
    out
}

fn stored(vectors: &[f32], shape: &SummaryShape) -> Vec<u8> {
    let mut out = vec![0xa5; shape.bytes()];
    encode(shape.storage, shape.rounding, shape.dim, vectors, &mut out);
    out
}

fn lifted(summary: &dyn Summary, fit: &[f32], query: &[f32], shape: &SummaryShape) -> (Vec<f32>, f32) {
    let mut out = blank(shape.dim);
    let bias = summary.lift(fit, query, &mut out);
    (out, bias)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn finite(values: &[f32]) -> bool {
    values.iter().all(|v| v.is_finite())
}

fn stored_form(build: &dyn Fn(u64) -> Result<Box<dyn Summary>>, seed: u64) -> Checked {
    let sample = Sample::new(seed);
    let (a, b) = (build(seed)?, build(seed)?);
    let shape = a.shape(sample.block);
    let contract = "its stored form is one that the codec has, and always the same";
    shape.check().or_else(|e| super::broken(contract, format!("{shape:?} of {:?}: {e}", sample.block)))?;
    let same = shape == a.shape(sample.block) && shape == b.shape(sample.block);
    ensure(same && a.fit_len(sample.block) == b.fit_len(sample.block), contract, || {
        format!("{shape:?} and {:?} of {:?}", b.shape(sample.block), sample.block)
    })
}

fn maps(build: &dyn Fn(u64) -> Result<Box<dyn Summary>>, seed: u64) -> Checked {
    let sample = Sample::new(seed);
    let summary = build(seed)?;
    let shape = summary.shape(sample.block);
    let fit = fitted(summary.as_ref(), &sample);
    ensure(finite(&fit), "fit writes all its floats, finite for finite keys", || {
        format!("{fit:?} from {}", sample.show())
    })?;
    let among: Vec<Vec<f32>> =
        sample.blocks().map(|keys| encoded(summary.as_ref(), &fit, keys, &shape)).collect();
    ensure(among.iter().all(|v| finite(v)), "encode writes all its vectors, finite for finite keys", || {
        format!("{among:?} from {}", sample.show())
    })?;
    let (query, bias) = lifted(summary.as_ref(), &fit, &sample.query, &shape);
    ensure(
        finite(&query) && bias.is_finite(),
        "lift writes all its coordinates, finite for a finite query",
        || format!("{query:?} + {bias} from {}", sample.show()),
    )?;
    for (b, (keys, vectors)) in sample.blocks().zip(&among).enumerate().rev() {
        let fresh = build(seed)?;
        let alone = encoded(fresh.as_ref(), &fitted(fresh.as_ref(), &sample), keys, &shape);
        ensure(bits(&alone) == bits(vectors), "a block encoded alone is what it is among others", || {
            format!("block {b} of {}", sample.show())
        })?;
        let again = lifted(fresh.as_ref(), &fit, &sample.query, &shape);
        ensure(
            (bits(&again.0), again.1.to_bits()) == (bits(&query), bias.to_bits()),
            "lift is a pure function",
            || sample.show(),
        )?;
        let score = score_block(&shape, &stored(vectors, &shape), &query, bias);
        ensure(score.is_finite(), "scores of finite keys and queries are finite", || {
            format!("{score} for block {b} of {}", sample.show())
        })?;
    }
    Ok(())
}

fn bound(build: &dyn Fn(u64) -> Result<Box<dyn Summary>>, seed: u64) -> Checked {
    let sample = Sample::new(seed);
    let summary = build(seed)?;
    if !summary.is_upper_bound() {
        return Ok(());
    }
    let shape = summary.shape(sample.block);
    let fit = fitted(summary.as_ref(), &sample);
    let (query, bias) = lifted(summary.as_ref(), &fit, &sample.query, &shape);
    let scale = 1.0 / (sample.block.head_dim as f64).sqrt();
    for (b, keys) in sample.blocks().enumerate() {
        let score = score_block(
            &shape,
            &stored(&encoded(summary.as_ref(), &fit, keys, &shape), &shape),
            &query,
            bias,
        );
        for key in keys.iter() {
            let terms = key.iter().zip(&sample.query).map(|(&k, &q)| f64::from(k) * f64::from(q) * scale);
            let (logit, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            // What f32 loses in the factor 1/√d and in the score itself.
            ensure(f64::from(score) >= logit - 1e-6 * size, "its upper bound holds after storage", || {
                format!("score {score} < logit {logit} in block {b} of {}", sample.show())
            })?;
        }
    }
    Ok(())
}

fn not_a_number(build: &dyn Fn(u64) -> Result<Box<dyn Summary>>, seed: u64) -> Checked {
    let mut sample = Sample::new(seed);
    let summary = build(seed)?;
    let shape = summary.shape(sample.block);
    let fit = fitted(summary.as_ref(), &sample);
    let mut rng = rng(seed, 6);
    let keys = sample.blocks().next().map(|k| stored(&encoded(summary.as_ref(), &fit, k, &shape), &shape));
    let keys = keys.unwrap_or_default();
    let mut query = sample.query.clone();
    let at = rng.random_range(0..query.len());
    query[at] = f32::NAN;
    let (lift, bias) = lifted(summary.as_ref(), &fit, &query, &shape);
    let score = score_block(&shape, &keys, &lift, bias);
    ensure(score.is_nan(), "NaN in a query reaches the score", || {
        format!("score {score} with NaN at {at} of {}", sample.show())
    })?;
    let at = rng.random_range(0..sample.block.half());
    sample.keys[at] = f32::NAN;
    let (lift, bias) = lifted(summary.as_ref(), &fit, &sample.query, &shape);
    let vectors =
        sample.blocks().next().map(|k| encoded(summary.as_ref(), &fit, k, &shape)).unwrap_or_default();
    let score = score_block(&shape, &stored(&vectors, &shape), &lift, bias);
    ensure(score.is_nan(), "NaN in a key reaches the score", || {
        format!("score {score} with NaN at {at} of {}", sample.show())
    })
}
