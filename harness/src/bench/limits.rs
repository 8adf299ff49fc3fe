//! What a run may use, and the refusal of what does not fit: before anything is allocated, with the plan, pool by pool,
//! and the largest batch and context that would fit.

use crate::report::units;
use anyhow::{Result, bail};
use oasis_core::Error;
use oasis_core::plan::MemoryPlan;
use oasis_kernels::Room;
use schemars::JsonSchema;
use serde::Serialize;

const GIB: f64 = (1_u64 << 30) as f64;

/// Kept free on a GPU: scratch of the ops, recorded passes, the driver's own.
pub const RESERVE: u64 = 512 << 20;

/// Limits as they are typed.
#[derive(Debug, Clone, Copy, Default, Serialize, clap::Args)]
pub struct GibLimits {
    /// Device memory that may be used, in GiB, weights included: emulates a smaller card
    #[arg(long)]
    pub hbm_gib: Option<f64>,
    /// Host memory that the KV store may use, in GiB
    #[arg(long)]
    pub host_gib: Option<f64>,
}

impl GibLimits {
    /// Refuses what is no size.
    ///
    /// # Errors
    /// A limit that is not above 0.
    pub fn check(&self) -> Result<()> {
        for (key, value) in [("--hbm-gib", self.hbm_gib), ("--host-gib", self.host_gib)] {
            if let Some(gib) = value.filter(|g| !(*g > 0.0 && g.is_finite())) {
                bail!(Error::setting(key, format!("{gib} GiB; give more than 0")));
            }
        }
        Ok(())
    }
}

/// Bytes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Limits {
    /// Of device memory, what the backend holds already included.
    pub device: u64,
    /// Of the host store.
    pub host: u64,
    /// Of both together, where they are one memory.
    pub together: Option<u64>,
}

impl Limits {
    /// What was typed, else what the machine has. `held`: device memory that this process holds already.
    pub fn new(typed: &GibLimits, room: Room, held: u64) -> Self {
        let gib = |typed: Option<f64>, free: u64| typed.map_or(free, |g| (g * GIB) as u64);
        let reserve = if room.shared { 0 } else { RESERVE };
        let free = room.device.saturating_add(held).saturating_sub(reserve);
        Self {
            device: gib(typed.hbm_gib, free),
            host: gib(typed.host_gib, room.host),
            together: room.shared.then_some(room.host),
        }
    }
}

/// All memory of a decode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Need {
    /// What the backend holds before the model (workspaces).
    pub backend: u64,
    /// Weights.
    pub weights: u64,
    /// The decode's pools.
    pub plan: MemoryPlan,
}

impl Need {
    /// Bytes of device memory.
    pub fn device(&self) -> u64 {
        self.backend + self.weights + self.plan.device()
    }

    /// Bytes of host memory.
    pub fn host(&self) -> u64 {
        self.plan.host()
    }

    /// Whether it stays within `limits`.
    pub fn fits(&self, limits: &Limits) -> bool {
        self.device() <= limits.device
            && self.host() <= limits.host
            && limits.together.is_none_or(|t| self.device() + self.host() <= t)
    }

    /// What does not fit into what.
    fn excess(&self, limits: &Limits) -> String {
        let size = |n: u64| units::bytes(n);
        let mut out = Vec::new();
        if self.device() > limits.device {
            out.push(format!("{} of device memory, limit {}", size(self.device()), size(limits.device)));
        }
        if self.host() > limits.host {
            out.push(format!("{} of host memory, limit {}", size(self.host()), size(limits.host)));
        }
        if let Some(t) = limits.together.filter(|t| out.is_empty() && self.device() + self.host() > *t) {
            out.push(format!("{} of memory, {} are free", size(self.device() + self.host()), size(t)));
        }
        out.join(", and ")
    }

    /// The plan, largest pool first, in one line.
    fn pools(&self) -> String {
        let mut all = vec![("weights", self.weights), ("backend", self.backend)];
        all.extend(self.plan.pools.iter().map(|p| (p.name, p.bytes)));
        all.retain(|(_, bytes)| *bytes > 0);
        all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let all = all.iter().map(|(name, bytes)| format!("{name} {}", units::bytes(*bytes)));
        all.collect::<Vec<_>>().join(", ")
    }
}

/// A decode whose memory is asked for: sequences and tokens of the longest prompt.
pub type Size = (usize, usize);

/// The largest batch at this context, and the largest context at this batch; 0 where nothing fits.
pub fn largest(need: &dyn Fn(Size) -> Need, limits: &Limits, (batch, context): Size, step: usize) -> Size {
    let fits = |size: Size| need(size).fits(limits);
    let batches = search(1 << 16, |n| fits((n, context)));
    let contexts = step * search((1 << 24) / step, |n| fits((batch, n * step)));
    (batches, contexts)
}

/// The largest n of `1 ..= most` for which `fits` holds, if it holds for all smaller ones; else 0.
pub fn search(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let mut high = 1;
    while high <= most && fits(high) {
        high *= 2;
    }
    // `low` fits (or is 0), `high` does not (or is too large).
    let (mut low, mut high) = (high / 2, high.min(most + 1));
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// An error for what does not fit.
///
/// # Errors
/// [`Error::Capacity`] with the plan, the limit, and what would fit.
pub fn check(
    what: &str,
    need: &dyn Fn(Size) -> Need,
    limits: &Limits,
    size: Size,
    step: usize,
) -> oasis_core::Result<()> {
    let own = need(size);
    if own.fits(limits) {
        return Ok(());
    }
    let (batch, context) = largest(need, limits, size, step);
    let at = |n: usize, text: String| if n == 0 { "none".to_owned() } else { text };
    Err(Error::Capacity(format!(
        "{what}: batch {} × {} tokens needs {} ({}); largest batch at {} tokens: {}; largest context at batch {}: {}",
        size.0,
        size.1,
        own.excess(limits),
        own.pools(),
        size.1,
        at(batch, batch.to_string()),
        size.0,
        at(context, format!("{context} tokens"))
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oasis_core::plan::PoolBytes;

    fn need((batch, context): Size) -> Need {
        let pool = |name, bytes, host| PoolBytes { name, bytes, host };
        let pools = vec![
            pool("slots", (batch * context) as u64, false),
            pool("host prompt", 10 * (batch * context) as u64, true),
        ];
        Need { backend: 5, weights: 1000, plan: MemoryPlan { pools } }
    }

    #[test]
    fn the_search_finds_the_last_that_fits() {
        for last in [0, 1, 2, 3, 63, 64, 65, 100] {
            assert_eq!(search(100, |n| n <= last), last, "{last}");
        }
        assert_eq!(search(100, |_| true), 100);
    }

    #[test]
    fn a_refusal_names_plan_limit_and_way_out() {
        let limits = Limits { device: 1505, host: 4000, together: None };
        assert!(check("dense", &need, &limits, (4, 100), 10).is_ok());
        let text = check("dense", &need, &limits, (6, 100), 10).unwrap_err().to_string();
        for part in [
            "dense: batch 6 × 100",
            "1.57 KiB of device memory",
            "limit 1.47 KiB",
            "5.86 KiB of host memory",
            "host prompt 5.86 KiB, weights 0.977 KiB, slots 600 B",
            "largest batch at 100 tokens: 4",
            "largest context at batch 6: 60 tokens",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let none = check("dense", &need, &Limits { device: 900, ..limits }, (1, 100), 10).unwrap_err();
        assert!(none.to_string().contains("largest batch at 100 tokens: none"), "{none}");
    }

    #[test]
    fn typed_limits_replace_the_machines() {
        let room = Room { device: 10 << 30, host: 4 << 30, shared: false };
        let own = Limits::new(&GibLimits::default(), room, 1 << 30);
        assert_eq!((own.device, own.host), ((11 << 30) - RESERVE, 4 << 30));
        let typed = GibLimits { hbm_gib: Some(2.0), host_gib: Some(0.5) };
        assert_eq!(Limits::new(&typed, room, 0), Limits { device: 2 << 30, host: 1 << 29, together: None });
        assert!(GibLimits { hbm_gib: Some(0.0), host_gib: None }.check().is_err());
    }
}
