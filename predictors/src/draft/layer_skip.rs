//! The target's own first layers, its final norm and its head (Elhoushi et al., "LayerSkip", arXiv 2404.16710).

use super::{factory, top, tree};
use oasis_core::draft::{Draft, DraftFactory, DraftSetup, DraftTree, DraftView, Target};
use oasis_core::ops::Backend;
use oasis_core::registry::{DraftEntry, Param};
use oasis_core::{Error, Result};
use serde::Deserialize;

const NAME: &str = "layer-skip";

/// The row of the table.
pub const fn entry<B: Backend>() -> DraftEntry<B> {
    DraftEntry {
        name: NAME,
        about: "The model's first layers and its head (LayerSkip, arXiv 2404.16710); needs no weights of its own.",
        version: 1,
        params: &[Param {
            name: "layers",
            about: "Layers that are run, at least 1 and fewer than the model has; 0: half of them.",
            default: "0",
        }],
        build,
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    layers: usize,
}

fn build<B: Backend>(setup: DraftSetup<'_, B>) -> Result<DraftFactory<B>> {
    let Config { layers } = setup.params.parse(NAME)?;
    let layers = resolve(layers, setup.model.config.geometry.layers)?;
    Ok(factory(move |_| LayerSkip { layers }))
}

/// The layers to run of `all`; `asked` 0 is half of them.
fn resolve(asked: usize, all: usize) -> Result<usize> {
    let layers = if asked == 0 { all / 2 } else { asked };
    if (1..all).contains(&layers) {
        return Ok(layers);
    }
    let most = all.saturating_sub(1);
    Err(Error::setting(
        "layer-skip.layers",
        format!("is {layers}; the model has {all} layers, so 1 to {most} can be run"),
    ))
}

/// Runs the first layers once for each token of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSkip {
    layers: usize,
}

impl<B: Backend> Draft<B> for LayerSkip {
    fn propose(
        &mut self,
        backend: &mut B,
        target: &mut dyn Target<B>,
        view: &DraftView<'_>,
    ) -> Result<DraftTree> {
        let Some(&newest) = view.tokens.last() else { return Ok(DraftTree::default()) };
        let mut path = vec![newest];
        let mut alternatives = Vec::new();
        for ahead in 0..view.shape.depth {
            let logits = target.shallow_logits(backend, &path, self.layers)?;
            let count = if ahead == 0 { view.shape.branches.max(1) } else { 1 };
            let mut best = top(&logits, count).into_iter();
            let Some(token) = best.next() else { break };
            path.push(token);
            alternatives.extend(best);
        }
        Ok(tree(path.split_off(1), alternatives))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_layers_unless_told() {
        assert_eq!(resolve(0, 6).unwrap(), 3);
        assert_eq!(resolve(5, 6).unwrap(), 5);
        for (asked, all) in [(6, 6), (7, 6), (0, 1)] {
            let error = resolve(asked, all).unwrap_err().to_string();
            assert!(error.contains("layer-skip.layers") && error.contains(&all.to_string()), "{error}");
        }
    }
}
