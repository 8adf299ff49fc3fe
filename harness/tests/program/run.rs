//! Runs: records, determinism, resume, interruption, failures.

use crate::support::{Place, SMALL, folders, results, samples, stderr};
use oasis::record::{LayerRecord, Outcome, Status, Verdict};
use oasis_core::policy::{Evictor, SlotMeta};
use oasis_core::registry::{Entry, EvictorEntry};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

fn bytes(run: &Path, name: &str) -> Vec<u8> {
    std::fs::read(run.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// `results.json` without its machine part.
fn stable(run: &Path) -> oasis::record::Results {
    oasis::record::Results { machine: Default::default(), ..results(run) }
}

#[test]
fn a_run_leaves_complete_records_that_hold_the_invariants() {
    let place = Place::new(SMALL);
    place.succeed(&[]);
    let run = place.only_run("runs");
    let r = results(&run);
    assert_eq!((r.status, r.n_planned, r.n_done, r.n_failed), (Status::Complete, 4, 4, 0));
    assert_eq!(r.cells.iter().map(|c| c.label.as_str()).collect::<Vec<_>>(), ["dense", "previous"]);
    assert!(r.invariants.iter().all(|i| i.verdict != Verdict::Violated), "{:?}", r.invariants);
    let counted = r.invariants.iter().find(|i| i.name.starts_with("hits")).expect("the counters' invariant");
    assert_eq!(counted.verdict, Verdict::Held);
    let previous = r.rows.iter().find(|r| r.cell == "previous").expect("row");
    for metric in [
        "accuracy",
        "topk_agreement",
        "topk_recall_exact",
        "mass_recall",
        "output_error",
        "bytes_h2d",
        "hit_rate",
    ] {
        assert!(previous.metrics.contains_key(metric), "{metric}: {:?}", previous.metrics.keys());
    }
    assert_eq!(previous.layers.len(), r.model.layers);
    assert!(
        !r.machine.rows.iter().any(|r| r.cell == "previous" && r.metrics.contains_key("decode_tok_s")),
        "audited"
    );
    let moved: u64 = samples(&run).iter().map(|s| s.counters.bytes_h2d).sum();
    assert!(moved > 0, "nothing was fetched");
    for file in ["config.toml", "env.json", "fingerprint.json", "layers.jsonl", "timings.jsonl", "report.md"]
    {
        assert!(run.join(file).is_file(), "{file}");
    }
}

#[test]
fn workers_and_folders_leave_no_trace_and_the_stored_configuration_is_the_run() {
    let place = Place::new(SMALL);
    place.succeed(&["--jobs", "1", "-o", "a"]);
    place.succeed(&["--jobs", "2", "-o", "b"]);
    let (a, b) = (place.only_run("a"), place.only_run("b"));
    assert_eq!(a.file_name(), b.file_name());
    for file in ["samples.jsonl", "layers.jsonl", "config.toml", "fingerprint.json"] {
        assert_eq!(bytes(&a, file), bytes(&b, file), "{file}");
    }
    assert_eq!(stable(&a), stable(&b));
    std::fs::copy(a.join("config.toml"), place.path("run.toml")).expect("copy");
    place.succeed(&["-o", "c"]);
    assert_eq!(place.only_run("c").file_name(), a.file_name());
    place.succeed(&["-o", "d", "--seed", "1"]);
    assert_ne!(place.only_run("d").file_name(), a.file_name());
}

#[test]
fn limits_take_samples_at_equal_strides() {
    let place = Place::new(&SMALL.replace("samples = 2", "samples = 6"));
    place.succeed(&["--limit", "2", "--set", "cell.1.cap=0"]);
    let run = place.only_run("runs");
    let mut indices: Vec<usize> = samples(&run).iter().map(|s| s.index).collect();
    indices.dedup();
    assert_eq!(indices, [0, 3]);
    let previous = samples(&run).into_iter().filter(|s| s.cell == "previous").collect::<Vec<_>>();
    assert!(previous.iter().all(|s| s.counters.fetched == 0 && s.counters.dropped > 0));
}

#[test]
fn an_existing_run_is_kept_unless_told_and_a_torn_one_is_completed() {
    let place = Place::new(SMALL);
    place.succeed(&[]);
    let run = place.only_run("runs");
    let (before, results_before) = (bytes(&run, "samples.jsonl"), stable(&run));
    let refused = place.run(&[]);
    assert!(!refused.status.success());
    let said = stderr(&refused);
    assert!(said.contains("--resume") && said.contains("--overwrite") && said.contains("COMPLETE"), "{said}");
    // A run that was killed while it wrote its third record.
    let third = before.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).expect("two lines").0 + 40;
    std::fs::write(run.join("samples.jsonl"), &before[..third]).expect("cut");
    place.succeed(&["--resume"]);
    assert_eq!(bytes(&run, "samples.jsonl"), before);
    assert_eq!(stable(&run), results_before);
    place.succeed(&["--overwrite"]);
    assert_eq!(bytes(&run, "samples.jsonl"), before);
}

#[test]
fn resume_does_not_take_up_another_fingerprint() {
    let place = Place::new(SMALL);
    place.succeed(&[]);
    let out = place.run(&["--resume", "--seed", "7"]);
    assert!(!out.status.success() && stderr(&out).contains("fingerprint.json"), "{}", stderr(&out));
    assert_eq!(folders(&place.path("runs")).len(), 1);
    let run = place.only_run("runs");
    let text = String::from_utf8(bytes(&run, "fingerprint.json")).expect("text");
    let own = run.file_name().expect("name").to_string_lossy().into_owned();
    std::fs::write(run.join("fingerprint.json"), text.replace(&own, "0123456789abcdef")).expect("write");
    for flag in ["--resume", "--overwrite"] {
        let out = place.run(&[flag]);
        assert!(!out.status.success() && stderr(&out).contains("another fingerprint"), "{}", stderr(&out));
    }
}

#[test]
fn an_interrupted_run_is_partial_and_resumable() {
    let many = SMALL.replace("samples = 2", "samples = 40").replace("length = 512", "length = 2048");
    let place = Place::new(&many);
    let child = place
        .command(&["--jobs", "1"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let started = std::time::Instant::now();
    let recorded = || {
        let runs = place.path("runs");
        runs.is_dir()
            && folders(&runs)
                .first()
                .is_some_and(|r| r.join("samples.jsonl").metadata().is_ok_and(|m| m.len() > 0))
    };
    while !recorded() {
        assert!(started.elapsed().as_secs() < 120, "no record after two minutes");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(kill.success());
    let out = child.wait_with_output().expect("ends");
    assert_eq!(out.status.code(), Some(130), "{}", stderr(&out));
    assert!(stderr(&out).contains("--resume"), "{}", stderr(&out));
    let run = place.only_run("runs");
    let r = results(&run);
    assert_eq!(r.status, Status::Partial);
    assert!(r.n_done > 0 && r.n_done < r.n_planned, "{} of {}", r.n_done, r.n_planned);
    place.succeed(&["--resume"]);
    assert_eq!(results(&run).status, Status::Complete);
    assert_eq!(samples(&run).len() as u64, r.n_planned);
}

/// An evictor that fails on purpose.
struct Panics;

impl Evictor for Panics {
    fn keep(&self, slot: &SlotMeta, _: u32) -> f32 {
        assert!(slot.block % 7 != 3, "block {} of this evictor's nightmares", slot.block);
        slot.block as f32
    }
}

const PANICS: EvictorEntry = Entry {
    name: "panics",
    about: "Fails on some blocks.",
    version: 1,
    params: &[],
    build: |_| Ok(Box::new(Panics)),
};

#[test]
fn a_panicking_policy_of_another_crate_fails_its_samples_and_no_others() {
    let cell = "\n[[cell]]\nlabel = \"bad\"\npredictor = \"previous-token\"\nevictor = \"panics\"\n\n[[cell]]\nlabel = \"after\"\npredictor = \"random\"\n";
    let place = Place::new(&format!("{SMALL}{cell}"));
    let config = place.path("run.toml");
    let output = place.path("runs");
    let args = [
        "oasis".as_ref(),
        "run".as_ref(),
        "-c".as_ref(),
        config.as_os_str(),
        "-o".as_ref(),
        output.as_os_str(),
    ];
    let code = oasis::cli().with_evictor(PANICS).run_from(args);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    let run = place.only_run("runs");
    let r = results(&run);
    assert_eq!((r.status, r.n_failed, r.n_done), (Status::Failed, 2, 6));
    assert!(r.failures.iter().all(|f| f.cell == "bad" && f.error.contains("nightmares")), "{:?}", r.failures);
    // The cell after it decodes as if the failing one were not there.
    let without = Place::new(&format!("{SMALL}\n[[cell]]\nlabel = \"after\"\npredictor = \"random\"\n"));
    without.succeed(&[]);
    let after = |run: &Path| {
        let kept = samples(run).into_iter().filter(|s| s.cell == "after" && s.outcome == Outcome::Done);
        kept.map(|s| (s.sample, s.generated, s.counters)).collect::<Vec<_>>()
    };
    assert_eq!(after(&run), after(&without.only_run("runs")));
    assert_eq!(after(&run).len(), 2);
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let taken = Entry { name: "lrs", ..PANICS };
    let code = oasis::cli().with_evictor(taken).run_from(["oasis", "list"]);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)));
}

#[test]
fn samples_decoded_together_give_what_each_gives_alone() {
    let alone = Place::new(SMALL);
    alone.succeed(&[]);
    let together = Place::new(&SMALL.replace("audit = true", "audit = true\nbatch = 2"));
    together.succeed(&[]);
    let of = |place: &Place| {
        let records = samples(&place.only_run("runs")).into_iter();
        records.map(|s| (s.sample, s.cell, s.generated, s.counters)).collect::<Vec<_>>()
    };
    assert_eq!(of(&alone), of(&together));
}

#[test]
fn fidelity_is_zero_for_dense_and_positive_for_a_small_budget() {
    let toml = r#"
[[task]]
name = "niah_single"
length = 512
samples = 1

[[task]]
name = "fidelity"
length = 512
samples = 2
continuation = 24

[decode]
sink = 16
window = 16

[[cell]]
label = "ideal"
draft = "ideal"
budget = 96

[[cell]]
label = "covered"
mode = "window"
budget = 1024
"#;
    let place = Place::new(toml);
    place.succeed(&["--repeats", "2"]);
    let r = results(&place.only_run("runs"));
    let metric = |cell: &str, name: &str| {
        let row = r.rows.iter().find(|r| r.cell == cell && r.task == "fidelity").expect("row");
        row.metrics.get(name).unwrap_or_else(|| panic!("{cell} {name}")).clone()
    };
    assert!(r.cells[0].added && r.cells[0].label == "dense");
    assert_eq!((metric("dense", "kl").value, metric("dense", "top1_agreement").value), (0.0, 1.0));
    assert!(metric("ideal", "kl").value > 0.0);
    assert!(metric("covered", "kl").value < 1e-4, "{:?}", metric("covered", "kl"));
    assert_eq!(metric("ideal", "kl").n, 4);
    let covered = r.rows.iter().filter(|r| r.cell == "covered").all(|r| r.covered);
    assert!(covered && r.warnings.iter().any(|w| w.contains("`covered`")), "{:?}", r.warnings);
    // The ideal draft is right at every step after the first.
    assert!(metric("ideal", "draft_right").value > 0.99, "{:?}", metric("ideal", "draft_right"));
    let timed = r.machine.rows.iter().find(|r| r.cell == "ideal" && r.task == "fidelity").expect("times");
    assert!(timed.metrics.contains_key("decode_tok_s") && timed.metrics.contains_key("tpot_ms_p50"));
}

#[test]
fn heads_of_a_layer_add_up_to_it_and_have_a_map() {
    let place = Place::new(SMALL);
    place.succeed(&[]);
    let run = place.only_run("runs");
    let text = std::fs::read_to_string(run.join("layers.jsonl")).expect("layers");
    let (mut summed, mut differ) = (0, false);
    for line in text.lines() {
        let layer: LayerRecord = serde_json::from_str(line).expect("record");
        let Some(heads) = layer.heads else {
            assert_eq!(layer.counters.wanted, 0, "{line}");
            continue;
        };
        let audit = layer.audit.expect("audited");
        assert_eq!(heads.wanted.iter().sum::<u64>(), layer.counters.wanted);
        assert_eq!(heads.hits.iter().sum::<u64>(), layer.counters.hits);
        assert!((heads.agreement.iter().sum::<f64>() - audit.agreement).abs() < 1e-9, "{line}");
        assert!((heads.recall_exact.iter().sum::<f64>() - audit.recall_exact).abs() < 1e-9, "{line}");
        (summed, differ) = (summed + 1, differ || heads.agreement[0] != heads.agreement[1]);
    }
    assert!(summed > 0 && differ, "two heads that always agree alike are one head counted twice");
    let r = results(&run);
    let row = r.rows.iter().find(|r| r.cell == "previous").expect("row");
    for name in ["topk_agreement", "topk_recall_exact", "hit_rate"] {
        for (layer, heads) in row.heads[name].iter().enumerate() {
            assert_eq!(heads.len(), r.model.kv_heads);
            let mean = heads.iter().map(|h| h.expect("counted")).sum::<f64>() / heads.len() as f64;
            // Heads want equally many blocks here, so the layer's figure is their mean.
            assert!((mean - row.layers[layer][name].value).abs() < 1e-9, "{name} of layer {layer}");
        }
    }
    let map = std::fs::read_to_string(run.join("plots/heads-by-cell.svg")).expect("the map");
    assert!(map.contains(">previous<") && map.contains(">head 1<"), "{map}");
}
