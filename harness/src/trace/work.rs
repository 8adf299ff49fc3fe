//! Threads that share a list of things to do.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// `KEY=VALUE`s as they are typed.
///
/// # Errors
/// One without `=`.
pub fn sets(typed: &[String]) -> Result<Vec<(String, String)>> {
    let split = |set: &String| match set.split_once('=') {
        Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
        None => bail!("--set {set}: no `=`; write KEY=VALUE, as in decode.budget=256"),
    };
    typed.iter().map(split).collect()
}

/// Does `f` for `0 .. n` on `jobs` threads, each with a state of its own; results by number.
///
/// # Errors
/// The first error of a state or of `f`; what runs then ends first, and nothing new begins.
pub fn each<S, T: Send>(
    jobs: usize,
    n: usize,
    state: impl Fn() -> Result<S> + Sync,
    f: impl Fn(&mut S, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done: Mutex<Vec<(usize, Result<T>)>> = Mutex::new(Vec::with_capacity(n));
    let push = |i: usize, result: Result<T>| {
        stop.fetch_or(result.is_err(), Ordering::SeqCst);
        done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
    };
    let work = || {
        let mut own = match state() {
            Ok(own) => own,
            Err(error) => return push(0, Err(error)),
        };
        while !stop.load(Ordering::SeqCst) {
            let i = next.fetch_add(1, Ordering::SeqCst);
            if i >= n {
                break;
            }
            push(i, f(&mut own, i));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, n.max(1)) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}
