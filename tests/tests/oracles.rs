//! The standing oracles that need no GPU (ARCHITECTURE.md lists them).

use oasis_core::Result;
use oasis_core::decode::{Decoder, Start};
use oasis_core::draft::{Draft, DraftTree, DraftView, Target};
use oasis_core::model::Family;
use oasis_core::settings::{Cap, Emit, Group, Mode, Scope, Settings};
use oasis_kernels::Cpu;
use oasis_tests::*;
use std::sync::Arc;

const SPARSE: [Mode; 5] = [Mode::OnDemand, Mode::Staged, Mode::ResidentSparse, Mode::Static, Mode::Window];

fn predictor_for(mode: Mode) -> &'static str {
    if mode == Mode::OnDemand { "oracle" } else { "lookahead" }
}

fn run(s: &Settings, family: Family, lengths: &[usize], summary: &str, steps: usize) -> Trail {
    let mut engine = random_model(tiny_geometry(), family, 1);
    let prefixes: Vec<_> = lengths
        .iter()
        .map(|&n| prefill(&mut engine, &random_prompt(64, n, n as u64), s.block_tokens))
        .collect();
    let p = policies(summary, predictor_for(s.mode), "lrs", "ngram");
    decode(&mut engine, s, &p, &prefixes, steps, |d, _| d.verify_slots().unwrap())
}

#[test]
fn a_budget_that_covers_the_context_gives_dense_to_the_bit() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        for prompt in [1, 3, 4, 5, 16, 61] {
            let dense = run(&settings(Mode::Dense, 0), family, &[prompt], "minmax", 12);
            for mode in SPARSE {
                for summary in ["minmax", "rotated-keys"] {
                    let trail = run(&settings(mode, 64), family, &[prompt], summary, 12);
                    assert_eq!(
                        trail.logits, dense.logits,
                        "{family:?}, {mode:?}, {summary}, prompt of {prompt}"
                    );
                }
            }
        }
    }
}

#[test]
fn one_block_less_than_the_context_is_sparse_and_says_so() {
    let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
    let prefix = prefill(&mut engine, &random_prompt(64, 60, 5), 4);
    let p = policies("minmax", "lookahead", "lrs", "ngram");
    for (budget, sparse) in [(14, true), (15, true), (16, false)] {
        // 60 tokens are 15 blocks; the step's rows may fill a 16th.
        let s = settings(Mode::Staged, budget);
        let start = Start { prefix: prefix.clone(), first: 1, future: vec![], max_new: 0, seed: 0 };
        let decoder = Decoder::new(&mut engine, &s, &p, vec![start]).unwrap();
        assert_eq!(decoder.is_sparse(), sparse, "budget of {budget} blocks");
    }
    let dense = run(&settings(Mode::Dense, 0), Family::Llama, &[60], "minmax", 8);
    let sparse = run(&settings(Mode::Staged, 14), Family::Llama, &[60], "minmax", 8);
    assert_ne!(dense.logits, sparse.logits);
}

#[test]
fn staged_equals_resident_sparse_to_the_bit() {
    for scope in [Scope::Resident, Scope::Selected] {
        for cap in [Cap::Unlimited, Cap::Blocks(1), Cap::Fraction(0.05)] {
            for summary in ["minmax", "mean", "rotated-keys {bits = 1}"] {
                let staged = Settings { scope, cap, ..settings(Mode::Staged, 6) };
                let resident = Settings { mode: Mode::ResidentSparse, ..staged.clone() };
                let a = run(&staged, Family::Llama, &[90, 41], summary, 30);
                let b = run(&resident, Family::Llama, &[90, 41], summary, 30);
                assert_eq!(a.tokens, b.tokens);
                assert_eq!(a.logits, b.logits, "{scope:?} {cap:?} {summary}");
            }
        }
    }
}

#[test]
fn a_sequence_does_not_depend_on_its_batch() {
    for mode in [Mode::Dense, Mode::Staged, Mode::OnDemand, Mode::Window] {
        for emit in [Emit::One, Emit::Accepted] {
            let s = Settings { emit, cap: Cap::Blocks(2), ..settings(mode, 6) };
            let together = run(&s, Family::Qwen3, &[70, 33, 1], "minmax", 20);
            for (i, &n) in [70, 33, 1].iter().enumerate() {
                let alone = run(&s, Family::Qwen3, &[n], "minmax", 20);
                assert_eq!(together.tokens[i], alone.tokens[0], "{mode:?} {emit:?}");
                let own: Vec<_> = together.logits.iter().skip(i).step_by(3).cloned().collect();
                assert_eq!(own, alone.logits, "{mode:?} {emit:?} sequence {i}");
            }
        }
    }
}

#[test]
fn free_slots_in_any_order_give_the_same_bits() {
    let s = Settings { cap: Cap::Blocks(2), ..settings(Mode::Staged, 8) };
    let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
    // Shorter than the budget at first, so that free slots are used while the context grows.
    let prefix = [prefill(&mut engine, &random_prompt(64, 22, 9), 4)];
    let p = policies("minmax", "previous-token", "lru", "none");
    let plain = decode(&mut engine, &s, &p, &prefix, 40, |d, _| d.verify_slots().unwrap());
    for seed in 0..5 {
        let shuffled = decode(&mut engine, &s, &p, &prefix, 40, |d, _| {
            d.shuffle_free_slots(seed);
            d.verify_slots().unwrap();
        });
        assert_eq!(plain, shuffled);
    }
}

#[test]
fn speculative_decoding_emits_what_plain_decoding_emits() {
    for mode in [Mode::Dense, Mode::Window] {
        let plain = run(&settings(mode, 64), Family::Llama, &[50], "minmax", 40);
        let s = Settings { emit: Emit::Accepted, ..settings(mode, 64) };
        let accepted = run(&s, Family::Llama, &[50], "minmax", 40);
        let n = plain.tokens[0].len();
        assert_eq!(plain.tokens[0], accepted.tokens[0][..n]);
        let drafted: u32 = accepted.reports.iter().map(|r| r.seqs[0].drafts).sum();
        assert!(drafted > 0, "the draft source proposed nothing: the test shows nothing");
    }
}

/// Offers a wrong chain first and the right tokens on a branch beside it, so that what is accepted lies neither
/// first nor together: masks, positions and the closing-up of the tail all matter.
struct Fork;

impl Draft<Cpu> for Fork {
    fn propose(&mut self, _: &mut Cpu, _: &mut dyn Target<Cpu>, view: &DraftView<'_>) -> Result<DraftTree> {
        let [a, b, ..] = *view.future else { return Ok(DraftTree::default()) };
        let wrong = |t: u32| (t + 1) % 64;
        Ok(DraftTree { tokens: vec![wrong(a), a, wrong(b), b], parents: vec![0, 0, 1, 2] })
    }
}

#[test]
fn accepted_branches_of_a_tree_emit_what_plain_decoding_emits() {
    let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
    let prefix = prefill(&mut engine, &random_prompt(64, 50, 3), 4);
    let mut p = policies("minmax", "lookahead", "lrs", "none");
    let s = Settings { max_rows: 5, ..settings(Mode::Dense, 0) };
    let plain = decode(&mut engine, &s, &p, std::slice::from_ref(&prefix), 30, |_, _| {});
    p.draft = Arc::new(|_| Ok(Box::new(Fork)));
    let s = Settings { emit: Emit::Accepted, ..s };
    let (first, future) = (plain.tokens[0][0], plain.tokens[0][1..].to_vec());
    let start = Start { prefix, first, future, max_new: 30, seed: 7 };
    let mut decoder = Decoder::new(&mut engine, &s, &p, vec![start]).unwrap();
    let (mut emitted, mut steps) = (0, 0);
    while emitted < 27 {
        // The logits of row 0 are those of the plain step at the same token, to the bit.
        let report = decoder.step(None).unwrap();
        let accepted = report.seqs[0].emitted.len();
        let logits: Vec<u32> = decoder.logits(0).unwrap().iter().map(|l| l.to_bits()).collect();
        assert_eq!(logits, plain.logits[emitted], "after {emitted} tokens");
        (emitted, steps) = (emitted + accepted, steps + 1);
    }
    assert_eq!(decoder.tokens(0)[50..][..emitted], plain.tokens[0][..emitted]);
    assert_eq!((emitted, steps), (27, 9), "both tokens of every branch are accepted");
}

#[test]
fn decoding_continues_a_prompt_as_a_longer_prompt_would() {
    let mut engine = random_model(tiny_geometry(), Family::Qwen2, 3);
    let prompt = random_prompt(64, 45, 4);
    let prefix = [prefill(&mut engine, &prompt, 4)];
    let p = policies("minmax", "previous-token", "lrs", "none");
    let trail = decode(&mut engine, &settings(Mode::Dense, 0), &p, &prefix, 10, |_, _| {});
    let mut whole = prompt;
    whole.extend(&trail.tokens[0][..10]);
    let longer = prefill(&mut engine, &whole, 4);
    let decoded: Vec<f32> = trail.logits[9].iter().map(|&b| f32::from_bits(b)).collect();
    let scale = longer.logits.iter().fold(0.0f32, |m, l| m.max(l.abs()));
    for (a, b) in decoded.iter().zip(&longer.logits) {
        // Both round K, V and every matrix product's input to bf16; only the order of sums differs.
        assert!((a - b).abs() <= 0.02 * scale, "{a} against {b}");
    }
}

#[test]
fn an_audit_finds_nothing_missing_where_nothing_is() {
    for (mode, predictor) in [(Mode::Dense, "lookahead"), (Mode::OnDemand, "oracle")] {
        for group in [None, Some(Group::SoftmaxSum), Some(Group::Mean)] {
            let s = Settings { audit: true, group, ..settings(mode, 6) };
            let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
            let prefix = [prefill(&mut engine, &random_prompt(64, 90, 5), 4)];
            let p = policies("minmax", predictor, "lrs", "none");
            let trail = decode(&mut engine, &s, &p, &prefix, 12, |_, _| {});
            let layers = trail.reports.iter().flat_map(|r| {
                r.seqs[0].layers.iter().zip(r.seqs[0].heads.chunks_exact(tiny_geometry().kv_heads))
            });
            for (stats, heads) in layers {
                let audit = stats.audit.unwrap();
                let by_head = heads.iter().fold((0.0, 0.0), |a, h| (a.0 + h.agreement, a.1 + h.recall_exact));
                assert_eq!(by_head, (audit.agreement, audit.recall_exact), "a layer is the sum of its heads");
                if mode == Mode::Dense {
                    assert!((audit.mass_recall / f64::from(audit.heads) - 1.0).abs() < 1e-5);
                    assert!(audit.error_sq <= 1e-4 * audit.dense_sq, "{audit:?}");
                } else {
                    assert_eq!(audit.agreement, f64::from(audit.pools), "its own query is the true one");
                    assert!(audit.mass_recall < f64::from(audit.heads));
                }
            }
        }
    }
}

#[test]
fn exact_keys_on_demand_find_the_exact_blocks() {
    let s = Settings { audit: true, normalise_resident: true, ..settings(Mode::OnDemand, 8) };
    let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
    let prefix = [prefill(&mut engine, &random_prompt(64, 120, 5), 4)];
    let p = policies("exact-keys", "oracle", "lrs", "none");
    let trail = decode(&mut engine, &s, &p, &prefix, 12, |_, _| {});
    let audits = trail.reports.iter().flat_map(|r| &r.seqs[0].layers).map(|l| l.audit.unwrap());
    let (recall, pools) = audits.fold((0.0, 0), |(r, p), a| (r + a.recall_exact, p + a.pools));
    // The summary normalises with pinned mass at the head level and exact mass with all of it: the same set
    // but for blocks that tie within rounding.
    assert!(recall / f64::from(pools) > 0.97, "{}", recall / f64::from(pools));
}

#[test]
fn predicted_device_memory_is_allocated_device_memory() {
    for mode in Mode::ALL {
        for audit in [false, true] {
            let s = Settings { audit, ..settings(mode, 6) };
            let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
            let prefixes = [60, 31].map(|n| prefill(&mut engine, &random_prompt(64, n, 5), 4));
            let p = policies("rotated-keys", predictor_for(mode), "lrs", "ngram");
            decode(&mut engine, &s, &p, &prefixes, 30, |d, _| {
                assert_eq!(d.allocated().device as u64, d.plan().device(), "{mode:?}");
                let growth = d.plan().pools.iter().find(|p| p.name == "host growth").unwrap().bytes;
                assert!(d.allocated().host as u64 <= growth, "{mode:?}");
            });
        }
    }
}

#[test]
fn boundaries_of_blocks_budgets_and_selections() {
    // block − 1, block, block + 1 tokens; budget ± one block; caps around K.
    for prompt in [1, 3, 4, 5, 23, 24, 25, 27, 28, 29] {
        for budget in [3, 5, 6, 7] {
            for cap in [0, 1, budget - 3, budget - 2, budget - 1] {
                let s = Settings { cap: Cap::Blocks(cap), ..settings(Mode::Staged, budget) };
                let trail = run(&s, Family::Llama, &[prompt], "minmax", 14);
                for l in trail.reports.iter().flat_map(|r| &r.seqs[0].layers) {
                    assert_eq!(l.hits + l.fetched + l.dropped, l.wanted);
                    assert!(l.fetched_max <= cap as u64);
                }
            }
        }
    }
}
