//! An allocator that counts, for each thread and for all.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

static ALL: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Counts an allocation of this thread, and what it changes in the bytes that are allocated.
fn count(allocations: u64, grown: usize, freed: usize) {
    // A thread that ends may have lost its counter.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    ALL.fetch_add(allocations, Ordering::Relaxed);
    let signed = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
    LIVE_BYTES.fetch_add(signed(grown) - signed(freed), Ordering::Relaxed);
}

// SAFETY: every call is passed on as it is to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        // SAFETY: passed on from the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size, layout.size());
        // SAFETY: passed on from the caller.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(0, 0, layout.size());
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

/// Allocations that this thread makes in `body`, growing ones included.
pub(crate) fn allocations_in(body: impl FnOnce()) -> u64 {
    let before = allocations();
    body();
    allocations() - before
}

/// Allocations that this thread has made.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Allocations that all threads have made.
pub(crate) fn allocations_of_all() -> u64 {
    ALL.load(Ordering::Relaxed)
}

/// Bytes that all threads have allocated and not freed.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}
