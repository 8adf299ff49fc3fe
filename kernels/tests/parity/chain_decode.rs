//! Whole decodes whose pools live on the device, against the same decodes with pools on the host, bit for bit; and
//! recorded passes against eager ones.

use super::decode::{Counting, Mean, VOCAB, model, settings};
use super::*;
use oasis_core::Result;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{Draft, DraftShape, DraftTree, DraftView, Target};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::geometry::BlockShape;
use oasis_core::ids::Step;
use oasis_core::policy::{
    DeviceSummary, Evictor, Keys, Needs, PoolEvent, PoolView, Predictor, RowSet, SlotMeta, Summary,
    SummaryShape, When,
};
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Emit, Group, Mode, Sampling, Scope, Settings};
use oasis_core::stats::SeqReport;
use oasis_policies::EVICTORS;
use std::sync::Arc;

/// [`Mean`] with a twin.
pub(super) struct MeanTwin;

impl Summary for MeanTwin {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        Mean.shape(block)
    }

    fn encode(&self, fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        Mean.encode(fit, keys, out);
    }

    fn lift(&self, fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        Mean.lift(fit, query, out)
    }

    fn device(&self, _: BlockShape) -> Option<DeviceSummary> {
        let code = "
            __device__ void summary_encode(const float* fit, const float* keys, float* out) {
                for (u32 i = threadIdx.x; i < DIM; i += blockDim.x) {
                    float sum = 0.0f;
                    for (u32 t = 0; t < TOKENS; t++) sum += keys[t * HEAD_DIM + i] / (float)TOKENS;
                    out[i] = sum;
                }
            }
            __device__ float summary_lift(const float* fit, const float* query, float* out) {
                float scale = 1.0f / sqrtf((float)HEAD_DIM);
                for (u32 i = threadIdx.x; i < DIM; i += blockDim.x) out[i] = query[i] * scale;
                return 0.0f;
            }
        ";
        Some(DeviceSummary { code: code.into() })
    }
}

/// An evictor without its twin.
pub(super) struct OnHost(pub(super) Box<dyn Evictor>);

impl Evictor for OnHost {
    fn keep(&self, slot: &SlotMeta, now: Step) -> f32 {
        self.0.keep(slot, now)
    }

    fn evict(&mut self, pool: &mut PoolView<'_>, need: usize, out: &mut Vec<u32>) {
        self.0.evict(pool, need, out);
    }

    fn observe(&mut self, event: PoolEvent) {
        self.0.observe(event);
    }
}

/// All rows, ahead or on demand.
pub(super) struct Rows(pub(super) When);

impl Predictor for Rows {
    fn needs(&self) -> Needs {
        Needs { when: self.0, drafts: true, queries: false }
    }

    fn rows(&self, rows: usize, _: &[u32]) -> Option<RowSet> {
        Some(RowSet::CURRENT.union(RowSet::drafts(rows)))
    }
}

/// A wrong token, and beside it the right one: what is accepted closes up.
struct Siblings;

impl<B: Backend> Draft<B> for Siblings {
    fn propose(&mut self, _: &mut B, _: &mut dyn Target<B>, view: &DraftView<'_>) -> Result<DraftTree> {
        let Some(&right) = view.future.first() else { return Ok(DraftTree::default()) };
        Ok(DraftTree { tokens: vec![(right + 1) % VOCAB as u32, right], parents: vec![0, 0] })
    }
}

#[derive(Clone, Copy)]
struct Plan<'a> {
    evictor: &'a str,
    /// Pools on the device.
    device: bool,
    eager: bool,
    /// Tokens that the model is known to emit.
    future: &'a [Vec<u32>],
}

/// What a decode did: bits of all logits, every step's report, all tokens.
#[derive(PartialEq)]
struct Trace {
    logits: Vec<Vec<u32>>,
    reports: Vec<Vec<SeqReport>>,
    tokens: Vec<Vec<u32>>,
}

const STEPS: usize = 40;
const PROMPTS: [usize; 3] = [700, 333, 90];

fn run(cuda: &Cuda, settings: &Settings, plan: Plan<'_>) -> Trace {
    let mut cuda = cuda.try_clone().unwrap();
    cuda.set_eager(plan.eager);
    let when = if settings.mode == Mode::OnDemand { When::OnDemand } else { When::Ahead };
    let (name, device) = (plan.evictor.to_owned(), plan.device);
    let siblings = !plan.future.is_empty();
    let policies = Policies {
        summary: Arc::new(MeanTwin),
        predictor: Arc::new(move |_| Ok(Box::new(Rows(when)) as _)),
        evictor: Arc::new(move |seed| {
            let inner = (find("evictor", EVICTORS, &name)?.build)(&Params { seed, ..Params::default() })?;
            Ok(if device { inner } else { Box::new(OnHost(inner)) })
        }),
        draft: Arc::new(move |_| {
            Ok(if siblings { Box::new(Siblings) as _ } else { Box::new(Counting) as _ })
        }),
        draft_shape: DraftShape { depth: 2, branches: 1 },
    };
    let weights = Arc::new(model(&mut cuda));
    let mut engine = Engine::new(cuda, weights).unwrap();
    let mut random = Random::new(63);
    let options = PrefillOptions { block_tokens: settings.block_tokens, hidden_layers: vec![] };
    let mut batch = Vec::new();
    for (s, n) in PROMPTS.into_iter().enumerate() {
        let prompt: Vec<u32> = (0..n).map(|_| random.below(VOCAB) as u32).collect();
        let prefix = Arc::new(engine.prefill(&prompt, &options).unwrap());
        let future = plan.future.get(s).cloned().unwrap_or_default();
        batch.push(Start { prefix, first: 7, future, max_new: 2 * STEPS, seed: n as u64 });
    }
    let mut decoder = Decoder::new(&mut engine, settings, &policies, batch).unwrap();
    // Audited decodes keep their pools on the host; without pools there is no evictor to tell them apart.
    let on_device = decoder.on_device().map_err(str::to_owned);
    assert_eq!(on_device.is_ok(), device && !settings.audit, "{on_device:?}");
    let mut trace = Trace { logits: vec![], reports: vec![], tokens: vec![] };
    for step in 0..STEPS {
        if step == 30 {
            decoder.retire(1);
        }
        let mut report = decoder.step(None).unwrap().seqs.clone();
        // A device that decides keeps no lists.
        report.iter_mut().flat_map(|r| &mut r.layers).for_each(|l| (l.audit, l.decided) = (None, None));
        trace.reports.push(report);
        for seq in (0..PROMPTS.len()).filter(|&s| s != 1 || step < 30) {
            trace.logits.push(decoder.logits(seq).unwrap().iter().map(|x| x.to_bits()).collect());
        }
        if settings.mode != Mode::Dense && step % 8 == 7 {
            decoder.verify_slots().unwrap();
        }
    }
    trace.tokens = (0..PROMPTS.len()).map(|s| decoder.tokens(s).to_vec()).collect();
    trace
}

#[track_caller]
fn same(what: &str, got: &Trace, want: &Trace) {
    for (step, (a, b)) in got.reports.iter().zip(&want.reports).enumerate() {
        assert_eq!(a, b, "{what}, step {}", step + 1);
    }
    let first = got.logits.iter().zip(&want.logits).position(|(a, b)| a != b);
    assert_eq!(first, None, "{what}: the first logits that differ");
    assert!(got == want, "{what}");
}

#[test]
fn pools_on_the_device_decode_as_pools_on_the_host() {
    let Some((_, cuda)) = devices("decode with a chain") else { return };
    let base = Settings { max_rows: 3, ..settings(Mode::Staged, false) };
    let mut all: Vec<(&str, Settings)> = EVICTORS.iter().map(|e| (e.name, base.clone())).collect();
    all.extend([
        ("lrs", Settings { mode: Mode::Window, ..base.clone() }),
        ("fifo", Settings { mode: Mode::Static, ..base.clone() }),
        ("sieve", Settings { mode: Mode::ResidentSparse, scope: Scope::Selected, ..base.clone() }),
        ("lfu", Settings { mode: Mode::OnDemand, cap: Cap::Unlimited, ..base.clone() }),
        ("lrs", Settings { group: Some(Group::SoftmaxSum), normalise_resident: true, ..base.clone() }),
        ("lrs", Settings { group: Some(Group::Mean), window_blocks: 0, ..base.clone() }),
        ("sieve", Settings { sampling: Sampling { temperature: 0.8, top_p: 0.9 }, ..base.clone() }),
        ("lrs", Settings { sampling: Sampling { temperature: 1.1, top_p: 1.0 }, ..base.clone() }),
    ]);
    for (evictor, settings) in all {
        let what = format!("{evictor}, {settings:?}");
        let plan = Plan { evictor, device: true, eager: false, future: &[] };
        let device = run(&cuda, &settings, plan);
        same(&format!("eager, {what}"), &run(&cuda, &settings, Plan { eager: true, ..plan }), &device);
        same(&what, &device, &run(&cuda, &settings, Plan { device: false, ..plan }));
    }
}

#[test]
fn dense_decodes_on_the_device_are_those_of_the_host() {
    let Some((_, cuda)) = devices("dense decode with a chain") else { return };
    let dense = settings(Mode::Dense, false);
    let plan = Plan { evictor: "lrs", device: true, eager: false, future: &[] };
    let device = run(&cuda, &dense, plan);
    same("eager", &run(&cuda, &dense, Plan { eager: true, ..plan }), &device);
    let audited = Settings { audit: true, ..dense };
    let host = run(&cuda, &audited, plan);
    assert_eq!(host.tokens, device.tokens);
    assert!(host.logits == device.logits, "audited logits");
}

/// Accepted rows that are not neighbours close up.
#[test]
fn accepted_branches_close_up_on_the_device() {
    let Some((_, cuda)) = devices("accepted drafts with a chain") else { return };
    // The budget covers the context, so that what is attended does not hang on the steps.
    let base = Settings { budget_tokens: 1024, ..settings(Mode::Staged, false) };
    let plain = run(&cuda, &base, Plan { evictor: "lrs", device: true, eager: false, future: &[] });
    let future: Vec<Vec<u32>> =
        plain.tokens.iter().zip(PROMPTS).map(|(tokens, prompt)| tokens[prompt + 1..].to_vec()).collect();
    for mode in [Mode::Staged, Mode::ResidentSparse, Mode::Window] {
        let settings = Settings { mode, emit: Emit::Accepted, ..base.clone() };
        let plan = Plan { evictor: "lrs", device: true, eager: false, future: &future };
        let device = run(&cuda, &settings, plan);
        let accepted: u32 = device.reports.iter().flatten().map(|r| r.accepted).sum();
        assert!(accepted > 20, "only {accepted} drafts were accepted");
        same(&format!("{mode:?}"), &device, &run(&cuda, &settings, Plan { device: false, ..plan }));
    }
}
