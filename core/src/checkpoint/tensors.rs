//! Named tensors in one or several files, whatever the format.

use super::dtype::Dtype;
use super::source::Source;
use crate::{Error, Result};
use half::bf16;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Storage format.
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Which of the files.
    pub file: usize,
    /// Its first byte there.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Entry {
    /// Elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Columns: the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// In which order the rows of a head are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As the ops want them: RoPE rotates rows `i` and `i + head_dim / 2`.
    Halves,
    /// As llama.cpp stores Llama's Q and K: RoPE rotates rows `2 i` and `2 i + 1`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
}

impl RowOrder {
    /// The stored row that becomes row `row`, counted within a head.
    fn stored(self, row: usize) -> usize {
        match self {
            Self::Halves => row,
            Self::Interleaved { head_dim } => {
                let half = head_dim / 2;
                2 * (row % half) + row / half
            }
        }
    }

    /// Rows that are read together: whole heads where rows change places.
    fn piece_rows(self, cols: usize) -> usize {
        match self {
            Self::Halves => ((1 << 18) / cols.max(1)).max(1),
            Self::Interleaved { head_dim } => head_dim,
        }
    }
}

/// Tensors by name.
#[derive(Debug)]
pub struct Tensors {
    pub(super) files: Vec<Source>,
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Tensors {
    /// Names and places, sorted by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// The file that holds a tensor, or the first file.
    pub(super) fn path_of(&self, entry: Option<&Entry>) -> &Path {
        self.files[entry.map_or(0, |e| e.file)].path()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Result<&Entry> {
        let what = || Error::format(self.path_of(None), format!("tensor `{name}` is missing"));
        self.entries.get(name).ok_or_else(what)
    }

    /// A whole tensor as f32, row-major.
    pub fn f32(&self, name: &str) -> Result<Vec<f32>> {
        let entry = self.get(name)?;
        let bytes = self.files[entry.file].read(entry.at, entry.bytes as usize)?;
        let mut out = vec![0.0; entry.elements()];
        entry.dtype.decode_f32(&bytes, &mut out);
        Ok(out)
    }

    /// Rows `first..` of a matrix as bf16; `out` holds whole rows, and whole heads where `order` moves rows.
    pub fn rows_bf16(&self, entry: &Entry, first: usize, order: RowOrder, out: &mut [bf16]) -> Result<()> {
        let cols = entry.cols();
        if cols == 0 {
            return Ok(());
        }
        let row_bytes = entry.bytes as usize / (entry.elements() / cols).max(1);
        let (file, rows) = (&self.files[entry.file], order.piece_rows(cols));
        out.par_chunks_mut(rows * cols).enumerate().try_for_each(|(piece, out)| {
            let at = entry.at + ((first + piece * rows) * row_bytes) as u64;
            let bytes = file.read(at, out.len() / cols * row_bytes)?;
            for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                entry.dtype.decode_bf16(&bytes[order.stored(row) * row_bytes..][..row_bytes], out);
            }
            Ok(())
        })
    }
}
