//! `oasis show NAME`: one row of the tables, in full.

use crate::App;
use crate::fetch;
use crate::list::{Item, Kind, items};
use crate::report::units::wrapped;
use anyhow::Result;
use oasis_core::Error;
use std::process::ExitCode;

/// Arguments of `oasis show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name that `oasis list` lists
    name: String,
}

/// Runs `oasis show`: all rows of that name, whatever their kind (`random` is a predictor and an evictor).
///
/// # Errors
/// No row has the name; suggests the nearest.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let all = items(app);
    let found: Vec<String> = all.iter().filter(|i| i.name == args.name).map(render).collect();
    if found.is_empty() {
        return Err(Error::unknown_name("name", &args.name, all.iter().map(|i| i.name)).into());
    }
    crate::report::say(&found.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn render(item: &Item) -> String {
    let mut out = format!("{}: {}\n", item.name, item.kind.singular());
    out += &format!("  {}\n", wrapped(&item.about, 106, 2));
    if let Some(version) = item.version {
        out += &format!("  version     {version}\n");
    }
    out += &format!("  source      {}\n", item.source);
    if item.kind == Kind::Models {
        out += &model(item.name);
    }
    if let Some(usage) = usage(item) {
        out += &format!("  use         {usage}\n");
    }
    match (item.params, item.kind) {
        (_, Kind::Models) => {}
        ([], _) => out += "  parameters  none\n",
        (params, _) => {
            out += "  parameters\n";
            let width = params.iter().map(|p| p.name.len() + p.default.len()).max().unwrap_or(0) + 3;
            for p in params {
                let key = format!("{} = {}", p.name, p.default);
                out += &format!("    {key:<width$}  {}\n", wrapped(p.about, 104 - width, width + 6));
            }
        }
    }
    out
}

fn model(name: &str) -> String {
    match fetch::resolve(name) {
        None => String::new(),
        Some(Ok(path)) => format!("  file        {}\n", path.display()),
        Some(Err(_)) => format!("  file        not in the cache; `oasis fetch {name}` gets it\n"),
    }
}

/// The line of a configuration that names the row.
fn usage(item: &Item) -> Option<String> {
    let key = match item.kind {
        Kind::Tasks => return Some(format!("[[task]] name = \"{}\"", item.name)),
        Kind::Models => return Some(format!("[model] path = \"{}\"", item.name)),
        Kind::Summaries => "summary",
        Kind::Evictors => "evictor",
        Kind::Predictors => "predictor",
        Kind::Drafts => "draft",
    };
    Some(match item.params.first() {
        None => format!("{key} = \"{}\"", item.name),
        Some(p) => format!("{key} = {{ name = \"{}\", {} = {} }}", item.name, p.name, p.default),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_shown_with_its_default() {
        for item in items(&App::default()) {
            let text = render(&item);
            for p in item.params {
                assert!(text.contains(&format!("{} = {}", p.name, p.default)), "{text}");
            }
            assert!(text.lines().all(|l| l.chars().count() <= 110), "{text}");
        }
    }

    #[test]
    fn an_unknown_name_is_met_with_the_nearest() {
        let e = run(&Args { name: "minmaks".to_owned() }, &App::default()).unwrap_err().to_string();
        assert!(e.contains("did you mean `minmax`"), "{e}");
    }
}
