//! Running softmax sums of the queries of one KV head, a block of keys and values at a time.

use crate::cpu::Scratch;
use crate::simd::{Job, LANES, Lanes, Level, Narrow, Widen, dot, dots, exp, exp1, ln1, widen};
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
    pub(in crate::ops) fn load(
        &mut self,
        level: Level,
        kv: &[bf16],
        half: usize,
        tokens: usize,
        head_dim: usize,
    ) {
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

    /// Adds the loaded block's `tokens`, all of which all queries see.
    pub(in crate::ops) fn whole_block(&mut self, level: Level, tokens: usize) {
        level.run(WholeBlock { run: self, tokens });
    }

    /// Adds the loaded block's `tokens`; query `i` of row `i / group` sees token t if `sees(row, t)`.
    pub(in crate::ops) fn block(&mut self, level: Level, tokens: usize, sees: impl Fn(usize, usize) -> bool) {
        for i in 0..self.max.len() {
            let row = i / self.group;
            self.seen.clear();
            self.seen.extend((0..tokens as u32).filter(|&t| sees(row, t as usize)));
            level.run(SomeTokens { run: self, query: i });
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

/// All queries over the loaded block.
struct WholeBlock<'r, 'a> {
    run: &'r mut Running<'a>,
    tokens: usize,
}

impl Job for WholeBlock<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Self { run, tokens } = self;
        for i in 0..run.max.len() {
            // SAFETY: `tokens` were loaded, and all arrays are padded to multiples of 16.
            unsafe {
                let q = run.q.as_ptr().add(i * run.width);
                for t in (0..tokens).step_by(LANES) {
                    let dots = dots::<L>(run.k.as_ptr().add(t * run.width), q, run.width);
                    dots.mul(L::splat(run.scale)).store(run.logits.as_mut_ptr().add(t));
                }
                let (old, new) = run.merge::<L>(i, tokens);
                values::<L>(run, i, old, new, tokens, |t| t);
            }
        }
    }
}

/// One query over the tokens that it sees.
struct SomeTokens<'r, 'a> {
    run: &'r mut Running<'a>,
    query: usize,
}

impl Job for SomeTokens<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (run, i) = (self.run, self.query);
        let n = run.seen.len();
        if n == 0 {
            run.block_lse[i] = f32::NEG_INFINITY;
            return;
        }
        // SAFETY: seen tokens were loaded, and all arrays are padded to multiples of 16.
        unsafe {
            let q = run.q.as_ptr().add(i * run.width);
            for (at, &t) in run.seen.iter().enumerate() {
                run.logits[at] =
                    dot::<L>(run.k.as_ptr().add(t as usize * run.width), q, run.width) * run.scale;
            }
            let (old, new) = run.merge::<L>(i, n);
            let seen = std::mem::take(run.seen);
            values::<L>(run, i, old, new, n, |at| seen[at] as usize);
            *run.seen = seen;
        }
    }
}

impl Running<'_> {
    /// The first `n` logits to exp(logit − their maximum). Returns the factors by which the earlier sum and this block's
    /// are to be multiplied, so that both are against the larger maximum; the sum of weights is done here.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`; `n` is not 0.
    #[inline(always)]
    unsafe fn merge<L: Lanes>(&mut self, i: usize, n: usize) -> (f32, f32) {
        let padded = n.next_multiple_of(LANES);
        self.logits[n..padded].fill(f32::NEG_INFINITY);
        // SAFETY: at + 16 ≤ padded, which is within the logits.
        let (max, total) = unsafe {
            let mut top = L::splat(f32::NEG_INFINITY);
            for at in (0..padded).step_by(LANES) {
                top = L::load(self.logits.as_ptr().add(at)).max(top);
            }
            let max = top.peak();
            // −∞ − −∞ would be NaN: where all is −∞ (or NaN, which stays), 0 does as the maximum.
            let against = L::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
            let mut sum = L::splat(0.0);
            for at in (0..padded).step_by(LANES) {
                let p = self.logits.as_mut_ptr().add(at);
                let e = exp(L::load(p).sub(against));
                e.store(p);
                sum = sum.add(e);
            }
            (max, sum.sum())
        };
        self.block_lse[i] = max + ln1(total);
        let before = self.max[i];
        let top = if max > before { max } else { before };
        let factor = |max: f32| if max == top { 1.0 } else { exp1(max - top) };
        let (old, new) = (factor(before), factor(max));
        self.max[i] = top;
        self.weight[i] = self.weight[i] * old + total * new;
        (old, new)
    }
}

/// `sum = sum · old + new · Σ weight · value` over `n` tokens, the at-th being `token(at)`.
///
/// # Safety
/// The CPU has the instructions of `L`; the tokens were loaded.
#[inline(always)]
unsafe fn values<L: Lanes>(
    run: &mut Running<'_>,
    i: usize,
    old: f32,
    new: f32,
    n: usize,
    token: impl Fn(usize) -> usize,
) {
    /// `N` vectors of coordinates at once.
    ///
    /// # Safety
    /// As the outer function.
    #[inline(always)]
    unsafe fn some<L: Lanes, const N: usize>(
        v: *const f32,
        width: usize,
        weights: &[f32],
        token: &impl Fn(usize) -> usize,
        sum: *mut f32,
        (old, new): (f32, f32),
    ) {
        // SAFETY: token t of v is `width` floats from t · width; N vectors fit from where v and sum point.
        unsafe {
            let mut acc = [L::splat(0.0); N];
            for (at, &weight) in weights.iter().enumerate() {
                let row = v.add(token(at) * width);
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = L::splat(weight).mul_add(L::load(row.add(j * LANES)), *acc);
                }
            }
            for (j, acc) in acc.into_iter().enumerate() {
                let to = sum.add(j * LANES);
                acc.mul(L::splat(new)).add(L::load(to).mul(L::splat(old))).store(to);
            }
        }
    }

    let (v, width) = (run.v.as_ptr(), run.width);
    let weights = &run.logits[..n];
    // SAFETY: c + 16 · N ≤ width.
    unsafe {
        let sum = run.sum.as_mut_ptr().add(i * width);
        let mut c = 0;
        while c + 4 * LANES <= width {
            some::<L, 4>(v.add(c), width, weights, &token, sum.add(c), (old, new));
            c += 4 * LANES;
        }
        while c < width {
            some::<L, 1>(v.add(c), width, weights, &token, sum.add(c), (old, new));
            c += LANES;
        }
    }
}
