//! What `oasis new` writes, in a repository of three files and outside one.

use super::*;
use oasis_core::conformance::{Finding, check_entry, check_evictor, check_predictor, check_summary};
use oasis_core::registry::Params;

#[path = "templates/evictor.rs"]
mod evictor_template;
#[path = "templates/predictor.rs"]
mod predictor_template;
#[path = "templates/summary.rs"]
mod summary_template;

fn repository_at(dir: &Path) {
    for (path, text) in [
        ("Cargo.toml", "[workspace]\n"),
        ("policies/Cargo.toml", "[package]\nname = \"oasis-policies\"\n"),
        ("policies/src/lib.rs", "pub const EVICTORS: &[EvictorEntry] = &[evictor::lrs::ENTRY];\n"),
        ("policies/src/evictor/mod.rs", "//! Doc.\n\npub mod lrs;\n"),
        ("policies/src/summary.rs", "mod mean;\n\npub const SUMMARIES: &[SummaryEntry] = &[mean::ENTRY];\n"),
    ] {
        create(&dir.join(path), text).unwrap();
    }
}

/// Whether a place of the template was left open.
fn open(text: &str) -> bool {
    text.contains('@') || text.to_lowercase().contains("placeholder")
}

fn name(kind: Kind, text: &str) -> Name {
    Name::parse(kind, text).unwrap()
}

#[test]
fn in_the_repository_it_is_one_file_and_two_lines() {
    let temp = tempfile::tempdir().unwrap();
    repository_at(temp.path());
    assert_eq!(repository(&temp.path().join("policies/src")).as_deref(), Some(temp.path()));
    in_tree(Kind::Evictor, &name(Kind::Evictor, "least-mass"), temp.path()).unwrap();
    let read = |path: &str| fs::read_to_string(temp.path().join(path)).unwrap();
    let modules = read("policies/src/evictor/mod.rs");
    assert!(modules.ends_with("\n\npub mod least_mass;\npub mod lrs;\n"), "{modules}");
    let table = read("policies/src/lib.rs");
    assert!(table.contains("evictor::lrs::ENTRY, evictor::least_mass::ENTRY]"), "{table}");
    let file = read("policies/src/evictor/least_mass.rs");
    assert!(file.contains("name: \"least-mass\"") && file.contains("pub struct LeastMass"), "{file}");
    assert!(!open(&file), "a place in the template was left open:\n{file}");

    let e = in_tree(Kind::Evictor, &name(Kind::Evictor, "least-mass"), temp.path()).unwrap_err();
    assert!(format!("{e:#}").contains("module `least_mass` already"), "{e:#}");
    in_tree(Kind::Summary, &name(Kind::Summary, "mine"), temp.path()).unwrap();
    assert!(temp.path().join("policies/src/summary/mine.rs").is_file());
    let table = read("policies/src/summary.rs");
    assert!(
        table.starts_with("mod mean;\nmod mine;\n") && table.contains("[mean::ENTRY, mine::ENTRY]"),
        "{table}"
    );
}

#[test]
fn a_file_in_the_way_leaves_the_table_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    repository_at(temp.path());
    let table = temp.path().join("policies/src/evictor/mod.rs");
    let before = fs::read_to_string(&table).unwrap();
    fs::write(temp.path().join("policies/src/evictor/mine.rs"), "// mine").unwrap();
    let e = in_tree(Kind::Evictor, &name(Kind::Evictor, "mine"), temp.path()).unwrap_err();
    assert!(format!("{e:#}").contains("exists already"), "{e:#}");
    assert_eq!(fs::read_to_string(&table).unwrap(), before);
    assert_eq!(fs::read_to_string(temp.path().join("policies/src/evictor/mine.rs")).unwrap(), "// mine");
}

#[test]
fn elsewhere_it_is_a_crate() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(repository(temp.path()), None);
    for kind in [Kind::Evictor, Kind::Summary, Kind::Predictor] {
        let crate_name = format!("my-{}", kind.word());
        out_of_tree(kind, &name(kind, &crate_name), temp.path(), None).unwrap();
        let read = |file: &str| fs::read_to_string(temp.path().join(&crate_name).join(file)).unwrap();
        let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some(crate_name.as_str()));
        let path = manifest["dependencies"]["oasis"]["path"].as_str().unwrap();
        assert!(Path::new(path).join("Cargo.toml").is_file(), "{path}");
        assert!(read("src/main.rs").contains(&format!("with_{}(my_{}::ENTRY)", kind.word(), kind.word())));
        assert!(!open(&read(&format!("src/my_{}.rs", kind.word()))));
        assert!(out_of_tree(kind, &name(kind, &crate_name), temp.path(), None).is_err());
    }
    let e =
        out_of_tree(Kind::Evictor, &name(Kind::Evictor, "x"), temp.path(), Some(temp.path())).unwrap_err();
    assert!(e.to_string().contains("not a checkout"), "{e}");
}

#[test]
fn bad_names_are_refused() {
    for bad in [
        "",
        "Mine",
        "my_own",
        "-x",
        "x-",
        "x--y",
        "1st",
        "müde",
        "../x",
        "type",
        "yield",
        "evictor",
        "slot-meta",
    ] {
        assert!(Name::parse(Kind::Evictor, bad).is_err(), "{bad}");
    }
    let good = name(Kind::Evictor, "k2-least-mass");
    assert_eq!((good.module.as_str(), good.camel.as_str()), ("k2_least_mass", "K2LeastMass"));
}

#[test]
fn taken_names_are_refused() {
    let args = Args { kind: Kind::Evictor, name: "lrs".to_owned(), oasis: None };
    let e = run(&args, &App::default()).unwrap_err().to_string();
    assert!(e.contains("already an evictor `lrs`"), "{e}");
}

fn none(findings: &[Finding]) {
    assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
}

#[test]
fn templates_keep_their_contracts_as_they_are() {
    let params = |seed| Params { seed, ..Params::default() };
    let (e, s, p) = (evictor_template::ENTRY, summary_template::ENTRY, predictor_template::ENTRY);
    none(&check_entry(&e, &|p| (e.build)(p).map(drop)));
    none(&check_entry(&s, &|p| (s.build)(p).map(drop)));
    none(&check_entry(&p, &|q| (p.build)(q).map(drop)));
    none(&check_evictor(&|seed| (e.build)(&params(seed)), 64));
    none(&check_summary(&|seed| (s.build)(&params(seed)), 64));
    none(&check_predictor(&|seed| (p.build)(&params(seed)), 64));
}
