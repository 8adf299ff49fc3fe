//! Selection and pools against a plain model of them, and under permutation of what must not matter.

use oasis_core::Error;
use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::pool::Pool;
use oasis_core::select::{Outcome, evict, select, top_k};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Keeps what has mass.
struct ByMass;

impl Evictor for ByMass {
    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        slot.mass
    }
}

fn score() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -4f32..4.0,
        2 => (-2i8..3).prop_map(f32::from),
        1 => prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0]),
    ]
}

/// A number as selection orders it: NaN below all, −0 as 0.
fn rank(score: f32) -> Option<i64> {
    let bits = (score + 0.0).to_bits() as i32;
    (!score.is_nan()).then_some(i64::from(if bits < 0 { bits ^ i32::MAX } else { bits }))
}

fn best(scores: &[f32], candidates: std::ops::Range<u32>, k: usize) -> Vec<u32> {
    let mut all: Vec<u32> = candidates.collect();
    all.sort_by_key(|&b| (std::cmp::Reverse(rank(scores[b as usize])), b));
    all.truncate(k);
    all
}

/// A pool with these residents, in slots taken in the order of `order`.
fn pool(slots: usize, blocks: usize, residents: &BTreeSet<u32>, masses: &[f32], order: &[u32]) -> Pool {
    let mut pool = Pool::new(slots, blocks);
    pool.free.sort_unstable_by_key(|&s| std::cmp::Reverse(order[s as usize]));
    for &block in residents {
        let slot = pool.admit(block, 0);
        pool.meta[slot as usize].mass = masses[block as usize];
    }
    pool
}

fn residents(pool: &Pool) -> BTreeSet<u32> {
    (0..pool.slot_of.len() as u32).filter(|&b| pool.resident(b)).collect()
}

#[derive(Debug, Clone)]
struct Case {
    scores: Vec<f32>,
    masses: Vec<f32>,
    resident: Vec<bool>,
    slots: usize,
    pinned: (usize, usize),
    k: usize,
    cap: usize,
    order: Vec<u32>,
}

fn cases() -> impl Strategy<Value = Case> {
    (0usize..40).prop_flat_map(|n| {
        let vectors = (
            prop::collection::vec(score(), n),
            prop::collection::vec(prop_oneof![0f32..1.0, (0u8..3).prop_map(f32::from)], n),
            prop::collection::vec(any::<bool>(), n),
        );
        let sizes =
            (0usize..40, (0usize..4, 0usize..4), 0usize..40, prop_oneof![0usize..6, Just(usize::MAX)]);
        (vectors, sizes, Just((0..40u32).collect::<Vec<_>>()).prop_shuffle()).prop_map(
            |((scores, masses, resident), (slots, pinned, k, cap), order)| Case {
                scores,
                masses,
                resident,
                slots,
                pinned,
                k,
                cap,
                order,
            },
        )
    })
}

impl Case {
    fn candidates(&self) -> std::ops::Range<u32> {
        let n = self.scores.len();
        let from = self.pinned.0.min(n);
        from as u32..n.saturating_sub(self.pinned.1).max(from) as u32
    }

    fn residents(&self) -> BTreeSet<u32> {
        let all = (0..self.resident.len() as u32).filter(|&b| self.resident[b as usize]);
        all.take(self.slots).collect()
    }

    fn run(&self, order: &[u32]) -> (Pool, Outcome) {
        let mut pool = pool(self.slots, self.scores.len(), &self.residents(), &self.masses, order);
        let mut out = Outcome::default();
        let (c, k, cap) = (self.candidates(), self.k, self.cap);
        select(&self.scores, c, k, cap, 5, &mut pool, &mut ByMass, &mut out).unwrap();
        (pool, out)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// The algorithm of the design, written with sets. Also where K is more than the pool has room for.
    #[test]
    fn selection_is_the_design_s(case in cases()) {
        let (before, candidates) = (case.residents(), case.candidates());
        let (pool, out) = case.run(&case.order);
        let wanted = best(&case.scores, candidates.clone(), case.k);
        prop_assert_eq!(&out.wanted, &wanted);
        prop_assert_eq!(out.nans, candidates.clone().filter(|&b| case.scores[b as usize].is_nan()).count());
        let misses: Vec<u32> = wanted.iter().copied().filter(|b| !before.contains(b)).collect();
        prop_assert_eq!(out.hits, wanted.len() - misses.len());
        let mut leavers: Vec<u32> =
            before.iter().copied().filter(|b| candidates.contains(b) && !wanted.contains(b)).collect();
        leavers.sort_by(|&a, &b| case.masses[a as usize].total_cmp(&case.masses[b as usize]).then(a.cmp(&b)));
        let free = case.slots - before.len();
        let admissions = case.cap.min(misses.len()).min(free + leavers.len());
        leavers.truncate(admissions.saturating_sub(free));
        prop_assert_eq!(&out.evicted, &leavers);
        let admitted: Vec<u32> = out.moves.iter().map(|m| m.0).collect();
        prop_assert_eq!(&admitted, &misses[..admissions]);
        prop_assert_eq!(out.dropped, misses.len() - admissions);
        let after: BTreeSet<u32> =
            before.iter().copied().filter(|b| !leavers.contains(b)).chain(admitted).collect();
        prop_assert_eq!(residents(&pool), after);
        for &block in &wanted {
            if let Some(slot) = pool.slot(block) {
                let meta = pool.meta[slot as usize];
                prop_assert!(pool.selected[slot as usize] && meta.last_selected == 5 && meta.selections == 1);
                prop_assert_eq!(meta.admitted, if before.contains(&block) { 0 } else { 5 });
            }
        }
    }

    #[test]
    fn slot_ids_leave_no_trace(case in cases()) {
        let ((a, x), (b, y)) = (case.run(&case.order), case.run(&(0..40).collect::<Vec<_>>()));
        prop_assert_eq!((&x.wanted, &x.evicted, x.hits, x.dropped), (&y.wanted, &y.evicted, y.hits, y.dropped));
        let blocks = |out: &Outcome| out.moves.iter().map(|m| m.0).collect::<Vec<_>>();
        prop_assert_eq!(blocks(&x), blocks(&y));
        prop_assert_eq!(residents(&a), residents(&b));
    }

    /// Without ties a block's number says nothing: renumber blocks, and the same blocks come and go.
    #[test]
    fn block_ids_leave_no_trace(case in cases(), names in Just((0..40u32).collect::<Vec<_>>()).prop_shuffle()) {
        let n = case.scores.len();
        let mut names = names;
        names.retain(|&b| (b as usize) < n);
        let value = |b: usize| ((b * 7919) % 1009) as f32;
        let mut plain = case;
        plain.pinned = (0, 0);
        plain.scores = (0..n).map(|b| value(b + 1)).collect();
        plain.masses = (0..n).map(|b| value(b + 500)).collect();
        plain.resident.iter_mut().enumerate().for_each(|(b, r)| *r &= b < plain.slots);
        let mut renamed = plain.clone();
        for (b, &to) in names.iter().enumerate() {
            let to = to as usize;
            renamed.scores[to] = plain.scores[b];
            renamed.masses[to] = plain.masses[b];
            renamed.resident[to] = plain.resident[b];
        }
        let ((_, a), (_, b)) = (plain.run(&plain.order), renamed.run(&plain.order));
        let rename = |blocks: &[u32]| blocks.iter().map(|&b| names[b as usize]).collect::<Vec<_>>();
        prop_assert_eq!(rename(&a.wanted), b.wanted.clone());
        prop_assert_eq!(rename(&a.evicted), b.evicted.clone());
        let admitted = |out: &Outcome| out.moves.iter().map(|m| m.0).collect::<Vec<_>>();
        prop_assert_eq!(rename(&admitted(&a)), admitted(&b));
    }

    #[test]
    fn top_k_is_a_sort(scores in prop::collection::vec(score(), 0..300), k in 0usize..310) {
        let (mut order, mut out) = (vec![9; 3], vec![9; 3]);
        let n = scores.len() as u32;
        let nans = top_k(&scores, n.min(2)..n, k, &mut order, &mut out);
        prop_assert_eq!(&out, &best(&scores, n.min(2)..n, k));
        prop_assert_eq!(nans, scores.iter().skip(2).filter(|s| s.is_nan()).count());
    }
}

#[test]
fn zeros_tie_and_nan_is_last() {
    let (mut order, mut out) = (Vec::new(), Vec::new());
    let scores = [f32::NAN, 0.0, -0.0, f32::NEG_INFINITY, -f32::NAN, f32::INFINITY, -1e-45];
    assert_eq!(top_k(&scores, 0..7, 7, &mut order, &mut out), 2);
    assert_eq!(out, [5, 1, 2, 6, 3, 0, 4]);
}

#[test]
fn a_pool_too_small_for_what_is_wanted_drops_the_rest() {
    // Two slots, one pinned: of three wanted blocks one fits.
    let mut pool = Pool::new(2, 5);
    pool.admit(0, 0);
    let mut out = Outcome::default();
    select(&[0.0; 5], 1..5, 3, usize::MAX, 1, &mut pool, &mut ByMass, &mut out).unwrap();
    assert_eq!((out.wanted.as_slice(), out.moves.len(), out.dropped), ([1, 2, 3].as_slice(), 1, 2));
    // Block 1 is selected now, and nobody else may leave.
    let error = evict(1..5, 1, 2, &mut pool, &mut ByMass, &mut out).unwrap_err();
    assert!(matches!(error, Error::Invariant(_)) && error.to_string().contains("only 0 may"), "{error}");
}

#[test]
fn fetches_that_were_never_attended_count_as_wasted() {
    let (mut pool, mut out) = (Pool::new(2, 6), Outcome::default());
    let mut step = |now, scores: [f32; 6], pool: &mut Pool| {
        select(&scores, 0..6, 2, 2, now, pool, &mut ByMass, &mut out).unwrap();
        (out.evicted.len(), out.wasted)
    };
    assert_eq!(step(1, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0], &mut pool), (0, 0));
    // Block 0 is attended, block 1 never is.
    let slot = pool.slot(0).unwrap() as usize;
    pool.unused[slot] = false;
    assert_eq!(step(2, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &mut pool), (2, 1));
    // What was resident from the start was not fetched: it cannot be wasted.
    pool = Pool::new(2, 6);
    pool.admit(4, 0);
    pool.admit(5, 0);
    assert_eq!(step(3, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0], &mut pool), (2, 0));
}

#[test]
fn what_was_just_admitted_may_not_leave_before_the_next_selection() {
    let (mut pool, mut out) = (Pool::new(2, 4), Outcome::default());
    pool.admit(3, 0);
    select(&[1.0, 0.0, 0.0, 0.0], 0..4, 1, 1, 1, &mut pool, &mut ByMass, &mut out).unwrap();
    assert_eq!(out.moves[0].0, 0);
    out.evicted.clear();
    evict(0..4, 1, 1, &mut pool, &mut ByMass, &mut out).unwrap();
    assert_eq!(out.evicted, [3], "block 0 is in flight, though block 3 has no less mass");
    assert_eq!((pool.len(), pool.slot(3), pool.slot(9)), (1, None, None));
}

#[test]
fn entries_ascend_by_block_and_a_nan_opinion_keeps_least() {
    let mut pool = Pool::new(3, 9);
    for (block, mass) in [(7, 0.2), (2, f32::NAN), (4, -1.0)] {
        let slot = pool.admit(block, 0) as usize;
        pool.meta[slot].mass = mass;
    }
    let mut entries = Vec::new();
    pool.entries(|block, _| block != 4, &mut entries);
    let blocks: Vec<u32> = entries.iter().map(|&s| pool.meta[s as usize].block).collect();
    assert_eq!(blocks, [2, 7]);
    let mut out = Outcome::default();
    evict(0..9, 2, 1, &mut pool, &mut ByMass, &mut out).unwrap();
    assert_eq!(out.evicted, [2, 4]);
}
