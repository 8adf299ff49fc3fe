//! What is in a fingerprint, one setting at a time.

use crate::support::{Place, folders};
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CONFIG: &str = r#"
[run]
protocol = "question"

[model]
path = "model"

[[task]]
name = "niah_multikey"
length = 512
samples = 1

[[task]]
name = "fidelity"
text = "book.txt"
length = 300
samples = 1
continuation = 4

[decode]
budget = 96
sink = 16
window = 16
cap = 1
summary = { name = "rotated-keys", bits = 4 }

[[cell]]
predictor = "lookahead"
draft = { name = "eagle3", path = "head" }
"#;

/// The configuration with a model, a draft head and a text of its own.
fn place() -> Place {
    let place = Place::new(CONFIG);
    let bundled = root().join("datasets/bundled/nano");
    for (folder, files) in [
        ("model", &["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"][..]),
        ("head", &["eagle3_config.json", "eagle3.safetensors"]),
    ] {
        std::fs::create_dir(place.path(folder)).expect("folder");
        for file in files {
            std::fs::copy(bundled.join(file), place.path(folder).join(file)).expect("copy");
        }
    }
    let tokenizer = "tokenizer_config.json";
    std::fs::copy(bundled.join(tokenizer), place.path("model").join(tokenizer)).expect("copy");
    std::fs::write(place.path("book.txt"), book("grey")).expect("text");
    place
}

fn book(colour: &str) -> String {
    (0..400).map(|i| format!("On day {i} the sea was {colour} and the wind came from the north.\n")).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// `fingerprint.json` of the run that `args` make, in an output folder that was not there before.
fn parts(place: &Place, output: &str, args: &[&str]) -> BTreeMap<String, String> {
    place.succeed(&[&["-o", output], args].concat());
    let run = place.only_run(output);
    read(&run)
}

fn read(run: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read(run.join("fingerprint.json")).expect("fingerprint.json");
    let parts: BTreeMap<String, String> = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(run.file_name().and_then(|n| n.to_str()), Some(parts["fingerprint"].as_str()));
    parts
}

/// Keys whose values differ.
fn changed<'a>(a: &'a BTreeMap<String, String>, b: &BTreeMap<String, String>) -> BTreeSet<&'a str> {
    assert!(a.keys().eq(b.keys()), "{a:?}\n{b:?}");
    a.iter().filter(|(k, v)| b[*k] != **v).map(|(k, _)| k.as_str()).collect()
}

/// Turns the lowest bit of a number in the middle of a file of weights.
fn nudge(path: PathBuf) {
    let mut bytes = std::fs::read(&path).expect("weights");
    let at = bytes.len() / 16 * 8;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("weights");
}

fn replace(path: PathBuf, from: &str, to: &str) {
    let text = std::fs::read_to_string(&path).expect("text");
    assert!(text.contains(from), "{}: no `{from}`", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).expect("text");
}

/// A name, what is done to the folder, further arguments, and the parts that must change, `fingerprint` beside them.
type Change = (&'static str, fn(&Place), &'static [&'static str], &'static [&'static str]);

const CHANGES: &[Change] = &[
    ("output folder, workers and time of day", |_| {}, &["--jobs", "2"], &[]),
    ("seed", |_| {}, &["--seed", "1"], &["config", "prompts"]),
    ("repeats", |_| {}, &["--repeats", "2"], &["config"]),
    ("protocol", |_| {}, &["--set", "run.protocol=\"decode\""], &["config"]),
    ("length", |_| {}, &["--set", "task.0.length=528"], &["config", "prompts"]),
    ("samples", |_| {}, &["--set", "task.0.samples=2"], &["config", "prompts"]),
    (
        "data file",
        |p| std::fs::write(p.path("book.txt"), book("blue")).expect("text"),
        &[],
        &["data", "prompts"],
    ),
    ("weights", |p| nudge(p.path("model/model.safetensors")), &[], &["weights"]),
    ("draft head", |p| nudge(p.path("head/eagle3.safetensors")), &[], &["files"]),
    ("parameter of a policy", |_| {}, &["--set", "decode.summary.bits=2"], &["config"]),
    ("policy", |_| {}, &["--set", "decode.evictor=\"fifo\""], &["config", "policies"]),
    ("cap", |_| {}, &["--set", "decode.cap=2"], &["config"]),
    ("attention", |_| {}, &["--set", "decode.attend=\"selected\""], &["config"]),
];

#[test]
fn one_changed_setting_is_another_fingerprint_and_an_output_folder_is_none() {
    let first = place();
    let base = parts(&first, "base", &[]);
    for (i, (name, change, args, expected)) in CHANGES.iter().enumerate() {
        let place = place();
        change(&place);
        let other = parts(&place, &format!("elsewhere-{i}"), args);
        let mut expected: BTreeSet<&str> = expected.iter().copied().collect();
        if !expected.is_empty() {
            expected.insert("fingerprint");
        }
        assert_eq!(changed(&base, &other), expected, "{name}");
    }
    // A run of other settings goes beside this one, never into it.
    first.succeed(&["-o", "base", "--seed", "1"]);
    assert_eq!(folders(&first.path("base")).len(), 2);
}

#[test]
fn the_template_is_part_of_the_prompt() {
    let first = place();
    let base = parts(&first, "base", &[]);
    let other = place();
    replace(
        other.path("model/tokenizer_config.json"),
        "{",
        "{\"chat_template\": \"{{ messages[0].content }}\", ",
    );
    let with = parts(&other, "with", &[]);
    assert!(changed(&base, &with).contains("fingerprint"), "{with:?}");
}

/// Leaves by block id.
struct Mine;

impl Evictor for Mine {
    fn keep(&self, slot: &SlotMeta, _: u32) -> f32 {
        slot.block as f32
    }
}

const MINE: EvictorEntry =
    Entry { name: "mine", about: "By block id.", version: 1, params: &[], build: |_| Ok(Box::new(Mine)) };

/// A run with an evictor of this crate.
fn extended(place: &Place, output: &str, entry: EvictorEntry) -> BTreeMap<String, String> {
    let (config, out) = (place.path("run.toml"), place.path(output));
    let args = ["oasis", "run", "-c"].map(std::ffi::OsString::from).into_iter();
    let args = args.chain([
        config.into(),
        "-o".into(),
        out.into(),
        "--set".into(),
        "decode.evictor=\"mine\"".into(),
    ]);
    assert_eq!(
        format!("{:?}", oasis::cli().with_evictor(entry).run_from(args)),
        format!("{:?}", ExitCode::SUCCESS)
    );
    read(&place.only_run(output))
}

#[test]
fn the_version_and_the_code_of_a_policy_are_part_of_it() {
    let place =
        Place::new(&CONFIG.replace("path = \"model\"", "path = \"nano\"").replace(", path = \"head\"", ""));
    replace(place.path("run.toml"), "text = \"book.txt\"\n", "");
    let one = extended(&place, "one", MINE);
    let two = extended(&place, "two", Entry { version: 2, ..MINE });
    assert_eq!(changed(&one, &two), BTreeSet::from(["fingerprint", "policies"]));
    let own = parts(&place, "own", &[]);
    // The code of the project: all its sources.
    assert_eq!(own["code"], sources());
    // With a policy of another crate, the program too.
    let program = std::fs::read(std::env::current_exe().expect("program")).expect("program");
    assert_eq!(one["code"], format!("{} {}", sources(), hex(&Sha256::digest(program))));
    // No part is left out of the hash.
    for part in own.keys().filter(|k| !["fingerprint", "name"].contains(&k.as_str())) {
        let mut other = own.clone();
        other.insert(part.clone(), "another".to_owned());
        assert_ne!(short(&other), own["fingerprint"], "{part}");
    }
    assert_eq!(short(&own), own["fingerprint"]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The fingerprint of these parts.
fn short(parts: &BTreeMap<String, String>) -> String {
    let named = parts.iter().filter(|(k, _)| !["fingerprint", "name"].contains(&k.as_str()));
    let text: String = named.map(|(k, v)| format!("{k}={v}\n")).collect();
    hex(&Sha256::digest(text))[..16].to_owned()
}

/// SHA-256 of the sources and manifests of the crates that decide results: path, length, bytes of each.
fn sources() -> String {
    let mut files = Vec::new();
    for name in ["core", "policies", "predictors", "kernels", "datasets", "harness"] {
        files.push(root().join(name).join("Cargo.toml"));
        let mut folders = vec![root().join(name).join("src")];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).expect("sources").map(|e| e.expect("entry").path()) {
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let bytes = std::fs::read(&file).expect("source");
        hash.update(file.strip_prefix(root()).expect("a path of the workspace").to_string_lossy().as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    hex(&hash.finalize())
}
