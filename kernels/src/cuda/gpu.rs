//! One device: context, kernels, meter.

use super::compile;
use super::library::Libraries;
use crate::memory::Meter;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::Ptx;
use oasis_core::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of all kernels.
const KERNELS: &[&str] = &[
    "embed",
    "rms_norm",
    "swiglu",
    "rope",
    "tail_append",
    "tail_compact",
    "pack",
    "copy_spans",
    "fetch_chunks",
    "fill_f32",
    "fill_bf16",
    "argmax",
    "draw",
    "gemm_rows_1",
    "gemm_rows_2",
    "gemm_rows_4",
    "gemm_stream_1",
    "gemm_stream_2",
    "gemm_stream_4",
    "gemm_stream_8",
    "gemm_plain",
    "add_bias",
    "attend_part_1",
    "attend_part_2",
    "attend_part_3",
    "attend_part_4",
    "attend_merge",
    "prefill_1",
    "prefill_2",
    "prefill_3",
    "prefill_4",
    "prefill_mma_1",
    "prefill_mma_2",
    "prefill_mma_3",
    "prefill_mma_4",
];

/// Oldest driver: CUDA 12.8 has every call that the bindings make.
const OLDEST_DRIVER: i32 = 12080;

/// What all handles of a device share.
pub(crate) struct Gpu {
    pub context: Arc<CudaContext>,
    kernels: HashMap<&'static str, CudaFunction>,
    modules: Mutex<HashMap<String, Arc<Module>>>,
    pub meter: Arc<Meter>,
    pub cublas_lt: bool,
    pub name: String,
    pub capability: (i32, i32),
    pub multiprocessors: usize,
}

/// Kernels that were compiled for one set of definitions.
pub(crate) struct Module {
    functions: HashMap<String, CudaFunction>,
}

impl Module {
    /// A kernel by its name.
    pub fn kernel(&self, name: &str) -> Result<&CudaFunction> {
        self.functions.get(name).ok_or_else(|| Error::Backend(format!("no kernel `{name}` in its module")))
    }
}

pub(crate) fn failed(what: &str) -> impl Fn(DriverError) -> Error + '_ {
    move |error| Error::Backend(format!("{what}: {error:?}"))
}

/// The newest CUDA that the driver knows, 1000 · major + 10 · minor.
pub(super) fn driver_version() -> Result<i32> {
    let mut driver = 0;
    // SAFETY: an integer to write to; the driver is there (checked when it was opened).
    unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(failed("driver version"))?;
    Ok(driver)
}

impl Gpu {
    pub fn open(device: usize) -> Result<Self> {
        let libraries = Libraries::open().map_err(Error::Backend)?;
        result::init().map_err(failed("the NVIDIA driver does not start"))?;
        let count = CudaContext::device_count().map_err(failed("counting devices"))?;
        if device >= count.max(0) as usize {
            return Err(Error::Backend(format!("there is no CUDA device {device}; the driver has {count}")));
        }
        let driver = driver_version()?;
        if driver < OLDEST_DRIVER {
            return Err(Error::Backend(format!(
                "the NVIDIA driver is for CUDA {}.{}; Oasis needs 12.8 or later (R570)",
                driver / 1000,
                driver % 1000 / 10
            )));
        }
        let context = CudaContext::new(device).map_err(failed("opening the device"))?;
        // SAFETY: Oasis orders its work itself.
        unsafe { context.disable_event_tracking() };
        let capability = context.compute_capability().map_err(failed("compute capability"))?;
        let name = context.name().map_err(failed("device name"))?;
        if capability.0 < 8 {
            let (major, minor) = capability;
            return Err(Error::Backend(format!(
                "{name} has compute capability {major}.{minor}; bf16 tensor cores need 8.0 or later"
            )));
        }
        let multiprocessor_count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors =
            context.attribute(multiprocessor_count).map_err(failed("multiprocessors"))? as usize;
        let code = compile::machine_code(capability, compile::MAIN, "", &[])?;
        let module = alone_for(|| context.load_module(Ptx::from_binary(code)))
            .map_err(failed("loading the kernels"))?;
        let mut kernels = HashMap::new();
        for &name in KERNELS {
            kernels.insert(name, module.load_function(name).map_err(failed(name))?);
        }
        Ok(Self {
            context,
            kernels,
            modules: Mutex::default(),
            meter: Arc::default(),
            cublas_lt: libraries.cublas_lt,
            name,
            capability,
            multiprocessors,
        })
    }

    /// A kernel of the main module.
    pub fn kernel(&self, name: &'static str) -> Result<&CudaFunction> {
        self.kernels.get(name).ok_or_else(|| Error::Backend(format!("no kernel `{name}`")))
    }

    /// `sources` (after the prelude) and a policy's `code`, with these definitions; compiled once a process, and kept
    /// on disk.
    pub fn module(
        &self,
        sources: &[compile::Source],
        code: &str,
        defines: &[(&str, String)],
        kernels: &[&str],
    ) -> Result<Arc<Module>> {
        let key = format!("{sources:p} {defines:?} {code}");
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&key) {
            return Ok(module.clone());
        }
        self.bind()?;
        let machine_code = compile::machine_code(self.capability, sources, code, defines)?;
        let loaded = alone_for(|| self.context.load_module(Ptx::from_binary(machine_code)))
            .map_err(failed("loading a policy's kernels"))?;
        let mut functions = HashMap::new();
        for &name in kernels {
            functions.insert(name.to_owned(), loaded.load_function(name).map_err(failed(name))?);
        }
        let module = Arc::new(Module { functions });
        modules.insert(key, module.clone());
        Ok(module)
    }

    /// Makes this thread one of the device's; every call of the driver comes after this.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(failed("binding the device to a thread"))
    }
}

/// While this is held nobody else allocates, frees or captures. A device has one context in a process, whoever opened it,
/// and a capture must not see any of these in it: so the lock is the process's too.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` while nobody else allocates, frees or captures.
pub(crate) fn alone_for<T>(f: impl FnOnce() -> T) -> T {
    let _alone = alone();
    f()
}
