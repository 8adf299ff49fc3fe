//! Putting kernels on a stream.

use super::Cuda;
use super::gpu::failed;
use cudarc::driver::CudaFunction;
use cudarc::driver::sys;
use oasis_core::{Error, Result};
use std::ffi::c_void;
use std::marker::PhantomData;

/// The address of an argument of a kernel.
#[repr(transparent)]
pub(crate) struct Arg<'a>(*mut c_void, PhantomData<&'a ()>);

/// An argument for a launch.
pub(crate) fn arg<T: Copy>(value: &T) -> Arg<'_> {
    Arg(std::ptr::from_ref(value).cast_mut().cast(), PhantomData)
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Thread blocks.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Programmatic dependent launch: the kernel may start before its predecessor on the stream has ended, and waits
    /// itself (`griddepcontrol.wait`) before it touches anything that the predecessor reads or writes.
    pub early: bool,
}

/// Bytes of dynamic shared memory that a kernel has without asking.
const SHARED_UNASKED: u32 = 48 << 10;

impl Cuda {
    /// Puts a kernel of the main module on the current lane; nothing is done for an empty grid.
    ///
    /// # Safety
    /// `args` are the kernel's, and what they point to is as large as the kernel takes it to be.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: u32,
        args: &mut [Arg<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_main(kernel, Shape { grid, threads, shared: 0, early: false }, args) }
    }

    /// As [`Cuda::launch`], and the kernel may start before its predecessor has ended.
    ///
    /// # Safety
    /// As [`Cuda::launch`]; the kernel waits for its predecessor as [`Shape`] says.
    pub(crate) unsafe fn launch_early(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: u32,
        args: &mut [Arg<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_main(kernel, Shape { grid, threads, shared: 0, early: true }, args) }
    }

    /// # Safety
    /// As [`Cuda::launch_as`].
    unsafe fn launch_main(&self, kernel: &'static str, shape: Shape, args: &mut [Arg<'_>]) -> Result<()> {
        let function = self.gpu.kernel(kernel)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_as(function, kernel, shape, args) }
    }

    /// Puts any kernel on the current lane; `name` is for messages.
    ///
    /// # Safety
    /// As [`Cuda::launch`]; with `shape.early` the kernel waits for its predecessor as [`Shape`] says.
    pub(crate) unsafe fn launch_as(
        &self,
        function: &CudaFunction,
        name: &str,
        shape: Shape,
        args: &mut [Arg<'_>],
    ) -> Result<()> {
        let [x, y, z] = shape.grid;
        if [x, y, z].contains(&0) {
            return Ok(());
        }
        if x > i32::MAX as usize || y > 65_535 || z > 65_535 {
            return Err(Error::Capacity(format!(
                "{name}: a grid of {x} × {y} × {z}; CUDA has 2³¹ − 1 × 65535 × 65535: use a smaller batch"
            )));
        }
        self.gpu.bind()?;
        let function = function.cu_function();
        if shape.shared > SHARED_UNASKED {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { sys::cuFuncSetAttribute(function, most, shape.shared as i32) }
                .result()
                .map_err(failed("dynamic shared memory"))?;
        }
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: z as u32,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.lanes.current(),
            attrs: &mut early,
            numAttrs: u32::from(shape.early && self.gpu.capability.0 >= 9),
        };
        // SAFETY: `Arg` is a pointer; the rest is the caller's promise.
        unsafe { sys::cuLaunchKernelEx(&config, function, args.as_mut_ptr().cast(), std::ptr::null_mut()) }
            .result()
            .map_err(failed(name))
    }
}
