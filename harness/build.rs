//! Which code this is: the commit of the checkout, whether it has uncommitted changes, and the SHA-256 of all
//! sources. The hash works without git (from a tarball) and is what fingerprints use.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates whose code decides results, beside this one.
const CRATES: [&str; 6] = ["core", "policies", "predictors", "kernels", "datasets", "harness"];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = here.parent().unwrap_or(&here).to_owned();
    let mut files = Vec::new();
    for name in CRATES {
        for part in ["src", "Cargo.toml"] {
            let path = root.join(name).join(part);
            println!("cargo::rerun-if-changed={}", path.display());
            collect(&path, &mut files);
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file);
        let bytes = std::fs::read(file).unwrap_or_default();
        hash.update(name.to_string_lossy().as_bytes());
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    let digest: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    println!("cargo::rustc-env=OASIS_SOURCE_SHA256={digest}");
    let log = root.join(".git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    // Only a checkout of this project counts, not one that a tarball was unpacked into.
    let own = root.join(".git").exists();
    let commit = own.then(|| git(&root, &["rev-parse", "HEAD"])).flatten().unwrap_or_default();
    let dirty = own.then(|| git(&root, &["status", "--porcelain", "--untracked-files=no"])).flatten();
    println!("cargo::rustc-env=OASIS_COMMIT={commit}");
    println!("cargo::rustc-env=OASIS_DIRTY={}", dirty.is_some_and(|d| !d.is_empty()));
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        if path.is_file() {
            files.push(path.to_owned());
        }
        return;
    };
    entries.flatten().for_each(|e| collect(&e.path(), files));
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
