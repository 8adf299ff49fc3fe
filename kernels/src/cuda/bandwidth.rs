//! Bandwidths of a GPU and its link, by its own clock.

use super::compile::Source;
use super::gpu::{Module, failed};
use super::lanes::{Event, Lane};
use super::launch::{Shape, arg};
use super::{Cuda, CudaBuf, CudaHostBuf};
use crate::measure::{Bandwidths, CHUNK, Measure, Room, free_memory};
use cudarc::driver::{result, sys};
use oasis_core::Result;

/// The kernels' source.
pub(super) const SOURCES: [Source; 1] = [("bandwidth.cu", include_str!("bandwidth.cu"))];

/// Bytes that are read: more than any cache holds.
const LARGE: usize = 1 << 30;
/// Bytes that cross the link.
const LINK: usize = 128 << 20;
/// Runs of each; the best one counts.
const RUNS: usize = 5;
/// The gather's grid: few thread blocks keep the link full and leave the device to others.
const GATHER_BLOCKS: usize = 8;

/// Events around what is timed.
struct Clock([Event; 2]);

impl Clock {
    /// Bytes a second of the best run of `work`.
    fn best(
        &self,
        cuda: &mut Cuda,
        bytes: usize,
        mut work: impl FnMut(&mut Cuda) -> Result<()>,
    ) -> Result<f64> {
        let (Self([begin, end]), stream) = (self, cuda.lanes.stream(Lane::Foreground));
        let mut shortest = f64::INFINITY;
        for _ in 0..RUNS {
            begin.record_readable(stream, false)?;
            work(cuda)?;
            end.record_readable(stream, false)?;
            cuda.wait()?;
            shortest = shortest.min(end.since(begin)?);
        }
        Ok(bytes as f64 / shortest.max(1e-9))
    }
}

impl Cuda {
    fn read_all(&self, module: &Module, from: &CudaBuf<u8>, out: &CudaBuf<u32>) -> Result<()> {
        let (address, n, never, to) = (from.at(0), (from.len() / 16) as u64, 0x5eed_cafe_u32, out.at(0));
        let mut args = [arg(&address), arg(&n), arg(&never), arg(&to)];
        let grid = [4 * self.gpu.multiprocessors, 1, 1];
        let shape = Shape { grid, threads: 512, shared: 0, early: false };
        // SAFETY: bandwidth.cu's arguments: all 16-byte words of an array, and one word to write to.
        unsafe { self.launch_as(module.kernel("bandwidth_read")?, "bandwidth_read", shape, &mut args) }
    }

    fn gather_all(&self, module: &Module, from: &CudaHostBuf<u8>, to: &CudaBuf<u8>) -> Result<()> {
        let (address, chunks, out) = (from.at(0), (LINK / CHUNK) as u32, to.at(0));
        let mut args = [arg(&address), arg(&chunks), arg(&out)];
        let shape = Shape { grid: [GATHER_BLOCKS, 1, 1], threads: 512, shared: 0, early: false };
        // SAFETY: bandwidth.cu's arguments: both arrays have at least LINK bytes, a power of two of chunks.
        unsafe { self.launch_as(module.kernel("bandwidth_gather")?, "bandwidth_gather", shape, &mut args) }
    }

    /// One copy by the copy engine, either way.
    fn copy_engine(&self, host: &CudaHostBuf<u8>, device: &CudaBuf<u8>, to_device: bool) -> Result<()> {
        let stream = self.lanes.stream(Lane::Foreground);
        let pointer = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(host.at(0) as usize);
        // SAFETY: both arrays have at least LINK bytes and outlive the copy, for which the caller waits.
        let done = unsafe {
            match to_device {
                true => sys::cuMemcpyHtoDAsync_v2(device.at(0), pointer, LINK, stream),
                false => sys::cuMemcpyDtoHAsync_v2(pointer, device.at(0), LINK, stream),
            }
        };
        done.result().map_err(failed("a copy over the link"))
    }
}

impl Measure for Cuda {
    fn bandwidths(&mut self) -> Result<Bandwidths> {
        let module = self.gpu.module(&SOURCES, "", &[], &["bandwidth_read", "bandwidth_gather"])?;
        let (from, word) = (CudaBuf::<u8>::new(&self.gpu, LARGE)?, CudaBuf::<u32>::new(&self.gpu, 1)?);
        let host = CudaHostBuf::<u8>::new(&self.gpu, LINK)?;
        let clock = Clock([Event::new(&self.gpu, true)?, Event::new(&self.gpu, true)?]);
        let half = LARGE / 2;
        Ok(Bandwidths {
            device_read: clock.best(self, LARGE, |c| c.read_all(&module, &from, &word))?,
            device_copy: clock
                .best(self, LARGE, |c| c.copy_within_device(from.at(0), from.at(half), half))?,
            gather: clock.best(self, LINK, |c| c.gather_all(&module, &host, &from))?,
            to_device: clock.best(self, LINK, |c| c.copy_engine(&host, &from, true))?,
            to_host: clock.best(self, LINK, |c| c.copy_engine(&host, &from, false))?,
        })
    }

    fn set_probed(&mut self, probed: bool) -> Result<()> {
        Cuda::set_probed(self, probed)
    }

    fn set_eager(&mut self, eager: bool) {
        Cuda::set_eager(self, eager);
    }

    fn scratch(&self) -> u64 {
        self.scratch_bytes() as u64
    }

    fn room(&self) -> Result<Room> {
        self.gpu.bind()?;
        let (free, _) = result::mem_get_info().map_err(failed("free device memory"))?;
        Ok(Room { device: free as u64, host: free_memory(), shared: false })
    }
}
