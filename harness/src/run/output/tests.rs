//! Folders of runs: what is refused, kept, dropped.

use super::*;

#[test]
fn a_torn_last_line_is_dropped_and_a_broken_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(&path, "1\n2\n3").unwrap();
    assert_eq!(lines::<u32>(&path).unwrap(), [1, 2]);
    fs::write(&path, "1\nx\n3\n").unwrap();
    let error = format!("{:#}", lines::<u32>(&path).unwrap_err());
    assert!(error.contains("line 2") && error.contains("--overwrite"), "{error}");
    assert!(lines::<u32>(&dir.path().join("none")).unwrap().is_empty());
}

#[test]
fn a_probe_leaves_nothing_and_names_what_is_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    probe(&dir.path().join("a/b/c")).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = probe(&file.join("runs")).unwrap_err().to_string();
    assert!(error.contains("file") && error.contains("--output"), "{error}");
}

#[test]
fn a_folder_in_use_is_refused_until_its_run_ends() {
    let root = tempfile::tempdir().unwrap();
    let open = |existing| RunDir::open(root.path(), "0123456789abcdef", existing, "x");
    let first = open(Existing::Refuse).unwrap();
    for existing in [Existing::Refuse, Existing::Resume, Existing::Overwrite] {
        let error = open(existing).err().expect("the folder is held").to_string();
        assert!(error.contains("another oasis run") && error.contains("--output"), "{error}");
    }
    drop(first);
    open(Existing::Refuse).unwrap();
}

#[test]
fn an_existing_run_is_refused_resumed_or_overwritten_on_demand_only() {
    let root = tempfile::tempdir().unwrap();
    drop(RunDir::open(root.path(), "abc", Existing::Refuse, "x").unwrap());
    let dir = RunDir { path: root.path().join("abc"), held: None };
    let parts = BTreeMap::from([("fingerprint", "abc"), ("name", "x")]);
    dir.write_json(FINGERPRINT, &parts).unwrap();
    let open = |fp: &str, existing| RunDir::open(root.path(), fp, existing, "x").map(|_| ());
    let error = open("abc", Existing::Refuse).unwrap_err().to_string();
    assert!(error.contains("--resume") && error.contains("--overwrite"), "{error}");
    open("abc", Existing::Resume).unwrap();
    let error = open("def", Existing::Resume).unwrap_err().to_string();
    assert!(error.contains("abc") && error.contains("def"), "{error}");
    assert!(!root.path().join("def").exists());
    open("abc", Existing::Overwrite).unwrap();
    assert!(!dir.path.join(FINGERPRINT).exists());
    let parts = BTreeMap::from([("fingerprint", "other"), ("name", "x")]);
    dir.write_json(FINGERPRINT, &parts).unwrap();
    for existing in [Existing::Refuse, Existing::Resume, Existing::Overwrite] {
        let error = open("abc", existing).unwrap_err().to_string();
        assert!(error.contains("another fingerprint"), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_with_the_way_out() {
    let root = tempfile::tempdir().unwrap();
    let dir = RunDir { path: root.path().to_owned(), held: None };
    std::os::unix::fs::symlink("/dev/full", root.path().join(TIMINGS)).unwrap();
    let timing = TimingRecord {
        sample: "s".into(),
        task: "t".into(),
        cell: "c".into(),
        repeat: 0,
        batch: 1,
        step_s: vec![1.0],
        step_tokens: vec![1],
        exposed_s: vec![0.0],
        prefill_s: 1.0,
        prefill_tokens: 1,
        pools: Vec::new(),
        allocated: 0,
    };
    let mut appender = dir.append().unwrap();
    let error = put(&mut appender.timings, &jsonl(&[timing]).unwrap()).unwrap_err().to_string();
    assert!(
        error.contains(TIMINGS) && error.contains("free some space") && error.contains("--resume"),
        "{error}"
    );
}
