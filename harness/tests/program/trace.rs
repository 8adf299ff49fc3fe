//! Traces: what is recorded replays as it was decoded; one bad policy leaves the others; what is no trace is refused.

use crate::support::{Place, SMALL, samples, stderr};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn trace(place: &Place, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
    command.current_dir(place.path("")).arg("trace").args(args).output().expect("the program starts")
}

fn recorded() -> Place {
    let place = Place::new(SMALL);
    let out = trace(&place, &["record", "-c", "run.toml", "-o", "t"]);
    assert!(out.status.success(), "{}", stderr(&out));
    place
}

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("file")).expect("JSON")
}

#[test]
fn a_replay_counts_what_a_run_counts() {
    let place = recorded();
    let out = trace(&place, &["replay", "t", "-o", "out"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let row = json(&place.path("out/replay.json"))["rows"][0].clone();
    place.succeed(&[]);
    let of_run: Vec<_> =
        samples(&place.only_run("runs")).into_iter().filter(|s| s.cell == "previous").collect();
    assert_eq!(of_run.len(), 2);
    let sum = |f: &dyn Fn(&oasis::record::SampleRecord) -> u64| of_run.iter().map(f).sum::<u64>();
    let figures = &row["figures"];
    assert!(sum(&|s| s.counters.fetched) > 0);
    assert_eq!(figures["wanted"], sum(&|s| s.counters.wanted));
    assert_eq!(figures["hits"], sum(&|s| s.counters.hits));
    assert_eq!(figures["fetched"], sum(&|s| s.counters.fetched));
    assert_eq!(figures["dropped"], sum(&|s| s.counters.dropped));
    assert_eq!(figures["evicted"], sum(&|s| s.counters.evicted));
    assert_eq!(figures["wasted"], sum(&|s| s.counters.wasted));
    assert_eq!(figures["bytes_h2d"], sum(&|s| s.counters.bytes_h2d));
    assert_eq!(figures["steps"], sum(&|s| u64::from(s.steps)));
    assert!(row["error"].is_null() && row["predictor"] == "previous-token" && row["evictor"] == "lrs");
    let out = trace(&place, &["replay", "t", "--verify"]);
    assert!(out.status.success() && stdout(&out).starts_with("2 of 2 sequences"), "{}", stdout(&out));
    let out = trace(&place, &["info", "t", "--verify"]);
    let said = stdout(&out);
    assert!(
        said.contains("`previous`") && said.contains("no draft rows") && said.contains("verified: 2"),
        "{said}"
    );
}

#[test]
fn one_policy_that_fails_leaves_the_others() {
    let place = recorded();
    let lists =
        ["--evictor", "lrs,nosuch,lru", "--budget", "96,32,160", "--summary", "minmax,quantized{bits=4}"];
    let out = trace(&place, &[&["replay", "t", "-o", "out", "--jobs", "2"], &lists[..]].concat());
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let rows = json(&place.path("out/replay.json"))["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 18);
    let good: Vec<&Value> = rows.iter().filter(|r| r["error"].is_null()).collect();
    assert_eq!(good.len(), 8);
    assert!(good.iter().all(|r| r["figures"]["hit_rate"].as_f64().is_some_and(|h| h > 0.0 && h <= 1.0)));
    let said = stdout(&out);
    for fragment in ["unknown evictor `nosuch`", "and 5 more", "32 tokens are 2 blocks", "quantized(bits=4)"]
    {
        assert!(said.contains(fragment), "`{fragment}` is not in:\n{said}");
    }
    let svg = std::fs::read_to_string(place.path("out/miss-ratio-by-budget.svg")).expect("plot");
    assert!(svg.contains("160") && svg.contains("lru") && !svg.contains("nosuch"));
}

#[test]
fn what_is_no_trace_or_no_request_is_refused() {
    let place = recorded();
    let refused = |args: &[&str], fragments: &[&str]| {
        let out = trace(&place, args);
        let said = stderr(&out) + &stdout(&out);
        assert!(!out.status.success(), "{args:?}: accepted");
        for fragment in fragments {
            assert!(said.contains(fragment), "`{fragment}` is not in:\n{said}");
        }
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(&["record", "-c", "run.toml", "-o", "t"], &["--output t", "holds files"]);
    refused(&["record", "-c", "run.toml", "-o", "u", "--cell", "previos"], &["did you mean `previous`"]);
    refused(&["record", "-c", "run.toml", "-o", "u", "--jobs", "0"], &["--jobs", "1 or more"]);
    refused(&["replay", "u"], &["no trace.json"]);
    refused(&["replay", "t", "--jobs", "0"], &["--jobs", "1 or more"]);
    refused(&["replay", "t", "--limit", "0"], &["--limit", "1 or more"]);
    refused(&["replay", "t", "--cap", "1,,2"], &["--cap 1,,2", "empty entry"]);
    refused(&["replay", "t", "--set", "decode.mode=window"], &["decode.mode", "ranks nothing"]);
    refused(&["replay", "t", "--set", "budget"], &["--set budget", "KEY=VALUE"]);
    refused(&["replay", "t", "--predictor", "lookahead"], &["`lookahead` ranks with draft rows", "has none"]);
    refused(&["replay", "t", "-o", "t"], &["--output t", "holds files"]);
    // A shard that was cut, and one that was changed.
    let path = place.path("t/00001.safetensors");
    let whole = std::fs::read(&path).expect("shard");
    std::fs::write(&path, &whole[..whole.len() - 7]).expect("shard");
    refused(&["replay", "t"], &["00001.safetensors", "no shard"]);
    let mut changed = whole.clone();
    let last = changed.len() - 3;
    changed[last] ^= 1;
    std::fs::write(&path, &changed).expect("shard");
    refused(&["info", "t", "--verify"], &["00001.safetensors", "SHA-256"]);
    std::fs::write(&path, &whole).expect("shard");
    let header = std::fs::read_to_string(place.path("t/trace.json")).expect("header");
    let newer = header.replacen("\"schema_version\": 1", "\"schema_version\": 9", 1);
    std::fs::write(place.path("t/trace.json"), newer).expect("header");
    refused(&["info", "t"], &["schema_version is 9", "reads 1"]);
    assert!(!place.path("u").exists());
}

#[test]
fn the_bound_is_a_replay_s_alone() {
    let place = recorded();
    let lists = ["--evictor", "belady,lrs,random", "--budget", "96,128", "--cap", "1,2", "--no-audit"];
    let out = trace(&place, &[&["replay", "t", "-o", "out"], &lists[..]].concat());
    assert!(out.status.success(), "{}", stderr(&out));
    let rows = json(&place.path("out/replay.json"))["rows"].as_array().expect("rows").clone();
    let hits = |evictor: &str, budget: &str, cap: &str| {
        let row = rows.iter().find(|r| r["evictor"] == evictor && r["budget"] == budget && r["cap"] == cap);
        row.and_then(|r| r["figures"]["hits"].as_u64()).expect("a row with figures")
    };
    for (budget, cap) in [("96", "1"), ("96", "2"), ("128", "1"), ("128", "2")] {
        let (bound, lrs, random) =
            (hits("belady", budget, cap), hits("lrs", budget, cap), hits("random", budget, cap));
        assert!(bound >= lrs && bound >= random && bound > 0, "{budget} {cap}: {bound}, {lrs}, {random}");
    }
    for plot in ["miss-ratio-by-budget.svg", "miss-ratio-by-cap.svg"] {
        let svg = std::fs::read_to_string(place.path("out").join(plot)).expect("plot");
        assert!(svg.contains("belady") && svg.contains("miss ratio"), "{plot}");
    }
    // The same figures whether rankings are shared or each policy ranks for itself.
    let out = trace(&place, &["replay", "t", "-o", "alone", "--budget", "128", "--cap", "2", "--no-audit"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let alone = json(&place.path("alone/replay.json"))["rows"][0].clone();
    let shared = rows.iter().find(|r| r["evictor"] == "lrs" && r["budget"] == "128" && r["cap"] == "2");
    for key in ["wanted", "hits", "fetched", "dropped", "evicted", "bytes_h2d"] {
        assert_eq!(alone["figures"][key], shared.expect("row")["figures"][key], "{key}");
    }
    // The truth is the audit's, with or without exact attention.
    let out = trace(&place, &["replay", "t", "-o", "audited", "--budget", "128", "--cap", "2"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let audited = json(&place.path("audited/replay.json"))["rows"][0]["figures"].clone();
    let quick = &alone["figures"];
    assert!(audited["agreement"].as_f64().is_some_and(|a| a > 0.0 && a < 1.0));
    assert_eq!(audited["agreement"], quick["agreement"]);
    assert!(
        audited["mass_recall"].is_f64() && quick["mass_recall"].is_null() && quick["recall_exact"].is_null()
    );
    // A decode knows no next use.
    let toml = SMALL.replacen("cap = 1", "cap = 1\nevictor = \"belady\"", 1);
    let out = Place::new(&toml).run(&[]);
    let said = stderr(&out);
    assert!(
        !out.status.success() && said.contains("`belady`") && said.contains("oasis trace replay"),
        "{said}"
    );
}

/// The figures of a replay without its seconds.
fn figures(place: &Place, trace_folder: &str, output: &str) -> Vec<Value> {
    let lists =
        ["--evictor", "lrs,lru", "--budget", "96,128", "--predictor", "previous-token,oracle", "--cap", "1"];
    let sets = ["--summary", "minmax", "--set", "decode.window=16"];
    let out = trace(place, &[&["replay", trace_folder, "-o", output], &lists[..], &sets].concat());
    assert!(out.status.success(), "{}", stderr(&out));
    let rows = json(&place.path(output).join("replay.json"))["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 8);
    let without = |mut row: Value| {
        row["figures"].as_object_mut().expect("figures").remove("seconds");
        row
    };
    rows.into_iter().map(without).collect()
}

#[test]
fn shards_of_another_program_become_a_trace() {
    let place = recorded();
    // What an exporter writes: the tensors without masses, and no trace.json.
    std::fs::create_dir(place.path("exported")).expect("folder");
    for name in ["00000.safetensors", "00001.safetensors"] {
        let bytes = std::fs::read(place.path("t").join(name)).expect("shard");
        let exported = reduced(&bytes, |tensor| !tensor.starts_with("mass"), None);
        std::fs::write(place.path("exported").join(name), exported).expect("shard");
    }
    let out = trace(&place, &["import", "exported", "-o", "i", "--name", "theirs"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let info = trace(&place, &["info", "i", "--verify"]);
    assert!(
        stdout(&info).contains("theirs, imported") && stdout(&info).contains("verified: 2"),
        "{}",
        stdout(&info)
    );
    assert_eq!(
        figures(&place, "t", "of-t"),
        figures(&place, "i", "of-i"),
        "an import replays as the recording does"
    );
    let refused = |fragments: &[&str]| {
        let out = trace(&place, &["import", "exported", "-o", "j"]);
        let said = stderr(&out);
        assert!(!out.status.success(), "{fragments:?}: accepted");
        fragments.iter().for_each(|f| assert!(said.contains(f), "`{f}` is not in:\n{said}"));
        assert!(!said.contains("panicked") && !place.path("j").exists(), "{said}");
    };
    refused_after(
        &place,
        &|bytes| reduced(bytes, |t| t != "queries", None),
        &refused,
        &["no tensor `queries`"],
    );
    refused_after(&place, &|bytes| reduced(bytes, |_| true, Some("seed")), &refused, &["`seed`"]);
    refused_after(
        &place,
        &|bytes| reduced(bytes, |_| true, Some("oasis_trace")),
        &refused,
        &["`oasis_trace`"],
    );
    refused_after(
        &place,
        &|bytes| bytes[..bytes.len() / 2].to_vec(),
        &refused,
        &["00001.safetensors", "no shard"],
    );
    std::fs::remove_dir_all(place.path("exported")).expect("folder");
    refused(&["exported"]);
    std::fs::create_dir(place.path("exported")).expect("folder");
    refused(&["no *.safetensors", "export_trace.py"]);
}

/// Spoils the second shard, imports, and puts it back.
fn refused_after(
    place: &Place,
    spoil: &dyn Fn(&[u8]) -> Vec<u8>,
    refused: &dyn Fn(&[&str]),
    fragments: &[&str],
) {
    let path = place.path("exported/00001.safetensors");
    let whole = std::fs::read(&path).expect("shard");
    std::fs::write(&path, spoil(&whole)).expect("shard");
    refused(fragments);
    std::fs::write(&path, whole).expect("shard");
}

/// A safetensors file with some of its tensors, and its metadata without one key.
fn reduced(bytes: &[u8], keep: impl Fn(&str) -> bool, without: Option<&str>) -> Vec<u8> {
    let (_, header) = safetensors::SafeTensors::read_metadata(bytes).expect("header");
    let mut meta = header.metadata().clone().expect("metadata");
    without.map(|key| meta.remove(key));
    let all = safetensors::SafeTensors::deserialize(bytes).expect("tensors");
    let kept: Vec<_> = all.tensors().into_iter().filter(|(name, _)| keep(name)).collect();
    safetensors::serialize(kept, Some(meta)).expect("file")
}
