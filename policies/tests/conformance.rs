//! The conformance kit over every row of both tables, and over policies with faults that it must find.

use oasis_core::Result;
use oasis_core::conformance::{Finding, check_entry, check_evictor, check_summary};
use oasis_core::geometry::BlockShape;
use oasis_core::ids::Step;
use oasis_core::policy::{Evictor, Keys, PoolEvent, PoolView, Reduce, SlotMeta, Summary, SummaryShape};
use oasis_core::registry::{Entry, EvictorEntry, Params};
use oasis_core::storage::{Rounding, Storage};
use oasis_policies::{EVICTORS, REPLAY_EVICTORS, SUMMARIES};

const CASES: usize = 512;

fn with_seed(seed: u64, toml: &str) -> Params {
    Params { table: toml.parse().unwrap(), seed }
}

fn none(name: &str, findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{name}:\n{}", lines.join("\n"));
}

#[test]
fn every_evictor_keeps_its_contract() {
    for entry in EVICTORS.iter().chain(REPLAY_EVICTORS) {
        none(entry.name, check_entry(entry, &|p| (entry.build)(p).map(drop)));
        none(entry.name, check_evictor(&|seed| (entry.build)(&with_seed(seed, "")), CASES));
    }
}

#[test]
fn every_summary_keeps_its_contract() {
    let variants = |name: &str| match name {
        "rotated-keys" => vec!["bits = 1", "bits = 2", "bits = 4"],
        "quantized" => vec!["bits = 8", "bits = 4", "inner = 'mean'\nbits = 4", "inner = 'exact-keys'"],
        _ => vec![""],
    };
    for entry in SUMMARIES {
        none(entry.name, check_entry(entry, &|p| (entry.build)(p).map(drop)));
        for toml in variants(entry.name) {
            none(entry.name, check_summary(&|seed| (entry.build)(&with_seed(seed, toml)), CASES));
        }
    }
}

#[test]
fn names_are_unique() {
    let evictors = || EVICTORS.iter().chain(REPLAY_EVICTORS);
    let mut names: Vec<&str> = evictors().map(|e| e.name).chain(SUMMARIES.iter().map(|e| e.name)).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for entry in evictors() {
        assert_eq!((entry.build)(&Params::default()).unwrap().name(), entry.name);
    }
}

/// An evictor with a fault.
struct Faulty {
    fault: Fault,
    seen: Vec<u32>,
    calls: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Pinned,
    JustSelected,
    Twice,
    TooFew,
    TooMany,
    Slots,
    Panics,
    HighestTie,
    GlobalState,
    Impure,
    SlotOrder,
}

impl Evictor for Faulty {
    fn keep(&self, slot: &SlotMeta, _now: Step) -> f32 {
        match self.fault {
            Fault::Impure => NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as f32,
            _ => slot.last_selected as f32,
        }
    }

    fn evict(&mut self, pool: &mut PoolView<'_>, need: usize, out: &mut Vec<u32>) {
        self.calls += 1;
        let order: Vec<u32> = match self.fault {
            Fault::SlotOrder => {
                pool.candidates.sort_by_key(|c| c.slot);
                pool.candidates.iter().map(|c| c.meta.block).collect()
            }
            Fault::HighestTie => pool.candidates.iter().rev().map(|c| c.meta.block).collect(),
            Fault::GlobalState
                if NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(3) =>
            {
                pool.candidates.iter().rev().map(|c| c.meta.block).collect()
            }
            _ => pool.candidates.iter().map(|c| c.meta.block).collect(),
        };
        out.extend(order.iter().take(need));
        match self.fault {
            Fault::Pinned if need > 0 && self.seen.contains(&0) => out[0] = 0,
            Fault::JustSelected if need > 0 && !self.seen.is_empty() => {
                out[0] = self.seen[self.seen.len() - 1]
            }
            Fault::Twice if need > 1 => out[1] = out[0],
            Fault::TooFew => drop(out.pop()),
            Fault::TooMany => out.extend(order.get(need)),
            Fault::Slots => out.iter_mut().zip(pool.candidates.iter()).for_each(|(o, c)| *o = c.slot),
            Fault::Panics if self.calls > 3 => panic!("seeded"),
            _ => {}
        }
    }

    fn observe(&mut self, event: PoolEvent) {
        match event {
            PoolEvent::Admit { block, .. } | PoolEvent::Touch { block, .. } => self.seen.push(block),
            PoolEvent::Evict { block, .. } => self.seen.retain(|&b| b != block),
        }
    }
}

static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[test]
fn seeded_faults_of_evictors_are_found() {
    let check = |fault| {
        check_evictor(
            &|_| Ok(Box::new(Faulty { fault, seen: Vec::new(), calls: 0 }) as Box<dyn Evictor>),
            128,
        )
    };
    none("the faultless one", check(Fault::None));
    for (fault, contract) in [
        (Fault::Pinned, "of what may leave"),
        (Fault::JustSelected, "of what may leave"),
        (Fault::Twice, "of what may leave"),
        (Fault::TooFew, "of what may leave"),
        (Fault::TooMany, "of what may leave"),
        (Fault::Slots, "victims are distinct candidates"),
        (Fault::Panics, "does not panic"),
        (Fault::HighestTie, "ties go to the lowest block id"),
        (Fault::GlobalState, "same seed, same decisions"),
        (Fault::Impure, "keep is a pure function"),
        (Fault::SlotOrder, "slot ids leave no trace"),
    ] {
        let findings = check(fault);
        let found = findings.iter().find(|f| f.contract.contains(contract));
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not found; found were {findings:?}"));
        assert!(
            found.detail.len() < 2000 && found.seed < 128,
            "{fault:?}: no small counter-example: {found}"
        );
    }
}

#[test]
fn selection_names_the_evictor_that_broke_its_contract() {
    let mut pool = oasis_core::pool::Pool::new(2, 4);
    pool.admit(0, 0);
    pool.admit(1, 0);
    let mut evictor = Faulty { fault: Fault::TooFew, seen: Vec::new(), calls: 0 };
    let mut out = oasis_core::select::Outcome::default();
    let scores = [0.0, 0.0, 1.0, 1.0];
    let error =
        oasis_core::select::select(&scores, 0..4, 2, 2, 7, &mut pool, &mut evictor, &mut out).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("Faulty") && text.contains("step 7") && text.contains("gave up 1 blocks where 2"),
        "{text}"
    );
}

/// A summary with a fault.
struct Wrong(Flaw);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    None,
    NearestBound,
    NotABound,
    SwallowsNan,
    Forgets,
    Remembers,
    OddWidth,
    Infinite,
}

impl Summary for Wrong {
    fn shape(&self, block: BlockShape) -> SummaryShape {
        let rounding = match self.0 {
            Flaw::NearestBound => Rounding::Nearest,
            _ => Rounding::Outward { upper: block.head_dim },
        };
        let bits = if self.0 == Flaw::OddWidth { 3 } else { 8 };
        SummaryShape {
            vectors: 1,
            dim: 2 * block.head_dim,
            reduce: Reduce::Max,
            storage: Storage::Affine { bits },
            rounding,
        }
    }

    fn encode(&self, _fit: &[f32], keys: Keys<'_>, out: &mut [f32]) {
        let (max, min) = out.split_at_mut(keys.head_dim);
        for i in 0..keys.head_dim - usize::from(self.0 == Flaw::Forgets) {
            let column = || keys.data.iter().skip(i).step_by(keys.head_dim).copied();
            let nan = self.0 != Flaw::SwallowsNan && column().any(f32::is_nan);
            max[i] = if nan { f32::NAN } else { column().fold(f32::NEG_INFINITY, f32::max) };
            min[i] = if nan { f32::NAN } else { column().fold(f32::INFINITY, f32::min) };
        }
        match self.0 {
            Flaw::NotABound => max[0] = (max[0] + min[0]) / 2.0,
            Flaw::Infinite => max[0] *= f32::MAX,
            Flaw::Remembers => min[0] -= (NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 7) as f32,
            _ => {}
        }
    }

    fn lift(&self, _fit: &[f32], query: &[f32], out: &mut [f32]) -> f32 {
        let scale = 1.0 / (query.len() as f32).sqrt();
        for (i, &q) in query.iter().enumerate() {
            out[i] = if q < 0.0 { 0.0 } else { q * scale };
            out[query.len() + i] = if q > 0.0 { 0.0 } else { q * scale };
        }
        0.0
    }

    fn is_upper_bound(&self) -> bool {
        true
    }
}

#[test]
fn seeded_flaws_of_summaries_are_found() {
    let check = |flaw| check_summary(&|_| Ok(Box::new(Wrong(flaw)) as Box<dyn Summary>), 256);
    none("the flawless one", check(Flaw::None));
    for (flaw, contract) in [
        (Flaw::NearestBound, "upper bound holds after storage"),
        (Flaw::NotABound, "upper bound holds after storage"),
        (Flaw::SwallowsNan, "NaN in a key reaches the score"),
        (Flaw::Forgets, "encode writes all its vectors"),
        (Flaw::Remembers, "alone is what it is among others"),
        (Flaw::OddWidth, "one that the codec has"),
        (Flaw::Infinite, "encode writes all its vectors, finite"),
    ] {
        let findings = check(flaw);
        let found = findings.iter().any(|f| f.contract.contains(contract));
        assert!(found, "{flaw:?} was not found; found were {findings:?}");
    }
}

#[test]
fn seeded_faults_of_rows_are_found() {
    fn careless(_: &Params) -> Result<Box<dyn Evictor>> {
        Ok(Box::new(Faulty { fault: Fault::None, seen: Vec::new(), calls: 0 }))
    }
    let row: EvictorEntry =
        Entry { name: "Careless_", about: "no sentence", version: 0, params: &[], build: careless };
    let findings = check_entry(&row, &|p| (row.build)(p).map(drop));
    let contracts: Vec<&str> = findings.iter().map(|f| f.contract).collect();
    assert_eq!(contracts, ["its name is kebab-case", "it refuses unknown keys"]);
}
