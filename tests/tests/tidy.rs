//! Rules of the house that a compiler does not check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "cu") {
            out.push(path);
        }
    }
}

fn crate_sources(name: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    sources(&root().join(name), &mut out);
    out.sort();
    assert!(!out.is_empty(), "no sources in {name}");
    out
}

const CRATES: [&str; 6] = ["core", "policies", "predictors", "kernels", "datasets", "harness"];

#[test]
fn the_arrows_between_crates_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = [
        ("core", &[][..]),
        ("policies", &["oasis-core"]),
        ("predictors", &["oasis-core"]),
        ("kernels", &["oasis-core"]),
        ("datasets", &["oasis-core"]),
        ("harness", &["oasis-core", "oasis-policies", "oasis-predictors", "oasis-kernels", "oasis-datasets"]),
    ]
    .into();
    for name in CRATES {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        let table: toml::Table = manifest.parse().unwrap();
        for dependency in table["dependencies"].as_table().unwrap().keys() {
            if dependency.starts_with("oasis") {
                assert!(
                    allowed[name].contains(&dependency.as_str()),
                    "{name} must not depend on {dependency}"
                );
            }
        }
    }
}

#[test]
fn unsafe_code_lives_in_kernels_only() {
    for name in CRATES.iter().filter(|&&n| n != "kernels") {
        for path in crate_sources(name) {
            let text = fs::read_to_string(&path).unwrap();
            for (i, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap();
                let found = ["unsafe {", "unsafe fn", "unsafe impl"].iter().any(|u| code.contains(u));
                assert!(!found, "{}:{}: unsafe outside kernels", path.display(), i + 1);
            }
        }
    }
    for path in crate_sources("kernels") {
        let text = fs::read_to_string(&path).unwrap();
        if text.contains("SAFETY of every block in this file:") {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if line.contains("unsafe {") && !line.trim_start().starts_with("//") {
                let near = &lines[i.saturating_sub(8)..=i];
                assert!(near.iter().any(|l| l.contains("SAFETY")), "{}:{}: no SAFETY", path.display(), i + 1);
            }
        }
    }
}

/// Long files and functions are not forbidden; they are listed, so that a reviewer looks twice.
#[test]
fn long_files_and_functions_are_listed() {
    let mut functions = 0;
    for path in CRATES.iter().flat_map(|n| crate_sources(n)) {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > 400 {
            println!("long file: {} ({} lines)", path.display(), lines.len());
        }
        for (i, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_fn = ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn "]
                .iter()
                .any(|p| line.trim_start().starts_with(p));
            if !is_fn || line.ends_with(';') {
                continue;
            }
            functions += 1;
            let close = format!("{}}}", " ".repeat(indent));
            let length = lines[i..].iter().position(|l| *l == close).map_or(1, |n| n + 1);
            if length > 70 {
                println!("long function: {}:{} ({length} lines)", path.display(), i + 1);
            }
        }
    }
    assert!(functions > 100, "the scan found only {functions} functions: it is broken");
}

/// A name in backticks with two underscores or more, in one of these documents, is a test's.
const DOCUMENTS: [&str; 2] = ["docs/FEATURES.md", "docs/faults.md"];

#[test]
fn tests_that_the_documents_name_exist() {
    let mut tests = BTreeSet::new();
    for name in CRATES.iter().chain(&["tests"]) {
        for path in crate_sources(name) {
            let text = fs::read_to_string(&path).unwrap();
            for after in text.split("#[test]").skip(1) {
                let named = after.split("fn ").nth(1).and_then(|f| f.split('(').next());
                tests.extend(named.map(str::to_owned));
            }
        }
    }
    assert!(tests.len() > 400, "the scan found only {} tests: it is broken", tests.len());
    let is_name = |s: &&str| s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    for document in DOCUMENTS {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2).filter(is_name);
        let named: Vec<&str> = quoted.filter(|s| s.matches('_').count() > 1).collect();
        assert!(named.len() > 30, "{document} names only {} tests", named.len());
        for name in named {
            assert!(tests.contains(name), "{document}: there is no test `{name}`");
        }
    }
    let features = fs::read_to_string(root().join(DOCUMENTS[0])).unwrap();
    let rows =
        features.lines().filter_map(|l| l.strip_prefix("| ")?.split(" | ").next()?.parse::<usize>().ok());
    assert_eq!(rows.collect::<Vec<_>>(), (1..=37).collect::<Vec<_>>());
}

/// Functions that a platform's libm may round in its own way; the `libm` crate, or `simd`, has them for all machines.
#[test]
fn no_decode_calls_the_platform_s_libm() {
    let functions = ["exp", "exp2", "ln", "log2", "log10", "sin", "cos", "sin_cos", "tanh", "powf"];
    let calls: Vec<String> = functions.iter().map(|name| format!(".{name}(")).collect();
    for path in ["core", "policies", "predictors", "kernels"].iter().flat_map(|n| crate_sources(n)) {
        let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        let of_tests = ["tests", "tests.rs", "testing.rs", "benches", "conformance"];
        if path.extension().is_some_and(|e| e == "cu") || parts.iter().any(|p| of_tests.contains(&p.as_ref()))
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        for (i, line) in code.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            let found = calls.iter().find(|call| code.contains(*call));
            assert!(found.is_none(), "{}:{}: {}", path.display(), i + 1, found.unwrap());
        }
    }
}
