//! What a machine can do, measured on it: the bandwidths that floors are made of, and the room that there is.

use crate::Cpu;
use crate::team::Parts;
use oasis_core::Result;
use oasis_core::ops::Backend;
use std::hint::black_box;
use std::time::Instant;

/// Bytes a second, the best of some runs each.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bandwidths {
    /// Streaming read of device memory.
    pub device_read: f64,
    /// Copy within device memory; what is read and what is written both count.
    pub device_copy: f64,
    /// Gather of 8 KiB chunks from the host store into device memory, as a fetch does it.
    pub gather: f64,
    /// One large copy from the host store to device memory, and back.
    pub to_device: f64,
    /// See `to_device`.
    pub to_host: f64,
}

/// Bytes that could still be allocated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// In device memory.
    pub device: u64,
    /// In host memory.
    pub host: u64,
    /// Both are one memory.
    pub shared: bool,
}

/// What a benchmark asks of a backend beside the ops.
pub trait Measure: Backend {
    /// Measures for some tenths of a second.
    ///
    /// # Errors
    /// If there is no memory for it (on a GPU 1 GiB and 128 MiB pinned), or the device fails.
    fn bandwidths(&mut self) -> Result<Bandwidths>;

    /// Whether passes take times by the device's own clock ([`oasis_core::ops::Order::pass_seconds`]).
    ///
    /// # Errors
    /// If the device has no events left.
    fn set_probed(&mut self, probed: bool) -> Result<()>;

    /// Whether passes are launched op by op instead of being recorded.
    fn set_eager(&mut self, eager: bool);

    /// Bytes of device memory that ops work in, beside what is planned; it grows with the largest op and stays.
    fn scratch(&self) -> u64;

    /// The room that there is now.
    ///
    /// # Errors
    /// If the driver does not say.
    fn room(&self) -> Result<Room>;
}

/// Bytes of an array whose reading passes the caches.
const LARGE: usize = 256 << 20;

/// Bytes of a chunk: 16 tokens of a head of 128.
pub(crate) const CHUNK: usize = 8 << 10;

/// Bytes that a gather copies, all of them distinct, in no order.
const GATHERED: usize = 64 << 20;

/// Place of piece `i` of `n` in an order without neighbours; `n` is a power of two.
fn scattered(i: usize, n: usize) -> usize {
    i.wrapping_mul(0x9e37_79b1) & (n - 1)
}

/// Bytes over the shortest of `runs` runs.
fn best(runs: usize, bytes: usize, mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    bytes as f64 / (0..runs).map(once).fold(f64::INFINITY, f64::min).max(1e-9)
}

impl Cpu {
    /// Streaming read by all threads.
    fn read_speed(&self, from: &[u64]) -> f64 {
        let strip = 1 << 16;
        best(3, size_of_val(from), || {
            self.team.run(from.len().div_ceil(strip), size_of_val(from), |_, task| {
                let strip = from[task * strip..].iter().take(strip);
                black_box(strip.fold(0, |a: u64, b| a ^ b));
            });
        })
    }
}

impl Measure for Cpu {
    /// Both memories are RAM. Copies are those of the fetch op, which one thread does.
    fn bandwidths(&mut self) -> Result<Bandwidths> {
        // Ones: pages of zeros would all be the same page.
        let from = vec![1_u64; LARGE / 8];
        let mut to = vec![1_u64; LARGE / 8];
        let device_read = self.read_speed(&from);
        let (strip, n) = (1 << 16, to.len());
        let parts = Parts::new(&mut to);
        let device_copy = best(3, 2 * LARGE, || {
            self.team.run(n.div_ceil(strip), 2 * LARGE, |_, task| {
                let at = task * strip;
                // SAFETY: strip `task` is this task's.
                let out = unsafe { parts.slice(at, strip.min(n - at)) };
                out.copy_from_slice(&from[at..at + out.len()]);
            });
        });
        let (words, chunks) = (CHUNK / 8, GATHERED / CHUNK);
        let gather = best(3, GATHERED, || {
            for i in 0..chunks {
                let at = scattered(i, chunks) * words;
                to[i * words..][..words].copy_from_slice(&from[at..at + words]);
            }
        });
        let to_device = best(3, GATHERED, || to[..GATHERED / 8].copy_from_slice(&from[..GATHERED / 8]));
        black_box(&to);
        Ok(Bandwidths { device_read, device_copy, gather, to_device, to_host: to_device })
    }

    /// The CPU has no clock but the host's.
    fn set_probed(&mut self, _: bool) -> Result<()> {
        Ok(())
    }

    /// Nothing is recorded here anyway.
    fn set_eager(&mut self, _: bool) {}

    /// Threads' scratch is not the device's.
    fn scratch(&self) -> u64 {
        0
    }

    fn room(&self) -> Result<Room> {
        let free = free_memory();
        Ok(Room { device: free, host: free, shared: true })
    }
}

/// Memory that the system would give; all there is, if it does not say.
pub(crate) fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_gathered_once() {
        let n = 1 << 10;
        let mut seen: Vec<usize> = (0..n).map(|i| scattered(i, n)).collect();
        assert!(seen.windows(2).all(|w| w[0].abs_diff(w[1]) > 1), "neighbours");
        seen.sort_unstable();
        assert_eq!(seen, (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn a_cpu_has_bandwidths_and_room() {
        let b = Cpu::new(2).bandwidths().unwrap();
        // Anything from a phone to a server.
        for (name, rate) in [("read", b.device_read), ("copy", b.device_copy), ("gather", b.gather)] {
            assert!((1e8..1e13).contains(&rate), "{name}: {rate}");
        }
        let room = Cpu::new(1).room().unwrap();
        assert!(room.shared && room.device > 1 << 20);
    }
}
