//! The chain's launches.

use super::super::gpu::failed;
use super::super::{Cuda, Lane, Shape, arg};
use super::CudaChain;
use super::view::Arrays;
use crate::ops::score::{CombineArgs, LiftArgs, LogitArgs, ScoreSizes};
use oasis_core::Result;
use oasis_core::chain::ChainSpec;
use oasis_core::settings::Group;

/// Threads of the chain's thread blocks, `THREADS` of select.cu.
const THREADS: u32 = 256;

/// Thread blocks and threads of a fetch: as few as keep the link full beside a busy foreground (NOTES.md).
const FETCHERS: (usize, u32) = (8, 512);

/// What ranking needs beside a layer's arrays.
pub(super) struct Scoring {
    sizes: ScoreSizes,
    lifted: u64,
    bias: u64,
    logits: u64,
    scores: u64,
    /// 0 where scores are not normalised by it.
    resident: u64,
    heads: usize,
    group: Group,
}

impl Scoring {
    pub fn new(spec: &ChainSpec<'_>, arrays: &Arrays) -> Result<Self> {
        let normalised = spec.group == Group::SoftmaxSum && spec.settings.normalise_resident;
        Ok(Self {
            sizes: ScoreSizes {
                pools: spec.shape.pools(),
                kv_heads: spec.shape.kv_heads,
                blocks: spec.shape.blocks,
                queries: spec.queries(),
                control: arrays.at("control")?,
            },
            lifted: arrays.at("lifted")?,
            bias: arrays.at("bias")?,
            logits: arrays.at("logits")?,
            scores: arrays.at("scores")?,
            resident: if normalised { arrays.at("resident")? } else { 0 },
            heads: spec.geometry.heads,
            group: spec.group,
        })
    }
}

impl Cuda {
    /// Masses of row 0 to the histories; `first` are the rows' ([`oasis_core::ops::RowTable::first`]).
    pub(super) fn observe_layer(&self, chain: &CudaChain, layer: usize, first: u64) -> Result<()> {
        self.launch_layer(chain, "observe", layer, Some(first), 0)
    }

    pub(super) fn rank_layer(&mut self, chain: &CudaChain, layer: usize, first: u64) -> Result<()> {
        let (module, l) = (&chain.module, &chain.layers[layer]);
        if let Some(s) = &chain.scoring {
            let (lifted, bias, logits) = (s.lifted, s.bias, s.logits);
            let lift = LiftArgs { heads: s.heads, q: l.q, fit: l.fit, first, lifted, bias };
            self.lift(module, &s.sizes, &lift)?;
            let reach = s.sizes.blocks;
            self.score_blocks(
                module,
                &s.sizes,
                &LogitArgs { summaries: l.summaries, lifted, bias, reach, logits },
            )?;
            if s.resident != 0 {
                self.launch_layer(chain, "pinned_mass", layer, Some(first), 0)?;
            }
            let combine = CombineArgs { logits, resident: s.resident, group: s.group, scores: s.scores };
            self.combine(module, &s.sizes, &combine)?;
        }
        self.select_layer(chain, layer)?;
        if chain.fetches { self.fetch_layer(chain, layer) } else { Ok(()) }
    }

    /// Selection alone, by the scores that are there.
    pub(super) fn select_layer(&self, chain: &CudaChain, layer: usize) -> Result<()> {
        self.launch_layer(chain, "select_blocks", layer, None, 16 * chain.view.pool_slots)
    }

    /// A kernel with a thread block a pool; its arguments are the view, the layer's arrays, its number and, where it
    /// reads them, the rows.
    fn launch_layer(
        &self,
        chain: &CudaChain,
        name: &'static str,
        layer: usize,
        first: Option<u64>,
        shared: u32,
    ) -> Result<()> {
        let (view, arrays, number) = (&chain.view, &chain.layers[layer], layer as u32);
        let first_row = first.unwrap_or(0);
        let all = &mut [arg(view), arg(arrays), arg(&number), arg(&first_row)];
        let args = if first.is_some() { &mut all[..] } else { &mut all[..3] };
        let shape = Shape { grid: [view.pools as usize, 1, 1], threads: THREADS, shared, early: false };
        // SAFETY: the kernel's arguments; the chain keeps all arrays alive, of the sizes that the view says.
        unsafe { self.launch_as(chain.module.kernel(name)?, name, shape, args) }
    }

    /// The layer's listed moves, on the fetch lane, behind the selection.
    fn fetch_layer(&mut self, chain: &CudaChain, layer: usize) -> Result<()> {
        let view = &chain.view;
        let moves = view.moves + 16 * (layer * view.pools as usize * view.cap as usize) as u64;
        let (count, bytes) = (view.move_count + 4 * layer as u64, chain.chunk_bytes);
        self.lanes.switch(Lane::Fetch)?;
        self.mark_fetch(true)?;
        let (blocks, threads) = FETCHERS;
        let mut args = [arg(&moves), arg(&count), arg(&bytes)];
        // SAFETY: fetch.cu's arguments: the list has room for the cap of every pool, and its moves lie within the host
        // store and the slots.
        unsafe { self.launch("fetch_chunks", [blocks, 1, 1], threads, &mut args)? };
        self.mark_fetch(false)?;
        self.lanes.switch(Lane::Rank)
    }

    /// The records of a commit are on the device.
    pub(super) fn commit_all(&self, chain: &CudaChain, now: u32) -> Result<()> {
        let (view, records) = (&chain.view, chain.commit_list);
        let grid = [view.pools as usize, view.layer_count as usize, 1];
        let shape = Shape { grid, threads: THREADS, shared: chain.commit_shared, early: false };
        let mut args = [arg(view), arg(&records), arg(&now)];
        // SAFETY: commit.cu's arguments; blocks, moves and rests were checked.
        unsafe { self.launch_as(chain.module.kernel("commit")?, "commit", shape, &mut args) }
    }

    pub(super) fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: callers give an address with as many bytes.
        unsafe { cudarc::driver::result::memset_d8_async(address, 0, bytes, self.lanes.current()) }
            .map_err(failed("zeroing"))
    }

    /// Numbers of admissions, in the words of `count` slots from `meta`, to the evictor's words.
    pub(super) fn number_slots(&self, chain: &CudaChain, meta: u64, count: u32) -> Result<()> {
        let grid = [(count as usize).div_ceil(THREADS as usize), 1, 1];
        let shape = Shape { grid, threads: THREADS, shared: 0, early: false };
        let mut args = [arg(&meta), arg(&count)];
        // SAFETY: commit.cu's arguments; `count` slots lie there.
        unsafe { self.launch_as(chain.module.kernel("number_slots")?, "number_slots", shape, &mut args) }
    }
}
