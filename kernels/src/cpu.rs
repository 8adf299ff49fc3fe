//! The CPU backend.

mod chain;

use crate::memory::Meter;
use crate::simd::{Amx, Level};
use crate::team::Team;
use bytemuck::Pod;
use half::bf16;
use oasis_core::ops::{Backend, Order, PassKey, PassSeconds};
use oasis_core::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The reference backend. A clone is the same device: it shares threads and meter, and has scratch of its own.
#[derive(Debug)]
pub struct Cpu {
    pub(crate) team: Team,
    pub(crate) meter: Arc<Meter>,
    pub(crate) level: Level,
    /// How the products of many rows are made.
    pub(crate) many: Many,
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

    /// This device with the same bits on every machine: one order of sums for few and many rows, whatever the CPU has.
    /// Prompts take longer.
    pub fn portable(self) -> Self {
        Self { many: Many::Rows, ..self }
    }

    /// This device without AMX, for comparisons.
    pub fn without_amx(self) -> Self {
        Self { many: self.many.without_amx(), ..self }
    }

    /// This device with the instructions of `level`, for comparisons.
    ///
    /// # Errors
    /// [`Error::Backend`] if the CPU lacks them.
    pub fn at_level(self, level: Level) -> Result<Self> {
        if !Level::available().contains(&level) {
            return Err(Error::Backend(format!(
                "this CPU has no {}; use {}",
                level.name(),
                self.level.name()
            )));
        }
        let many = if self.many == Many::Rows { Many::Rows } else { Many::detect(level) };
        Ok(Self { level, many, ..self })
    }

    fn with(team: Team, level: Level) -> Self {
        let workers = Workers::new(team.threads());
        Self {
            team,
            meter: Arc::default(),
            level,
            many: Many::detect(level),
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

/// How products of so many rows are made that arithmetic is their bound. Each has another order of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Many {
    /// AMX tiles.
    Amx,
    /// In f32, by the `gemm` crate, whose kernels go by the CPU.
    Floats,
    /// As those of few rows: the same bits on every machine.
    Rows,
}

impl Many {
    /// The fastest here.
    fn detect(level: Level) -> Self {
        if level == Level::Avx512 && Amx::available() { Self::Amx } else { Self::Floats }
    }

    fn without_amx(self) -> Self {
        if self == Self::Amx { Self::Floats } else { self }
    }
}

impl Clone for Cpu {
    fn clone(&self) -> Self {
        Self { meter: self.meter.clone(), many: self.many, ..Self::with(self.team.clone(), self.level) }
    }
}

impl Order for Cpu {
    type Recording = ();

    /// All work is in order, and a pass is simply run.
    fn replay(
        &mut self,
        _: &mut (),
        _: PassKey,
        pass: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        pass(self)
    }

    fn begin_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn end_stage(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        Ok(())
    }

    fn pass_seconds(&mut self) -> Result<Option<PassSeconds>> {
        Ok(None)
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        if self.many == Many::Rows { "cpu-portable" } else { "cpu" }
    }

    fn describe(&self) -> String {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or(std::env::consts::ARCH, |(_, name)| name);
        let with = match self.many {
            Many::Amx => " and amx",
            Many::Floats => "",
            Many::Rows => ", the same bits on every machine",
        };
        format!("{model}, {} thread(s), {}{with}", self.threads(), self.level.name())
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
    halves: Vec<bf16>,
    pub(crate) indices: Vec<u32>,
    pub(crate) keys: Vec<u64>,
}

/// Bytes of a cache line.
const LINE: usize = 64;

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

    /// As [`Scratch::floats`].
    pub(crate) fn halves<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [bf16]; N] {
        split(&mut self.halves, lengths)
    }

    /// As [`Scratch::floats`], of both kinds.
    pub(crate) fn floats_and_halves<const N: usize, const M: usize>(
        &mut self,
        floats: [usize; N],
        halves: [usize; M],
    ) -> ([&mut [f32]; N], [&mut [bf16]; M]) {
        (split(&mut self.floats, floats), split(&mut self.halves, halves))
    }
}

fn split<T: Pod, const N: usize>(data: &mut Vec<T>, lengths: [usize; N]) -> [&mut [T]; N] {
    let line = LINE / size_of::<T>();
    let total: usize = lengths.iter().map(|n| n.next_multiple_of(line)).sum::<usize>() + line;
    if data.len() < total {
        // Not `resize`: the old content need not move.
        *data = Vec::new();
        *data = bytemuck::zeroed_vec(total);
    }
    let skip = data.as_ptr().align_offset(LINE).min(line);
    let mut rest = &mut data[skip..];
    lengths.map(|n| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(n.next_multiple_of(line));
        rest = tail;
        &mut part[..n]
    })
}
