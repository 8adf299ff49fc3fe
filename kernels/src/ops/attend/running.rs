//! Running softmax sums of the queries of one KV head, a block of keys and values at a time.

use crate::cpu::Scratch;
use crate::simd::{Job, LANES, Lanes, Level, Narrow, Widen, dot_f32, exp, widen};
use half::bf16;

/// The query vectors of one KV head: rows × group.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Queries<'a> {
    /// `[rows][heads][head_dim]`.
    pub q: &'a [bf16],
    /// First row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// KV head.
    pub head: usize,
    /// Query heads of it.
    pub group: usize,
    /// Query heads of the model.
    pub heads: usize,
}

impl Queries<'_> {
    /// Where query i is, among `[rows][heads]`.
    pub(in crate::ops) fn place(&self, i: usize) -> usize {
        (self.first + i / self.group) * self.heads + self.head * self.group + i % self.group
    }
}

/// Running softmax sums of some queries over blocks of keys and values.
pub(in crate::ops) struct Running<'a> {
    /// Floats of a vector: head_dim, rounded up to a multiple of [`LANES`].
    width: usize,
    /// Most tokens of a block, rounded up.
    room: usize,
    group: usize,
    scale: f32,
    /// `[queries][width]`.
    q: &'a mut [f32],
    /// `[queries][width]`.
    sum: &'a mut [f32],
    /// `[queries]`.
    max: &'a mut [f32],
    /// `[queries]`.
    weight: &'a mut [f32],
    /// `[room][width]`.
    k: &'a mut [f32],
    /// `[room][width]`.
    v: &'a mut [f32],
    /// `[room]`.
    logits: &'a mut [f32],
    /// `[queries]`: ln Σ exp(logit) of the last block.
    pub(in crate::ops) block_lse: &'a mut [f32],
    /// Tokens that a query sees.
    seen: &'a mut Vec<u32>,
}

impl<'a> Running<'a> {
    pub(in crate::ops) fn new(
        scratch: &'a mut Scratch,
        queries: Queries<'_>,
        head_dim: usize,
        tokens: usize,
    ) -> Self {
        let n = queries.rows * queries.group;
        let width = head_dim.next_multiple_of(LANES);
        let room = tokens.next_multiple_of(LANES);
        let lengths = [n * width, n * width, n, n, room * width, room * width, room, n];
        let ([q, sum, max, weight, k, v, logits, block_lse], seen) = scratch.floats_and_indices(lengths);
        for (i, to) in q.chunks_exact_mut(width).enumerate() {
            to[head_dim..].fill(0.0);
            widen(&queries.q[queries.place(i) * head_dim..][..head_dim], &mut to[..head_dim]);
        }
        sum.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        weight.fill(0.0);
        let scale = 1.0 / (head_dim as f32).sqrt();
        Self { width, room, group: queries.group, scale, q, sum, max, weight, k, v, logits, block_lse, seen }
    }

    /// Widens `tokens` keys and values of `[K: half | V: half]`.
    pub(in crate::ops) fn load(&mut self, level: Level, kv: &[bf16], half: usize, tokens: usize, head_dim: usize) {
        self.load_strided(level, &kv[..half], &kv[half..], head_dim, tokens, head_dim);
    }

    /// Widens `tokens` keys and values that lie `stride` apart.
    pub(in crate::ops) fn load_strided(
        &mut self,
        level: Level,
        k: &[bf16],
        v: &[bf16],
        stride: usize,
        tokens: usize,
        head_dim: usize,
    ) {
        assert!(tokens <= self.room);
        if stride == head_dim && self.width == head_dim {
            level.run(Widen { from: &k[..tokens * head_dim], to: &mut *self.k });
            level.run(Widen { from: &v[..tokens * head_dim], to: &mut *self.v });
            return;
        }
        for t in 0..tokens {
            for (from, to) in [(k, &mut *self.k), (v, &mut *self.v)] {
                let to = &mut to[t * self.width..][..self.width];
                to[head_dim..].fill(0.0);
                level.run(Widen { from: &from[t * stride..][..head_dim], to: &mut to[..head_dim] });
            }
        }
    }

    /// Adds the loaded block's `tokens`; query `i` of row `i / group` sees token t if `sees(row, t)`.
    pub(in crate::ops) fn block(&mut self, level: Level, tokens: usize, sees: impl Fn(usize, usize) -> bool) {
        for i in 0..self.max.len() {
            let row = i / self.group;
            self.seen.clear();
            self.seen.extend((0..tokens as u32).filter(|&t| sees(row, t as usize)));
            level.run(BlockStep { run: self, query: i });
        }
    }

    /// Writes the output of query `i`.
    pub(in crate::ops) fn finish(&mut self, level: Level, i: usize, out: &mut [bf16]) {
        let sum = &mut self.sum[i * self.width..][..out.len()];
        for x in sum.iter_mut() {
            *x /= self.weight[i];
        }
        level.run(Narrow { from: sum, to: out });
    }

    /// Writes the output of query `i`, not rounded.
    pub(in crate::ops) fn finish_exact(&mut self, i: usize, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(&self.sum[i * self.width..]) {
            *out = x / self.weight[i];
        }
    }
}

/// One query over the loaded block's visible tokens.
struct BlockStep<'r, 'a> {
    run: &'r mut Running<'a>,
    query: usize,
}

impl Job for BlockStep<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (run, i) = (self.run, self.query);
        let n = run.seen.len();
        if n == 0 {
            run.block_lse[i] = f32::NEG_INFINITY;
            return;
        }
        // SAFETY: seen tokens were loaded; all arrays are padded to multiples of 16.
        unsafe {
            let max = logits::<L>(run, i);
            let (max, total) = if max == f32::NEG_INFINITY { (max, 0.0) } else { exps::<L>(run, n, max) };
            run.block_lse[i] = max + total.ln();
            // Merge: both sums are taken against the larger maximum.
            let before = run.max[i];
            let top = if max > before { max } else { before };
            let factor = |max: f32| if max == top { 1.0 } else { (max - top).exp() };
            // A NaN logit makes `total` NaN, which stays.
            let (old, new) = (factor(before), factor(max));
            run.max[i] = top;
            run.weight[i] = run.weight[i] * old + total * new;
            values::<L>(run, i, old, new);
        }
    }
}

/// Scaled inner products with the visible tokens, into `logits`, padded with −∞; returns their maximum.
///
/// # Safety
/// As [`BlockStep`].
#[inline(always)]
unsafe fn logits<L: Lanes>(run: &mut Running<'_>, i: usize) -> f32 {
    // SAFETY: token t of k is `[t · width ..][..width]`; logits have room for all, in whole vectors.
    unsafe {
        let q = run.q.as_ptr().add(i * run.width);
        let scale = L::splat(run.scale);
        let mut top = L::splat(f32::NEG_INFINITY);
        for (chunk, seen) in run.seen.chunks(LANES).enumerate() {
            let mut acc = [L::splat(0.0); LANES];
            for (acc, &t) in acc.iter_mut().zip(seen) {
                *acc = dot_f32::<L>(run.k.as_ptr().add(t as usize * run.width), q, run.width);
            }
            let to = run.logits.as_mut_ptr().add(chunk * LANES);
            L::sums(&acc).mul(scale).store(to);
            for pad in seen.len()..LANES {
                to.add(pad).write(f32::NEG_INFINITY);
            }
            top = L::load(to).max(top);
        }
        top.peak()
    }
}

/// `logits` to exp(logit − max) in place; returns the maximum and the sum.
///
/// # Safety
/// As [`BlockStep`].
#[inline(always)]
unsafe fn exps<L: Lanes>(run: &mut Running<'_>, n: usize, max: f32) -> (f32, f32) {
    // SAFETY: logits are whole vectors.
    unsafe {
        let top = L::splat(max);
        let mut sum = L::splat(0.0);
        for at in (0..n).step_by(LANES) {
            let p = run.logits.as_mut_ptr().add(at);
            let e = exp(L::load(p).sub(top));
            e.store(p);
            sum = sum.add(e);
        }
        (max, sum.sum())
    }
}

/// `sum = sum · old + Σ (weight · new) · value` over the visible tokens.
///
/// # Safety
/// As [`BlockStep`].
#[inline(always)]
unsafe fn values<L: Lanes>(run: &mut Running<'_>, i: usize, old: f32, new: f32) {
    // SAFETY: token t of v is `[t · width ..][..width]`, and c + 16 ≤ width.
    unsafe {
        let sum = run.sum.as_mut_ptr().add(i * run.width);
        let (old, new) = (L::splat(old), L::splat(new));
        for c in (0..run.width).step_by(LANES) {
            let mut acc = L::splat(0.0);
            for (at, &t) in run.seen.iter().enumerate() {
                let v = L::load(run.v.as_ptr().add(t as usize * run.width + c));
                acc = L::splat(run.logits[at]).mul_add(v, acc);
            }
            let to = sum.add(c);
            acc.mul(new).add(L::load(to).mul(old)).store(to);
        }
    }
}
