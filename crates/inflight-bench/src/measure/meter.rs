//! What one submitting thread counts while it works.

use std::time::Duration;

use crate::measure::clock::Clock;
use crate::measure::heat::Timed;
use crate::work::{Kind, Ops, Step, stamp};

/// Counters that only grow; a stretch is the difference of two copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    /// Of the last that failed; 0 where none has.
    pub(crate) errno: i32,
    pub(crate) short: u64,
    pub(crate) syscalls: u64,
    /// Operations that delivered other bytes than were written there.
    pub(crate) wrong: u64,
}

impl Counters {
    /// Counts a completed operation. `result` is a byte count, or negative for a failure, as
    /// the kernel gives it.
    #[inline]
    pub(crate) fn complete(&mut self, result: i32, wanted: u32) {
        match u32::try_from(result) {
            Ok(got) if got == wanted => {
                self.ops += 1;
                self.bytes += u64::from(got);
            }
            Ok(got) => {
                self.ops += 1;
                self.bytes += u64::from(got);
                self.short += 1;
            }
            Err(_) => {
                self.errors += 1;
                self.errno = -result;
            }
        }
    }

    /// Counts an operation of which every step was done to the full.
    #[inline]
    pub(crate) fn complete_all(&mut self, bytes: u32) {
        self.ops += 1;
        self.bytes += u64::from(bytes);
    }

    /// The next step of the same operation; if there is none, the operation is counted. What was
    /// read is looked at in `block`, if that is asked for. In place, as are the loops that call it.
    #[inline(always)]
    pub(crate) fn end_step<'b>(
        &mut self,
        ops: &Ops,
        step: &Step,
        result: i32,
        block: impl FnOnce() -> &'b mut [u8],
    ) -> Option<Step> {
        if u32::try_from(result) != Ok(step.wanted()) {
            self.complete(result, step.wanted());
            return None;
        }
        if step.kind == Kind::Read
            && ops.work().verify
            && !stamp::is_right(block(), step.file, step.offset)
        {
            self.wrong += 1;
        }
        let next = ops.after(step);
        if next.is_none() {
            self.complete_all(step.length);
        }
        next
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            ops: self.ops - before.ops,
            bytes: self.bytes - before.bytes,
            errors: self.errors - before.errors,
            errno: match self.errors > before.errors {
                true => self.errno,
                false => 0,
            },
            short: self.short - before.short,
            syscalls: self.syscalls - before.syscalls,
            wrong: self.wrong - before.wrong,
        }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            ops: self.ops + other.ops,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
            errno: match other.errno {
                0 => self.errno,
                errno => errno,
            },
            short: self.short + other.short,
            syscalls: self.syscalls + other.syscalls,
            wrong: self.wrong + other.wrong,
        }
    }
}

/// Counters, latencies and the clock of one thread. Every strategy reports through it, so that
/// the cost of reporting is the same for all.
pub(crate) struct Meter {
    clock: Clock,
    now_ns: u64,
    pub(crate) counters: Counters,
    /// Latencies count of operations that began at this time or later: none while warming up.
    counts_from_ns: u64,
    pub(crate) timed: Timed,
}

impl Meter {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            now_ns: clock.now_ns(),
            counters: Counters::default(),
            counts_from_ns: u64::MAX,
            timed: Timed::new(),
        }
    }

    /// Ends the warm-up: from now on latencies count, for a stretch of about this length.
    pub(crate) fn record(&mut self, measured: Duration) {
        self.timed.begin(self.now_ns, measured);
        self.counts_from_ns = 0;
    }

    /// Latencies count of operations that are due from this time on, when the stretch begins.
    pub(crate) fn record_from(&mut self, begin_ns: u64, measured: Duration) {
        self.timed.begin(begin_ns, measured);
        self.counts_from_ns = begin_ns;
    }

    /// Reads the clock and remembers the reading.
    #[inline]
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns = self.clock.now_ns();
        self.now_ns
    }

    /// The last reading.
    #[inline]
    pub(crate) fn last_reading_ns(&self) -> u64 {
        self.now_ns
    }

    /// Counts a completed operation, as [`Counters::complete`] does.
    #[inline]
    pub(crate) fn complete(&mut self, result: i32, wanted: u32) {
        self.counters.complete(result, wanted);
    }

    /// Counts an operation of which every step was done to the full.
    #[inline]
    pub(crate) fn complete_all(&mut self, bytes: u32) {
        self.counters.complete_all(bytes);
    }

    /// Records how long an operation took that ended at the last reading.
    #[inline]
    pub(crate) fn latency(&mut self, ns: u64) {
        if self.now_ns - ns >= self.counts_from_ns {
            self.timed.record(self.now_ns, ns);
        }
    }

    /// Counts system calls.
    #[inline]
    pub(crate) fn syscalls(&mut self, count: u64) {
        self.counters.syscalls += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_short_and_failed_are_told_apart() {
        let mut meter = Meter::new(Clock::start());
        meter.complete(4096, 4096);
        meter.complete(100, 4096);
        meter.complete(-5, 4096);
        let expected = Counters {
            ops: 2,
            bytes: 4196,
            errors: 1,
            errno: 5,
            short: 1,
            syscalls: 0,
            wrong: 0,
        };
        assert_eq!(meter.counters, expected);
        assert_eq!(meter.counters.plus(&expected).since(&expected), expected);
    }
}
