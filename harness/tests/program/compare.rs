//! `oasis compare`: equal runs, changed policies, what is no pair, rules and exit codes.

use crate::support::{Place, SMALL, folders, samples, stderr};
use std::path::Path;
use std::process::{Command, Output};

fn compare(a: &Path, b: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
    command.arg("compare").args([a, b]).args(args).output().expect("the program starts")
}

/// Standard output of a comparison that ends with `code`.
fn says(a: &Path, b: &Path, args: &[&str], code: i32) -> String {
    let out = compare(a, b, args);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
    String::from_utf8(out.stdout).expect("text")
}

/// Why a comparison is refused; the exit code is that of wrong usage.
fn refused(a: &Path, b: &Path, args: &[&str]) -> String {
    let out = compare(a, b, args);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&out.stdout));
    stderr(&out)
}

#[test]
fn runs_are_compared_sample_by_sample_and_rules_give_the_exit_code() {
    let place = Place::new(&SMALL.replace("samples = 2", "samples = 3").replace("cap = 1", "cap = 0.05"));
    place.succeed(&["-o", "a"]);
    place.succeed(&["-o", "b", "--set", "cell.1.predictor=random"]);
    let (a, b) = (place.only_run("a"), place.only_run("b"));
    let all = "worse,tokens,counters,bytes,decisions,accuracy<0,topk_agreement<0";
    let same = says(&a, &a, &["--fail-on", all], 0);
    assert!(same.contains("passed `decisions`") && !same.contains("FAILED"), "{same}");

    let text = says(&a, &b, &["--fail-on", "decisions, topk_agreement<-5", "--fail-on", "worse"], 1);
    assert!(text.contains("predictor: previous-token → random"), "{text}");
    assert!(text.contains("FAILED `decisions`: `previous`, decisions differ in 3 of 3"), "{text}");
    assert!(text.contains("FAILED `topk_agreement<-5`") && text.contains("passed `worse`"), "{text}");
    assert!(text.contains("not significant") || text.contains("equal"), "three samples tell nothing: {text}");

    let file = place.path("out.md");
    let name = file.to_str().expect("path");
    assert!(says(&a, &b, &["--format", "markdown", "-o", name], 0).is_empty());
    let written = std::fs::read_to_string(&file).expect("written");
    assert!(written.starts_with("# small → small") && written.contains("| cell"), "{written}");

    let json: serde_json::Value =
        serde_json::from_str(&says(&a, &b, &["--format", "json"], 0)).expect("JSON");
    let decisions = json["decisions"].as_array().expect("a list");
    let of = |cell: &str| decisions.iter().find(|d| d["cell"] == cell).expect("cell");
    assert_eq!((&of("dense")["tokens"], &of("dense")["decisions"]), (&3.into(), &3.into()));
    assert_eq!(of("previous")["decisions"], 0);
    let bytes: u64 = samples(&b).iter().map(|s| s.counters.bytes_h2d).sum();
    assert_eq!(of("previous")["bytes_b"], bytes);

    let within = says(&a, &a, &["--cells", "dense", "previous", "--format", "json"], 0);
    assert!(within.contains("dense → previous"), "{within}");
    let unknown = refused(&a, &b, &["--cells", "dense", "previos"]);
    assert!(unknown.contains("did you mean `previous`?"), "{unknown}");
    let unknown = refused(&a, &b, &["--fail-on", "acceptance_length<-5%"]);
    assert!(unknown.contains("no compared cell has `acceptance_length`"), "no drafts: {unknown}");
    for bad in ["accuracy", "accuracy<x"] {
        assert!(refused(&a, &a, &["--fail-on", bad]).contains(bad));
    }
    assert!(refused(&a, &place.path("none"), &[]).contains("no results.json"));
    assert!(refused(&a, &a, &["--level", "95"]).contains("0.95"));
}

#[test]
fn other_samples_are_no_pairs_unless_the_common_ones_are_asked_for() {
    let place = Place::new(SMALL);
    place.succeed(&["-o", "a"]);
    place.succeed(&["-o", "b", "--limit", "1"]);
    place.succeed(&["-o", "c", "--seed", "1"]);
    place.succeed(&["-o", "d", "--set", "task.length=1024"]);
    let run = |root: &str| place.only_run(root);
    let (a, b) = (run("a"), run("b"));
    let why = refused(&a, &b, &[]);
    assert!(why.contains("samples: 2 in A, 1 in B") && why.contains("--common"), "{why}");
    let text = says(&a, &b, &["--common"], 0);
    assert!(text.contains("--common: 2 decoded samples") && text.contains("  1  "), "{text}");
    let why = refused(&a, &run("c"), &["--common"]);
    assert!(why.contains("prompt sha256 is"), "{why}");
    let why = refused(&a, &run("d"), &["--common"]);
    assert!(why.contains("length: 512 in A, 1024 in B"), "{why}");
}

/// Copies a run with a change of its files' text.
fn changed(run: &Path, to: &Path, file: &str, from: &str, into: &str) {
    std::fs::create_dir_all(to).expect("folder");
    for path in folders(run).into_iter().filter(|p| p.is_file()) {
        std::fs::copy(&path, to.join(path.file_name().expect("name"))).expect("copy");
    }
    let text = std::fs::read_to_string(to.join(file)).expect("text");
    assert!(text.contains(from), "{file} has no {from}");
    std::fs::write(to.join(file), text.replace(from, into)).expect("write");
}

#[test]
fn what_differs_is_named_with_both_values() {
    let place = Place::new(SMALL);
    place.succeed(&["-o", "a"]);
    let a = place.only_run("a");
    let tokenizer = crate::support::results(&a).model.tokenizer_digest;
    let other = place.path("other");
    let cases = [
        ("results.json", tokenizer.as_str(), "f00", "tokenizer sha256"),
        ("results.json", "share of samples", "per cent", "unit of the score"),
        ("results.json", "\"protocol\": \"question\"", "\"protocol\": \"decode\"", "protocol"),
        ("config.toml", "samples = 2", "template = \"chat\"\nsamples = 2", "template"),
    ];
    for (file, from, into, field) in cases {
        changed(&a, &other, file, from, into);
        let why = refused(&a, &other, &[]);
        assert!(why.contains(field) && why.contains(" in A, ") && why.contains(" in B"), "{field}: {why}");
    }
    // Scores of 0 to 100 beside those of 0 to 1.
    changed(&a, &other, "samples.jsonl", "\"score\":", "\"score\":100.0,\"was\":");
    let why = refused(&a, &other, &[]);
    assert!(why.contains("score 100 is not in 0 to 1"), "{why}");
    changed(&a, &other, "results.json", "\"verdict\": \"held\"", "\"verdict\": \"violated\"");
    let text = says(&a, &other, &[], 1);
    assert!(text.starts_with("VIOLATED in B"), "{text}");
}
