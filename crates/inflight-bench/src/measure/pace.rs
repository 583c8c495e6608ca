//! When operations of an open loop are due: at equal distances, whatever becomes of them.
//!
//! Equal distances, and not random ones, so that every strategy and every round is asked for the
//! same at the same time, and what makes an operation late is never the schedule.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use inflight_report::record::OpenRound;

use crate::measure::clock::Clock;
use crate::measure::heat::Timed;

/// The schedule of one stretch, shared by all who serve it. Whoever is free takes the operation
/// that is due next: a queue with as many servers as operations may be in flight.
pub(crate) struct Pace {
    clock: Clock,
    rate_per_s: u64,
    /// Set when all who serve are ready.
    times: OnceLock<Times>,
    /// The number of the next operation that nobody has taken.
    next: AtomicU64,
    /// How late operations began that were waited for, in all, and how many they were.
    lag_ns: AtomicU64,
    waited_for: AtomicU64,
    /// How many were due and not taken at the end of the stretch, as the first one saw it who came
    /// for more after it. Nobody has taken any since then where nobody has come.
    backlog: OnceLock<u64>,
}

/// The parts of a stretch.
#[derive(Clone, Copy)]
struct Times {
    /// When the first operation is due.
    start_ns: u64,
    /// The end of the warm-up. What was due before and has not begun is dropped.
    begin_ns: u64,
    /// From here on nothing is due.
    until_ns: u64,
    /// From here on nothing begins: what was due is given up.
    last_ns: u64,
}

impl Pace {
    pub(crate) fn new(clock: Clock, rate_per_s: u64) -> Self {
        Self {
            clock,
            rate_per_s,
            times: OnceLock::new(),
            next: AtomicU64::new(0),
            lag_ns: AtomicU64::new(0),
            waited_for: AtomicU64::new(0),
            backlog: OnceLock::new(),
        }
    }

    /// How long after a stretch what was due in it may still begin: a stall near its end counts
    /// for all whom it met.
    pub(crate) fn grace(measured: Duration) -> Duration {
        measured / 2
    }

    /// Begins the warm-up now, for those who wait for it too. Only the first call counts.
    pub(crate) fn start(&self, warmup: Duration, measured: Duration) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 8);
        let start_ns = self.clock.now_ns();
        let begin_ns = start_ns + ns(warmup);
        let until_ns = begin_ns + ns(measured);
        self.times.get_or_init(|| Times {
            start_ns,
            begin_ns,
            until_ns,
            last_ns: until_ns + ns(Self::grace(measured)),
        });
    }

    pub(crate) fn has_started(&self) -> bool {
        self.times.get().is_some()
    }

    /// Waits for the start; says when what counts begins.
    pub(crate) fn wait_for_start(&self) -> u64 {
        self.times.wait().begin_ns
    }

    fn times(&self) -> Times {
        *self.times.get().expect("nobody serves before the start")
    }

    /// When the operation of this number is due.
    fn due_ns(&self, number: u64) -> u64 {
        self.times().start_ns + number * 1_000_000_000 / self.rate_per_s
    }

    /// The number of the first operation that is due at this time or later.
    fn first_at(&self, ns: u64) -> u64 {
        let since_ns = u128::from(ns - self.times().start_ns);
        let number = (since_ns * u128::from(self.rate_per_s)).div_ceil(1_000_000_000);
        u64::try_from(number).expect("a schedule of minutes")
    }

    /// Takes the next operation: when it is due, which may be long ago. Nothing when the schedule
    /// is over.
    pub(crate) fn take(&self, now_ns: u64) -> Option<u64> {
        let times = self.times();
        if now_ns >= times.until_ns {
            self.backlog.get_or_init(|| self.not_taken());
        }
        loop {
            if self.is_over(now_ns) {
                return None;
            }
            let due_ns = self.due_ns(self.next.fetch_add(1, Relaxed));
            if due_ns >= times.begin_ns || now_ns < times.begin_ns {
                return (due_ns < times.until_ns).then_some(due_ns);
            }
            self.next.fetch_max(self.first_at(times.begin_ns), Relaxed);
        }
    }

    /// Whether nothing will begin any more.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        let times = self.times();
        now_ns >= times.last_ns || self.due_ns(self.next.load(Relaxed)) >= times.until_ns
    }

    /// Whether an operation counts: not one of the warm-up.
    pub(crate) fn counts(&self, due_ns: u64) -> bool {
        due_ns >= self.times().begin_ns
    }

    /// Waits until an operation is due that was taken early.
    pub(crate) fn wait(&self, due_ns: u64) {
        if self.clock.now_ns() < due_ns {
            self.sleep_until(due_ns);
            self.waited(due_ns, self.clock.now_ns());
        }
    }

    /// Takes note of an operation that was waited for, and when it began.
    pub(crate) fn waited(&self, due_ns: u64, now_ns: u64) {
        self.lag_ns.fetch_add(now_ns - due_ns, Relaxed);
        self.waited_for.fetch_add(1, Relaxed);
    }

    /// Sleeps through the warm-up.
    pub(crate) fn sleep_through_warmup(&self) {
        self.sleep_until(self.times().begin_ns);
    }

    /// Sleeps until nothing more is due.
    pub(crate) fn sleep_through_stretch(&self) {
        self.sleep_until(self.times().until_ns);
    }

    fn not_taken(&self) -> u64 {
        let taken = self.next.load(Relaxed);
        self.first_at(self.times().until_ns).saturating_sub(taken)
    }

    pub(crate) fn sleep_until(&self, ns: u64) {
        let left_ns = ns.saturating_sub(self.clock.now_ns());
        sleep(Duration::from_nanos(left_ns));
    }

    /// What became of the schedule, when all who served it have ended. What was given up is as late
    /// in `timed` as it was then: without it the worst would be missing.
    pub(crate) fn account(&self, timed: &mut Timed) -> OpenRound {
        let times = self.times();
        let end = self.first_at(times.until_ns);
        let due = end - self.first_at(times.begin_ns);
        let unserved = due.saturating_sub(timed.latencies.count());
        for number in end - unserved..end {
            timed.record(times.last_ns, times.last_ns - self.due_ns(number));
        }
        let waited_for = self.waited_for.load(Relaxed).max(1);
        OpenRound {
            due,
            backlog: *self.backlog.get_or_init(|| self.not_taken()),
            unserved,
            lag_ns: self.lag_ns.load(Relaxed) / waited_for,
        }
    }
}

/// Lets timers of this thread end when they should. By default the kernel lets them end up to 50
/// microseconds late, to wake up less often.
///
/// # Source
/// PR_SET_TIMERSLACK(2const).
pub(crate) fn sharpen_timers() {
    let one_ns: libc::c_ulong = 1;
    // SAFETY: sets a number of the calling thread; no memory is involved. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, one_ns) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    fn started(rate_per_s: u64, warmup: Duration, measured: Duration) -> Pace {
        let pace = Pace::new(Clock::start(), rate_per_s);
        pace.start(warmup, measured);
        pace
    }

    #[test]
    fn what_is_due_is_handed_out_once_at_equal_distances() {
        let pace = started(3, NO_TIME, Duration::from_secs(2));
        let first_ns = pace.times().start_ns;
        let due: Vec<u64> = std::iter::from_fn(|| pace.take(first_ns)).collect();
        let since: Vec<u64> = due.iter().map(|ns| ns - first_ns).collect();
        let third = 333_333_333;
        assert_eq!(
            since,
            [
                0,
                third,
                2 * third,
                1_000_000_000,
                1_333_333_333,
                1_666_666_666
            ]
        );
        assert_eq!(pace.account(&mut Timed::new()).due, 6);
    }

    #[test]
    fn what_the_warm_up_left_behind_is_dropped_and_no_other() {
        let pace = started(1_000, Duration::from_millis(10), Duration::from_millis(5));
        let begin_ns = pace.times().begin_ns;
        assert_eq!(pace.take(begin_ns - 1), Some(begin_ns - 10_000_000));
        let due: Vec<u64> = std::iter::from_fn(|| pace.take(begin_ns)).collect();
        assert_eq!((due.len(), due[0]), (5, begin_ns));
        assert!(!pace.counts(begin_ns - 1) && pace.counts(begin_ns));
    }

    #[test]
    fn what_is_given_up_is_as_late_as_it_was_and_counted() {
        let pace = started(1_000, NO_TIME, Duration::from_millis(10));
        let Times {
            until_ns, last_ns, ..
        } = pace.times();
        let mut timed = Timed::new();
        for now_ns in [until_ns - 1, until_ns - 1, until_ns, until_ns] {
            let due_ns = pace.take(now_ns).unwrap();
            timed.record(until_ns, until_ns - due_ns);
        }
        assert_eq!(pace.take(last_ns), None);
        pace.sleep_through_stretch();
        let open = pace.account(&mut timed);
        assert_eq!((open.due, open.unserved, open.backlog), (10, 6, 8));
        assert_eq!(timed.latencies.count(), 10);
        // The last was due a millisecond before the end, and is given up half a stretch after it.
        let stored = timed.latencies.store(1, Default::default());
        let latency = stored.unwrap().unwrap();
        assert!(latency.ns_max >= 10_000_000, "{latency:?}");
    }
}
