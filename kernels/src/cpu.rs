//! The CPU backend.

use crate::memory::Meter;
use crate::simd::Level;
use crate::team::Team;
use oasis_core::ops::{Backend, Order};
use oasis_core::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The reference backend. A clone is the same device: it shares threads and meter, and has scratch of its own.
#[derive(Debug)]
pub struct Cpu {
    pub(crate) team: Team,
    pub(crate) meter: Arc<Meter>,
    pub(crate) level: Level,
    /// Scratch of each worker.
    pub(crate) workers: Workers,
    /// Scratch of an op as a whole.
    pub(crate) whole: Scratch,
    /// Sines and cosines of the last positions.
    pub(crate) angles: crate::ops::rope::Angles,
}

impl Cpu {
    /// A CPU device of `threads` threads (0 counts as 1). One thread is the caller's own: nothing is spawned. If the
    /// system refuses more, one it is.
    pub fn new(threads: usize) -> Self {
        Self::try_new(threads).unwrap_or_else(|_| Self::with(Team::one(), Level::detect()))
    }

    /// As [`Cpu::new`], but an error where the system refuses the threads.
    pub fn try_new(threads: usize) -> Result<Self> {
        Ok(Self::with(Team::new(threads)?, Level::detect()))
    }

    /// This device with the instructions of `level`, for comparisons.
    ///
    /// # Errors
    /// [`Error::Backend`] if the CPU lacks them.
    pub fn at_level(self, level: Level) -> Result<Self> {
        if !Level::available().contains(&level) {
            return Err(Error::Backend(format!("this CPU has no {}; use {}", level.name(), self.level.name())));
        }
        Ok(Self { level, ..self })
    }

    fn with(team: Team, level: Level) -> Self {
        let workers = Workers::new(team.threads());
        Self {
            team,
            meter: Arc::default(),
            level,
            workers,
            whole: Scratch::default(),
            angles: Default::default(),
        }
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }
}

impl Clone for Cpu {
    fn clone(&self) -> Self {
        Self { meter: self.meter.clone(), ..Self::with(self.team.clone(), self.level) }
    }
}

impl Order for Cpu {
    fn wait_fetched(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn begin_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn end_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or(std::env::consts::ARCH, |(_, name)| name);
        format!("{model}, {} thread(s), {}", self.threads(), self.level.name())
    }
}

/// Scratch of each worker. A worker's lock is never contended: [`Team::run`] gives a worker one task at a time.
#[derive(Debug)]
pub(crate) struct Workers(Vec<Mutex<Scratch>>);

impl Workers {
    fn new(n: usize) -> Self {
        Self((0..n).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn get(&self, worker: usize) -> MutexGuard<'_, Scratch> {
        // Scratch has no state worth protecting from a panic.
        self.0[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that an op needs while it runs; it grows to the largest need and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    floats: Vec<f32>,
    pub(crate) indices: Vec<u32>,
    pub(crate) keys: Vec<u64>,
}

/// Floats of a cache line.
const LINE: usize = 16;

impl Scratch {
    /// Arrays of the given lengths, each at the start of a cache line. Their content is arbitrary.
    pub(crate) fn floats<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        split(&mut self.floats, lengths)
    }

    /// As [`Scratch::floats`], and the index list beside them.
    pub(crate) fn floats_and_indices<const N: usize>(
        &mut self,
        lengths: [usize; N],
    ) -> ([&mut [f32]; N], &mut Vec<u32>) {
        (split(&mut self.floats, lengths), &mut self.indices)
    }
}

fn split<const N: usize>(floats: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    let total: usize = lengths.iter().map(|n| n.next_multiple_of(LINE)).sum::<usize>() + LINE;
    if floats.len() < total {
        // Not `resize`: the old content need not move.
        *floats = Vec::new();
        *floats = vec![0.0; total];
    }
    let skip = floats.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    let mut rest = &mut floats[skip..];
    lengths.map(|n| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(n.next_multiple_of(LINE));
        rest = tail;
        &mut part[..n]
    })
}
