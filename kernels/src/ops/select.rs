//! Top-K, cap and eviction of every pool.

use super::need;
use crate::team::Parts;
use crate::{Cpu, Cuda};
use oasis_core::Result;
use oasis_core::ops::{Memory, Select, SelectArgs};
use std::sync::{Mutex, PoisonError};

/// Integer work on equal scores.
pub const TOLERANCE: f64 = 0.0;

impl Select for Cpu {
    fn select(&mut self, args: SelectArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let scores = args.scores;
        on_host(self, args, scores)
    }
}

impl Select for Cuda {
    /// On the host, which has pools and evictors.
    fn select(&mut self, args: SelectArgs<'_, Self>) -> Result<()> {
        check(self, &args)?;
        let scores = self.fetch_host(args.scores, args.shape.pools() * args.shape.blocks)?;
        on_host(&self.host, args, &scores)
    }
}

fn check<B: Memory>(backend: &B, args: &SelectArgs<'_, B>) -> Result<()> {
    let shape = args.shape;
    let n = shape.pools();
    need("select", "scores", backend.len(args.scores), n * shape.blocks)?;
    need("select", "candidates", args.candidates.len(), shape.seqs)?;
    need("select", "pools", args.pools.len(), n)?;
    need("select", "evictors", args.evictors.len(), n)?;
    need("select", "outcomes", args.outcomes.len(), n)?;
    for &(first, end) in &args.candidates[..shape.seqs] {
        need("select", "blocks of a pool", shape.blocks, first.max(end) as usize)?;
    }
    Ok(())
}

/// Every pool's selection, with the threads of `cpu`; `scores` `[pools][blocks]`.
fn on_host<B: Memory>(cpu: &Cpu, args: SelectArgs<'_, B>, scores: &[f32]) -> Result<()> {
    let (shape, n) = (args.shape, args.shape.pools());
    let most = args.candidates.iter().map(|(first, end)| end.saturating_sub(*first)).max().unwrap_or(0);
    let pools = Parts::new(&mut args.pools[..n]);
    let evictors = Parts::new(&mut args.evictors[..n]);
    let outcomes = Parts::new(&mut args.outcomes[..n]);
    let failed = Mutex::new(None);
    cpu.team.run(n, 16 * n * most as usize, |_, p| {
        // SAFETY: pool p, its evictor and its outcome are this task's.
        let (pool, evictor, outcome) = unsafe {
            (&mut pools.slice(p, 1)[0], &mut evictors.slice(p, 1)[0], &mut outcomes.slice(p, 1)[0])
        };
        let scores = &scores[p * shape.blocks..][..shape.blocks];
        let (first, end) = args.candidates[p / shape.kv_heads];
        let (k, cap) = (args.k, args.cap);
        let done =
            oasis_core::select::select(scores, first..end, k, cap, args.now, pool, evictor.as_mut(), outcome);
        if let Err(error) = done {
            // Any pool's error will do; a poisoned lock holds one already.
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use oasis_core::geometry::BlockShape;
    use oasis_core::ids::Step;
    use oasis_core::ops::CacheShape;
    use oasis_core::policy::{Evictor, SlotMeta};
    use oasis_core::pool::Pool;
    use oasis_core::select::{Outcome, select};

    struct LeastRecent;

    impl Evictor for LeastRecent {
        fn keep(&self, slot: &SlotMeta, _: Step) -> f32 {
            slot.last_selected as f32
        }
    }

    #[test]
    fn every_pool_gets_what_it_would_get_alone() {
        let mut random = Random::new(9);
        let block = BlockShape { tokens: 4, head_dim: 3 };
        let shape = CacheShape { seqs: 3, kv_heads: 2, slots: 20, tail_tokens: 5, blocks: 400, block };
        let candidates = [(1, 390), (1, 17), (1, 1)];
        let mut cpu = Cpu::new(2);
        let mut pools = vec![Pool::new(20, 400); 6];
        let mut alone = pools.clone();
        let mut evictors: Vec<Box<dyn Evictor>> = (0..6).map(|_| Box::new(LeastRecent) as _).collect();
        let mut outcomes = vec![Outcome::default(); 6];
        for now in 1..30 {
            let scores = random.f32(6 * 400);
            let b_scores = cpu.upload(&scores).unwrap();
            let args = SelectArgs {
                shape: &shape,
                scores: &b_scores,
                candidates: &candidates,
                k: 20,
                cap: 5,
                now,
                pools: &mut pools,
                evictors: &mut evictors,
                outcomes: &mut outcomes,
            };
            cpu.select(args).unwrap();
            for (p, pool) in alone.iter_mut().enumerate() {
                let (first, end) = candidates[p / 2];
                let mut outcome = Outcome::default();
                let scores = &scores[p * 400..][..400];
                select(scores, first..end, 20, 5, now, pool, &mut LeastRecent, &mut outcome).unwrap();
                assert_eq!(outcomes[p].moves, outcome.moves);
                assert_eq!(outcomes[p].evicted, outcome.evicted);
                assert_eq!(outcomes[p].wanted.len(), 20.min((end - first) as usize));
            }
            assert_eq!(pools, alone);
        }
    }
}
