//! Tensor maps: a matrix as the copy engine of compute capability 9.0 and later sees it.

use super::gpu::failed;
use cudarc::driver::sys;
use oasis_core::Result;

/// Columns of a box: 128 bytes, the width of its swizzle.
pub(crate) const BOX_COLS: usize = 64;

/// Describes a matrix to a kernel; passed to it by value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct TensorMap(#[allow(dead_code, reason = "the kernel reads it")] sys::CUtensorMap);

impl TensorMap {
    /// A row-major bf16 matrix `[rows][cols]` at `address`, read in boxes of `box_rows` × [`BOX_COLS`] that lie in shared
    /// memory as rows of 128 bytes, their 16-byte pieces permuted by an exclusive or with the row's lowest three bits. To
    /// the kernel it is `[cols / 64][rows][64]`. Rows beyond the matrix read as zero.
    ///
    /// # Errors
    /// If the driver refuses: `address` is whole 16 bytes, `cols` whole 64, and a box has at most 256 rows.
    pub(crate) fn new(address: u64, [rows, cols]: [usize; 2], box_rows: usize) -> Result<Self> {
        let swizzle = sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B;
        Self::encode(address, [rows, cols], swizzle, [BOX_COLS, box_rows, 1])
    }

    /// As [`TensorMap::new`], but a box is whole rows. Where `cols` is not whole 64, rows are divided into 32 columns, and
    /// pieces of 16 bytes permuted by an exclusive or with bits 1 and 2 of the row.
    ///
    /// # Errors
    /// If the driver refuses: `address` is whole 16 bytes, `cols` whole 32, and a box has at most 256 rows.
    pub(crate) fn whole_rows(address: u64, [rows, cols]: [usize; 2], box_rows: usize) -> Result<Self> {
        let (wide, swizzle) = if cols.is_multiple_of(BOX_COLS) {
            (BOX_COLS, sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B)
        } else {
            (BOX_COLS / 2, sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B)
        };
        Self::encode(address, [rows, cols], swizzle, [wide, box_rows, cols / wide])
    }

    /// Boxes of `[columns, rows, parts]`.
    fn encode(
        address: u64,
        [rows, cols]: [usize; 2],
        swizzle: sys::CUtensorMapSwizzle,
        [wide, box_rows, parts]: [usize; 3],
    ) -> Result<Self> {
        let row_bytes = (cols * size_of::<half::bf16>()) as u64;
        let sizes = [wide as u64, rows as u64, (cols / wide) as u64];
        let strides = [row_bytes, (wide * size_of::<half::bf16>()) as u64];
        let boxes = [wide as u32, box_rows as u32, parts as u32];
        let steps = [1_u32; 3];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have the lengths that three dimensions need; the address is stored, not read.
        let done = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                3,
                std::ptr::with_exposed_provenance_mut(address as usize),
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        done.result().map_err(failed("a tensor map"))?;
        Ok(Self(map))
    }

    /// For kernels that do not look at it.
    pub(crate) fn none() -> Self {
        Self(sys::CUtensorMap { opaque: [0; 16] })
    }
}
