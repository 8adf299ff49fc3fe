//! The policies of a benchmark, and drafts without meaning.

use super::flags::Request;
use crate::app::App;
use crate::spec::PolicySpec;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::decode::Policies;
use oasis_core::draft::{Draft, DraftFactory, DraftShape, DraftTree, DraftView, Target};
use oasis_core::ops::{Backend, Noise};
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Emit, Mode, Sampling, Scope, Settings};
use std::sync::Arc;

/// One way of decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Way {
    /// Mode.
    pub mode: Mode,
    /// Resident tokens.
    pub budget: usize,
    /// Fetch cap.
    pub cap: Cap,
}

impl Request {
    /// The loop's settings for a way of decoding; `drafts`: its predictor looks at drafts.
    pub fn settings(&self, way: &Way, drafts: bool) -> Settings {
        Settings {
            mode: way.mode,
            block_tokens: self.block,
            budget_tokens: way.budget,
            sink_blocks: self.sink.div_ceil(self.block),
            window_blocks: self.window.div_ceil(self.block),
            cap: way.cap,
            scope: Scope::Resident,
            group: self.group.resolve(),
            normalise_resident: self.normalise,
            emit: Emit::One,
            sampling: Sampling::default(),
            max_rows: 1 + if drafts { self.draft_rows } else { 0 },
            audit: false,
            seed: self.seed,
        }
    }
}

/// The policies of a mode and whether its predictor looks at drafts. A mode that ranks nothing has no drafts; on-demand ranks with the
/// step's own query.
///
/// # Errors
/// A name that is in no table, a parameter out of range, draft rows that nobody looks at.
pub fn build<B: Backend>(app: &App, request: &Request, mode: Mode) -> Result<(Policies<B>, bool)> {
    let table = |spec: &PolicySpec| spec.table.clone();
    let summary = find("summary", &app.summaries, &request.summary.name)?;
    let summary = Arc::from((summary.build)(&Params { table: table(&request.summary), seed: 0 })?);
    let own = if mode == Mode::OnDemand { PolicySpec::named("oracle") } else { request.predictor.clone() };
    let predict = find("predictor", &app.predictors, &own.name)?.build;
    let needs = predict(&Params { table: table(&own), seed: 0 })?.needs();
    let ranks = !matches!(mode, Mode::Dense | Mode::Window);
    if request.draft_rows > 0 && ranks && mode != Mode::OnDemand && !needs.drafts {
        let what = format!(
            "{}; `{}` does not look at drafts: leave it out, or use `lookahead`",
            request.draft_rows, own.name
        );
        bail!(Error::setting("--draft-rows", what));
    }
    let drafts = ranks && needs.drafts && request.draft_rows > 0;
    // What ranks nothing must not ask for drafts either.
    let (predict, own) = match ranks {
        true => (predict, own),
        false => {
            let quiet = PolicySpec::named("previous-token");
            (find("predictor", &app.predictors, &quiet.name)?.build, quiet)
        }
    };
    let evict = find("evictor", &app.evictors, &request.evictor.name)?.build;
    let evictor_table = table(&request.evictor);
    let rows = if drafts { request.draft_rows } else { 0 };
    let draft: DraftFactory<B> = Arc::new(move |seed| Ok(Box::new(RandomDraft { seed, rows, drawn: 0 })));
    let policies = Policies {
        summary,
        predictor: Arc::new(move |seed| predict(&Params { table: own.table.clone(), seed })),
        evictor: Arc::new(move |seed| evict(&Params { table: evictor_table.clone(), seed })),
        draft,
        draft_shape: DraftShape { depth: rows, branches: 1 },
    };
    Ok((policies, drafts))
}

/// A chain of random tokens, new ones at each step: the work of drafts without one that is right.
struct RandomDraft {
    seed: u64,
    rows: usize,
    drawn: u64,
}

impl<B: Backend> Draft<B> for RandomDraft {
    fn propose(
        &mut self,
        _: &mut B,
        target: &mut dyn Target<B>,
        _: &DraftView<'_>,
    ) -> oasis_core::Result<DraftTree> {
        let vocab = target.model().config.geometry.vocab;
        let first = self.drawn;
        self.drawn += self.rows as u64;
        Ok(DraftTree::chain((first..self.drawn).map(|i| random_token(self.seed, i, vocab)).collect()))
    }
}

/// Random token number `i` of a stream.
pub fn random_token(seed: u64, i: u64, vocab: usize) -> u32 {
    (Noise::normal(seed).word(i) % vocab.max(1) as u64) as u32
}
