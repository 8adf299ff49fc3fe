//! The steps of one way of decoding: warm-up, timed, probed.

use super::clocks::{self, Clocks};
use super::flags::Request;
use super::policies::random_token;
use super::prompts::seed_of;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::engine::{Engine, Prefix};
use oasis_core::settings::Settings;
use oasis_core::stats::{StepReport, StepSeconds};
use oasis_core::{Error, Result};
use oasis_kernels::Measure;
use std::sync::Arc;
use std::time::Instant;

/// Sums over the timed steps, all sequences, layers and heads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Tokens that were emitted.
    pub tokens: u64,
    /// See [`oasis_core::stats::LayerStats`].
    pub wanted: u64,
    /// As above.
    pub hits: u64,
    /// As above.
    pub fetched: u64,
    /// As above.
    pub dropped: u64,
    /// As above.
    pub attended: u64,
    /// As above.
    pub bytes_h2d: u64,
    /// Tokens in the tails, all sequences.
    pub tail_tokens: u64,
    /// Blocks that were ranked, by sequence.
    pub candidates: u64,
}

/// What the steps left.
pub struct Steps {
    /// Seconds of each timed step.
    pub seconds: Vec<f64>,
    /// Sums over the timed steps.
    pub sums: Sums,
    /// Times within the probed steps.
    pub probed: Vec<StepSeconds>,
    /// Seconds to the first step.
    pub start_s: f64,
    /// Whether the chain is the device's; else why not.
    pub on_device: std::result::Result<(), String>,
    /// Bytes allocated for the decode on the device, and in the host store, prompts included.
    pub allocated: (u64, u64),
    /// Bytes that ops work in on the device.
    pub scratch: u64,
    /// The device's clocks.
    pub clocks: Option<Clocks>,
}

/// One batch being decoded.
struct Run<'a, 'e, B: Measure> {
    decoder: Decoder<'e, B>,
    request: &'a Request,
    settings: &'a Settings,
    prompts: &'a [Arc<Prefix<B>>],
    vocab: usize,
    forced: Vec<u32>,
    step: u64,
}

impl<B: Measure> Run<'_, '_, B> {
    fn step(&mut self) -> Result<&StepReport> {
        if !self.request.saturate {
            return self.decoder.step(None);
        }
        for (s, token) in self.forced.iter_mut().enumerate() {
            *token = random_token(seed_of(!self.request.seed, s), self.step, self.vocab);
        }
        self.step += 1;
        self.decoder.step(Some(&self.forced))
    }

    fn timed(&mut self) -> Result<(Vec<f64>, Sums)> {
        let (mut seconds, mut sums) = (Vec::with_capacity(self.request.steps), Sums::default());
        for _ in 0..self.request.steps {
            self.count_state(&mut sums);
            let report = self.step()?;
            seconds.push(report.seconds.total);
            add(&mut sums, report)?;
        }
        Ok((seconds, sums))
    }

    /// What the next step finds: tails, and blocks to rank.
    fn count_state(&self, sums: &mut Sums) {
        let (bt, pinned) = (self.settings.block_tokens, self.settings.sink_blocks + self.settings.window());
        for s in 0..self.prompts.len() {
            let done = self.decoder.tokens(s).len() - 1;
            sums.tail_tokens += (done % bt) as u64;
            sums.candidates += (done / bt).saturating_sub(pinned) as u64;
        }
    }

    fn probed(&mut self) -> Result<Vec<StepSeconds>> {
        if self.request.probed == 0 {
            return Ok(Vec::new());
        }
        self.decoder.backend().set_probed(true)?;
        let mut all = Vec::with_capacity(self.request.probed);
        for _ in 0..self.request.probed {
            all.push(self.step()?.seconds);
        }
        self.decoder.backend().set_probed(false)?;
        // A pass of a new kind runs op by op, then is recorded: the first two are not what is replayed later.
        Ok(all.split_off(2.min(all.len().saturating_sub(1))))
    }
}

fn add(sums: &mut Sums, report: &StepReport) -> Result<()> {
    for seq in &report.seqs {
        sums.tokens += seq.emitted.len() as u64;
        for l in &seq.layers {
            if l.nans > 0 {
                return Err(Error::Invariant(format!("step {}: {} scores are NaN", report.step, l.nans)));
            }
            sums.wanted += l.wanted;
            sums.hits += l.hits;
            sums.fetched += l.fetched;
            sums.dropped += l.dropped;
            sums.attended += l.attended;
            sums.bytes_h2d += l.bytes_h2d;
        }
    }
    Ok(())
}

/// Bytes of the prompts' blocks in the host store; a prompt that several share counts once.
fn prompt_bytes<B: Measure>(prompts: &[Arc<Prefix<B>>]) -> u64 {
    let first = |i: usize| prompts[..i].iter().all(|p| !Arc::ptr_eq(&p.extent, &prompts[i].extent));
    let own = (0..prompts.len()).filter(|&i| first(i)).map(|i| size_of_val(&prompts[i].extent.data[..]));
    own.sum::<usize>() as u64
}

/// Decodes.
///
/// # Errors
/// Whatever the loop reports; logits that are no numbers.
pub fn run<B: Measure>(
    engine: &mut Engine<B>,
    request: &Request,
    settings: &Settings,
    policies: &Policies<B>,
    prompts: &[Arc<Prefix<B>>],
) -> Result<Steps> {
    let vocab = engine.model.config.geometry.vocab;
    let is_gpu = engine.backend.name() == "cuda";
    engine.backend.set_eager(request.eager);
    // A run that broke may have left it on.
    engine.backend.set_probed(false)?;
    let starts = prompts.iter().enumerate().map(|(s, prefix)| Start {
        prefix: prefix.clone(),
        first: random_token(seed_of(request.seed, s), prefix.tokens.len() as u64, vocab),
        future: Vec::new(),
        max_new: request.all_steps(),
        seed: seed_of(request.seed, s),
    });
    let begin = Instant::now();
    let decoder = Decoder::new(engine, settings, policies, starts.collect())?;
    let start_s = begin.elapsed().as_secs_f64();
    let forced = vec![0; prompts.len()];
    let mut run = Run { decoder, request, settings, prompts, vocab, forced, step: 0 };
    for _ in 0..request.warmup {
        run.step()?;
    }
    let (seconds, sums) = run.timed()?;
    let asked = if is_gpu { clocks::ask() } else { None };
    let probed = run.probed()?;
    for s in 0..prompts.len() {
        if !run.decoder.logits(s)?.iter().all(|x| x.is_finite()) {
            return Err(Error::Invariant(format!("sequence {s}: logits are not finite")));
        }
    }
    let (usage, scratch) = (run.decoder.allocated(), run.decoder.backend().scratch());
    Ok(Steps {
        seconds,
        sums,
        probed,
        start_s,
        on_device: run.decoder.on_device().map_err(str::to_owned),
        allocated: (usage.device as u64, usage.host as u64 + prompt_bytes(prompts)),
        scratch,
        clocks: asked.and_then(clocks::Asked::answer),
    })
}
