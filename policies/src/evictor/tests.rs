//! What each evictor means, beside the contract that all share.

use crate::EVICTORS;
use crate::evictor::sieve::Sieve;
use oasis_core::policy::{Candidate, Evictor, PoolEvent, PoolView, SlotMeta};
use oasis_core::pool::Pool;
use oasis_core::registry::{Params, find};
use oasis_core::select::{Outcome, select};
use proptest::prelude::*;

fn build(name: &str, seed: u64) -> Box<dyn Evictor> {
    let params = Params { seed, ..Params::default() };
    (find("evictor", EVICTORS, name).unwrap().build)(&params).unwrap()
}

fn meta(block: u32, admitted: u32, last_selected: u32, last_attended: u32, selections: u32) -> SlotMeta {
    SlotMeta { block, admitted, last_selected, last_attended, selections, mass: 0.0, next_use: u32::MAX }
}

fn victims(evictor: &mut dyn Evictor, metas: &[SlotMeta], need: usize, now: u32) -> Vec<u32> {
    let mut candidates: Vec<Candidate> =
        metas.iter().enumerate().map(|(slot, &meta)| Candidate { slot: slot as u32, meta }).collect();
    let mut out = Vec::new();
    evictor.evict(&mut PoolView { candidates: &mut candidates, now }, need, &mut out);
    out
}

#[test]
fn each_orders_by_its_own_history() {
    let metas = [meta(3, 1, 9, 4, 2), meta(5, 2, 6, 8, 1), meta(8, 7, 7, 7, 3), meta(9, 0, 9, 4, 1)];
    for (name, order) in
        [("lrs", [5, 8, 3, 9]), ("lru", [3, 9, 8, 5]), ("fifo", [9, 3, 5, 8]), ("lfu", [5, 9, 3, 8])]
    {
        for need in 0..=4 {
            assert_eq!(victims(build(name, 1).as_mut(), &metas, need, 10), order[..need], "{name}");
        }
    }
}

/// A decode in which prediction and truth disagree: the two policies evict different blocks, each the one
/// that its definition names.
#[test]
fn lrs_and_lru_evict_different_blocks() {
    let run = |name: &str| {
        let (mut pool, mut evictor, mut out) = (Pool::new(3, 4), build(name, 1), Outcome::default());
        for block in 0..3 {
            pool.admit(block, 0);
        }
        // What a step does: the newest token attends a block, then a prediction selects one for the next step.
        // The predictor believes in block 0 twice, then in block 1, then in block 2; the truth is the reverse.
        for (now, selected, attended) in [(1, 0, 2), (2, 0, 1), (3, 1, 2), (4, 2, 0)] {
            let slot = pool.slot(attended).unwrap() as usize;
            pool.meta[slot].last_attended = now;
            let mut scores = [0.0; 4];
            scores[selected] = 1.0;
            select(&scores, 0..4, 1, 1, now, &mut pool, evictor.as_mut(), &mut out).unwrap();
            assert_eq!((out.wanted.as_slice(), out.hits), ([selected as u32].as_slice(), 1));
        }
        // Selected last: 0 at step 2, 1 at 3, 2 at 4. Attended last: 1 at step 2, 2 at 3, 0 at 4.
        select(&[0.0, 0.0, 0.0, 1.0], 0..4, 1, 1, 5, &mut pool, evictor.as_mut(), &mut out).unwrap();
        assert_eq!(out.moves[0].0, 3);
        out.evicted.clone()
    };
    assert_eq!(run("lrs"), [0], "the block that no prediction wanted for longest");
    assert_eq!(run("lru"), [1], "the block that the true query left alone for longest");
}

#[test]
fn random_is_seeded_even_and_blind() {
    let metas: Vec<SlotMeta> = (0..50).map(|b| meta(b, 0, b, b, b)).collect();
    let pick = |seed, now| victims(build("random", seed).as_mut(), &metas, 10, now);
    assert_eq!(pick(1, 1), pick(1, 1));
    assert_ne!(pick(1, 1), pick(2, 1));
    assert_ne!(pick(1, 1), pick(1, 2));
    let mut counts = [0u32; 50];
    (0..5000).for_each(|now| pick(7, now).iter().for_each(|&b| counts[b as usize] += 1));
    // Binomial(5000, 0.2): mean 1000, standard deviation 28.
    assert!(counts.iter().all(|c| (870..1130).contains(c)), "{counts:?}");
}

#[test]
fn sieve_spares_what_was_selected_and_sifts_newcomers() {
    let mut sieve = Sieve::default();
    let admit = |s: &mut Sieve, b| s.observe(PoolEvent::Admit { block: b, now: 0 });
    (0..5).for_each(|b| admit(&mut sieve, b));
    sieve.observe(PoolEvent::Touch { block: 0, now: 1 });
    sieve.observe(PoolEvent::Touch { block: 1, now: 1 });
    let all: Vec<SlotMeta> = (0..9).map(|b| meta(b, 0, 0, 0, 0)).collect();
    let of = |blocks: &[u32]| blocks.iter().map(|&b| all[b as usize]).collect::<Vec<_>>();
    // The hand clears 0 and 1, takes 2 and rests on 3.
    assert_eq!(victims(&mut sieve, &of(&[0, 1, 2, 3, 4]), 1, 1), [2]);
    admit(&mut sieve, 5);
    // It goes on from 3, not from the oldest.
    assert_eq!(victims(&mut sieve, &of(&[0, 1, 3, 4, 5]), 1, 2), [3]);
    // A block that may not leave is passed over: 4 is not offered. Then round to the oldest.
    assert_eq!(victims(&mut sieve, &of(&[0, 1, 5]), 2, 3), [5, 0]);
}

/// SIEVE word for word, for a world where every block may leave.
#[derive(Default)]
struct Reference {
    /// Newest first; (block, visited).
    queue: Vec<(u32, bool)>,
    /// Block under the hand.
    hand: Option<u32>,
}

impl Reference {
    fn evict(&mut self) -> u32 {
        let tail = self.queue.len() - 1;
        let at = self.hand.and_then(|h| self.queue.iter().position(|e| e.0 == h));
        let mut at = at.unwrap_or(tail);
        while self.queue[at].1 {
            self.queue[at].1 = false;
            at = if at == 0 { tail } else { at - 1 };
        }
        self.hand = at.checked_sub(1).map(|newer| self.queue[newer].0);
        self.queue.remove(at).0
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn sieve_is_the_published_algorithm(events in prop::collection::vec((0u32..24, 1usize..3), 1..300)) {
        let (mut sieve, mut reference) = (Sieve::default(), Reference::default());
        for (now, (block, need)) in events.into_iter().enumerate() {
            let now = now as u32;
            match reference.queue.iter_mut().find(|e| e.0 == block) {
                Some(entry) => {
                    entry.1 = true;
                    sieve.observe(PoolEvent::Touch { block, now });
                }
                None => {
                    if reference.queue.len() >= 8 {
                        let mut blocks: Vec<u32> = reference.queue.iter().map(|e| e.0).collect();
                        blocks.sort_unstable();
                        let metas: Vec<SlotMeta> = blocks.iter().map(|&b| meta(b, 0, 0, 0, 0)).collect();
                        let expected: Vec<u32> = (0..need).map(|_| reference.evict()).collect();
                        prop_assert_eq!(victims(&mut sieve, &metas, need, now), expected.clone());
                        for block in expected {
                            sieve.observe(PoolEvent::Evict { block, now });
                        }
                    }
                    reference.queue.insert(0, (block, false));
                    sieve.observe(PoolEvent::Admit { block, now });
                }
            }
        }
    }
}
