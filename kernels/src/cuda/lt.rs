//! Large matrix products, by cuBLASLt.

use super::CudaBuf;
use super::gpu::{Gpu, alone_for};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use oasis_core::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes that an algorithm may use beside its matrices.
const WORKSPACE: usize = 32 << 20;

/// Plans that are kept; prompts of many lengths make many.
const PLANS: usize = 512;

/// cuBLASLt's handle, its workspace, and a plan for each shape seen.
pub(crate) struct Lt {
    handle: sys::cublasLtHandle_t,
    workspace: CudaBuf<u8>,
    plans: HashMap<[usize; 3], Plan>,
    gpu: Arc<Gpu>,
}

// SAFETY: cuBLASLt's handles may be used by any thread, and descriptors have one owner.
unsafe impl Send for Lt {}

fn failed(what: &'static str) -> impl Fn(CublasError) -> Error {
    move |error| Error::Backend(format!("cuBLASLt, {what}: {error:?}"))
}

/// `out = W x` of one shape: descriptors, and the algorithm that the library proposes.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    /// Of the weight, x, and the output.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by `Plan::new`, destroyed here only.
        unsafe {
            result::destroy_matmul_desc(self.product).ok();
            for layout in self.layouts {
                result::destroy_matrix_layout(layout).ok();
            }
        }
    }
}

impl Plan {
    /// In the library's column-major terms: W is `[k × n]`, to be transposed, x `[k × rows]`, out `[n × rows]`.
    fn new(handle: sys::cublasLtHandle_t, rows: usize, n: usize, k: usize) -> Result<Self> {
        use sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_32F};
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let layout = |kind, rows: usize, cols: usize| {
            result::create_matrix_layout(kind, rows as u64, cols as u64, rows as i64)
                .map_err(failed("a layout"))
        };
        let (transpose, workspace) = (1_i32, WORKSPACE);
        let product = result::create_matmul_desc(compute, CUDA_R_32F).map_err(failed("a product"))?;
        let layouts =
            [layout(CUDA_R_16BF, k, n)?, layout(CUDA_R_16BF, k, rows)?, layout(CUDA_R_32F, n, rows)?];
        let preference = result::create_matmul_pref().map_err(failed("a preference"))?;
        // SAFETY: all handles are alive; attributes are read from the integers before the calls return.
        let found = unsafe {
            let set = result::set_matmul_desc_attribute(
                product,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                std::ptr::from_ref(&transpose).cast(),
                size_of::<i32>(),
            );
            let set = set.and(result::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&workspace).cast(),
                size_of::<usize>(),
            ));
            let [w, x, out] = layouts;
            let found = set.and_then(|()| {
                result::get_matmul_algo_heuristic(handle, product, w, x, out, out, preference)
            });
            result::destroy_matmul_pref(preference).ok();
            found.map_err(failed("no algorithm for this shape"))?
        };
        Ok(Self { product, layouts, algorithm: found.algo })
    }
}

impl Lt {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.bind()?;
        let workspace = CudaBuf::new(gpu, WORKSPACE)?;
        let handle = result::create_handle().map_err(failed("a handle"))?;
        Ok(Self { handle, workspace, plans: HashMap::new(), gpu: gpu.clone() })
    }

    /// `out[r] = W x[r] (+ out[r])`.
    ///
    /// # Safety
    /// The addresses are of x `[rows][k]`, w `[n][k]` (bf16) and out `[rows][n]` (f32) in device memory.
    pub(crate) unsafe fn product(
        &mut self,
        [x, w, out]: [u64; 3],
        [rows, n, k]: [usize; 3],
        accumulate: bool,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<()> {
        self.gpu.bind()?;
        if self.plans.len() >= PLANS {
            self.plans.clear();
        }
        let plan = match self.plans.entry([rows, n, k]) {
            std::collections::hash_map::Entry::Occupied(plan) => plan.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Plan::new(self.handle, rows, n, k)?)
            }
        };
        let (alpha, beta) = (1.0_f32, f32::from(u8::from(accumulate)));
        let pointer =
            |address: u64| std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(address as usize);
        let [w_layout, x_layout, out_layout] = plan.layouts;
        // SAFETY: the caller's promise; descriptors and algorithm are of these shapes.
        unsafe {
            result::matmul(
                self.handle,
                plan.product,
                std::ptr::from_ref(&alpha).cast(),
                std::ptr::from_ref(&beta).cast(),
                pointer(w),
                w_layout,
                pointer(x),
                x_layout,
                pointer(out),
                out_layout,
                pointer(out),
                out_layout,
                &plan.algorithm,
                pointer(self.workspace.at(0)),
                WORKSPACE,
                stream.cast(),
            )
        }
        .map_err(failed("a product"))
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        self.plans.clear();
        if self.gpu.bind().is_ok() && alone_for(cudarc::driver::result::ctx::synchronize).is_ok() {
            // SAFETY: made by `new`, destroyed here only; no work uses it any more.
            unsafe { result::destroy_handle(self.handle) }.ok();
        }
    }
}
