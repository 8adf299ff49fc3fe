//! The GGUF container: header, metadata, tensor table (ggml `docs/gguf.md`, versions 2 and 3).
//!
//! Every count and length is checked against the bytes that are left before anything is allocated, and
//! arrays stay in the file until they are asked for.

use super::dtype::Dtype;
use super::source::Source;
use super::tensors::Entry;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Longest key and tensor name, in bytes, that the format allows.
const MAX_NAME: u64 = 65_535;
/// Deepest nesting of arrays that is followed.
const MAX_DEPTH: usize = 4;
/// Bytes that are read ahead.
const WINDOW: usize = 1 << 16;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Any float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// An array that is still in the file.
    Array(Array),
}

/// An array in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    kind: u32,
    /// Elements.
    pub count: u64,
    at: u64,
    end: u64,
}

/// A parsed file.
#[derive(Debug)]
pub struct Gguf {
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by GGUF name.
    pub entries: BTreeMap<String, Entry>,
}

/// Reads the file piece by piece, never past its end.
struct Cursor<'a> {
    source: &'a Source,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Cursor<'a> {
    fn new(source: &'a Source, at: u64) -> Self {
        Self { source, at, window: Vec::new(), window_at: at }
    }

    fn left(&self) -> u64 {
        self.source.len() - self.at
    }

    fn bad(&self, what: impl std::fmt::Display) -> Error {
        Error::format(self.source.path(), format!("GGUF, byte {}: {what}", self.at))
    }

    /// Fails unless `count` items of at least `least` bytes each can still follow.
    fn room(&self, what: &str, count: u64, least: u64) -> Result<()> {
        if count > self.left() / least {
            let left = self.left();
            let least = if least == 1 { "a byte".to_owned() } else { format!("{least} bytes") };
            let what = format!(
                "{count} {what} of at least {least} each, {left} bytes are left: truncated or damaged"
            );
            return Err(self.bad(what));
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) {
        self.at += bytes;
    }

    fn take(&mut self, len: usize) -> Result<&[u8]> {
        self.room("bytes", len as u64, 1)?;
        let (mut from, held) = (self.at.wrapping_sub(self.window_at), self.window.len() as u64);
        if self.at < self.window_at || from + len as u64 > held {
            let fill = (WINDOW.max(len) as u64).min(self.left()) as usize;
            self.window.resize(fill, 0);
            self.source.read_into(self.at, &mut self.window)?;
            (self.window_at, from) = (self.at, 0);
        }
        self.at += len as u64;
        Ok(&self.window[from as usize..][..len])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, what: &str, limit: u64) -> Result<String> {
        let len = self.u64()?;
        self.room(what, len, 1)?;
        if len > limit {
            return Err(self.bad(format!("{what} is {len} long, the format's limit is {limit}")));
        }
        let bytes = self.take(len as usize)?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.bad(format!("{what} is no UTF-8")))
    }

    /// Reads a value; of an array only its place.
    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text("bytes of a string", u64::MAX)?),
            9 => Value::Array(self.skip_array(0)?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(self.bad(format!("value type {kind} is none of 0..=12"))),
        })
    }

    fn skip_array(&mut self, depth: usize) -> Result<Array> {
        if depth == MAX_DEPTH {
            return Err(self.bad(format!("arrays nested deeper than {MAX_DEPTH}")));
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        let at = self.at;
        match kind {
            0 | 1 | 7 => self.skip_items(count, 1)?,
            2 | 3 => self.skip_items(count, 2)?,
            4..=6 => self.skip_items(count, 4)?,
            10..=12 => self.skip_items(count, 8)?,
            8 => {
                self.room("strings of an array", count, 8)?;
                for _ in 0..count {
                    let len = self.u64()?;
                    self.skip_items(len, 1)?;
                }
            }
            9 => {
                self.room("arrays of an array", count, 12)?;
                for _ in 0..count {
                    self.skip_array(depth + 1)?;
                }
            }
            _ => return Err(self.bad(format!("array of type {kind}, none of 0..=12"))),
        }
        Ok(Array { kind, count, at, end: self.at })
    }

    fn skip_items(&mut self, count: u64, size: u64) -> Result<()> {
        self.room("items of an array", count, size)?;
        self.skip(count * size);
        Ok(())
    }
}

impl Gguf {
    /// Reads everything but the data and the arrays.
    pub fn parse(source: &Source) -> Result<Self> {
        let mut cursor = Cursor::new(source, 0);
        let magic: [u8; 4] = cursor.array()?;
        if magic != *b"GGUF" {
            let what = format!(
                "is no GGUF file: it starts with {:?}, not with \"GGUF\". \
                 A Hugging Face model is given as its folder",
                String::from_utf8_lossy(&magic)
            );
            return Err(Error::format(source.path(), what));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            let hint = if version.swap_bytes() <= 3 { " (a big-endian file)" } else { "" };
            let path = source.path().display();
            return Err(Error::Unsupported(format!("{path}: GGUF version {version}{hint}; known: 2, 3")));
        }
        let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
        cursor.room("metadata keys", keys, 13)?;
        cursor.room("tensors", tensors, 32)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let key = cursor.text("bytes of a key", MAX_NAME)?;
            let kind = cursor.u32()?;
            let value = cursor.value(kind)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(cursor.bad(format!("key `{key}` appears twice")));
            }
        }
        let entries = table(&mut cursor, tensors, &metadata)?;
        Ok(Self { metadata, entries })
    }
}

/// The tensor table; places are still relative to the data section until its start is known.
fn table(
    cursor: &mut Cursor<'_>,
    tensors: u64,
    metadata: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Entry>> {
    let align = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 16 => *n,
        Some(other) => {
            return Err(cursor.bad(format!("general.alignment is {other:?}, no power of two up to 65536")));
        }
    };
    let mut entries = BTreeMap::new();
    for _ in 0..tensors {
        let (name, entry) = row(cursor, align)?;
        if entries.insert(name.clone(), entry).is_some() {
            return Err(cursor.bad(format!("tensor `{name}` appears twice")));
        }
    }
    let data = cursor.at.next_multiple_of(align);
    let bad = |what: String| Error::format(cursor.source.path(), what);
    let have = cursor.source.len().saturating_sub(data);
    for (name, entry) in &mut entries {
        let end = entry.at.checked_add(entry.bytes).filter(|end| *end <= have);
        let (at, bytes) = (entry.at, entry.bytes);
        end.ok_or_else(|| {
            bad(format!("tensor `{name}`: {bytes} bytes at {at} of the data, the file has {have}: truncated"))
        })?;
        entry.at += data;
    }
    no_overlap(&entries).map_err(bad)?;
    Ok(entries)
}

fn row(cursor: &mut Cursor<'_>, align: u64) -> Result<(String, Entry)> {
    let name = cursor.text("bytes of a tensor name", MAX_NAME)?;
    let dims = cursor.u32()?;
    if !(1..=4).contains(&dims) {
        return Err(cursor.bad(format!("tensor `{name}` has {dims} dimensions; 1 to 4 are possible")));
    }
    let mut sizes = Vec::with_capacity(4);
    for _ in 0..dims {
        sizes.push(cursor.u64()?);
    }
    let id = cursor.u32()?;
    let Some(dtype) = Dtype::from_ggml(id) else {
        let (path, kind) = (cursor.source.path().display(), ggml_type_name(id));
        return Err(Error::Unsupported(format!(
            "{path}: tensor `{name}` is {kind}; known: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K. \
             Requantise the file, or use the model's Hugging Face folder"
        )));
    };
    let elements = sizes.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).filter(|n| *n > 0);
    let whole_rows = sizes[0].is_multiple_of(dtype.block() as u64);
    let Some(bytes) = elements.and_then(|n| dtype.bytes(n)).filter(|_| whole_rows) else {
        let block = dtype.block();
        return Err(
            cursor.bad(format!("tensor `{name}`: sizes {sizes:?}, {dtype:?} comes in rows of {block}"))
        );
    };
    let at = cursor.u64()?;
    if !at.is_multiple_of(align) {
        return Err(cursor.bad(format!("tensor `{name}` at {at}, the file's alignment is {align}")));
    }
    let shape = sizes.iter().rev().map(|d| *d as usize).collect();
    Ok((name, Entry { dtype, shape, file: 0, at, bytes }))
}

fn no_overlap(entries: &BTreeMap<String, Entry>) -> Result<(), String> {
    let mut order: Vec<(u64, u64, &str)> =
        entries.iter().map(|(name, e)| (e.at, e.at + e.bytes, name.as_str())).collect();
    order.sort_unstable();
    match order.windows(2).find(|w| w[1].0 < w[0].1) {
        Some(w) => Err(format!("tensors `{}` and `{}` overlap", w[0].2, w[1].2)),
        None => Ok(()),
    }
}

/// Names of the ggml types that Oasis does not read, for messages.
fn ggml_type_name(id: u32) -> String {
    let name = match id {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        13 => "Q5_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24..=28 => "an integer or F64 type",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("of ggml type {id}"),
    };
    name.to_owned()
}

impl Array {
    /// Calls `each` for every string of the array.
    pub fn strings(
        &self,
        source: &Source,
        key: &str,
        mut each: impl FnMut(String) -> Result<()>,
    ) -> Result<()> {
        if self.kind != 8 {
            return Err(Error::format(source.path(), format!("`{key}` is no array of strings")));
        }
        let mut cursor = Cursor::new(source, self.at);
        for _ in 0..self.count {
            each(cursor.text(key, u64::MAX)?)?;
        }
        Ok(())
    }

    /// The numbers of an integer array.
    pub fn integers(&self, source: &Source, key: &str) -> Result<Vec<i64>> {
        let mut cursor = Cursor::new(source, self.at);
        if !matches!(self.kind, 0..=5 | 10 | 11) {
            return Err(Error::format(source.path(), format!("`{key}` is no array of integers")));
        }
        let mut out = Vec::new();
        for _ in 0..self.count {
            out.push(match cursor.value(self.kind)? {
                Value::Unsigned(n) => i64::try_from(n).unwrap_or(i64::MAX),
                Value::Signed(n) => n,
                _ => 0,
            });
        }
        Ok(out)
    }

    /// The raw bytes, for a digest.
    pub fn bytes<'a>(&self, source: &'a Source) -> Result<std::borrow::Cow<'a, [u8]>> {
        source.read(self.at, (self.end - self.at) as usize)
    }
}
