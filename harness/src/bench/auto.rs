//! `mode = "auto"`: dense or staged, whichever should be faster.
//!
//! Dense reads the weights and all K and V. Staged reads the weights, a budget of K and V, and the summaries of all blocks, and
//! moves at most the cap over the link beside that; each of its layers also costs some launches of ranking, selection and fetch
//! that a small batch does not hide. Bandwidths are those measured in the run ([`super::floor`]); where dense does not fit, staged
//! it is; where the budget covers the context, dense.

use super::floor;
use super::record::{BandwidthRecord, StepBytes};
use oasis_core::geometry::{BlockShape, Geometry};
use oasis_core::plan::SeqLength;
use oasis_core::policy::Summary;
use oasis_core::settings::{Mode, Settings};
use schemars::JsonSchema;
use serde::Serialize;

/// What the background chain of a layer costs a step that has nothing to hide it under, in seconds: some six short kernels.
const CHAIN_SECONDS: f64 = 4e-6;

/// A choice and its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// `dense` or `staged`.
    pub mode: &'static str,
    /// Predicted step of dense decoding, in milliseconds.
    pub dense_ms: f64,
    /// Predicted step of staged decoding, in milliseconds.
    pub staged_ms: f64,
    /// In words.
    pub why: String,
}

/// What the choice hangs on.
pub struct Question<'a> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Bytes of weights that a step reads.
    pub step_weights: usize,
    /// Settings of the staged decode.
    pub staged: &'a Settings,
    /// Its summary.
    pub summary: &'a dyn Summary,
    /// The batch.
    pub lengths: &'a [SeqLength],
    /// Measured.
    pub rates: &'a BandwidthRecord,
    /// Whether dense decoding fits, and staged.
    pub fits: (bool, bool),
}

impl Question<'_> {
    fn sealed(&self) -> impl Iterator<Item = usize> + '_ {
        self.lengths.iter().map(|l| l.prompt / self.staged.block_tokens)
    }

    fn dense_bytes(&self) -> StepBytes {
        let tokens: usize = self.lengths.iter().map(|l| l.prompt).sum();
        let kv = (tokens * self.geometry.kv_bytes_per_token()) as f64;
        StepBytes { weights: self.step_weights as f64, kv, ..StepBytes::default() }
    }

    fn staged_bytes(&self) -> StepBytes {
        let (g, s) = (self.geometry, self.staged);
        let block = BlockShape { tokens: s.block_tokens, head_dim: g.head_dim };
        let heads = g.layers * g.kv_heads;
        let attended: usize = self.sealed().map(|n| n.min(s.budget_blocks())).sum();
        let ranked: usize = self.sealed().map(|n| n.saturating_sub(s.sink_blocks + s.window())).sum();
        let fetched = s.cap_blocks() * self.lengths.len();
        StepBytes {
            weights: self.step_weights as f64,
            kv: (heads * attended * block.bytes()) as f64,
            summaries: (heads * ranked * self.summary.shape(block).bytes()) as f64,
            fetched: (heads * fetched * block.bytes()) as f64,
        }
    }

    /// Decides.
    pub fn choose(&self) -> Choice {
        let dense_ms = 1e3 * floor::seconds(&self.dense_bytes(), self.rates);
        let chain = self.geometry.layers as f64 * CHAIN_SECONDS;
        let staged_ms = 1e3 * (floor::seconds(&self.staged_bytes(), self.rates) + chain);
        let covered = self.sealed().all(|n| n <= self.staged.budget_blocks());
        let (mode, why) = match self.fits {
            (true, _) if covered => (Mode::Dense, "the budget covers the context".to_owned()),
            (false, true) => (Mode::Staged, "dense does not fit into memory".to_owned()),
            (true, false) => (Mode::Dense, "staged does not fit into memory".to_owned()),
            _ if dense_ms <= staged_ms => (Mode::Dense, "its bytes take less time".to_owned()),
            _ => (Mode::Staged, "its bytes take less time".to_owned()),
        };
        Choice { mode: mode.name(), dense_ms, staged_ms, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::geometry::World;
    use oasis_core::registry::Params;
    use oasis_core::settings::{Cap, Emit, Sampling, Scope};

    /// 8 billion parameters, 16 × 16,384 tokens, budget 2,048: the figures of one H200.
    fn question(batch: usize, context: usize, budget: usize, fits: (bool, bool)) -> Choice {
        let geometry = Geometry {
            layers: 36,
            hidden: 4096,
            intermediate: 12_288,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab: 151_936,
            max_positions: 40_960,
            world: World::default(),
        };
        let staged = Settings {
            mode: Mode::Staged,
            block_tokens: 16,
            budget_tokens: budget,
            sink_blocks: 1,
            window_blocks: 4,
            cap: Cap::Fraction(0.05),
            scope: Scope::Resident,
            group: None,
            normalise_resident: false,
            emit: Emit::One,
            sampling: Sampling::default(),
            max_rows: 2,
            audit: false,
            seed: 0,
        };
        let rates = BandwidthRecord {
            device_read: 4.67e12,
            device_copy: 4.2e12,
            gather: 51e9,
            to_device: 55e9,
            to_host: 55e9,
        };
        let summary = oasis_core::registry::find("summary", oasis_policies::SUMMARIES, "minmax").unwrap();
        let summary = (summary.build)(&Params::default()).unwrap();
        let lengths = vec![SeqLength { prompt: context, max_new: 32 }; batch];
        let step_weights = 15_100_000_000;
        Question {
            geometry: &geometry,
            step_weights,
            staged: &staged,
            summary: summary.as_ref(),
            lengths: &lengths,
            rates: &rates,
            fits,
        }
        .choose()
    }

    #[test]
    fn long_contexts_are_staged_and_short_ones_dense() {
        let choice = question(16, 16_384, 2048, (true, true));
        assert_eq!(choice.mode, "staged");
        // By hand: 53.8 GB read; 7 blocks of 8 KiB for each of 4,608 pools over the link, and 36 chains.
        assert!(
            (choice.dense_ms - 11.5).abs() < 0.05 && (choice.staged_ms - 5.33).abs() < 0.05,
            "{choice:?}"
        );
        assert_eq!(question(1, 2304, 2048, (true, true)).mode, "dense");
        assert_eq!(question(16, 16_384, 32_768, (true, true)).mode, "dense");
        assert_eq!(question(16, 4096, 2048, (false, true)).mode, "staged");
        assert_eq!(question(16, 16_384, 2048, (true, false)).mode, "dense");
    }
}
