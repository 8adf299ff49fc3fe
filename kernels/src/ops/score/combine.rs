//! The scores of several queries become one a block.

use crate::simd::{Job, LANES, Lanes, exp, exp1};
use oasis_core::settings::Group;

/// All queries' scores of a pool to one row.
pub(super) struct Combine<'a, F> {
    /// How.
    pub group: Group,
    /// `[queries][line]`, −∞ behind the candidates; overwritten.
    pub scores: &'a mut [f32],
    /// Floats of a row, a multiple of [`LANES`].
    pub line: usize,
    /// ln of the always-resident mass of query i, called in order.
    pub resident: F,
    /// `[candidates]`.
    pub out: &'a mut [f32],
}

impl<F: FnMut(usize) -> Option<f32>> Job for Combine<'_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let queries = self.scores.len() / self.line;
        for i in 0..queries {
            let row = &mut self.scores[i * self.line..][..self.line];
            let factor = match self.group {
                Group::Max => 1.0,
                Group::Mean => 1.0 / queries as f32,
                Group::SoftmaxSum => {
                    let resident = (self.resident)(i);
                    // SAFETY: the CPU has L's instructions; rows are whole lanes.
                    unsafe { softmax::<L>(row, resident) }
                }
            };
            let max = self.group == Group::Max;
            for (out, &s) in self.out.iter_mut().zip(&*row) {
                *out = match (i, max) {
                    (0, true) => s,
                    (_, true) => {
                        if *out >= s || out.is_nan() {
                            *out
                        } else {
                            s
                        }
                    }
                    (0, false) => s * factor,
                    (_, false) => *out + s * factor,
                };
            }
        }
    }
}

/// `row` to exp(row − its maximum); returns 1 / (Σ + exp(resident − maximum)). A NaN stays where it is and is no part of
/// the sum. +∞ takes all the mass.
///
/// # Safety
/// The CPU has the instructions of `L`; `row.len()` is a multiple of [`LANES`].
#[inline(always)]
unsafe fn softmax<L: Lanes>(row: &mut [f32], resident: Option<f32>) -> f32 {
    // SAFETY: at + 16 ≤ len.
    unsafe {
        let mut top = L::splat(resident.unwrap_or(f32::NEG_INFINITY));
        for at in (0..row.len()).step_by(LANES) {
            top = L::load(row.as_ptr().add(at)).max(top);
        }
        let max = top.peak();
        if max.is_infinite() {
            let unit = |s: f32| if s.is_nan() { s } else { f32::from(s == f32::INFINITY) };
            row.iter_mut().for_each(|s| *s = unit(*s));
            let sum: f32 = row.iter().filter(|s| !s.is_nan()).sum();
            return 1.0 / (sum + resident.map_or(0.0, unit)).max(1.0);
        }
        let (zero, max_lanes) = (L::splat(0.0), L::splat(max));
        let mut sum = zero;
        for at in (0..row.len()).step_by(LANES) {
            let p = row.as_mut_ptr().add(at);
            let e = exp(L::load(p).sub(max_lanes));
            e.store(p);
            // `max` gives the second operand where the first is NaN.
            sum = sum.add(e.max(zero));
        }
        1.0 / (sum.sum() + resident.map_or(0.0, |r| exp1(r - max)))
    }
}
