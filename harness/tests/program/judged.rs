//! What a run says of its own records: inversions, tasks at chance, drafts that are never right, repeats.

use crate::support::{Place, SMALL, folders, results, samples, stderr};
use oasis::record::{SampleRecord, Verdict};
use std::collections::BTreeSet;
use std::path::Path;

/// A run of 8 samples whose scores are rewritten, and its results made anew from them.
fn judged(score: fn(&SampleRecord) -> f64) -> oasis::record::Results {
    let place = Place::new(&SMALL.replace("samples = 2", "samples = 8"));
    place.succeed(&[]);
    let run = place.only_run("runs");
    let mut text = String::new();
    for mut record in samples(&run) {
        record.score = Some(score(&record));
        text += &serde_json::to_string(&record).expect("JSON");
        text.push('\n');
    }
    std::fs::write(run.join("samples.jsonl"), text).expect("records");
    place.succeed(&["--resume"]);
    results(&run)
}

fn order(results: &oasis::record::Results) -> (Verdict, &str) {
    let found = results.invariants.iter().find(|i| i.name.starts_with("static ≤"));
    found.map(|i| (i.verdict, i.detail.as_str())).expect("the invariant of the order")
}

#[test]
fn an_inversion_is_named_and_noise_is_none() {
    // Dense decoding is right in every second sample, the sparse one in all.
    let inverted = judged(|s| if s.cell == "dense" { (s.index % 2) as f64 } else { 1.0 });
    let (verdict, detail) = order(&inverted);
    assert_eq!(verdict, Verdict::Warning, "{detail}");
    assert!(detail.contains("`previous` beats `dense` on niah_multikey by 0.5"), "{detail}");
    assert!(
        inverted.warnings.iter().any(|w| w.contains("`previous` beats `dense`")),
        "{:?}",
        inverted.warnings
    );
    // Each is right where the other is wrong, in one sample.
    let noisy = judged(|s| f64::from(u8::from(s.index != usize::from(s.cell == "dense"))));
    assert_eq!(order(&noisy).0, Verdict::Held, "{}", order(&noisy).1);
    // Dense decoding knows nothing: there is nothing to invert.
    let blind = judged(|s| f64::from(u8::from(s.cell != "dense")));
    assert_eq!(order(&blind).0, Verdict::NotChecked, "{}", order(&blind).1);
    assert!(
        blind.warnings.iter().any(|w| w.contains("at chance on `niah_multikey`")),
        "{:?}",
        blind.warnings
    );
    assert!(
        blind.rows.iter().all(|r| r.non_discriminative) && noisy.rows.iter().all(|r| !r.non_discriminative)
    );
}

#[test]
fn drafts_that_are_never_right_are_a_warning() {
    let said = |accuracy: f64| {
        let cell =
            format!("predictor = \"lookahead\"\ndraft = {{ name = \"ideal\", accuracy = {accuracy:?} }}");
        let place = Place::new(&SMALL.replace("predictor = \"previous-token\"", &cell));
        place.succeed(&[]);
        let r = results(&place.only_run("runs"));
        r.warnings.iter().any(|w| w.contains("not one draft token was right"))
    };
    assert!(said(0.0));
    assert!(!said(1.0));
}

fn keys(run: &Path) -> BTreeSet<(String, String, u32)> {
    samples(run).into_iter().map(|s| (s.sample, s.cell, s.repeat)).collect()
}

#[test]
fn repeats_of_a_drawn_answer_are_records_of_their_own() {
    let drawn = SMALL.replace("audit = true", "temperature = 4.0").replace("samples = 2", "samples = 1");
    let place = Place::new(&drawn);
    place.succeed(&["--repeats", "3"]);
    let run = place.only_run("runs");
    assert_eq!((samples(&run).len(), keys(&run).len()), (6, 6));
    let answers: BTreeSet<Vec<u32>> = samples(&run).into_iter().map(|s| s.generated).collect();
    assert!(answers.len() > 1, "every draw gave {answers:?}");
    // A run that was killed after four records draws the other two as it would have.
    let before = std::fs::read_to_string(run.join("samples.jsonl")).expect("records");
    let four: String = before.lines().take(4).map(|l| format!("{l}\n")).collect();
    std::fs::write(run.join("samples.jsonl"), four).expect("records");
    place.succeed(&["--repeats", "3", "--resume"]);
    assert_eq!(std::fs::read_to_string(run.join("samples.jsonl")).expect("records"), before);
    assert_eq!(folders(&place.path("runs")).len(), 1);
}

#[test]
fn a_backslash_n_in_a_literal_string_is_noted() {
    let said = |name: &str| {
        let place = Place::new(&SMALL.replace("\"small\"", name));
        let out = place.run(&["--dry-run"]);
        assert!(out.status.success(), "{}", stderr(&out));
        String::from_utf8_lossy(&out.stdout).contains("holds a backslash and an n")
    };
    assert!(said(r"'a\nb'"));
    assert!(!said("\"a b\"") && !said("'a b'"));
}
