//! Threads that share one op's tasks.

use oasis_core::{Error, Result};
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes touched or multiply-adds done below which one thread is faster than a wake-up.
const WORTH: usize = 100_000;

/// A number of threads; one is the caller's own.
#[derive(Debug, Clone)]
pub(crate) struct Team {
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: usize,
}

impl Team {
    pub(crate) fn new(threads: usize) -> Result<Self> {
        if threads <= 1 {
            return Ok(Self::one());
        }
        let name = |i| format!("oasis-cpu-{i}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
        let pool = pool.map_err(|e| Error::Backend(format!("{threads} threads: {e}; use fewer")))?;
        Ok(Self { pool: Some(Arc::new(pool)), threads })
    }

    pub(crate) fn one() -> Self {
        Self { pool: None, threads: 1 }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f(worker, task)` for every task, each once. Workers are numbered from 0; no two calls with the same worker
    /// run at the same time. `work` is the size of all tasks together, in bytes or multiply-adds.
    pub(crate) fn run(&self, tasks: usize, work: usize, f: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 && work >= WORTH => {
                let next = AtomicUsize::new(0);
                let worker = |w: usize| {
                    loop {
                        let task = next.fetch_add(1, Relaxed);
                        if task >= tasks {
                            break;
                        }
                        f(w, task);
                    }
                };
                let workers = self.threads.min(tasks);
                pool.install(|| (0..workers).into_par_iter().with_max_len(1).for_each(worker));
            }
            _ => (0..tasks).for_each(|task| f(0, task)),
        }
    }
}

/// A mutable array of which tasks write parts that do not overlap.
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    _borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` is a `&mut [T]` that is handed out in pieces; sending pieces needs `T: Send`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), _borrow: std::marker::PhantomData }
    }

    /// `n` elements from `at`.
    ///
    /// # Safety
    /// No other live piece overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, at: usize, n: usize) -> &mut [T] {
        assert!(at <= self.len && n <= self.len - at, "{n} elements at {at} of {}", self.len);
        // SAFETY: in bounds; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), n) }
    }

    /// A pointer to element `at`, for strided writes.
    ///
    /// # Safety
    /// As [`Parts::slice`], for every element that is written.
    pub(crate) unsafe fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        // SAFETY: in bounds or one past.
        unsafe { self.data.add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_a_worker_of_the_team() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads).unwrap();
            let mut seen = vec![0; 100];
            let parts = Parts::new(&mut seen);
            team.run(100, usize::MAX, |worker, task| {
                assert!(worker < threads);
                // SAFETY: one element a task.
                unsafe { parts.slice(task, 1)[0] += 1 };
            });
            assert!(seen.iter().all(|&n| n == 1));
        }
    }
}
