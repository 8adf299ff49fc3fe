//! Rotary position embedding, after the per-head norm of models that have it.

use super::rms_norm::norm;
use super::{check_heads, need};
use crate::cuda::{CudaBuf, arg};
use crate::simd::Narrow;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::Result;
use oasis_core::ops::{Memory, Rope, RopeArgs};

/// One rounding to bf16, that may fall the other way, of a sum of two products.
pub const TOLERANCE: f64 = 1.0 / 128.0;

/// Positions whose angles are kept; those of later ones are computed each time.
const KEPT: usize = 1 << 14;

/// Sines and cosines by position: all layers have the same. Two tables, since a draft head may have frequencies of its
/// own.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    tables: [Table; 2],
    /// The one that was used last.
    last: usize,
}

#[derive(Debug, Default)]
struct Table {
    inv_freq: Vec<f32>,
    /// `[positions][cos: head_dim / 2 | sin: head_dim / 2]`.
    rows: Vec<f32>,
}

impl Angles {
    /// The table of these frequencies, with all of `positions` that are kept at all.
    fn table(&mut self, positions: &[u32], inv_freq: &[f32]) -> &Table {
        let known = self.tables.iter().position(|table| table.inv_freq == inv_freq);
        self.last = known.unwrap_or(1 - self.last);
        let table = &mut self.tables[self.last];
        if known.is_none() {
            table.rows.clear();
            table.inv_freq.clear();
            table.inv_freq.extend_from_slice(inv_freq);
        }
        let most = positions.iter().max().map_or(0, |&p| p as usize);
        let width = 2 * inv_freq.len();
        let has = table.rows.len() / width.max(1);
        if most >= has && has < KEPT {
            // In powers of two, so that a decode seldom comes here.
            let until = (most + 1).next_power_of_two().clamp(1024, KEPT);
            table.rows.resize(until * width, 0.0);
            for (position, row) in table.rows.chunks_exact_mut(width.max(1)).enumerate().skip(has) {
                fill(position as u32, inv_freq, row);
            }
        }
        table
    }
}

/// `[cos | sin]` of one position; the angle is rounded to f32.
fn fill(position: u32, inv_freq: &[f32], row: &mut [f32]) {
    let (cos, sin) = row.split_at_mut(inv_freq.len());
    for ((cos, sin), f) in cos.iter_mut().zip(sin).zip(inv_freq) {
        (*sin, *cos) = libm::sincosf(position as f32 * f);
    }
}

/// Rotates pairs (i, i + d/2) by angles `[cos | sin]`.
fn rotate(x: &[f32], angles: &[f32], out: &mut [f32]) {
    let half = x.len() / 2;
    let (cos, sin) = angles.split_at(half);
    let (low, high) = out.split_at_mut(half);
    for i in 0..half {
        low[i] = x[i] * cos[i] - x[i + half] * sin[i];
        high[i] = x[i + half] * cos[i] + x[i] * sin[i];
    }
}

impl Rope for Cpu {
    fn rope(&mut self, args: RopeArgs<'_, Self>) -> Result<()> {
        let g = args.geometry;
        let (d, rows) = (g.head_dim, args.rows);
        let (q_dim, kv_dim, qkv_dim) = (g.q_dim(), g.kv_dim(), g.qkv_dim());
        check(self, &args)?;
        let inv_freq = &args.inv_freq[..d / 2];
        let table = self.angles.table(&args.positions[..rows], inv_freq);
        let at = args.first * kv_dim;
        let q = Parts::new(&mut args.q[..rows * q_dim]);
        let k = Parts::new(&mut args.k[at..at + rows * kv_dim]);
        let v = Parts::new(&mut args.v[at..at + rows * kv_dim]);
        self.team.run(rows, 4 * rows * qkv_dim, |worker, r| {
            let mut scratch = self.workers.get(worker);
            let [normed, turned, own] = scratch.floats([d, d, d / 2 * 2]);
            let position = args.positions[r];
            let angles = match table.rows.get(position as usize * own.len()..) {
                Some(from) if from.len() >= own.len() => &from[..own.len()],
                _ => {
                    fill(position, inv_freq, own);
                    &*own
                }
            };
            let row = &args.qkv[r * qkv_dim..][..qkv_dim];
            for (i, head) in row[..q_dim + kv_dim].chunks_exact(d).enumerate() {
                let of_q = i < g.heads;
                let head = match if of_q { args.q_norm } else { args.k_norm } {
                    Some(weight) => {
                        norm(head, weight, args.eps, normed);
                        &*normed
                    }
                    None => head,
                };
                rotate(head, angles, turned);
                // SAFETY: heads of row r are this task's.
                let to = unsafe {
                    if of_q {
                        q.slice(r * q_dim + i * d, d)
                    } else {
                        k.slice(r * kv_dim + (i - g.heads) * d, d)
                    }
                };
                self.level.run(Narrow { from: turned, to });
            }
            // SAFETY: row r is this task's.
            let to = unsafe { v.slice(r * kv_dim, kv_dim) };
            self.level.run(Narrow { from: &row[q_dim + kv_dim..], to });
        });
        Ok(())
    }
}

impl Rope for Cuda {
    fn rope(&mut self, args: RopeArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let g = args.geometry;
        let at = args.first * g.kv_dim();
        let norm = |weight: Option<&CudaBuf<f32>>| weight.map_or(0, |w| w.at(0));
        let (qkv, q_norm, k_norm) = (args.qkv.at(0), norm(args.q_norm), norm(args.k_norm));
        let (positions, inv_freq) = (args.positions.at(0), args.inv_freq.at(0));
        let [heads, kv_heads, d] = [g.heads, g.kv_heads, g.head_dim].map(|x| x as u32);
        let (q, k, v) = (args.q.at(0), args.k.at(at), args.v.at(at));
        let mut list = [
            arg(&qkv),
            arg(&q_norm),
            arg(&k_norm),
            arg(&args.eps),
            arg(&positions),
            arg(&inv_freq),
            arg(&heads),
            arg(&kv_heads),
            arg(&d),
            arg(&q),
            arg(&k),
            arg(&v),
        ];
        let warps = 8;
        let grid = [args.rows, (g.heads + 2 * g.kv_heads).div_ceil(warps), 1];
        // SAFETY: rope.cu's arguments, of the lengths checked above; it waits for its predecessor before it reads what
        // kernels of a pass write (positions are written before the pass).
        unsafe { self.launch_early("rope", grid, 32 * warps as u32, &mut list) }
    }
}

fn check<B: Memory>(backend: &B, args: &RopeArgs<'_, B>) -> Result<()> {
    let (g, rows) = (args.geometry, args.rows);
    check_heads("rope", g, None)?;
    need("rope", "qkv", backend.len(args.qkv), rows * g.qkv_dim())?;
    need("rope", "positions", backend.len(args.positions), rows)?;
    need("rope", "inv_freq", backend.len(args.inv_freq), g.head_dim / 2)?;
    need("rope", "q", backend.len(args.q), rows * g.q_dim())?;
    need("rope", "k", backend.len(args.k), (args.first + rows) * g.kv_dim())?;
    need("rope", "v", backend.len(args.v), (args.first + rows) * g.kv_dim())?;
    for weight in [args.q_norm, args.k_norm].into_iter().flatten() {
        need("rope", "q_norm or k_norm", backend.len(weight), g.head_dim)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, assert_close, f64s, geometry, poison16};

    fn naive(x: &[f32], weight: Option<&[f32]>, position: u32, inv_freq: &[f32]) -> Vec<f64> {
        let d = x.len();
        let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
        let mean = x.iter().map(|v| v * v).sum::<f64>() / d as f64;
        let normed: Vec<f64> = match weight {
            Some(w) => x.iter().zip(w).map(|(v, &w)| v / (mean + 1e-6).sqrt() * f64::from(w)).collect(),
            None => x,
        };
        let turn = |i: usize| {
            // The angle is rounded to f32, as the op promises.
            let angle = f64::from(position as f32 * inv_freq[i % (d / 2)]);
            let other = if i < d / 2 { -normed[i + d / 2] } else { normed[i - d / 2] };
            normed[i] * angle.cos() + other * angle.sin()
        };
        (0..d).map(turn).collect()
    }

    #[test]
    fn as_in_double_precision_with_and_without_norms() {
        let mut cpu = Cpu::new(2);
        let mut random = Random::new(4);
        let g = geometry(6, 2, 64);
        let inv_freq: Vec<f32> = (0..32).map(|i| 10_000_f32.powf(-(i as f32) / 32.0)).collect();
        for (rows, first, normed) in [(1, 0, false), (3, 5, true), (100, 2, true)] {
            let qkv = random.f32(rows * g.qkv_dim());
            let (qw, kw) = (random.f32(64), random.f32(64));
            let positions: Vec<u32> = (0..rows).map(|_| random.below(20_000) as u32).collect();
            let (mut q_want, mut k_want, mut v_want) = (vec![], vec![], vec![]);
            for (row, &p) in qkv.chunks(g.qkv_dim()).zip(&positions) {
                for (i, head) in row.chunks(64).enumerate() {
                    match i {
                        0..6 => q_want.extend(naive(head, normed.then_some(&qw), p, &inv_freq)),
                        6..8 => k_want.extend(naive(head, normed.then_some(&kw), p, &inv_freq)),
                        _ => v_want.extend(head.iter().map(|&v| f64::from(v))),
                    }
                }
            }
            let [b_qkv, b_qw, b_kw, b_freq] = [&qkv, &qw, &kw, &inv_freq].map(|v| cpu.upload(v).unwrap());
            let b_pos = cpu.upload(&positions).unwrap();
            let mut q = cpu.upload(&poison16(rows * 384)).unwrap();
            let mut k = cpu.upload(&poison16((first + rows) * 128)).unwrap();
            let mut v = cpu.upload(&poison16((first + rows) * 128)).unwrap();
            let args = RopeArgs {
                geometry: &g,
                qkv: &b_qkv,
                q_norm: normed.then_some(&b_qw),
                k_norm: normed.then_some(&b_kw),
                eps: 1e-6,
                positions: &b_pos,
                inv_freq: &b_freq,
                rows,
                q: &mut q,
                k: &mut k,
                v: &mut v,
                first,
            };
            cpu.rope(args).unwrap();
            assert_close(f64s(&q), &q_want, 0.5 * TOLERANCE);
            assert_close(f64s(&k[first * 128..]), &k_want, 0.5 * TOLERANCE);
            assert_close(f64s(&v[first * 128..]), &v_want, 0.5 * TOLERANCE);
            assert!(k[..first * 128].iter().all(|x| x.is_nan()), "earlier rows are not touched");
        }
    }
}
