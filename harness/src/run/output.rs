//! The folder of a run: created once, appended line by line, finished by renames.

use crate::files::{TEMPORARY, write_whole};
use crate::record::{LayerRecord, Outcome, SampleRecord, Status, TimingRecord};
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// One line a (sample, cell).
pub const SAMPLES: &str = "samples.jsonl";
/// One line a (sample, cell, layer).
pub const LAYERS: &str = "layers.jsonl";
/// One line a (sample, cell) with its times.
pub const TIMINGS: &str = "timings.jsonl";
/// The aggregate.
pub const RESULTS: &str = "results.json";
/// The resolved configuration.
pub const CONFIG: &str = "config.toml";
/// Where and when.
pub const ENVIRONMENT: &str = "env.json";
/// What the folder's name was made of.
pub const FINGERPRINT: &str = "fingerprint.json";

/// What to do with a folder that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse.
    Refuse,
    /// Go on where it stopped.
    Resume,
    /// Start again.
    Overwrite,
}

/// What a run has recorded.
#[derive(Debug, Default)]
pub struct Records {
    /// Lines of `samples.jsonl`.
    pub samples: Vec<SampleRecord>,
    /// Lines of `layers.jsonl`.
    pub layers: Vec<LayerRecord>,
    /// Lines of `timings.jsonl`.
    pub timings: Vec<TimingRecord>,
}

/// (sample, cell, repeat).
pub type UnitKey = (String, String, u32);

/// The folder of one run.
pub struct RunDir {
    /// Its path.
    pub path: PathBuf,
    /// The folder, held against other processes until the run ends (or dies).
    held: Option<File>,
}

/// Fails unless `root`, or the nearest folder above it that exists, can be written. Leaves nothing behind.
pub fn probe(root: &Path) -> Result<()> {
    let mut at = root.to_path_buf();
    while !at.exists() {
        let above = at.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        at = above.to_path_buf();
    }
    write_probe(&at, root)
}

fn not_writable(root: &Path, at: &Path, why: impl std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "--output {}: no folder can be made in {}: {why}; give another folder with --output",
        root.display(),
        at.display()
    )
}

fn write_probe(at: &Path, root: &Path) -> Result<()> {
    if !at.is_dir() {
        return Err(not_writable(root, at, "it is no folder"));
    }
    tempfile::Builder::new().prefix(".oasis-probe").tempfile_in(at).map_err(|e| not_writable(root, at, e))?;
    Ok(())
}

/// A file that a killed process was writing.
fn is_temporary(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with(TEMPORARY)
}

impl RunDir {
    /// Opens `root/fingerprint` for this run.
    ///
    /// # Errors
    /// It is there and `existing` refuses; it holds another fingerprint; it can't be made.
    pub fn open(root: &Path, fingerprint: &str, existing: Existing, name: &str) -> Result<Self> {
        let path = root.join(fingerprint);
        let mut dir = Self { path: path.clone(), held: None };
        if !path.exists() {
            if existing == Existing::Resume {
                dir.refuse_others(root, fingerprint, name)?;
            }
            fs::create_dir_all(&path).map_err(|e| not_writable(root, &path, e))?;
            dir.hold()?;
            return Ok(dir);
        }
        dir.hold()?;
        dir.same_fingerprint(fingerprint)?;
        match existing {
            Existing::Resume => {}
            Existing::Overwrite => dir.clear()?,
            Existing::Refuse if dir.is_empty()? => {}
            Existing::Refuse => bail!(
                "{} holds this run already ({}); --resume goes on with it, --overwrite starts it again, --output puts it \
                 elsewhere",
                path.display(),
                dir.state()
            ),
        }
        Ok(dir)
    }

    /// A folder that is only read.
    pub fn reader(path: PathBuf) -> Self {
        Self { path, held: None }
    }

    /// Takes the folder for this process, without what a killed one left half-written: two that append to the same records would lose some.
    fn hold(&mut self) -> Result<()> {
        let folder = File::open(&self.path).with_context(|| format!("{}", self.path.display()))?;
        match folder.try_lock() {
            Ok(()) => self.held = Some(folder),
            Err(std::fs::TryLockError::WouldBlock) => bail!(
                "{} is being written by another oasis run; wait for it, or give another folder with --output",
                self.path.display()
            ),
            // Some network file systems have no locks; a single run works there as well.
            Err(std::fs::TryLockError::Error(_)) => return Ok(()),
        }
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten().filter(is_temporary) {
            // Nobody reads it; if it can't be removed it only takes room.
            let _ = fs::remove_file(entry.path());
        }
        Ok(())
    }

    /// A run of the same name but another fingerprint is not what `--resume` means.
    fn refuse_others(&self, root: &Path, fingerprint: &str, name: &str) -> Result<()> {
        let Ok(entries) = fs::read_dir(root) else { return Ok(()) };
        let mut others = Vec::new();
        for entry in entries.flatten() {
            let parts = Self { path: entry.path(), held: None }.parts();
            if parts.as_ref().and_then(|p| p.get("name")).is_some_and(|n| n == name) {
                others.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        if others.is_empty() {
            return Ok(());
        }
        others.sort();
        bail!(
            "--resume: {} holds `{name}` as {}, and this run is {fingerprint}: configuration, data, weights or code differ \
             ({} says which); run without --resume to begin a new one",
            root.display(),
            others.join(", "),
            FINGERPRINT
        )
    }

    fn parts(&self) -> Option<BTreeMap<String, String>> {
        serde_json::from_str(&fs::read_to_string(self.path.join(FINGERPRINT)).ok()?).ok()
    }

    fn same_fingerprint(&self, fingerprint: &str) -> Result<()> {
        let held = self.parts().and_then(|mut p| p.remove("fingerprint"));
        match held {
            Some(held) if held != fingerprint => bail!(
                "{} holds a run with another fingerprint ({held}, this run is {fingerprint}); move it away or give another \
                 --output",
                self.path.display()
            ),
            None if !self.is_empty()? => bail!(
                "{} holds files but no {FINGERPRINT}: it is no run folder; move it away or give another --output",
                self.path.display()
            ),
            _ => Ok(()),
        }
    }

    fn is_empty(&self) -> Result<bool> {
        let entries = fs::read_dir(&self.path).with_context(|| format!("{}", self.path.display()))?;
        Ok(entries.flatten().all(|e| is_temporary(&e)))
    }

    fn clear(&self) -> Result<()> {
        for file in [RESULTS, SAMPLES, LAYERS, TIMINGS, CONFIG, ENVIRONMENT, FINGERPRINT] {
            match fs::remove_file(self.path.join(file)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e)
                        .with_context(|| format!("{}: can't be removed", self.path.join(file).display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A few words about what is there.
    fn state(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Head {
            status: Status,
            n_planned: u64,
            n_done: u64,
        }
        let text = fs::read_to_string(self.path.join(RESULTS)).unwrap_or_default();
        let samples = self.path.join(SAMPLES);
        let done = lines::<SampleRecord>(&samples).map_or(0, |l| l.len() as u64);
        match serde_json::from_str::<Head>(&text) {
            // The folder of a sweep has its records in folders below.
            Ok(head) if !samples.exists() => {
                format!("{:?}, {} of {} records", head.status, head.n_done, head.n_planned).to_uppercase()
            }
            Ok(head) => format!("{:?}, {done} of {} records", head.status, head.n_planned).to_uppercase(),
            Err(_) => format!("{done} records"),
        }
    }

    /// Writes a file through a temporary one, so that it is whole or not there.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        write_whole(&self.path.join(name), content)
    }

    /// Writes a value as JSON.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value).with_context(|| name.to_owned())?;
        text.push(b'\n');
        self.write(name, &text)
    }

    /// What is recorded. A torn last line, records of failures and records without their other files' lines are
    /// dropped, so that they are decoded again.
    pub fn recover(&self) -> Result<Records> {
        let mut records = self.read()?;
        records.samples.retain(|s| s.outcome == Outcome::Done);
        let mut seen = HashSet::new();
        records.samples.retain(|s| seen.insert((s.sample.clone(), s.cell.clone(), s.repeat)));
        let has = |s: &String, c: &String, r: u32| seen.contains(&(s.clone(), c.clone(), r));
        records.layers.retain(|l| has(&l.sample, &l.cell, l.repeat));
        records.timings.retain(|t| has(&t.sample, &t.cell, t.repeat));
        self.rewrite(&records)?;
        Ok(records)
    }

    /// All whole lines.
    pub fn read(&self) -> Result<Records> {
        Ok(Records {
            samples: lines(&self.path.join(SAMPLES))?,
            layers: lines(&self.path.join(LAYERS))?,
            timings: lines(&self.path.join(TIMINGS))?,
        })
    }

    /// Replaces the three files.
    pub fn rewrite(&self, records: &Records) -> Result<()> {
        self.write(LAYERS, &jsonl(&records.layers)?)?;
        self.write(TIMINGS, &jsonl(&records.timings)?)?;
        self.write(SAMPLES, &jsonl(&records.samples)?)
    }

    /// Opens the files for appending.
    pub fn append(&self) -> Result<Appender> {
        let open = |name: &str| {
            let path = self.path.join(name);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            Ok::<_, anyhow::Error>((file.with_context(|| format!("{}", path.display()))?, path))
        };
        Ok(Appender { samples: open(SAMPLES)?, layers: open(LAYERS)?, timings: open(TIMINGS)? })
    }
}

/// The open record files.
pub struct Appender {
    samples: (File, PathBuf),
    layers: (File, PathBuf),
    timings: (File, PathBuf),
}

impl Appender {
    /// Appends one unit. The sample's line goes last: it says that the others are there.
    ///
    /// # Errors
    /// The disk is full or fails. What was appended before stays and can be resumed.
    pub fn append(
        &mut self,
        sample: &SampleRecord,
        layers: &[LayerRecord],
        timing: Option<&TimingRecord>,
    ) -> Result<()> {
        put(&mut self.layers, &jsonl(layers)?)?;
        if let Some(timing) = timing {
            put(&mut self.timings, &jsonl(std::slice::from_ref(timing))?)?;
        }
        put(&mut self.samples, &jsonl(std::slice::from_ref(sample))?)
    }
}

fn put((file, path): &mut (File, PathBuf), bytes: &[u8]) -> Result<()> {
    file.write_all(bytes).and_then(|()| file.flush()).map_err(|e| {
        let full = e.kind() == std::io::ErrorKind::StorageFull;
        let way_out = if full { "free some space" } else { "mend that" };
        anyhow!("{}: {e}; what is recorded so far is kept: {way_out} and go on with --resume", path.display())
    })
}

/// The records of samples in a run's folder.
///
/// # Errors
/// A line that is no record of this version.
pub(crate) fn recorded_samples(dir: &Path) -> Result<Vec<SampleRecord>> {
    lines(&dir.join(SAMPLES))
}

fn jsonl<T: Serialize>(records: &[T]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for record in records {
        serde_json::to_writer(&mut out, record).context("a record can't be written as JSON")?;
        out.push(b'\n');
    }
    Ok(out)
}

/// The lines of a file; a last one without its end is dropped.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("{}", path.display())),
    };
    let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    let parse = |(i, line): (usize, &[u8])| {
        serde_json::from_slice(line).with_context(|| {
            let path = path.display();
            format!("{path}, line {}: no record of this version; --overwrite starts the run again", i + 1)
        })
    };
    text[..whole].split(|&b| b == b'\n').enumerate().filter(|(_, l)| !l.is_empty()).map(parse).collect()
}
