//! Device memory, and pinned host memory that the device reads and writes.

use super::Cuda;
use super::gpu::{Gpu, alone_for, failed};
use super::lanes::Lanes;
use bytemuck::Pod;
use cudarc::driver::{result, sys};
use oasis_core::ops::{Memory, Usage};
use oasis_core::{Error, Result};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// An array in device memory.
pub struct CudaBuf<T> {
    /// None if it is empty.
    memory: Option<Arc<Allocation>>,
    len: usize,
    of: PhantomData<T>,
}

/// Device memory; it is freed when nobody uses it any more.
pub(crate) struct Allocation {
    address: u64,
    bytes: usize,
    gpu: Arc<Gpu>,
}

impl<T> CudaBuf<T> {
    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Device address of element `at`.
    pub(crate) fn at(&self, at: usize) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address) + (at * size_of::<T>()) as u64
    }

    /// Keeps the memory alive.
    pub(crate) fn share(&self) -> Option<Arc<Allocation>> {
        self.memory.clone()
    }

    pub(crate) fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let bytes = size::<T>(len)?;
        let memory = if bytes == 0 { None } else { Some(Arc::new(Allocation::new(gpu, bytes)?)) };
        Ok(Self { memory, len, of: PhantomData })
    }
}

impl Allocation {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the address is freed once, on drop.
        let address = alone_for(|| unsafe { result::malloc_sync(bytes) }).map_err(|error| {
            let (free, all) = result::mem_get_info().unwrap_or_default();
            Error::Capacity(format!(
                "no device memory for {:.1} MiB ({error:?}; {:.1} of {:.1} MiB are free): use a shorter context, a smaller \
                 batch or budget",
                mib(bytes),
                mib(free),
                mib(all)
            ))
        })?;
        gpu.meter.add_device(bytes);
        let memory = Self { address, bytes, gpu: gpu.clone() };
        let zeroed = alone_for(|| {
            // SAFETY: these bytes were just allocated.
            unsafe { result::memset_d8_sync(address, 0, bytes) }.and(result::ctx::synchronize())
        });
        zeroed.map_err(failed("zeroing"))?;
        Ok(memory)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Errors cannot be told from here; a broken context has lost its memory anyway. Freeing waits for the work that
        // uses it.
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated by `new`, freed here only.
            let free =
                || result::ctx::synchronize().and_then(|()| unsafe { result::free_sync(self.address) });
            alone_for(free).ok();
        }
        self.gpu.meter.sub_device(self.bytes);
    }
}

/// An array in pinned host memory; the device uses it at the same address.
pub struct CudaHostBuf<T> {
    data: *mut T,
    len: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: it owns its memory, as a Vec does.
unsafe impl<T: Send> Send for CudaHostBuf<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for CudaHostBuf<T> {}

impl<T: Pod> CudaHostBuf<T> {
    pub(crate) fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let bytes = size::<T>(len)?;
        let mut buf = Self { data: std::ptr::dangling_mut(), len: 0, gpu: gpu.clone() };
        if bytes == 0 {
            return Ok(buf);
        }
        gpu.bind()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: freed once, on drop.
        let data = alone_for(|| unsafe { result::malloc_host(bytes, flags) }).map_err(|error| {
            Error::Capacity(format!(
                "no pinned host memory for {:.1} MiB ({error:?}): {}; use a shorter context or a smaller batch",
                mib(bytes),
                limits()
            ))
        })?;
        buf.data = data.cast();
        buf.len = len;
        gpu.meter.add_host(bytes);
        // SAFETY: the memory is `bytes` long and ours.
        unsafe { data.cast::<u8>().write_bytes(0, bytes) };
        Ok(buf)
    }
}

impl<T> CudaHostBuf<T> {
    /// Device address of element `at`. With unified addressing (all 64-bit systems) pinned memory has one address.
    pub(crate) fn at(&self, at: usize) -> u64 {
        address(self.data) + (at * size_of::<T>()) as u64
    }
}

/// A pointer to pinned memory, as the device sees it.
pub(crate) fn address<T>(data: *const T) -> u64 {
    data.expose_provenance() as u64
}

impl<T> Drop for CudaHostBuf<T> {
    fn drop(&mut self) {
        if self.len > 0 && self.gpu.bind().is_ok() {
            // SAFETY: allocated by `new`, freed here only; no kernel uses it any more.
            let free =
                || result::ctx::synchronize().and_then(|()| unsafe { result::free_host(self.data.cast()) });
            alone_for(free).ok();
        }
        self.gpu.meter.sub_host(self.len * size_of::<T>());
    }
}

impl<T> Deref for CudaHostBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements, zeroed first. Ops that make the device write here wait until it has.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T> DerefMut for CudaHostBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; we have the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

fn size<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| Error::Capacity(format!("{len} elements of {} bytes are too many", size_of::<T>())))
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The limits that pinning runs into, as the system states them.
fn limits() -> String {
    let find = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (locked, free) =
        (find("/proc/self/limits", "Max locked memory"), find("/proc/meminfo", "MemAvailable"));
    format!("`ulimit -l` [{locked}], free memory [{free}]")
}

/// Device memory that ops work in. It is no part of what a decode plans and allocates, so the meter does not count it:
/// [`crate::Measure::scratch`] says how much there is.
pub(crate) struct Scratch(CudaBuf<u8>);

impl Scratch {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let buf = CudaBuf::new(gpu, bytes)?;
        gpu.meter.sub_device(bytes);
        Ok(Self(buf))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(memory) = &self.0.memory {
            memory.gpu.meter.add_device(memory.bytes);
        }
    }
}

/// A ring of pinned memory through which small data goes to the device without waiting for it.
pub(crate) struct Staging {
    ring: CudaHostBuf<u8>,
    next: usize,
}

/// Bytes of the ring.
const RING: usize = 8 << 20;

/// Largest piece. An op stages less than four, so that they never overlap.
const PIECE: usize = RING / 4;

impl Staging {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let ring = CudaHostBuf::new(gpu, RING)?;
        // The ring is no part of the KV store.
        gpu.meter.sub_host(RING);
        Ok(Self { ring, next: 0 })
    }

    /// Address of a copy of `data`, for the next kernels or copies on the stream; none if it is too large.
    pub(crate) fn put(&mut self, lanes: &Lanes, data: &[u8]) -> Result<Option<u64>> {
        if data.len() > PIECE {
            return Ok(None);
        }
        if self.next + data.len() > RING {
            lanes.wait()?;
            self.next = 0;
        }
        self.ring[self.next..][..data.len()].copy_from_slice(data);
        let at = self.ring.at(self.next);
        self.next = (self.next + data.len()).next_multiple_of(64);
        Ok(Some(at))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.ring.gpu.meter.add_host(RING);
    }
}

impl Cuda {
    /// Copies to device memory; the source may be reused at once.
    pub(crate) fn upload_to(&mut self, address: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.not_while_recording("an upload")?;
        self.gpu.bind()?;
        let staged = self.staging.put(&self.lanes, data)?;
        let from = staged.map_or(data.as_ptr(), |at| std::ptr::with_exposed_provenance(at as usize));
        let stream = self.lanes.current();
        // SAFETY: the caller's address has room for `data`; the source lives until the copy is done: the ring is not
        // overwritten before, and for anything else we wait.
        unsafe { sys::cuMemcpyHtoDAsync_v2(address, from.cast(), data.len(), stream) }
            .result()
            .map_err(failed("copying to the device"))?;
        if staged.is_none() { self.wait() } else { Ok(()) }
    }

    /// Copies from device memory, after everything that was ordered before.
    pub(crate) fn download(&self, address: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        self.not_while_recording("a download")?;
        self.gpu.bind()?;
        let stream = self.lanes.current();
        // SAFETY: the caller's address has as many bytes; `out` outlives the copy, for which we wait.
        unsafe { sys::cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), address, out.len(), stream) }
            .result()
            .map_err(failed("copying from the device"))?;
        self.wait()
    }

    /// Waits for the current lane.
    pub(crate) fn wait(&self) -> Result<()> {
        self.not_while_recording("waiting for the device")?;
        self.gpu.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.lanes.current()) }.map_err(failed("the device's work"))
    }

    /// Copies within device memory, in the order of the current lane.
    pub(crate) fn copy_within_device(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.gpu.bind()?;
        // SAFETY: callers give addresses with as many bytes.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.lanes.current()) }
            .map_err(failed("copying within the device"))
    }

    /// The first `len` elements of a device array.
    pub(crate) fn fetch_host<T: Pod>(&self, buf: &CudaBuf<T>, len: usize) -> Result<Vec<T>> {
        let mut out = bytemuck::zeroed_vec(len.min(buf.len()));
        self.download(buf.at(0), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Bytes of scratch.
    pub(super) fn scratch_bytes(&self) -> usize {
        self.scratch.iter().flatten().map(|s| s.0.len()).sum()
    }

    /// Device scratch `which` of at least `bytes`; its content is arbitrary. It grows to the largest need and stays.
    pub(crate) fn scratch(&mut self, which: usize, bytes: usize) -> Result<u64> {
        if self.scratch[which].as_ref().is_none_or(|s| s.0.len() < bytes) {
            self.not_while_recording("growing scratch")?;
            self.scratch_moves += 1;
            // The old one goes first: it need not be copied.
            self.scratch[which] = None;
            self.scratch[which] = Some(Scratch::new(&self.gpu, bytes.max(256))?);
        }
        Ok(self.scratch[which].as_ref().map_or(0, |s| s.0.at(0)))
    }
}

impl Memory for Cuda {
    type Buf<T: Pod + Send + Sync> = CudaBuf<T>;
    type HostBuf<T: Pod + Send + Sync> = CudaHostBuf<T>;

    fn alloc<T: Pod + Send + Sync>(&self, len: usize) -> Result<CudaBuf<T>> {
        CudaBuf::new(&self.gpu, len)
    }

    fn alloc_host<T: Pod + Send + Sync>(&self, len: usize) -> Result<CudaHostBuf<T>> {
        CudaHostBuf::new(&self.gpu, len)
    }

    fn len<T: Pod + Send + Sync>(&self, buf: &CudaBuf<T>) -> usize {
        buf.len()
    }

    fn write<T: Pod + Send + Sync>(&mut self, buf: &mut CudaBuf<T>, at: usize, data: &[T]) -> Result<()> {
        within("write", at, data.len(), buf.len())?;
        self.upload_to(buf.at(at), bytemuck::cast_slice(data))
    }

    fn read<T: Pod + Send + Sync>(&mut self, buf: &CudaBuf<T>, at: usize, out: &mut [T]) -> Result<()> {
        within("read", at, out.len(), buf.len())?;
        self.download(buf.at(at), bytemuck::cast_slice_mut(out))
    }

    fn copy<T: Pod + Send + Sync>(
        &mut self,
        from: &CudaBuf<T>,
        at: usize,
        to: &mut CudaBuf<T>,
        to_at: usize,
        n: usize,
    ) -> Result<()> {
        within("copy", at, n, from.len())?;
        within("copy", to_at, n, to.len())?;
        self.copy_within_device(from.at(at), to.at(to_at), n * size_of::<T>())
    }

    fn usage(&self) -> Usage {
        self.gpu.meter.usage()
    }
}

fn within(op: &str, at: usize, n: usize, len: usize) -> Result<()> {
    match at.checked_add(n) {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::Invariant(format!("{op}: {n} elements at {at} of a buffer of {len}"))),
    }
}
