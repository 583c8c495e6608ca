//! Foreign code: wakers that are woken, and drops of futures, buffers and wakers. It may do
//! anything, so it runs under no lock and no borrow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::fork;

/// Clones a waker. One that forks while it is cloned, and goes on in the child as well, ends that
/// child: it would hand over what is the parent's to a ring that is not mapped there.
#[inline]
pub(crate) fn clone_waker(waker: &Waker) -> Waker {
    let before = fork::generation();
    let clone = waker.clone();
    if fork::generation() != before {
        end("inflight: a waker has forked while it was cloned, so the child cannot go on\n");
    }
    clone
}

/// Ends the process where nothing else is sound any more.
#[cold]
pub(crate) fn end(why: &str) -> ! {
    // Not by the library's own lock of it: in a forked child nobody may be there to release that.
    let _ = rustix::io::write(std::io::stderr(), why.as_bytes());
    std::process::abort()
}

/// Runs foreign code whose panics are not ours to die of; the panic hook has told of them.
pub(crate) fn contain(foreign: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) else {
        return;
    };
    // What was thrown is foreign too, and may panic when it is dropped.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}
