//! A replay of the policies that a tape was recorded from makes the decisions of the recorded decode, to the bit.

use oasis_core::decode::{Decoder, Rankings, Replay, ReplayOptions, Start};
use oasis_core::ids::NONE;
use oasis_core::model::Family;
use oasis_core::select::Outcome;
use oasis_core::settings::{Cap, Emit, Group, Mode, Scope, Settings};
use oasis_core::stats::{AuditStats, StepReport};
use oasis_core::tape::Tape;
use oasis_kernels::Cpu;
use oasis_tests::*;
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
        let p = policies(summary, predictor, evictor, "none");
        let backend = Cpu::new(1);
        let prefix = Arc::new(tape.prefix(&backend, settings.block_tokens).unwrap());
        let mut replay = Replay::new(backend, tape.clone(), prefix, settings, &p, recorded()).unwrap();
        let mut decided = Vec::new();
        while let Some(report) = replay.step().unwrap() {
            let report = comparable(report, 0);
            let of_layer = |l| replay.outcomes(l).iter().map(Pool::of).collect();
            let pools = (0..tape.geometry.layers).map(of_layer).collect();
            decided.push(Decided { report, pools });
        }
        (decided, replay.into_tape().unwrap())
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

/// A tape of a longer prompt, and settings with K = 6.
fn longer() -> (Case, Arc<Tape>) {
    let mut case = Case::new(["minmax", "previous-token", "lrs", "none"], Cap::Blocks(1));
    case.prompts = vec![200];
    let (_, mut tapes) = case.record();
    case.settings = Settings { audit: false, budget_tokens: 4 * 8, ..case.settings.clone() };
    (case, Arc::new(tapes.remove(0)))
}

fn decisions(replay: &mut Replay<Cpu>, layers: usize) -> Vec<Vec<Vec<Pool>>> {
    let mut all = Vec::new();
    while replay.step().unwrap().is_some() {
        all.push((0..layers).map(|l| replay.outcomes(l).iter().map(Pool::of).collect()).collect());
    }
    all
}

#[test]
fn rankings_that_are_known_change_no_decision() {
    let (case, tape) = longer();
    let layers = tape.geometry.layers;
    let prefix = Arc::new(tape.prefix(&Cpu::new(1), 4).unwrap());
    let mut compared = 0;
    for (summary, predictor) in [("minmax", "previous-token"), ("mean", "oracle"), ("minmax", "random")] {
        let mode = if predictor == "oracle" { Mode::OnDemand } else { Mode::Staged };
        for group in [None, Some(Group::SoftmaxSum)] {
            let base = Settings { mode, group, ..case.settings.clone() };
            let p = policies(summary, predictor, "lrs", "none");
            let ranked = Replay::rank(Cpu::new(1), tape.clone(), prefix.clone(), &base, &p, 12).unwrap();
            assert_eq!((ranked.steps(), ranked.depth()), (STEPS, 12));
            let ranked = Arc::new(ranked);
            for evictor in ["lrs", "lru", "sieve", "random"] {
                for (cap, budget, audit) in [(1, 8, false), (3, 14, false), (1, 8, true)] {
                    let settings =
                        Settings { cap: Cap::Blocks(cap), budget_tokens: 4 * budget, audit, ..base.clone() };
                    let p = policies(summary, predictor, evictor, "none");
                    let replay = |rankings| {
                        let options = ReplayOptions { rankings, ..ReplayOptions::default() };
                        Replay::new(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &p, options)
                            .unwrap()
                    };
                    let mut known = replay(Some(ranked.clone()));
                    assert_eq!(known.has_masses(), audit || evictor == "lru", "{evictor}");
                    assert_eq!(
                        decisions(&mut replay(None), layers),
                        decisions(&mut known, layers),
                        "{evictor} {group:?}"
                    );
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 72);
}

#[test]
fn agreement_with_known_truth_is_an_audit_s() {
    let (case, tape) = longer();
    let prefix = Arc::new(tape.prefix(&Cpu::new(1), 4).unwrap());
    for (predictor, mode) in
        [("previous-token", Mode::Staged), ("oracle", Mode::OnDemand), ("random", Mode::Staged)]
    {
        for group in [None, Some(Group::SoftmaxSum)] {
            let settings = Settings { mode, group, ..case.settings.clone() };
            let p = policies("minmax", predictor, "lrs", "none");
            let make = |settings: &Settings, options| {
                Replay::new(Cpu::new(1), tape.clone(), prefix.clone(), settings, &p, options).unwrap()
            };
            let truth =
                Replay::rank_truly(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &p, 9).unwrap();
            let truth = Some(Arc::new(truth));
            let mut known = make(&settings, ReplayOptions { truth, ..ReplayOptions::default() });
            let mut audited = make(&Settings { audit: true, ..settings.clone() }, ReplayOptions::default());
            let (mut sum, mut pools) = (0.0, 0);
            while let Some(report) = audited.step().unwrap() {
                let want = comparable(report, 0);
                let have = comparable(known.step().unwrap().expect("as many steps"), 0);
                for (a, b) in want.seqs[0].layers.iter().zip(&have.seqs[0].layers) {
                    let (a, b) = (a.audit.expect("audited"), b.audit.unwrap_or_default());
                    assert_eq!((a.agreement, a.pools), (b.agreement, b.pools), "{predictor} {group:?}");
                    (sum, pools) = (sum + b.agreement, pools + b.pools);
                }
            }
            let mean = sum / f64::from(pools);
            assert!(
                if predictor == "oracle" { mean == 1.0 } else { mean > 0.0 && mean < 1.0 },
                "{predictor}: {mean}"
            );
        }
    }
}

#[test]
fn belady_evicts_what_is_used_last() {
    let (case, tape) = longer();
    let (layers, heads) = (tape.geometry.layers, tape.geometry.kv_heads);
    let prefix = Arc::new(tape.prefix(&Cpu::new(1), 4).unwrap());
    let with = |evictor: &dyn Fn() -> Box<dyn oasis_core::policy::Evictor>,
                rankings: Option<Arc<Rankings>>| {
        let build: Vec<_> = (0..layers * heads + 1).map(|_| std::sync::Mutex::new(Some(evictor()))).collect();
        let at = std::sync::atomic::AtomicUsize::new(0);
        let mut p = policies("minmax", "previous-token", "lrs", "none");
        p.evictor = Arc::new(move |_| {
            let i = at.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(build[i].lock().unwrap().take().expect("one evictor a pool"))
        });
        let options = ReplayOptions { record: true, rankings, ..ReplayOptions::default() };
        Replay::new(Cpu::new(1), tape.clone(), prefix.clone(), &case.settings, &p, options)
    };
    let belady =
        || -> Box<dyn oasis_core::policy::Evictor> { Box::new(oasis_policies::evictor::belady::Belady) };
    let refused = with(&belady, None).err().expect("refused").to_string();
    assert!(refused.contains("belady") && refused.contains("trace replay"), "{refused}");
    let p = policies("minmax", "previous-token", "lrs", "none");
    let ranked = Replay::rank(Cpu::new(1), tape.clone(), prefix.clone(), &case.settings, &p, 6).unwrap();
    let ranked = Arc::new(ranked);
    let mut replay = with(&belady, Some(ranked.clone())).unwrap();
    let all = decisions(&mut replay, layers);
    let own = replay.into_tape().expect("it was recorded");
    // By the selections themselves: no resident that stayed and could have left is used later than one that left.
    let next = |step: usize, layer: usize, head: usize, block: u32| {
        let later = all.iter().enumerate().skip(step + 1);
        later
            .filter(|(_, s)| s[layer][head].wanted.contains(&block))
            .map(|(i, _)| i)
            .next()
            .unwrap_or(usize::MAX)
    };
    let mut evictions = 0;
    for (layer, head) in (0..layers).flat_map(|l| (0..heads).map(move |h| (l, h))) {
        for (step, s) in all.iter().enumerate() {
            let pool = &s[layer][head];
            // What is attended is resident; blocks that are sealed then: all but a sink and a window block may leave.
            let (attended, _) = own.mass.get((step * layers + layer) * heads + head).expect("masses");
            let unpinned = 1..(200 + step as u32) / 4 - 1;
            for &gone in &pool.evicted {
                assert!(attended.contains(&gone));
                let stayed =
                    |b: &&u32| unpinned.contains(b) && !pool.wanted.contains(b) && !pool.evicted.contains(b);
                let latest = attended.iter().filter(stayed).map(|&b| next(step, layer, head, b)).max();
                assert!(
                    latest.is_none_or(|l| next(step, layer, head, gone) >= l),
                    "step {step}: {gone} left"
                );
                evictions += 1;
            }
        }
    }
    assert!(evictions > 50, "{evictions}");
    let hits = |all: &[Vec<Vec<Pool>>]| all.iter().flatten().flatten().map(|p| p.hits).sum::<usize>();
    let random = || -> Box<dyn oasis_core::policy::Evictor> {
        let params = oasis_core::registry::Params { seed: 5, ..Default::default() };
        (oasis_policies::evictor::random::ENTRY.build)(&params).unwrap()
    };
    let bound = hits(&all);
    let low = hits(&decisions(&mut with(&random, Some(ranked)).unwrap(), layers));
    assert!(bound > low, "belady hits {bound} times and random {low} times");
    // No decode knows the next use.
    let mut engine = random_model(tiny_geometry(), Family::Llama, 3);
    let prefix = prefill(&mut engine, &random_prompt(64, 70, 1), 4);
    let mut p = policies("minmax", "previous-token", "lrs", "none");
    p.evictor = Arc::new(|_| Ok(Box::new(oasis_policies::evictor::belady::Belady)));
    let start = Start { prefix, first: 1, future: Vec::new(), max_new: 4, seed: 0 };
    let decoder = Decoder::new(&mut engine, &settings(Mode::Staged, 6), &p, vec![start]);
    assert!(decoder.err().expect("refused").to_string().contains("no decode knows"));
}

/// A tape of random keys and queries: 1,024 blocks of 16 tokens, 4 layers, 2 KV heads of 64 with 4 query heads each.
fn random_tape(steps: usize) -> Tape {
    use rand::{RngExt, SeedableRng};
    let geometry = oasis_core::geometry::Geometry {
        layers: 4,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        max_positions: 1 << 20,
        ..tiny_geometry()
    };
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut noise = |n: usize| -> Vec<oasis_core::bf16> {
        (0..n).map(|_| oasis_core::bf16::from_f32(rng.random::<f32>() * 4.0 - 2.0)).collect()
    };
    let (prompt, g) = (1024 * 16, geometry);
    let mut tape = Tape::new(g.clone(), vec![1; prompt], 1, steps, 0);
    tape.prompt_keys = noise(g.layers * prompt * g.kv_dim());
    tape.prompt_queries = noise(g.layers * g.q_dim());
    tape.row_first = (0..=steps as u32).collect();
    (tape.tokens, tape.parents, tape.sampled) = (vec![1; steps], vec![0; steps], vec![1; steps]);
    tape.forced = vec![NONE; steps];
    tape.queries = noise(steps * g.layers * g.q_dim());
    tape.keys = noise(steps * g.layers * g.kv_dim());
    tape
}

/// Not a test of a threshold: prints decisions a second of one thread, for the notes.
/// `cargo test --release -p oasis-tests speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn speed_of_a_replay() {
    let tape = Arc::new(random_tape(1000));
    let prefix = Arc::new(tape.prefix(&Cpu::new(1), 16).unwrap());
    let settings = Settings {
        block_tokens: 16,
        budget_tokens: 16 * 66,
        cap: Cap::Blocks(4),
        ..settings(Mode::Staged, 66)
    };
    for summary in ["minmax", "mean"] {
        let p = policies(summary, "previous-token", "lrs", "none");
        // Decisions a second, the beginning (summaries of the prompt) not counted.
        let timed = |name: &str, options: ReplayOptions, evictor: &str| {
            let p = policies(summary, "previous-token", evictor, "none");
            let mut replay =
                Replay::new(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &p, options).unwrap();
            let start = std::time::Instant::now();
            while replay.step().unwrap().is_some() {}
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{summary:<24} {evictor:<7} {name:<18} {:>10.0} decisions/s",
                tape.decisions() as f64 / seconds
            );
        };
        let start = std::time::Instant::now();
        let rankings = Replay::rank(Cpu::new(1), tape.clone(), prefix.clone(), &settings, &p, 64).unwrap();
        let all = start.elapsed().as_secs_f64();
        println!(
            "{summary:<24} all of a ranking, summaries included {:>10.0} decisions/s",
            tape.decisions() as f64 / all
        );
        timed("ranks for itself", ReplayOptions::default(), "lrs");
        timed("ranks for itself", ReplayOptions::default(), "lru");
        let rankings = Arc::new(rankings);
        for evictor in ["lrs", "sieve", "lru"] {
            timed(
                "rankings known",
                ReplayOptions { rankings: Some(rankings.clone()), ..ReplayOptions::default() },
                evictor,
            );
        }
    }
}
