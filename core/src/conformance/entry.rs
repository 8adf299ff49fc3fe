//! What every row of every table promises.

use super::{Checked, Finding, Findings, ensure};
use crate::Result;
use crate::registry::{Entry, Params};

/// Checks one row: a kebab-case name, one sentence, a version; the constructor takes an empty table and every
/// parameter's default as the row states it; an unknown key is refused with a message that names the plug-in
/// and its own keys. `build` runs the row's constructor and drops what it made.
pub fn check_entry<F>(entry: &Entry<F>, build: &dyn Fn(&Params) -> Result<()>) -> Vec<Finding> {
    let mut findings = Findings::default();
    findings.note(0, || describes_itself(entry));
    findings.note(0, || takes_its_defaults(entry, build));
    findings.note(0, || refuses_other_keys(entry, build));
    findings.0
}

fn describes_itself<F>(entry: &Entry<F>) -> Checked {
    let kebab = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !name.ends_with('-')
            && !name.contains("--")
    };
    ensure(kebab(entry.name), "its name is kebab-case", || format!("`{}`", entry.name))?;
    let sentence = |text: &str| text.ends_with('.') && !text.contains('\n') && text.len() > 10;
    ensure(sentence(entry.about), "it says in one sentence what it is", || format!("`{}`", entry.about))?;
    for param in entry.params {
        ensure(sentence(param.about), "it says in one sentence what a parameter is", || {
            format!("`{}`: `{}`", param.name, param.about)
        })?;
    }
    ensure(entry.version > 0, "its decisions have a version", || "version 0".into())
}

fn takes_its_defaults<F>(entry: &Entry<F>, build: &dyn Fn(&Params) -> Result<()>) -> Checked {
    let contract = "it takes its own parameters and defaults";
    let run = |text: &str| {
        let table = text.parse::<toml::Table>().map_err(|e| e.to_string())?;
        build(&Params { table, seed: 1 }).map_err(|e| e.to_string())
    };
    let mut texts = vec![String::new()];
    texts.extend(entry.params.iter().map(|p| format!("{} = {}", p.name, p.default)));
    for text in &texts {
        let outcome = run(text);
        ensure(outcome.is_ok(), contract, || format!("`{text}`: {}", outcome.err().unwrap_or_default()))?;
    }
    Ok(())
}

fn refuses_other_keys<F>(entry: &Entry<F>, build: &dyn Fn(&Params) -> Result<()>) -> Checked {
    let mut table = toml::Table::new();
    table.insert("no-such-key".into(), toml::Value::Integer(1));
    let error = build(&Params { table, seed: 1 }).err().map(|e| e.to_string());
    let Some(message) = error else {
        return super::broken("it refuses unknown keys", "`no-such-key = 1` was accepted");
    };
    let mut words = entry.params.iter().map(|p| p.name).chain([entry.name, "no-such-key"]);
    let missing = words.find(|word| !message.contains(word));
    ensure(missing.is_none(), "its refusal names the plug-in, the key and its own keys", || {
        format!("`{message}` does not name `{}`", missing.unwrap_or_default())
    })
}
