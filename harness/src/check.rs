//! `oasis check NAME`: the conformance kit of the core over one row of the tables.

use crate::App;
use crate::list;
use crate::report::say;
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use oasis_core::conformance::{Finding, check_entry, check_evictor, check_predictor, check_summary};
use oasis_core::registry::{Entry, Params};
use std::process::ExitCode;

/// Arguments of `oasis check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An evictor, a summary or a predictor
    name: String,
    /// Random worlds to drive it through
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
    /// A parameter of it, such as `bits=4`; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs `oasis check`.
///
/// # Errors
/// No row has the name, or what has it has no contract that a kit could run.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let table = parameters(&args.set)?;
    let reports = quietly(|| check(&args.name, app, args.cases as usize, &table));
    if reports.is_empty() {
        let items = list::items(app);
        if let Some(item) = items.iter().find(|i| i.name == args.name) {
            bail!(
                "`{}` is a {}: only evictors, summaries and predictors can be checked",
                args.name,
                item.kind.singular()
            );
        }
        return Err(Error::unknown_name("name", &args.name, items.iter().map(|i| i.name)).into());
    }
    let mut kept = true;
    for (kind, findings) in &reports {
        say(&verdict(kind, args, findings))?;
        kept &= findings.is_empty();
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Findings on every row called `name`, whatever its kind.
fn check(name: &str, app: &App, cases: usize, table: &toml::Table) -> Vec<(&'static str, Vec<Finding>)> {
    let params = |seed| Params { table: table.clone(), seed };
    let mut reports = Vec::new();
    for row in app.evictors.iter().chain(app.replay_evictors).filter(|e| e.name == name) {
        let mut findings = entry(row);
        findings.extend(check_evictor(&|seed| (row.build)(&params(seed)), cases));
        reports.push(("evictor", findings));
    }
    for row in app.summaries.iter().filter(|e| e.name == name) {
        let mut findings = entry(row);
        findings.extend(check_summary(&|seed| (row.build)(&params(seed)), cases));
        reports.push(("summary", findings));
    }
    for row in app.predictors.iter().filter(|e| e.name == name) {
        let mut findings = entry(row);
        findings.extend(check_predictor(&|seed| (row.build)(&params(seed)), cases));
        reports.push(("predictor", findings));
    }
    reports
}

/// What every row promises, whatever it builds.
fn entry<T>(row: &Entry<fn(&Params) -> oasis_core::Result<T>>) -> Vec<Finding> {
    check_entry(row, &|params| (row.build)(params).map(drop))
}

/// Runs `check` without the default report of each panic: the kit catches panics and makes findings of them.
fn quietly<T>(check: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = check();
    std::panic::set_hook(hook);
    done
}

fn verdict(kind: &str, args: &Args, findings: &[Finding]) -> String {
    let name = std::iter::once(&args.name).chain(&args.set).cloned().collect::<Vec<_>>().join(" ");
    match findings {
        [] => format!("{kind} {name}: keeps its contract in {} cases\n", args.cases),
        _ => {
            let lines: String = findings.iter().map(|f| format!("  {f}\n")).collect();
            format!(
                "{kind} {name}: breaks its contract, {} finding(s) in {} cases\n{lines}",
                findings.len(),
                args.cases
            )
        }
    }
}

/// `key=value` pairs as a table; a value that is no TOML is a string.
fn parameters(pairs: &[String]) -> Result<toml::Table> {
    let mut table = toml::Table::new();
    for pair in pairs {
        let (key, value) =
            pair.split_once('=').with_context(|| format!("--set {pair}: not KEY=VALUE, such as `bits=4`"))?;
        let parsed =
            format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("value"));
        table.insert(key.trim().to_owned(), parsed.unwrap_or_else(|| value.into()));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::ids::Step;
    use oasis_core::policy::{Evictor, PoolView, SlotMeta};
    use oasis_core::registry::EvictorEntry;

    fn args(name: &str, set: &[&str]) -> Args {
        Args { name: name.to_owned(), cases: 16, set: set.iter().map(|s| (*s).to_owned()).collect() }
    }

    /// Gives the same block up twice.
    struct Twice;

    impl Evictor for Twice {
        fn keep(&self, _slot: &SlotMeta, _now: Step) -> f32 {
            0.0
        }

        fn evict(&mut self, pool: &mut PoolView<'_>, need: usize, out: &mut Vec<u32>) {
            out.extend(std::iter::repeat_n(pool.candidates[0].meta.block, need));
        }
    }

    const TWICE: EvictorEntry = EvictorEntry {
        name: "twice",
        about: "Gives the same block up twice.",
        version: 1,
        params: &[],
        build: |_| Ok(Box::new(Twice)),
    };

    #[test]
    fn every_row_passes() {
        let app = App::default();
        for item in list::items(&app).iter().filter(|i| i.kind <= list::Kind::Predictors) {
            for (kind, findings) in check(item.name, &app, 16, &toml::Table::new()) {
                assert!(findings.is_empty(), "{}", verdict(kind, &args(item.name, &[]), &findings));
            }
        }
    }

    #[test]
    fn a_broken_evictor_fails_and_says_why() {
        let mut app = App::default();
        app.evictors.push(TWICE);
        let (_, findings) = check("twice", &app, 16, &toml::Table::new()).remove(0);
        let text = verdict("evictor", &args("twice", &[]), &findings);
        assert!(text.contains("breaks its contract") && text.contains("(seed "), "{text}");
        assert_eq!(run(&args("twice", &[]), &app).unwrap(), ExitCode::FAILURE);
        assert_eq!(run(&args("lrs", &[]), &app).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn parameters_reach_the_policy() {
        let app = App::default();
        assert_eq!(run(&args("rotated-keys", &["bits=1"]), &app).unwrap(), ExitCode::SUCCESS);
        assert_eq!(run(&args("rotated-keys", &["bits=3"]), &app).unwrap(), ExitCode::FAILURE);
        assert!(run(&args("lrs", &["bits"]), &app).is_err());
        assert_eq!(parameters(&["a=x".to_owned(), "b=2".to_owned()]).unwrap()["b"].as_integer(), Some(2));
    }

    #[test]
    fn what_cannot_be_checked_is_said() {
        let e = run(&args("ngram", &[]), &App::default()).unwrap_err().to_string();
        assert!(e.contains("draft source"), "{e}");
        let e = run(&args("lsr", &[]), &App::default()).unwrap_err().to_string();
        assert!(e.contains("did you mean `lrs`"), "{e}");
    }
}
