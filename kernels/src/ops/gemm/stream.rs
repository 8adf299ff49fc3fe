//! Launches of gemm_stream.cu: products of fewer than [`BATCH`](super::BATCH) rows on sm_90 and later.

use crate::Cuda;
use crate::cuda::{Shape, TensorMap, arg};
use oasis_core::Result;

/// Columns of a chunk, the unit in which a weight is streamed; weights of other widths take gemm.cu.
pub(super) const CHUNK: usize = 64;

/// Weight rows of a unit and of a pass of a cluster.
const UNIT: usize = 32;
const PASS: usize = 128;

/// Bytes of shared memory of a block: two blocks, of two kernels in a row, fit a multiprocessor.
const ROOM: usize = 113 << 10;

/// Bytes for the stages' barriers.
const BARRIERS: usize = 512;

/// Threads of a block: four warps that multiply, one that loads.
const THREADS: u32 = 160;

/// What gemm_stream.cu is told; its `GemmJob`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Job {
    bias: u64,
    out: u64,
    rows: u32,
    n: u32,
    k: u32,
    accumulate: u32,
    stages: u32,
    spare: u32,
}

/// Thread blocks that divide the columns of a weight of `n` rows: few rows make few passes, and the multiprocessors want
/// equally many. It hangs on the weight alone, so that a row's order of sums does.
fn ranks(n: usize) -> usize {
    match n {
        0..5_000 => 4,
        5_000..10_000 => 2,
        _ => 1,
    }
}

/// The kernel for `tiles` × 8 rows.
fn kernel(tiles: usize, ranks: usize) -> &'static str {
    match (tiles, ranks) {
        (1, 1) => "gemm_stream_1_1",
        (2, 1) => "gemm_stream_2_1",
        (4, 1) => "gemm_stream_4_1",
        (_, 1) => "gemm_stream_8_1",
        (1, 2) => "gemm_stream_1_2",
        (2, 2) => "gemm_stream_2_2",
        (4, 2) => "gemm_stream_4_2",
        (_, 2) => "gemm_stream_8_2",
        (1, _) => "gemm_stream_1_4",
        (2, _) => "gemm_stream_2_4",
        (4, _) => "gemm_stream_4_4",
        _ => "gemm_stream_8_4",
    }
}

impl Cuda {
    /// Whether the device has clusters and the copy engine that gemm_stream.cu uses.
    pub(super) fn streams(&self) -> bool {
        self.gpu.capability.0 >= 9
    }

    /// `out[r] = W x[r] (+ bias) (+ out[r])` for at most 64 rows.
    ///
    /// # Safety
    /// The addresses are of x `[rows][k]`, w `[n][k]` (bf16), out `[rows][n]` and, unless 0, bias `[n]` (f32), in device
    /// memory; `k` is whole [`CHUNK`]s.
    pub(super) unsafe fn stream_product(
        &self,
        [x, w, bias, out]: [u64; 4],
        [rows, n, k]: [usize; 3],
        accumulate: bool,
    ) -> Result<()> {
        let tiles = rows.div_ceil(8).next_power_of_two();
        let ranks = ranks(n);
        let stage = (PASS + 8 * tiles) * 2 * CHUNK;
        let inbox = PASS * 8 * tiles * size_of::<f32>();
        let stages = (ROOM - inbox - BARRIERS) / stage;
        let clusters = (self.gpu.multiprocessors / ranks).min(n.div_ceil(UNIT));
        let [rows_arg, n_arg, k_arg] = [rows, n, k].map(|v| v as u32);
        let job = Job {
            bias,
            out,
            rows: rows_arg,
            n: n_arg,
            k: k_arg,
            accumulate: u32::from(accumulate),
            stages: stages as u32,
            spare: 0,
        };
        let tall = TensorMap::new(w, [n, k], PASS)?;
        let low = TensorMap::new(w, [n, k], UNIT)?;
        let input = TensorMap::new(x, [rows, k], 8 * tiles)?;
        let shape = Shape {
            grid: [ranks * clusters, 1, 1],
            threads: THREADS,
            shared: (stages * stage + inbox + BARRIERS) as u32,
            early: true,
        };
        let name = kernel(tiles, ranks);
        let mut args = [arg(&tall), arg(&low), arg(&input), arg(&job)];
        // SAFETY: gemm_stream.cu's arguments, of the sizes promised; the kernel waits for its predecessor.
        unsafe { self.launch_as(self.gpu.kernel(name)?, name, shape, &mut args) }
    }
}
