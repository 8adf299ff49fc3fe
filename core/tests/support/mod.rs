//! What the loader tests share: fixtures, a backend that is plain RAM, and a writer of small GGUF files.
#![allow(dead_code)] // each test binary uses its own part

use bytemuck::Pod;
use half::bf16;
use oasis_core::Result;
use oasis_core::model::Model;
use oasis_core::ops::{Memory, Usage};
use std::path::{Path, PathBuf};

pub mod gguf_writer;
pub mod mutate;

/// A folder of the committed small models.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)
}

/// The small models that are whole checkpoints.
pub const SMALL: [&str; 3] = ["llama3-tiny", "qwen2-tiny", "qwen3-tiny"];

/// A copy of a small model that a test may damage.
pub fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        std::fs::copy(fixture(name).join(file), copy.path().join(file)).unwrap();
    }
    copy
}

/// The SmolLM2 file where `oasis fetch smollm2` puts it, or at `OASIS_SMOLLM2`.
pub fn smollm2() -> Option<PathBuf> {
    let set = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let file = set("OASIS_SMOLLM2")
        .or_else(|| Some(cache()?.join("oasis/models/SmolLM2-135M-Instruct.Q4_1.gguf")))
        .filter(|f| f.exists());
    if file.is_none() {
        println!("SKIPPED: SmolLM2 is not in the cache; `oasis fetch smollm2` gets it");
    }
    file
}

/// A backend that only holds memory.
#[derive(Default)]
pub struct Ram;

impl Memory for Ram {
    type Buf<T: Pod + Send + Sync> = Vec<T>;
    type HostBuf<T: Pod + Send + Sync> = Vec<T>;

    fn alloc<T: Pod + Send + Sync>(&self, len: usize) -> Result<Vec<T>> {
        Ok(vec![T::zeroed(); len])
    }

    fn alloc_host<T: Pod + Send + Sync>(&self, len: usize) -> Result<Vec<T>> {
        self.alloc(len)
    }

    fn len<T: Pod + Send + Sync>(&self, buf: &Vec<T>) -> usize {
        buf.len()
    }

    fn write<T: Pod + Send + Sync>(&mut self, buf: &mut Vec<T>, at: usize, data: &[T]) -> Result<()> {
        buf[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read<T: Pod + Send + Sync>(&mut self, buf: &Vec<T>, at: usize, out: &mut [T]) -> Result<()> {
        out.copy_from_slice(&buf[at..at + out.len()]);
        Ok(())
    }

    fn copy<T: Pod + Send + Sync>(
        &mut self,
        from: &Vec<T>,
        at: usize,
        to: &mut Vec<T>,
        to_at: usize,
        n: usize,
    ) -> Result<()> {
        to[to_at..to_at + n].copy_from_slice(&from[at..at + n]);
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// Every number of a model, bit by bit, in one fixed order.
pub fn bits(model: &Model<Ram>) -> Vec<u32> {
    fn wide(m: &[bf16]) -> impl Iterator<Item = u32> + '_ {
        m.iter().map(|x| u32::from(x.to_bits()))
    }
    let mut out: Vec<u32> = wide(&model.embedding.weight).collect();
    let floats = |out: &mut Vec<u32>, v: &[f32]| out.extend(v.iter().map(|x| x.to_bits()));
    for l in &model.layers {
        for m in [&l.qkv, &l.out, &l.gate_up, &l.down] {
            out.extend(wide(&m.weight));
            floats(&mut out, m.bias.as_deref().unwrap_or_default());
        }
        for v in [Some(&l.attn_norm), Some(&l.mlp_norm), l.q_norm.as_ref(), l.k_norm.as_ref()]
            .into_iter()
            .flatten()
        {
            floats(&mut out, v);
        }
    }
    floats(&mut out, &model.final_norm);
    floats(&mut out, &model.inv_freq);
    out.extend(model.head.iter().flat_map(|h| wide(&h.weight)));
    out
}

/// A small deterministic generator for mutations (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}
