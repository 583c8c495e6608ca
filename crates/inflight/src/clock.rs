//! The time since the machine was started: clock_gettime(2).
//!
//! Without a beginning that the process would remember: what is being initialised while another
//! thread forks stays so in the child, for ever.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Milliseconds, at least 1. Costs a few nanoseconds, and ticks every 1 to 10 ms
/// (`CLOCK_MONOTONIC_COARSE`).
#[inline]
pub(crate) fn now_ms() -> u64 {
    let (seconds, nanoseconds) = parts(clock_gettime(ClockId::MonotonicCoarse));
    seconds * 1_000 + nanoseconds / 1_000_000 + 1
}

/// Nanoseconds (`CLOCK_MONOTONIC`).
pub(crate) fn now_ns() -> u64 {
    let (seconds, nanoseconds) = parts(clock_gettime(ClockId::Monotonic));
    seconds * 1_000_000_000 + nanoseconds
}

#[inline]
fn parts(time: Timespec) -> (u64, u64) {
    // Neither is ever negative.
    let whole = |part| u64::try_from(part).unwrap_or(0);
    (whole(time.tv_sec), whole(time.tv_nsec))
}
