//! The model that is measured: real weights, or a configuration with random ones.

use crate::run::model::{self, Opened};
use anyhow::{Context, Result};
use oasis_core::checkpoint::Checkpoint;
use oasis_core::model::{Model, ModelConfig};
use oasis_core::ops::Fill;
use oasis_core::synthetic;
use std::path::Path;

/// A model before it is on a backend.
pub struct Shape {
    /// Its name in reports.
    pub name: String,
    /// Its configuration.
    pub config: ModelConfig,
    /// Its weights, unless they are drawn.
    pub opened: Option<Opened>,
    /// What differs from the configuration as it was read.
    pub note: Option<String>,
}

impl Shape {
    /// Opens a model, or reads a configuration. A synthetic model gets as many positions as `positions`.
    ///
    /// # Errors
    /// No such file, a family that the loop does not know.
    pub fn open(model: Option<&str>, shape: Option<&Path>, positions: usize) -> Result<Self> {
        let Some(path) = shape else {
            let opened = model::open(model.unwrap_or(model::NANO))?;
            let (name, config) = (opened.name.clone(), opened.checkpoint.config.clone());
            return Ok(Self { name, config, opened: Some(opened), note: None });
        };
        let mut config = Checkpoint::config_only(path).context("--shape")?;
        let own = config.geometry.max_positions;
        config.geometry.max_positions = own.max(positions);
        let note = (positions > own)
            .then(|| format!("the configuration has {own} positions; {positions} were taken instead"));
        let parent =
            |p: &Path| p.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let stem = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let name = if stem == "config" { parent(path).unwrap_or(stem) } else { stem };
        Ok(Self { name, config, opened: None, note })
    }

    /// Whether the weights are drawn.
    pub fn synthetic(&self) -> bool {
        self.opened.is_none()
    }

    /// Puts the weights on a backend.
    ///
    /// # Errors
    /// If there is no memory for them, or a file cannot be read.
    pub fn build<B: Fill>(&self, backend: &mut B, seed: u64) -> Result<Model<B>> {
        Ok(match &self.opened {
            Some(opened) => opened.checkpoint.build(backend)?,
            None => synthetic::model(backend, self.config.clone(), seed)?,
        })
    }
}

/// Bytes of the weights as they lie on a backend: matrices in bf16, norms, biases and the frequencies of RoPE in f32.
pub fn weights_bytes(config: &ModelConfig) -> usize {
    let g = &config.geometry;
    let layer = g.hidden * (g.qkv_dim() + g.q_dim() + 3 * g.intermediate);
    let tables = if config.tied_embeddings { 1 } else { 2 };
    let vectors = 2 * g.hidden
        + if config.qkv_bias { g.qkv_dim() } else { 0 }
        + if config.qk_norm { 2 * g.head_dim } else { 0 };
    let matrices = tables * g.vocab * g.hidden + g.layers * layer;
    2 * matrices + 4 * (g.layers * vectors + g.hidden + g.head_dim / 2)
}

/// Bytes of the weights that every step reads: all but the embedding table, of which it reads a row a token.
pub fn step_weights(config: &ModelConfig) -> usize {
    let g = &config.geometry;
    let table = if config.tied_embeddings { 0 } else { 2 * g.vocab * g.hidden };
    weights_bytes(config) - table
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::model::Family;
    use oasis_core::ops::Memory;
    use oasis_kernels::Cpu;

    /// nano's configuration as another family.
    fn config(family: Family) -> ModelConfig {
        let mut config = model::open(model::NANO).unwrap().checkpoint.config;
        config.family = family;
        (config.qkv_bias, config.qk_norm) = (family == Family::Qwen2, family == Family::Qwen3);
        config.tied_embeddings = family == Family::Llama;
        config
    }

    #[test]
    fn weights_are_counted_as_they_are_allocated() {
        for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
            let (config, mut cpu) = (config(family), Cpu::new(2));
            let held = synthetic::model(&mut cpu, config.clone(), 1).unwrap();
            assert_eq!(cpu.usage().device, weights_bytes(&config), "{family:?}");
            drop(held);
            assert_eq!(cpu.usage().device, 0);
        }
    }
}
