//! A step allocates nothing once it is warm.

use oasis_core::decode::{Decoder, Start};
use oasis_core::model::Family;
use oasis_core::settings::{Cap, Mode, Settings};
use oasis_tests::*;

#[test]
fn a_warm_step_allocates_nothing() {
    for (mode, predictor) in [
        (Mode::Dense, "previous-token"),
        (Mode::Staged, "previous-token"),
        (Mode::OnDemand, "oracle"),
        (Mode::ResidentSparse, "previous-token"),
    ] {
        for (summary, evictor) in [("minmax", "lrs"), ("rotated-keys", "lru")] {
            // Blocks of 16 tokens: the steps that are measured seal none, as a sealed block may grow the store.
            let s = Settings { block_tokens: 16, cap: Cap::Blocks(2), ..settings(mode, 0) };
            let s = Settings { budget_tokens: 16 * 6, max_rows: 1, ..s };
            let mut engine = random_model(tiny_geometry(), Family::Qwen3, 1);
            let prefixes = [200, 129].map(|n| prefill(&mut engine, &random_prompt(64, n, 5), 16));
            let p = policies(summary, predictor, evictor, "none");
            let start = |prefix: &std::sync::Arc<_>| Start {
                prefix: std::sync::Arc::clone(prefix),
                first: 1,
                future: vec![],
                max_new: 64,
                seed: 0,
            };
            let mut decoder =
                Decoder::new(&mut engine, &s, &p, prefixes.iter().map(start).collect()).unwrap();
            // 200 and 129 tokens have tails of 8 and 1: steps 24 to 30 lie between two seals of both.
            for _ in 0..24 {
                decoder.step(None).unwrap();
            }
            let mut fetched = 0;
            let info = allocation_counter::measure(|| {
                for _ in 0..6 {
                    let report = decoder.step(None).unwrap();
                    fetched += report.seqs.iter().flat_map(|s| &s.layers).map(|l| l.fetched).sum::<u64>();
                }
            });
            assert!(fetched > 0 || mode == Mode::Dense, "{mode:?}: nothing moved, so the test shows little");
            assert_eq!(info.count_total, 0, "{mode:?}, {summary}: {} bytes in 6 steps", info.bytes_total);
        }
    }
}
