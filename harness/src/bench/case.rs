//! What is measured: every way of decoding at every batch and context, planned before anything is allocated.

use super::auto::{Choice, Question};
use super::flags::{Batch, ModeChoice, Request};
use super::limits::{self, Limits, Need};
use super::policies::{self, Way};
use super::prompts::lengths;
use super::record::BandwidthRecord;
use super::shape::{Shape, step_weights, weights_bytes};
use super::{auto, memory};
use crate::app::App;
use anyhow::Result;
use oasis_core::decode::Policies;
use oasis_core::ops::Backend;
use oasis_core::settings::{Mode, Settings};

/// One row of the table.
pub struct Case<B: Backend> {
    /// How it decodes.
    pub way: Way,
    /// How `auto` came to it.
    pub auto: Option<Choice>,
    /// Sequences.
    pub batch: usize,
    /// Tokens of the longest prompt.
    pub context: usize,
    /// The loop's settings.
    pub settings: Settings,
    /// Policies.
    pub policies: Policies<B>,
    /// Planned memory.
    pub need: Need,
    /// Why it cannot run.
    pub refused: Option<String>,
}

/// What all cases hang on.
pub struct Planner<'a, B: Backend> {
    /// Tables of policies.
    pub app: &'a App,
    /// What was asked for.
    pub request: &'a Request,
    /// The model.
    pub shape: &'a Shape,
    /// The device.
    pub backend: &'a B,
    /// Device memory that it held before the model.
    pub held: u64,
    /// What may be used.
    pub limits: Limits,
    /// Measured bandwidths.
    pub rates: &'a BandwidthRecord,
}

/// Ways of decoding in a mode: a mode without a budget, or without a cap, does not multiply by them.
fn ways(request: &Request, mode: Mode) -> Vec<Way> {
    let budgets = if mode == Mode::Dense { &request.budget[..1] } else { &request.budget[..] };
    let capped = !matches!(mode, Mode::Dense | Mode::Static | Mode::Window);
    let caps = if capped { &request.cap[..] } else { &request.cap[..1] };
    let of_budget = |&budget: &usize| caps.iter().map(move |cap| Way { mode, budget, cap: cap.0 });
    budgets.iter().flat_map(of_budget).collect()
}

impl<B: Backend> Planner<'_, B> {
    /// All cases, context by context, batch by batch.
    ///
    /// # Errors
    /// Settings or policies that cannot be.
    pub fn cases(&self) -> Result<Vec<Case<B>>> {
        let mut cases = Vec::new();
        for &context in &self.request.context {
            for &batch in &self.request.batch {
                for &mode in &self.request.modes {
                    match mode {
                        ModeChoice::Fixed(mode) => {
                            for way in ways(self.request, mode) {
                                cases.push(self.case(way, batch, context)?);
                            }
                        }
                        ModeChoice::Auto => {
                            for way in ways(self.request, Mode::Staged) {
                                cases.push(self.automatic(way, batch, context)?);
                            }
                        }
                    }
                }
            }
        }
        Ok(cases)
    }

    /// Memory of a decode of this batch and context.
    fn need(&self, settings: &Settings, policies: &Policies<B>, (batch, context): limits::Size) -> Need {
        let config = &self.shape.config;
        let seqs = lengths(context, batch, self.request.all_steps(), self.request.share_prompt);
        let plan = memory::plan(self.backend, &config.geometry, settings, policies, &seqs);
        let need = Need { backend: self.held, weights: weights_bytes(config) as u64, plan };
        if self.request.share_prompt { memory::share_prompt(need, batch) } else { need }
    }

    fn case(&self, way: Way, batch: Batch, context: usize) -> Result<Case<B>> {
        let (policies, drafts) = policies::build(self.app, self.request, way.mode)?;
        let settings = self.request.settings(&way, drafts);
        settings.check()?;
        let need = |size| self.need(&settings, &policies, size);
        let batch = match batch {
            Batch::Of(n) => n,
            // One that does not fit is refused below.
            Batch::Max => limits::search(1 << 16, |n| need((n, context)).fits(&self.limits)).max(1),
        };
        let step = self.request.block;
        let refused = limits::check(way.mode.name(), &need, &self.limits, (batch, context), step).err();
        let (need, refused) = (need((batch, context)), refused.map(|e| e.to_string()));
        Ok(Case { way, auto: None, batch, context, need, settings, policies, refused })
    }

    /// Both, and the one that should be faster.
    fn automatic(&self, way: Way, batch: Batch, context: usize) -> Result<Case<B>> {
        let staged = self.case(way, batch, context)?;
        let dense = self.case(Way { mode: Mode::Dense, ..way }, batch, context)?;
        // At their own largest batches the larger one has more tokens a second; it is compared at its own size.
        let size = staged.batch.max(dense.batch);
        let seqs = lengths(context, size, self.request.all_steps(), self.request.share_prompt);
        let choice = auto::Question {
            geometry: &self.shape.config.geometry,
            step_weights: step_weights(&self.shape.config),
            staged: &staged.settings,
            summary: staged.policies.summary.as_ref(),
            lengths: &seqs,
            rates: self.rates,
            fits: (
                dense.refused.is_none() && dense.batch == size,
                staged.refused.is_none() && staged.batch == size,
            ),
        };
        let choice = Question::choose(&choice);
        let case = if choice.mode == Mode::Dense.name() { dense } else { staged };
        Ok(Case { auto: Some(choice), ..case })
    }
}
