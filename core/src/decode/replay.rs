//! Policies over a tape, without the model: the loop's own ranking, selection, attention and seals, with queries, keys
//! and tokens from the tape where a decode would compute them.
//!
//! Values are not on a tape, so what attention puts out is nothing; its masses are those of a decode, to the bit.

use super::ranking::{NextUses, Rankings};
use super::{Device, Policies, Start, State, verify};
use crate::draft::DraftTree;
use crate::engine::Prefix;
use crate::geometry::Geometry;
use crate::model::{Family, Linear, Model, ModelConfig, RopeScaling};
use crate::ops::Backend;
use crate::policy::{Evictor, Needs, Predictor, RowSet, When};
use crate::select::Outcome;
use crate::settings::{Group, Mode, Settings};
use crate::stats::StepReport;
use crate::tape::Tape;
use crate::{Error, Result};
use half::bf16;
use std::sync::Arc;

/// What a decode is for.
pub(super) enum Purpose {
    /// Tokens.
    Decode,
    /// Tokens, and tapes of what the policies were fed.
    Record,
    /// The decisions of policies over a tape; with `record`, a tape of them.
    Replay { play: Play, record: bool },
}

/// What a replay leaves out, and what it knows.
pub(super) struct Play {
    /// It is one.
    pub replays: bool,
    /// Attention runs, over real copies: someone reads masses.
    pub masses: bool,
    /// Blocks are summarised: someone scores them.
    pub scores: bool,
    /// Selections that are known.
    pub rankings: Option<Arc<Rankings>>,
    /// When they hold a block next, if the evictor asks.
    pub next: Option<NextUses>,
    /// What the true queries want, to compare with.
    pub truth: Option<Arc<Rankings>>,
    /// Whether a block is wanted, `[blocks]`; scratch.
    pub member: Vec<bool>,
    /// Rankings that are being made.
    pub book: Option<Rankings>,
    /// Scratch.
    pub order: Vec<u64>,
}

impl Default for Play {
    /// A decode's.
    fn default() -> Self {
        Self {
            replays: false,
            masses: true,
            scores: true,
            rankings: None,
            next: None,
            truth: None,
            member: Vec::new(),
            book: None,
            order: Vec::new(),
        }
    }
}

impl<B: Backend> State<B> {
    /// Completes what a replay knows of its evictors; refuses those that need to know what nobody does.
    pub(super) fn settle_play(&mut self) -> Result<()> {
        let evictor = self.layers.first().and_then(|l| l.residency.evictors.first());
        if let Some(evictor) = evictor.filter(|e| e.needs_next_use() && self.play.book.is_none()) {
            let Some(rankings) = &self.play.rankings else {
                let what = format!(
                    "{} evicts by the next use of a block, which no decode knows; use it in `oasis trace replay`",
                    evictor.name()
                );
                return Err(Error::setting("decode.evictor", what));
            };
            self.play.next = Some(NextUses::new(rankings, self.k));
        }
        let reads = |e: &dyn Evictor| e.reads_mass();
        if self.play.replays {
            let normalises = self.group == Group::SoftmaxSum && self.settings.normalise_resident;
            let evicts = self.play.book.is_none() && evictor.is_some_and(|e| reads(e.as_ref()));
            self.play.masses |= self.settings.audit || (self.play.scores && normalises) || evicts;
        }
        Ok(())
    }
}

/// One sequence's policies, run over its tape.
pub struct Replay<B: Backend> {
    backend: B,
    model: Model<B>,
    tape: Arc<Tape>,
    state: State<B>,
    at: usize,
    q: Vec<bf16>,
    k: Vec<bf16>,
}

/// What a replay does beside deciding.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Make a tape of the replay ([`Replay::into_tape`]); it equals the original if settings and policies are the recorded
    /// ones. Attention then runs.
    pub record: bool,
    /// What predictor and summary want ([`Replay::rank`]), so that nothing is scored. Settings and policies must be those
    /// that it was found with, but for evictor, budget and cap.
    pub rankings: Option<Arc<Rankings>>,
    /// What the true queries want ([`Replay::rank_truly`]): agreement with them is then counted, as an audit counts it, and
    /// nothing else of an audit.
    pub truth: Option<Arc<Rankings>>,
}

impl<B: Backend> Replay<B> {
    /// Policies and settings over `tape`; `prefix` is [`Tape::prefix`] with the settings' block size, which replays may
    /// share. The draft source and the most rows of a step are the tape's own. Attention runs only if somebody reads its
    /// masses: the evictor, the audit, `softmax-sum` normalised with them, a recording.
    ///
    /// # Errors
    /// [`Error::Setting`] for settings out of range or that rank nothing, and for an evictor that needs next uses where no
    /// rankings are given; [`Error::Invariant`] for a tape that is none.
    pub fn new(
        backend: B,
        tape: Arc<Tape>,
        prefix: Arc<Prefix<B>>,
        settings: &Settings,
        policies: &Policies<B>,
        options: ReplayOptions,
    ) -> Result<Self> {
        let ReplayOptions { record, rankings, truth } = options;
        for r in rankings.iter().chain(&truth) {
            let (have, want) = ((r.steps(), r.depth()), (tape.steps(), settings.k()));
            if have.0 != want.0 || have.1 < want.1 {
                return Err(Error::Invariant(format!(
                    "rankings of {} steps and {} blocks for a replay of {} steps and K = {}",
                    have.0, have.1, want.0, want.1
                )));
            }
        }
        let scores = rankings.is_none() || settings.audit;
        let play = Play { replays: true, masses: record, scores, rankings, truth, ..Play::default() };
        Self::start(backend, (tape, prefix), settings, policies, Purpose::Replay { play, record })
    }

    /// The `depth` best blocks of every step, layer and KV head under the settings' predictor and summary.
    ///
    /// # Errors
    /// As [`Replay::new`] and [`Replay::step`].
    pub fn rank(
        backend: B,
        tape: Arc<Tape>,
        prefix: Arc<Prefix<B>>,
        settings: &Settings,
        policies: &Policies<B>,
        depth: usize,
    ) -> Result<Rankings> {
        let g = &tape.geometry;
        let book = Some(Rankings::new(g.layers, g.kv_heads, depth));
        let play = Play { replays: true, masses: false, scores: true, book, ..Play::default() };
        // The smallest pool, so that whatever can be ranked is.
        let budget_tokens = (settings.sink_blocks + settings.window_blocks + 1) * settings.block_tokens;
        let settings = Settings { budget_tokens, audit: false, ..settings.clone() };
        let purpose = Purpose::Replay { play, record: false };
        let mut replay = Self::start(backend, (tape, prefix), &settings, policies, purpose)?;
        while replay.step()?.is_some() {}
        replay.state.play.book.ok_or_else(|| Error::Invariant("rankings that were not made".into()))
    }

    /// As [`Replay::rank`], by the query of the step itself: what a perfect predictor would want.
    ///
    /// # Errors
    /// As [`Replay::rank`].
    pub fn rank_truly(
        backend: B,
        tape: Arc<Tape>,
        prefix: Arc<Prefix<B>>,
        settings: &Settings,
        policies: &Policies<B>,
        depth: usize,
    ) -> Result<Rankings> {
        let settings = Settings { mode: Mode::OnDemand, ..settings.clone() };
        let policies = Policies { predictor: Arc::new(|_| Ok(Box::new(TrueQuery))), ..policies.clone() };
        Self::rank(backend, tape, prefix, &settings, &policies, depth)
    }

    fn start(
        mut backend: B,
        (tape, prefix): (Arc<Tape>, Arc<Prefix<B>>),
        settings: &Settings,
        policies: &Policies<B>,
        purpose: Purpose,
    ) -> Result<Self> {
        if !settings.ranks() {
            let mode = settings.mode.name();
            let what =
                format!("`{mode}` ranks nothing, so there is nothing to replay; use staged or on-demand");
            return Err(Error::setting("decode.mode", what));
        }
        if prefix.tokens != tape.prompt {
            return Err(Error::Invariant("replay: the prefix is another tape's".into()));
        }
        let settings = Settings { max_rows: tape.most_rows(), ..settings.clone() };
        let policies = Policies { draft: Arc::new(|_| Ok(Box::new(verify::NoDraft))), ..policies.clone() };
        let model = hollow(&mut backend, &tape.geometry)?;
        let (first, max_new, seed) = (tape.first, tape.max_new, tape.seed);
        let start = Start { prefix, first, future: Vec::new(), max_new, seed };
        let mut device = Device { backend: &mut backend, model: &model };
        let (state, ..) = State::start(&mut device, &settings, &policies, vec![start], purpose)?;
        Ok(Self { backend, model, tape, state, at: 0, q: Vec::new(), k: Vec::new() })
    }

    /// The next step; none after the last.
    ///
    /// # Errors
    /// [`Error::Invariant`] if the tape does not fit itself, or a policy broke its contract.
    pub fn step(&mut self) -> Result<Option<&StepReport>> {
        if self.at == self.tape.steps() {
            return Ok(None);
        }
        let rows = self.tape.rows(self.at);
        self.begin(rows.start, rows.end)?;
        let (layers, when) = (self.tape.geometry.layers, self.state.needs.when);
        let mut d = Device { backend: &mut self.backend, model: &self.model };
        self.state.lay_out(d.backend)?;
        self.state.record_rows(&d);
        for layer in 0..layers {
            let state = &mut self.state;
            if state.play.masses || state.play.scores {
                self.q.clear();
                self.k.clear();
                for row in rows.clone() {
                    self.q.extend_from_slice(self.tape.query(row, layer));
                    self.k.extend_from_slice(self.tape.key(row, layer));
                }
                d.backend.write(&mut state.layers[layer].q, 0, &self.q)?;
                d.backend.write(&mut state.buf.k, 0, &self.k)?;
                let buf = &state.buf;
                d.backend.append(&state.shape, &state.rows, &buf.k, &buf.v, &mut state.layers[layer].tail)?;
                state.record_layer(&mut d, layer)?;
            }
            if when == When::OnDemand {
                state.stage_on_demand(&mut d, layer)?;
            }
            if state.play.masses {
                state.attend(&mut d, layer)?;
            }
            state.audit(&mut d, layer)?;
            state.compare_with_truth(layer);
            if when == When::Ahead {
                state.stage(&mut d, layer)?;
            }
        }
        let state = &mut self.state;
        state.buf.sampled.clear();
        state.buf.sampled.extend_from_slice(&self.tape.sampled[rows]);
        let forced = [self.tape.forced[self.at]];
        state.record_tokens(Some(&forced));
        state.verify_and_commit(&mut d, Some(&forced))?;
        self.at += 1;
        Ok(Some(&self.state.report))
    }

    /// The selections of the last step in a layer, one a KV head.
    pub fn outcomes(&self, layer: usize) -> &[Outcome] {
        &self.state.layers[layer].residency.outcomes
    }

    /// K and C as integers.
    pub fn k_and_cap(&self) -> (usize, usize) {
        (self.state.k, self.state.cap)
    }

    /// Whether attention ran: without it nothing is known of attended blocks and wasted fetches.
    pub fn has_masses(&self) -> bool {
        self.state.play.masses
    }

    /// The tape of this replay, if one was made.
    pub fn into_tape(self) -> Option<Tape> {
        let tape = self.state.recorder.and_then(|r| r.into_tapes().pop())?;
        // The model without weights has none of the original's widths but those of its heads.
        Some(Tape { geometry: self.tape.geometry.clone(), ..tape })
    }

    /// Sets the rows of the next step.
    fn begin(&mut self, from: usize, end: usize) -> Result<()> {
        let (tape, state) = (&self.tape, &mut self.state);
        state.now += 1;
        state.begin_report();
        let newest = state.seqs[0].tokens.last().copied();
        if newest != Some(tape.tokens[from]) {
            return Err(Error::Invariant(format!(
                "tape: step {} begins with token {}, and the newest accepted one is {newest:?}",
                state.now, tape.tokens[from]
            )));
        }
        let rows = from + 1..end;
        let tree =
            DraftTree { tokens: tape.tokens[rows.clone()].to_vec(), parents: tape.parents[rows].to_vec() };
        State::set_rows(&mut state.seqs[0], tree);
        Ok(())
    }
}

/// Ranks with the step's own query.
struct TrueQuery;

impl Predictor for TrueQuery {
    fn needs(&self) -> Needs {
        Needs { when: When::OnDemand, ..Needs::default() }
    }

    fn rows(&self, _: usize, _: &[u32]) -> Option<RowSet> {
        Some(RowSet::CURRENT)
    }
}

/// A model of these sizes without weights: the loop asks it for sizes only.
fn hollow<B: Backend>(backend: &mut B, g: &Geometry) -> Result<Model<B>> {
    let geometry = Geometry { hidden: 0, intermediate: 0, ..g.clone() };
    Ok(Model {
        config: ModelConfig {
            family: Family::Llama,
            geometry,
            rms_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            bos: None,
            eos: Vec::new(),
        },
        embedding: Linear { weight: backend.alloc(0)?, bias: None, rows_out: g.vocab, cols_in: 0 },
        layers: Vec::new(),
        final_norm: backend.alloc(0)?,
        head: None,
        inv_freq: backend.alloc(0)?,
        digest: String::new(),
    })
}
