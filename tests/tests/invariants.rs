//! The invariants of a step over random models, batches, budgets, caps and policies.

use oasis_core::model::Family;
use oasis_core::settings::{Cap, Emit, Group, Mode, Scope, Settings};
use oasis_tests::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub settings: Settings,
    pub family: Family,
    pub lengths: Vec<usize>,
    names: [usize; 4],
    pub seed: u64,
}

impl Case {
    /// Names of summary, predictor, evictor and draft.
    pub fn policies(&self) -> [&'static str; 4] {
        let [summary, predictor, evictor, draft] = self.names;
        [
            oasis_policies::SUMMARIES[summary].name,
            oasis_predictors::PREDICTORS[predictor].name,
            oasis_policies::EVICTORS[evictor].name,
            DRAFTS[draft],
        ]
    }
}

const DRAFTS: [&str; 4] = ["none", "ngram", "layer-skip {layers = 1}", "ngram {min = 1, max = 2}"];

fn settings_strategy() -> impl Strategy<Value = Settings> {
    let mode = prop::sample::select(vec![Mode::Staged, Mode::ResidentSparse, Mode::Static, Mode::Staged]);
    let cap = prop_oneof![
        Just(Cap::Unlimited),
        (0usize..4).prop_map(Cap::Blocks),
        (0.0f64..1.0).prop_map(Cap::Fraction),
    ];
    let scope = prop::sample::select(vec![Scope::Resident, Scope::Selected]);
    let group =
        prop::sample::select(vec![None, Some(Group::Max), Some(Group::Mean), Some(Group::SoftmaxSum)]);
    let emit = prop::sample::select(vec![Emit::One, Emit::Accepted]);
    let pinned = (0usize..3, 0usize..3);
    (
        mode,
        cap,
        scope,
        group,
        emit,
        pinned,
        1usize..6,
        prop::sample::select(vec![1usize, 2, 4, 5]),
        any::<bool>(),
    )
        .prop_map(|(mode, cap, scope, group, emit, (sink, window), k, block, normalise)| Settings {
            mode,
            cap,
            scope,
            group,
            emit,
            sink_blocks: sink,
            window_blocks: window,
            block_tokens: block,
            budget_tokens: (sink + window + k) * block,
            normalise_resident: normalise,
            ..settings(mode, 8)
        })
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let family = prop::sample::select(vec![Family::Llama, Family::Qwen2, Family::Qwen3]);
    let names = [
        0..oasis_policies::SUMMARIES.len(),
        0..oasis_predictors::PREDICTORS.len(),
        0..oasis_policies::EVICTORS.len(),
        0..DRAFTS.len(),
    ];
    (settings_strategy(), family, prop::collection::vec(1usize..50, 1..4), names, any::<u64>())
        .prop_map(|(settings, family, lengths, names, seed)| Case { settings, family, lengths, names, seed })
}

fn run(case: &Case) -> Trail {
    let mut engine = random_model(tiny_geometry(), case.family, case.seed % 4);
    let [summary, predictor, evictor, draft] = case.policies();
    let p = policies(summary, predictor, evictor, draft);
    let prefixes: Vec<_> = case
        .lengths
        .iter()
        .map(|&n| {
            prefill(&mut engine, &random_prompt(64, n, case.seed ^ n as u64), case.settings.block_tokens)
        })
        .collect();
    let (block_tokens, cap) = (case.settings.block_tokens, case.settings.cap_blocks() as u64);
    let block_bytes = (2 * 2 * block_tokens * tiny_geometry().head_dim) as u64;
    let resident = case.settings.mode.resident();
    decode(&mut engine, &case.settings, &p, &prefixes, 24, |decoder, report| {
        for l in report.seqs.iter().flat_map(|s| &s.layers) {
            assert_eq!(l.hits + l.fetched + l.dropped, l.wanted, "hits + misses + dropped = wanted");
            assert!(l.fetched_max <= cap, "{} fetches in a pool with C = {cap}", l.fetched_max);
            assert_eq!(
                l.bytes_h2d,
                if resident { 0 } else { l.fetched * block_bytes },
                "bytes = fetches × block"
            );
            assert_eq!(l.nans, 0);
        }
        for s in &report.seqs {
            for (l, heads) in s.layers.iter().zip(s.heads.chunks_exact(tiny_geometry().kv_heads)) {
                let (wanted, hits) = heads.iter().fold((0, 0), |n, h| (n.0 + h.wanted, n.1 + h.hits));
                assert_eq!((wanted, hits), (l.wanted, l.hits), "a layer is the sum of its heads");
            }
        }
        // Slot bytes equal host bytes: what the loop believes to be resident really is.
        decoder.verify_slots().unwrap();
        assert!(decoder.k_and_cap().1 as u64 == cap);
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_step_keeps_the_books(case in case()) {
        run(&case);
    }

    #[test]
    fn the_same_seed_gives_the_same_bits(case in case()) {
        prop_assert_eq!(run(&case), run(&case));
    }

    #[test]
    fn where_the_kv_lies_leaves_no_trace(case in case()) {
        let other = match case.settings.mode {
            Mode::ResidentSparse => Mode::Staged,
            _ => Mode::ResidentSparse,
        };
        prop_assume!(case.settings.mode != Mode::Static);
        let twin = Case { settings: Settings { mode: other, ..case.settings.clone() }, ..case.clone() };
        let (a, b) = (run(&case), run(&twin));
        prop_assert_eq!(a.tokens, b.tokens);
        prop_assert_eq!(a.logits, b.logits);
    }
}
