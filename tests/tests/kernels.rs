//! Every kernel, with every policy of the tables, compiled for three architectures; a machine without a GPU can do that. A warning or a
//! spill fails. Without NVRTC it says SKIPPED; with `OASIS_REQUIRE_NVRTC=1` that fails too.

use oasis_core::chain::{ChainSpec, ChainSummary};
use oasis_core::geometry::{BlockShape, Geometry};
use oasis_core::ops::CacheShape;
use oasis_core::policy::{DeviceEvictor, Summary};
use oasis_core::registry::Params;
use oasis_core::settings::{Mode, Settings};
use oasis_kernels::{KernelCheck, KernelReport};
use oasis_policies::{EVICTORS, SUMMARIES};
use oasis_tests::{settings, tiny_geometry};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ARCHITECTURES: [(i32, i32); 3] = [(8, 0), (9, 0), (10, 0)];

/// Head widths, each with a number of query heads that share a KV head.
const HEADS: [(usize, usize); 3] = [(64, 3), (96, 1), (128, 4)];

/// Summaries that have a twin: all rows, and the stored forms that parameters give.
fn summaries() -> Vec<(String, Box<dyn Summary>)> {
    let forms = [
        ("quantized", "bits = 4"),
        ("quantized", "bits = 8"),
        ("rotated-keys", "bits = 1"),
        ("rotated-keys", "bits = 4"),
    ];
    let rows = SUMMARIES.iter().map(|e| (e, ""));
    let more =
        forms.iter().filter_map(|(name, toml)| Some((SUMMARIES.iter().find(|e| e.name == *name)?, *toml)));
    let build = |(entry, toml): (&oasis_core::registry::SummaryEntry, &str)| {
        let table = toml.parse().expect("a table");
        let summary = (entry.build)(&Params { table, seed: 0 }).expect("a summary");
        (format!("{} {toml}", entry.name).trim().to_owned(), summary)
    };
    rows.chain(more).map(build).collect()
}

fn evictors() -> Vec<(&'static str, DeviceEvictor)> {
    let build = |e: &oasis_core::registry::EvictorEntry| (e.build)(&Params::default()).expect("an evictor");
    EVICTORS.iter().filter_map(|e| Some((e.name, build(e).device()?))).collect()
}

/// One module to be compiled.
enum Job<'a> {
    Fixed,
    Score(&'a str, &'a dyn Summary, usize),
    Chain(Option<(&'a str, &'a dyn Summary)>, Option<(&'a str, &'a DeviceEvictor)>, usize),
}

fn sizes(head: usize, mode: Mode) -> (Geometry, CacheShape, Settings, usize) {
    let (head_dim, group) = HEADS[head];
    let block = BlockShape { tokens: 16, head_dim };
    let settings = Settings { block_tokens: 16, budget_tokens: 2048, ..settings(mode, 1) };
    let geometry = Geometry { heads: 2 * group, kv_heads: 2, head_dim, ..tiny_geometry() };
    let shape = CacheShape { seqs: 2, kv_heads: 2, slots: 128, tail_tokens: 20, blocks: 1024, block };
    (geometry, shape, settings, group)
}

fn compile(check: &KernelCheck, arch: (i32, i32), job: &Job<'_>) -> oasis_core::Result<Vec<KernelReport>> {
    match *job {
        Job::Fixed => check.fixed(arch),
        Job::Score(name, summary, head) => {
            let (_, shape, _, group) = sizes(head, Mode::Staged);
            check.score(&format!("score, {name}, d {}", HEADS[head].0), arch, summary, shape.block, group)
        }
        Job::Chain(summary, evictor, head) => {
            let mode = match (summary, evictor) {
                (Some(_), _) => Mode::Staged,
                (None, Some(_)) => Mode::Window,
                (None, None) => Mode::Dense,
            };
            let (geometry, shape, settings, _) = sizes(head, mode);
            let of = |(_, policy): (&str, _)| -> Option<ChainSummary<'_>> {
                let policy: &dyn Summary = policy;
                Some(ChainSummary {
                    policy,
                    shape: policy.shape(shape.block),
                    device: policy.device(shape.block)?,
                })
            };
            let spec = ChainSpec {
                geometry: &geometry,
                shape: &shape,
                pool_slots: 128,
                settings: &settings,
                group: summary.map_or(oasis_core::settings::Group::Max, |(_, s)| s.group()),
                summary: summary.and_then(of),
                evictor: evictor.map(|(_, e)| e.clone()),
            };
            let word = |name: Option<&str>| name.unwrap_or("none").to_owned();
            let (s, e) = (word(summary.map(|s| s.0)), word(evictor.map(|e| e.0)));
            check.chain(&format!("chain, {s}, {e}, d {}", HEADS[head].0), arch, &spec)
        }
    }
}

/// All modules of an architecture. Every summary meets every evictor at one head width of one architecture; elsewhere each policy is
/// compiled once, since their twins are called by different kernels.
fn jobs<'a>(
    arch: (i32, i32),
    summaries: &'a [(String, Box<dyn Summary>)],
    evictors: &'a [(&'static str, DeviceEvictor)],
) -> Vec<Job<'a>> {
    let mut jobs = vec![Job::Fixed];
    for (head, &(head_dim, _)) in HEADS.iter().enumerate() {
        let block = BlockShape { tokens: 16, head_dim };
        let all = (arch, head_dim) == ((9, 0), 128);
        jobs.extend(summaries.iter().map(|(n, s)| Job::Score(n, s.as_ref(), head)));
        let evictor = |(n, e): &'a (&'static str, DeviceEvictor)| (*n, e);
        jobs.push(Job::Chain(None, None, head));
        jobs.extend(evictors.iter().map(|e| Job::Chain(None, Some(evictor(e)), head)));
        let twins = summaries.iter().filter(|(_, s)| s.device(block).is_some());
        for (i, (name, summary)) in twins.enumerate() {
            let met = evictors.iter().enumerate().filter(|&(j, _)| all || j == i % evictors.len().max(1));
            let summary = Some((name.as_str(), summary.as_ref()));
            jobs.extend(met.map(|(_, e)| Job::Chain(summary, Some(evictor(e)), head)));
        }
    }
    jobs
}

#[test]
fn every_kernel_compiles_without_a_warning_or_a_spill() {
    let check = match KernelCheck::open() {
        Ok(check) => check,
        Err(why) => {
            assert!(std::env::var_os("OASIS_REQUIRE_NVRTC").is_none(), "{why}");
            return println!("SKIPPED: {why}");
        }
    };
    let (summaries, evictors) = (summaries(), evictors());
    for arch in ARCHITECTURES {
        let jobs = jobs(arch, &summaries, &evictors);
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = compile(&check, arch, job);
                        done.lock().expect("no panic before").push(result);
                    }
                });
            }
        });
        let results = done.into_inner().expect("no panic before");
        let failures: Vec<String> =
            results.iter().filter_map(|r| Some(r.as_ref().err()?.to_string())).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        report(arch, jobs.len(), results.into_iter().flatten().flatten().collect());
    }
}

/// Prints the fattest version of each kernel, and fails on a spill.
fn report(arch: (i32, i32), modules: usize, mut kernels: Vec<KernelReport>) {
    let all = kernels.len();
    kernels.sort_by(|a, b| a.kernel.cmp(&b.kernel).then(b.registers.cmp(&a.registers)));
    let spills: Vec<String> = kernels.iter().filter(|k| k.spilled > 0).map(|k| format!("{k:?}")).collect();
    println!("sm_{}{}: {modules} modules, {all} kernels; the most of each:", arch.0, arch.1);
    println!("  {:24} {:>9} {:>6} {:>7} {:>7}  module", "kernel", "registers", "stack", "spilled", "shared");
    kernels.dedup_by(|b, a| a.kernel == b.kernel);
    for k in &kernels {
        println!(
            "  {:24} {:>9} {:>6} {:>7} {:>7}  {}",
            k.kernel, k.registers, k.stack, k.spilled, k.shared, k.module
        );
    }
    assert!(all > 30, "only {all} kernels: the compiler's report was not read");
    assert!(spills.is_empty(), "spills on sm_{}{}:\n{}", arch.0, arch.1, spills.join("\n"));
}
