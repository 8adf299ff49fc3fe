//! Threads that share one op's tasks.
//!
//! A decode step has hundreds of ops of some ten microseconds, so handing out work must cost far less. The caller works
//! too; helpers spin for a moment before they sleep, and a helper that wakes up too late is not waited for.

mod parts;

use oasis_core::{Error, Result};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};

pub(crate) use parts::Parts;

/// Bytes touched or multiply-adds done below which one thread is faster than a wake-up.
const WORTH: usize = 50_000;

/// Looks at the job number before a helper sleeps: some tens of microseconds.
const SPINS: usize = 4_000;

/// A number of threads; one is the caller's own. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Team {
    crew: Option<Arc<Crew>>,
}

impl Team {
    pub(crate) fn new(threads: usize) -> Result<Self> {
        if threads <= 1 {
            return Ok(Self::one());
        }
        let crew = Crew::new(threads - 1);
        let crew = crew.map_err(|e| Error::Backend(format!("{threads} threads: {e}; use fewer")))?;
        Ok(Self { crew: Some(Arc::new(crew)) })
    }

    pub(crate) fn one() -> Self {
        Self { crew: None }
    }

    pub(crate) fn threads(&self) -> usize {
        self.crew.as_ref().map_or(1, |crew| crew.helpers.len() + 1)
    }

    /// Runs `f(worker, task)` for every task, each once. Workers are numbered from 0; no two calls with the same worker
    /// run at the same time. `work` is the size of all tasks together, in bytes or multiply-adds.
    pub(crate) fn run<'a>(&'a self, tasks: usize, work: usize, f: impl Fn(usize, usize) + Sync) {
        let worth = tasks > 1 && work >= WORTH;
        // A crew that works for another clone is not waited for.
        let free = |crew: &'a Arc<Crew>| match crew.busy.try_lock() {
            Ok(busy) => Some((crew, busy)),
            // An op panicked; its crew is as good as before.
            Err(TryLockError::Poisoned(busy)) => Some((crew, busy.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        };
        let crew = self.crew.as_ref().filter(|_| worth).and_then(free);
        let Some((crew, _busy)) = crew else {
            return (0..tasks).for_each(|task| f(0, task));
        };
        let next = AtomicUsize::new(0);
        crew.run(&|worker| {
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                f(worker, task);
            }
        });
    }
}

/// What a helper runs, with its number.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// The job state: number of the job in the upper half, [`OPEN`], helpers at work in the lower bits.
const JOB: u64 = 1 << 32;
/// Helpers may still join.
const OPEN: u64 = 1 << 31;

#[derive(Debug)]
struct Shared {
    state: AtomicU64,
    work: UnsafeCell<Option<Pointer>>,
    stop: AtomicBool,
    /// What a helper panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The caller's [`Work`], without its lifetime.
#[derive(Debug, Clone, Copy)]
struct Pointer(*const (dyn Fn(usize) + Sync));

// SAFETY: `work` is written by the one caller (who holds `busy`) while no helper is at work and none can join, and read by
// helpers that joined; joining is an acquire of the release that opened the job. The pointee is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer itself is plain data.
unsafe impl Send for Shared {}

#[derive(Debug)]
struct Helper {
    thread: Thread,
    asleep: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// Helping threads; they end with the last team that has them.
#[derive(Debug)]
struct Crew {
    shared: Arc<Shared>,
    helpers: Vec<Helper>,
    busy: Mutex<()>,
}

impl Crew {
    fn new(helpers: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        // Built up in place, so that an error ends those that were started.
        let mut crew = Self { shared, helpers: Vec::new(), busy: Mutex::new(()) };
        for i in 1..=helpers {
            let (shared, asleep) = (crew.shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = asleep.clone();
            let thread = std::thread::Builder::new().name(format!("oasis-cpu-{i}"));
            let handle = thread.spawn(move || shared.help(i, &flag))?;
            crew.helpers.push(Helper { thread: handle.thread().clone(), asleep, handle: Some(handle) });
        }
        Ok(crew)
    }

    /// Runs `work` here and on every helper that comes in time; returns when all are done.
    fn run(&self, work: Work<'_>) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed. `Closing` keeps this function from returning, also by a panic, before every
        // helper that joined is done, and none joins later. Nobody else writes: the caller holds `busy`.
        unsafe {
            let pointer: *const (dyn Fn(usize) + Sync + '_) = work;
            *shared.work.get() = Some(Pointer(std::mem::transmute::<
                *const (dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(pointer)));
        }
        let closed = shared.state.load(Relaxed);
        shared.state.store((closed & !(JOB - 1)).wrapping_add(JOB) | OPEN, SeqCst);
        for helper in &self.helpers {
            if helper.asleep.load(SeqCst) {
                helper.thread.unpark();
            }
        }
        let closing = Closing(shared);
        work(0);
        drop(closing);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Lets nobody join any more, and waits for those who did.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, AcqRel);
        let mut looks = 0_usize;
        while self.0.state.load(Acquire) & (OPEN - 1) != 0 {
            looks += 1;
            if looks.is_multiple_of(1_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Shared {
    /// The life of helper `i`.
    fn help(&self, i: usize, asleep: &AtomicBool) {
        let mut last = 0;
        while let Some(job) = self.next_job(last, asleep) {
            last = job;
            if !self.join(job) {
                continue;
            }
            // SAFETY: this helper joined, so the work is there until it leaves.
            let work = unsafe { (*self.work.get()).map(|pointer| &*pointer.0) };
            let result = catch_unwind(AssertUnwindSafe(|| work.map_or((), |work| work(i))));
            if let Err(panic) = result {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.state.fetch_sub(1, Release);
        }
    }

    /// The number of a job that is not `last`; none: the crew ends.
    fn next_job(&self, last: u64, asleep: &AtomicBool) -> Option<u64> {
        let mut looks = 0;
        loop {
            if self.stop.load(Relaxed) {
                return None;
            }
            let job = self.state.load(SeqCst) / JOB;
            if job != last {
                return Some(job);
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            // Whoever posts a job looks at `asleep` after that; this looks at the job after it said so.
            asleep.store(true, SeqCst);
            if self.state.load(SeqCst) / JOB == last && !self.stop.load(SeqCst) {
                std::thread::park();
            }
            asleep.store(false, SeqCst);
        }
    }

    /// Counts this helper in, unless the job is closed or over.
    fn join(&self, job: u64) -> bool {
        let open = |state: u64| (state / JOB == job && state & OPEN != 0).then_some(state + 1);
        self.state.fetch_update(Acquire, Relaxed, open).is_ok()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for helper in &mut self.helpers {
            helper.thread.unpark();
            if let Some(handle) = helper.handle.take() {
                // A helper catches all panics of its work; there is nothing to hear from it.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_a_worker_of_the_team() {
        for threads in [1, 2, 3] {
            let team = Team::new(threads).unwrap();
            assert_eq!(team.threads(), threads);
            for round in 0..2_000 {
                let mut seen = vec![0; round % 50];
                let n = seen.len();
                let at_work: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                let parts = Parts::new(&mut seen);
                team.run(n, usize::MAX, |worker, task| {
                    assert!(!at_work[worker].swap(true, SeqCst), "one task at a time");
                    // SAFETY: one element a task.
                    unsafe { parts.slice(task, 1)[0] += 1 };
                    at_work[worker].store(false, SeqCst);
                });
                assert!(seen.iter().all(|&n| n == 1));
            }
        }
    }

    #[test]
    fn helpers_that_slept_wake_up() {
        let team = Team::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            wakes(&team);
        }
    }

    fn wakes(team: &Team) {
        let helped = AtomicBool::new(false);
        let start = std::time::Instant::now();
        // Each task waits for a helper; a minute is no time limit but a hang.
        team.run(2, usize::MAX, |worker, _| {
            helped.fetch_or(worker > 0, SeqCst);
            while !helped.load(SeqCst) && start.elapsed().as_secs() < 60 {
                std::thread::yield_now();
            }
        });
        assert!(helped.load(SeqCst));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(3).unwrap();
        for bad in 0..20 {
            let work = || team.run(20, usize::MAX, |_, task| assert!(task != bad, "task {task}"));
            let panic = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
            assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("task {bad}")));
            let sum = AtomicUsize::new(0);
            team.run(20, usize::MAX, |_, task| _ = sum.fetch_add(task, Relaxed));
            assert_eq!(sum.into_inner(), 190);
        }
        wakes(&team);
    }

    #[test]
    fn clones_on_several_threads_do_not_wait_for_each_other() {
        let team = Team::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let team = team.clone();
                scope.spawn(move || {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        team.run(10, usize::MAX, |_, task| _ = sum.fetch_add(task, Relaxed));
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
    }
}
