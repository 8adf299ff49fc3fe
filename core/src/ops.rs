//! One trait per op; [`Backend`] is their sum, so an op without a twin on a device does not compile.
//!
//! Rounding points are visible in the types: whatever feeds a matrix product or attention is `bf16`,
//! everything else is `f32`. All shapes below are row-major. Buffers may be longer than the shapes say;
//! ops touch nothing beyond them.

use crate::geometry::{BlockShape, Geometry};
use crate::model::Linear;
use crate::policy::{Evictor, Summary};
use crate::settings::{Group, Sampling};
use crate::store::HostStore;
use crate::{Result, policy::SummaryShape};
use bytemuck::Pod;
use half::bf16;
use std::ops::{Deref, DerefMut};

/// Bytes that a backend holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Device memory.
    pub device: usize,
    /// Host memory of the KV store (pinned, on a GPU backend).
    pub host: usize,
}

/// Two memories: the device's and the host store's. On the CPU both are RAM, and copies between them are real.
pub trait Memory: Send + 'static {
    /// An array in device memory.
    type Buf<T: Pod + Send + Sync>: Send + Sync;
    /// An array in host memory that the device can read.
    type HostBuf<T: Pod + Send + Sync>: Deref<Target = [T]> + DerefMut + Send + Sync;

    /// `len` zeroed elements of device memory.
    fn alloc<T: Pod + Send + Sync>(&self, len: usize) -> Result<Self::Buf<T>>;
    /// `len` zeroed elements of host memory.
    fn alloc_host<T: Pod + Send + Sync>(&self, len: usize) -> Result<Self::HostBuf<T>>;
    /// Elements of `buf`.
    fn len<T: Pod + Send + Sync>(&self, buf: &Self::Buf<T>) -> usize;
    /// Copies `data` to `buf[at..]`.
    fn write<T: Pod + Send + Sync>(&mut self, buf: &mut Self::Buf<T>, at: usize, data: &[T]) -> Result<()>;
    /// Copies `buf[at..]` to `out`, after everything that was ordered before.
    fn read<T: Pod + Send + Sync>(&mut self, buf: &Self::Buf<T>, at: usize, out: &mut [T]) -> Result<()>;
    /// Copies `n` elements from `from[at..]` to `to[to_at..]` within device memory, in the order of other work.
    fn copy<T: Pod + Send + Sync>(
        &mut self,
        from: &Self::Buf<T>,
        at: usize,
        to: &mut Self::Buf<T>,
        to_at: usize,
        n: usize,
    ) -> Result<()>;
    /// Bytes held now, weights included.
    fn usage(&self) -> Usage;

    /// A new device array with this content.
    fn upload<T: Pod + Send + Sync>(&mut self, data: &[T]) -> Result<Self::Buf<T>> {
        let mut buf = self.alloc(data.len())?;
        self.write(&mut buf, 0, data)?;
        Ok(buf)
    }
}

/// Seeded numbers that stand for real ones: element `i` is `mean + deviation · z(seed, i)`, and z, the sum of four uniform
/// numbers, is roughly normal, of mean 0 and variance 1, and lies within ±3.5.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Two seeds give two arrays with nothing in common.
    pub seed: u64,
    /// Mean.
    pub mean: f32,
    /// Standard deviation.
    pub deviation: f32,
}

impl Noise {
    /// Mean 0, variance 1.
    pub fn normal(seed: u64) -> Self {
        Self { seed, mean: 0.0, deviation: 1.0 }
    }

    /// `deviation` over the deviation of four 16-bit uniform numbers, √((2³² − 1)/3).
    pub fn unit(&self) -> f32 {
        (f64::from(self.deviation) / 37_837.227_422_7) as f32
    }

    /// The 64 random bits that element `i` is made of.
    pub fn word(&self, i: u64) -> u64 {
        mix(self.seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Element `i`. One multiplication and one addition, each rounded: the same bits on every device.
    pub fn at(&self, i: u64) -> f32 {
        let word = self.word(i);
        let sum: u64 = (0..4).map(|k| word >> (16 * k) & 0xffff).sum();
        self.mean + self.unit() * (sum as i32 - 131_070) as f32
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Random content, made where it lies.
pub trait Fill: Memory {
    /// Fills all of `out`.
    fn fill(&mut self, noise: Noise, out: &mut Self::Buf<f32>) -> Result<()>;
    /// Fills all of `out`, rounded to bf16.
    fn fill_half(&mut self, noise: Noise, out: &mut Self::Buf<bf16>) -> Result<()>;
    /// Fills all of an array in host memory, rounded to bf16; on a GPU the device writes it.
    fn fill_host(&mut self, noise: Noise, out: &mut Self::HostBuf<bf16>) -> Result<()>;
}

/// The query positions of one forward pass over a batch, as the loop lays them out.
///
/// The rows of a sequence are neighbours; its row 0 is the newest accepted token, later ones are draft
/// tokens. `rows = seq_first[seqs]`.
pub struct RowTable<B: Memory + ?Sized> {
    /// Sequence of each row, host copy.
    pub host_seq: Vec<u32>,
    /// First row of each sequence and, last, the number of rows; `[seqs + 1]`, host copy.
    pub host_first: Vec<u32>,
    /// Committed tokens in the tail of each sequence, `[seqs]`, host copy.
    pub host_tail: Vec<u32>,
    /// Per row: bit `i` set = row `i` of the same sequence is an ancestor or the row itself; host copy.
    pub host_ancestors: Vec<u32>,
    /// Per row: its token, `[rows]`.
    pub token: B::Buf<u32>,
    /// Per row: its RoPE position, `[rows]`.
    pub position: B::Buf<u32>,
    /// Device copies of the four above.
    pub seq: B::Buf<u32>,
    /// See `host_first`.
    pub first: B::Buf<u32>,
    /// See `host_tail`.
    pub tail: B::Buf<u32>,
    /// See `host_ancestors`.
    pub ancestors: B::Buf<u32>,
}

impl<B: Memory + ?Sized> RowTable<B> {
    /// Rows of this pass.
    pub fn rows(&self) -> usize {
        self.host_seq.len()
    }

    /// Sequences of the batch.
    pub fn seqs(&self) -> usize {
        self.host_tail.len()
    }
}

/// `out[r] = table[token[r]]`.
pub trait Embed: Memory {
    /// table `[vocab][hidden]`, tokens `[rows]`, out `[rows][hidden]`.
    fn embed(
        &mut self,
        table: &Self::Buf<bf16>,
        tokens: &Self::Buf<u32>,
        rows: usize,
        hidden: usize,
        out: &mut Self::Buf<f32>,
    ) -> Result<()>;
}

/// Root-mean-square norm.
pub trait RmsNorm: Memory {
    /// `out[r] = bf16(x[r] / sqrt(mean(x[r]²) + eps) · weight)`; x, out `[rows][dim]`, weight `[dim]`.
    fn rms_norm(
        &mut self,
        x: &Self::Buf<f32>,
        weight: &Self::Buf<f32>,
        eps: f32,
        rows: usize,
        dim: usize,
        out: &mut Self::Buf<bf16>,
    ) -> Result<()>;
}

/// Matrix product with a weight.
pub trait Gemm: Memory {
    /// `out[r] = W x[r] (+ bias) (+ out[r] if accumulate)` in f32; x `[rows][cols_in]`, out `[rows][rows_out]`.
    /// Below 64 rows a row's result does not depend on the other rows, bit for bit.
    fn gemm(
        &mut self,
        x: &Self::Buf<bf16>,
        w: &Linear<Self>,
        rows: usize,
        accumulate: bool,
        out: &mut Self::Buf<f32>,
    ) -> Result<()>;
}

/// Arguments of [`Rope`].
pub struct RopeArgs<'a, B: Memory + ?Sized> {
    /// Sizes.
    pub geometry: &'a Geometry,
    /// `[rows][q_dim + 2 kv_dim]`.
    pub qkv: &'a B::Buf<f32>,
    /// `[head_dim]`, Qwen3.
    pub q_norm: Option<&'a B::Buf<f32>>,
    /// `[head_dim]`, Qwen3.
    pub k_norm: Option<&'a B::Buf<f32>>,
    /// Epsilon of those norms.
    pub eps: f32,
    /// `[rows]`.
    pub positions: &'a B::Buf<u32>,
    /// `[head_dim / 2]`.
    pub inv_freq: &'a B::Buf<f32>,
    /// Rows.
    pub rows: usize,
    /// `[rows][heads][head_dim]`.
    pub q: &'a mut B::Buf<bf16>,
    /// `[first + rows ..][kv_heads][head_dim]`.
    pub k: &'a mut B::Buf<bf16>,
    /// As `k`.
    pub v: &'a mut B::Buf<bf16>,
    /// Row of `k` and `v` at which row 0 is written.
    pub first: usize,
}

/// Per-head norm (where the model has it), RoPE, rounding to bf16.
pub trait Rope: Memory {
    /// The angle is position · inv_freq in f32, as in Hugging Face's Llama; pairs are (i, i + head_dim/2).
    fn rope(&mut self, args: RopeArgs<'_, Self>) -> Result<()>;
}

/// Arguments of [`PrefillAttend`].
pub struct PrefillArgs<'a, B: Memory + ?Sized> {
    /// Sizes.
    pub geometry: &'a Geometry,
    /// `[rows][heads][head_dim]`.
    pub q: &'a B::Buf<bf16>,
    /// `[first + rows][kv_heads][head_dim]`.
    pub k: &'a B::Buf<bf16>,
    /// As `k`.
    pub v: &'a B::Buf<bf16>,
    /// Position of row 0; row r sees positions `0 ..= first + r`.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// `[rows][q_dim]`.
    pub out: &'a mut B::Buf<bf16>,
}

/// Dense causal attention of a chunk of a prompt.
pub trait PrefillAttend: Memory {
    /// Softmax in f32; only the output is rounded.
    fn prefill_attend(&mut self, args: PrefillArgs<'_, Self>) -> Result<()>;
}

/// Sizes of the caches of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Sequences.
    pub seqs: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Slots of a pool.
    pub slots: usize,
    /// Tokens of the tail of a pool (block + most rows of a step).
    pub tail_tokens: usize,
    /// Most blocks a sequence can have: rows of block tables and summaries.
    pub blocks: usize,
    /// A block.
    pub block: BlockShape,
}

impl CacheShape {
    /// Pools of a layer; pool `p` is KV head `p % kv_heads` of sequence `p / kv_heads`.
    pub fn pools(&self) -> usize {
        self.seqs * self.kv_heads
    }

    /// Elements of the slots of a layer, `[pools][slots][K | V]`.
    pub fn slot_elems(&self) -> usize {
        self.pools() * self.slots * self.block.chunk()
    }

    /// Elements of the tail of a layer, `[pools][K: tail_tokens × head_dim | V: …]`.
    pub fn tail_elems(&self) -> usize {
        self.pools() * 2 * self.tail_tokens * self.block.head_dim
    }
}

/// A token's move inside a tail: sequence, from row, to row (both counted from the tail's start).
pub type TailMove = [u32; 3];

/// Writes to the tail.
pub trait Tail: Memory {
    /// Row r of sequence s, its i-th: k, v `[rows][kv_heads][head_dim]` to position `tail[s] + i` of the tail.
    fn append(
        &mut self,
        shape: &CacheShape,
        rows: &RowTable<Self>,
        k: &Self::Buf<bf16>,
        v: &Self::Buf<bf16>,
        tail: &mut Self::Buf<bf16>,
    ) -> Result<()>;

    /// Moves tokens in order (accepted draft rows close up; what follows a sealed block goes to the front).
    fn compact(&mut self, shape: &CacheShape, moves: &[TailMove], tail: &mut Self::Buf<bf16>) -> Result<()>;
}

/// Arguments of [`Attend`].
pub struct AttendArgs<'a, B: Memory + ?Sized> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Sizes of the caches.
    pub shape: &'a CacheShape,
    /// Rows.
    pub rows: &'a RowTable<B>,
    /// `[rows][heads][head_dim]`.
    pub q: &'a B::Buf<bf16>,
    /// `[pools][slots][K | V]`.
    pub slots: &'a B::Buf<bf16>,
    /// Slots to attend, in the order of their block ids: `[pools][slots]`, of which `entry_count[pool]` count.
    pub entries: &'a B::Buf<u32>,
    /// `[pools]`.
    pub entry_count: &'a B::Buf<u32>,
    /// `[pools][K | V]`, see [`CacheShape::tail_elems`].
    pub tail: &'a B::Buf<bf16>,
    /// `[rows][q_dim]`.
    pub out: &'a mut B::Buf<bf16>,
    /// `[rows][heads][slots + 1]`: ln of the sum of exp(logit) over each entry's tokens, by entry; the last
    /// column is the tail. Columns between `entry_count` and the tail are not written.
    pub block_lse: Option<&'a mut B::Buf<f32>>,
}

/// Decode attention: all rows over the resident entries and the tail.
pub trait Attend: Memory {
    /// A row sees every token of its pool's entries, the tail's committed tokens, and of the step's rows
    /// those in its ancestor mask. Blocks are summed in the order of `entries`, so slot ids leave no trace.
    fn attend(&mut self, args: AttendArgs<'_, Self>) -> Result<()>;
}

/// SwiGLU.
pub trait Swiglu: Memory {
    /// `out[r][i] = bf16(silu(g) · u)` of gate_up `[rows][gate: inner | up: inner]`, out `[rows][inner]`.
    fn swiglu(
        &mut self,
        gate_up: &Self::Buf<f32>,
        rows: usize,
        inner: usize,
        out: &mut Self::Buf<bf16>,
    ) -> Result<()>;
}

/// Writes to the host store.
pub trait Seal: Memory {
    /// Packs the first `blocks * block_tokens` rows of one layer of a prompt, k, v `[tokens][kv_heads][head_dim]`,
    /// into the chunks of blocks `0 .. blocks` of `extent` (laid out as [`HostStore`] says).
    fn pack(
        &mut self,
        layout: &crate::store::ExtentLayout,
        layer: usize,
        blocks: usize,
        k: &Self::Buf<bf16>,
        v: &Self::Buf<bf16>,
        extent: &mut Self::HostBuf<bf16>,
    ) -> Result<()>;

    /// Copies the tail's first block of (`seq`, all heads) to block `block` of the host store and, where
    /// `slots_of` (`[kv_heads]`) names a slot, to that slot of the pool.
    #[allow(clippy::too_many_arguments)]
    fn seal(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        seq: usize,
        block: usize,
        slots_of: &[u32],
        tail: &Self::Buf<bf16>,
        store: &mut HostStore<Self>,
        slots: &mut Self::Buf<bf16>,
    ) -> Result<()>;
}

/// Arguments of [`Summarise`].
pub struct SummariseArgs<'a, B: Memory + ?Sized> {
    /// Sizes of the caches.
    pub shape: &'a CacheShape,
    /// The policy.
    pub summary: &'a dyn Summary,
    /// Keys come from here.
    pub store: &'a HostStore<B>,
    /// Layer.
    pub layer: usize,
    /// Sequence.
    pub seq: usize,
    /// Blocks to summarise.
    pub blocks: std::ops::Range<usize>,
    /// `[pools][fit_len]`, see [`Summary::fit`].
    pub fit: &'a B::Buf<f32>,
    /// `[pools][blocks][summary bytes]`.
    pub out: &'a mut B::Buf<u8>,
}

/// Block summaries.
pub trait Summarise: Memory {
    /// Encodes and stores the summaries of a range of blocks, for all KV heads of a sequence.
    fn summarise(&mut self, args: SummariseArgs<'_, Self>) -> Result<()>;
}

/// One block's copy from the host store to a slot: pool, block, slot.
pub type Move = [u32; 3];

/// Host to device.
pub trait Fetch: Memory {
    /// Copies chunks; returns the bytes that it copied.
    fn fetch(
        &mut self,
        shape: &CacheShape,
        layer: usize,
        store: &HostStore<Self>,
        moves: &[Move],
        slots: &mut Self::Buf<bf16>,
    ) -> Result<u64>;
}

/// Which queries rank.
pub enum RankQuery<'a> {
    /// Rows of this pass (bit i = row i of the sequence), one mask a sequence.
    Rows(&'a [u32]),
    /// A stand-in query for each sequence, `[seqs][heads][head_dim]`.
    Query(&'a [f32]),
}

/// Arguments of [`Score`].
pub struct ScoreArgs<'a, B: Memory + ?Sized> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Sizes of the caches.
    pub shape: &'a CacheShape,
    /// The policy and its stored form.
    pub summary: &'a dyn Summary,
    /// `summary.shape(block)`.
    pub summary_shape: &'a SummaryShape,
    /// `[pools][blocks][summary bytes]`.
    pub summaries: &'a B::Buf<u8>,
    /// `[pools][fit_len]`.
    pub fit: &'a B::Buf<f32>,
    /// The rows of the pass.
    pub rows: &'a RowTable<B>,
    /// `[rows][heads][head_dim]`.
    pub q: &'a B::Buf<bf16>,
    /// Which of them rank.
    pub query: RankQuery<'a>,
    /// Candidates of each sequence: blocks `first .. end`, `[seqs]`.
    pub candidates: &'a [(u32, u32)],
    /// How the scores of a group's heads, and of several ranking rows, become one.
    pub group: Group,
    /// ln of the exact mass of the always-resident tokens, `[rows][heads]`; with it `softmax-sum` is normalised
    /// by estimated candidate mass plus this mass, without it over the candidates alone. Needs `Rows`.
    pub resident_lse: Option<&'a [f32]>,
    /// `[pools][blocks]`; only candidates are written.
    pub out: &'a mut B::Buf<f32>,
}

/// Ranking scores.
pub trait Score: Memory {
    /// `score = group(reduce_v(lift(q) · s_v))` for every pool and candidate block.
    fn score(&mut self, args: ScoreArgs<'_, Self>) -> Result<()>;
}

/// Arguments of [`ExactAttend`].
pub struct ExactArgs<'a, B: Memory + ?Sized> {
    /// Sizes of the model.
    pub geometry: &'a Geometry,
    /// Sizes of the caches.
    pub shape: &'a CacheShape,
    /// All sealed blocks.
    pub store: &'a HostStore<B>,
    /// Layer.
    pub layer: usize,
    /// The rows of the pass; row 0 of each sequence asks.
    pub rows: &'a RowTable<B>,
    /// `[rows][heads][head_dim]`.
    pub q: &'a B::Buf<bf16>,
    /// The tail, with the step's rows appended.
    pub tail: &'a B::Buf<bf16>,
    /// `[seqs][heads][blocks + 1]`: ln of the exact mass of every sealed block; the last column is the tail
    /// (committed tokens and row 0). Host memory; columns of blocks that a sequence has not sealed are not written.
    pub block_lse: &'a mut [f32],
    /// `[seqs][q_dim]`: the dense output, in f32, host memory.
    pub out: &'a mut [f32],
}

/// Full attention over the host store: the truth that an audit compares with. Sequences without rows are skipped.
pub trait ExactAttend: Memory {
    /// Exact softmax attention of row 0 of every sequence over all its sealed blocks and the tail.
    fn exact_attend(&mut self, args: ExactArgs<'_, Self>) -> Result<()>;
}

/// Arguments of [`Select`].
pub struct SelectArgs<'a, B: Memory + ?Sized> {
    /// Sizes of the caches.
    pub shape: &'a CacheShape,
    /// `[pools][blocks]`.
    pub scores: &'a B::Buf<f32>,
    /// Candidates of each sequence.
    pub candidates: &'a [(u32, u32)],
    /// K of each sequence's pools.
    pub k: usize,
    /// C.
    pub cap: usize,
    /// The step that selects.
    pub now: crate::ids::Step,
    /// Pools and their states, `[pools]`.
    pub pools: &'a mut [crate::pool::Pool],
    /// One evictor a pool, `[pools]`.
    pub evictors: &'a mut [Box<dyn Evictor>],
    /// `[pools]`: what was decided.
    pub outcomes: &'a mut [crate::select::Outcome],
}

/// Top-K, cap, eviction.
pub trait Select: Memory {
    /// Runs [`crate::select::select`] for every pool.
    fn select(&mut self, args: SelectArgs<'_, Self>) -> Result<()>;
}

/// Next tokens.
pub trait Sample: Memory {
    /// One token a row from logits `[rows][vocab]` to out `[rows]`; `draws[r]` is a uniform number in [0, 1), unused when
    /// greedy. Greedy takes the largest logit, ties to the lowest id; NaN never wins: a row of NaN alone gives
    /// [`crate::ids::NONE`].
    fn sample(
        &mut self,
        logits: &Self::Buf<f32>,
        rows: usize,
        vocab: usize,
        sampling: &Sampling,
        draws: &Self::Buf<f32>,
        out: &mut Self::Buf<u32>,
    ) -> Result<()>;
}

/// What the launches of a pass hang on beside the decode's buffers: passes of one key may share a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PassKey {
    /// Rows.
    pub rows: usize,
    /// Most rows of a sequence.
    pub most_rows: usize,
}

/// Seconds of a pass by the device's own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PassSeconds {
    /// From the pass's first work to its last.
    pub total: f64,
    /// Copies from the host store, all layers.
    pub fetch: f64,
    /// The part of the background's work that the foreground waited for.
    pub exposed: f64,
}

/// The order of work: a foreground that a step waits for, and background work beside it. On the CPU all work is in
/// order already.
pub trait Order: Memory {
    /// Recorded passes of one decode.
    type Recording: Default + Send;

    /// Runs `pass`, or a recording of an earlier run of it. A pass that may be replayed takes all that changes from
    /// device memory, and neither reads nor writes host memory.
    fn replay(
        &mut self,
        recording: &mut Self::Recording,
        key: PassKey,
        pass: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()>;
    /// What follows, up to [`Order::end_stage`], runs in the background after the foreground's work so far.
    fn begin_stage(&mut self, layer: usize) -> Result<()>;
    /// Ends the background part of `layer`.
    fn end_stage(&mut self, layer: usize) -> Result<()>;
    /// The foreground waits for all background work so far.
    fn join(&mut self) -> Result<()>;
    /// Times of the last pass, where the device was asked to take them; waits for its end.
    fn pass_seconds(&mut self) -> Result<Option<PassSeconds>>;
}

/// Everything the loop asks of a device.
pub trait Backend:
    Embed
    + RmsNorm
    + Gemm
    + Rope
    + PrefillAttend
    + Tail
    + Attend
    + Swiglu
    + Seal
    + Summarise
    + Fetch
    + Score
    + ExactAttend
    + Select
    + Sample
    + Fill
    + Order
    + crate::chain::Chain
{
    /// `cpu`, `cpu-portable`, `cuda`.
    fn name(&self) -> &'static str;
    /// The device, for records.
    fn describe(&self) -> String;
}
