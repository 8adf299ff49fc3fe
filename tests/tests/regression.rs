//! The committed baseline: what nano decides, scores and moves under every kind of policy is what it was.
//!
//! `configs/regression.toml` runs again with the backend whose bits are the same everywhere, and `oasis compare` is the judge.

use crate::cli::{program, root};
use std::path::{Path, PathBuf};
use std::process::Output;

/// Equal to the bit, and no score lower.
const RULES: &str = "tokens,decisions,counters,bytes,accuracy<0";

/// Runs the configuration; the run's folder.
fn run(output: &Path, more: &[&str]) -> PathBuf {
    let output = output.to_str().unwrap();
    let args = ["run", "-c", "configs/regression.toml", "--backend", "cpu-portable", "-o", output];
    let out = program("oasis", &[&args, more].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    std::fs::read_dir(output).unwrap().next().unwrap().unwrap().path()
}

fn compare(baseline: &Path, run: &Path) -> (Output, String) {
    let (a, b) = (baseline.to_str().unwrap(), run.to_str().unwrap());
    let out = program("oasis", &["compare", a, b, "--fail-on", RULES]);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out, said)
}

fn baseline() -> PathBuf {
    root().join("tests/baseline")
}

#[test]
fn nano_decides_scores_and_moves_what_the_baseline_does() {
    let folder = tempfile::tempdir().unwrap();
    let (out, said) = compare(&baseline(), &run(folder.path(), &[]));
    assert!(out.status.success(), "{said}\nCONTRIBUTING.md says how to renew tests/baseline");
    assert!(said.contains("cells compared: 13"), "{said}");
    for rule in RULES.split(',') {
        assert!(said.contains(&format!("passed `{rule}`")), "{said}");
    }
}

#[test]
fn a_changed_policy_fails_the_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let (out, said) = compare(&baseline(), &run(folder.path(), &["--set", "decode.evictor=fifo"]));
    assert_eq!(out.status.code(), Some(1), "{said}");
    for rule in ["decisions", "counters"] {
        assert!(said.contains(&format!("FAILED `{rule}`: `previous token`")), "{rule}: {said}");
    }
    // What the change does not touch stays equal.
    assert!(!said.contains("`decisions`: `dense`") && !said.contains("`decisions`: `sieve`"), "{said}");
}

#[test]
fn a_lower_score_and_another_byte_count_fail_the_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder.path().join("runs"), &[]);
    // As if the baseline had had these.
    for (rule, from, to) in [
        ("accuracy<0", "\"score\":0.0", "\"score\":1.0"),
        ("bytes", "\"step_bytes\":[0,", "\"step_bytes\":[64,"),
    ] {
        let other = tempfile::tempdir_in(folder.path()).unwrap();
        for file in std::fs::read_dir(baseline()).unwrap().flatten() {
            std::fs::copy(file.path(), other.path().join(file.file_name())).unwrap();
        }
        let file = other.path().join("samples.jsonl");
        let samples = std::fs::read_to_string(&file).unwrap();
        assert!(samples.contains(from), "nothing to change");
        std::fs::write(&file, samples.replacen(from, to, 1)).unwrap();
        let (out, said) = compare(other.path(), &run);
        assert_eq!(out.status.code(), Some(1), "{rule}: {said}");
        assert!(said.contains(&format!("FAILED `{rule}`")), "{rule}: {said}");
    }
}
