//! Thousands of damaged checkpoints: an error or a model, never a panic. `OASIS_FUZZ_CASES` sets how many;
//! case numbers are stable, so that a failure can be run again with `OASIS_FUZZ_FROM`.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use support::mutate::Seeds;

fn number(key: &str) -> Option<u64> {
    std::env::var(key).ok()?.parse().ok()
}

#[test]
fn damaged_checkpoints_never_panic() {
    let seeds = Seeds::new();
    let from = number("OASIS_FUZZ_FROM").unwrap_or(0);
    let cases = number("OASIS_FUZZ_CASES").unwrap_or(5_000);
    let (mut accepted, mut refused, mut panics) = (0, 0, Vec::new());
    for case in from..from + cases {
        match catch_unwind(AssertUnwindSafe(|| seeds.case(case).load())) {
            Ok(Ok(())) => accepted += 1,
            Ok(Err(e)) => {
                refused += 1;
                assert!(!e.to_string().is_empty());
            }
            Err(_) => panics.push(case),
        }
    }
    println!("{cases} damaged checkpoints: {refused} refused, {accepted} loaded, {} panics", panics.len());
    assert!(panics.is_empty(), "cases that panicked: {panics:?}");
    // Both ways must be taken, or the damage is too weak or too strong to mean anything.
    assert!(accepted * 100 > cases && refused * 4 > cases);
}
