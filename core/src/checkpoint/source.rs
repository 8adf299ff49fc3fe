//! Bytes of a weights file: on disk, read by position, or already in memory.

use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file, or bytes that are treated like one. Nothing is mapped: mapping is unsafe, and a read by
/// position is as fast.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    bytes: Bytes,
    len: u64,
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Memory(Cow<'static, [u8]>),
}

/// Bytes that one read of [`Source::hash_into`] takes.
const HASH_PIECE: usize = 1 << 20;

impl Source {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |e| Error::io(path, e);
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(Error::format(path, "is no regular file"));
        }
        Ok(Self { path: path.to_owned(), bytes: Bytes::File(file), len: meta.len() })
    }

    /// Bytes in memory; `name` stands for the path in messages.
    pub fn memory(name: impl Into<PathBuf>, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        let bytes = bytes.into();
        Self { path: name.into(), len: bytes.len() as u64, bytes: Bytes::Memory(bytes) }
    }

    /// Path, or the name given to [`Source::memory`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` with the bytes from `at` on.
    pub fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let end = at.checked_add(out.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else {
            let what = format!("{} bytes wanted at {at}, the file has {}: truncated", out.len(), self.len);
            return Err(Error::format(&self.path, what));
        };
        match &self.bytes {
            Bytes::File(file) => file.read_exact_at(out, at).map_err(|e| Error::io(&self.path, e)),
            Bytes::Memory(bytes) => {
                out.copy_from_slice(&bytes[at as usize..end as usize]);
                Ok(())
            }
        }
    }

    /// The `len` bytes from `at` on; nothing is allocated when the file is shorter.
    pub fn read(&self, at: u64, len: usize) -> Result<Cow<'_, [u8]>> {
        if let Bytes::Memory(bytes) = &self.bytes
            && let Some(end) = (at as usize).checked_add(len)
            && let Some(slice) = bytes.get(at as usize..end)
        {
            return Ok(Cow::Borrowed(slice));
        }
        let fits = at.checked_add(len as u64).is_some_and(|end| end <= self.len);
        let mut out = vec![0; if fits { len } else { 0 }];
        if fits {
            self.read_into(at, &mut out)?;
            return Ok(Cow::Owned(out));
        }
        Err(Error::format(
            &self.path,
            format!("{len} bytes wanted at {at}, the file has {}: truncated", self.len),
        ))
    }

    /// Feeds every byte to `hash`.
    pub fn hash_into(&self, hash: &mut Sha256) -> Result<()> {
        if let Bytes::Memory(bytes) = &self.bytes {
            hash.update(bytes);
            return Ok(());
        }
        let mut piece = vec![0; HASH_PIECE.min(self.len as usize)];
        let mut at = 0;
        while at < self.len {
            let n = (self.len - at).min(HASH_PIECE as u64) as usize;
            self.read_into(at, &mut piece[..n])?;
            hash.update(&piece[..n]);
            at += n as u64;
        }
        Ok(())
    }
}

/// A finished hash in lower-case hex.
pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A whole small file, with a limit so that a wrong file is refused before it is read.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let source = Source::open(path)?;
    if source.len() > limit {
        let what = format!("{} bytes; a file of this kind has at most {limit}", source.len());
        return Err(Error::format(path, what));
    }
    Ok(source.read(0, source.len() as usize)?.into_owned())
}
