//! The three plug points: which query ranks, what is remembered of a block, who leaves.
//!
//! The loop owns state, time and transfers; a policy gives opinions. Policies see slices, never device types.

use crate::geometry::{BlockShape, Geometry};
use crate::ids::Step;
use crate::settings::Group;
use crate::storage::{Rounding, Storage};
use crate::{Error, Result};
use std::borrow::Cow;

/// A set of rows of one sequence: bit `i` is row `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowSet(pub u32);

impl RowSet {
    /// The newest accepted token's row.
    pub const CURRENT: Self = Self(1);

    /// Rows `1 .. rows`: the draft tokens.
    pub fn drafts(rows: usize) -> Self {
        Self(((1u64 << rows) - 1) as u32 & !1)
    }

    /// Rows of either.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// No row.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// When a predictor ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// After the step's attention, for the next step; the fetch hides under other work.
    #[default]
    Ahead,
    /// Before the step's attention, with its own query; the fetch is exposed.
    OnDemand,
}

/// What a predictor needs from the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// When it ranks.
    pub when: When,
    /// It uses draft rows; the loop runs the draft source only if a predictor (or `emit`) asks.
    pub drafts: bool,
    /// It reads queries on the host ([`StepView::queries`]).
    pub queries: bool,
}

/// What a predictor sees of a step, for one sequence and layer.
pub struct StepView<'a> {
    /// Sizes.
    pub geometry: &'a Geometry,
    /// The step.
    pub step: Step,
    /// The layer.
    pub layer: usize,
    /// Rows of the sequence in this pass; row 0 is the newest accepted token.
    pub rows: usize,
    /// `parents[r]` for r ≥ 1 (parents\[0\] is 0): the draft tree.
    pub parents: &'a [u32],
    /// Candidate blocks: `first .. end` (sealed, not pinned).
    pub candidates: std::ops::Range<u32>,
    /// `[rows][heads][head_dim]`, empty unless [`Needs::queries`].
    pub queries: &'a [f32],
}

/// A predictor's answer.
pub enum Ranking<'a> {
    /// Rank with these rows' queries; they stay on the device.
    Rows(RowSet),
    /// Rank with this query, `[heads][head_dim]`.
    Query(Cow<'a, [f32]>),
    /// These scores, `[kv_heads][candidates]`; no summary is read.
    Scores(Cow<'a, [f32]>),
}

/// Which query ranks the blocks of the next step. One instance a sequence.
pub trait Predictor: Send {
    /// What the loop must provide.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// The ranking rows of every layer of a pass with `rows` rows below `parents`, if they hang on nothing else: such a
    /// predictor needs no more, and runs on the device.
    fn rows(&self, _rows: usize, _parents: &[u32]) -> Option<RowSet> {
        None
    }

    /// The ranking for the next step (or, on demand, for this one) in this layer. Unless it is written, that of
    /// [`Predictor::rows`], or the newest token's.
    fn rank_with<'a>(&'a mut self, step: &'a StepView<'a>) -> Ranking<'a> {
        Ranking::Rows(self.rows(step.rows, step.parents).unwrap_or(RowSet::CURRENT))
    }
}

/// How a block's vectors reduce to one number a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// The largest inner product.
    Max,
    /// ln Σ exp: the estimated ln of the block's attention mass.
    LogSumExp,
    /// Their sum.
    Sum,
}

/// The stored form of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummaryShape {
    /// Vectors a block.
    pub vectors: usize,
    /// Coordinates a vector.
    pub dim: usize,
    /// How inner products become a score.
    pub reduce: Reduce,
    /// Bits of a coordinate and of a vector's scale.
    pub storage: Storage,
    /// Which way coordinates are rounded.
    pub rounding: Rounding,
}

impl SummaryShape {
    /// Bytes of one block's summary.
    pub fn bytes(&self) -> usize {
        self.vectors * self.storage.vector_bytes(self.dim, self.rounding)
    }

    /// Refuses shapes that the codec ([`crate::storage`]) does not store as they ask.
    pub fn check(&self) -> Result<()> {
        if self.vectors == 0 || self.dim == 0 {
            let what =
                format!("{} vectors of {} coordinates; both must be at least 1", self.vectors, self.dim);
            return Err(Error::setting("summary shape", what));
        }
        self.storage.check(self.dim, self.rounding)
    }
}

/// The keys of one block, post-RoPE.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// `[tokens][head_dim]`.
    pub data: &'a [f32],
    /// Tokens.
    pub tokens: usize,
    /// Width of a key.
    pub head_dim: usize,
}

impl<'a> Keys<'a> {
    /// The keys, one at a time.
    pub fn iter(&self) -> std::slice::ChunksExact<'a, f32> {
        self.data.chunks_exact(self.head_dim)
    }
}

/// A summary's twin in CUDA C++.
///
/// It defines two functions, which all threads of a thread block call together (any number of threads; loops start at
/// `threadIdx.x` and step by `blockDim.x`; `__syncthreads()` is allowed). `TOKENS`, `HEAD_DIM`, `VECTORS`, `DIM` and
/// `FIT_LEN` are defined. There is no contraction to fused multiply-adds, so the same operations in the same order give
/// the host's bits.
///
/// ```cuda
/// // keys [TOKENS][HEAD_DIM] and out [VECTORS][DIM] in shared memory, fit [FIT_LEN]; as Summary::encode
/// __device__ void summary_encode(const float* fit, const float* keys, float* out);
/// // query [HEAD_DIM] and out [DIM] in shared memory; as Summary::lift, every thread returns the same
/// __device__ float summary_lift(const float* fit, const float* query, float* out);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The two functions.
    pub code: String,
}

/// An evictor's twin in CUDA C++: one expression, or functions with state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvictor {
    /// What it is.
    pub code: DeviceEviction,
    /// The instance's seed, `seed` in the code.
    pub seed: u64,
}

/// How a device evicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEviction {
    /// A float expression of `m` (fields as in [`SlotMeta`]: block, admitted, last_selected, last_attended, selections,
    /// mass), `now` and `seed` (64 bits): [`Evictor::keep`]. `mix(x)` is SplitMix64's finaliser.
    Keep(&'static str),
    /// A queue policy. A slot has one word for it, `own`; a pool has three, `p.state[1 .. 4]`, 0 at first. It defines
    ///
    /// ```cuda
    /// // The word of a block that comes in as the pool's number-th (from 0; those of the prefill by block id).
    /// __device__ u32 queue_admit(u32 number);
    /// // The word of a resident block that was selected.
    /// __device__ u32 queue_touch(u32 own);
    /// // Who leaves. All threads of a thread block call it together; nothing is to be synchronised before or after.
    /// // slots [count]: the slots of those that may leave, ascending by block id. It sets leaves[i] to 1 for exactly
    /// // `need` of them (1 ..= count), to 0 for the others.
    /// __device__ void queue_evict(const Pool& p, const u32* slots, u32* leaves, u32 count, u32 need);
    /// ```
    ///
    /// with `p.meta[slot]` as `m` above and `.own`, `p.slots` (a free one has block `NONE`), `p.state`, `p.seed`,
    /// `p.now`, and the helpers `block_total`, `block_rank` and `nth_smallest` of the kernels' `pool.cuh`.
    Queue(&'static str),
}

/// What the device remembers of a block, and how a query scores it: inner products in a shared space.
///
/// `encode` and `lift` are maps into that space. Scores are logits: `lift` includes the factor 1/√head_dim, so
/// that LogSumExp over a block estimates the ln of its attention mass.
pub trait Summary: Send + Sync {
    /// The stored form for blocks of this shape.
    fn shape(&self, block: BlockShape) -> SummaryShape;

    /// Floats that [`Summary::fit`] makes for one pool.
    fn fit_len(&self, _block: BlockShape) -> usize {
        0
    }

    /// Constants of one (sequence, layer, KV head), fitted once on the prompt. Called with the prompt's full
    /// blocks except block 0, whose sink keys are outliers (with block 0 if there is no other).
    fn fit(&self, _keys: Keys<'_>, _out: &mut [f32]) {}

    /// Keys of one block to `[vectors][dim]`, before storage rounds them.
    fn encode(&self, fit: &[f32], keys: Keys<'_>, out: &mut [f32]);

    /// A query `[head_dim]` to `[dim]`; the return value is added to every inner product (0 where there is none).
    fn lift(&self, fit: &[f32], query: &[f32], out: &mut [f32]) -> f32;

    /// The twin that runs on the device, if there is one.
    fn device(&self, _block: BlockShape) -> Option<DeviceSummary> {
        None
    }

    /// How the group's heads combine unless the configuration says otherwise.
    fn group(&self) -> Group {
        Group::Max
    }

    /// The score before storage rounding is never below the largest exact logit of the block.
    /// Conformance checks that storage keeps it so.
    fn is_upper_bound(&self) -> bool {
        false
    }
}

/// What the loop knows of a resident block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotMeta {
    /// The block.
    pub block: u32,
    /// Step of its admission (0: at the end of the prefill).
    pub admitted: Step,
    /// Last step whose selection P held it; its admission if none did.
    pub last_selected: Step,
    /// Last step in which the newest token's query put at least the mean block's share of its mass on it;
    /// its admission if none did.
    pub last_attended: Step,
    /// Selections that held it since its admission.
    pub selections: u32,
    /// Share of attention mass at the last step, mean over the group's heads, 0..1.
    pub mass: f32,
    /// Next step whose selection holds it, where that is known (trace replay); otherwise `Step::MAX`.
    pub next_use: Step,
}

/// One block that may leave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its slot.
    pub slot: u32,
    /// Its history.
    pub meta: SlotMeta,
}

/// What an evictor sees: only blocks that may leave (not pinned, not just selected, not in flight), by block id.
pub struct PoolView<'a> {
    /// Blocks that may leave, ascending by block id; scratch of the loop, so an evictor may reorder it.
    pub candidates: &'a mut [Candidate],
    /// The step.
    pub now: Step,
}

/// News for queue policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEvent {
    /// A block came in.
    Admit {
        /// Block.
        block: u32,
        /// Step.
        now: Step,
    },
    /// A resident block was selected.
    Touch {
        /// Block.
        block: u32,
        /// Step.
        now: Step,
    },
    /// A block left.
    Evict {
        /// Block.
        block: u32,
        /// Step.
        now: Step,
    },
}

/// Who leaves. Smallest `keep` goes first, ties to the lowest block id. One instance a pool.
pub trait Evictor: Send {
    /// What messages call it.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// How much the block is worth keeping: a pure function of its arguments and of what was observed.
    fn keep(&self, slot: &SlotMeta, now: Step) -> f32;

    /// Puts exactly `need` distinct block ids of `pool.candidates` into `out`, first to leave first. `need` is
    /// never above their number; [`crate::select`] checks the answer.
    fn evict(&mut self, pool: &mut PoolView<'_>, need: usize, out: &mut Vec<u32>) {
        let now = pool.now;
        // A NaN opinion is no opinion: it counts as "keep least". −0 is 0.
        let worth = |c: &Candidate| {
            let keep = self.keep(&c.meta, now);
            if keep.is_nan() { f32::NEG_INFINITY } else { keep + 0.0 }
        };
        let order = |a: &Candidate, b: &Candidate| {
            worth(a).total_cmp(&worth(b)).then(a.meta.block.cmp(&b.meta.block))
        };
        // Sorting in place keeps the step free of allocations.
        if (1..pool.candidates.len()).contains(&need) {
            pool.candidates.select_nth_unstable_by(need - 1, order);
        }
        let leaving = &mut pool.candidates[..need];
        leaving.sort_unstable_by(order);
        out.extend(leaving.iter().map(|c| c.meta.block));
    }

    /// Admissions, touches and evictions, as they happen.
    fn observe(&mut self, _event: PoolEvent) {}

    /// Whether it looks at [`SlotMeta::last_attended`] or [`SlotMeta::mass`]: a replay that nobody audits computes masses
    /// only for those that do.
    fn reads_mass(&self) -> bool {
        true
    }

    /// Whether it looks at [`SlotMeta::next_use`], which only a replay of known selections has; a decode refuses it.
    fn needs_next_use(&self) -> bool {
        false
    }

    /// The twin that runs on the device, if there is one.
    fn device(&self) -> Option<DeviceEvictor> {
        None
    }
}
