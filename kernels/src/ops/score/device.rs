//! The device's side of ranking scores: kernels compiled for a summary's stored form, shared by the op and the chain.

use crate::Cuda;
use crate::cuda::{Module, Shape, Source, arg};
use oasis_core::geometry::BlockShape;
use oasis_core::policy::{Reduce, Summary, SummaryShape};
use oasis_core::settings::Group;
use oasis_core::storage::{Rounding, Storage, normal_levels};
use oasis_core::{Error, Result};

/// Sources that score; they need [`score_defines`] and no policy's code.
pub(crate) const SCORE_SOURCES: [Source; 5] = [
    ("control.cuh", include_str!("../../cuda/control.cuh")),
    ("storage.cuh", include_str!("../../cuda/storage.cuh")),
    ("score.cu", include_str!("../score.cu")),
    ("score_mma.cu", include_str!("../score_mma.cu")),
    ("combine.cu", include_str!("../combine.cu")),
];

/// Kernels of [`SCORE_SOURCES`].
pub(crate) const SCORE_KERNELS: [&str; 2] = ["score_blocks", "score_combine"];

/// Sources that call a policy's twin, behind [`SCORE_SOURCES`].
pub(crate) const TWIN_SOURCES: [Source; 1] = [("lift.cu", include_str!("../lift.cu"))];

/// Kernels of [`TWIN_SOURCES`].
pub(crate) const TWIN_KERNELS: [&str; 1] = ["lift"];

/// Sources that encode with a policy's twin, for [`super::super::summarise`].
pub(crate) const ENCODE_SOURCES: [Source; 3] = [
    SCORE_SOURCES[1],
    ("encode.cuh", include_str!("../../cuda/encode.cuh")),
    ("summarise.cu", include_str!("../summarise.cu")),
];

/// Queries are counted in eights.
pub(crate) const QUERIES: usize = 8;

/// Most queries of a pool, `MOST_QUERIES` of combine.cu.
pub(crate) const MOST_QUERIES: usize = 512;

/// Stands where a policy's code would: the same options of the compiler, so the same scores to the bit.
pub(crate) const NO_POLICY: &str = "// No policy.\n";

/// What the sources above are compiled with: the stored form of `summary` for blocks of this shape, and the query heads
/// that share a KV head.
pub(crate) fn score_defines(
    summary: &dyn Summary,
    form: &SummaryShape,
    block: BlockShape,
    group: usize,
) -> Vec<(&'static str, String)> {
    let (storage, bits) = match form.storage {
        Storage::F32 => (0, 32),
        Storage::Bf16 => (1, 16),
        Storage::Affine { bits } => (2, bits),
        Storage::Normal { bits } => (3, bits),
    };
    let (parts, upper) = match form.rounding {
        Rounding::Nearest => (1, form.dim),
        Rounding::Outward { upper } => (2, upper.min(form.dim)),
    };
    let reduce = match form.reduce {
        Reduce::Max => 0,
        Reduce::LogSumExp => 1,
        Reduce::Sum => 2,
    };
    // The distance of the middle levels is ± half a step, exactly; that of the first two is what the codec divides by.
    let (level_step, code_step) = match form.storage {
        Storage::Normal { bits } => {
            let levels = normal_levels(bits);
            (2.0 * levels[1 << (bits - 1)], levels[1] - levels[0])
        }
        _ => (0.0, 0.0),
    };
    let float = |x: f32| format!("__int_as_float(0x{:08x})", x.to_bits());
    [
        ("TOKENS", block.tokens),
        ("HEAD_DIM", block.head_dim),
        ("GROUP", group),
        ("VECTORS", form.vectors),
        ("DIM", form.dim),
        ("FIT_LEN", summary.fit_len(block)),
        ("STORAGE", storage),
        ("BITS", bits.into()),
        ("PARTS", parts),
        ("UPPER", upper),
        ("REDUCE", reduce),
        ("CODE_BYTES", form.storage.code_bytes(form.dim)),
        ("SCALE_BYTES", form.storage.scale_bytes(form.rounding)),
        ("SUMMARY_BYTES", form.bytes()),
        ("MMA", usize::from(on_tensor_cores(form))),
    ]
    .map(|(name, value)| (name, value.to_string()))
    .into_iter()
    .chain([("LEVEL_STEP", float(level_step)), ("CODE_STEP", float(code_step))])
    .collect()
}

/// Whether score_mma.cu takes the form: whole words a vector, parts that end where four lanes' words do, and blocks that
/// are a part of a tile of 8 vectors or a few of them. Others are scored coordinate by coordinate.
fn on_tensor_cores(form: &SummaryShape) -> bool {
    let (codes, vectors) = (form.storage.code_bytes(form.dim), form.vectors);
    let tiles = 8 % vectors == 0 || (vectors.is_multiple_of(8) && vectors <= MOST_VECTORS);
    let words = codes.is_multiple_of(4) && form.bytes().is_multiple_of(4) && codes <= MOST_CODE_BYTES;
    let whole = match (form.storage, form.rounding) {
        (Storage::F32, _) => false,
        (Storage::Bf16, _) => form.dim.is_multiple_of(16),
        (Storage::Affine { bits }, Rounding::Outward { upper }) => {
            let word = 32 / usize::from(bits);
            form.dim.is_multiple_of(word) && upper.is_multiple_of(4 * word)
        }
        (Storage::Affine { bits } | Storage::Normal { bits }, _) => {
            form.dim.is_multiple_of(32 / usize::from(bits))
        }
    };
    tiles && words && whole
}

/// Most vectors of a block whose products a warp keeps.
const MOST_VECTORS: usize = 64;

/// Most bytes of a vector; its queries take 16 times as many, 32 with 4 or 8 bits, of shared memory.
const MOST_CODE_BYTES: usize = 1024;

/// What every scoring launch takes. Addresses are the device's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScoreSizes {
    /// Pools of the layer, and KV heads of a sequence.
    pub pools: usize,
    pub kv_heads: usize,
    /// Most blocks of a pool: rows of `logits` and `scores`.
    pub blocks: usize,
    /// Most queries of a pool, a multiple of [`QUERIES`].
    pub queries: usize,
    /// `[CONTROL_STEP + CONTROL_SEQ × seqs]` words of the step, see core's `SeqControl`.
    pub control: u64,
}

/// Where lifting reads and writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LiftArgs {
    /// Query heads.
    pub heads: usize,
    /// `[rows][heads][head_dim]`, bf16.
    pub q: u64,
    /// `[pools][fit_len]`.
    pub fit: u64,
    /// First row of each sequence, `[seqs + 1]`.
    pub first: u64,
    /// `[pools][queries][dim]`, written where there is a query: ranking rows, ascending, times the group's heads.
    pub lifted: u64,
    /// `[pools][queries]`, as `lifted`.
    pub bias: u64,
}

/// Where scoring reads and writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogitArgs {
    /// `[pools][blocks][summary bytes]`.
    pub summaries: u64,
    /// See [`LiftArgs`].
    pub lifted: u64,
    /// See [`LiftArgs`].
    pub bias: u64,
    /// Most candidates of a sequence, now and in replays.
    pub reach: usize,
    /// `[pools][queries][blocks]`; candidates of queries are written.
    pub logits: u64,
}

/// Where combining reads and writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CombineArgs {
    /// See [`LogitArgs`].
    pub logits: u64,
    /// `[pools][queries]`: ln of the mass beside the candidates, for `softmax-sum`; 0: none.
    pub resident: u64,
    /// How.
    pub group: Group,
    /// `[pools][blocks]`; candidates are written.
    pub scores: u64,
}

/// Threads of a thread block of score_blocks.
const THREADS: u32 = 256;

/// Blocks of a thread block: few enough that all multiprocessors have some work, many enough that laying queries out does
/// not count. It hangs on capacities only, and no score hangs on it.
fn share(reach: usize, columns: usize, multiprocessors: usize) -> usize {
    let wanted = (2 * multiprocessors).div_ceil(columns.max(1));
    (reach / wanted.max(1)).next_multiple_of(SHARE).clamp(SHARE, MOST_SHARE)
}

/// Blocks of a thread block come in such multiples, and are at most so many.
const SHARE: usize = 64;
const MOST_SHARE: usize = 512;

impl Cuda {
    /// Lifts the queries of the ranking rows.
    pub(crate) fn lift(&self, module: &Module, sizes: &ScoreSizes, args: &LiftArgs) -> Result<()> {
        let [heads, kv_heads, queries] = [args.heads, sizes.kv_heads, sizes.queries].map(|x| x as u32);
        let mut list = [
            arg(&args.q),
            arg(&args.fit),
            arg(&args.first),
            arg(&sizes.control),
            arg(&heads),
            arg(&kv_heads),
            arg(&queries),
            arg(&args.lifted),
            arg(&args.bias),
        ];
        let grid = [sizes.queries, sizes.pools, 1];
        // SAFETY: lift.cu's arguments, of the lengths that the fields say.
        unsafe { self.launch_of(module, "lift", grid, 128, &mut list) }
    }

    /// Every query's logit of every candidate.
    pub(crate) fn score_blocks(&self, module: &Module, sizes: &ScoreSizes, args: &LogitArgs) -> Result<()> {
        let eights = sizes.queries / QUERIES;
        let share = share(args.reach, sizes.pools * eights, self.gpu.multiprocessors);
        let [kv_heads, blocks, queries, each] =
            [sizes.kv_heads, sizes.blocks, sizes.queries, share].map(|x| x as u32);
        let mut list = [
            arg(&args.summaries),
            arg(&args.lifted),
            arg(&args.bias),
            arg(&sizes.control),
            arg(&kv_heads),
            arg(&blocks),
            arg(&queries),
            arg(&each),
            arg(&args.logits),
        ];
        let grid = [args.reach.div_ceil(share) * eights, sizes.pools, 1];
        // SAFETY: score_mma.cu's arguments, of the lengths that the fields say.
        unsafe { self.launch_of(module, "score_blocks", grid, THREADS, &mut list) }
    }

    /// The logits of a pool's queries to one score a candidate.
    pub(crate) fn combine(&self, module: &Module, sizes: &ScoreSizes, args: &CombineArgs) -> Result<()> {
        if sizes.queries > MOST_QUERIES {
            let what = format!("{} queries a pool; score_combine takes {MOST_QUERIES}", sizes.queries);
            return Err(Error::Unsupported(format!("{what}: rank with fewer rows")));
        }
        let [kv_heads, blocks, queries] = [sizes.kv_heads, sizes.blocks, sizes.queries].map(|x| x as u32);
        let group = match args.group {
            Group::Max => 0_u32,
            Group::Mean => 1,
            Group::SoftmaxSum => 2,
        };
        let mut list = [
            arg(&args.logits),
            arg(&args.resident),
            arg(&sizes.control),
            arg(&kv_heads),
            arg(&blocks),
            arg(&queries),
            arg(&group),
            arg(&args.scores),
        ];
        // SAFETY: combine.cu's arguments, of the lengths that the fields say.
        unsafe { self.launch_of(module, "score_combine", [sizes.pools, 1, 1], 512, &mut list) }
    }

    /// Puts a kernel of a module on the current lane.
    ///
    /// # Safety
    /// As [`Cuda::launch_as`].
    unsafe fn launch_of(
        &self,
        module: &Module,
        kernel: &str,
        grid: [usize; 3],
        threads: u32,
        args: &mut [crate::cuda::Arg<'_>],
    ) -> Result<()> {
        let shape = Shape { grid, threads, shared: 0, early: false };
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(module.kernel(kernel)?, kernel, shape, args) }
    }
}
