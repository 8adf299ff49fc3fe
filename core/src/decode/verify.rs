//! The end of a step: sample, verify drafts, commit what was accepted, propose the next drafts.

use super::{Device, Seq, State};
use crate::draft::{DraftTree, DraftView, Target};
use crate::forward;
use crate::ids::NONE;
use crate::ops::Backend;
use crate::settings::{Emit, MAX_ROWS};
use crate::{Error, Result};
use rand::RngExt;
use std::time::Instant;

/// The rows of a step whose K and V stay, row 0 first; on the stack, since a step does not allocate.
#[derive(Clone, Copy)]
struct Path {
    rows: [usize; MAX_ROWS],
    len: usize,
}

impl Default for Path {
    fn default() -> Self {
        Self { rows: [0; MAX_ROWS], len: 1 }
    }
}

impl Path {
    fn push(&mut self, row: usize) {
        self.rows[self.len] = row;
        self.len += 1;
    }
}

impl std::ops::Deref for Path {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.rows[..self.len]
    }
}

impl<B: Backend> State<B> {
    /// Logits and one sampled token for every row.
    pub(super) fn sample(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let (rows, vocab) = (self.rows.rows(), d.model.config.geometry.vocab);
        forward::head(d.backend, d.model, rows, &mut self.buf.work, &mut self.buf.logits)?;
        let (buf, sampling) = (&mut self.buf, &self.settings.sampling);
        d.backend.sample(&buf.logits, rows, vocab, sampling, &buf.draws, &mut buf.tokens)
    }

    /// The numbers that this step's tokens are drawn with.
    pub(super) fn draw(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        if self.settings.sampling.greedy() {
            return Ok(());
        }
        let draws = &mut self.buf.host_draws;
        draws.clear();
        draws.extend(self.rows.host_seq.iter().map(|&s| self.seqs[s as usize].rng.random::<f32>()));
        d.backend.write(&mut self.buf.draws, 0, draws)
    }

    /// Reads what the pass left: tokens, and output rows for the draft.
    pub(super) fn collect(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let (rows, buf) = (self.rows.rows(), &mut self.buf);
        buf.sampled.resize(rows, NONE);
        d.backend.read(&buf.tokens, 0, &mut buf.sampled)?;
        if let Some(row) = buf.sampled.iter().position(|&token| token == NONE) {
            return Err(Error::Invariant(format!("step {}: all logits of row {row} are NaN", self.now)));
        }
        buf.logit_rows.clear();
        buf.logit_rows.extend_from_slice(&self.rows.host_first[..self.seqs.len()]);
        let hidden = self.hidden_layers.len() * rows * d.model.config.geometry.hidden;
        if hidden == 0 {
            return Ok(());
        }
        d.backend.read(&buf.hidden, 0, &mut buf.host_hidden[..hidden])
    }

    /// Walks every draft tree along the sampled tokens, accepts, closes up the tails, seals full blocks.
    pub(super) fn verify_and_commit(&mut self, d: &mut Device<'_, B>, forced: Option<&[u32]>) -> Result<()> {
        let mut moves = std::mem::take(&mut self.buf.tail_moves);
        moves.clear();
        for s in 0..self.seqs.len() {
            let (first, end) = (self.rows.host_first[s] as usize, self.rows.host_first[s + 1] as usize);
            if first == end {
                continue;
            }
            let path = self.verify(s, first, forced.map(|f| f[s]).filter(|&t| t != crate::ids::NONE))?;
            for (i, &row) in path.iter().enumerate().filter(|&(i, &row)| i != row) {
                let tail = self.seqs[s].tail;
                moves.push([s as u32, (tail + row) as u32, (tail + i) as u32]);
            }
            self.keep_hidden(d, s, first, &path);
            self.seqs[s].tail += path.len();
        }
        if self.chain.is_some() {
            let done = self.commit_on_device(d, &moves);
            self.buf.tail_moves = moves;
            return done;
        }
        if !moves.is_empty() {
            for cache in &mut self.layers {
                d.backend.compact(&self.shape, &moves, &mut cache.tail)?;
            }
        }
        self.buf.tail_moves = moves;
        for s in 0..self.seqs.len() {
            while self.seqs[s].tail >= self.settings.block_tokens {
                self.seal(d, s)?;
            }
        }
        Ok(())
    }

    /// The rows whose K and V stay: row 0, and with `emit = accepted` the accepted drafts below it.
    fn verify(&mut self, s: usize, first: usize, forced: Option<u32>) -> Result<Path> {
        let seq = &mut self.seqs[s];
        let report = &mut self.report.seqs[s];
        let drafts = seq.row_tokens.len() - 1;
        report.drafts = drafts as u32;
        report.draft_depth = longest_path(&seq.row_parents);
        report.ranked_by_right_draft = seq.ranked_by_draft;
        let room = (seq.prompt + 1 + seq.max_new).saturating_sub(seq.tokens.len());
        if room == 0 {
            return Err(Error::Capacity(format!(
                "sequence {s} has its {} new tokens; plan for more (max_new) or retire it",
                seq.max_new
            )));
        }
        let (mut row, mut path, mut next) = (0, Path::default(), forced.unwrap_or(self.buf.sampled[first]));
        let mut right_row = None;
        loop {
            let emits = report.emitted.is_empty() || self.settings.emit == Emit::Accepted;
            if emits && report.emitted.len() < room {
                report.emitted.push(next);
            }
            let child =
                (1..=drafts).find(|&r| seq.row_parents[r] as usize == row && seq.row_tokens[r] == next);
            if row == 0 {
                right_row = child;
            }
            let Some(child) = child else { break };
            report.accepted += 1;
            if self.settings.emit == Emit::Accepted && report.emitted.len() < room && forced.is_none() {
                path.push(child);
            }
            (row, next) = (child, self.buf.sampled[first + child]);
        }
        report.emitted.truncate(path.len());
        report.draft_right = (drafts > 0).then_some(right_row.is_some());
        let by_drafts = seq.ranking_rows & !1;
        seq.ranked_by_draft = (by_drafts != 0).then(|| right_row.is_some_and(|r| by_drafts >> r & 1 == 1));
        seq.tokens.extend_from_slice(&report.emitted);
        Ok(path)
    }

    /// Output rows of the committed tokens, for the draft.
    fn keep_hidden(&mut self, d: &Device<'_, B>, s: usize, first: usize, path: &[usize]) {
        let hidden = d.model.config.geometry.hidden;
        let rows = self.rows.rows();
        for &row in path {
            for l in 0..self.hidden_layers.len() {
                let at = (l * rows + first + row) * hidden;
                self.seqs[s].hidden.extend_from_slice(&self.buf.host_hidden[at..at + hidden]);
            }
        }
    }

    /// Asks every draft source for the rows of the next pass.
    pub(super) fn propose(&mut self, d: &mut Device<'_, B>) -> Result<()> {
        let start = Instant::now();
        for s in 0..self.seqs.len() {
            if self.seqs[s].retired {
                continue;
            }
            let tree = if self.wants_drafts() { self.ask_draft(d, s)? } else { DraftTree::default() };
            Self::set_rows(&mut self.seqs[s], tree);
        }
        self.report.seconds.draft += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn ask_draft(&mut self, d: &mut Device<'_, B>, s: usize) -> Result<DraftTree> {
        let mut draft = std::mem::replace(&mut self.seqs[s].draft, Box::new(NoDraft));
        let tokens = std::mem::take(&mut self.seqs[s].tokens);
        let future = std::mem::take(&mut self.seqs[s].future);
        let mut hidden = std::mem::take(&mut self.seqs[s].hidden);
        let known = (tokens.len() - self.seqs[s].prompt - 1).min(future.len());
        let view =
            DraftView { tokens: &tokens, hidden: &hidden, shape: self.draft_shape, future: &future[known..] };
        let model = d.model;
        let newest = tokens.len() - 1;
        let mut target = Shallow { model, state: self, seq: s, newest };
        let tree = draft.propose(d.backend, &mut target, &view);
        hidden.clear();
        let seq = &mut self.seqs[s];
        (seq.draft, seq.tokens, seq.future, seq.hidden) = (draft, tokens, future, hidden);
        let tree = tree?;
        check_tree(&tree, self.settings.max_rows, d.model.config.geometry.vocab)?;
        Ok(tree)
    }
}

fn check_tree(tree: &DraftTree, max_rows: usize, vocab: usize) -> Result<()> {
    let fits = tree.tokens.len() < max_rows && tree.parents.len() == tree.tokens.len();
    let ordered = tree.parents.iter().enumerate().all(|(i, &p)| p as usize <= i);
    let known = tree.tokens.iter().all(|&t| (t as usize) < vocab);
    if fits && ordered && known {
        return Ok(());
    }
    Err(Error::Invariant(format!(
        "the draft source proposed tokens {:?} below parents {:?}; at most {} tokens below {vocab}, each after its parent",
        tree.tokens,
        tree.parents,
        max_rows - 1
    )))
}

/// Length of the longest path below row 0.
fn longest_path(parents: &[u32]) -> u32 {
    let depth = |mut row: usize| {
        let mut n = 0;
        while row != 0 {
            (row, n) = (parents[row] as usize, n + 1);
        }
        n
    };
    (0..parents.len()).map(depth).max().unwrap_or(0)
}

/// The target model for draft sources that run its first layers.
struct Shallow<'a, B: Backend> {
    model: &'a crate::model::Model<B>,
    state: &'a mut State<B>,
    seq: usize,
    newest: usize,
}

impl<B: Backend> Target<B> for Shallow<'_, B> {
    fn shallow_logits(&mut self, backend: &mut B, path: &[u32], layers: usize) -> Result<Vec<f32>> {
        let g = &self.model.config.geometry;
        if path.is_empty() || path.len() > self.state.settings.max_rows || layers > g.layers {
            return Err(Error::Invariant(format!(
                "{} tokens through {layers} layers; at most {} tokens and {} layers",
                path.len(),
                self.state.settings.max_rows,
                g.layers
            )));
        }
        let mut d = Device { backend, model: self.model };
        self.state.lay_out_path(d.backend, self.seq, self.newest, path)?;
        self.state.embed(&mut d)?;
        for layer in 0..layers {
            self.state.project(&mut d, layer)?;
            self.state.run_attend(&mut d, layer, false)?;
            forward::finish(d.backend, d.model, layer, path.len(), &mut self.state.buf.work)?;
        }
        let buf = &mut self.state.buf;
        // The last row alone goes through the head.
        let mut row = vec![0.0; g.hidden];
        d.backend.read(&buf.work.x, (path.len() - 1) * g.hidden, &mut row)?;
        d.backend.write(&mut buf.work.x, 0, &row)?;
        forward::head(d.backend, d.model, 1, &mut buf.work, &mut buf.shallow_logits)?;
        let mut out = vec![0.0; g.vocab];
        d.backend.read(&buf.shallow_logits, 0, &mut out)?;
        Ok(out)
    }

    fn model(&self) -> &crate::model::Model<B> {
        self.model
    }
}

/// Stands in for a draft source while it is being asked.
pub(super) struct NoDraft;

impl<B: Backend> crate::draft::Draft<B> for NoDraft {
    fn propose(&mut self, _: &mut B, _: &mut dyn Target<B>, _: &DraftView<'_>) -> Result<DraftTree> {
        Ok(DraftTree::default())
    }
}

/// The rows of a sequence that has no draft.
pub(super) fn first_rows<B: Backend>(seq: &mut Seq<B>) {
    State::set_rows(seq, DraftTree::default());
}
