//! `oasis bench` as a user calls it, on the CPU.

use std::path::Path;
use std::process::{Command, Output};

const SHAPE: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 300,
 "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "rope_theta": 10000.0,
 "rms_norm_eps": 1e-6, "tie_word_embeddings": false}"#;

fn bench(dir: &Path, args: &str) -> Output {
    std::fs::write(dir.join("tiny.json"), SHAPE).expect("shape");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
    command.current_dir(dir).arg("bench").args(args.split_whitespace()).args(["--backend", "cpu"]);
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("record")).expect("JSON")
}

#[test]
fn a_shape_is_decoded_mode_beside_mode() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let args = "decode --shape tiny.json --batch 3 --context 256,512 --budget 128 --draft-rows 1 --saturate --steps 5 \
                --warmup 2 --modes dense,staged,static,on-demand,resident-sparse,window,auto -o out";
    let out = bench(dir.path(), args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let record = json(&dir.path().join("out/bench.json"));
    assert_eq!(
        (record["schema_version"].as_u64(), record["model"]["synthetic"].as_bool()),
        (Some(1), Some(true))
    );
    let rows = record["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 14);
    for row in rows {
        let (mode, t) = (row["mode"].as_str().expect("mode"), &row["outcome"]["done"]);
        let number = |v: &serde_json::Value| v.as_f64().unwrap_or(f64::NAN);
        assert!(number(&t["tok_s"]) > 0.0 && number(&t["floor_ms"]) > 0.0, "{row}");
        assert_eq!(t["step_ms"]["n"].as_u64(), Some(5));
        assert_eq!(t["as_planned"].as_bool(), Some(true), "{mode}: {t}");
        let pools = row["need"]["plan"]["pools"].as_array().expect("pools");
        let host =
            pools.iter().filter(|p| p["host"] == true).filter_map(|p| p["bytes"].as_u64()).sum::<u64>();
        assert_eq!(t["allocated"][1].as_u64(), Some(host), "{mode}: {t}");
        // 3 prompts of 2 layers and KV heads of 32 coordinates, less their tails.
        assert!(host > 3 * 15 * 2 * 2 * 16 * 2 * 32 * 2, "{mode}: {host} bytes");
        let blocks = &t["blocks"];
        let sum = number(&blocks["hits"]) + number(&blocks["fetched"]) + number(&blocks["dropped"]);
        assert_eq!(sum, number(&blocks["wanted"]), "{mode}");
        let moved = number(&t["bytes"]["fetched"]);
        match mode {
            // Random tokens and random keys: nearly every pool misses more than its cap.
            "staged" | "on-demand" => assert!(number(&blocks["saturation"]) > 0.5 && moved > 0.0, "{t}"),
            _ => assert_eq!(moved, 0.0, "{mode}"),
        }
    }
    lines_are_those_of_ways_measured_at_both_contexts(&record);
    let report = std::fs::read_to_string(dir.path().join("out/bench.md")).expect("report");
    assert!(report.contains("(synthetic)") && report.contains("| staged 128/"), "{report}");
    assert!(std::fs::read_to_string(dir.path().join("out/bench.svg")).expect("plot").contains("<svg"));
    assert!(text(&out.stdout).contains("SYNTHETIC"));
}

/// Every mode was measured at both contexts and has a line. `auto` goes by measured bandwidths: it has one if it came to the same
/// mode at both.
fn lines_are_those_of_ways_measured_at_both_contexts(record: &serde_json::Value) {
    let rows = record["rows"].as_array().expect("rows");
    let choices: Vec<&str> =
        rows.iter().filter(|r| !r["auto"].is_null()).filter_map(|r| r["mode"].as_str()).collect();
    assert_eq!(choices.len(), 2, "one choice a context: {choices:?}");
    let mut ways: Vec<String> =
        ["dense", "staged", "static", "on-demand", "resident-sparse", "window"].map(str::to_owned).to_vec();
    if choices[0] == choices[1] {
        ways.push(format!("auto: {}", choices[0]));
    }
    ways.sort();
    let fits = record["fits"].as_array().expect("fits");
    let mut fitted: Vec<&str> = fits.iter().filter_map(|f| f["name"].as_str()).collect();
    fitted.sort_unstable();
    assert_eq!(fitted.len(), ways.len(), "{fitted:?}");
    for (name, way) in fitted.iter().zip(&ways) {
        assert!(name.starts_with(way) && name.ends_with(", batch 3"), "{name}: {way}");
    }
    assert!(fits.iter().all(|f| f["n"] == 2), "{fits:?}");
}

#[test]
fn prompts_of_a_real_model_are_prefilled_and_a_file_gives_flags() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let file = "[bench]\nmodel = \"nano\"\nbatch = 2\ncontext = 160\nbudget = 128\nsteps = 3\nwarmup = 1\nprobed = 0\n";
    std::fs::write(dir.path().join("bench.toml"), file).expect("file");
    let out = bench(dir.path(), "decode -c bench.toml --share-prompt --modes staged -o out");
    assert!(out.status.success(), "{}", text(&out.stderr));
    let record = json(&dir.path().join("out/bench.json"));
    assert_eq!(record["model"]["synthetic"].as_bool(), Some(false));
    assert_eq!(record["rows"][0]["shared_prompt"].as_bool(), Some(true));
    assert_eq!(record["rows"][0]["outcome"]["done"]["as_planned"].as_bool(), Some(true));
    assert_eq!(record["rows"].as_array().map(Vec::len), Some(1));
    assert!(record["notes"][0].as_str().is_some_and(|n| n.contains("prefill")), "{record}");
}

#[test]
fn what_does_not_fit_is_refused_with_a_way_out() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = bench(dir.path(), "decode --shape tiny.json --batch 64 --context 512 --hbm-gib 0.01");
    let error = text(&out.stderr);
    assert!(!out.status.success());
    for part in [
        "dense: batch 64 × 512",
        "limit 10.2 MiB",
        "slots",
        "largest batch at 512 tokens: ",
        "largest context",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // What it says would fit does fit.
    let batch: usize = error
        .split("largest batch at 512 tokens: ")
        .nth(1)
        .and_then(|t| t.split(';').next()?.parse().ok())
        .expect("a batch");
    let run = |n: usize| {
        let args =
            format!("decode --shape tiny.json --batch {n} --context 512 --hbm-gib 0.01 --modes dense -o out");
        bench(dir.path(), &args)
    };
    assert!(run(batch).status.success(), "batch {batch}");
    assert!(!run(batch + 1).status.success(), "batch {}", batch + 1);
    let most = bench(
        dir.path(),
        "decode --shape tiny.json --batch max --context 512 --hbm-gib 0.01 --modes dense --dry-run",
    );
    assert!(text(&most.stdout).contains(&format!(" {batch} ")), "{}", text(&most.stdout));
}

#[test]
fn bad_flags_are_named() {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (args, part) in [
        ("decode --shape tiny.json --draft-rows 8", "at most 8 rows"),
        ("decode --shape tiny.json --draft-rows 1 --predictor previous-token", "does not look at drafts"),
        ("decode --shape tiny.json --modes stagde", "did you mean `staged`"),
        ("decode --shape tiny.json --summary minmx", "did you mean `minmax`"),
        ("decode --shape tiny.json --hbm-gib 0", "more than 0"),
        ("decode --model nano --context 20000", "16384 positions"),
        ("decode --shape nowhere.json", "nowhere.json"),
        ("ops --shape tiny.json --prefill 0", "at least 1 token"),
    ] {
        let out = bench(dir.path(), args);
        assert!(!out.status.success() && text(&out.stderr).contains(part), "{args}: {}", text(&out.stderr));
    }
}

#[test]
fn every_op_has_a_time_and_a_floor() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = bench(
        dir.path(),
        "ops --shape tiny.json --batch 2 --context 256 --budget 128 --draft-rows 1 --repeats 2 --prefill 300 -o out",
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    let record = json(&dir.path().join("out/ops.json"));
    let rows = record["rows"].as_array().expect("rows");
    for op in [
        "gemm",
        "embed",
        "rms_norm",
        "swiglu",
        "rope",
        "attend",
        "prefill_attend",
        "append",
        "score",
        "fetch",
        "sample",
        "host store",
        "prefill",
    ] {
        let row = rows.iter().find(|r| r["op"] == op).unwrap_or_else(|| panic!("{op}"));
        assert!(row["error"].is_null() && row["us"].as_f64().is_some_and(|us| us >= 0.0), "{row}");
        assert!(row["floor_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
    }
    let prompt = rows.iter().find(|r| r["op"] == "prefill").expect("a prompt");
    assert!(
        prompt["share"].as_f64().is_some_and(|s| s > 0.0) && prompt["flops"].as_f64() > Some(0.0),
        "{prompt}"
    );
}
