//! The CPU backend's two memories. Both are RAM; each counts its bytes.

use crate::cpu::Cpu;
use bytemuck::Pod;
use oasis_core::ops::{Memory, Usage};
use oasis_core::{Error, Result};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes held, of both memories.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    device: AtomicUsize,
    host: AtomicUsize,
}

impl Meter {
    pub(crate) fn usage(&self) -> Usage {
        Usage { device: self.device.load(Relaxed), host: self.host.load(Relaxed) }
    }

    pub(crate) fn add_device(&self, bytes: usize) {
        self.device.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub_device(&self, bytes: usize) {
        self.device.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn add_host(&self, bytes: usize) {
        self.host.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub_host(&self, bytes: usize) {
        self.host.fetch_sub(bytes, Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Device,
    Host,
}

/// Counted memory; its bytes are given back on drop.
#[derive(Debug)]
struct Counted<T> {
    data: Vec<T>,
    meter: Arc<Meter>,
    kind: Kind,
}

impl<T> Counted<T> {
    fn bytes(&self) -> usize {
        self.data.len() * size_of::<T>()
    }

    fn counter(&self) -> &AtomicUsize {
        match self.kind {
            Kind::Device => &self.meter.device,
            Kind::Host => &self.meter.host,
        }
    }
}

impl<T: Pod> Counted<T> {
    fn new(len: usize, meter: &Arc<Meter>, kind: Kind) -> Result<Self> {
        let data = bytemuck::try_zeroed_vec(len).map_err(|()| {
            let bytes = len as f64 * size_of::<T>() as f64;
            Error::Capacity(format!(
                "no memory for {len} elements ({:.1} MiB): use a shorter context, a smaller batch or fewer workers",
                bytes / f64::from(1 << 20)
            ))
        })?;
        let counted = Self { data, meter: meter.clone(), kind };
        counted.counter().fetch_add(counted.bytes(), Relaxed);
        Ok(counted)
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.counter().fetch_sub(self.bytes(), Relaxed);
    }
}

/// An array in the CPU backend's device memory.
#[derive(Debug)]
pub struct CpuBuf<T>(Counted<T>);

/// An array in the CPU backend's host memory.
#[derive(Debug)]
pub struct CpuHostBuf<T>(Counted<T>);

impl<T> Deref for CpuBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0.data
    }
}

impl<T> DerefMut for CpuBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0.data
    }
}

impl<T> Deref for CpuHostBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0.data
    }
}

impl<T> DerefMut for CpuHostBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0.data
    }
}

fn range(at: usize, n: usize) -> Option<std::ops::Range<usize>> {
    Some(at..at.checked_add(n)?)
}

impl Memory for Cpu {
    type Buf<T: Pod + Send + Sync> = CpuBuf<T>;
    type HostBuf<T: Pod + Send + Sync> = CpuHostBuf<T>;

    fn alloc<T: Pod + Send + Sync>(&self, len: usize) -> Result<CpuBuf<T>> {
        Counted::new(len, &self.meter, Kind::Device).map(CpuBuf)
    }

    fn alloc_host<T: Pod + Send + Sync>(&self, len: usize) -> Result<CpuHostBuf<T>> {
        Counted::new(len, &self.meter, Kind::Host).map(CpuHostBuf)
    }

    fn len<T: Pod + Send + Sync>(&self, buf: &CpuBuf<T>) -> usize {
        buf.0.data.len()
    }

    fn write<T: Pod + Send + Sync>(&mut self, buf: &mut CpuBuf<T>, at: usize, data: &[T]) -> Result<()> {
        let len = buf.len();
        let to = buf.get_mut(at..).and_then(|b| b.get_mut(..data.len()));
        to.ok_or_else(|| out_of("write", at, data.len(), len))?.copy_from_slice(data);
        Ok(())
    }

    fn read<T: Pod + Send + Sync>(&mut self, buf: &CpuBuf<T>, at: usize, out: &mut [T]) -> Result<()> {
        let from = buf.get(at..).and_then(|b| b.get(..out.len()));
        out.copy_from_slice(from.ok_or_else(|| out_of("read", at, out.len(), buf.len()))?);
        Ok(())
    }

    fn copy<T: Pod + Send + Sync>(
        &mut self,
        from: &CpuBuf<T>,
        at: usize,
        to: &mut CpuBuf<T>,
        to_at: usize,
        n: usize,
    ) -> Result<()> {
        let (from_len, to_len) = (from.len(), to.len());
        let (from, to) =
            (range(at, n).and_then(|r| from.get(r)), range(to_at, n).and_then(|r| to.get_mut(r)));
        match (from, to) {
            (Some(from), Some(to)) => {
                to.copy_from_slice(from);
                Ok(())
            }
            _ => Err(Error::Invariant(format!(
                "copy: {n} elements at {at} of a buffer of {from_len} to {to_at} of one of {to_len}"
            ))),
        }
    }

    fn usage(&self) -> Usage {
        self.meter.usage()
    }
}

fn out_of(op: &str, at: usize, n: usize, len: usize) -> Error {
    Error::Invariant(format!("{op}: {n} elements at {at} of a buffer of {len}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_and_given_back() {
        let mut cpu = Cpu::new(1);
        let a = cpu.upload(&[1_u32, 2, 3]).unwrap();
        let b = cpu.alloc_host::<u16>(5).unwrap();
        assert_eq!(cpu.usage(), Usage { device: 12, host: 10 });
        assert_eq!(cpu.clone().usage(), cpu.usage(), "a clone is the same device");
        let mut out = [0; 2];
        cpu.read(&a, 1, &mut out).unwrap();
        assert_eq!(out, [2, 3]);
        assert!(cpu.read(&a, 2, &mut out).is_err());
        assert!(cpu.write(&mut cpu.alloc::<u32>(1).unwrap(), usize::MAX, &out).is_err());
        drop((a, b));
        assert_eq!(cpu.usage(), Usage::default());
        assert!(matches!(cpu.alloc::<u64>(usize::MAX / 16), Err(Error::Capacity(_))));
    }
}
