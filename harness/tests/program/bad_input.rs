//! Bad input: a clear error that names key, value, limit and way out; exit code not 0; nothing written.

use crate::support::{Place, SMALL, stderr};

/// `SMALL` with `from` replaced by `to`.
fn changed(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

fn refused(toml: &str, args: &[&str], fragments: &[&str]) {
    let place = Place::new(toml);
    let out = place.run(args);
    let said = stderr(&out);
    assert!(!out.status.success(), "{fragments:?}: accepted");
    for fragment in fragments {
        assert!(said.contains(fragment), "`{fragment}` is not in:\n{said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(place.names(), ["run.toml"], "{fragments:?}: something was written");
}

#[test]
fn keys_that_nobody_knows() {
    refused(
        &changed("budget = 96", "budgt = 96"),
        &[],
        &["run.toml", "budgt", "did you mean `budget`", "^^^^^"],
    );
    refused(&changed("[decode]", "[decod]"), &[], &["decod", "did you mean `decode`"]);
    refused(&changed("samples = 2", "samples = 2\nquestons = 2"), &[], &["niah_multikey", "questons"]);
    refused(
        &changed("predictor = \"previous-token\"", "predictor = { name = \"random\", sed = 1 }"),
        &[],
        &["previous", "sed"],
    );
    refused(SMALL, &["--set", "decode.budgt=96"], &["decode.budgt=96", "did you mean `budget`"]);
    refused(SMALL, &["--set", "decoed.budget=96"], &["decoed", "did you mean `decode`"]);
    refused(SMALL, &["--set", "budget"], &["--set budget", "KEY=VALUE"]);
}

#[test]
fn keys_without_effect() {
    refused(
        &changed("label = \"previous\"", "draft = \"ngram\""),
        &[],
        &["draft", "no effect", "does not look ahead"],
    );
    refused(&changed("cap = 1", "cap = 1\ndraft = \"ngram\""), &[], &["decode.draft", "no cell uses it"]);
    refused(
        &changed("mode = \"dense\"", "mode = \"dense\"\nbudget = 128"),
        &[],
        &["budget", "no effect", "dense"],
    );
    refused(&changed("mode = \"dense\"", "mode = \"window\"\ncap = 2"), &[], &["cap", "no effect", "window"]);
    refused(&changed("cap = 1", "cap = 1\ntop_p = 0.5"), &[], &["top_p"]);
    let grid = format!("{SMALL}\n[grid]\ndraft = [\"ngram\", \"none\"]\n");
    refused(&grid, &[], &["grid.draft", "no cell uses it"]);
    refused(&format!("{SMALL}\n[grid]\nbudget = []\n"), &[], &["grid.budget", "without values"]);
}

#[test]
fn wrong_types_show_the_place() {
    refused(
        &changed("budget = 96", "budget = \"many\""),
        &[],
        &["run.toml", "line", "budget = \"many\"", "^", "10%"],
    );
    refused(&changed("audit = true", "audit = \"yes\""), &[], &["run.toml", "^", "boolean"]);
    refused(&changed("length = 512", "length = \"long\""), &[], &["run.toml", "length"]);
    refused(&changed("[run]", "[run"), &[], &["run.toml", "line 2"]);
    refused(&changed("mode = \"dense\"", "mode = \"danse\""), &[], &["danse", "did you mean `dense`"]);
}

#[test]
fn values_out_of_range() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("budget = 96", "budget = 32", &["budget", "32 tokens", "2 blocks", "at least 48"]),
        ("budget = 96", "budget = 0", &["budget", "0 tokens", "at least one block"]),
        ("budget = 96", "budget = -5", &["budget", "-5"]),
        ("budget = 96", "budget = \"1%\"", &["budget", "1%", "512", "at least 48"]),
        ("budget = 96", "budget = \"110%\"", &["budget", "110%", "100%"]),
        ("budget = 96", "budget = 96\nblock = 0", &["block", "0 tokens", "at least 1"]),
        ("cap = 1", "cap = -1", &["cap", "-1", "unlimited"]),
        ("cap = 1", "cap = -0.5", &["cap", "-0.5", "between 0.0 and 1.0"]),
        ("cap = 1", "cap = nan", &["cap", "NaN", "between 0.0 and 1.0"]),
        ("cap = 1", "cap = 1.5", &["cap", "1.5", "without a point"]),
        ("cap = 1", "cap = \"none\"", &["cap", "none", "unlimited"]),
        ("length = 512", "length = 0", &["task.length", "0 tokens"]),
        ("length = 512", "length = 40000", &["task.length", "40000", "16384"]),
        ("length = 512", "length = 4", &["niah_multikey", "at least"]),
        ("samples = 2", "samples = 0", &["task.samples", "0 samples"]),
        ("audit = true", "audit = true\nbatch = 0", &["batch", "0 sequences"]),
        ("audit = true", "audit = true\ntemperature = -1.0", &["temperature", "-1"]),
        ("audit = true", "audit = true\ntemperature = 1.0\ntop_p = 0.0", &["top_p", "above 0"]),
        ("protocol", "repeats = 0\nprotocol", &["run.repeats", "at least 1"]),
        ("[[task]]", "[model]\npath = \"no/such/folder\"\n[[task]]", &["no/such/folder", "nano"]),
        ("[[task]]", "[model]\npath = \"nanno\"\n[[task]]", &["nanno", "did you mean `nano`"]),
        (
            "predictor = \"previous-token\"",
            "predictor = \"previos-token\"",
            &["did you mean `previous-token`"],
        ),
        ("predictor = \"previous-token\"", "summary = \"minmx\"", &["did you mean `minmax`"]),
        ("predictor = \"previous-token\"", "evictor = \"lsr\"", &["did you mean `lrs`"]),
        ("predictor = \"previous-token\"", "draft = \"ngrm\"", &["did you mean `ngram`"]),
        ("niah_multikey", "niah_multiky", &["did you mean `niah_multikey`"]),
        ("predictor = \"previous-token\"", "predictor = \"oracle\"", &["oracle", "on-demand"]),
        (
            "predictor = \"previous-token\"",
            "mode = \"on-demand\"\npredictor = \"random\"",
            &["random", "oracle"],
        ),
        (
            "predictor = \"previous-token\"",
            "draft = { name = \"ngram\", depth = 6, branches = 3 }",
            &["depth 6", "3 branches", "at most 8"],
        ),
        ("predictor = \"previous-token\"", "draft = { name = \"ngram\", depth = 0 }", &["draft.depth", "0"]),
        (
            "predictor = \"previous-token\"",
            "draft = { name = \"ngram\", dept = 2 }",
            &["dept", "did you mean `depth`"],
        ),
    ];
    for (from, to, fragments) in cases {
        refused(&changed(from, to), &[], fragments);
    }
}

#[test]
fn configurations_without_tasks_cells_or_file() {
    refused("[[cell]]\nmode = \"dense\"\n", &[], &["no [[task]]", "oasis list tasks"]);
    refused("[[task]]\nname = \"kv\"\nlength = 512\n", &[], &["no [[cell]]"]);
    let place = Place::new(SMALL);
    let out = place.command(&[]).args(["-c", "other.toml"]).output().expect("starts");
    assert!(!out.status.success());
    let twice = format!("{SMALL}\n[[cell]]\nlabel = \"previous\"\npredictor = \"previous-token\"\n");
    refused(&twice, &[], &["two cells", "`previous`", "another label"]);
    refused(SMALL, &["--limit", "0"], &["--limit", "0"]);
    refused(SMALL, &["--limit", "1.5"], &["--limit", "1.5"]);
    if oasis_kernels::Cuda::new(0).is_err() {
        refused(SMALL, &["--backend", "cuda"], &["--backend cuda", "--backend cpu"]);
    }
    refused(SMALL, &["--resume", "--overwrite"], &["--overwrite"]);
}

#[test]
fn outputs_that_can_t_be_written() {
    let place = Place::new(SMALL);
    std::fs::write(place.path("file"), "").expect("file");
    let out = place.run(&["-o", "file/runs"]);
    let said = stderr(&out);
    assert!(!out.status.success() && said.contains("file") && said.contains("--output"), "{said}");
    let out = place.run(&["-o", "file"]);
    assert!(!out.status.success() && stderr(&out).contains("no folder"), "{}", stderr(&out));
    assert_eq!(place.names(), ["file", "run.toml"]);
}

#[test]
fn dry_runs_print_and_write_nothing() {
    let place = Place::new(SMALL);
    let out = place.succeed(&["--dry-run", "--write-out", "--set", "decode.cap=2", "--seed", "5"]);
    let text = String::from_utf8_lossy(&out.stdout);
    let has = |key: &str, origin: &str| {
        text.lines().any(|l| l.starts_with(key) && l.ends_with(&format!("# {origin}")))
    };
    assert!(has("cap = 2", "command line") && has("seed = 5", "command line"), "{text}");
    assert!(has("budget = 96", "file") && has("block = 16", "default"), "{text}");
    assert!(has("mode = \"dense\"", "file, this cell") && text.contains("question :"), "{text}");
    assert_eq!(place.names(), ["run.toml"]);
}
