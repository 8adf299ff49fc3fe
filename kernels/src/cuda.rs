//! The CUDA backend.
//!
//! First version, correct before fast: one stream, so that all work is in order; policies run on the host. The kernels'
//! sources lie beside their ops.

mod compile;
mod gpu;
mod library;
mod lt;
mod memory;

use crate::Cpu;
use oasis_core::Result;
use oasis_core::ops::{Backend, Order};
use std::sync::Arc;

pub(crate) use gpu::{Gpu, arg};
pub(crate) use lt::Lt;
pub use memory::{CudaBuf, CudaHostBuf};
pub(crate) use memory::{Staging, address};

/// An NVIDIA GPU. A clone is the same device and the same stream: it shares kernels and meter, and has scratch of its
/// own.
pub struct Cuda {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) staging: Staging,
    pub(crate) scratch: [Option<CudaBuf<u8>>; 3],
    pub(crate) lt: Option<Lt>,
    /// Host work: policies, selection, audits.
    pub(crate) host: Cpu,
}

impl Cuda {
    /// Device number `device` of the driver, with one host thread for each core.
    ///
    /// # Errors
    /// [`oasis_core::Error::Backend`] that names what is missing: driver, device, NVRTC.
    pub fn new(device: usize) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(device, threads)
    }

    /// As [`Cuda::new`], with this many threads for work on the host.
    pub fn with_threads(device: usize, threads: usize) -> Result<Self> {
        Self::on(Arc::new(Gpu::open(device)?), Cpu::try_new(threads)?)
    }

    /// Another handle of this device.
    ///
    /// # Errors
    /// If there is no memory for its scratch.
    pub fn try_clone(&self) -> Result<Self> {
        Self::on(self.gpu.clone(), self.host.clone())
    }

    fn on(gpu: Arc<Gpu>, host: Cpu) -> Result<Self> {
        let lt = gpu.cublas_lt.then(|| Lt::new(&gpu)).transpose()?;
        Ok(Self { staging: Staging::new(&gpu)?, scratch: [None, None, None], lt, gpu, host })
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("device", &self.gpu.name).finish_non_exhaustive()
    }
}

impl Order for Cuda {
    fn wait_fetched(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn begin_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn end_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        let products = if self.lt.is_some() { "cuBLASLt" } else { "own matrix products only (no cuBLASLt)" };
        format!("{}, {products}, host policies on {} thread(s)", self.gpu.name, self.host.threads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gpu_is_an_error_that_says_what_is_missing() {
        match Cuda::new(usize::MAX) {
            Ok(_) => panic!("a device of that number"),
            Err(error) => {
                let text = error.to_string();
                assert!(["driver", "device", "NVRTC"].iter().any(|what| text.contains(what)), "{text}");
            }
        }
    }
}
