//! A random pool in a random decode: what the loop does to one pool, with every invariant checked.

use super::{Checked, broken, ensure, rng};
use crate::ids::{NONE, Step};
use crate::policy::{Evictor, PoolEvent};
use crate::pool::Pool;
use crate::select::{self, Outcome};
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ops::Range;

/// Sizes of a world.
#[derive(Debug, Clone)]
pub(super) struct Case {
    seed: u64,
    sink: usize,
    window: usize,
    k: usize,
    cap: usize,
    /// Sealed blocks at the start and at most.
    blocks: Range<usize>,
    steps: Step,
    scores: Scores,
}

/// What scores look like.
#[derive(Debug, Clone, Copy)]
enum Scores {
    Spread,
    Ties,
    Odd,
    Nan,
}

/// What a step decided, without the slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    wanted: Vec<u32>,
    admitted: Vec<u32>,
    evicted: Vec<u32>,
}

impl Case {
    /// The world of a seed; worlds grow with it.
    pub fn new(seed: u64) -> Self {
        let mut rng = rng(seed, 1);
        let size = 1 + (seed as usize % 64) / 2;
        let (sink, window) = (rng.random_range(0..3), rng.random_range(0..4));
        let k = rng.random_range(0..=size);
        let start = rng.random_range(0..=2 * size + sink + window);
        let cap = match rng.random_range(0..5) {
            0 => 0,
            1 => 1,
            2 => k.div_ceil(4),
            3 => k,
            _ => usize::MAX,
        };
        let scores = match rng.random_range(0..8) {
            0 | 1 => Scores::Ties,
            2 | 3 => Scores::Odd,
            4 => Scores::Nan,
            _ => Scores::Spread,
        };
        Self { seed, sink, window, k, cap, blocks: start..start + size, steps: 24, scores }
    }

    /// Blocks that are ranked when `n` are sealed.
    fn candidates(&self, n: usize) -> Range<u32> {
        let from = self.sink.min(n);
        from as u32..n.saturating_sub(self.window).max(from) as u32
    }

    fn score(&self, rng: &mut ChaCha8Rng) -> f32 {
        match self.scores {
            Scores::Spread => rng.random_range(-8.0..8.0),
            Scores::Ties => rng.random_range(0..3) as f32 - 1.0,
            Scores::Odd => {
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, f32::MAX][rng.random_range(0..7)]
            }
            Scores::Nan => f32::NAN,
        }
    }
}

/// One pool as the loop keeps it.
struct World<'a> {
    case: &'a Case,
    pool: Pool,
    evictor: Box<dyn Evictor>,
    sealed: usize,
    outcome: Outcome,
    rng: ChaCha8Rng,
}

/// Runs a case from its start; `shuffle` hands out slots in another order.
pub(super) fn drive(case: &Case, evictor: Box<dyn Evictor>, shuffle: bool) -> Checked<Vec<Decision>> {
    let mut pool = Pool::new(case.sink + case.window + case.k, case.blocks.end);
    if shuffle {
        pool.free.shuffle(&mut rng(case.seed, 2));
    }
    let (sealed, outcome) = (case.blocks.start, Outcome::default());
    let mut world = World { case, pool, evictor, sealed, outcome, rng: rng(case.seed, 3) };
    world.fill();
    let mut trace = Vec::new();
    for now in 1..=case.steps {
        if world.sealed < case.blocks.end && world.rng.random_bool(0.3) {
            world.seal(now).map_err(|b| at(b, case, now))?;
        }
        trace.push(world.step(now).map_err(|b| at(b, case, now))?);
        world.attend(now);
    }
    Ok(trace)
}

fn at(mut broken: super::Broken, case: &Case, now: Step) -> super::Broken {
    broken.detail = format!("{} at step {now} of {case:?}", broken.detail);
    broken
}

impl World<'_> {
    fn admit(&mut self, block: u32, now: Step) {
        self.pool.admit(block, now);
        self.evictor.observe(PoolEvent::Admit { block, now });
    }

    /// The end of the prefill: pinned blocks, then candidates as long as there is room.
    fn fill(&mut self) {
        let candidates = self.case.candidates(self.sealed);
        let pinned = (0..self.sealed as u32).filter(|b| !candidates.contains(b));
        for block in pinned.chain(candidates.clone()) {
            if !self.pool.free.is_empty() {
                self.admit(block, 0);
            }
        }
    }

    /// A block is sealed: the window moves, somebody may have to leave.
    fn seal(&mut self, now: Step) -> Checked {
        let block = self.sealed as u32;
        self.sealed += 1;
        let candidates = self.case.candidates(self.sealed);
        let (before, free) = (self.residents(), self.pool.free.len());
        let selected = self.selected();
        let may_leave = before.iter().any(|b| candidates.contains(b) && !selected.contains(b));
        self.outcome.evicted.clear();
        if free == 0 && may_leave {
            let evictor = self.evictor.as_mut();
            evict_checked(select::evict(
                candidates.clone(),
                1,
                now,
                &mut self.pool,
                evictor,
                &mut self.outcome,
            ))?;
            ensure(self.outcome.evicted.len() == 1, "evicts exactly as many as asked", || {
                format!("{:?} left for one sealed block", self.outcome.evicted)
            })?;
        }
        let left: BTreeSet<u32> = self.outcome.evicted.iter().copied().collect();
        check_victims(&left, &before, &selected, &candidates)?;
        if !self.pool.free.is_empty() {
            self.admit(block, now);
        }
        self.check_slots()
    }

    fn step(&mut self, now: Step) -> Checked<Decision> {
        let case = self.case;
        let candidates = case.candidates(self.sealed);
        let scores: Vec<f32> = (0..case.blocks.end).map(|_| case.score(&mut self.rng)).collect();
        let before = self.residents();
        let evictor = self.evictor.as_mut();
        let (pool, out) = (&mut self.pool, &mut self.outcome);
        evict_checked(select::select(
            &scores,
            candidates.clone(),
            case.k,
            case.cap,
            now,
            pool,
            evictor,
            out,
        ))?;
        self.check_decision(&scores, &candidates, &before)?;
        self.check_slots()?;
        Ok(Decision {
            wanted: self.outcome.wanted.clone(),
            admitted: self.outcome.moves.iter().map(|m| m.0).collect(),
            evicted: self.outcome.evicted.clone(),
        })
    }

    fn check_decision(&self, scores: &[f32], candidates: &Range<u32>, before: &BTreeSet<u32>) -> Checked {
        let (case, out) = (self.case, &self.outcome);
        let mut best: Vec<u32> = candidates.clone().collect();
        let worth = |b: u32| if scores[b as usize].is_nan() { None } else { Some(scores[b as usize]) };
        best.sort_by(|&a, &b| worth(b).partial_cmp(&worth(a)).expect("no NaN inside").then(a.cmp(&b)));
        best.truncate(case.k);
        ensure(out.wanted == best, "wants the K best, ties to the lowest block id, NaN last", || {
            format!("wanted {:?}, not {best:?}", out.wanted)
        })?;
        let misses: Vec<u32> = best.iter().copied().filter(|b| !before.contains(b)).collect();
        let admitted: Vec<u32> = out.moves.iter().map(|m| m.0).collect();
        ensure(admitted.len() <= case.cap, "never fetches more than the cap", || format!("{admitted:?}"))?;
        ensure(misses.starts_with(&admitted), "admits the best misses in their order", || {
            format!("admitted {admitted:?} of {misses:?}")
        })?;
        let counts = (out.hits, admitted.len(), out.dropped);
        ensure(counts.0 + counts.1 + counts.2 == best.len(), "hits + fetched + dropped = wanted", || {
            format!("{counts:?} of {}", best.len())
        })?;
        let left: BTreeSet<u32> = out.evicted.iter().copied().collect();
        let selected: BTreeSet<u32> = best.iter().copied().collect();
        check_victims(&left, before, &selected, candidates)?;
        let expected: BTreeSet<u32> = before.difference(&left).copied().chain(admitted).collect();
        ensure(self.residents() == expected, "residents = before − evicted + admitted", || {
            format!("{:?}, not {expected:?}", self.residents())
        })
    }

    /// Every slot holds one block or is free, every resident block has one slot.
    fn check_slots(&self) -> Checked {
        let pool = &self.pool;
        let mut slots: Vec<u32> = pool.free.clone();
        for (slot, meta) in pool.meta.iter().enumerate().filter(|(_, m)| m.block != NONE) {
            slots.push(slot as u32);
            ensure(pool.slot(meta.block) == Some(slot as u32), "no block in two slots", || {
                format!("block {} is in slot {slot} and {:?}", meta.block, pool.slot(meta.block))
            })?;
        }
        slots.sort_unstable();
        ensure(
            slots.iter().copied().eq(0..pool.meta.len() as u32),
            "every slot is free or holds one block",
            || format!("free or taken: {slots:?} of {}", pool.meta.len()),
        )
    }

    /// What attention leaves behind: some residents had their share of mass, all have some number.
    fn attend(&mut self, now: Step) {
        // By block, so that slots leave no trace in the draws.
        for block in self.residents() {
            let (used, mass) = (self.rng.random_bool(0.4), self.rng.random_range(0.0..1.0));
            let Some(slot) = self.pool.slot(block) else { continue };
            let meta = &mut self.pool.meta[slot as usize];
            meta.mass = mass;
            if used {
                meta.last_attended = now;
                self.pool.unused[slot as usize] = false;
            }
        }
    }

    fn residents(&self) -> BTreeSet<u32> {
        self.pool.meta.iter().map(|m| m.block).filter(|&b| b != NONE).collect()
    }

    fn selected(&self) -> BTreeSet<u32> {
        let slots = self.pool.meta.iter().zip(&self.pool.selected);
        slots.filter(|(m, s)| m.block != NONE && **s).map(|(m, _)| m.block).collect()
    }
}

fn check_victims(
    left: &BTreeSet<u32>,
    before: &BTreeSet<u32>,
    selected: &BTreeSet<u32>,
    candidates: &Range<u32>,
) -> Checked {
    let wrong: Vec<u32> = left.difference(before).chain(left.intersection(selected)).copied().collect();
    let pinned: Vec<u32> = left.iter().copied().filter(|b| !candidates.contains(b)).collect();
    ensure(
        wrong.is_empty() && pinned.is_empty(),
        "victims are resident, not pinned, not selected, not in flight",
        || format!("{wrong:?} and pinned {pinned:?} of {left:?} left"),
    )
}

fn evict_checked(result: crate::Result<()>) -> Checked {
    result.or_else(|error| broken("gives up exactly what is asked, of what may leave", error.to_string()))
}
