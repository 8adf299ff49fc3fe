//! The decode loop: one step for a batch, the same for every mode, policy and backend.
//!
//! ```text
//! lay out → pass { embed → for each layer { project, attend, stage, finish } → sample } → verify → commit → draft
//! ```
//!
//! `stage` is predict → rank → select → fetch for the next step; on demand it runs before `attend`, with the
//! step's own query. Where the backend has a chain for these policies ([`crate::chain`]), `stage` asks the host for nothing
//! and the pass is recorded once and replayed; else it runs here.

mod attend;
mod audit;
mod cache;
mod device;
mod ranking;
mod record;
mod replay;
mod rows;
mod seal;
mod stage;
mod start;
mod verify;

use crate::draft::{Draft, DraftShape, DraftTree};
use crate::engine::{Engine, Prefix};
use crate::forward::{self, Work};
use crate::ids::Step;
use crate::model::Model;
use crate::ops::{Backend, CacheShape, Memory, Move, RowTable, TailMove, Usage};
use crate::plan::MemoryPlan;
use crate::policy::{Evictor, Needs, Predictor, Summary, SummaryShape, When};
use crate::select::Outcome;
use crate::settings::{Emit, Group, MAX_ROWS, Settings};
use crate::stats::StepReport;
use crate::store::HostStore;
use crate::{Error, Result};
use audit::Audit;
use cache::{LayerCache, Pins};
use half::bf16;
use rand_chacha::ChaCha8Rng;
pub use ranking::Rankings;
use replay::Purpose;
pub use replay::{Replay, ReplayOptions};
use rows::SeqRows;
use std::sync::Arc;
use std::time::Instant;

/// Makes one instance from a seed of its own.
pub type Factory<T> = Arc<dyn Fn(u64) -> Result<Box<T>> + Send + Sync>;

/// The policies of a decode, as factories: every sequence and pool gets fresh instances.
pub struct Policies<B: Backend> {
    /// Summary.
    pub summary: Arc<dyn Summary>,
    /// Predictor, one a sequence.
    pub predictor: Factory<dyn Predictor>,
    /// Evictor, one a pool.
    pub evictor: Factory<dyn Evictor>,
    /// Draft source, one a sequence.
    pub draft: Factory<dyn Draft<B>>,
    /// How far drafts go.
    pub draft_shape: DraftShape,
}

impl<B: Backend> Clone for Policies<B> {
    fn clone(&self) -> Self {
        Self {
            summary: self.summary.clone(),
            predictor: self.predictor.clone(),
            evictor: self.evictor.clone(),
            draft: self.draft.clone(),
            draft_shape: self.draft_shape,
        }
    }
}

/// Where a sequence starts.
pub struct Start<B: Memory> {
    /// Its prompt, prefilled.
    pub prefix: Arc<Prefix<B>>,
    /// The newest accepted token; it has not been processed yet.
    pub first: u32,
    /// Tokens that will follow `first`, for ideal drafts; may be empty.
    pub future: Vec<u32>,
    /// Most tokens decoded after `first`.
    pub max_new: usize,
    /// Seed of all its draws and policies; a sequence's results do not depend on its batch.
    pub seed: u64,
}

/// A sequence in flight.
struct Seq<B: Backend> {
    /// Prompt and accepted tokens; all but the last are processed.
    tokens: Vec<u32>,
    prompt: usize,
    max_new: usize,
    /// Committed tokens of the tail.
    tail: usize,
    predictor: Box<dyn Predictor>,
    draft: Box<dyn Draft<B>>,
    future: Vec<u32>,
    /// Rows of the next pass: newest token, then drafts; and their parents.
    row_tokens: Vec<u32>,
    row_parents: Vec<u32>,
    /// Output rows of the draft's layers since its last proposal.
    hidden: Vec<f32>,
    /// Rows that ranked in the last layer of this step, as bits.
    ranking_rows: u32,
    /// The selection in force was ranked by draft rows of the last step, and whether those proved right.
    ranked_by_draft: Option<bool>,
    rng: ChaCha8Rng,
    retired: bool,
}

/// Buffers of the loop that are not a layer's.
struct Buffers<B: Memory> {
    work: Work<B>,
    k: B::Buf<bf16>,
    v: B::Buf<bf16>,
    logits: B::Buf<f32>,
    /// `[pools][blocks]`; out while the score op runs.
    scores: Option<B::Buf<f32>>,
    /// Host copy of a layer's `block_lse`, `[rows][heads][slots + 1]`.
    host_lse: Vec<f32>,
    /// ln of the exact mass of pinned blocks and tail, `[rows][heads]`.
    pinned_lse: Vec<f32>,
    /// Output rows of the draft's layers, `[layers asked for][rows][hidden]`, and their host copy.
    hidden: B::Buf<f32>,
    host_hidden: Vec<f32>,
    /// Logits of one row of a shallow pass, `[vocab]`.
    shallow_logits: B::Buf<f32>,
    /// Sampled tokens and the numbers they are drawn with, `[rows]`, and their host copies.
    tokens: B::Buf<u32>,
    draws: B::Buf<f32>,
    sampled: Vec<u32>,
    host_draws: Vec<f32>,
    /// Row 0 of each sequence in `logits`, and the row last asked for.
    logit_rows: Vec<u32>,
    asked_logits: Vec<f32>,
    mass: Vec<f32>,
    rows: (Vec<u32>, Vec<u32>),
    candidates: Vec<(u32, u32)>,
    scratch_candidates: Vec<(u32, u32)>,
    masks: Vec<u32>,
    queries: Vec<f32>,
    q_rows: Vec<bf16>,
    moves: Vec<Move>,
    tail_moves: Vec<TailMove>,
    slots_of: Vec<u32>,
}

/// Everything of a decode but the backend and the model.
struct State<B: Backend> {
    settings: Settings,
    shape: CacheShape,
    pins: Pins,
    k: usize,
    cap: usize,
    summary: Arc<dyn Summary>,
    summary_shape: SummaryShape,
    group: Group,
    draft_shape: DraftShape,
    needs: Needs,
    hidden_layers: Vec<usize>,
    seqs: Vec<Seq<B>>,
    rows: RowTable<B>,
    store: HostStore<B>,
    layers: Vec<LayerCache<B>>,
    buf: Buffers<B>,
    audit: Option<Audit<B>>,
    /// Pools on the device, instead of those of the layers.
    chain: Option<device::DeviceChain<B>>,
    recording: B::Recording,
    /// Why there is no chain.
    why_host: String,
    /// What a replay leaves out, and what it knows; a decode leaves out nothing and knows nothing.
    play: replay::Play,
    /// Who writes down what the policies are fed, if anyone does.
    recorder: Option<record::Recorder>,
    now: Step,
    report: StepReport,
}

/// The backend and the model, as the loop's parts borrow them.
struct Device<'a, B: Backend> {
    backend: &'a mut B,
    model: &'a Model<B>,
}

/// A batch being decoded.
pub struct Decoder<'e, B: Backend> {
    engine: &'e mut Engine<B>,
    state: State<B>,
    plan: MemoryPlan,
    before: Usage,
    initial_bytes: u64,
}

impl<'e, B: Backend> Decoder<'e, B> {
    /// Starts a batch: plans and allocates its memory, summarises its prompts, fills its pools.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings out of range, [`Error::Capacity`] for what does not fit the model.
    pub fn new(
        engine: &'e mut Engine<B>,
        settings: &Settings,
        policies: &Policies<B>,
        batch: Vec<Start<B>>,
    ) -> Result<Self> {
        Self::start(engine, settings, policies, batch, Purpose::Decode)
    }

    fn start(
        engine: &'e mut Engine<B>,
        settings: &Settings,
        policies: &Policies<B>,
        batch: Vec<Start<B>>,
        purpose: Purpose,
    ) -> Result<Self> {
        let before = engine.backend.usage();
        let model = engine.model.clone();
        let mut device = Device { backend: &mut engine.backend, model: &model };
        let (state, plan, initial_bytes) = State::start(&mut device, settings, policies, batch, purpose)?;
        Ok(Self { engine, state, plan, before, initial_bytes })
    }

    /// One step. `forced`: per sequence, the token that is accepted next whatever the logits say
    /// ([`crate::ids::NONE`]: the logits decide).
    ///
    /// # Errors
    /// [`Error::Capacity`] if a sequence would grow beyond its `max_new`.
    pub fn step(&mut self, forced: Option<&[u32]>) -> Result<&StepReport> {
        let model = self.engine.model.clone();
        let mut device = Device { backend: &mut self.engine.backend, model: &model };
        self.state.step(&mut device, forced)?;
        Ok(&self.state.report)
    }

    /// Logits of row 0 of the last step, `[vocab]`.
    ///
    /// # Errors
    /// Those of a copy from the device.
    pub fn logits(&mut self, seq: usize) -> Result<&[f32]> {
        let buf = &mut self.state.buf;
        let vocab = buf.asked_logits.len();
        let row = buf.logit_rows.get(seq).copied().unwrap_or_default() as usize;
        self.engine.backend.read(&buf.logits, row * vocab, &mut buf.asked_logits)?;
        Ok(&buf.asked_logits)
    }

    /// The last step's selections in a layer, one a pool (sequence by sequence, KV head by KV head). They are not known
    /// where selection runs on the device.
    pub fn outcomes(&self, layer: usize) -> &[Outcome] {
        &self.state.layers[layer].residency.outcomes
    }

    /// The backend, for what is asked of it between steps (to take times within passes).
    pub fn backend(&mut self) -> &mut B {
        &mut self.engine.backend
    }

    /// Whether ranking, selection and seals run on the device; if not, why.
    pub fn on_device(&self) -> std::result::Result<(), &str> {
        self.state.chain.as_ref().map_or(Err(self.state.why_host.as_str()), |_| Ok(()))
    }

    /// Prompt and accepted tokens.
    pub fn tokens(&self, seq: usize) -> &[u32] {
        &self.state.seqs[seq].tokens
    }

    /// The sequence sits out all further steps.
    pub fn retire(&mut self, seq: usize) {
        self.state.seqs[seq].retired = true;
    }

    /// Whether some block of some sequence will not be resident. If not, the decode equals dense decoding.
    pub fn is_sparse(&self) -> bool {
        let s = &self.state;
        s.settings.mode != crate::settings::Mode::Dense && s.settings.budget_blocks() < s.shape.blocks
    }

    /// The predicted memory.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The memory that this decode really allocated on the device, and the host store's growth.
    pub fn allocated(&self) -> Usage {
        let now = self.engine.backend.usage();
        Usage { device: now.device - self.before.device, host: now.host - self.before.host }
    }

    /// Bytes copied from the host store to fill the pools before the first step.
    pub fn initial_bytes(&self) -> u64 {
        self.initial_bytes
    }

    /// K and C as integers.
    pub fn k_and_cap(&self) -> (usize, usize) {
        (self.state.k, self.state.cap)
    }

    /// Shuffles every pool's free slots. Results must not change; tests use it.
    pub fn shuffle_free_slots(&mut self, seed: u64) {
        self.state.shuffle_free_slots(seed);
    }

    /// Compares the slots of every resident block with the host store, bit for bit.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first block that differs.
    pub fn verify_slots(&mut self) -> Result<()> {
        self.state.verify_slots(&mut self.engine.backend)
    }
}

impl<B: Backend> Buffers<B> {
    fn own_scores(&self) -> Result<&B::Buf<f32>> {
        self.scores.as_ref().ok_or_else(|| Error::Invariant("the score buffer is in use".into()))
    }
}

impl<B: Backend> State<B> {
    fn step(&mut self, d: &mut Device<'_, B>, forced: Option<&[u32]>) -> Result<()> {
        let start = Instant::now();
        self.now += 1;
        self.begin_report();
        self.lay_out(d.backend)?;
        if self.rows.rows() == 0 {
            return Err(Error::Capacity("every sequence of the batch is retired".into()));
        }
        self.record_rows(d);
        self.draw(d)?;
        self.run_pass(d)?;
        self.collect(d)?;
        self.record_tokens(forced);
        self.verify_and_commit(d, forced)?;
        self.count_device(d)?;
        self.propose(d)?;
        self.report.seconds.total = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Everything of a step that the device does by itself, if its policies can.
    fn pass(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let when = self.needs.when;
        self.embed(d)?;
        for layer in 0..d.model.config.geometry.layers {
            self.project(d, layer)?;
            self.record_layer(d, layer)?;
            if when == When::OnDemand {
                self.stage_on_demand(d, layer)?;
            }
            self.attend(d, layer)?;
            self.audit(d, layer)?;
            if when == When::Ahead {
                self.stage(d, layer)?;
            }
            self.finish(d, layer)?;
        }
        self.sample(d)?;
        d.backend.join()
    }

    fn begin_report(&mut self) {
        self.report.step = self.now;
        self.report.seconds = Default::default();
        self.seqs.iter_mut().for_each(|s| s.ranking_rows = 0);
        for r in &mut self.report.seqs {
            r.emitted.clear();
            (r.drafts, r.accepted, r.draft_depth, r.draft_right) = (0, 0, 0, None);
            r.layers.fill(Default::default());
            r.heads.fill(Default::default());
        }
    }

    /// Lays out the rows of all sequences that take part.
    fn lay_out(&mut self, backend: &mut B) -> Result<()> {
        let seqs = self.seqs.iter().map(|s| {
            let (tokens, parents): (&[u32], &[u32]) =
                if s.retired { (&[], &[]) } else { (&s.row_tokens, &s.row_parents) };
            SeqRows { tokens, parents, position: s.tokens.len() - 1, tail: s.tail }
        });
        rows::lay_out(backend, &mut self.rows, seqs, &mut self.buf.rows)
    }

    /// Lays out one sequence's rows as a chain that starts with its newest token at `position`.
    fn lay_out_path(&mut self, backend: &mut B, seq: usize, position: usize, path: &[u32]) -> Result<()> {
        const CHAIN: [u32; MAX_ROWS] = [0, 0, 1, 2, 3, 4, 5, 6];
        let seqs = self.seqs.iter().enumerate().map(|(i, s)| {
            let tokens = if i == seq { path } else { &[] };
            SeqRows { tokens, parents: &CHAIN, position, tail: s.tail }
        });
        rows::lay_out(backend, &mut self.rows, seqs, &mut self.buf.rows)
    }

    fn embed(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let (table, hidden) = (&d.model.embedding.weight, d.model.config.geometry.hidden);
        d.backend.embed(table, &self.rows.token, self.rows.rows(), hidden, &mut self.buf.work.x)
    }

    fn project(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let (rows, buf, cache) = (&self.rows, &mut self.buf, &mut self.layers[layer]);
        let (n, position) = (rows.rows(), &rows.position);
        let (work, k, v) = (&mut buf.work, &mut buf.k, &mut buf.v);
        forward::project(d.backend, d.model, layer, n, position, work, &mut cache.q, k, v, 0)?;
        d.backend.append(&self.shape, rows, &buf.k, &buf.v, &mut cache.tail)
    }

    fn finish(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let rows = self.rows.rows();
        forward::finish(d.backend, d.model, layer, rows, &mut self.buf.work)?;
        if let Some(i) = self.hidden_layers.iter().position(|&l| l == layer) {
            let n = rows * d.model.config.geometry.hidden;
            d.backend.copy(&self.buf.work.x, 0, &mut self.buf.hidden, i * n, n)?;
        }
        Ok(())
    }

    /// Whether drafts are worth proposing.
    fn wants_drafts(&self) -> bool {
        self.needs.drafts || self.settings.emit == Emit::Accepted
    }

    /// The next proposal becomes the rows after row 0.
    fn set_rows(seq: &mut Seq<B>, tree: DraftTree) {
        seq.row_tokens.clear();
        seq.row_parents.clear();
        seq.row_tokens.extend(seq.tokens.last());
        seq.row_parents.push(0);
        seq.row_tokens.extend(tree.tokens);
        seq.row_parents.extend(tree.parents);
    }
}
