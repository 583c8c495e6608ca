//! Whether a proactor looks for completions before it sleeps, as the policy has found to be best
//! for its owner ([`crate::policy`], `docs/design/busy-polling.md`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::stopwatch::nanoseconds_since;
use crate::policy::{BusyPollAlone, BusyPolls, LOOK_MAX, Moment, Tried};
use crate::proactor::Looks;

/// The longest look of a thread that has others to look after: tasks are expected to keep one for
/// that long.
#[cfg(feature = "tokio")]
const LOOK_HELD_MAX: Duration = Duration::from_micros(50);

/// What the owner of a proactor has learned of waiting.
pub(super) struct BusyPolling {
    polls: BusyPolls,
    born: Instant,
    /// Whose processor time counts.
    clock: ClockId,
    at_most: Duration,
}

impl BusyPolling {
    /// For a proactor of one thread, of an engine on which so much has been tried.
    pub(super) fn of_owner(tried: &Arc<Tried>) -> Self {
        Self {
            polls: BusyPolls::new(Arc::clone(tried)),
            born: Instant::now(),
            clock: ClockId::ThreadCPUTime,
            at_most: LOOK_MAX,
        }
    }

    /// For one that several threads drive, and that lives long.
    #[cfg(feature = "tokio")]
    pub(super) fn of_lane() -> Self {
        Self {
            clock: ClockId::ProcessCPUTime,
            at_most: LOOK_HELD_MAX,
            ..Self::of_owner(&Arc::default())
        }
    }
}

impl Looks for BusyPolling {
    fn looks_for(&mut self, in_flight: u32, completed: u64) -> Option<Duration> {
        let Self {
            polls,
            born,
            clock,
            at_most,
        } = self;
        let looks = polls.waits(in_flight, || moment(*born, *clock, completed));
        looks.then_some(*at_most)
    }

    fn looked(&mut self, has_seen: bool) {
        self.polls.looked(has_seen);
    }
}

/// What a thread has learned of waiting for one operation at a time.
pub(super) struct BusyPollingAlone {
    polls: BusyPollAlone,
    born: Instant,
    /// Operations that it has waited for.
    completed: u64,
}

impl BusyPollingAlone {
    pub(super) fn new() -> Self {
        Self {
            polls: BusyPollAlone::new(),
            born: Instant::now(),
            completed: 0,
        }
    }

    /// For how long to look at most for the completion of the next one, on an engine on which so
    /// much has been tried; `None` to sleep at once.
    #[inline]
    pub(super) fn looks_for(&mut self, tried: &Tried) -> Option<Duration> {
        let (born, completed) = (self.born, self.completed);
        self.completed += 1;
        let clock = ClockId::ThreadCPUTime;
        let looks = self.polls.waits(tried, || moment(born, clock, completed));
        looks.then_some(LOOK_MAX)
    }

    /// There is no ring to look at.
    pub(super) fn cannot_look(&mut self) {
        self.polls.cannot_look();
    }

    /// What has become of such a look.
    pub(super) fn looked(&mut self, has_seen: bool) {
        self.polls.looked(has_seen);
    }
}

/// What is known now.
fn moment(born: Instant, clock: ClockId, completed: u64) -> Moment {
    // It is never negative.
    let processor = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    Moment {
        now_ns: nanoseconds_since(born),
        processor_ns: u64::try_from(processor.as_nanos()).unwrap_or(u64::MAX),
        completed,
    }
}
