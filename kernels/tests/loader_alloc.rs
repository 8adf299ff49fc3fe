//! Damaged checkpoints must not make the loaders ask for more memory than the files could fill. This test
//! lives here because counting needs an allocator of one's own, which is unsafe code.

#[path = "../../core/tests/support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::mutate::{Damaged, Seeds};

/// What opening costs whatever the file's size: messages, a read-ahead window, the word cache of a byte-pair
/// tokenizer (320 KB).
const FLOOR: usize = 1 << 19;
/// A `tokenizer.json` brings regular expressions of its own; the automaton of a damaged one has its own limit.
const REGEX_FLOOR: usize = 1 << 22;

/// Remembers the largest request.
struct Counting;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the caller's own arguments; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Relaxed);
        // SAFETY: `at` came from this allocator with this layout, that is from the system's.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest request while a damaged checkpoint is opened and used.
fn largest_allocation(damaged: Damaged) -> usize {
    LARGEST.store(0, Relaxed);
    // Whether it loads is another test's matter.
    let _ = damaged.load();
    LARGEST.load(Relaxed)
}

#[test]
fn no_damaged_file_makes_the_loaders_allocate_twice_its_size() {
    let cases = std::env::var("OASIS_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    let seeds = Seeds::new();
    let mut worst = (0, 0, 0);
    for case in 0..cases {
        let damaged = seeds.case(case);
        let size = damaged.len();
        let floor = if matches!(damaged, Damaged::Folder(_)) { REGEX_FLOOR } else { FLOOR };
        let limit = (2 * size).max(floor);
        // Tables that live as long as the process grow now and then, whatever the file: only an allocation that
        // comes again is the file's own.
        let largest = match largest_allocation(damaged) {
            large if large > limit => large.min(largest_allocation(seeds.case(case))),
            small => small,
        };
        worst = worst.max((largest, case, size));
        assert!(largest <= limit, "case {case}: {largest} bytes for {size} bytes of files");
    }
    let (largest, case, size) = worst;
    println!(
        "{cases} cases; the largest single allocation is {largest} bytes, in case {case} with {size} bytes of files"
    );
}
