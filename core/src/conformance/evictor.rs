//! The contract of [`Evictor`].

use super::world::{Case, drive};
use super::{Checked, Finding, Findings, ensure, rng};
use crate::Result;
use crate::ids::Step;
use crate::policy::{Candidate, Evictor, PoolView, SlotMeta};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Runs the contract of [`Evictor`] over `cases` instances, each in a random pool of its own: 24 selections
/// with sealed blocks between them, then offers of random candidates.
///
/// Same seed, same decisions, whatever ran before; slot ids leave no trace; exactly as many victims as asked,
/// distinct, and only of what may leave; ties to the lowest block id; and the invariants of selection itself
/// (caps, capacity, counts) hold with this evictor.
pub fn check_evictor(build: &dyn Fn(u64) -> Result<Box<dyn Evictor>>, cases: usize) -> Vec<Finding> {
    let mut findings = Findings::default();
    for seed in 0..cases as u64 {
        findings.note(seed, || worlds(build, seed));
        findings.note(seed, || offers(build, seed));
    }
    findings.0
}

fn worlds(build: &dyn Fn(u64) -> Result<Box<dyn Evictor>>, seed: u64) -> Checked {
    let case = Case::new(seed);
    let first = drive(&case, build(seed)?, false)?;
    let shuffled = drive(&case, build(seed)?, true)?;
    ensure(first == shuffled, "slot ids leave no trace", || differ(&first, &shuffled, &case))?;
    // Another sequence in between: nothing of it may stay.
    drive(&Case::new(seed + 1), build(seed)?, false)?;
    let again = drive(&case, build(seed)?, false)?;
    ensure(first == again, "same seed, same decisions, whatever ran before", || differ(&first, &again, &case))
}

fn differ<T: PartialEq + std::fmt::Debug>(a: &[T], b: &[T], case: &Case) -> String {
    let step = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(0);
    format!("step {}: {:?} and then {:?} in {case:?}", step + 1, a[step], b[step])
}

/// Candidates that the instance has never heard of, twice in a row.
fn offers(build: &dyn Fn(u64) -> Result<Box<dyn Evictor>>, seed: u64) -> Checked {
    let mut rng = rng(seed, 4);
    let (mut a, mut b) = (build(seed)?, build(seed)?);
    for now in [100, 101] {
        let candidates = candidates(&mut rng, seed, now);
        let need = rng.random_range(0..=candidates.len());
        let (left, same) =
            (offer(a.as_mut(), &candidates, need, now), offer(b.as_mut(), &candidates, need, now));
        let show = || format!("{left:?} and {same:?} for {need} of {}", list(&candidates));
        ensure(left == same, "same seed, same decisions, whatever ran before", show)?;
        ensure(left.len() == need, "evicts exactly as many as asked", show)?;
        let mut distinct = left.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if !a.reads_mass() {
            let mut other = candidates.clone();
            other.iter_mut().for_each(|c| {
                (c.meta.mass, c.meta.last_attended) = (0.25, now - c.meta.last_attended.min(now))
            });
            let (mut one, mut two) = (build(seed)?, build(seed)?);
            let (with, without) =
                (offer(one.as_mut(), &candidates, need, now), offer(two.as_mut(), &other, need, now));
            ensure(with == without, "who says so reads no mass", || format!("{with:?} and {without:?}"))?;
        }
        let known = |b: &u32| candidates.iter().any(|c| c.meta.block == *b);
        ensure(distinct.len() == need && left.iter().all(known), "victims are distinct candidates", show)?;
    }
    ties(build(seed)?.as_mut(), &mut rng)
}

/// Candidates alike in everything but their ids leave by id, if the evictor thinks them alike.
fn ties(evictor: &mut dyn Evictor, rng: &mut ChaCha8Rng) -> Checked {
    let (now, mut alike) = (9, candidates(rng, 7, 9));
    let first = alike[0].meta;
    alike.iter_mut().for_each(|c| c.meta = SlotMeta { block: c.meta.block, ..first });
    let keeps: Vec<u32> = alike.iter().map(|c| evictor.keep(&c.meta, now).to_bits()).collect();
    let again: Vec<u32> = alike.iter().map(|c| evictor.keep(&c.meta, now).to_bits()).collect();
    ensure(keeps == again, "keep is a pure function", || format!("{keeps:x?} and then {again:x?}"))?;
    if keeps.iter().all(|k| *k == keeps[0]) {
        let need = rng.random_range(1..=alike.len());
        let left = offer(evictor, &alike, need, now);
        let lowest: Vec<u32> = alike.iter().map(|c| c.meta.block).take(need).collect();
        ensure(left == lowest, "ties go to the lowest block id", || {
            format!("{left:?} for {need} of {}", list(&alike))
        })?;
    }
    Ok(())
}

fn offer(evictor: &mut dyn Evictor, candidates: &[Candidate], need: usize, now: Step) -> Vec<u32> {
    let (mut offered, mut out) = (candidates.to_vec(), Vec::new());
    evictor.evict(&mut PoolView { candidates: &mut offered, now }, need, &mut out);
    out
}

/// One to a few dozen candidates with histories of every kind, ascending by block id, in random slots.
fn candidates(rng: &mut ChaCha8Rng, seed: u64, now: Step) -> Vec<Candidate> {
    let count = rng.random_range(1..=2 + seed as usize % 30);
    let mut block = 0;
    let mut slots: Vec<u32> = (0..count as u32).collect();
    rand::seq::SliceRandom::shuffle(slots.as_mut_slice(), rng);
    let one = |slot| {
        block += rng.random_range(1..4u32);
        let meta = SlotMeta {
            block,
            admitted: rng.random_range(0..=now),
            last_selected: rng.random_range(0..=now),
            last_attended: rng.random_range(0..=now),
            selections: rng.random_range(0..5),
            mass: [0.0, 0.5, 1.0, f32::NAN, f32::INFINITY][rng.random_range(0..5)],
            next_use: if rng.random_bool(0.5) { Step::MAX } else { now + rng.random_range(1..9) },
        };
        Candidate { slot, meta }
    };
    slots.into_iter().map(one).collect()
}

fn list(candidates: &[Candidate]) -> String {
    let one = |c: &Candidate| {
        let m = &c.meta;
        format!("{}(a{} s{} t{} n{})", m.block, m.admitted, m.last_selected, m.last_attended, m.selections)
    };
    candidates.iter().map(one).collect::<Vec<_>>().join(" ")
}
