//! `oasis new KIND NAME`: the skeleton of a policy that works, with its test.
//!
//! Inside the repository it is one file, one `mod` line and one row; elsewhere it is a crate that adds the policy
//! to the whole command line.

mod insert;

use crate::App;
use crate::files::write_whole;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use oasis_core::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `oasis new`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to write
    #[arg(value_enum)]
    kind: Kind,
    /// Its name in configurations: lower case, words joined by `-`
    name: String,
    /// Outside the repository: where the repository lies, for the new crate's dependencies
    #[arg(long, value_name = "DIR")]
    oasis: Option<PathBuf>,
}

/// The plug points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Who leaves the pool
    Evictor,
    /// What the device remembers of a block
    Summary,
    /// Which query ranks the blocks of the next step
    Predictor,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Evictor => "evictor",
            Self::Summary => "summary",
            Self::Predictor => "predictor",
        }
    }

    fn template(self) -> &'static str {
        match self {
            Self::Evictor => include_str!("scaffold/templates/evictor.rs"),
            Self::Summary => include_str!("scaffold/templates/summary.rs"),
            Self::Predictor => include_str!("scaffold/templates/predictor.rs"),
        }
    }

    /// Folder of its policies in the repository.
    fn folder(self) -> &'static str {
        match self {
            Self::Evictor => "policies/src/evictor",
            Self::Summary => "policies/src/summary",
            Self::Predictor => "predictors/src/predictor",
        }
    }

    /// Name of the table.
    fn table(self) -> &'static str {
        match self {
            Self::Evictor => "EVICTORS",
            Self::Summary => "SUMMARIES",
            Self::Predictor => "PREDICTORS",
        }
    }

    fn taken(self, app: &App) -> Vec<&'static str> {
        match self {
            Self::Evictor => app.evictors.iter().map(|e| e.name).collect(),
            Self::Summary => app.summaries.iter().map(|e| e.name).collect(),
            Self::Predictor => app.predictors.iter().map(|e| e.name).collect(),
        }
    }

    /// Names of types that the template imports.
    fn imported(self) -> &'static [&'static str] {
        match self {
            Self::Evictor => {
                &["Result", "Step", "Evictor", "SlotMeta", "EvictorEntry", "Param", "Params", "Deserialize"]
            }
            Self::Summary => &[
                "Result",
                "BlockShape",
                "Keys",
                "Reduce",
                "Summary",
                "SummaryShape",
                "Params",
                "SummaryEntry",
                "Rounding",
                "Storage",
                "Deserialize",
            ],
            Self::Predictor => &[
                "Result",
                "Needs",
                "Predictor",
                "Ranking",
                "RowSet",
                "StepView",
                "Param",
                "Params",
                "PredictorEntry",
                "Deserialize",
            ],
        }
    }
}

/// A checked name and what is made of it.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    /// `least-mass`.
    kebab: String,
    /// `least_mass`.
    module: String,
    /// `LeastMass`.
    camel: String,
}

/// Words that no module can be called, and `self`'s kin.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual",
    "where", "while", "yield",
];

impl Name {
    fn parse(kind: Kind, text: &str) -> Result<Self, Error> {
        let wrong = |what: String| Err(Error::setting("NAME", what));
        let well_formed = text.split('-').all(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        }) && text.starts_with(|c: char| c.is_ascii_lowercase());
        if !well_formed {
            return wrong(format!(
                "`{text}` is not lower-case words joined by `-`, beginning with a letter, such as `least-mass`"
            ));
        }
        let module = text.replace('-', "_");
        if KEYWORDS.contains(&module.as_str()) {
            return wrong(format!("`{text}` is a word of the language; choose another name"));
        }
        let camel: String = text.split('-').map(capitalised).collect();
        if kind.imported().contains(&camel.as_str()) {
            return wrong(format!(
                "the type `{camel}` would hide one that {}s use; choose another name",
                kind.word()
            ));
        }
        Ok(Self { kebab: text.to_owned(), module, camel })
    }
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

/// Runs `oasis new`.
///
/// # Errors
/// A name that is taken or is no name; a file that exists; a repository that does not look as expected. Nothing is
/// written then.
pub fn run(args: &Args, app: &App) -> Result<ExitCode> {
    let name = Name::parse(args.kind, &args.name)?;
    if args.kind.taken(app).contains(&args.name.as_str()) {
        bail!(
            "there is already {} {} `{}`; choose another name",
            article(args.kind),
            args.kind.word(),
            args.name
        );
    }
    let here = std::env::current_dir().context("the current folder cannot be read")?;
    let said = match repository(&here) {
        Some(root) => in_tree(args.kind, &name, &root)?,
        None => out_of_tree(args.kind, &name, &here, args.oasis.as_deref())?,
    };
    crate::report::say(&said)?;
    Ok(ExitCode::SUCCESS)
}

fn article(kind: Kind) -> &'static str {
    if kind == Kind::Evictor { "an" } else { "a" }
}

/// The repository that `dir` lies in.
fn repository(dir: &Path) -> Option<PathBuf> {
    dir.ancestors().find(|root| is_repository(root)).map(Path::to_owned)
}

fn is_repository(root: &Path) -> bool {
    let says = |file: &str, what: &str| fs::read_to_string(root.join(file)).is_ok_and(|t| t.contains(what));
    says("Cargo.toml", "[workspace]") && says("policies/Cargo.toml", "name = \"oasis-policies\"")
}

/// Policies' templates are Rust that is compiled and tested under the placeholder's name.
fn filled(template: &str, kind: Kind, name: &Name) -> String {
    template
        .replace("placeholder-name", &name.kebab)
        .replace("PlaceholderName", &name.camel)
        .replace("placeholder_name", &name.module)
        .replace("@kind@", kind.word())
        .replace("@an@", article(kind))
}

/// One file, one `mod`, one row.
fn in_tree(kind: Kind, name: &Name, root: &Path) -> Result<String> {
    let folder = root.join(kind.folder());
    let file = folder.join(format!("{}.rs", name.module));
    let (modules, table) = places(kind, &folder)?;
    let mut texts = vec![(modules.clone(), text(&modules)?)];
    let by_hand =
        |p: &Path| format!("{}: cannot be extended; add the module and the row by hand", p.display());
    texts[0].1 = insert::module(&texts[0].1, &name.module).with_context(|| by_hand(&modules))?;
    let mut row = format!("{}::ENTRY", name.module);
    if table != modules {
        texts.push((table.clone(), text(&table)?));
        row = format!("{}::{row}", kind.word());
    }
    if let Some((path, text)) = texts.last_mut() {
        *text = insert::row(text, kind.table(), &row).with_context(|| by_hand(path))?;
    }
    create(&file, &insert::formatted(&filled(kind.template(), kind, name), root))?;
    if let Err(e) = replace_all(&texts, root) {
        // Half a policy is worse than none.
        fs::remove_file(&file).with_context(|| format!("{}: cannot be removed again", file.display()))?;
        return Err(e);
    }
    let shown = |p: &Path| p.strip_prefix(root).unwrap_or(p).display().to_string();
    Ok(format!(
        "wrote    {}\nextended {} (one `mod`)\nextended {} (one row of {})\nnext     edit the first, then `cargo run \
         --release -- check {}`\n",
        shown(&file),
        shown(&modules),
        shown(&table),
        kind.table(),
        name.kebab
    ))
}

/// The file of a folder's `mod` lines and the file of the table: the same, or the crate's `lib.rs`.
fn places(kind: Kind, folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let candidates = [folder.join("mod.rs"), folder.with_extension("rs")];
    let modules = candidates.iter().find(|p| p.is_file()).cloned().with_context(|| {
        format!("neither {} nor {} exists", candidates[0].display(), candidates[1].display())
    })?;
    let library = folder.with_file_name("lib.rs");
    let table = if insert::has_table(&text(&modules)?, kind.table()) { modules.clone() } else { library };
    Ok((modules, table))
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// Replaces all files or none.
fn replace_all(texts: &[(PathBuf, String)], root: &Path) -> Result<()> {
    let mut done: Vec<(&Path, String)> = Vec::new();
    for (path, after) in texts {
        let before = text(path)?;
        if let Err(e) = write_whole(path, insert::formatted(after, root).as_bytes()) {
            for (path, before) in done {
                write_whole(path, before.as_bytes())?;
            }
            return Err(e);
        }
        done.push((path, before));
    }
    Ok(())
}

/// A crate of one's own in `here/NAME`.
fn out_of_tree(kind: Kind, name: &Name, here: &Path, oasis: Option<&Path>) -> Result<String> {
    let oasis = sources(oasis)?;
    let dir = here.join(&name.kebab);
    if dir.exists() {
        bail!("{}: exists already; choose another name, or remove it", dir.display());
    }
    let manifest = include_str!("scaffold/templates/Cargo.toml.txt")
        // A Windows path has backslashes, which TOML would read as escapes.
        .replace("@oasis@", &oasis.display().to_string().replace('\\', "/"));
    let files = [
        ("Cargo.toml", filled(&manifest, kind, name)),
        ("src/main.rs", filled(include_str!("scaffold/templates/main.rs.txt"), kind, name)),
    ];
    for (path, text) in &files {
        create(&dir.join(path), text)?;
    }
    let policy = insert::formatted(&filled(kind.template(), kind, name), &oasis);
    create(&dir.join(format!("src/{}.rs", name.module)), &policy)?;
    Ok(format!(
        "wrote    {0}/Cargo.toml, {0}/src/main.rs, {0}/src/{1}.rs\nnext     edit the last, then `cd {0} && cargo run --release -- check {0}`\n",
        name.kebab, name.module
    ))
}

/// The repository that a crate elsewhere depends on: as given, or where this program was built.
fn sources(given: Option<&Path>) -> Result<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = given.unwrap_or(&built);
    match root.canonicalize() {
        Ok(root) if is_repository(&root) => Ok(root),
        _ if given.is_some() => bail!("--oasis {}: is not a checkout of Oasis", root.display()),
        _ => bail!("the checkout that this program was built from is gone; name one with --oasis DIR"),
    }
}

/// Writes a new file; an existing one is an error.
fn create(path: &Path, text: &str) -> Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}: not writable", dir.display()))?;
    }
    let mut file = match fs::File::create_new(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{}: exists already; choose another name, or remove it", path.display())
        }
        Err(e) => return Err(e).with_context(|| format!("{}: not writable", path.display())),
    };
    file.write_all(text.as_bytes()).with_context(|| format!("{}: not writable", path.display()))
}

#[cfg(test)]
mod tests;
