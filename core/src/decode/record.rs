//! Writing down what a decode feeds its policies: nothing happens here unless tapes are there.

use super::replay::Purpose;
use super::{Decoder, Device, Policies, Start, State};
use crate::Result;
use crate::engine::Engine;
use crate::ids::NONE;
use crate::ops::Backend;
use crate::settings::Settings;
use crate::tape::Tape;
use half::bf16;

/// The tapes of a batch, with scratch.
pub(super) struct Recorder {
    tapes: Vec<Tape>,
    q: Vec<bf16>,
    k: Vec<bf16>,
}

impl Recorder {
    pub fn new<B: Backend>(d: &Device<'_, B>, batch: &[Start<B>]) -> Self {
        let tapes = batch.iter().map(|start| begin(d, start)).collect();
        Self { tapes, q: Vec::new(), k: Vec::new() }
    }

    pub fn into_tapes(self) -> Vec<Tape> {
        self.tapes
    }

    /// Mass of row 0 of a sequence on its attended blocks.
    pub fn mass(&mut self, seq: usize, blocks: &[u32], share: &[f32]) {
        self.tapes[seq].mass.push(blocks, share);
    }
}

fn begin<B: Backend>(d: &Device<'_, B>, start: &Start<B>) -> Tape {
    let (g, prefix) = (&d.model.config.geometry, &start.prefix);
    let mut tape = Tape::new(g.clone(), prefix.tokens.clone(), start.first, start.max_new, start.seed);
    tape.prompt_keys.reserve(g.layers * prefix.tokens.len() * g.kv_dim());
    for layer in 0..g.layers {
        for head in 0..g.kv_heads {
            for position in 0..prefix.tokens.len() {
                tape.prompt_keys.extend(prefix.key(layer, position, head).into_iter().map(bf16::from_f32));
            }
        }
        tape.prompt_queries.extend(prefix.query(layer).iter().map(|&x| bf16::from_f32(x)));
    }
    tape
}

impl<'e, B: Backend> Decoder<'e, B> {
    /// As [`Decoder::new`], and [`Decoder::into_tapes`] gives what the policies were fed. Pools are then the host's.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn recording(
        engine: &'e mut Engine<B>,
        settings: &Settings,
        policies: &Policies<B>,
        batch: Vec<Start<B>>,
    ) -> Result<Self> {
        Self::start(engine, settings, policies, batch, Purpose::Record)
    }

    /// What was recorded, one tape a sequence; nothing unless the decode was started by [`Decoder::recording`].
    pub fn into_tapes(self) -> Vec<Tape> {
        self.state.recorder.map_or_else(Vec::new, Recorder::into_tapes)
    }
}

impl<B: Backend> State<B> {
    /// The rows that this step lays out.
    pub(super) fn record_rows(&mut self, d: &Device<'_, B>) {
        let Some(recorder) = &mut self.recorder else { return };
        let g = &d.model.config.geometry;
        for (tape, seq) in recorder.tapes.iter_mut().zip(&self.seqs).filter(|(_, seq)| !seq.retired) {
            tape.tokens.extend_from_slice(&seq.row_tokens);
            tape.parents.extend_from_slice(&seq.row_parents);
            let rows = tape.tokens.len();
            tape.row_first.push(rows as u32);
            tape.queries.resize(rows * g.layers * g.q_dim(), bf16::ZERO);
            tape.keys.resize(rows * g.layers * g.kv_dim(), bf16::ZERO);
        }
    }

    /// Queries and keys of a layer.
    pub(super) fn record_layer(&mut self, d: &mut Device<'_, B>, layer: usize) -> Result<()> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        let g = &d.model.config.geometry;
        let (rows, q_dim, kv_dim) = (self.rows.rows(), g.q_dim(), g.kv_dim());
        recorder.q.resize(rows * q_dim, bf16::ZERO);
        recorder.k.resize(rows * kv_dim, bf16::ZERO);
        d.backend.read(&self.layers[layer].q, 0, &mut recorder.q)?;
        d.backend.read(&self.buf.k, 0, &mut recorder.k)?;
        for (s, tape) in recorder.tapes.iter_mut().enumerate() {
            let (first, end) = (self.rows.host_first[s] as usize, self.rows.host_first[s + 1] as usize);
            let before = tape.tokens.len() - (end - first);
            for r in 0..end - first {
                let at = (before + r) * g.layers + layer;
                tape.queries[at * q_dim..][..q_dim]
                    .copy_from_slice(&recorder.q[(first + r) * q_dim..][..q_dim]);
                tape.keys[at * kv_dim..][..kv_dim]
                    .copy_from_slice(&recorder.k[(first + r) * kv_dim..][..kv_dim]);
            }
        }
        Ok(())
    }

    /// What the pass sampled, and what is accepted whatever it sampled.
    pub(super) fn record_tokens(&mut self, forced: Option<&[u32]>) {
        let Some(recorder) = &mut self.recorder else { return };
        for (s, tape) in recorder.tapes.iter_mut().enumerate() {
            let (first, end) = (self.rows.host_first[s] as usize, self.rows.host_first[s + 1] as usize);
            if end > first {
                tape.sampled.extend_from_slice(&self.buf.sampled[first..end]);
                tape.forced.push(forced.map_or(NONE, |f| f[s]));
            }
        }
    }
}
