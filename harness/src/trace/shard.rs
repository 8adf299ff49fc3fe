//! One sequence of a trace as a safetensors file.

use crate::files::write_whole;
use crate::run::samples::hex;
use anyhow::{Context, Result, anyhow, bail};
use bytemuck::Pod;
use oasis_core::bf16;
use oasis_core::geometry::{Geometry, World};
use oasis_core::tape::{Masses, Tape};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Version of a shard's layout, under this key of its metadata.
const VERSION: (&str, &str) = ("oasis_trace", "1");

/// A sequence with its name and the length of its task, of which budgets may be a share.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// Name of the sample.
    pub sample: String,
    /// Tokens of prompt and answer as the task wants them.
    pub length: usize,
    /// What was recorded.
    pub tape: Tape,
}

/// Names, types and shapes of the tensors, in the order of [`Shard::bytes`].
fn shapes(t: &Tape) -> Vec<(&'static str, Dtype, Vec<usize>)> {
    let g = &t.geometry;
    let (steps, rows, prompt, entries) = (t.steps(), t.tokens.len(), t.prompt.len(), t.mass.blocks.len());
    let head = [g.heads, g.head_dim];
    vec![
        ("prompt_tokens", Dtype::U32, vec![prompt]),
        ("prompt_keys", Dtype::BF16, vec![g.layers, g.kv_heads, prompt, g.head_dim]),
        ("prompt_queries", Dtype::BF16, [&[g.layers][..], &head].concat()),
        ("row_first", Dtype::U32, vec![steps + 1]),
        ("tokens", Dtype::U32, vec![rows]),
        ("parents", Dtype::U32, vec![rows]),
        ("sampled", Dtype::U32, vec![rows]),
        ("forced", Dtype::U32, vec![steps]),
        ("queries", Dtype::BF16, [&[rows, g.layers][..], &head].concat()),
        ("keys", Dtype::BF16, vec![rows, g.layers, g.kv_heads, g.head_dim]),
        ("mass_first", Dtype::U32, vec![t.mass.first.len()]),
        ("mass_blocks", Dtype::U32, vec![entries]),
        ("mass_share", Dtype::F32, vec![entries]),
    ]
}

impl Shard {
    /// Writes the file as a whole; gives its size in bytes and its SHA-256 in hex.
    ///
    /// # Errors
    /// The folder is not writable, the disk is full.
    pub fn write(&self, path: &Path) -> Result<(u64, String)> {
        let bytes = self.bytes().with_context(|| path.display().to_string())?;
        write_whole(path, &bytes)?;
        Ok((bytes.len() as u64, hex(&Sha256::digest(&bytes))))
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let t = &self.tape;
        let data: [&[u8]; 13] = [
            cast(&t.prompt),
            cast(&t.prompt_keys),
            cast(&t.prompt_queries),
            cast(&t.row_first),
            cast(&t.tokens),
            cast(&t.parents),
            cast(&t.sampled),
            cast(&t.forced),
            cast(&t.queries),
            cast(&t.keys),
            cast(&t.mass.first),
            cast(&t.mass.blocks),
            cast(&t.mass.share),
        ];
        let views = shapes(t).into_iter().zip(data).map(|((name, dtype, shape), data)| {
            Ok((name, TensorView::new(dtype, shape, data).map_err(|e| anyhow!("{name}: {e}"))?))
        });
        let views: Vec<(&str, TensorView<'_>)> = views.collect::<Result<_>>()?;
        serialize(views, Some(self.metadata()?)).map_err(|e| anyhow!("{e}"))
    }

    fn metadata(&self) -> Result<HashMap<String, String>> {
        let t = &self.tape;
        let g = &t.geometry;
        let numbers = [
            ("layers", g.layers),
            ("heads", g.heads),
            ("kv_heads", g.kv_heads),
            ("head_dim", g.head_dim),
            ("vocab", g.vocab),
            ("max_positions", g.max_positions),
            ("length", self.length),
            ("first", t.first as usize),
            ("max_new", t.max_new),
        ];
        let mut all: HashMap<String, String> =
            numbers.iter().map(|(k, v)| ((*k).to_owned(), v.to_string())).collect();
        all.insert(VERSION.0.to_owned(), VERSION.1.to_owned());
        all.insert("sample".to_owned(), self.sample.clone());
        all.insert("seed".to_owned(), t.seed.to_string());
        Ok(all)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// No such file, no safetensors, no shard of this version, tensors that do not fit together; names the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{}: is no shard of a trace", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| anyhow!("{e}"))?;
        let meta: BTreeMap<String, String> =
            header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        match meta.get(VERSION.0).map(String::as_str) {
            Some(v) if v == VERSION.1 => {}
            Some(v) => {
                bail!("{} is {v}, this program reads {}; use the Oasis that wrote it", VERSION.0, VERSION.1)
            }
            None => bail!("its metadata has no `{}`", VERSION.0),
        }
        let tensors = SafeTensors::deserialize(bytes).map_err(|e| anyhow!("{e}"))?;
        let number = |key: &str| -> Result<usize> {
            let text = meta.get(key).with_context(|| format!("its metadata has no `{key}`"))?;
            text.parse().with_context(|| format!("`{key}` in its metadata is `{text}`, no whole number"))
        };
        let geometry = Geometry {
            layers: number("layers")?,
            hidden: 0,
            intermediate: 0,
            heads: number("heads")?,
            kv_heads: number("kv_heads")?,
            head_dim: number("head_dim")?,
            vocab: number("vocab")?,
            max_positions: number("max_positions")?,
            world: World::default(),
        };
        let first = u32::try_from(number("first")?).context("`first` is no token")?;
        let seed =
            meta.get("seed").and_then(|s| s.parse().ok()).context("`seed` in its metadata is no number")?;
        let mut tape =
            Tape::new(geometry, elements(&tensors, "prompt_tokens")?, first, number("max_new")?, seed);
        fill(&tensors, &mut tape)?;
        tape.check()?;
        for (name, dtype, shape) in shapes(&tape) {
            let view = tensors.tensor(name).map_err(|e| anyhow!("{name}: {e}"));
            // Tensors of a mass that was not recorded may be left out.
            let Ok(view) = view else { continue };
            if (view.dtype(), view.shape()) != (dtype, &shape[..]) {
                bail!("{name} is {:?} {:?}; it should be {dtype:?} {shape:?}", view.dtype(), view.shape());
            }
        }
        let sample = meta.get("sample").cloned().unwrap_or_default();
        Ok(Self { sample, length: number("length")?, tape })
    }
}

fn fill(tensors: &SafeTensors<'_>, tape: &mut Tape) -> Result<()> {
    tape.prompt_keys = elements(tensors, "prompt_keys")?;
    tape.prompt_queries = elements(tensors, "prompt_queries")?;
    tape.row_first = elements(tensors, "row_first")?;
    tape.tokens = elements(tensors, "tokens")?;
    tape.parents = elements(tensors, "parents")?;
    tape.sampled = elements(tensors, "sampled")?;
    tape.forced = elements(tensors, "forced")?;
    tape.queries = elements(tensors, "queries")?;
    tape.keys = elements(tensors, "keys")?;
    if tensors.tensor("mass_first").is_ok() {
        tape.mass = Masses {
            first: elements(tensors, "mass_first")?,
            blocks: elements(tensors, "mass_blocks")?,
            share: elements(tensors, "mass_share")?,
        };
    }
    Ok(())
}

/// The bytes of an array; shards are little-endian, as are the machines that Oasis runs on.
fn cast<T: Pod>(data: &[T]) -> &[u8] {
    bytemuck::cast_slice(data)
}

/// The elements of a tensor, whose type must be that of `T`.
fn elements<T: Element>(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<T>> {
    let view = tensors.tensor(name).map_err(|_| anyhow!("it has no tensor `{name}`"))?;
    if view.dtype() != T::DTYPE {
        bail!("{name} is {:?}; it should be {:?}", view.dtype(), T::DTYPE);
    }
    Ok(bytemuck::pod_collect_to_vec(view.data()))
}

/// What tensors of a shard are made of.
trait Element: Pod {
    const DTYPE: Dtype;
}

impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;
}
