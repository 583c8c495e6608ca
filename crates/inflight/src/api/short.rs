//! Calls that may wait for a device, but for nobody else, and mostly do not: made where they are
//! awaited as long as they are short, and timed wherever they are made.

use std::time::Instant;

use crate::host::flight::count_at_once;
use crate::policy::{SHORT_CALLS, Short};

/// Such a call takes as long as a dozen of those that are answered at once.
const WEIGHT_BYTES: usize = 256 << 10;

/// Makes a call where it is awaited, if others of its kind were short and `call` finds nothing that
/// is against it.
pub(super) fn here<T>(kind: Short, call: impl FnOnce() -> Option<T>) -> Option<T> {
    if !SHORT_CALLS.are_short(kind) {
        return None;
    }
    let begun = Instant::now();
    let made = call()?;
    SHORT_CALLS.note(kind, begun.elapsed(), false);
    count_at_once(WEIGHT_BYTES);
    Some(made)
}

/// Makes a call on a thread of the pool.
pub(super) fn in_pool<T>(kind: Short, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let made = call();
    SHORT_CALLS.note(kind, begun.elapsed(), true);
    made
}
