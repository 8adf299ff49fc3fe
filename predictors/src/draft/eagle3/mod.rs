//! EAGLE-3: one decoder layer over the target's fused hidden rows (Li et al., arXiv 2503.01840).
//!
//! At position t the head reads the embedding of token t + 1 and `fc` of the target's residual rows at position
//! t, and predicts token t + 2. For a deeper guess its own output row, before the norm, takes the place of
//! the `fc` output, one position further.

mod files;
mod forward;
mod head;
mod tensors;

#[cfg(test)]
mod tests;

pub use head::Head;

use super::{top, tree};
use files::Files;
use forward::Sequence;
use oasis_core::draft::{Draft, DraftFactory, DraftSetup, DraftTree, DraftView, Target};
use oasis_core::model::Model;
use oasis_core::ops::Backend;
use oasis_core::registry::{DraftEntry, Param};
use oasis_core::{Error, Result};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

const NAME: &str = "eagle3";

/// The row of the table.
pub const fn entry<B: Backend>() -> DraftEntry<B> {
    DraftEntry {
        name: NAME,
        about: "An EAGLE-3 head: one layer over the model's hidden rows (arXiv 2503.01840), native format.",
        version: 1,
        params: &[
            Param {
                name: "path",
                about: "Folder or safetensors file of the head; `bundled` is the bundled model's.",
                default: "\"bundled\"",
            },
            Param {
                name: "max_positions",
                about: "Positions the head may be used for; 0: as its config says.",
                default: "0",
            },
        ],
        build,
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    path: String,
    max_positions: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { path: "bundled".into(), max_positions: 0 }
    }
}

fn build<B: Backend>(setup: DraftSetup<'_, B>) -> Result<DraftFactory<B>> {
    let config: Config = setup.params.parse(NAME)?;
    let files = match (config.path.as_str(), setup.bundled_eagle3) {
        ("bundled", Some(head)) => Files::bundled(head),
        ("bundled", None) => {
            let what =
                "is \"bundled\", but the program carries no head for this model; give the folder of one";
            return Err(Error::setting("eagle3.path", what));
        }
        (path, _) => Files::open(Path::new(path))?,
    };
    let mut head = files.load(setup.backend, setup.model)?;
    if config.max_positions > 0 {
        head.set_max_positions(config.max_positions);
    }
    let head = Arc::new(head);
    Ok(Arc::new(move |_| Ok(Box::new(Eagle3::new(head.clone())) as Box<dyn Draft<B>>)))
}

/// The head at work on one sequence. The weights are shared.
pub struct Eagle3<B: Backend> {
    head: Arc<Head<B>>,
    sequence: Option<Sequence<B>>,
}

impl<B: Backend> Eagle3<B> {
    /// For a new sequence.
    pub fn new(head: Arc<Head<B>>) -> Self {
        Self { head, sequence: None }
    }

    /// A head whose files are in memory, `config_json` and the bytes of a safetensors file, for `model`.
    ///
    /// # Errors
    /// A missing, unexpected or wrongly shaped tensor, or one that does not fit the model, by name.
    pub fn from_bytes(
        config_json: &[u8],
        safetensors: &[u8],
        backend: &mut B,
        model: &Model<B>,
    ) -> Result<Self> {
        let (config, weights) = (Path::new("eagle3_config.json"), Path::new("eagle3.safetensors"));
        Ok(Self::new(Arc::new(Head::load((config, config_json), (weights, safetensors), backend, model)?)))
    }

    /// The weights, to start further sequences with.
    pub fn head(&self) -> &Arc<Head<B>> {
        &self.head
    }

    /// The rows in `hidden` must be those of the tokens since the last proposal, and the head made for so many.
    fn check(&self, done: usize, view: &DraftView<'_>) -> Result<()> {
        let (positions, limit) = (view.tokens.len().saturating_sub(1), self.head.max_positions());
        if positions > limit {
            return Err(Error::Capacity(format!(
                "eagle3: the text has {positions} tokens, the head was made for {limit} (max_position_embeddings); \
                 take another draft source, or set eagle3.max_positions if the head is good for more"
            )));
        }
        let (rows, width) = (positions.saturating_sub(done), self.head.feature_dim());
        if rows == 0 || view.hidden.len() != rows * width {
            return Err(Error::Invariant(format!(
                "eagle3: {} hidden values for {rows} tokens since the last proposal; each has {width}",
                view.hidden.len()
            )));
        }
        Ok(())
    }
}

impl<B: Backend> Draft<B> for Eagle3<B> {
    fn hidden_layers(&self) -> &[usize] {
        self.head.taps()
    }

    fn propose(
        &mut self,
        backend: &mut B,
        target: &mut dyn Target<B>,
        view: &DraftView<'_>,
    ) -> Result<DraftTree> {
        self.check(self.sequence.as_ref().map_or(0, Sequence::positions), view)?;
        let (head, model) = (self.head.as_ref(), target.model());
        let sequence = match &mut self.sequence {
            Some(sequence) => sequence,
            empty => empty.insert(Sequence::new(backend, head)?),
        };
        let mut at = sequence.absorb(backend, head, model, view.tokens, view.hidden, view.shape.depth)?;
        let (mut chain, mut alternatives) = (Vec::with_capacity(view.shape.depth), Vec::new());
        while chain.len() < view.shape.depth {
            if let Some(&token) = chain.last() {
                at += 1;
                if at >= head.max_positions() {
                    break;
                }
                sequence.advance(backend, head, model, token, at)?;
            }
            let logits = sequence.logits(backend, head, model)?;
            let count = if chain.is_empty() { view.shape.branches.max(1) } else { 1 };
            let mut best = top(logits, count).into_iter().map(|id| head.target_id(id));
            let Some(token) = best.next() else { break };
            chain.push(token);
            alternatives.extend(best);
        }
        Ok(tree(chain, alternatives))
    }
}
