//! The settings of one decode: checked, complete, with no trace of TOML.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Most rows of a sequence in a step: its newest token and its drafts.
pub const MAX_ROWS: usize = 8;

/// The modes of the one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All KV in device memory, full attention.
    Dense,
    /// All KV in device memory, attends only what the policies selected.
    ResidentSparse,
    /// KV in the host store, a pool of slots on the device.
    Staged,
    /// Staged, ranked with the step's own query, fetched on the critical path.
    OnDemand,
    /// Staged with C = 0: what was resident at the end of the prefill stays.
    Static,
    /// Sinks and the most recent blocks at the same budget.
    Window,
}

impl Mode {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Dense, Self::OnDemand, Self::Staged, Self::ResidentSparse, Self::Static, Self::Window];

    /// The mode's name in configurations and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::ResidentSparse => "resident-sparse",
            Self::Staged => "staged",
            Self::OnDemand => "on-demand",
            Self::Static => "static",
            Self::Window => "window",
        }
    }

    /// Whether all KV lies in device memory.
    pub fn resident(self) -> bool {
        matches!(self, Self::Dense | Self::ResidentSparse)
    }
}

/// The fetch cap C of a pool and step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cap {
    /// No cap.
    Unlimited,
    /// So many blocks.
    Blocks(usize),
    /// `max(1, ceil(f·K))` blocks for f > 0, none for 0.
    Fraction(f64),
}

impl Cap {
    /// The integer for a pool with `k` selectable blocks.
    pub fn blocks(self, k: usize) -> usize {
        match self {
            Self::Unlimited => k,
            Self::Blocks(n) => n.min(k),
            // 0.07 · 100 is 7.000000000000001 in binary; the cap it means is 7.
            Self::Fraction(f) if f > 0.0 => ((f * k as f64 - 1e-9).ceil() as usize).clamp(1.min(k), k),
            Self::Fraction(_) => 0,
        }
    }
}

impl std::fmt::Display for Cap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unlimited => write!(f, "unlimited"),
            Self::Blocks(n) => write!(f, "{n}"),
            Self::Fraction(x) => write!(f, "{x}·K"),
        }
    }
}

/// Which resident blocks a step attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Every resident block (the paper's rule).
    Resident,
    /// The pinned ones and those of the last selection.
    Selected,
}

/// How the scores of a KV head's query heads, and of several ranking rows, become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The largest.
    Max,
    /// Their mean.
    Mean,
    /// Softmax over the blocks for each query, then the sum: an estimate of mass.
    SoftmaxSum,
}

/// What a step emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emit {
    /// One token; drafts only look ahead (the paper's use).
    One,
    /// All verified tokens: speculative decoding.
    Accepted,
}

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Smallest set of tokens whose probability reaches this is drawn from; 1 is all.
    pub top_p: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_p: 1.0 }
    }
}

impl Sampling {
    /// Takes the largest logit.
    pub fn greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

/// Everything the loop needs to know beside the policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Mode.
    pub mode: Mode,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Resident tokens per KV head, pinned included, tail excluded. Ignored by `dense`.
    pub budget_tokens: usize,
    /// Pinned blocks at the start.
    pub sink_blocks: usize,
    /// Pinned blocks at the end.
    pub window_blocks: usize,
    /// Fetch cap.
    pub cap: Cap,
    /// What is attended.
    pub scope: Scope,
    /// Combination of scores; none: as the summary prefers.
    pub group: Option<Group>,
    /// Whether `softmax-sum` is normalised with the exact mass of the always-resident tokens.
    pub normalise_resident: bool,
    /// What a step emits.
    pub emit: Emit,
    /// Drawing of tokens.
    pub sampling: Sampling,
    /// Most rows of a step (newest token and drafts), at most 8.
    pub max_rows: usize,
    /// Compute true sets and dense outputs at every step.
    pub audit: bool,
    /// Seed of every draw.
    pub seed: u64,
}

impl Settings {
    /// Slots of a pool.
    pub fn budget_blocks(&self) -> usize {
        self.budget_tokens / self.block_tokens
    }

    /// K: selectable blocks.
    pub fn k(&self) -> usize {
        self.budget_blocks().saturating_sub(self.sink_blocks + self.window_blocks)
    }

    /// Whether blocks are ranked at all.
    pub fn ranks(&self) -> bool {
        !matches!(self.mode, Mode::Dense | Mode::Window)
    }

    /// Pinned blocks at the end; all of the budget but the sinks in `window` mode.
    pub fn window(&self) -> usize {
        match self.mode {
            Mode::Window => self.budget_blocks().saturating_sub(self.sink_blocks),
            _ => self.window_blocks,
        }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Setting`] with key, value, limit and way out.
    pub fn check(&self) -> Result<()> {
        let block = self.block_tokens;
        if block == 0 {
            return Err(Error::setting("decode.block", "0 tokens; a block needs at least 1 (default 16)"));
        }
        if !(1..=MAX_ROWS).contains(&self.max_rows) {
            let rows = self.max_rows;
            return Err(Error::setting(
                "decode.draft",
                format!("{rows} rows a step; newest token and drafts are at most 8"),
            ));
        }
        if let Cap::Fraction(f) = self.cap
            && !(0.0..=1.0).contains(&f)
        {
            let what =
                format!("{f}; a fraction of K lies in 0..=1 (or give a number of blocks, or \"unlimited\")");
            return Err(Error::setting("decode.cap", what));
        }
        let Sampling { temperature, top_p } = self.sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Error::setting(
                "decode.temperature",
                format!("{temperature}; 0 is greedy, more is warmer"),
            ));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::setting("decode.top_p", format!("{top_p}; it lies in 0 < p ≤ 1")));
        }
        let pinned = self.sink_blocks + if self.mode == Mode::Window { 0 } else { self.window_blocks };
        if self.mode != Mode::Dense && self.budget_blocks() <= pinned {
            return Err(Error::setting(
                "decode.budget",
                format!(
                    "{} tokens are {} blocks of {block}, and {pinned} are pinned; give at least {} tokens or pin less (sink, window)",
                    self.budget_tokens,
                    self.budget_blocks(),
                    (pinned + 1) * block
                ),
            ));
        }
        Ok(())
    }

    /// C as an integer.
    pub fn cap_blocks(&self) -> usize {
        if self.mode == Mode::Static { 0 } else { self.cap.blocks(self.k()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_rounded_up_to_whole_blocks() {
        let blocks = |f: f64, k: usize| Cap::Fraction(f).blocks(k);
        assert_eq!([blocks(0.05, 123), blocks(0.05, 59), blocks(0.05, 4), blocks(0.0, 4)], [7, 3, 1, 0]);
        assert_eq!([blocks(0.07, 100), blocks(1.0, 59), blocks(0.5, 0)], [7, 59, 0]);
        assert_eq!(
            [Cap::Unlimited.blocks(9), Cap::Blocks(3).blocks(9), Cap::Blocks(30).blocks(9)],
            [9, 3, 9]
        );
    }
}
