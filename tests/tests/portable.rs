//! The portable CPU backend: the same bits at every instruction set and number of threads, and on every machine.

use oasis_core::checkpoint::Checkpoint;
use oasis_core::decode::{Decoder, Policies, Start};
use oasis_core::draft::{BundledHead, DraftSetup, DraftShape};
use oasis_core::engine::{Engine, PrefillOptions};
use oasis_core::registry::{Params, find};
use oasis_core::settings::{Cap, Emit, Group, Mode, Sampling, Settings};
use oasis_kernels::{Cpu, Level};
use oasis_tests::{argmax, settings};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What the two decodes of [`digests`] come to. Another kind of CPU, libc or compiler gives the same; a change of an op's
/// order of sums or of a decision gives others, which are then to be written here.
const DIGESTS: [&str; 2] = [
    "67474b34a59bfdaba29ca4224750f2c1efd646ed88593789ad678b8478d0c29b",
    "5fed5c5345cf4a98c99efa019a456bf0c4c7f2e6d967da6f0c523aa9f834a458",
];

/// Steps after the prompt.
const STEPS: usize = 24;

fn nano() -> (Checkpoint, BundledHead) {
    let b = oasis_datasets::nano();
    let head = BundledHead { config: b.eagle3_config, weights: b.eagle3_weights };
    let generation = Some(b.generation_config);
    (Checkpoint::from_parts("nano", b.config, b.weights, b.tokenizer, generation).unwrap(), head)
}

/// Policies by name; parameters as TOML.
fn policies(engine: &mut Engine<Cpu>, head: BundledHead, names: [&str; 4], summary: &str) -> Policies<Cpu> {
    let [summary_name, predictor, evictor, draft] = names;
    let params = Params { table: summary.parse().unwrap(), seed: 0 };
    let summary = (find("summary", oasis_policies::SUMMARIES, summary_name).unwrap().build)(&params).unwrap();
    let predictor = find("predictor", oasis_predictors::PREDICTORS, predictor).unwrap().build;
    let evictor = find("evictor", oasis_policies::EVICTORS, evictor).unwrap().build;
    let entry = find("draft", oasis_predictors::drafts::<Cpu>(), draft).unwrap();
    let params = Params::default();
    let (backend, model) = (&mut engine.backend, &engine.model);
    let setup = DraftSetup { params: &params, backend, model, bundled_eagle3: Some(head) };
    Policies {
        summary: Arc::from(summary),
        predictor: Arc::new(move |seed| predictor(&Params { seed, ..Params::default() })),
        evictor: Arc::new(move |seed| evictor(&Params { seed, ..Params::default() })),
        draft: (entry.build)(setup).unwrap(),
        draft_shape: DraftShape { depth: 2, branches: 1 },
    }
}

/// A hash of all logits, tokens, decisions and audits of a decode.
fn digest(engine: &mut Engine<Cpu>, prompt: &[u32], settings: &Settings, policies: &Policies<Cpu>) -> String {
    let hidden_layers = (policies.draft)(0).unwrap().hidden_layers().to_vec();
    let options = PrefillOptions { block_tokens: settings.block_tokens, hidden_layers };
    let prefix = Arc::new(engine.prefill(prompt, &options).unwrap());
    let mut hash = Sha256::new();
    let mut logits = |logits: &[f32]| logits.iter().for_each(|l| hash.update(l.to_le_bytes()));
    logits(&prefix.logits);
    let max_new = STEPS * settings.max_rows;
    let start = Start { first: argmax(&prefix.logits), prefix, future: vec![], max_new, seed: 7 };
    let mut decoder = Decoder::new(engine, settings, policies, vec![start]).unwrap();
    let mut layers = Vec::new();
    for _ in 0..STEPS {
        layers.extend(decoder.step(None).unwrap().seqs[0].layers.clone());
        logits(decoder.logits(0).unwrap());
    }
    for layer in &layers {
        let audit = layer.audit.as_ref().unwrap();
        hash.update(layer.decided.unwrap_or(0).to_le_bytes());
        for sum in [audit.agreement, audit.recall_exact, audit.mass_recall, audit.error_sq, audit.dense_sq] {
            hash.update(sum.to_le_bytes());
        }
    }
    decoder.tokens(0).iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Two decodes that together go through every op of the CPU: greedy and drawn, with a draft head and without, bounds in
/// low-bit codes and an estimate of the mass of attention, all audited.
fn digests(cpu: Cpu) -> [String; 2] {
    let (checkpoint, head) = nano();
    let task = oasis_datasets::find_task("niah_multikey", &Params::default()).unwrap();
    let prompt = task.samples(&checkpoint.tokenizer, 400, 1, 3).unwrap().remove(0).prompt;
    let mut cpu = cpu.portable();
    let model = Arc::new(checkpoint.build(&mut cpu).unwrap());
    let mut engine = Engine::new(cpu, model).unwrap();
    let greedy = Settings {
        block_tokens: 16,
        budget_tokens: 8 * 16,
        cap: Cap::Fraction(0.2),
        max_rows: 3,
        emit: Emit::Accepted,
        audit: true,
        ..settings(Mode::Staged, 0)
    };
    let drawn = Settings {
        group: Some(Group::SoftmaxSum),
        sampling: Sampling { temperature: 0.8, top_p: 0.9 },
        emit: Emit::One,
        max_rows: 1,
        ..greedy.clone()
    };
    let bounds = policies(&mut engine, head, ["quantized", "lookahead", "lrs", "eagle3"], "bits = 4");
    let mass = policies(&mut engine, head, ["rotated-keys", "previous-token", "lru", "none"], "");
    [digest(&mut engine, &prompt, &greedy, &bounds), digest(&mut engine, &prompt, &drawn, &mass)]
}

#[test]
fn portable_results_are_the_same_bits_at_every_level_and_on_every_machine() {
    for level in Level::available() {
        for threads in [1, 2] {
            let cpu = Cpu::try_new(threads).unwrap().at_level(level).unwrap();
            let start = std::time::Instant::now();
            let found = digests(cpu);
            println!("{}, {threads} thread(s): {:.1} s", level.name(), start.elapsed().as_secs_f64());
            assert_eq!(found, DIGESTS, "{}, {threads} thread(s)", level.name());
        }
    }
}
