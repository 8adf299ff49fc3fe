//! What was typed: the configuration file and the flags, before anything is checked against a model.
//!
//! Layers: `--set` and flags, then the file, then defaults. [`load`] reads them; [`crate::plan`] makes a plan.

mod layers;
mod message;
mod sweep;
mod values;

pub use layers::{Origin, Source, load};
pub use message::did_you_mean;
pub use sweep::{Axis, Group as SweepGroup, Sweep, SweepSpec, Values, load_sweep, shown, written};
pub use values::{Budget, FetchCap, Limit, Many, PolicySpec};

use oasis_core::settings::{Emit, Group, Mode, Scope};
use serde::{Deserialize, Serialize};

/// What goes through sparse decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The prompt is prefilled densely, the answer is decoded.
    Decode,
    /// The document is prefilled densely; the question's tokens and the answer are decoded.
    Question,
}

impl Protocol {
    /// Its name in configurations and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Question => "question",
        }
    }
}

/// `[run]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// A name for reports.
    pub name: Option<String>,
    /// Seed of samples and draws.
    pub seed: Option<u64>,
    /// What is decoded sparsely.
    pub protocol: Option<Protocol>,
    /// Samples of each task that run.
    #[serde(skip_serializing)]
    pub limit: Option<Limit>,
    /// Times that every (sample, cell) is decoded, each with its own seed.
    pub repeats: Option<u32>,
    /// Workers; 0: chosen by the size of the model.
    #[serde(skip_serializing)]
    pub jobs: Option<usize>,
}

/// `[model]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// `nano`, `smollm2`, a Hugging Face folder, a `.gguf` file, or `org/name` in the hub's cache.
    pub path: Option<String>,
}

/// One `[[task]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Name in the table of tasks.
    pub name: String,
    /// Name in this run's records; default: the task's name, with the length where that is needed.
    pub label: Option<String>,
    /// Tokens of prompt and answer; a list makes one task of each.
    pub length: Many<usize>,
    /// Samples.
    pub samples: Option<usize>,
    /// Which of them run, where not all do (written by the program).
    pub indices: Option<Vec<usize>>,
    /// The task's own keys.
    #[serde(flatten)]
    pub own: toml::Table,
}

/// Makes the three tables that share the keys of decoding: `[decode]`, `[[cell]]` and `[grid]`.
macro_rules! decode_keys {
    ($($(#[doc = $doc:literal])* $key:ident: $type:ty,)*) => {
        /// `[decode]`: defaults of all cells.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct DecodeSpec { $($(#[doc = $doc])* pub $key: Option<$type>,)* }

        /// One `[[cell]]`: a way of decoding.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct CellSpec {
            /// Name in reports; default: made of what distinguishes the cell.
            pub label: Option<String>,
            /// Name of the line that the cell belongs to in plots (written by the program).
            pub family: Option<String>,
            /// The program added the cell as the reference (written by the program).
            pub added: Option<bool>,
            $($(#[doc = $doc])* pub $key: Option<$type>,)*
        }

        /// `[grid]`: lists of values; their product multiplies the cells.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct GridSpec { $($(#[doc = $doc])* pub $key: Option<Vec<$type>>,)* }

        /// The keys of decoding, in the order of reports.
        pub const DECODE_KEYS: &[&str] = &[$(stringify!($key)),*];

        impl CellSpec {
            /// Takes what is not set here from `other`.
            pub fn or(mut self, other: &DecodeSpec) -> Self {
                $(if self.$key.is_none() { self.$key = other.$key.clone(); })*
                self
            }

            /// Keys of decoding that are set.
            pub fn keys(&self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(if self.$key.is_some() { keys.push(stringify!($key)); })*
                keys
            }

            /// Forgets a key.
            pub fn clear(&mut self, key: &str) {
                match key {
                    $(stringify!($key) => self.$key = None,)*
                    _ => {}
                }
            }

            /// The value of a key as TOML writes it.
            pub fn written(&self, key: &str) -> Option<toml::Value> {
                match key {
                    $(stringify!($key) => self.$key.as_ref().and_then(|v| toml::Value::try_from(v).ok()),)*
                    _ => None,
                }
            }

            /// Sets the key to value number `index` of its axis.
            pub fn set_from_axis(&mut self, grid: &GridSpec, key: &str, index: usize) {
                match key {
                    $(stringify!($key) => self.$key = grid.$key.as_ref().and_then(|v| v.get(index).cloned()),)*
                    _ => {}
                }
            }
        }

        impl DecodeSpec {
            /// Keys that are set.
            pub fn keys(&self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(if self.$key.is_some() { keys.push(stringify!($key)); })*
                keys
            }
        }

        impl GridSpec {
            /// Axes: key and number of values.
            pub fn axes(&self) -> Vec<(&'static str, usize)> {
                let mut axes = Vec::new();
                $(if let Some(values) = &self.$key { axes.push((stringify!($key), values.len())); })*
                axes
            }
        }
    };
}

decode_keys! {
    /// Mode of the loop.
    mode: Mode,
    /// Resident tokens per KV head, pinned included, or a share of the context.
    budget: Budget,
    /// Fetch cap of a pool and step.
    cap: FetchCap,
    /// Which query ranks the blocks.
    predictor: PolicySpec,
    /// Draft source; `depth` and `branches` say how far it goes.
    draft: PolicySpec,
    /// What is remembered of a block.
    summary: PolicySpec,
    /// Who leaves.
    evictor: PolicySpec,
    /// Tokens of a block.
    block: usize,
    /// Tokens at the start that are always resident, rounded up to blocks.
    sink: usize,
    /// Most recent tokens that are always resident, rounded up to blocks.
    window: usize,
    /// Which resident blocks are attended.
    attend: Scope,
    /// Combination of the scores of a KV head's query heads; `auto`: as the summary prefers.
    group: GroupSpec,
    /// Normalise `softmax-sum` with the exact mass of the resident tokens.
    normalise: bool,
    /// What a step emits.
    emit: Emit,
    /// 0 is greedy.
    temperature: f32,
    /// Smallest probability mass that is drawn from.
    top_p: f32,
    /// Sequences decoded together.
    batch: usize,
    /// Compute true sets and dense outputs at every step.
    audit: bool,
}

/// `group`: a combination, or the summary's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupSpec {
    /// As the summary prefers.
    Auto,
    /// See [`Group::Max`].
    Max,
    /// See [`Group::Mean`].
    Mean,
    /// See [`Group::SoftmaxSum`].
    SoftmaxSum,
}

impl GroupSpec {
    /// As the loop wants it.
    pub fn resolve(self) -> Option<Group> {
        match self {
            Self::Auto => None,
            Self::Max => Some(Group::Max),
            Self::Mean => Some(Group::Mean),
            Self::SoftmaxSum => Some(Group::SoftmaxSum),
        }
    }
}

/// A whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// `[run]`.
    #[serde(default)]
    pub run: RunSpec,
    /// `[model]`.
    #[serde(default)]
    pub model: ModelSpec,
    /// `[[task]]`s.
    #[serde(default)]
    pub task: Vec<TaskSpec>,
    /// `[decode]`.
    #[serde(default)]
    pub decode: DecodeSpec,
    /// `[[cell]]`s.
    #[serde(default)]
    pub cell: Vec<CellSpec>,
    /// `[grid]`.
    #[serde(default)]
    pub grid: GridSpec,
    /// `[sweep]`: axes over any key; only `oasis sweep` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepSpec>,
}
