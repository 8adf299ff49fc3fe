//! Sweeps: what they expand to, what they leave, what fails alone.

use crate::support::{Place, SMALL, folders, results, samples, stderr};
use oasis::record::{Outcome, Results, Status, SweepPlan, SweepResults};
use std::path::{Path, PathBuf};
use std::process::Output;

/// `SMALL` with axes.
pub fn swept(axes: &str) -> String {
    format!("{SMALL}\n[sweep]\n{axes}")
}

fn read<T: serde::de::DeserializeOwned>(path: PathBuf) -> T {
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("a record of this version")
}

pub fn plan(sweep: &Path) -> SweepPlan {
    read(sweep.join("sweep.json"))
}

pub fn outcome(sweep: &Path) -> SweepResults {
    read(sweep.join("results.json"))
}

/// The results of a sweep without what differs from machine to machine.
pub fn stable(sweep: &Path) -> SweepResults {
    let mut all = outcome(sweep);
    for run in &mut all.runs {
        run.results = run.results.take().map(|r| Results { machine: Default::default(), ..r });
    }
    all
}

fn sweep(place: &Place, args: &[&str]) -> Output {
    place.oasis(&[&["sweep", "run.toml"], args].concat())
}

pub fn succeed(place: &Place, args: &[&str]) {
    let out = sweep(place, args);
    assert!(out.status.success(), "{args:?}: {}", stderr(&out));
}

/// The folder of run `i`.
fn run_folder(sweep: &Path, i: usize) -> PathBuf {
    sweep.join(plan(sweep).runs[i].fingerprint.as_ref().expect("a run that was set up"))
}

#[test]
fn axes_over_cells_are_one_run_and_the_same_as_a_grid() {
    let axes = "product.decode.budget = [96, 128]\nproduct.decode.cap = [1, \"unlimited\"]\n";
    let place = Place::new(&swept(axes));
    succeed(&place, &[]);
    let folder = place.only_run("runs");
    let all = outcome(&folder);
    assert_eq!((all.status, all.n_planned, all.n_done, all.runs.len()), (Status::Complete, 10, 10, 1));
    let cells: Vec<(usize, String)> =
        plan(&folder).runs[0].cells.iter().map(|c| (c.index, c.label.clone())).collect();
    let expected = [
        "dense",
        "previous budget=96 cap=1",
        "previous budget=96 cap=unlimited",
        "previous budget=128 cap=1",
        "previous budget=128 cap=unlimited",
    ];
    assert_eq!(cells, expected.iter().map(ToString::to_string).enumerate().collect::<Vec<_>>());
    // The run is what `oasis run` makes of the grid, fingerprint and records alike.
    let own = SMALL.replace("budget = 96\n", "").replace("cap = 1\n", "");
    let grid = Place::new(&format!("{own}\n[grid]\nbudget = [96, 128]\ncap = [1, \"unlimited\"]\n"));
    grid.succeed(&[]);
    let (run, by_grid) = (run_folder(&folder, 0), grid.only_run("runs"));
    assert_eq!(run.file_name(), by_grid.file_name());
    for file in ["samples.jsonl", "layers.jsonl"] {
        let bytes = |run: &Path| std::fs::read(run.join(file)).expect("records");
        assert!(bytes(&run) == bytes(&by_grid), "{file} differs");
    }
}

#[test]
fn axes_beyond_cells_are_runs_and_a_cell_is_known_wherever_it_is_measured() {
    let axes =
        "product.run.seed = [0, 3]\n[[sweep.zip]]\ndecode.budget = [96, 128]\ndecode.window = [16, 32]\n";
    let place = Place::new(&swept(axes));
    succeed(&place, &["-o", "a"]);
    let folder = place.only_run("a");
    let (record, all) = (plan(&folder), outcome(&folder));
    assert_eq!(
        record.runs.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
        ["small, run.seed=0", "small, run.seed=3"]
    );
    assert_eq!((all.status, all.n_done), (Status::Complete, 12));
    assert_eq!(
        all.runs.iter().map(|r| r.results.as_ref().expect("results").seed).collect::<Vec<_>>(),
        [0, 3]
    );
    let zipped: Vec<String> = record.runs[0].cells[1..].iter().map(|c| format!("{:?}", c.values)).collect();
    assert!(zipped[0].contains("96") && zipped[0].contains("16"), "{zipped:?}");
    assert!(zipped[1].contains("128") && zipped[1].contains("32"), "{zipped:?}");
    let again = Place::new(&swept(axes));
    succeed(&again, &["-o", "a", "--jobs", "5"]);
    assert_eq!(stable(&again.only_run("a")), stable(&folder));
    // Its report has every run and axis, and is made of its records alone.
    let page = std::fs::read_to_string(folder.join("report.html")).expect("report");
    for part in
        ["Axes of the sweep", "run.seed", "decode.budget &amp; decode.window", "small, run.seed=3", "<svg"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("NaN") && !page.contains("<script"));
    let markdown = std::fs::read(folder.join("report.md")).expect("report");
    std::fs::remove_file(folder.join("report.md")).expect("removed");
    let out = place.oasis(&["report", &folder.to_string_lossy()]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(std::fs::read(folder.join("report.md")).expect("report") == markdown);
    for run in 0..2 {
        assert!(run_folder(&folder, run).join("report.html").is_file());
    }
    // The same cell in another sweep under another name.
    let other = Place::new(
        &swept("product.decode.evictor = [\"lrs\", \"lru\"]\n").replace("label = \"previous\"\n", ""),
    );
    succeed(&other, &["--set", "run.name=other"]);
    let cells = plan(&other.only_run("runs")).runs[0].cells.clone();
    let lrs = cells.iter().find(|c| c.label.contains("lrs")).expect("a cell");
    let lru = cells.iter().find(|c| c.label.contains("lru")).expect("a cell");
    assert_eq!(lrs.fingerprint, record.runs[0].cells[1].fingerprint);
    assert!(lru.fingerprint.is_some() && lru.fingerprint != lrs.fingerprint);
}

#[test]
fn a_dry_run_prints_cells_costs_and_time_and_writes_nothing() {
    let place = Place::new(&swept("product.decode.budget = [96, 128]\nproduct.run.seed = [0, 1]\n"));
    let out = sweep(&place, &["--dry-run"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", stderr(&out));
    for part in [
        "2 run(s), 6 cells",
        "axis decode.budget: 96, 128",
        "previous budget=128",
        "12 decodes, about",
        "48.0 KiB",
    ] {
        assert!(said.contains(part), "`{part}` is not in:\n{said}");
    }
    assert_eq!(place.names(), ["run.toml"]);
}

#[test]
fn what_can_t_be_set_up_is_recorded_and_the_rest_goes_on() {
    let axes = "product.model.path = [\"no/such/model\", \"nano\"]\nproduct.decode.draft = [\"ngram\", { name = \"eagle3\", path = \"no/such/head\" }]\nproduct.decode.predictor = [\"lookahead\"]\n";
    let place = Place::new(&swept(axes).replace("predictor = \"previous-token\"\n", ""));
    let out = sweep(&place, &[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let folder = place.only_run("runs");
    let all = outcome(&folder);
    assert_eq!((all.status, all.n_planned, all.n_done, all.n_failed), (Status::Failed, 12, 4, 8));
    let error = all.runs[0].error.as_ref().expect("an error");
    assert!(error.contains("no/such/model") && all.runs[0].results.is_none(), "{error}");
    let run = run_folder(&folder, 1);
    let r = results(&run);
    assert_eq!((r.status, r.n_failed, r.n_done), (Status::Failed, 2, 4));
    assert!(
        r.failures.iter().all(|f| f.cell.contains("eagle3") && f.error.contains("no/such/head")),
        "{:?}",
        r.failures
    );
    assert_eq!(samples(&run).iter().filter(|s| s.outcome == Outcome::Done).count(), 4);
    // Nothing is lost or doubled by going on, and what fails still fails.
    let before = stable(&folder);
    assert_eq!(sweep(&place, &["--resume"]).status.code(), Some(1));
    assert_eq!(stable(&folder), before);
}

#[test]
fn a_folder_is_kept_unless_told_and_a_torn_sweep_is_completed() {
    let place = Place::new(&swept("product.run.seed = [0, 1]\n"));
    succeed(&place, &[]);
    let folder = place.only_run("runs");
    let before = stable(&folder);
    let refused = sweep(&place, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("COMPLETE, 8 OF 8") && stderr(&refused).contains("--resume"),
        "{}",
        stderr(&refused)
    );
    let (first, second) = (run_folder(&folder, 0), run_folder(&folder, 1));
    std::fs::remove_dir_all(second).expect("removed");
    let text = std::fs::read(first.join("samples.jsonl")).expect("records");
    std::fs::write(first.join("samples.jsonl"), &text[..text.len() - 9]).expect("torn");
    std::fs::write(first.join(".oasis-left"), "half").expect("a file of a killed process");
    succeed(&place, &["--resume"]);
    assert_eq!(stable(&folder), before);
    assert!(!first.join(".oasis-left").exists());
    assert_eq!(folders(&folder).iter().filter(|p| p.join("samples.jsonl").is_file()).count(), 2);
    assert_eq!(sweep(&place, &["--resume", "--seed", "9"]).status.code(), Some(1), "seed is an axis");
}

#[test]
fn files_go_to_their_own_command() {
    let place = Place::new(SMALL);
    let out = sweep(&place, &[]);
    assert!(!out.status.success() && stderr(&out).contains("[sweep]"), "{}", stderr(&out));
    let place = Place::new(&swept("product.decode.budget = [96, 128]\n"));
    let out = place.run(&[]);
    assert!(!out.status.success() && stderr(&out).contains("oasis sweep"), "{}", stderr(&out));
    // All cells set the key themselves.
    let place = Place::new(&swept("product.decode.predictor = [\"random\", \"recency\"]\n"));
    let out = sweep(&place, &[]);
    assert!(
        stderr(&out).contains("sweep.decode.predictor") && stderr(&out).contains("no cell"),
        "{}",
        stderr(&out)
    );
    assert_eq!(place.names(), ["run.toml"]);
}

/// All files of two sweeps alike, but for times, machines and what is made of them.
pub fn same_records(a: &Path, b: &Path) {
    assert_eq!(serde_json::to_vec(&stable(a)).expect("json"), serde_json::to_vec(&stable(b)).expect("json"));
    let bytes =
        |sweep: &Path, file: &str| std::fs::read(sweep.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    assert!(bytes(a, "sweep.json") == bytes(b, "sweep.json"), "sweep.json differs");
    for run in plan(a).runs {
        let folder = run.fingerprint.expect("a run that was set up");
        for file in ["samples.jsonl", "layers.jsonl", "config.toml", "fingerprint.json"] {
            let file = format!("{folder}/{file}");
            assert!(bytes(a, &file) == bytes(b, &file), "{file} differs");
        }
        let of = |sweep: &Path| Results { machine: Default::default(), ..results(&sweep.join(&folder)) };
        assert_eq!(serde_json::to_vec(&of(a)).expect("json"), serde_json::to_vec(&of(b)).expect("json"));
    }
}

#[test]
fn merged_shards_are_the_sweep_byte_for_byte() {
    let axes = "product.decode.budget = [96, 128]\nproduct.decode.evictor = [\"lrs\", \"lru\"]\nproduct.run.seed = [0, 1]\n";
    let place = Place::new(&swept(axes));
    succeed(&place, &["-o", "whole"]);
    let whole = place.only_run("whole");
    let shards = ["1/3", "2/3", "3/3"];
    for shard in shards {
        succeed(&place, &["-o", "parts", "--shard", shard]);
    }
    let folder = |i: usize| place.only_run(&format!("parts/shard-{i}-of-3"));
    // Cells are dealt out in turn; nobody decodes another's.
    let records = |i: usize| {
        plan(&folder(i))
            .runs
            .iter()
            .map(|r| samples(&folder(i).join(r.fingerprint.as_ref().expect("set up"))).len())
            .sum::<usize>()
    };
    assert_eq!([1, 2, 3].map(records), [8, 6, 6]);
    let names: Vec<String> = (1..=3).map(|i| folder(i).to_string_lossy().into_owned()).collect();
    let merge = |args: &[&str]| place.oasis(&[&["merge"], args].concat());
    let refuse = |args: &[&str], parts: &[&str]| {
        let out = merge(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        parts.iter().for_each(|p| assert!(stderr(&out).contains(p), "`{p}` is not in: {}", stderr(&out)));
        assert!(!place.path("runs").exists(), "something was written");
    };
    refuse(&[&names[2]], &["1/3, 2/3", "missing"]);
    refuse(&[&names[0], &names[1], &names[1], &names[2]], &["2/3", "comes twice"]);
    refuse(&[&whole.to_string_lossy()], &["whole sweep"]);
    refuse(&["run.toml"], &["no sweep.json"]);
    succeed(&place, &["-o", "other", "--shard", "2/3", "--set", "decode.cap=2"]);
    let other = place.only_run("other/shard-2-of-3").to_string_lossy().into_owned();
    refuse(&[&names[0], &other, &names[2]], &["configuration, code or backend differ"]);
    succeed(&place, &["-o", "other", "--shard", "1/2"]);
    let half = place.only_run("other/shard-1-of-2").to_string_lossy().into_owned();
    refuse(&[&half, &names[1]], &["1/2", "2/3", "one division"]);
    let out = merge(&[&names[1], &names[2], &names[0]]);
    assert!(out.status.success(), "{}", stderr(&out));
    same_records(&place.only_run("runs"), &whole);
    assert_eq!(outcome(&place.only_run("runs")).status, Status::Complete);
    let again = merge(&[&names[0], &names[1], &names[2]]);
    assert!(!again.status.success() && stderr(&again).contains("--overwrite"), "{}", stderr(&again));
    assert_eq!(sweep(&place, &["--shard", "4/3"]).status.code(), Some(2));
}

#[test]
fn shards_of_cells_that_need_dense_decoding_decode_it_for_themselves() {
    let toml = "[[task]]\nname = \"fidelity\"\nlength = 512\nsamples = 2\ncontinuation = 12\n[decode]\nsink = 16\nwindow = 16\n[[cell]]\npredictor = \"lookahead\"\n[sweep]\nproduct.decode.budget = [96, 128]\nproduct.decode.draft = [\"ideal\", \"ngram\"]\n";
    let place = Place::new(toml);
    succeed(&place, &["-o", "whole", "--jobs", "1"]);
    succeed(&place, &["--shard", "1/2", "--jobs", "7"]);
    succeed(&place, &["--shard", "2/2"]);
    let folder = |i: usize| place.only_run(&format!("runs/shard-{i}-of-2")).to_string_lossy().into_owned();
    let out = place.oasis(&["merge", &folder(1), &folder(2), "-o", "merged"]);
    assert!(out.status.success(), "{}", stderr(&out));
    same_records(&place.only_run("merged"), &place.only_run("whole"));
}

#[cfg(unix)]
#[test]
fn the_slurm_script_runs_every_shard_and_goes_on_where_it_was() {
    let place = Place::new(&swept("product.decode.budget = [96, 128]\n"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/slurm-array.sh");
    let task = |number: &str| {
        let mut command = std::process::Command::new("bash");
        command.arg(&script).args(["run.toml", "out"]).current_dir(place.path(""));
        command.env("OASIS", env!("CARGO_BIN_EXE_oasis")).env("SLURM_ARRAY_TASK_ID", number);
        let out = command.env("SLURM_ARRAY_TASK_COUNT", "2").output().expect("bash");
        assert!(out.status.success(), "{}", stderr(&out));
    };
    ["1", "2", "2"].into_iter().for_each(task);
    let folder = |i: usize| place.only_run(&format!("out/shard-{i}-of-2")).to_string_lossy().into_owned();
    let out = place.oasis(&["merge", &folder(1), &folder(2)]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(outcome(&place.only_run("runs")).n_done, 6);
}
