//! Files that are written as a whole or not at all.

use anyhow::{Context, Result};
use std::fs;
use std::io::Write;
use std::path::Path;

/// How the names of files begin that are not whole yet.
pub(crate) const TEMPORARY: &str = ".oasis-";

/// Writes a whole file or leaves what was there: a temporary file beside it is synced, then takes its name.
///
/// # Errors
/// The folder is not writable or the disk is full; names the file.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let failed = || format!("{}: cannot be written (is the disk full?)", path.display());
    let kept = fs::metadata(path).map(|m| m.permissions()).ok();
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir).with_context(failed)?;
    file.write_all(content).and_then(|()| file.as_file().sync_all()).with_context(failed)?;
    // A temporary file is private to its owner; records are as readable as any other file.
    #[cfg(unix)]
    let kept = kept.or_else(|| Some(std::os::unix::fs::PermissionsExt::from_mode(0o644)));
    if let Some(permissions) = kept {
        file.as_file().set_permissions(permissions).with_context(failed)?;
    }
    file.persist(path).map_err(|e| e.error).with_context(failed)?;
    Ok(())
}
