//! Records against their committed JSON Schemas, and the ways of taking them elsewhere.

use crate::support::{Place, SMALL, samples, stderr};
use oasis::export::schema;
use oasis::record::{Environment, LayerRecord, Results, SampleRecord, TimingRecord};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// The committed schemas of a version.
fn folder(version: u32) -> PathBuf {
    root().join(format!("docs/schema/v{version}"))
}

fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn committed(name: &str) -> Value {
    json(&folder(1).join(schema::file(name)))
}

/// What is wrong with `value`, by JSON pointer. Knows the keywords that the schemas use and panics at any other.
fn faults(root: &Value, schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        return if schema == &Value::Bool(false) {
            out.push(format!("{at}: nothing is allowed here"))
        };
    };
    let holds = |s: &Value| {
        let mut inner = Vec::new();
        faults(root, s, value, at, &mut inner);
        inner.is_empty()
    };
    let list = |v: &Value| v.as_array().expect("a list in the schema").clone();
    let mut check = |ok: bool, what: &Value| {
        if !ok {
            out.push(format!("{at}: {value} is not {what}"));
        }
    };
    for (keyword, want) in keywords {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" | "default" => {}
            "type" => match want {
                Value::Array(any) => check(any.iter().any(|t| is(value, t)), want),
                one => check(is(value, one), want),
            },
            "$ref" => {
                let target = want.as_str().and_then(|r| root.pointer(r.trim_start_matches('#')));
                check(holds(target.unwrap_or_else(|| panic!("{want} leads nowhere"))), want);
            }
            "anyOf" => check(list(want).iter().any(holds), want),
            "oneOf" => check(list(want).iter().filter(|s| holds(s)).count() == 1, want),
            "enum" => check(list(want).contains(value), want),
            "const" => check(value == want, want),
            "minimum" => check(value.as_f64().is_none_or(|v| v >= want.as_f64().expect("number")), want),
            "maximum" => check(value.as_f64().is_none_or(|v| v <= want.as_f64().expect("number")), want),
            "minItems" => {
                check(value.as_array().is_none_or(|v| v.len() as u64 >= want.as_u64().expect("n")), want)
            }
            "maxItems" => {
                check(value.as_array().is_none_or(|v| v.len() as u64 <= want.as_u64().expect("n")), want)
            }
            "required" => {
                let has =
                    |k: &Value| value.as_object().is_none_or(|o| o.contains_key(k.as_str().expect("key")));
                check(list(want).iter().all(has), want);
            }
            "properties" | "additionalProperties" | "items" | "prefixItems" => {}
            other => panic!("the schemas use `{other}`, which this check does not know"),
        }
    }
    parts(root, schema, value, at, out);
}

/// Whether a value is of a JSON Schema type.
fn is(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type `{other}`"),
    }
}

/// The same for the fields and items of `value`.
fn parts(root: &Value, schema: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    let anything = Value::Bool(true);
    if let Some(fields) = value.as_object() {
        for (key, field) in fields {
            let named = schema.get("properties").and_then(|p| p.get(key));
            let of = named.or(schema.get("additionalProperties")).unwrap_or(&anything);
            faults(root, of, field, &format!("{at}/{key}"), out);
        }
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let first = schema.get("prefixItems").and_then(|p| p.get(i));
        let of = first.or(schema.get("items")).unwrap_or(&anything);
        faults(root, of, item, &format!("{at}/{i}"), out);
    }
}

fn valid(name: &str, value: &Value) -> Result<(), Vec<String>> {
    let (schema, mut out) = (committed(name), Vec::new());
    faults(&schema, &schema, value, "", &mut out);
    if out.is_empty() { Ok(()) } else { Err(out) }
}

fn validate(name: &str, path: &Path) {
    let values = match path.extension().is_some_and(|e| e == "jsonl") {
        false => vec![json(path)],
        true => {
            let text = std::fs::read_to_string(path).expect("lines");
            text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
        }
    };
    assert!(!values.is_empty(), "{}: nothing to check", path.display());
    for value in values {
        valid(name, &value).unwrap_or_else(|e| panic!("{} is no {name}:\n{}", path.display(), e.join("\n")));
    }
}

fn validate_run(run: &Path) {
    for file in
        ["results.json", "samples.jsonl", "layers.jsonl", "timings.jsonl", "env.json", "fingerprint.json"]
    {
        validate(file.split('.').next().expect("name"), &run.join(file));
    }
}

#[test]
fn committed_schemas_are_those_of_the_types() {
    let dir = folder(oasis::record::SCHEMA_VERSION);
    let all = schema::all();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::create_dir_all(&dir).expect("folder");
        for (name, schema) in &all {
            std::fs::write(dir.join(schema::file(name)), schema::text(schema)).expect("schema");
        }
    }
    for (name, schema) in &all {
        let text = std::fs::read_to_string(dir.join(schema::file(name))).unwrap_or_default();
        assert_eq!(
            text,
            schema::text(schema),
            "{name}: UPDATE_SCHEMA=1 writes it again; a changed meaning needs a new version"
        );
    }
    assert_eq!(std::fs::read_dir(&dir).expect("folder").count(), all.len(), "a schema of no record");
}

#[test]
fn records_of_a_run_validate_and_broken_ones_do_not() {
    let cells = "\n[[cell]]\nlabel = \"drafts\"\npredictor = \"lookahead\"\ndraft = \"ngram\"\n";
    let fidelity = "[[task]]\nname = \"fidelity\"\nlength = 512\nsamples = 1\ncontinuation = 8\n\n[decode]";
    let place = Place::new(&format!("{}{cells}", SMALL.replace("[decode]", fidelity)));
    place.succeed(&[]);
    let run = place.only_run("runs");
    validate_run(&run);
    let good = json(&run.join("results.json"));
    for key in good.as_object().expect("an object").keys() {
        let mut without = good.clone();
        without.as_object_mut().expect("an object").remove(key);
        assert!(valid("results", &without).is_err(), "{key} may be left out");
        let mut other = good.clone();
        other[key] = Value::Array(vec![Value::Bool(true)]);
        assert!(valid("results", &other).is_err(), "{key} may be anything");
    }
    let mut deep = good.clone();
    deep["rows"][0]["metrics"]["accuracy"]["value"] = Value::Null;
    let said = valid("results", &deep).expect_err("a mean that was no number").join("\n");
    assert!(said.contains("/rows/0"), "{said}");
    let mut status = good;
    status["status"] = "FINE".into();
    assert!(valid("results", &status).is_err());
}

#[test]
fn records_of_sweeps_traces_and_benchmarks_validate() {
    let place = Place::new(SMALL);
    std::fs::write(
        place.path("sweep.toml"),
        format!("{SMALL}\n[sweep.product]\ndecode.cap = [0, 1]\nrun.seed = [0, 1]\n"),
    )
    .expect("sweep");
    let shape = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 300, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false}"#;
    std::fs::write(place.path("tiny.json"), shape).expect("shape");
    let runs = |args: &str| {
        let out = place.oasis(&args.split_whitespace().collect::<Vec<_>>());
        assert!(out.status.success(), "{args}: {}", stderr(&out));
    };
    runs("sweep sweep.toml --backend cpu -o sweeps");
    let sweep = place.only_run("sweeps");
    validate("sweep", &sweep.join("sweep.json"));
    validate("sweep-results", &sweep.join("results.json"));
    runs("trace record -c run.toml --limit 1 -o t --cell previous");
    validate("trace", &place.path("t/trace.json"));
    runs("trace replay t -o replayed --evictor lrs,lru");
    validate("replay", &place.path("replayed/replay.json"));
    runs(
        "bench decode --shape tiny.json --context 128,256 --budget 128 --steps 3 --warmup 1 --probed 1 --modes dense,staged,auto \
          --backend cpu -o bench",
    );
    validate("bench-decode", &place.path("bench/bench.json"));
    runs("bench ops --shape tiny.json --backend cpu -o ops");
    validate("bench-ops", &place.path("ops/ops.json"));
}

/// Reads every line (or the file) as `T`, and gives what `T` writes.
fn again<T: DeserializeOwned + serde::Serialize>(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("golden file");
    let lines: Vec<&str> =
        if path.extension().is_some_and(|e| e == "jsonl") { text.lines().collect() } else { vec![&text] };
    let read = |l: &str| serde_json::from_str::<T>(l).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    lines.into_iter().map(|l| serde_json::to_value(read(l)).expect("JSON")).collect()
}

/// One folder of records for every version that this program reads.
#[test]
fn golden_records_of_every_version_are_read_and_validate() {
    for version in 1..=oasis::record::SCHEMA_VERSION {
        let golden = root().join(format!("harness/tests/fixtures/records-v{version}"));
        validate_run(&golden);
        let written = |name: &str| -> Vec<Value> {
            let text = std::fs::read_to_string(golden.join(name)).expect("golden file");
            if !name.ends_with("jsonl") {
                return vec![serde_json::from_str(&text).expect("JSON")];
            }
            text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
        };
        assert_eq!(again::<Results>(&golden.join("results.json")), written("results.json"));
        assert_eq!(again::<SampleRecord>(&golden.join("samples.jsonl")), written("samples.jsonl"));
        assert_eq!(again::<LayerRecord>(&golden.join("layers.jsonl")), written("layers.jsonl"));
        assert_eq!(again::<TimingRecord>(&golden.join("timings.jsonl")), written("timings.jsonl"));
        assert_eq!(again::<Environment>(&golden.join("env.json")), written("env.json"));
        assert_eq!(
            again::<BTreeMap<String, String>>(&golden.join("fingerprint.json")),
            written("fingerprint.json")
        );
    }
    validate("results", &root().join("harness/tests/fixtures/run-v1/results.json"));
}

/// `decisions` came after the first records were written.
#[test]
fn a_sample_without_a_hash_of_its_decisions_is_read() {
    let golden = root().join("harness/tests/fixtures/records-v1/samples.jsonl");
    let text = std::fs::read_to_string(golden).expect("golden file");
    let mut without = 0;
    for line in text.lines() {
        let whole: SampleRecord = serde_json::from_str(line).expect("record");
        let mut value: Value = serde_json::from_str(line).expect("JSON");
        let hash = value.as_object_mut().and_then(|o| o.remove("decisions")).expect("the key");
        let older: SampleRecord = serde_json::from_value(value.clone()).expect("an older record");
        assert_eq!((older.decisions, older.score), (None, whole.score));
        assert_eq!(hash.as_str(), whole.decisions.as_deref());
        valid("samples", &value).unwrap_or_else(|e| panic!("{}", e.join("\n")));
        without += usize::from(whole.decisions.is_some());
    }
    assert!(without > 0, "no record has such a hash");
}

#[test]
fn tables_are_exported_as_csv() {
    let place = Place::new(SMALL);
    place.succeed(&["-o", "runs"]);
    let run = place.only_run("runs");
    let dir = run.to_string_lossy();
    let out = place.oasis(&["export", &dir, "--csv"]);
    let text = String::from_utf8(out.stdout.clone()).expect("text");
    assert!(
        out.status.success() && text.starts_with("sample,task,index,document,cell,repeat,outcome,"),
        "{text}"
    );
    let column = |row: &str, name: &str| {
        let at = text.lines().next().expect("head").split(',').position(|c| c == name).expect("column");
        row.split(',').nth(at).expect("cell").to_owned()
    };
    let samples = samples(&run);
    for (row, s) in text.lines().skip(1).zip(&samples) {
        assert_eq!(column(row, "counters.bytes_h2d"), s.counters.bytes_h2d.to_string(), "{row}");
        assert_eq!((column(row, "cell"), column(row, "drafts.right")), (s.cell.clone(), String::new()));
    }
    assert!(samples.iter().any(|s| s.counters.bytes_h2d > 0));
    let out = place.oasis(&["export", &dir, "--csv", "layers", "-o", "layers.csv"]);
    assert!(out.status.success() && out.stdout.is_empty(), "{}", stderr(&out));
    let layers = std::fs::read_to_string(place.path("layers.csv")).expect("layers");
    let lines = std::fs::read_to_string(run.join("layers.jsonl")).expect("lines").lines().count();
    assert_eq!(layers.lines().count(), lines + 1);
    let refused = |args: &[&str], fragment: &str| {
        let out = place.oasis(args);
        assert!(!out.status.success() && stderr(&out).contains(fragment), "{}", stderr(&out));
    };
    refused(&["export", "runs", "--csv"], "no results.json");
    refused(&["export", &dir], "--csv");
    refused(&["export", "--csv"], "<DIR>");
    refused(&["export", &dir, "--csv", "-o", "runs"], "is a folder");
    let out = place.oasis(&["export", "--schema", "-o", "schemas"]);
    assert!(out.status.success(), "{}", stderr(&out));
    for (name, _) in schema::all() {
        assert_eq!(json(&place.path(&format!("schemas/{}", schema::file(name)))), committed(name));
    }
}

/// The Python examples of a document, by the module that they import first.
fn examples(document: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join(document)).expect("document");
    let blocks = text.split("```python\n").skip(1).filter_map(|b| b.split("```").next());
    let module = |b: &str| b.split_whitespace().nth(1).expect("import").to_owned();
    blocks.map(|b| (module(b), b.to_owned())).collect()
}

#[test]
fn the_examples_of_the_document_read_the_records() {
    let examples = examples("docs/records.md");
    assert_eq!(examples.iter().map(|(m, _)| m.as_str()).collect::<Vec<_>>(), ["pandas", "polars", "duckdb"]);
    let golden = root().join("harness/tests/fixtures/records-v1");
    let layers = again::<LayerRecord>(&golden.join("layers.jsonl"));
    let moved = |cell: &str| -> u64 {
        let of_cell = layers.iter().filter(|l| l["cell"] == cell);
        of_cell.map(|l| l["counters"]["bytes_h2d"].as_u64().expect("bytes")).sum()
    };
    assert!(moved("previous") > 0);
    for (module, example) in examples {
        let python = |code: &str| Command::new("python3").args(["-c", code]).current_dir(&golden).output();
        if !python(&format!("import {module}")).is_ok_and(|o| o.status.success()) {
            println!("SKIPPED {module}: python3 can't import it (pip install {module})");
            continue;
        }
        let out = python(&example).expect("python3 starts");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{module}: {}", String::from_utf8_lossy(&out.stderr));
        for part in ["previous", &moved("previous").to_string()] {
            assert!(text.contains(part), "{module}: `{part}` is not in {text}");
        }
    }
}

/// A slow start would be felt at every use. The limit leaves room for a loaded machine; 50 ms is what is meant.
#[test]
fn help_comes_at_once() {
    let once = || {
        let start = Instant::now();
        let out =
            Command::new(env!("CARGO_BIN_EXE_oasis")).arg("--help").output().expect("the program starts");
        assert!(out.status.success() && !out.stdout.is_empty());
        start.elapsed()
    };
    let best = (0..5).map(|_| once()).min().expect("five");
    println!("oasis --help: {:.1} ms", best.as_secs_f64() * 1e3);
    assert!(best < Duration::from_millis(200), "oasis --help took {best:?}");
}
