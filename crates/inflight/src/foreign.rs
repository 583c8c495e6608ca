//! Foreign code: wakers that are woken, and drops of futures, buffers and wakers. It may do
//! anything, so it runs under no lock and no borrow.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
