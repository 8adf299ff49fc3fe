//! Cells of the configurations that the repository ships, and of small ones.

use super::Plan;
use crate::app::App;
use crate::spec::load;
use std::path::Path;

fn plan(toml: &str) -> anyhow::Result<Plan> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("run.toml");
    std::fs::write(&path, toml)?;
    Plan::new(&load(&path, &[])?, &App::default())
}

fn labels(plan: &Plan) -> Vec<&str> {
    plan.cells.iter().map(|c| c.label.as_str()).collect()
}

const TASK: &str = "[[task]]\nname = \"kv\"\nlength = 512\n";

fn shipped(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs").join(name);
    Plan::new(&load(&path, &[]).unwrap(), &App::default()).unwrap()
}

#[test]
fn the_quickstart_has_every_way_of_decoding_once_for_each_value_that_matters() {
    let plan = shipped("quickstart.toml");
    let of = |family: &str| plan.cells.iter().filter(|c| c.label.starts_with(family)).count();
    assert_eq!(plan.cells[0].label, "dense");
    assert_eq!(
        (of("dense"), of("window"), of("static"), of("oracle"), of("look-ahead, EAGLE-3")),
        (1, 2, 2, 4, 4)
    );
    assert_eq!(plan.cells.len(), 1 + 6 * 4 + 2 * 2);
    assert!(labels(&plan).contains(&"oracle budget=96 cap=0.05"), "{:?}", labels(&plan));
    let oracle = plan.cells.iter().find(|c| c.label == "oracle budget=96 cap=0.05").unwrap();
    assert_eq!(oracle.family.as_deref(), Some("oracle cap=0.05"));
}

#[test]
fn the_fidelity_run_has_every_summary_at_every_budget() {
    let plan = shipped("fidelity-smollm2.toml");
    assert_eq!(plan.cells.len(), 1 + 8 * 8 + 4);
    assert!(plan.cells.iter().all(|c| !c.audit));
}

#[test]
fn cells_without_names_are_told_apart() {
    let cells = "[[cell]]\n[[cell]]\nsummary = \"mean\"\n[[cell]]\npredictor = \"previous-token\"\n[[cell]]\nmode = \"on-demand\"\n";
    let plan = plan(&format!("{TASK}[decode]\nbudget = 256\n{cells}")).unwrap();
    let expected = [
        "dense",
        "lookahead/ngram summary=minmax",
        "lookahead/ngram summary=mean",
        "previous-token",
        "oracle",
    ];
    assert_eq!(labels(&plan), expected);
    assert!(plan.cells[0].added && !plan.cells[1].added);
}

#[test]
fn a_stored_configuration_plans_the_same_run() {
    let cells = "[[cell]]\ntemperature = 0.7\ntop_p = 0.9\ndraft = { name = \"ngram\", depth = 3, max = 5 }\nlabel = \"x\"\n";
    let grid = "[grid]\nbudget = [128, \"50%\"]\ncap = [0.1, 3, \"unlimited\"]\nsummary = [\"mean\", { name = \"rotated-keys\", bits = 1 }]\n";
    let first = plan(&format!("{TASK}{cells}[[cell]]\nmode = \"window\"\n{grid}")).unwrap();
    assert_eq!(first.cells.len(), 1 + 12 + 2);
    let resolved = first.resolved();
    let again = plan(&resolved.text).unwrap().resolved();
    assert_eq!(again.canonical, resolved.canonical);
    for quick in ["quickstart.toml", "fidelity-smollm2.toml"] {
        let resolved = shipped(quick).resolved();
        assert_eq!(plan(&resolved.text).unwrap().resolved().canonical, resolved.canonical);
    }
}

#[test]
fn an_axis_does_not_touch_cells_that_set_the_key_themselves() {
    let text = format!(
        "{TASK}[[cell]]\nlabel = \"own\"\nbudget = 160\n[[cell]]\nlabel = \"grid\"\n[grid]\nbudget = [128, 256]\n"
    );
    assert_eq!(labels(&plan(&text).unwrap()), ["dense", "own", "grid budget=128", "grid budget=256"]);
}

#[test]
fn a_share_of_the_context_is_realised_in_tokens() {
    let text = format!("{TASK}[[cell]]\nbudget = \"50%\"\ncap = 0.05\n");
    let plan = plan(&text).unwrap();
    let settings = plan.cells[1].settings(512, 0);
    assert_eq!((settings.budget_tokens, settings.k(), settings.cap_blocks()), (256, 11, 1));
}

#[test]
fn the_shipped_sweep_is_one_run_of_every_combination() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sweep-nano.toml");
    let groups = crate::spec::load_sweep(&path, &[]).unwrap().groups().unwrap();
    assert_eq!((groups.len(), groups[0].sources.len()), (1, 24));
    let plan = Plan::over(&groups[0].sources, &App::default()).unwrap();
    assert_eq!(plan.cells.len(), 1 + 24);
    assert_eq!(plan.cells[1].label, "lookahead/eagle3 budget=96 cap=0.05 evictor=lrs");
    assert_eq!(plan.cells[24].label, "random budget=256 cap=unlimited evictor=fifo");
}
