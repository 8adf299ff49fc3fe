//! The memory of a decode as it will be planned, for any batch and context, before there is one.

use super::limits::Need;
use oasis_core::chain::{ChainSpec, ChainSummary};
use oasis_core::decode::Policies;
use oasis_core::geometry::Geometry;
use oasis_core::ops::Backend;
use oasis_core::plan::{MemoryPlan, PlanExtra, SeqLength, cache_shape};
use oasis_core::settings::{Mode, Settings};

/// The plan of a batch on this backend, its device chain included.
pub fn plan<B: Backend>(
    backend: &B,
    g: &Geometry,
    settings: &Settings,
    policies: &Policies<B>,
    lengths: &[SeqLength],
) -> MemoryPlan {
    let chain = chain_bytes(backend, g, settings, policies, lengths).unwrap_or(0);
    MemoryPlan::new(g, settings, lengths, policies.summary.as_ref(), PlanExtra { chain, hidden_layers: 0 })
}

/// Bytes of the device chain; none where pools are the host's.
fn chain_bytes<B: Backend>(
    backend: &B,
    g: &Geometry,
    settings: &Settings,
    policies: &Policies<B>,
    lengths: &[SeqLength],
) -> Option<usize> {
    let shape = cache_shape(g, settings, lengths);
    let policy = policies.summary.as_ref();
    let summary = match settings.ranks() {
        false => None,
        true => {
            (policies.predictor)(0).ok()?.rows(1, &[0])?;
            let device = policy.device(shape.block)?;
            Some(ChainSummary { policy, shape: policy.shape(shape.block), device })
        }
    };
    let evictor = match settings.mode {
        Mode::Dense => None,
        _ => Some((policies.evictor)(0).ok()?.device()?),
    };
    let spec = ChainSpec {
        geometry: g,
        shape: &shape,
        pool_slots: settings.budget_blocks().min(shape.blocks),
        settings,
        group: settings.group.unwrap_or_else(|| policy.group()),
        summary,
        evictor,
    };
    backend.has_chain(&spec).ok()?;
    Some(spec.bytes())
}

/// Takes all prompts but the first out of a plan: they share one.
pub fn share_prompt(mut need: Need, seqs: usize) -> Need {
    for pool in need.plan.pools.iter_mut().filter(|p| p.name == "host prompt") {
        pool.bytes /= seqs.max(1) as u64;
    }
    need
}
