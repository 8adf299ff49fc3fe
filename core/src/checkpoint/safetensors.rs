//! The safetensors format: an 8-byte length, a JSON table, then the data.
//!
//! The table is read here and not by the `safetensors` crate because only the table should be read, and
//! because an error should name the file and the tensor.

use super::dtype::Dtype;
use super::source::Source;
use super::tensors::Entry;
use crate::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Largest table; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A table row, or the free-text `__metadata__`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Item {
    Row(Row),
    #[allow(dead_code, reason = "read only to check that it is a table of texts")]
    Metadata(BTreeMap<String, String>),
}

/// The tensors of one file, which becomes number `file` of its checkpoint.
pub fn entries(source: &Source, file: usize) -> Result<BTreeMap<String, Entry>> {
    let bad = |what: String| Error::format(source.path(), what);
    let total = source.len();
    if total < 8 {
        return Err(bad(format!("{total} bytes are too few for a safetensors file")));
    }
    let mut length = [0; 8];
    source.read_into(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > total - 8 {
        let limit = MAX_HEADER.min(total - 8);
        return Err(bad(format!(
            "header of {length} bytes, at most {limit} are possible: no safetensors file, or truncated"
        )));
    }
    let header = source.read(8, length as usize)?;
    let table: BTreeMap<String, Item> =
        serde_json::from_slice(&header).map_err(|e| bad(format!("header is no table of tensors: {e}")))?;
    let data = 8 + length;
    let mut entries = BTreeMap::new();
    for (name, item) in table {
        match item {
            Item::Metadata(_) if name == "__metadata__" => {}
            Item::Row(row) => {
                let entry = entry(&name, row, data, total, file).map_err(bad)?;
                entries.insert(name, entry);
            }
            Item::Metadata(_) => return Err(bad(format!("tensor `{name}` has no dtype, shape and offsets"))),
        }
    }
    seamless(&entries, data, total).map_err(bad)?;
    Ok(entries)
}

fn entry(name: &str, row: Row, data: u64, total: u64, file: usize) -> Result<Entry, String> {
    let Some(dtype) = Dtype::from_safetensors(&row.dtype) else {
        return Err(format!("tensor `{name}` is {}; known: BF16, F16, F32", row.dtype));
    };
    let (begin, end) = row.data_offsets;
    let elements = row.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    let wanted = elements.and_then(|n| dtype.bytes(n));
    if begin > end || wanted != Some(end - begin) {
        let wanted = wanted.map_or("more than 2^64".to_owned(), |n| n.to_string());
        return Err(format!(
            "tensor `{name}`: shape {:?} in {} takes {wanted} bytes, its offsets are {begin}..{end}",
            row.shape, row.dtype
        ));
    }
    if end > total - data {
        let have = total - data;
        return Err(format!(
            "tensor `{name}` ends at byte {end} of the data, the file has {have}: truncated"
        ));
    }
    let shape = row.shape.iter().map(|d| *d as usize).collect();
    Ok(Entry { dtype, shape, file, at: data + begin, bytes: end - begin })
}

/// The data has no holes, no overlaps and nothing behind it, as the format demands.
fn seamless(entries: &BTreeMap<String, Entry>, data: u64, total: u64) -> Result<(), String> {
    let mut order: Vec<(u64, u64, &str)> =
        entries.iter().map(|(name, e)| (e.at, e.at + e.bytes, name.as_str())).collect();
    order.sort_unstable();
    let mut at = data;
    for (begin, end, name) in order {
        if begin != at {
            let what = if begin < at { "overlaps the tensor before it" } else { "leaves a hole before it" };
            return Err(format!("tensor `{name}` at byte {begin} {what} (which ends at {at})"));
        }
        at = end;
    }
    if at != total {
        return Err(format!("the last tensor ends at byte {at}, the file has {total}"));
    }
    Ok(())
}
