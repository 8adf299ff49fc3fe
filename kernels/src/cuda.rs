//! The CUDA backend.
//!
//! A handle has three streams (`lanes`); what a pass puts on them can be recorded and replayed (`graph`). The kernels'
//! sources lie beside their ops.

mod bandwidth;
mod chain;
mod check;
mod compile;
mod gpu;
mod graph;
mod lanes;
mod launch;
mod library;
mod lt;
mod memory;
mod probe;
mod tensor_map;

use crate::Cpu;
pub use check::{KernelCheck, KernelReport};
use oasis_core::Result;
use oasis_core::ops::{Backend, Order, PassKey, PassSeconds};
use std::sync::Arc;

pub(crate) use compile::Source;
pub(crate) use gpu::{Gpu, Module, failed};
pub use graph::Recording;
pub(crate) use lanes::{Lane, Lanes};
pub(crate) use launch::{Arg, Shape, arg};
pub(crate) use lt::Lt;
pub use memory::{CudaBuf, CudaHostBuf};
pub(crate) use memory::{Scratch, Staging, address};
use probe::Probe;
pub(crate) use tensor_map::TensorMap;

/// An NVIDIA GPU. A clone is the same device: it shares kernels and meter, and has streams and scratch of its own.
pub struct Cuda {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) lanes: Lanes,
    pub(crate) staging: Staging,
    pub(crate) scratch: [Option<Scratch>; 4],
    /// How often scratch has moved: recorded passes hold its address.
    scratch_moves: u64,
    pub(crate) lt: Option<Lt>,
    /// Host work: policies, selection, audits.
    pub(crate) host: Cpu,
    /// A pass is being recorded.
    recording: bool,
    /// Passes are never recorded.
    eager: bool,
    probe: Option<Probe>,
}

impl Cuda {
    /// Scratch that attention counts in: zero between launches, and nobody else's.
    pub(crate) const TICKETS: usize = 3;

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

    /// Name, compute capability, multiprocessors, memory, driver.
    pub fn details(&self) -> String {
        let (major, minor) = self.gpu.capability;
        let driver = gpu::driver_version().unwrap_or_default();
        let memory = self.gpu.bind().ok().and_then(|()| cudarc::driver::result::mem_get_info().ok());
        let memory = memory.map_or(String::new(), |(free, all)| {
            let gib = |n: usize| n as f64 / f64::from(1 << 30);
            format!(", {:.1} GiB, {:.1} free", gib(all), gib(free))
        });
        format!(
            "{}, compute capability {major}.{minor}, {} multiprocessors{memory}, driver for CUDA {}.{}",
            self.gpu.name,
            self.gpu.multiprocessors,
            driver / 1000,
            driver % 1000 / 10
        )
    }

    /// Each library that is used, and the file that was found for it.
    pub fn libraries() -> Vec<(&'static str, Option<std::path::PathBuf>)> {
        library::found()
    }

    /// Another handle of this device.
    ///
    /// # Errors
    /// If there is no memory for its scratch.
    pub fn try_clone(&self) -> Result<Self> {
        Self::on(self.gpu.clone(), self.host.clone())
    }

    fn on(gpu: Arc<Gpu>, host: Cpu) -> Result<Self> {
        Ok(Self {
            lanes: Lanes::new(&gpu)?,
            staging: Staging::new(&gpu)?,
            scratch: [const { None }; 4],
            scratch_moves: 0,
            lt: gpu.cublas_lt.then(|| Lt::new(&gpu)).transpose()?,
            host,
            recording: false,
            eager: false,
            probe: None,
            gpu,
        })
    }

    /// Passes are launched kernel by kernel instead of being recorded: for debuggers, and for tests that compare.
    pub fn set_eager(&mut self, eager: bool) {
        self.eager = eager;
    }

    /// Takes times within passes ([`Order::pass_seconds`]); it costs some microseconds a layer.
    ///
    /// # Errors
    /// If the device has no events left.
    pub fn set_probed(&mut self, probed: bool) -> Result<()> {
        self.probe = if probed { Some(Probe::new(&self.gpu)?) } else { None };
        Ok(())
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("device", &self.gpu.name).finish_non_exhaustive()
    }
}

impl Order for Cuda {
    type Recording = Recording;

    fn replay(
        &mut self,
        recording: &mut Recording,
        key: PassKey,
        pass: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.replay_pass(recording, key, &mut |backend| {
            backend.mark_begin()?;
            pass(backend)?;
            backend.mark_end()
        })
    }

    fn begin_stage(&mut self, _layer: usize) -> Result<()> {
        self.lanes.switch(Lane::Rank)
    }

    fn end_stage(&mut self, _layer: usize) -> Result<()> {
        self.lanes.switch(Lane::Foreground)
    }

    fn join(&mut self) -> Result<()> {
        self.mark_wait(true)?;
        self.lanes.join()?;
        self.mark_wait(false)
    }

    fn pass_seconds(&mut self) -> Result<Option<PassSeconds>> {
        self.probed_seconds()
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        let products = if self.lt.is_some() { "cuBLASLt" } else { "own matrix products only (no cuBLASLt)" };
        let threads = self.host.threads();
        format!("{}, {products}, {threads} host thread(s) for policies without a device twin", self.gpu.name)
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
