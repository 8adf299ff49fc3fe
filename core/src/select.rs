//! Top-K, cap, eviction: who stays, who comes, who leaves. Exact, integer, deterministic.

use crate::ids::{NONE, Step};
use crate::policy::{Candidate, Evictor, PoolEvent, PoolView, SlotMeta};
use crate::pool::Pool;
use crate::{Error, Result};
use std::ops::Range;

/// What a selection decided, and its scratch; reused from step to step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// P, by (score descending, block id ascending).
    pub wanted: Vec<u32>,
    /// Admitted blocks and their slots, in the order of P.
    pub moves: Vec<(u32, u32)>,
    /// Blocks that left.
    pub evicted: Vec<u32>,
    /// |P ∩ R| before the admissions.
    pub hits: usize,
    /// Wanted, not resident, not admitted: C bound. `hits + moves.len() + dropped == wanted.len()`.
    pub dropped: usize,
    /// Candidates whose score is NaN.
    pub nans: usize,
    /// Fetched blocks that left without ever having had the mean block's share of mass.
    pub wasted: usize,
    order: Vec<u64>,
    misses: Vec<u32>,
    leaving: Vec<Candidate>,
    victims: Vec<u32>,
}

/// A key that sorts by (score descending, block id ascending); NaN after every number, −0 with +0.
fn rank_key(score: f32, block: u32) -> u64 {
    let descending = if score.is_nan() {
        u32::MAX
    } else {
        let bits = (score + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        !ascending
    };
    u64::from(descending) << 32 | u64::from(block)
}

/// The `k` best of `candidates` by (score descending, block id ascending), best first, into `out`.
/// `scores[b]` is block b's. Returns how many scores are NaN; those rank below every number.
pub fn top_k(
    scores: &[f32],
    candidates: Range<u32>,
    k: usize,
    order: &mut Vec<u64>,
    out: &mut Vec<u32>,
) -> usize {
    out.clear();
    order.clear();
    order.extend(candidates.map(|b| rank_key(scores[b as usize], b)));
    let nans = order.iter().filter(|&&key| key >> 32 == u64::from(u32::MAX)).count();
    if k < order.len() {
        if k > 0 {
            order.select_nth_unstable(k - 1);
        }
        order.truncate(k);
    }
    order.sort_unstable();
    out.extend(order.iter().map(|&key| key as u32));
    nans
}

/// One pool's selection (DESIGN §2): `P` = the `k` best candidates; at most `cap` of those that are not
/// resident come in, best first; residents outside `P` leave for them as the evictor says. A pool that is too
/// small for `P` and what is pinned admits what fits and counts the rest as dropped.
///
/// # Errors
/// [`Error::Invariant`] if the evictor broke its contract; the pool and the outcome are then of no further use.
#[allow(clippy::too_many_arguments)]
pub fn select(
    scores: &[f32],
    candidates: Range<u32>,
    k: usize,
    cap: usize,
    now: Step,
    pool: &mut Pool,
    evictor: &mut dyn Evictor,
    out: &mut Outcome,
) -> Result<()> {
    out.nans = top_k(scores, candidates.clone(), k, &mut out.order, &mut out.wanted);
    settle(candidates, cap, now, pool, evictor, out)
}

/// The part of a selection that follows the ranking: `out.wanted` is `P`, best first.
///
/// # Errors
/// As [`select`].
pub fn settle(
    candidates: Range<u32>,
    cap: usize,
    now: Step,
    pool: &mut Pool,
    evictor: &mut dyn Evictor,
    out: &mut Outcome,
) -> Result<()> {
    out.moves.clear();
    out.evicted.clear();
    out.misses.clear();
    out.wasted = 0;
    pool.selected.fill(false);
    for &block in &out.wanted {
        match pool.slot(block) {
            Some(slot) => {
                pool.selected[slot as usize] = true;
                let meta = &mut pool.meta[slot as usize];
                meta.last_selected = now;
                meta.selections += 1;
                evictor.observe(PoolEvent::Touch { block, now });
            }
            None => out.misses.push(block),
        }
    }
    out.hits = out.wanted.len() - out.misses.len();
    let admissions = cap.min(out.misses.len());
    let need = admissions.saturating_sub(pool.free.len());
    if need > 0 {
        gather_leaving(&candidates, pool, out);
        let need = need.min(out.leaving.len());
        evict_gathered(&candidates, need, now, pool, evictor, out)?;
    }
    for &block in &out.misses[..admissions.min(pool.free.len())] {
        let slot = pool.admit(block, now);
        pool.selected[slot as usize] = true;
        pool.unused[slot as usize] = true;
        pool.meta[slot as usize].selections = 1;
        evictor.observe(PoolEvent::Admit { block, now });
        out.moves.push((block, slot));
    }
    out.dropped = out.misses.len() - out.moves.len();
    Ok(())
}

/// Evicts `need` of the residents among `candidates` that the last selection does not hold. Victims are
/// appended to `out.evicted`.
///
/// # Errors
/// [`Error::Invariant`] if fewer than `need` blocks may leave, or if the evictor broke its contract.
pub fn evict(
    candidates: Range<u32>,
    need: usize,
    now: Step,
    pool: &mut Pool,
    evictor: &mut dyn Evictor,
    out: &mut Outcome,
) -> Result<()> {
    gather_leaving(&candidates, pool, out);
    if need > out.leaving.len() {
        let may = out.leaving.len();
        let what =
            format!("step {now}: {need} blocks must leave a pool and only {may} may: K is too large for it");
        return Err(Error::Invariant(what));
    }
    evict_gathered(&candidates, need, now, pool, evictor, out)
}

/// Lists the residents that may leave, ascending by block id.
fn gather_leaving(candidates: &Range<u32>, pool: &Pool, out: &mut Outcome) {
    out.leaving.clear();
    let may_leave = |(slot, meta): (usize, &SlotMeta)| {
        let stays = meta.block == NONE || !candidates.contains(&meta.block) || pool.selected[slot];
        (!stays).then_some(Candidate { slot: slot as u32, meta: *meta })
    };
    out.leaving.extend(pool.meta.iter().enumerate().filter_map(may_leave));
    out.leaving.sort_unstable_by_key(|c| c.meta.block);
}

/// Asks the evictor for `need` of the listed blocks, checks its answer and frees their slots.
fn evict_gathered(
    candidates: &Range<u32>,
    need: usize,
    now: Step,
    pool: &mut Pool,
    evictor: &mut dyn Evictor,
    out: &mut Outcome,
) -> Result<()> {
    out.victims.clear();
    evictor.evict(&mut PoolView { candidates: &mut out.leaving, now }, need, &mut out.victims);
    let broken = |what: String| Error::Invariant(format!("step {now}: evictor {} {what}", evictor.name()));
    if out.victims.len() != need {
        return Err(broken(format!("gave up {} blocks where {need} were asked for", out.victims.len())));
    }
    for &block in &out.victims {
        // The list itself is the evictor's to reorder; the pool knows who was on it.
        let Some(slot) = pool.slot(block) else {
            return Err(broken(format!("gave up block {block}, which is not resident or left already")));
        };
        if !candidates.contains(&block) || pool.selected[slot as usize] {
            return Err(broken(format!("gave up block {block}, which is pinned or was just selected")));
        }
        out.wasted += usize::from(pool.evict(block));
        out.evicted.push(block);
    }
    for &block in &out.victims {
        evictor.observe(PoolEvent::Evict { block, now });
    }
    Ok(())
}
