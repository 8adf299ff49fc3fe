//! The ops: one file each, all devices in it, with the tolerance that its implementations keep among each other.

pub mod attend;
pub mod embed;
pub mod exact_attend;
pub mod fetch;
pub mod fill;
pub mod gemm;
pub mod prefill_attend;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod score;
pub mod seal;
pub mod select;
pub mod summarise;
pub mod swiglu;
pub mod tail;

use oasis_core::geometry::Geometry;
use oasis_core::ops::CacheShape;
use oasis_core::{Error, Result};

/// Refuses a buffer that is shorter than its shape.
fn need(op: &str, name: &str, has: usize, needs: usize) -> Result<()> {
    if has < needs {
        return Err(Error::Invariant(format!("{op}: `{name}` has {has} elements, its shape needs {needs}")));
    }
    Ok(())
}

/// Refuses a cache shape that does not fit the model, so that no kernel divides by zero or runs past a head.
fn check_heads(op: &str, geometry: &Geometry, shape: Option<&CacheShape>) -> Result<()> {
    let g = geometry;
    let fits = g.kv_heads > 0 && g.heads > 0 && g.heads.is_multiple_of(g.kv_heads) && g.head_dim > 0;
    let same = shape.is_none_or(|s| s.kv_heads == g.kv_heads && s.block.head_dim == g.head_dim);
    if fits && same {
        return Ok(());
    }
    Err(Error::Invariant(format!("{op}: {g:?} with caches {shape:?}")))
}
