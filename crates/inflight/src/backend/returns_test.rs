//! Profilers and the like walk the stack of a thread from within a signal handler, wherever it is.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::thread;

use super::entries;

unsafe extern "C" {
    /// Walks the stack of this thread.
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    /// Where the function of a frame begins.
    fn _Unwind_GetRegionStart(frame: *mut c_void) -> usize;
}

/// Where a function begins that every walk has to come to, how many walks are over, and how many
/// have come there.
static BOTTOM: AtomicUsize = AtomicUsize::new(0);
static WALKS: AtomicU32 = AtomicU32::new(0);
static COMPLETE: AtomicU32 = AtomicU32::new(0);

extern "C" fn at_frame(frame: *mut c_void, _: *mut c_void) -> c_int {
    /// Go on.
    const NO_REASON: c_int = 0;
    // SAFETY: the frame is that of the walk that calls this.
    if unsafe { _Unwind_GetRegionStart(frame) } == BOTTOM.load(Relaxed) {
        COMPLETE.fetch_add(1, Relaxed);
    }
    NO_REASON
}

extern "C" fn walk(_: c_int) {
    // SAFETY: the handler runs on the stack that is walked, and has nothing to be freed.
    unsafe { _Unwind_Backtrace(at_frame, null_mut()) };
    WALKS.fetch_add(1, Relaxed);
}

/// Adds entries, and does little else, until it is told to stop.
#[inline(never)]
extern "C" fn bottom(is_begun: &AtomicBool, is_over: &AtomicBool) {
    is_begun.store(true, Relaxed);
    while !black_box(is_over).load(Relaxed) {
        entries::add();
        entries::add();
        entries::add();
        entries::add();
    }
}

#[test]
fn the_stack_can_be_walked_wherever_a_signal_comes() {
    const SIGNALS: u32 = 2_000;
    if !entries::may_be_added() {
        return println!("skipped: the processor checks where returns go");
    }
    BOTTOM.store((bottom as *const ()).addr(), Relaxed);
    let handler = (walk as *const ()).addr();
    // SAFETY: nobody else here uses this signal, and the handler is there for ever.
    unsafe { libc::signal(libc::SIGUSR2, handler) };
    let flags = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let (is_begun, is_over) = &*flags;
    let thread = thread::spawn({
        let flags = Arc::clone(&flags);
        move || bottom(&flags.0, &flags.1)
    });
    while !is_begun.load(Relaxed) {
        thread::yield_now();
    }
    for number in 1..=SIGNALS {
        // SAFETY: the thread has not ended: it waits to be told to.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
        while WALKS.load(Relaxed) < number {
            thread::yield_now();
        }
    }
    is_over.store(true, Relaxed);
    thread.join().expect("no panic");
    assert_eq!(COMPLETE.load(Relaxed), SIGNALS);
}
