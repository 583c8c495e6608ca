//! The coarse clock: clock_gettime(2), `CLOCK_MONOTONIC_COARSE`.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started, at least 1. Costs a few nanoseconds, and ticks every
/// 1 to 10 ms.
#[inline]
pub(crate) fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // It is never negative.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000 + 1
}
