//! Reading the layers of a configuration and remembering where each value came from.

use super::{Spec, did_you_mean};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// `[decode]` or another table of the file.
    File,
    /// The `[[cell]]` itself.
    Cell,
    /// An axis of `[grid]`.
    Grid,
    /// An axis of `[sweep]`.
    Sweep,
    /// `--set` or a flag.
    CommandLine,
    /// Follows from other values.
    Derived,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Cell => "file, this cell",
            Self::Grid => "grid",
            Self::Sweep => "sweep",
            Self::CommandLine => "command line",
            Self::Derived => "derived",
        })
    }
}

/// A configuration and where its values came from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What was typed, all layers together.
    pub spec: Spec,
    /// Paths that the command line or a sweep set over the file.
    pub set: BTreeMap<String, Origin>,
    /// What looks like a slip but may be meant.
    pub notes: Vec<String>,
}

impl Source {
    /// `run.name`, else the file's without its ending.
    pub fn name(&self) -> String {
        let of_file = || self.path.file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned());
        self.spec.run.name.clone().unwrap_or_else(of_file)
    }

    /// Where the value at `path` (`run.seed`) came from, given whether it is there at all.
    pub fn origin(&self, path: &str, present: bool) -> Origin {
        match (self.set.get(path), present) {
            (Some(&over), _) => over,
            (None, true) => Origin::File,
            (None, false) => Origin::Default,
        }
    }

    /// What set a value at `path` or below it (`decode.summary.bits`) over the file.
    pub fn set_below(&self, path: &str) -> Option<Origin> {
        let below =
            |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.set.iter().find(|(key, _)| below(key)).map(|(_, &origin)| origin)
    }
}

/// Reads `path` and lays `sets` (`key.path`, value) over it.
///
/// # Errors
/// What TOML or the tables refuse, with the file's name and a caret below the place; a file that is a sweep.
pub fn load(path: &Path, sets: &[(String, String)]) -> Result<Source> {
    let source = read(path, sets)?.0;
    if source.spec.sweep.is_some() {
        bail!(
            "{}: it has a [sweep] table; run it with `oasis sweep {0}`, or remove the table",
            path.display()
        );
    }
    Ok(source)
}

/// The same for a file that may be a sweep; also as a table, with `sets` in it.
pub(super) fn read(path: &Path, sets: &[(String, String)]) -> Result<(Source, toml::Table)> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: the configuration can't be read", path.display()))?;
    let named =
        |e: toml::de::Error| anyhow!("{}: {}", path.display(), did_you_mean(e.to_string().trim_end()));
    let typed: Spec = toml::from_str(&text).map_err(named)?;
    let notes = literal_escapes(&text, path);
    let mut set = BTreeMap::new();
    let mut table: toml::Table = toml::from_str(&text).map_err(named)?;
    if sets.is_empty() {
        return Ok((Source { path: path.to_owned(), spec: typed, set, notes }, table));
    }
    for (key, text) in sets {
        place(&mut table, key, &value(text), Origin::CommandLine, &mut set)
            .with_context(|| format!("--set {key}={text}"))?;
    }
    let all: Vec<String> = sets.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let spec = typed_again(&table).with_context(|| format!("--set {}", all.join(" --set ")))?;
    Ok((Source { path: path.to_owned(), spec, set, notes }, table))
}

/// A configuration after values were laid over it.
pub(super) fn typed_again(table: &toml::Table) -> Result<Spec> {
    table.clone().try_into().map_err(|e: toml::de::Error| anyhow!(did_you_mean(e.to_string().trim_end())))
}

/// A value as TOML, or as a string where it is no TOML.
fn value(text: &str) -> toml::Value {
    let line = format!("v = {text}");
    let parsed = toml::from_str::<toml::Table>(&line).ok().and_then(|mut t| t.remove("v"));
    parsed.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Puts `value` at the dotted `key`; in a list, a number picks one entry and a name goes to all.
pub(super) fn place(
    table: &mut toml::Table,
    key: &str,
    value: &toml::Value,
    origin: Origin,
    set: &mut BTreeMap<String, Origin>,
) -> Result<()> {
    let parts: Vec<&str> = key.split('.').collect();
    if parts.len() < 2 || parts.iter().any(|p| p.is_empty()) {
        bail!("`{key}` is no key; write TABLE.KEY=VALUE, as in decode.budget=256");
    }
    let known = ["run", "model", "task", "decode", "cell", "grid", "sweep"];
    if !known.contains(&parts[0]) {
        return Err(oasis_core::Error::unknown_name("table", parts[0], known).into());
    }
    let mut root = toml::Value::Table(std::mem::take(table));
    let mut placed = Vec::new();
    let done = descend(&mut root, &parts, "", value, &mut placed);
    set.extend(placed.into_iter().map(|path| (path, origin)));
    if let toml::Value::Table(t) = root {
        *table = t;
    }
    done
}

fn descend(
    node: &mut toml::Value,
    parts: &[&str],
    at: &str,
    value: &toml::Value,
    set: &mut Vec<String>,
) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else {
        *node = value.clone();
        set.push(at.to_owned());
        return Ok(());
    };
    let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
    match node {
        toml::Value::Array(entries) => match part.parse::<usize>() {
            Ok(i) if i < entries.len() => descend(&mut entries[i], rest, &below(part), value, set),
            Ok(i) => bail!("`{at}` has {} entries, counted from 0; there is no entry {i}", entries.len()),
            Err(_) => {
                for (i, entry) in entries.iter_mut().enumerate() {
                    descend(entry, parts, &below(&i.to_string()), value, set)?;
                }
                Ok(())
            }
        },
        toml::Value::Table(table) => {
            let fresh = || toml::Value::Table(toml::Table::new());
            let entry = table.entry((*part).to_owned()).or_insert_with(fresh);
            // `decode.summary.bits=4` turns the name alone into a table with that name.
            if let (toml::Value::String(name), false) = (&*entry, rest.is_empty()) {
                let mut policy = toml::Table::new();
                policy.insert("name".to_owned(), name.clone().into());
                *entry = toml::Value::Table(policy);
            }
            descend(entry, rest, &below(part), value, set)
        }
        other => bail!("`{at}` is {}, it has no `{part}` below it", other.type_str()),
    }
}

/// Literal TOML strings with a backslash-n, which are two characters and no line break.
fn literal_escapes(text: &str, path: &Path) -> Vec<String> {
    let literal = |line: &str| {
        let value = line.split_once('=').map(|(_, v)| v.trim())?;
        (value.starts_with('\'') && value.contains("\\n")).then(|| value.to_owned())
    };
    let found = text.lines().enumerate().filter_map(|(i, line)| literal(line).map(|v| (i + 1, v)));
    let note = |(line, v)| {
        let file = path.display();
        format!("{file}:{line}: {v} holds a backslash and an n, no line break; double quotes make it one")
    };
    found.map(note).collect()
}
