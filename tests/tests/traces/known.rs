//! What is known before a replay: rankings, the truth, the next use of a block.

use super::*;
use oasis_core::decode::Rankings;

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
