//! What a road means where an operation is polled, and nobody may wait.

use crate::op::Road;

/// What a future does when it is polled for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A plain call.
    Call,
    /// A plain call, to learn how long it takes.
    TimedCall,
    /// A plain call that does not wait, and what comes then if it would.
    Try(Else),
    /// As [`Step::Try`], but only the beginning of what is wanted, to learn from it; then all of it
    /// goes to the proactor.
    Probe,
    /// The request goes to the proactor, for a thread of the pool.
    Pool,
    /// The request goes to the proactor.
    Backend,
}

/// What comes if a call would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Else {
    /// As [`Step::TimedCall`].
    TimedCall,
    /// As [`Step::Pool`].
    Pool,
    /// As [`Step::Backend`].
    Backend,
}

/// What a thread does on a road that waits for results, but has to be back by some time, whatever
/// hangs. Nothing is asked for without waiting, because nearly all that such a thread begins is a
/// part of what it has begun before.
pub(crate) fn in_time(road: Road) -> Step {
    match road {
        Road::Now => Step::Call,
        Road::Plain | Road::Copy | Road::CopyBlind | Road::CopySlow => Step::Pool,
        Road::Blind | Road::Served | Road::Pool | Road::Slow | Road::Submit => Step::Pool,
        // A ring may wait where it is entered for a file that cannot be asked.
        Road::First | Road::Ask => Step::Pool,
        Road::Backend | Road::Device | Road::Memory | Road::Asynchronous => Step::Backend,
        Road::Warm | Road::CacheFirst | Road::Mixed | Road::Cold => Step::Backend,
    }
}

/// The largest copy that is made where a future is polled, in bytes: 20 to 50 us. Beyond that, what
/// handing it over costs is a small part of it, and others wait for the thread.
pub(crate) const POLL_MAX_BYTES: usize = 256 << 10;

/// What a future does on a road. `is_sample` is asked whether it is the turn of a sample.
#[inline]
pub(crate) fn in_a_poll(road: Road, bytes: usize, is_sample: impl FnOnce() -> bool) -> Step {
    let is_large = bytes > POLL_MAX_BYTES;
    match road {
        Road::Now => Step::Call,
        Road::Copy | Road::CopyBlind | Road::CopySlow if is_large => Step::Pool,
        Road::Blind if is_large => Step::Pool,
        Road::Copy => Step::Try(Else::TimedCall),
        Road::CopySlow => Step::Try(Else::Pool),
        // A ring would copy it where it is handed over, one after the other.
        Road::Memory if is_large => Step::Pool,
        Road::CopyBlind | Road::Blind | Road::Memory => Step::TimedCall,
        Road::Plain | Road::Pool | Road::Slow | Road::Submit | Road::Served => Step::Pool,
        Road::First | Road::Ask if is_large => Step::Probe,
        Road::First | Road::Ask => Step::Try(Else::Backend),
        Road::Warm | Road::CacheFirst | Road::Mixed if !is_large => Step::Try(Else::Backend),
        Road::Cold if !is_large && is_sample() => Step::Try(Else::Backend),
        Road::Warm | Road::CacheFirst | Road::Mixed | Road::Cold => Step::Backend,
        Road::Backend | Road::Device | Road::Asynchronous => Step::Backend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_to_be_back_makes_no_call_that_may_wait() {
        for road in [Road::Plain, Road::Copy, Road::CopyBlind, Road::CopySlow] {
            assert_eq!(in_time(road), Step::Pool, "{road:?}");
        }
        for road in [Road::Blind, Road::Served, Road::Slow, Road::Submit] {
            assert_eq!(in_time(road), Step::Pool, "{road:?}");
        }
        for road in [Road::First, Road::Ask, Road::Pool] {
            assert_eq!(in_time(road), Step::Pool, "{road:?}");
        }
        assert_eq!(in_time(Road::Now), Step::Call);
    }
}
