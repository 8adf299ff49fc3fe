//! Flags of `oasis bench`, which a `[bench]` table may give too.

use super::limits::GibLimits;
use crate::run::BackendChoice;
use crate::spec::{FetchCap, GroupSpec, Many, PolicySpec};
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use oasis_core::settings::{Cap, MAX_ROWS, Mode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Sequences of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum Batch {
    /// So many.
    Of(usize),
    /// As many as fit, for each mode by itself.
    Max,
}

impl TryFrom<toml::Value> for Batch {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match &value {
            toml::Value::Integer(n) if *n > 0 => Ok(Self::Of(*n as usize)),
            toml::Value::String(s) if s == "max" => Ok(Self::Max),
            _ => Err(format!("{value} is no batch: give 1 or more sequences, or \"max\"")),
        }
    }
}

impl From<Batch> for toml::Value {
    fn from(batch: Batch) -> Self {
        match batch {
            Batch::Of(n) => (n as i64).into(),
            Batch::Max => "max".into(),
        }
    }
}

/// A mode, or whichever of `dense` and `staged` should be faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ModeChoice {
    /// This one.
    Fixed(Mode),
    /// See [`super::auto`].
    Auto,
}

impl TryFrom<String> for ModeChoice {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let names = || Mode::ALL.iter().map(|m| m.name()).chain(["auto"]);
        let mode = Mode::ALL.into_iter().find(|m| m.name() == name).map(Self::Fixed);
        mode.ok_or_else(|| Error::unknown_name("mode", &name, names()).to_string())
    }
}

impl From<ModeChoice> for String {
    fn from(mode: ModeChoice) -> Self {
        match mode {
            ModeChoice::Fixed(mode) => mode.name().to_owned(),
            ModeChoice::Auto => "auto".to_owned(),
        }
    }
}

/// A value as a configuration would write it; what is no TOML is a string.
pub fn one<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let parsed = toml::from_str::<toml::Table>(&format!("v = {text}")).ok().and_then(|mut t| t.remove("v"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(text.to_owned()));
    T::deserialize(value).map_err(|e: toml::de::Error| e.message().to_owned())
}

/// Values with commas between them.
pub fn list<T: DeserializeOwned>(text: &str) -> Result<Many<T>, String> {
    text.split(',').map(|part| one(part.trim())).collect::<Result<_, _>>().map(Many)
}

/// What is measured; keys of `[bench]` are the flags' names.
#[derive(Debug, Clone, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Flags {
    /// Model: `nano`, a fetched one, a folder, a .gguf file
    #[arg(long, conflicts_with = "shape")]
    pub model: Option<String>,
    /// A config.json alone: seeded random weights and caches of its sizes
    #[arg(long, value_name = "FILE")]
    pub shape: Option<PathBuf>,
    /// Sequences decoded together, or `max`; a list makes a table
    #[arg(long, value_parser = list::<Batch>)]
    pub batch: Option<Many<Batch>>,
    /// Tokens of the longest prompt; a list makes a table with a fit of step time over context
    #[arg(long, value_parser = list::<usize>)]
    pub context: Option<Many<usize>>,
    /// Resident tokens per KV head; a list is allowed
    #[arg(long, value_parser = list::<usize>)]
    pub budget: Option<Many<usize>>,
    /// Fetch cap: blocks (3), a share of K (0.05) or unlimited; a list is allowed
    #[arg(long, value_parser = list::<FetchCap>)]
    pub cap: Option<Many<FetchCap>>,
    /// Modes, one beside the other; `auto` takes dense or staged by a model of their bytes
    #[arg(long, value_parser = list::<ModeChoice>)]
    pub modes: Option<Many<ModeChoice>>,
    /// Summary, a name or a table: '{ name = "quantized", bits = 4 }'
    #[arg(long, value_parser = one::<PolicySpec>)]
    pub summary: Option<PolicySpec>,
    /// Predictor; default: `lookahead` with draft rows, else `previous-token`
    #[arg(long, value_parser = one::<PolicySpec>)]
    pub predictor: Option<PolicySpec>,
    /// Evictor
    #[arg(long, value_parser = one::<PolicySpec>)]
    pub evictor: Option<PolicySpec>,
    /// Rows of random draft tokens beside the newest token, new ones each step
    #[arg(long)]
    pub draft_rows: Option<usize>,
    /// Combination of the scores of a KV head's query heads
    #[arg(long, value_parser = one::<GroupSpec>)]
    pub group: Option<GroupSpec>,
    /// Normalise `softmax-sum` with the exact mass of the resident tokens
    #[arg(long)]
    pub normalise: bool,
    /// Tokens of a block
    #[arg(long)]
    pub block: Option<usize>,
    /// Tokens at the start that are always resident
    #[arg(long)]
    pub sink: Option<usize>,
    /// Most recent tokens that are always resident
    #[arg(long)]
    pub window: Option<usize>,
    /// Timed steps
    #[arg(long)]
    pub steps: Option<usize>,
    /// Steps before them
    #[arg(long)]
    pub warmup: Option<usize>,
    /// Steps after them that take times within the step; 0: none
    #[arg(long)]
    pub probed: Option<usize>,
    /// Accept random tokens instead of the sampled ones, so that every query is a new one and the cap binds
    #[arg(long)]
    pub saturate: bool,
    /// All sequences share one prompt's KV, read-only: saves host memory, and the record says so
    #[arg(long)]
    pub share_prompt: bool,
    /// Launch ops one by one instead of replaying a recorded pass
    #[arg(long)]
    pub eager: bool,
    /// Device memory that may be used, in GiB, weights included: emulates a smaller card
    #[arg(long)]
    pub hbm_gib: Option<f64>,
    /// Host memory that the KV store may use, in GiB
    #[arg(long)]
    pub host_gib: Option<f64>,
    /// Where to compute
    #[arg(long, value_enum)]
    pub backend: Option<BackendChoice>,
    /// Seed of weights, prompts, drafts and policies
    #[arg(long)]
    pub seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    bench: Flags,
}

impl Flags {
    /// These flags, and a file's where a flag is not given.
    ///
    /// # Errors
    /// A file that cannot be read, or whose `[bench]` has a key that is no flag or a value that is none.
    pub fn over(self, file: Option<&Path>) -> Result<Self> {
        let Some(path) = file else { return Ok(self) };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{}: can't be read", path.display()))?;
        let File { bench: f } =
            toml::from_str(&text).with_context(|| format!("{}: [bench]", path.display()))?;
        // The file's model stands for nothing if the command line names one in either way.
        let named = self.model.is_some() || self.shape.is_some();
        let (model, shape) = if named { (self.model, self.shape) } else { (f.model, f.shape) };
        macro_rules! over {
            ($($key:ident),*; $($switch:ident),*) => {
                Self { model, shape, $($key: self.$key.or(f.$key),)* $($switch: self.$switch || f.$switch,)* }
            };
        }
        Ok(
            over!(batch, context, budget, cap, modes, summary, predictor, evictor, draft_rows, group, block, sink, window,
            steps, warmup, probed, hbm_gib, host_gib, backend, seed; normalise, saturate, share_prompt, eager),
        )
    }

    /// Everything, with defaults where nothing was said.
    ///
    /// # Errors
    /// Values out of range.
    pub fn complete(self) -> Result<Request> {
        let draft_rows = self.draft_rows.unwrap_or(0);
        if draft_rows >= MAX_ROWS {
            let what =
                format!("{draft_rows}; a step has at most {MAX_ROWS} rows, the newest token's included");
            bail!(Error::setting("--draft-rows", what));
        }
        let ranking = if draft_rows > 0 { "lookahead" } else { "previous-token" };
        let fixed = |mode| ModeChoice::Fixed(mode);
        let request = Request {
            model: if self.shape.is_none() { self.model.or(Some("nano".into())) } else { None },
            shape: self.shape,
            batch: self.batch.map_or(vec![Batch::Of(1)], |b| b.0),
            context: self.context.map_or(vec![4096], |c| c.0),
            budget: self.budget.map_or(vec![2048], |b| b.0),
            cap: self.cap.map_or(vec![FetchCap(Cap::Fraction(0.05))], |c| c.0),
            modes: self.modes.map_or(vec![fixed(Mode::Dense), fixed(Mode::Staged)], |m| m.0),
            summary: self.summary.unwrap_or_else(|| PolicySpec::named("minmax")),
            predictor: self.predictor.unwrap_or_else(|| PolicySpec::named(ranking)),
            evictor: self.evictor.unwrap_or_else(|| PolicySpec::named("lrs")),
            draft_rows,
            group: self.group.unwrap_or(GroupSpec::Auto),
            normalise: self.normalise,
            block: self.block.unwrap_or(16),
            sink: self.sink.unwrap_or(16),
            window: self.window.unwrap_or(64),
            steps: self.steps.unwrap_or(32),
            warmup: self.warmup.unwrap_or(8),
            probed: self.probed.unwrap_or(6),
            saturate: self.saturate,
            share_prompt: self.share_prompt,
            eager: self.eager,
            limits: GibLimits { hbm_gib: self.hbm_gib, host_gib: self.host_gib },
            backend: self.backend.unwrap_or(BackendChoice::Auto),
            seed: self.seed.unwrap_or(0),
        };
        request.check()?;
        Ok(request)
    }
}

/// What is measured, complete.
#[derive(Debug, Clone, Serialize)]
pub struct Request {
    /// The model, if its weights are real.
    pub model: Option<String>,
    /// The configuration of a synthetic one.
    pub shape: Option<PathBuf>,
    /// Batches.
    pub batch: Vec<Batch>,
    /// Contexts.
    pub context: Vec<usize>,
    /// Budgets.
    pub budget: Vec<usize>,
    /// Caps.
    pub cap: Vec<FetchCap>,
    /// Modes.
    pub modes: Vec<ModeChoice>,
    /// Summary.
    pub summary: PolicySpec,
    /// Predictor.
    pub predictor: PolicySpec,
    /// Evictor.
    pub evictor: PolicySpec,
    /// Draft rows.
    pub draft_rows: usize,
    /// Combination of scores.
    pub group: GroupSpec,
    /// Normalisation of `softmax-sum`.
    pub normalise: bool,
    /// Tokens of a block.
    pub block: usize,
    /// Pinned tokens at the start.
    pub sink: usize,
    /// Pinned tokens at the end.
    pub window: usize,
    /// Timed steps.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// Steps with times within them.
    pub probed: usize,
    /// Random tokens are accepted.
    pub saturate: bool,
    /// One prompt for all sequences.
    pub share_prompt: bool,
    /// Nothing is recorded.
    pub eager: bool,
    /// Limits of memory.
    pub limits: GibLimits,
    /// Backend.
    #[serde(skip)]
    pub backend: BackendChoice,
    /// Seed.
    pub seed: u64,
}

impl Request {
    fn check(&self) -> Result<()> {
        if self.block == 0 {
            bail!(Error::setting("--block", "0 tokens; a block needs at least 1 (default 16)"));
        }
        if self.steps == 0 {
            bail!(Error::setting("--steps", "0 timed steps measure nothing; give at least 1"));
        }
        if let Some(c) = self.context.iter().find(|&&c| c < 2 * self.block) {
            let what = format!("{c} tokens; give at least two blocks ({})", 2 * self.block);
            bail!(Error::setting("--context", what));
        }
        self.limits.check()
    }

    /// Steps of a decode.
    pub fn all_steps(&self) -> usize {
        self.warmup + self.steps + self.probed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_words_are_read_as_a_configuration_reads_them() {
        assert_eq!(list::<Batch>("1, 4,max").unwrap().0, [Batch::Of(1), Batch::Of(4), Batch::Max]);
        assert!(list::<Batch>("0").unwrap_err().contains("no batch"));
        let caps = list::<FetchCap>("0.05,3,unlimited").unwrap().0.into_iter().map(|c| c.0);
        assert_eq!(caps.collect::<Vec<_>>(), [Cap::Fraction(0.05), Cap::Blocks(3), Cap::Unlimited]);
        let near = list::<ModeChoice>("dense,stagd").unwrap_err();
        assert!(near.contains("did you mean `staged`"), "{near}");
        let summary = one::<PolicySpec>("{ name = \"quantized\", bits = 4 }").unwrap();
        assert_eq!((summary.name.as_str(), summary.table["bits"].as_integer()), ("quantized", Some(4)));
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.toml");
        std::fs::write(&path, "[bench]\nbatch = [2, \"max\"]\nsteps = 5\ndraft-rows = 1\nsaturate = true\n")
            .unwrap();
        let flags = Flags { steps: Some(7), ..Flags::default() }.over(Some(&path)).unwrap();
        let request = flags.complete().unwrap();
        assert_eq!(request.batch, [Batch::Of(2), Batch::Max]);
        assert_eq!((request.steps, request.draft_rows, request.saturate), (7, 1, true));
        assert_eq!((request.predictor.name.as_str(), request.model.as_deref()), ("lookahead", Some("nano")));
        std::fs::write(&path, "[bench]\nstep = 5\n").unwrap();
        let error = format!("{:#}", Flags::default().over(Some(&path)).unwrap_err());
        assert!(error.contains("step") && error.contains("bench.toml"), "{error}");
    }
}
