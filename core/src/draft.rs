//! Draft sources: who guesses the next tokens.

use crate::Result;
use crate::model::Model;
use crate::ops::Backend;
use crate::registry::Params;
use std::sync::Arc;

/// Draft tokens as a small tree below the newest accepted token (row 0).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftTree {
    /// Tokens of rows 1, 2, ...
    pub tokens: Vec<u32>,
    /// Parent row of each, smaller than its own row; 0 is the newest accepted token.
    pub parents: Vec<u32>,
}

impl DraftTree {
    /// A chain: every token follows the one before.
    pub fn chain(tokens: Vec<u32>) -> Self {
        let parents = (0..tokens.len() as u32).collect();
        Self { tokens, parents }
    }
}

/// How far a draft may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftShape {
    /// Tokens in a row.
    pub depth: usize,
    /// Alternatives for the first position.
    pub branches: usize,
}

/// The target model as a draft source may use it.
pub trait Target<B: Backend> {
    /// Logits `[vocab]` after the first `layers` layers, the final norm and the head, for the last token of
    /// `path`; `path[0]` is the newest accepted token, the others follow it as a chain. Attention reads what
    /// is resident now. Nothing of it stays in the cache.
    fn shallow_logits(&mut self, backend: &mut B, path: &[u32], layers: usize) -> Result<Vec<f32>>;
    /// The target's embedding rows and head, for drafts that share them.
    fn model(&self) -> &Model<B>;
}

/// What a draft source sees when it proposes.
pub struct DraftView<'a> {
    /// All accepted tokens, the newest last.
    pub tokens: &'a [u32],
    /// Residual rows leaving the layers of [`Draft::hidden_layers`], for the tokens that were processed since the
    /// last proposal (at the first one: the whole prompt), `[new][layers asked for][hidden]`. The newest
    /// accepted token has not been processed yet: the last row belongs to the token before it.
    pub hidden: &'a [f32],
    /// Wanted size.
    pub shape: DraftShape,
    /// Tokens that will be accepted next, where the caller knows them (teacher forcing, ideal drafts).
    pub future: &'a [u32],
}

/// Proposes the tokens that follow the newest accepted one. One instance a sequence.
pub trait Draft<B: Backend>: Send {
    /// Layers (0-based) whose output rows [`DraftView::hidden`] must hold.
    fn hidden_layers(&self) -> &[usize] {
        &[]
    }

    /// It needs [`DraftView::future`]; an experiment with it is labelled.
    fn is_ideal(&self) -> bool {
        false
    }

    /// A tree within `view.shape`; empty: no idea.
    fn propose(
        &mut self,
        backend: &mut B,
        target: &mut dyn Target<B>,
        view: &DraftView<'_>,
    ) -> Result<DraftTree>;
}

/// Files of a draft head that the program carries.
#[derive(Debug, Clone, Copy)]
pub struct BundledHead {
    /// Its `config.json`.
    pub config: &'static [u8],
    /// Its safetensors file.
    pub weights: &'static [u8],
}

/// What the constructor of a draft source gets.
pub struct DraftSetup<'a, B: Backend> {
    /// The source's own table.
    pub params: &'a Params,
    /// Weights go to this backend.
    pub backend: &'a mut B,
    /// The target model.
    pub model: &'a Model<B>,
    /// The EAGLE-3 head that `path = "bundled"` means, if the program has one for this model.
    pub bundled_eagle3: Option<BundledHead>,
}

/// Makes the instances of a draft source, one a sequence, each from a seed of its own. Weights are loaded
/// when the factory is made; the instances share them.
pub type DraftFactory<B> = Arc<dyn Fn(u64) -> Result<Box<dyn Draft<B>>> + Send + Sync>;
