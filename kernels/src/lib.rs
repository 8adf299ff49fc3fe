//! Backends of Oasis: the ops of [`oasis_core::ops`], each in one file for all devices, and the memories behind them.
//!
//! [`Cpu`] is the reference: bf16 where the device has bf16, f32 accumulation, one fixed order of summation. A result
//! does not depend on the number of threads, nor (below 64 rows) on what else is in the batch.
//!
//! [`Cuda`] is an NVIDIA GPU: same program, chosen at run time; it is an error, not a panic, where there is none.
//!
//! This is the only crate with unsafe code; every block has its reason.
#![deny(unsafe_op_in_unsafe_fn)]

mod cpu;
mod cuda;
mod measure;
mod memory;
pub mod ops;
mod simd;
mod team;
#[cfg(test)]
mod testing;

pub use cpu::Cpu;
pub use cuda::{Cuda, CudaBuf, CudaHostBuf, KernelCheck, KernelReport};
pub use measure::{Bandwidths, Measure, Room};
pub use memory::{CpuBuf, CpuHostBuf};
pub use simd::Level;
