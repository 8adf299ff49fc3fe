//! The combinations of a replay: a list of values an option, their product, each planned by itself.

use super::folder::{DECODE, Folder};
use crate::app::App;
use crate::plan::{Plan, PlannedCell};
use crate::spec;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::policy::When;
use oasis_core::registry::{Params, find};
use oasis_core::settings::Mode;

/// Axes of a replay, in the order of tables.
pub const AXES: [&str; 5] = ["predictor", "summary", "evictor", "budget", "cap"];

/// One value of each axis that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Axis and value, as typed.
    pub values: Vec<(&'static str, String)>,
}

/// A combination, planned or refused.
#[derive(Debug)]
pub struct Combination {
    /// What was asked for.
    pub choice: Choice,
    /// The cell that it makes, or why it makes none.
    pub cell: Result<PlannedCell, String>,
}

/// Splits at commas outside of braces, brackets and quotes.
///
/// # Errors
/// An empty entry.
pub fn split(option: &str, text: &str) -> Result<Vec<String>> {
    let (mut parts, mut depth, mut quoted) = (vec![String::new()], 0_i32, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        match (c, depth, quoted) {
            (',', 0, false) => parts.push(String::new()),
            _ => parts.last_mut().into_iter().for_each(|p| p.push(c)),
        }
    }
    let parts: Vec<String> = parts.iter().map(|p| p.trim().to_owned()).collect();
    if parts.iter().any(String::is_empty) {
        bail!("--{option} {text}: an empty entry; separate values by single commas");
    }
    Ok(parts)
}

/// The product of the lists; an axis without values is left as recorded.
pub fn product(lists: &[(&'static str, Vec<String>)]) -> Vec<Choice> {
    let mut choices = vec![Choice { values: Vec::new() }];
    for (axis, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
        let longer = |choice: &Choice| {
            let with = |value: &String| {
                let mut values = choice.values.clone();
                values.push((*axis, value.clone()));
                Choice { values }
            };
            values.iter().map(with).collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(longer).collect();
    }
    choices
}

/// `name{bits = 2}` as the table that TOML wants; anything else as it is.
fn as_toml(axis: &str, value: &str) -> String {
    match value.split_once('{') {
        Some((name, keys)) if !name.trim().is_empty() && !matches!(axis, "budget" | "cap") => {
            format!("{{ name = \"{}\", {keys}", name.trim())
        }
        _ => value.to_owned(),
    }
}

/// Plans one combination over the trace's own settings.
pub fn plan(folder: &Folder, app: &App, sets: &[(String, String)], choice: Choice) -> Combination {
    let cell = cell(folder, app, sets, &choice).map_err(|e| format!("{e:#}"));
    Combination { choice, cell }
}

fn cell(folder: &Folder, app: &App, sets: &[(String, String)], choice: &Choice) -> Result<PlannedCell> {
    let mut all = sets.to_vec();
    all.extend(choice.values.iter().map(|(axis, v)| (format!("decode.{axis}"), as_toml(axis, v))));
    let path = folder.path.join(DECODE);
    let mut source = spec::load(&path, &all)?;
    match source.spec.decode.mode {
        Some(mode @ (Mode::Dense | Mode::Window)) => {
            let what = format!("`{}` ranks nothing, so there is nothing to replay; use staged", mode.name());
            bail!(Error::setting("decode.mode", what));
        }
        // A static pool fetches nothing, whatever the recorded cap is.
        Some(Mode::Static) => source.spec.decode.cap = None,
        _ => {}
    }
    if let Some(predictor) = &source.spec.decode.predictor {
        let entry = find("predictor", &app.predictors, &predictor.name)?;
        let needs = (entry.build)(&Params { table: predictor.table.clone(), seed: 0 })?.needs();
        if needs.drafts && !folder.header.drafts {
            bail!(Error::setting(
                "predictor",
                format!(
                    "`{}` ranks with draft rows and the trace has none; record one in a cell with a draft source",
                    predictor.name
                )
            ));
        }
        // A predictor that ranks with the step's own query does so in one mode only, others in all but that.
        let typed = source.set.contains_key("decode.mode");
        let mode = &mut source.spec.decode.mode;
        match (needs.when, *mode) {
            (When::OnDemand, _) if !typed => *mode = Some(Mode::OnDemand),
            (When::Ahead, Some(Mode::OnDemand)) if !typed => *mode = Some(Mode::Staged),
            _ => {}
        }
    }
    source.spec.decode.audit = None;
    Plan::replay_cell(&source, app)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_split_outside_of_braces() {
        let all = split("summary", "minmax, rotated-keys{bits = 2, a = \"x,y\"},mean").unwrap();
        assert_eq!(all, ["minmax", "rotated-keys{bits = 2, a = \"x,y\"}", "mean"]);
        assert_eq!(as_toml("summary", &all[1]), "{ name = \"rotated-keys\", bits = 2, a = \"x,y\"}");
        assert_eq!(as_toml("cap", "0.05"), "0.05");
        assert!(split("cap", "1,,2").unwrap_err().to_string().contains("--cap 1,,2"));
    }

    #[test]
    fn every_combination_is_made_once() {
        let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        let all = product(&[
            ("evictor", list(&["lrs", "lru"])),
            ("summary", Vec::new()),
            ("cap", list(&["1", "2", "3"])),
        ]);
        assert_eq!(all.len(), 6);
        assert_eq!(all[4].values, [("evictor", "lru".to_owned()), ("cap", "2".to_owned())]);
        assert_eq!(product(&[]).len(), 1);
    }
}
