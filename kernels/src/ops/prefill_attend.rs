//! Dense causal attention of a chunk of a prompt.
//!
//! Few rows go block by block as in decoding. Many go in blocks of 32 rows × 128 tokens, with a running maximum: matrix
//! products on AMX tiles where the CPU has them, otherwise by the `gemm` crate in f32. Where all machines are to give the
//! same bits, many go as few do.

mod blocked;

use super::attend::{Queries, Running, by_width};
use super::{check_heads, need};
use crate::cpu::Many;
use crate::cuda::arg;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::Result;
use oasis_core::ops::{Memory, PrefillArgs, PrefillAttend};

/// One rounding to bf16, that may fall the other way, and the order of f32 sums.
pub const TOLERANCE: f64 = 1.0 / 100.0;

/// Rows from which blocks pay.
const MANY: usize = 16;

/// Tokens of a step over keys and values, with few rows.
const TOKENS: usize = 64;

/// Rows of a task, with few rows.
const ROWS: usize = 8;

impl PrefillAttend for Cpu {
    fn prefill_attend(&mut self, args: PrefillArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        if args.rows < MANY || self.many == Many::Rows {
            self.few_rows(args);
        } else {
            self.blocks_of_rows(args);
        }
        Ok(())
    }
}

impl Cpu {
    fn few_rows(&mut self, args: PrefillArgs<'_, Self>) {
        let g = args.geometry;
        let (d, kv_dim, q_dim) = (g.head_dim, g.kv_dim(), g.q_dim());
        let out = Parts::new(&mut args.out[..args.rows * q_dim]);
        let groups = args.rows.div_ceil(ROWS);
        let work = args.rows * (args.first + args.rows) * q_dim;
        self.team.run(groups * g.kv_heads, work, |worker, task| {
            let (head, first) = (task % g.kv_heads, task / g.kv_heads * ROWS);
            let rows = ROWS.min(args.rows - first);
            let queries = Queries { q: args.q, first, rows, head, group: g.group(), heads: g.heads };
            let mut scratch = self.workers.get(worker);
            let mut run = Running::new(&mut scratch, queries, d, TOKENS);
            let tokens = args.first + first + rows;
            for at in (0..tokens).step_by(TOKENS) {
                let n = TOKENS.min(tokens - at);
                let from = at * kv_dim + head * d;
                run.load_strided(self.level, &args.k[from..], &args.v[from..], kv_dim, n, d);
                // Where the first row sees all, all do.
                if at + n <= args.first + first + 1 {
                    run.whole_block(self.level, n);
                } else {
                    run.block(self.level, n, |row, t| at + t <= args.first + first + row);
                }
            }
            for i in 0..rows * g.group() {
                // SAFETY: these rows and heads are this task's.
                run.finish(self.level, i, unsafe { out.slice(queries.place(i) * d, d) });
            }
        });
    }
}

/// Queries of a thread block of prefill_attend.cu.
const QUERIES: usize = 32;

/// The same, on tensor cores.
const MMA_QUERIES: usize = 64;

/// Arguments of prefill_attend.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Prefill {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    heads: u32,
    kv_heads: u32,
    d: u32,
    first: u32,
    rows: u32,
    scale: f32,
}

impl PrefillAttend for Cuda {
    fn prefill_attend(&mut self, args: PrefillArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let g = args.geometry;
        let plain = ["prefill_1", "prefill_2", "prefill_3", "prefill_4"];
        let mma = ["prefill_mma_1", "prefill_mma_2", "prefill_mma_3", "prefill_mma_4"];
        let (names, threads, queries) =
            if g.head_dim.is_multiple_of(32) { (mma, 128, MMA_QUERIES) } else { (plain, 256, QUERIES) };
        let kernel = by_width("prefill_attend", names, g.head_dim)?;
        let list = Prefill {
            q: args.q.at(0),
            k: args.k.at(0),
            v: args.v.at(0),
            out: args.out.at(0),
            heads: g.heads as u32,
            kv_heads: g.kv_heads as u32,
            d: g.head_dim as u32,
            first: args.first as u32,
            rows: args.rows as u32,
            scale: g.scale(),
        };
        let grid = [(args.rows * g.group()).div_ceil(queries), g.kv_heads, 1];
        // SAFETY: prefill_attend.cu's arguments, of the lengths checked above.
        unsafe { self.launch(kernel, grid, threads, &mut [arg(&list)]) }
    }
}

fn check<B: Memory>(backend: &B, args: &PrefillArgs<'_, B>) -> Result<()> {
    let g = args.geometry;
    let tokens = args.first + args.rows;
    check_heads("prefill_attend", g, None)?;
    need("prefill_attend", "q", backend.len(args.q), args.rows * g.q_dim())?;
    need("prefill_attend", "k", backend.len(args.k), tokens * g.kv_dim())?;
    need("prefill_attend", "v", backend.len(args.v), tokens * g.kv_dim())?;
    need("prefill_attend", "out", backend.len(args.out), args.rows * g.q_dim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::testing::{Random, assert_close, bits16, f64s, geometry, poison16};
    use half::bf16;
    use oasis_core::geometry::Geometry;
    use oasis_core::ops::Memory;

    fn attend(g: &Geometry, q: &[bf16], k: &[bf16], v: &[bf16], first: usize, threads: usize) -> Vec<bf16> {
        attend_on(Cpu::new(threads), g, q, k, v, first)
    }

    fn attend_on(mut cpu: Cpu, g: &Geometry, q: &[bf16], k: &[bf16], v: &[bf16], first: usize) -> Vec<bf16> {
        let [q, k, v] = [q, k, v].map(|x| cpu.upload(x).unwrap());
        let mut out = cpu.upload(&poison16(q.len())).unwrap();
        let rows = q.len() / g.q_dim();
        cpu.prefill_attend(PrefillArgs { geometry: g, q: &q, k: &k, v: &v, first, rows, out: &mut out })
            .unwrap();
        out.to_vec()
    }

    fn naive(g: &Geometry, q: &[bf16], k: &[bf16], v: &[bf16], first: usize) -> Vec<f64> {
        let (d, kv) = (g.head_dim, g.kv_dim());
        let (q, k, v) = (f64s(q), f64s(k), f64s(v));
        let mut out = Vec::new();
        for (i, q) in q.chunks(d).enumerate() {
            let (row, head) = (i / g.heads, i % g.heads / g.group());
            let tokens = 0..=first + row;
            let at = |t: usize| t * kv + head * d;
            let dot = |t: usize| q.iter().zip(&k[at(t)..][..d]).map(|(a, b)| a * b).sum::<f64>();
            let p: Vec<f64> = tokens.map(|t| (dot(t) / (d as f64).sqrt()).exp()).collect();
            let sum: f64 = p.iter().sum();
            out.extend(
                (0..d).map(|c| p.iter().enumerate().map(|(t, p)| p * v[at(t) + c]).sum::<f64>() / sum),
            );
        }
        out
    }

    #[test]
    fn as_in_double_precision() {
        let mut random = Random::new(100);
        let sizes = [
            (3, 1, 64, 0, 1),
            (9, 3, 64, 0, 200),
            (6, 2, 64, 150, 5),
            (4, 4, 20, 37, 70),
            (8, 2, 32, 129, 130),
            (2, 1, 128, 300, 33),
        ];
        for (heads, kv_heads, d, first, rows) in sizes {
            let g = geometry(heads, kv_heads, d);
            let tokens = (first + rows) * g.kv_dim();
            let (q, k, v) = (random.bf16(rows * g.q_dim()), random.bf16(tokens), random.bf16(tokens));
            let want = naive(&g, &q, &k, &v, first);
            for cpu in [
                Cpu::new(2),
                Cpu::new(2).without_amx(),
                Cpu::new(2).portable(),
                Cpu::new(1).at_level(Level::Portable).unwrap(),
            ] {
                assert_close(f64s(&attend_on(cpu, &g, &q, &k, &v, first)), &want, 0.5 * TOLERANCE);
            }
        }
    }

    #[test]
    fn chunks_give_what_the_whole_gives_within_rounding() {
        let mut random = Random::new(101);
        let g = geometry(6, 2, 64);
        let (q, k, v) = (random.bf16(300 * 384), random.bf16(300 * 128), random.bf16(300 * 128));
        let whole = attend(&g, &q, &k, &v, 0, 1);
        for cut in [1, 64, 100, 299] {
            let mut parts = attend(&g, &q[..cut * 384], &k[..cut * 128], &v[..cut * 128], 0, 2);
            parts.extend(attend(&g, &q[cut * 384..], &k, &v, cut, 1));
            assert_close(f64s(&parts), &f64s(&whole), TOLERANCE);
        }
    }

    #[test]
    fn later_tokens_do_not_matter_and_nan_stays() {
        let mut random = Random::new(102);
        let g = geometry(3, 1, 64);
        let (q, mut k, mut v) = (random.bf16(90 * 192), random.bf16(90 * 64), random.bf16(90 * 64));
        for cpu in [Cpu::new(1), Cpu::new(1).without_amx()] {
            let before = attend_on(cpu.clone(), &g, &q, &k, &v, 0);
            k[80 * 64..].fill(bf16::from_f32(1e20));
            v[80 * 64..].fill(bf16::from_f32(-1e20));
            let after = attend_on(cpu.clone(), &g, &q, &k, &v, 0);
            assert!(bits16(&after[..80 * 192]) == bits16(&before[..80 * 192]));
            assert!(bits16(&after[80 * 192..]) != bits16(&before[80 * 192..]));
            k[70 * 64] = bf16::NAN;
            let after = attend_on(cpu, &g, &q, &k, &v, 0);
            assert!(bits16(&after[..64 * 192]) == bits16(&before[..64 * 192]));
            assert!(after[70 * 192..].iter().all(|x| x.is_nan()), "NaN in, NaN out");
            k = random.bf16(90 * 64);
            v = random.bf16(90 * 64);
        }
    }

    #[test]
    fn threads_leave_no_trace() {
        let mut random = Random::new(103);
        let g = geometry(6, 2, 64);
        let (q, k, v) = (random.bf16(200 * 384), random.bf16(200 * 128), random.bf16(200 * 128));
        for few in [5, 200] {
            let one = attend(&g, &q[..few * 384], &k, &v, 0, 1);
            assert!(bits16(&one) == bits16(&attend(&g, &q[..few * 384], &k, &v, 0, 3)));
        }
    }
}
