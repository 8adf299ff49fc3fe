//! Sweeps that are killed without warning, and taken up again.

use crate::support::{Place, SMALL, folders, samples};
use crate::sweep::{same_records, succeed, swept};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Starts the sweep into `root` and kills it after `wait`; whether it was still running.
fn kill_after(place: &Place, root: &str, args: &[&str], wait: Duration) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oasis"));
    command
        .current_dir(place.path(""))
        .args(["sweep", "run.toml", "-o", root, "--backend", "cpu"])
        .args(args);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    std::thread::sleep(wait);
    let running = child.try_wait().expect("status").is_none();
    // SIGKILL: the program can't catch it.
    child.kill().expect("kill");
    child.wait().expect("ends");
    running
}

/// Whole lines of all `samples.jsonl` below `root`.
fn recorded(root: &Path) -> usize {
    let below = |path: &PathBuf| if path.is_dir() { folders(path) } else { Vec::new() };
    let runs = below(&root.to_path_buf()).iter().flat_map(below).collect::<Vec<_>>();
    let lines = |run: &PathBuf| {
        std::fs::read_to_string(run.join("samples.jsonl")).map_or(0, |t| t.matches('\n').count())
    };
    runs.iter().map(lines).sum()
}

/// A number of 0 .. 1 that looks random; `k` gives the same one every time.
fn scattered(k: u32) -> f64 {
    f64::from(k.wrapping_mul(2_654_435_761) >> 8) / f64::from(1_u32 << 24)
}

#[test]
fn a_sweep_that_is_killed_ends_as_if_it_had_not_been() {
    at_moments(6);
}

#[test]
#[ignore = "a minute: cargo test --release -p oasis --test program -- --ignored killed"]
fn a_sweep_that_is_killed_at_any_of_twenty_moments_ends_as_if_it_had_not_been() {
    at_moments(20);
}

/// Kills a sweep at so many moments between its first instant and its last, each time in a new folder, and goes on with it.
fn at_moments(moments: u32) {
    let axes = "product.run.seed = [0, 1]\nproduct.decode.budget = [96, 128]\nproduct.decode.evictor = [\"lrs\", \"sieve\"]\n";
    let place = Place::new(&swept(axes).replace(SMALL, &SMALL.replace("samples = 2", "samples = 5")));
    let start = Instant::now();
    succeed(&place, &["-o", "whole", "--backend", "cpu"]);
    let whole_time = start.elapsed();
    let whole = place.only_run("whole");
    let (mut running, mut between) = (0, 0);
    for k in 0..moments {
        let root = format!("killed-{k}");
        let at = whole_time.mul_f64((f64::from(k) + scattered(k)) / f64::from(moments));
        running += u32::from(kill_after(&place, &root, &[], at));
        let n = recorded(&place.path(&root));
        between += u32::from(n > 0 && n < 50);
        if k % 2 == 1 {
            // Killed once more while it goes on.
            kill_after(&place, &root, &["--resume"], whole_time.mul_f64(scattered(k + moments)));
        }
        println!("moment {k}: killed after {at:?} with {n} records");
        succeed(&place, &["-o", &root, "--resume", "--backend", "cpu"]);
        let folder = place.only_run(&root);
        same_records(&folder, &whole);
        let mut units: Vec<_> = folders(&folder)
            .iter()
            .filter(|p| p.join("samples.jsonl").is_file())
            .flat_map(|run| samples(run).into_iter().map(|s| (run.clone(), s.sample, s.cell, s.repeat)))
            .collect();
        units.sort();
        units.dedup();
        assert_eq!(units.len(), 50, "moment {k}: samples are lost or there twice");
        std::fs::remove_dir_all(place.path(&root)).expect("removed");
    }
    // A test that never kills, or never between records, would prove nothing.
    assert!(
        running >= moments / 2 && between >= moments / 6,
        "{running} kills of a running sweep, {between} between records"
    );
}
