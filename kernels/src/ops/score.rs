//! Ranking scores: inner products of lifted queries with stored summary vectors, reduced over a block's vectors, then
//! combined over the ranking rows and the query heads of a pool.
//!
//! Stored vectors are decoded a tile at a time into f32 and used by all queries of the pool.

mod combine;
mod decode;
mod device;
mod request;

use super::{check_heads, need};
use crate::cpu::Workers;
use crate::simd::{LANES, Level, widen};
use crate::team::{Parts, Team};
use crate::{Cpu, Cuda};
use combine::Combine;
use decode::TileScores;
pub(crate) use device::{
    CombineArgs, ENCODE_SOURCES, LiftArgs, LogitArgs, MOST_QUERIES, NO_POLICY, QUERIES, SCORE_KERNELS,
    SCORE_SOURCES, ScoreSizes, TWIN_KERNELS, TWIN_SOURCES, score_defines,
};
use half::bf16;
use oasis_core::chain::CONTROL_STEP;
use oasis_core::geometry::Geometry;
use oasis_core::ops::{CacheShape, Memory, RankQuery, Score, ScoreArgs};
use oasis_core::settings::Group;
use oasis_core::storage::{Storage, normal_scale};
use oasis_core::{Error, Result};
use request::Request;

/// Order of f32 sums; absolute on logits, relative on softmax sums.
pub const TOLERANCE: f64 = 1e-4;

/// Blocks of a task.
const BLOCKS: usize = 128;

impl Score for Cpu {
    fn score(&mut self, args: ScoreArgs<'_, Self>) -> Result<()> {
        let fit_len = check(self, &args)?;
        let (shape, form) = (args.shape, args.summary_shape);
        let view = View::of((args.geometry, args.shape), &args.rows.host_first, &args.query, args.candidates);
        let pools = shape.pools();
        let (most, queries) = view.most();
        if most == 0 || queries == 0 {
            return Ok(());
        }
        // A query's scores are whole vectors, so that no loop has a remainder.
        let sizes =
            Sizes { queries, width: form.dim.next_multiple_of(LANES), line: most.next_multiple_of(LANES) };
        let all = pools * queries;
        let lengths = [all * sizes.width, all, all * sizes.line, 256];
        let [lifted, bias, scores, scales] = self.whole.floats(lengths);
        if matches!(form.storage, Storage::Normal { .. }) {
            (0..=255_u8).zip(&mut *scales).for_each(|(byte, scale)| *scale = normal_scale(byte));
        }
        let cpu = Borrowed { team: &self.team, workers: &self.workers, level: self.level };
        cpu.lift(&args, &view, &sizes, (args.q, args.fit, fit_len), lifted, bias);
        cpu.tiles(&args, &view, &sizes, (lifted, bias, scales), scores);
        cpu.combine(&view, &sizes, scores, (args.group, args.resident_lse), args.out);
        Ok(())
    }
}

/// Sizes of the op's scratch.
struct Sizes {
    /// Most queries of a pool.
    queries: usize,
    /// Floats of a lifted query.
    width: usize,
    /// Floats of a query's scores.
    line: usize,
}

/// The device without its scratch.
struct Borrowed<'a> {
    team: &'a Team,
    workers: &'a Workers,
    level: Level,
}

impl Borrowed<'_> {
    /// Queries to the summary's space: `lifted` `[pools][queries][width]`, `bias` `[pools][queries]`.
    fn lift<B: Memory>(
        &self,
        args: &ScoreArgs<'_, B>,
        view: &View<'_>,
        sizes: &Sizes,
        (q, fit, fit_len): (&[bf16], &[f32], usize),
        lifted: &mut [f32],
        bias: &mut [f32],
    ) {
        let (d, dim) = (args.geometry.head_dim, args.summary_shape.dim);
        let (summary, query_of) = (args.summary, &args.query);
        let work = 8 * lifted.len();
        let (lifted, bias) = (Parts::new(lifted), Parts::new(bias));
        self.team.run(args.shape.pools(), work, |worker, pool| {
            let mut scratch = self.workers.get(worker);
            let [query] = scratch.floats([d]);
            for (i, place) in view.places(pool).enumerate() {
                match query_of {
                    RankQuery::Rows(_) => widen(&q[place * d..][..d], query),
                    RankQuery::Query(q) => query.copy_from_slice(&q[place * d..][..d]),
                }
                let at = pool * sizes.queries + i;
                // SAFETY: the queries of this pool are this task's.
                let (to, bias) = unsafe { (lifted.slice(at * sizes.width, sizes.width), bias.slice(at, 1)) };
                to[dim..].fill(0.0);
                bias[0] = summary.lift(&fit[pool * fit_len..][..fit_len], query, &mut to[..dim]);
            }
        });
    }

    /// Every query's score of every candidate, `[pools][queries][line]`.
    fn tiles(
        &self,
        args: &ScoreArgs<'_, Cpu>,
        view: &View<'_>,
        sizes: &Sizes,
        (lifted, bias, scales): (&[f32], &[f32], &[f32]),
        scores: &mut [f32],
    ) {
        let (shape, form) = (args.shape, args.summary_shape);
        let bytes = form.bytes();
        let tasks = sizes.line.div_ceil(BLOCKS);
        let work = scores.len() * form.vectors * sizes.width;
        let scores = Parts::new(scores);
        self.team.run(shape.pools() * tasks, work, |worker, task| {
            let (pool, from) = (task / tasks, task % tasks * BLOCKS);
            let (first, count) = view.candidates(pool / shape.kv_heads);
            let queries = view.queries(pool);
            if from >= count || queries == 0 {
                return;
            }
            let n = BLOCKS.min(count - from);
            let at = pool * sizes.queries;
            let job = TileScores {
                form,
                stored: &args.summaries[(pool * shape.blocks + first + from) * bytes..][..n * bytes],
                width: sizes.width,
                lifted: &lifted[at * sizes.width..][..queries * sizes.width],
                bias: &bias[at..][..queries],
                // SAFETY: these blocks' columns are this task's.
                out: unsafe { scores.pointer(at * sizes.line + from) },
                line: sizes.line,
                scales,
            };
            job.fill(self.level, &mut self.workers.get(worker));
        });
    }

    /// The scores of a pool's queries to one a block.
    fn combine(
        &self,
        view: &View<'_>,
        sizes: &Sizes,
        scores: &mut [f32],
        (group, lse): (Group, Option<&[f32]>),
        out: &mut [f32],
    ) {
        let shape = view.shape;
        let work = 8 * scores.len();
        let scores = Parts::new(scores);
        let out = Parts::new(&mut out[..shape.pools() * shape.blocks]);
        self.team.run(shape.pools(), work, |_, pool| {
            let (first, count) = view.candidates(pool / shape.kv_heads);
            let n = view.queries(pool) * sizes.line;
            // SAFETY: the scores of this pool are this task's.
            let (scores, out) = unsafe {
                let scores = scores.slice(pool * sizes.queries * sizes.line, n);
                (scores, out.slice(pool * shape.blocks + first, count))
            };
            for row in scores.chunks_exact_mut(sizes.line) {
                row[count..].fill(f32::NEG_INFINITY);
            }
            let mut resident = view.places(pool).map(|place| lse.map(|lse| lse[place]));
            let resident = |_| resident.next().flatten();
            self.level.run(Combine { group, scores, line: sizes.line, resident, out });
        });
    }
}

/// Who ranks what.
struct View<'a> {
    geometry: &'a Geometry,
    shape: &'a CacheShape,
    host_first: &'a [u32],
    query: &'a RankQuery<'a>,
    candidates: &'a [(u32, u32)],
}

impl<'a> View<'a> {
    fn of(
        (geometry, shape): (&'a Geometry, &'a CacheShape),
        host_first: &'a [u32],
        query: &'a RankQuery<'a>,
        candidates: &'a [(u32, u32)],
    ) -> Self {
        Self { geometry, shape, host_first, query, candidates }
    }
}

impl View<'_> {
    /// Most candidates of a sequence, and most queries of a pool.
    fn most(&self) -> (usize, usize) {
        let candidates = (0..self.shape.seqs).map(|s| self.candidates(s).1).max();
        let queries = (0..self.shape.pools()).map(|pool| self.queries(pool)).max();
        (candidates.unwrap_or(0), queries.unwrap_or(0))
    }

    /// First candidate of a sequence, and how many there are.
    fn candidates(&self, seq: usize) -> (usize, usize) {
        let (first, end) = self.candidates[seq];
        (first as usize, end.saturating_sub(first) as usize)
    }

    /// The ranking rows of a sequence, as a mask; one stand-in query counts as one row.
    fn mask(&self, seq: usize) -> u32 {
        match self.query {
            RankQuery::Rows(masks) => masks[seq],
            RankQuery::Query(_) => 1,
        }
    }

    /// Queries of a pool.
    fn queries(&self, pool: usize) -> usize {
        self.mask(pool / self.shape.kv_heads).count_ones() as usize * self.geometry.group()
    }

    /// Where the queries of a pool are among `[rows or sequences][heads]`, row after row.
    fn places(&self, pool: usize) -> impl Iterator<Item = usize> + use<> {
        let (seq, head) = (pool / self.shape.kv_heads, pool % self.shape.kv_heads);
        let (group, heads) = (self.geometry.group(), self.geometry.heads);
        let first = match self.query {
            RankQuery::Rows(_) => self.host_first[seq] as usize,
            RankQuery::Query(_) => seq,
        };
        let mask = self.mask(seq);
        let rows = (0..32).filter(move |r| mask >> r & 1 == 1);
        rows.flat_map(move |r| (0..group).map(move |i| (first + r) * heads + head * group + i))
    }
}

fn check<B: Memory>(backend: &B, args: &ScoreArgs<'_, B>) -> Result<usize> {
    let (g, shape, form) = (args.geometry, args.shape, args.summary_shape);
    check_heads("score", g, Some(shape))?;
    form.storage.check(form.dim, form.rounding)?;
    let fit_len = args.summary.fit_len(shape.block);
    need("score", "vectors of a block", form.vectors.min(form.dim), 1)?;
    need("score", "summaries", backend.len(args.summaries), shape.pools() * shape.blocks * form.bytes())?;
    need("score", "fit", backend.len(args.fit), shape.pools() * fit_len)?;
    need("score", "candidates", args.candidates.len(), shape.seqs)?;
    need("score", "out", backend.len(args.out), shape.pools() * shape.blocks)?;
    for seq in 0..shape.seqs {
        need("score", "blocks of a pool", shape.blocks, args.candidates[seq].1 as usize)?;
    }
    match args.query {
        RankQuery::Query(q) => need("score", "query", q.len(), shape.seqs * g.q_dim())?,
        RankQuery::Rows(masks) => {
            need("score", "row masks", masks.len(), shape.seqs)?;
            need("score", "rows' sequences", args.rows.seqs(), shape.seqs)?;
            need("score", "q", backend.len(args.q), args.rows.rows() * g.q_dim())?;
            for (seq, &mask) in masks[..shape.seqs].iter().enumerate() {
                let rows = args.rows.host_first[seq + 1] - args.rows.host_first[seq];
                let some = rows > 0 && args.candidates[seq].1 > args.candidates[seq].0;
                if u64::from(mask) >> rows != 0 || (mask == 0 && some) {
                    return Err(Error::Invariant(format!(
                        "score: row mask {mask:#b} of sequence {seq}, which has {rows} rows; name one or more of them"
                    )));
                }
            }
        }
    }
    if let Some(lse) = args.resident_lse {
        need("score", "resident_lse", lse.len(), args.rows.rows() * g.heads)?;
        if matches!(args.query, RankQuery::Query(_)) {
            return Err(Error::Invariant(
                "score: the resident mass is that of rows, not of a stand-in query".into(),
            ));
        }
    }
    Ok(fit_len)
}

impl Cuda {
    /// Lifts the queries on the host, which has the policy, and puts what goes with them on the device.
    fn request(
        &mut self,
        args: &ScoreArgs<'_, Self>,
        view: &View<'_>,
        sizes: &Sizes,
        fit_len: usize,
    ) -> Result<Request> {
        let pools = args.shape.pools();
        let all = pools * sizes.queries;
        let q = match args.query {
            RankQuery::Rows(_) => self.fetch_host(args.q, args.rows.rows() * args.geometry.q_dim())?,
            RankQuery::Query(_) => Vec::new(),
        };
        let fit = self.fetch_host(args.fit, pools * fit_len)?;
        let (mut lifted, mut bias) = (vec![0.0; all * sizes.width], vec![0.0; all]);
        let cpu = Borrowed { team: &self.host.team, workers: &self.host.workers, level: self.host.level };
        cpu.lift(args, view, sizes, (&q, &fit, fit_len), &mut lifted, &mut bias);
        let mut resident = vec![f32::NEG_INFINITY; all];
        if let Some(lse) = args.resident_lse {
            for pool in 0..pools {
                let to = &mut resident[pool * sizes.queries..];
                to.iter_mut().zip(view.places(pool)).for_each(|(to, place)| *to = lse[place]);
            }
        }
        let mut control = vec![0_u32; CONTROL_STEP];
        for seq in 0..args.shape.seqs {
            let (first, end) = args.candidates[seq];
            control.extend([first, end, end, view.mask(seq)]);
        }
        let words: [&[u8]; 4] = [
            bytemuck::cast_slice(&lifted),
            bytemuck::cast_slice(&bias),
            bytemuck::cast_slice(&resident),
            bytemuck::cast_slice(&control),
        ];
        let request = Request::new(words);
        let base = self.scratch(1, request.bytes.len())?;
        self.upload_to(base, &request.bytes)?;
        Ok(request.at(base))
    }
}

impl Score for Cuda {
    fn score(&mut self, args: ScoreArgs<'_, Self>) -> Result<()> {
        let fit_len = check(self, &args)?;
        let (shape, form) = (args.shape, args.summary_shape);
        let view = View::of((args.geometry, args.shape), &args.rows.host_first, &args.query, args.candidates);
        let (most, queries) = view.most();
        if most == 0 || queries == 0 {
            return Ok(());
        }
        let sizes = Sizes { queries: queries.next_multiple_of(QUERIES), width: form.dim, line: shape.blocks };
        let defines = score_defines(args.summary, form, shape.block, args.geometry.group());
        let module = self.gpu.module(&SCORE_SOURCES, NO_POLICY, &defines, &SCORE_KERNELS)?;
        let request = self.request(&args, &view, &sizes, fit_len)?;
        let [lifted, bias, resident, control] = request.starts;
        let pools = shape.pools();
        let logits = self.scratch(2, pools * sizes.queries * sizes.line * size_of::<f32>())?;
        let Sizes { queries, line: blocks, .. } = sizes;
        let sizes = ScoreSizes { pools, kv_heads: shape.kv_heads, blocks, queries, control };
        let summaries = args.summaries.at(0);
        self.score_blocks(&module, &sizes, &LogitArgs { summaries, lifted, bias, reach: most, logits })?;
        let resident = if args.resident_lse.is_some() { resident } else { 0 };
        let scores = args.out.at(0);
        self.combine(&module, &sizes, &CombineArgs { logits, resident, group: args.group, scores })
    }
}

#[cfg(test)]
mod tests;
