//! Blocks of 32 rows × 128 tokens; the query heads of a KV head share keys and values.

use crate::Cpu;
use crate::cpu::{Many, Scratch};
use crate::simd::{
    Amx, Job, LANES, Lanes, Level, Narrow, SIDE, TILE, Widen, exp, exp1, pack_columns, pack_rows,
};
use crate::team::Parts;
use half::bf16;
use oasis_core::geometry::Geometry;
use oasis_core::ops::PrefillArgs;

/// Tokens of a block.
const TOKENS: usize = 128;

/// Tokens that one AMX instruction sums over, and coordinates.
const DEPTH: usize = 32;

/// The arguments, without the output.
struct Prompt<'a> {
    g: &'a Geometry,
    q: &'a [bf16],
    k: &'a [bf16],
    v: &'a [bf16],
    first: usize,
    rows: usize,
}

impl Prompt<'_> {
    fn tokens(&self) -> usize {
        self.first + self.rows
    }

    fn blocks(&self) -> usize {
        self.tokens().div_ceil(TOKENS)
    }

    /// Rows of the block of rows from `from` on.
    fn height(&self, from: usize) -> usize {
        SIDE.min(self.rows - from)
    }
}

impl Cpu {
    pub(super) fn blocks_of_rows(&mut self, args: PrefillArgs<'_, Self>) {
        let g = args.geometry;
        let p = Prompt { g, q: args.q, k: args.k, v: args.v, first: args.first, rows: args.rows };
        let out = Parts::new(&mut args.out[..args.rows * g.q_dim()]);
        let amx = self.many == Many::Amx && g.head_dim.is_multiple_of(DEPTH);
        let per_head = p.blocks() * TOKENS * g.head_dim;
        let [keys, values] = self.whole.halves([if amx { g.kv_heads * per_head } else { 0 }; 2]);
        if amx {
            let (k, v) = (Parts::new(keys), Parts::new(values));
            self.team.run(g.kv_heads * p.blocks(), 2 * g.kv_heads * per_head, |_, task| {
                let (head, block) = (task / p.blocks(), task % p.blocks());
                // SAFETY: the tiles of this head and block are this task's.
                unsafe { pack(&p, head, block, &k, &v) };
            });
        }
        let packed = Packed { keys, values };
        let groups = p.rows.div_ceil(SIDE);
        let work = p.rows * p.tokens() * g.q_dim();
        let level = self.level;
        self.team.run(groups * g.kv_heads, work, |worker, task| {
            // The longest first.
            let (head, from) = (task % g.kv_heads, (groups - 1 - task / g.kv_heads) * SIDE);
            let mut scratch = self.workers.get(worker);
            // SAFETY: these rows' heads are this task's.
            unsafe {
                match if amx { Amx::start() } else { None } {
                    Some(tiles) => on_tiles(&p, &packed, &tiles, level, head, from, &mut scratch, &out),
                    None => in_floats(&p, level, head, from, &mut scratch, &out),
                }
            }
        });
    }
}

/// Keys and values as AMX wants them.
struct Packed<'a> {
    /// `[kv_head][16 tokens][32 coordinates]` of tiles.
    keys: &'a [bf16],
    /// `[kv_head][16 coordinates][32 tokens]` of tiles.
    values: &'a [bf16],
}

/// Packs a block of keys and values.
///
/// # Safety
/// Nobody else has this head's tiles of this block.
unsafe fn pack(p: &Prompt<'_>, head: usize, block: usize, keys: &Parts<'_, bf16>, values: &Parts<'_, bf16>) {
    let (d, width, blocks) = (p.g.head_dim, p.g.kv_dim(), p.blocks());
    let at = head * blocks * TOKENS * d;
    for tile in 0..TOKENS / 16 {
        let token = block * TOKENS + tile * 16;
        let columns = p.tokens().saturating_sub(token).min(16);
        let from = (token * width + head * d).min(p.k.len());
        // SAFETY: by the caller's promise.
        let to = unsafe { keys.slice(at + token * d, 16 * d) };
        pack_rows(&p.k[from..], width, columns, d / DEPTH, to);
    }
    let steps = blocks * TOKENS / DEPTH;
    for step in 0..TOKENS / DEPTH {
        let token = block * TOKENS + step * DEPTH;
        let rows = p.tokens().saturating_sub(token).min(DEPTH);
        for tile in 0..d / 16 {
            let from = (token * width + head * d + 16 * tile).min(p.v.len());
            // SAFETY: by the caller's promise.
            let to = unsafe { values.slice(at + (tile * steps + token / DEPTH) * TILE, TILE) };
            pack_columns(&p.v[from..], width, rows, to);
        }
    }
}

/// Sums of a block of rows, for all query heads of a KV head.
struct Sums<'a> {
    /// `[group · 32][128]`: logits, then exp.
    s: &'a mut [f32],
    /// `[group · 32][head_dim]`.
    o: &'a mut [f32],
    /// `[group · 32]`.
    max: &'a mut [f32],
    /// `[group · 32]`.
    weight: &'a mut [f32],
    /// exp cut off to bf16, `[group · 32][128]`; empty if not asked for.
    high: &'a mut [bf16],
    /// What that lost, cut off too.
    low: &'a mut [bf16],
}

impl Sums<'_> {
    fn begin(&mut self) {
        self.o.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.weight.fill(0.0);
    }

    /// Divides and writes.
    ///
    /// # Safety
    /// Nobody else has these rows' heads of `out`.
    unsafe fn finish(
        &mut self,
        p: &Prompt<'_>,
        level: Level,
        head: usize,
        from: usize,
        out: &Parts<'_, bf16>,
    ) {
        let (d, group) = (p.g.head_dim, p.g.group());
        for i in 0..group {
            for r in 0..p.height(from) {
                let at = i * SIDE + r;
                let row = &mut self.o[at * d..][..d];
                let weight = self.weight[at];
                row.iter_mut().for_each(|x| *x /= weight);
                let place = (from + r) * p.g.heads + head * group + i;
                // SAFETY: by the caller's promise.
                level.run(Narrow { from: row, to: unsafe { out.slice(place * d, d) } });
            }
        }
    }
}

/// One block of rows on AMX.
///
/// # Safety
/// Nobody else has these rows' heads of `out`.
#[allow(clippy::too_many_arguments)]
unsafe fn on_tiles(
    p: &Prompt<'_>,
    packed: &Packed<'_>,
    tiles: &Amx,
    level: Level,
    head: usize,
    from: usize,
    scratch: &mut Scratch,
    out: &Parts<'_, bf16>,
) {
    let (d, group) = (p.g.head_dim, p.g.group());
    let n = group * SIDE;
    let ([s, o, max, weight], [high, low, q]) =
        scratch.floats_and_halves([n * TOKENS, n * d, n, n], [n * TOKENS, n * TOKENS, n * d]);
    copy_queries(p, head, from, |i, row| q[i * d..][..d].copy_from_slice(row));
    let mut sums = Sums { s, o, max, weight, high, low };
    sums.begin();
    let per_head = p.blocks() * TOKENS * d;
    let keys = &packed.keys[head * per_head..][..per_head];
    let values = &packed.values[head * per_head..][..per_head];
    let (steps, all_steps) = (d / DEPTH, per_head / d / DEPTH);
    let last = p.first + from + p.height(from);
    for block in 0..last.div_ceil(TOKENS) {
        let seen = TOKENS.min(last - block * TOKENS);
        for i in 0..group {
            for token in (0..seen).step_by(SIDE) {
                let b = &keys[(block * TOKENS + token) * d..][..SIDE * d];
                let c = &mut sums.s[i * SIDE * TOKENS..][..SIDE * TOKENS];
                let a = &q[i * SIDE * d..][..SIDE * d];
                // SAFETY: 32 rows of q, `steps` tiles each of two times 16 keys, 32 columns of s.
                unsafe {
                    let (b, next) = (b.as_ptr(), b.as_ptr().add(16 * d));
                    tiles.set_product(
                        a.as_ptr(),
                        2 * d,
                        b,
                        next,
                        steps,
                        c.as_mut_ptr().add(token),
                        4 * TOKENS,
                    );
                }
            }
        }
        level.run(Softmax { p, from, block, sums: &mut sums });
        let depth = seen.div_ceil(DEPTH);
        for i in 0..group {
            for c in (0..d).step_by(SIDE) {
                let b = |c: usize| values[(c / 16 * all_steps + block * (TOKENS / DEPTH)) * TILE..].as_ptr();
                for part in [&*sums.high, &*sums.low] {
                    let a = part[i * SIDE * TOKENS..][..SIDE * TOKENS].as_ptr();
                    let to = sums.o[i * SIDE * d..][..SIDE * d].as_mut_ptr();
                    // SAFETY: 32 rows of weights, `depth` tiles of values for each 16 coordinates, 32 columns of o.
                    unsafe { tiles.add_product(a, 2 * TOKENS, b(c), b(c + 16), depth, to.add(c), 4 * d) };
                }
            }
        }
    }
    // SAFETY: by the caller's promise.
    unsafe { sums.finish(p, level, head, from, out) };
}

/// One block of rows in f32.
///
/// # Safety
/// Nobody else has these rows' heads of `out`.
unsafe fn in_floats(
    p: &Prompt<'_>,
    level: Level,
    head: usize,
    from: usize,
    scratch: &mut Scratch,
    out: &Parts<'_, bf16>,
) {
    let (d, group, width) = (p.g.head_dim, p.g.group(), p.g.kv_dim());
    let n = group * SIDE;
    let lengths = [n * TOKENS, n * d, n, n, n * d, TOKENS * d, TOKENS * d];
    let [s, o, max, weight, q, k, v] = scratch.floats(lengths);
    copy_queries(p, head, from, |i, row| level.run(Widen { from: row, to: &mut q[i * d..][..d] }));
    let mut sums = Sums { s, o, max, weight, high: &mut [], low: &mut [] };
    sums.begin();
    let last = p.first + from + p.height(from);
    for block in 0..last.div_ceil(TOKENS) {
        let seen = TOKENS.min(last - block * TOKENS);
        for t in 0..seen {
            let at = (block * TOKENS + t) * width + head * d;
            level.run(Widen { from: &p.k[at..at + d], to: &mut k[t * d..][..d] });
            level.run(Widen { from: &p.v[at..at + d], to: &mut v[t * d..][..d] });
        }
        // SAFETY: q `[n][d]`, k and v `[seen][d]`, s `[n][TOKENS]`, o `[n][d]`. Column strides come before row strides.
        unsafe {
            product(n, seen, d, sums.s, TOKENS, false, q, d, (k, d, 1));
            level.run(Softmax { p, from, block, sums: &mut sums });
            product(n, d, seen, sums.o, d, true, sums.s, TOKENS, (v, 1, d));
        }
    }
    // SAFETY: by the caller's promise.
    unsafe { sums.finish(p, level, head, from, out) };
}

/// `c (+)= a · b`, c `[m][n]` and a `[m][k]` with rows `c_stride` and `a_stride` apart, b with its column and row stride.
///
/// # Safety
/// The arrays are as long as that.
#[allow(clippy::too_many_arguments)]
unsafe fn product(
    m: usize,
    n: usize,
    k: usize,
    c: &mut [f32],
    c_stride: usize,
    add: bool,
    a: &[f32],
    a_stride: usize,
    (b, b_column, b_row): (&[f32], usize, usize),
) {
    let (c, a, b, one) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr(), gemm::Parallelism::None);
    let [cs, rs, bc, br] = [c_stride, a_stride, b_column, b_row].map(|x| x as isize);
    let old = if add { 1.0 } else { 0.0 };
    // SAFETY: by the caller's promise. The crate takes column strides before row strides.
    unsafe {
        gemm::gemm(m, n, k, c, 1, cs, add, a, 1, rs, b, bc, br, old, 1.0_f32, false, false, false, one)
    };
}

/// Calls `put(i · 32 + r, query)` for query head i of row `from + r`; rows behind the end repeat the last one.
fn copy_queries(p: &Prompt<'_>, head: usize, from: usize, mut put: impl FnMut(usize, &[bf16])) {
    let (d, group) = (p.g.head_dim, p.g.group());
    for i in 0..group {
        for r in 0..SIDE {
            let row = from + r.min(p.height(from) - 1);
            let place = row * p.g.heads + head * group + i;
            put(i * SIDE + r, &p.q[place * d..][..d]);
        }
    }
}

/// Logits of a block to exp(logit − running maximum), zero where a row does not see the token; earlier sums are scaled
/// to a new maximum.
struct Softmax<'r, 'a> {
    p: &'r Prompt<'r>,
    from: usize,
    block: usize,
    sums: &'r mut Sums<'a>,
}

impl Job for Softmax<'_, '_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Self { p, from, block, sums } = self;
        let d = p.g.head_dim;
        let scale = p.g.scale();
        for i in 0..sums.max.len() {
            let row = p.first + from + (i % SIDE).min(p.height(from) - 1);
            let seen = (row + 1).saturating_sub(block * TOKENS).min(TOKENS);
            let s = &mut sums.s[i * TOKENS..][..TOKENS];
            s[seen..].fill(f32::NEG_INFINITY);
            // SAFETY: the CPU has L's instructions; rows of s, high and low are whole lanes.
            unsafe {
                let before = sums.max[i];
                let (max, total) = exps::<L>(s, scale, before);
                if max != before {
                    let factor = exp1(before - max);
                    sums.weight[i] *= factor;
                    sums.o[i * d..][..d].iter_mut().for_each(|x| *x *= factor);
                    sums.max[i] = max;
                }
                sums.weight[i] += total;
                if !sums.high.is_empty() {
                    let (high, low) = (&mut sums.high[i * TOKENS..], &mut sums.low[i * TOKENS..]);
                    for at in (0..TOKENS).step_by(LANES) {
                        let e = L::load(s.as_ptr().add(at));
                        e.split(high.as_mut_ptr().add(at), low.as_mut_ptr().add(at));
                    }
                }
            }
        }
    }
}

/// `s` to exp(s · scale − maximum), the maximum being that of `before` and of `s · scale`; returns it and the sum.
///
/// # Safety
/// The CPU has the instructions of `L`; `s.len()` is [`TOKENS`].
#[inline(always)]
unsafe fn exps<L: Lanes>(s: &mut [f32], scale: f32, before: f32) -> (f32, f32) {
    // SAFETY: at + 16 ≤ TOKENS.
    unsafe {
        let scale = L::splat(scale);
        let mut top = L::splat(before);
        for at in (0..TOKENS).step_by(LANES) {
            top = L::load(s.as_ptr().add(at)).mul(scale).max(top);
        }
        let max = top.peak();
        // Nothing seen so far: any finite number does, −∞ would make NaN of −∞ − −∞.
        let against = L::splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
        let mut sum = L::splat(0.0);
        for at in (0..TOKENS).step_by(LANES) {
            let to = s.as_mut_ptr().add(at);
            let e = exp(L::load(to).mul(scale).sub(against));
            e.store(to);
            sum = sum.add(e);
        }
        (max, sum.sum())
    }
}
