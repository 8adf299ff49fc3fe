//! Launches of gemm_stream.cu: products of fewer than [`BATCH`](super::BATCH) rows on sm_90 and later.

use crate::Cuda;
use crate::cuda::{Shape, TensorMap, arg, failed};
use cudarc::driver::sys;
use oasis_core::Result;

/// Columns of a chunk, the unit in which a weight is streamed; weights of other widths take gemm.cu.
pub(super) const CHUNK: usize = 64;

/// Weight rows of a unit and of a pass of a cluster.
const UNIT: usize = 32;
const PASS: usize = 128;

/// Bytes of shared memory of a block, where the device has as many: enough weights on their way to keep the memory busy
/// from one block a multiprocessor, and the rest of the multiprocessor for small kernels beside it.
const ROOM: usize = 150 << 10;

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

/// Thread blocks of a cluster, which divide the columns: the same for every weight and number of rows, so that a row's
/// order of sums is.
const RANKS: usize = 2;

/// The kernel for `tiles` × 8 rows.
fn kernel(tiles: usize) -> &'static str {
    match tiles {
        1 => "gemm_stream_1",
        2 => "gemm_stream_2",
        4 => "gemm_stream_4",
        _ => "gemm_stream_8",
    }
}

/// Stages of a ring in `room` bytes, and bytes of shared memory of a block with them.
fn stages(tiles: usize, room: usize) -> (usize, usize) {
    let stage = (PASS + 8 * tiles) * 2 * CHUNK;
    let fixed = PASS * 8 * tiles * size_of::<f32>() + BARRIERS;
    let stages = room.saturating_sub(fixed) / stage;
    (stages, fixed + stages * stage)
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
        let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let most = self.gpu.context.attribute(most).map_err(failed("shared memory"))? as usize;
        let (stages, shared) = stages(tiles, ROOM.min(most));
        let clusters = (self.gpu.multiprocessors / RANKS).min(n.div_ceil(UNIT));
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
        let shape =
            Shape { grid: [RANKS * clusters, 1, 1], threads: THREADS, shared: shared as u32, early: true };
        let name = kernel(tiles);
        let mut args = [arg(&tall), arg(&low), arg(&input), arg(&job)];
        // SAFETY: gemm_stream.cu's arguments, of the sizes promised; the kernel waits for its predecessor.
        unsafe { self.launch_as(self.gpu.kernel(name)?, name, shape, &mut args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_room_for_a_ring() {
        // The most shared memory of a block: sm_90 and sm_100, sm_120.
        for most in [232_448, 101_376] {
            for tiles in [1, 2, 4, 8] {
                let (stages, shared) = stages(tiles, ROOM.min(most));
                assert!(
                    stages >= 2 && shared <= most,
                    "{tiles}: {stages} stages in {shared} of {most} bytes"
                );
                // Two barriers a stage, one for sums that are there, one a rank for sums that were taken.
                assert!(8 * (2 * stages + 1 + RANKS) <= BARRIERS);
            }
        }
    }
}
