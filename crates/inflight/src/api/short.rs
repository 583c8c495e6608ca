//! Calls that may wait for a device, but for nobody else, and mostly do not: made where they are
//! awaited as long as they are short, and timed wherever they are made.

use std::time::Instant;

use crate::host::at_once::count_at_once;
use crate::policy::{SHORT_CALLS, SHORT_MAX, Short};

/// Such a call takes as long as a dozen of those that are answered at once.
const WEIGHT_BYTES: usize = 256 << 10;

/// Makes a call where it is awaited, if others of its kind were short and `call` finds nothing that
/// is against it.
pub(super) fn here<T>(kind: Short, call: impl FnOnce() -> Option<T>) -> Option<T> {
    if !SHORT_CALLS.are_short(kind) {
        return None;
    }
    let begun = Instant::now();
    let made = call();
    let took = begun.elapsed();
    // To have found something against it may have taken its time as well.
    if made.is_some() || took > SHORT_MAX {
        SHORT_CALLS.note(kind, took, false);
        count_at_once(WEIGHT_BYTES);
    }
    made
}

/// Makes a call on a thread of the pool.
pub(super) fn in_pool<T>(kind: Short, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let made = call();
    SHORT_CALLS.note(kind, begun.elapsed(), true);
    made
}
