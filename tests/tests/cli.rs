//! The program as its users meet it: what it lists, the quickstart's report, and a crate of somebody else's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Builds (if need be) and runs a package's program from the root of the repository.
pub fn program(package: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--release", "--package", package, "--"]).args(args);
    command.current_dir(root()).env("RUST_BACKTRACE", "0").env("COLUMNS", "120").output().unwrap()
}

fn stdout(out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    String::from_utf8(out.stdout.clone()).unwrap()
}

#[test]
fn everything_that_a_configuration_can_name_is_listed() {
    insta::assert_snapshot!("list", stdout(&program("oasis", &["list"])));
}

/// One sample of each task of the quickstart: decisions, agreement, accuracy and bytes are as committed, on every machine.
#[test]
fn the_quickstart_s_report_is_as_committed() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let out = program(
        "oasis",
        &["run", "-c", "configs/quickstart.toml", "--limit", "1", "--backend", "cpu-portable", "-o", output],
    );
    stdout(&out);
    let run = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let report = std::fs::read_to_string(run.join("report.md")).unwrap();
    // What differs between machines: times, the machine, the code's commit, and the fingerprint made of them.
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"`[0-9a-f]{16}`", "`FINGERPRINT`");
    settings.add_filter(r"(?s)\n## Times on this machine.*?\n## Memory", "\n## Memory");
    settings.add_filter(r"(?s)\n## Environment.*?\n## Configuration", "\n## Configuration");
    settings.bind(|| insta::assert_snapshot!("quickstart", report));
}

#[test]
fn a_crate_of_somebody_else_s_gets_the_whole_program() {
    let listed = stdout(&program("custom-evictor", &["list", "evictors"]));
    assert!(listed.contains("rate") && listed.contains("lrs"), "{listed}");
    let checked = stdout(&program("custom-evictor", &["check", "rate"]));
    assert!(checked.contains("rate"), "{checked}");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let config = "examples/custom-evictor/config.toml";
    let ran = stdout(&program("custom-evictor", &["run", "-c", config, "-o", output]));
    assert!(ran.contains("rate"), "{ran}");
    let unknown = program("oasis", &["run", "-c", config, "-o", output]);
    assert!(!unknown.status.success(), "the plain program does not know `rate`");
}

#[test]
fn a_predictor_of_somebody_else_s_has_its_rows_in_a_sweep() {
    let checked = stdout(&program("custom-predictor", &["check", "smoothed"]));
    assert!(checked.contains("keeps its contract"), "{checked}");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().to_str().unwrap();
    let sweep =
        ["sweep", "examples/custom-predictor/sweep.toml", "--limit", "1", "--backend", "cpu", "-o", output];
    let ran = stdout(&program("custom-predictor", &sweep));
    for row in ["smoothed(weight=0.25)", "smoothed(weight=0.5)", "previous-token"] {
        assert!(ran.contains(row), "{row}: {ran}");
    }
}
