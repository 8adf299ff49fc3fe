//! Running the program on small configurations.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The smallest sensible run: two documents, dense and one sparse cell.
pub const SMALL: &str = r#"
[run]
name = "small"
protocol = "question"

[[task]]
name = "niah_multikey"
length = 512
samples = 2

[decode]
budget = 96
sink = 16
window = 16
cap = 1
audit = true

[[cell]]
mode = "dense"

[[cell]]
label = "previous"
predictor = "previous-token"
"#;

/// A folder with a configuration in it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// With `toml` as its configuration.
    pub fn new(toml: &str) -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        std::fs::write(dir.path().join("run.toml"), toml).expect("configuration");
        Self { dir }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `oasis run -c run.toml -o runs ARGS`.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
        command.current_dir(self.dir.path()).args(["run", "-c", "run.toml"]).args(args);
        command
    }

    /// `oasis ARGS` in the folder, to its end.
    pub fn oasis(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
        command.current_dir(self.dir.path()).args(args).output().expect("the program starts")
    }

    /// Runs it to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// Runs it; it must succeed.
    pub fn succeed(&self, args: &[&str]) -> Output {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}\n{}", stderr(&out), String::from_utf8_lossy(&out.stdout));
        out
    }

    /// The only run in `root`.
    pub fn only_run(&self, root: &str) -> PathBuf {
        let mut runs = folders(&self.path(root));
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs.remove(0)
    }

    /// Names of everything in the folder.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).expect("folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("entry").file_name().to_string_lossy().into()).collect();
        names.sort();
        names
    }
}

/// Entries of a folder, sorted.
pub fn folders(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(root).expect("folder").map(|e| e.expect("entry").path()).collect();
    all.sort();
    all
}

/// What the program said.
pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// `results.json` of a run.
pub fn results(run: &Path) -> oasis::record::Results {
    serde_json::from_slice(&std::fs::read(run.join("results.json")).expect("results"))
        .expect("results of this version")
}

/// `samples.jsonl` of a run.
pub fn samples(run: &Path) -> Vec<oasis::record::SampleRecord> {
    let text = std::fs::read_to_string(run.join("samples.jsonl")).expect("samples");
    text.lines().map(|l| serde_json::from_str(l).expect("record")).collect()
}
