//! Any other summary in 8- or 4-bit codes with a scale of its own for each vector and direction of rounding.
//!
//! What the inner summary rounds outward stays rounded outward, so its bound stays a bound. Measured for this
//! project on SmolLM2-135M: min/max at 8 bits selects as well as in bf16, at 4 bits nearly.

use crate::SUMMARIES;
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{DeviceSummary, Keys, Summary, SummaryShape};
use oasis_core::registry::{Entry, Param, Params, SummaryEntry, find};
use oasis_core::settings::Group;
use oasis_core::storage::Storage;
use oasis_core::{Error, Result};
use serde::Deserialize;

/// The row.
pub const ENTRY: SummaryEntry = Entry {
    name: "quantized",
    about: "Another summary in 8- or 4-bit codes; bounds stay bounds.",
    version: 1,
    params: &[
        Param {
            name: "inner",
            about: "The summary: a name, or a table with `name` and its own keys.",
            default: "\"minmax\"",
        },
        Param { name: "bits", about: "Bits a coordinate: 8 or 4.", default: "8" },
    ],
    build,
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    inner: toml::Value,
    bits: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { inner: toml::Value::String("minmax".into()), bits: 8 }
    }
}

/// See the module.
pub struct Quantized {
    inner: Box<dyn Summary>,
    bits: u8,
}

fn build(params: &Params) -> Result<Box<dyn Summary>> {
    let Options { inner, bits } = params.parse("quantized")?;
    if !matches!(bits, 4 | 8) {
        return Err(Error::setting("quantized.bits", format!("{bits} bits a coordinate; use 8 or 4")));
    }
    let (name, table) = name_and_table(inner)?;
    if name == ENTRY.name {
        return Err(Error::setting(
            "quantized.inner",
            "`quantized` cannot hold itself; name another summary",
        ));
    }
    let entry = find("summary", SUMMARIES, &name)?;
    let inner = (entry.build)(&Params { table, seed: params.seed })?;
    // Which storage a summary asks for does not hang on the block's shape.
    if let Storage::Normal { .. } = inner.shape(BlockShape { tokens: 16, head_dim: 64 }).storage {
        let what = format!("`{name}` has codes of its own; use `{name}` itself and set `{name}.bits`");
        return Err(Error::setting("quantized.inner", what));
    }
    Ok(Box::new(Quantized { inner, bits }))
}

/// `"minmax"` or `{ name = "minmax", … }`.
fn name_and_table(inner: toml::Value) -> Result<(String, toml::Table)> {
    let wrong = |what: String| Error::setting("quantized.inner", what);
    match inner {
        toml::Value::String(name) => Ok((name, toml::Table::new())),
        toml::Value::Table(mut table) => match table.remove("name") {
            Some(toml::Value::String(name)) => Ok((name, table)),
            Some(other) => Err(wrong(format!("`name` is a string, not {}", other.type_str()))),
            None => Err(wrong("a table needs the key `name`, the summary's".into())),
        },
        other => Err(wrong(format!("a summary's name or a table with `name`, not {}", other.type_str()))),
    }
}

impl Summary for Quantized {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        SummaryShape { storage: Storage::Affine { bits: self.bits }, ..self.inner.shape(block) }
    }

    fn fit_len(&self, block: BlockShape) -> usize {
        self.inner.fit_len(block)
    }

    fn fit(&self, keys: Keys<'_>, out: &mut [f32]) {
        self.inner.fit(keys, out);
    }

    fn encode(&self, fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        self.inner.encode(fit, keys, out);
    }

    fn lift(&self, fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        self.inner.lift(fit, query, out)
    }

    fn device(&self, block: BlockShape) -> Option<DeviceSummary> {
        self.inner.device(block)
    }

    fn group(&self) -> Group {
        self.inner.group()
    }

    fn is_upper_bound(&self) -> bool {
        self.inner.is_upper_bound()
    }
}
