//! One device: context, stream, kernels, and the launch of a kernel.

use super::compile;
use super::library::Libraries;
use crate::memory::Meter;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream};
use cudarc::nvrtc::Ptx;
use oasis_core::{Error, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

/// Names of all kernels.
const KERNELS: [&str; 33] = [
    "embed",
    "rms_norm",
    "swiglu",
    "rope",
    "tail_append",
    "tail_compact",
    "pack",
    "copy_spans",
    "argmax",
    "gemm_rows_1",
    "gemm_rows_2",
    "gemm_rows_4",
    "gemm_plain",
    "add_bias",
    "attend_part_1",
    "attend_part_2",
    "attend_part_3",
    "attend_part_4",
    "attend_mma_1",
    "attend_mma_2",
    "attend_mma_3",
    "attend_mma_4",
    "attend_merge",
    "prefill_1",
    "prefill_2",
    "prefill_3",
    "prefill_4",
    "prefill_mma_1",
    "prefill_mma_2",
    "prefill_mma_3",
    "prefill_mma_4",
    "score_blocks",
    "score_combine",
];

/// Oldest driver: CUDA 12.8 has every call that the bindings make.
const OLDEST_DRIVER: i32 = 12080;

/// What all clones of a backend share. All work is on one stream, so it is in order.
pub(crate) struct Gpu {
    pub context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: HashMap<&'static str, CudaFunction>,
    pub meter: Arc<Meter>,
    pub cublas_lt: bool,
    pub name: String,
}

pub(crate) fn failed(what: &str) -> impl Fn(DriverError) -> Error + '_ {
    move |error| Error::Backend(format!("{what}: {error:?}"))
}

impl Gpu {
    pub fn open(device: usize) -> Result<Self> {
        let libraries = Libraries::open().map_err(Error::Backend)?;
        result::init().map_err(failed("the NVIDIA driver does not start"))?;
        let count = CudaContext::device_count().map_err(failed("counting devices"))?;
        if device >= count.max(0) as usize {
            return Err(Error::Backend(format!("there is no CUDA device {device}; the driver has {count}")));
        }
        let mut driver = 0;
        // SAFETY: an integer to write to.
        unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut driver) }
            .result()
            .map_err(failed("driver version"))?;
        if driver < OLDEST_DRIVER {
            return Err(Error::Backend(format!(
                "the NVIDIA driver is for CUDA {}.{}; Oasis needs 12.8 or later (R570)",
                driver / 1000,
                driver % 1000 / 10
            )));
        }
        let context = CudaContext::new(device).map_err(failed("opening the device"))?;
        // SAFETY: Oasis orders its work itself; it has one stream.
        unsafe { context.disable_event_tracking() };
        let capability = context.compute_capability().map_err(failed("compute capability"))?;
        let name = context.name().map_err(failed("device name"))?;
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(Error::Backend(format!(
                "{name} has compute capability {major}.{minor}; bf16 tensor cores need 8.0 or later"
            )));
        }
        let code = compile::kernels(capability)?;
        let module = context.load_module(Ptx::from_binary(code)).map_err(failed("loading the kernels"))?;
        let mut kernels = HashMap::new();
        for name in KERNELS {
            kernels.insert(name, module.load_function(name).map_err(failed(name))?);
        }
        let stream = context.new_stream().map_err(failed("a stream"))?;
        Ok(Self { context, stream, kernels, meter: Arc::default(), cublas_lt: libraries.cublas_lt, name })
    }

    pub fn stream(&self) -> CUstream {
        self.stream.cu_stream()
    }

    /// Makes this thread one of the device's; every call of the driver comes after this.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(failed("binding the device to a thread"))
    }

    /// Waits for all work.
    pub fn wait(&self) -> Result<()> {
        self.bind()?;
        self.stream.synchronize().map_err(failed("the device's work"))
    }

    /// Puts a kernel on the stream; nothing is done for an empty grid.
    ///
    /// # Safety
    /// `args` are the kernel's, and what they point to is as large as the kernel takes it to be.
    pub unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: u32,
        args: &mut [Arg<'_>],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid;
        if x > i32::MAX as usize || y > 65_535 || z > 65_535 {
            return Err(Error::Capacity(format!(
                "{kernel}: a grid of {x} × {y} × {z}; CUDA has 2³¹ − 1 × 65535 × 65535: use a smaller batch"
            )));
        }
        let function =
            self.kernels.get(kernel).ok_or_else(|| Error::Backend(format!("no kernel `{kernel}`")))?;
        let grid = (x as u32, y as u32, z as u32);
        self.bind()?;
        // SAFETY: `Arg` is a pointer; the rest is the caller's promise.
        unsafe {
            let args = std::slice::from_raw_parts_mut(args.as_mut_ptr().cast::<*mut c_void>(), args.len());
            result::launch_kernel(function.cu_function(), grid, (threads, 1, 1), 0, self.stream(), args)
        }
        .map_err(failed(kernel))
    }
}

/// The address of an argument of a kernel.
#[repr(transparent)]
pub(crate) struct Arg<'a>(*mut c_void, PhantomData<&'a ()>);

/// An argument for [`Gpu::launch`].
pub(crate) fn arg<T: Copy>(value: &T) -> Arg<'_> {
    Arg(std::ptr::from_ref(value).cast_mut().cast(), PhantomData)
}
