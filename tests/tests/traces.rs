//! A replay of the policies that a tape was recorded from makes the decisions of the recorded decode, to the bit.

mod known;

use crate::invariants::case as random_case;
use oasis_core::decode::{Decoder, Replay, ReplayOptions, Start};
use oasis_core::ids::NONE;
use oasis_core::model::Family;
use oasis_core::select::Outcome;
use oasis_core::settings::{Cap, Emit, Group, Mode, Scope, Settings};
use oasis_core::stats::{AuditStats, StepReport};
use oasis_core::tape::Tape;
use oasis_kernels::Cpu;
use oasis_tests::*;
use proptest::prelude::*;
use std::sync::Arc;

/// What a step decided, layer by layer, and what was counted.
#[derive(Debug, PartialEq)]
struct Decided {
    report: StepReport,
    pools: Vec<Vec<Pool>>,
}

/// A selection: blocks wanted, blocks that came with their slots, blocks that left, blocks that were there.
#[derive(Debug, PartialEq)]
struct Pool {
    wanted: Vec<u32>,
    moves: Vec<(u32, u32)>,
    evicted: Vec<u32>,
    hits: usize,
}

impl Pool {
    fn of(outcome: &Outcome) -> Self {
        let Outcome { wanted, moves, evicted, hits, .. } = outcome.clone();
        let mut wanted = wanted;
        // The order decides who comes first. Where all are there already it decides nothing, and is left over from others
        // of a batch.
        if hits == wanted.len() {
            wanted.sort_unstable();
        }
        Self { wanted, moves, evicted, hits }
    }
}

/// The report of one sequence without times and without what hangs on values, which are not on a tape.
fn comparable(report: &StepReport, seq: usize) -> StepReport {
    let mut report = report.clone();
    report.seconds = Default::default();
    report.seqs = vec![report.seqs[seq].clone()];
    for audit in report.seqs[0].layers.iter_mut().filter_map(|l| l.audit.as_mut()) {
        *audit = AuditStats { error_sq: 0.0, dense_sq: 0.0, ..*audit };
    }
    report
}

struct Case {
    settings: Settings,
    names: [&'static str; 4],
    prompts: Vec<usize>,
    forced: bool,
}

const STEPS: usize = 24;

fn recorded() -> ReplayOptions {
    ReplayOptions { record: true, ..ReplayOptions::default() }
}

impl Case {
    fn new(names: [&'static str; 4], cap: Cap) -> Self {
        let mode = if names[1] == "oracle" { Mode::OnDemand } else { Mode::Staged };
        let settings = Settings { cap, audit: true, ..settings(mode, 6) };
        Self { settings, names, prompts: vec![70], forced: false }
    }

    /// Decodes and records; then the decisions and tapes of every sequence.
    fn record(&self) -> (Vec<Vec<Decided>>, Vec<Tape>) {
        let mut engine = random_model(tiny_geometry(), Family::Llama, 3);
        let [summary, predictor, evictor, draft] = self.names;
        let p = policies(summary, predictor, evictor, draft);
        let prompts = self.prompts.iter().enumerate();
        let batch: Vec<Start<Cpu>> = prompts
            .map(|(i, &n)| {
                let prefix =
                    prefill(&mut engine, &random_prompt(64, n, n as u64), self.settings.block_tokens);
                let first = argmax(&prefix.logits);
                Start { prefix, first, future: Vec::new(), max_new: 4 * STEPS, seed: 7 + i as u64 }
            })
            .collect();
        let (layers, heads) = (tiny_geometry().layers, tiny_geometry().kv_heads);
        let mut decoder = Decoder::recording(&mut engine, &self.settings, &p, batch).unwrap();
        let mut decided: Vec<Vec<Decided>> = self.prompts.iter().map(|_| Vec::new()).collect();
        for step in 0..STEPS {
            let token = if self.forced && step % 3 == 0 { 5 + step as u32 } else { NONE };
            let report = decoder.step(Some(&vec![token; self.prompts.len()])).unwrap().clone();
            for (s, decided) in decided.iter_mut().enumerate() {
                let own = |layer| {
                    decoder.outcomes(layer).iter().skip(s * heads).take(heads).map(Pool::of).collect()
                };
                decided
                    .push(Decided { report: comparable(&report, s), pools: (0..layers).map(own).collect() });
            }
        }
        (decided, decoder.into_tapes())
    }

    fn replay(&self, tape: &Arc<Tape>, settings: &Settings) -> (Vec<Decided>, Tape) {
        let [summary, predictor, evictor, _] = self.names;
        let (decided, own) = replayed(tape, settings, [summary, predictor, evictor], recorded());
        (decided, own.unwrap())
    }

    fn check(&self) {
        let (live, tapes) = self.record();
        for (live, tape) in live.iter().zip(tapes) {
            tape.check().unwrap();
            assert_eq!(tape.steps(), STEPS);
            let tape = Arc::new(tape);
            let (replayed, again) = self.replay(&tape, &self.settings);
            assert_eq!(live.len(), replayed.len());
            for (a, b) in live.iter().zip(&replayed) {
                assert_eq!(a, b, "{:?}, cap {}", self.names, self.settings.cap);
            }
            assert!(*tape == again, "{:?}: the replay's own tape differs", self.names);
            let moved: u64 = live.iter().flat_map(|d| &d.report.seqs[0].layers).map(|l| l.fetched).sum();
            assert_eq!(moved > 0, self.settings.cap_blocks() > 0, "{:?}: a test of nothing", self.names);
        }
    }
}

#[test]
fn a_replay_decides_as_the_decode_did() {
    let mut cases = 0;
    for predictor in ["lookahead", "previous-token", "oracle", "random"] {
        for summary in ["minmax", "mean", "rotated-keys {bits = 2}"] {
            for evictor in ["lrs", "lru", "sieve", "random"] {
                for cap in [Cap::Blocks(1), Cap::Unlimited] {
                    let draft = if predictor == "lookahead" { "layer-skip {layers = 1}" } else { "none" };
                    Case::new([summary, predictor, evictor, draft], cap).check();
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 96);
}

#[test]
fn so_it_does_under_all_other_settings() {
    let base = || Case::new(["minmax", "lookahead", "lru", "ngram {min = 1, max = 2}"], Cap::Blocks(1));
    let with = |change: &dyn Fn(&mut Settings)| {
        let mut case = base();
        change(&mut case.settings);
        case.check();
    };
    with(&|s| s.emit = Emit::Accepted);
    with(&|s| s.scope = Scope::Selected);
    with(&|s| s.mode = Mode::ResidentSparse);
    with(&|s| s.group = Some(Group::SoftmaxSum));
    with(&|s| (s.block_tokens, s.budget_tokens) = (5, 30));
    with(&|s| s.sampling.temperature = 1.0);
    with(&|s| s.cap = Cap::Blocks(0));
    let on_demand = Case::new(["minmax", "oracle", "lru", "none"], Cap::Blocks(1));
    let settings = Settings { group: Some(Group::SoftmaxSum), ..on_demand.settings.clone() };
    Case { settings, ..on_demand }.check();
    Case { forced: true, ..base() }.check();
    // A sequence's tape does not depend on its batch.
    Case { prompts: vec![40, 71, 9], ..base() }.check();
}

#[test]
fn another_policy_decides_otherwise_and_a_dense_decode_can_be_recorded() {
    let mut case = Case::new(["minmax", "previous-token", "lrs", "none"], Cap::Blocks(1));
    let sparse = case.settings.clone();
    case.settings = Settings { mode: Mode::Dense, audit: false, ..sparse.clone() };
    let (_, mut tapes) = case.record();
    let tape = Arc::new(tapes.remove(0));
    assert!(tape.mass.first.is_empty(), "nothing is ranked in a dense decode");
    let (lrs, own) = case.replay(&tape, &sparse);
    case.names[0] = "mean";
    let (mean, _) = case.replay(&tape, &sparse);
    assert!(lrs != mean, "two summaries chose alike for {STEPS} steps");
    assert!((own.queries == tape.queries) && own.mass.first.len() as u64 == tape.decisions() + 1);
    // Blocks of another size: keys are kept by token.
    let wider = Settings { block_tokens: 8, budget_tokens: 48, ..sparse };
    let (wide, _) = case.replay(&tape, &wider);
    assert_eq!(wide.len(), STEPS);
}

#[test]
fn what_is_no_tape_is_refused() {
    let (_, mut tapes) = Case::new(["minmax", "previous-token", "lrs", "none"], Cap::Unlimited).record();
    let tape = tapes.remove(0);
    let refused = |change: &dyn Fn(&mut Tape), fragment: &str| {
        let mut bad = tape.clone();
        change(&mut bad);
        let said = bad.check().unwrap_err().to_string();
        assert!(said.contains(fragment), "{said}");
        assert!(bad.prefix(&Cpu::new(1), 4).is_err());
    };
    refused(&|t| t.queries.truncate(1), "queries has 1 elements");
    refused(&|t| t.prompt.clear(), "0 tokens");
    refused(&|t| t.row_first[2] = 0, "step 1 has rows 1..0");
    refused(&|t| t.parents[3] = 1, "after its parent");
    refused(&|t| t.tokens[0] = 64, "token 64");
    refused(&|t| t.mass.first.truncate(3), "mass_first has 3");
    refused(&|t| t.keys[5] = oasis_core::bf16::NAN, "holds NaN");
    refused(&|t| t.geometry.kv_heads = 3, "KV heads");
    // Rows that do not follow from one another are found when they are played.
    let mut torn = tape.clone();
    torn.tokens[4] = (torn.tokens[4] + 1) % 64;
    let p = policies("minmax", "previous-token", "lrs", "none");
    let (backend, torn) = (Cpu::new(1), Arc::new(torn));
    let prefix = Arc::new(torn.prefix(&backend, 4).unwrap());
    let dense =
        Replay::new(Cpu::new(1), torn.clone(), prefix.clone(), &settings(Mode::Dense, 6), &p, recorded());
    assert!(dense.err().unwrap().to_string().contains("nothing to replay"));
    let mut replay = Replay::new(backend, torn, prefix, &settings(Mode::Staged, 6), &p, recorded()).unwrap();
    let failed = (0..STEPS).find_map(|_| replay.step().err()).expect("a torn tape plays to its end");
    assert!(failed.to_string().contains("begins with token"), "{failed}");
}

fn replayed(
    tape: &Arc<Tape>,
    settings: &Settings,
    names: [&str; 3],
    options: ReplayOptions,
) -> (Vec<Decided>, Option<Tape>) {
    let p = policies(names[0], names[1], names[2], "none");
    let prefix = Arc::new(tape.prefix(&Cpu::new(1), settings.block_tokens).unwrap());
    let mut replay = Replay::new(Cpu::new(1), tape.clone(), prefix, settings, &p, options).unwrap();
    let mut decided = Vec::new();
    while let Some(report) = replay.step().unwrap() {
        let report = comparable(report, 0);
        let of_layer = |l| replay.outcomes(l).iter().map(Pool::of).collect();
        decided.push(Decided { report, pools: (0..tape.geometry.layers).map(of_layer).collect() });
    }
    (decided, replay.into_tape())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Any model, batch, settings and policies: each sequence's replay is its decode, and known rankings change nothing.
    #[test]
    fn a_replay_is_the_decode(case in random_case()) {
        let mut engine = random_model(tiny_geometry(), case.family, case.seed % 4);
        let [summary, predictor, evictor, draft] = case.policies();
        let p = policies(summary, predictor, evictor, draft);
        let batch: Vec<Start<Cpu>> = case.lengths.iter().map(|&n| {
            let prompt = random_prompt(64, n, case.seed ^ n as u64);
            let prefix = prefill(&mut engine, &prompt, case.settings.block_tokens);
            let first = argmax(&prefix.logits);
            Start { prefix, first, future: Vec::new(), max_new: 4 * STEPS, seed: case.seed }
        }).collect();
        let heads = tiny_geometry().kv_heads;
        let mut decoder = Decoder::recording(&mut engine, &case.settings, &p, batch).unwrap();
        let mut live: Vec<Vec<Decided>> = case.lengths.iter().map(|_| Vec::new()).collect();
        for _ in 0..STEPS {
            let report = decoder.step(None).unwrap().clone();
            for (s, live) in live.iter_mut().enumerate() {
                let own = |l| decoder.outcomes(l).iter().skip(s * heads).take(heads).map(Pool::of).collect();
                live.push(Decided { report: comparable(&report, s), pools: (0..2).map(own).collect() });
            }
        }
        let names = [summary, predictor, evictor];
        for (live, tape) in live.iter().zip(decoder.into_tapes()) {
            tape.check().unwrap();
            let tape = Arc::new(tape);
            let (again, own) = replayed(&tape, &case.settings, names, recorded());
            prop_assert_eq!(live, &again);
            prop_assert!(own.is_some_and(|own| own == *tape));
            let prefix = Arc::new(tape.prefix(&Cpu::new(1), case.settings.block_tokens).unwrap());
            let p = policies(summary, predictor, evictor, "none");
            let depth = case.settings.k();
            let rankings = Replay::rank(Cpu::new(1), tape.clone(), prefix, &case.settings, &p, depth).unwrap();
            let options = ReplayOptions { rankings: Some(Arc::new(rankings)), ..ReplayOptions::default() };
            let (known, _) = replayed(&tape, &case.settings, names, options);
            for (a, b) in live.iter().zip(&known) {
                prop_assert_eq!(&a.pools, &b.pools);
            }
        }
    }
}
