//! The contracts of the policy traits as a kit that runs over any instance, in this repository or out of it.
//!
//! Each `check_*` builds instances with seeds 0, 1, 2, … and drives each through a random world that its seed
//! determines; worlds grow with the seed, so that the first finding is a small one. A check returns what it
//! found, at most one finding a contract; nothing found is an empty list. Panics are caught and are findings.
//!
//! The kit says that a policy keeps its word, not that it is any good: runs and reports say that.

mod entry;
mod evictor;
mod predictor;
mod summary;
mod world;

pub use entry::check_entry;
pub use evictor::check_evictor;
pub use predictor::check_predictor;
pub use summary::{check_summary, score_block};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::any::Any;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A contract that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The contract, in a few words.
    pub contract: &'static str,
    /// Seed of the instance and of its world.
    pub seed: u64,
    /// What happened, with the values.
    pub detail: String,
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (seed {}): {}", self.contract, self.seed, self.detail)
    }
}

/// A broken contract before it is known which seed broke it.
#[derive(Debug)]
struct Broken {
    contract: &'static str,
    detail: String,
}

type Checked<T = ()> = Result<T, Broken>;

fn broken<T>(contract: &'static str, detail: impl Into<String>) -> Checked<T> {
    Err(Broken { contract, detail: detail.into() })
}

fn ensure(holds: bool, contract: &'static str, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { broken(contract, detail()) }
}

impl From<crate::Error> for Broken {
    fn from(error: crate::Error) -> Self {
        Self { contract: "builds and runs without an error", detail: error.to_string() }
    }
}

/// What was found so far, the first finding of each contract.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    /// Runs one check, catches its panic, and notes what it found.
    fn note(&mut self, seed: u64, check: impl FnOnce() -> Checked) {
        let outcome = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|payload| {
            Err(Broken { contract: "does not panic", detail: panic_message(payload.as_ref()) })
        });
        if let Err(Broken { contract, detail }) = outcome
            && !self.0.iter().any(|f| f.contract == contract)
        {
            self.0.push(Finding { contract, seed, detail });
        }
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

/// The generator of one world; `stream` keeps the draws of different checks apart.
fn rng(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    rng
}
