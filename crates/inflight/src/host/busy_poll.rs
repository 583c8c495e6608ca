//! Whether a proactor looks for completions before it sleeps, as the policy has found to be best
//! for its owner ([`crate::policy`], `docs/design/busy-polling.md`).

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::stopwatch::nanoseconds_since;
use crate::policy::{BusyPolls, LOOK_MAX, Moment};
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
    /// For a proactor of one thread.
    pub(super) fn of_owner() -> Self {
        Self {
            polls: BusyPolls::new(),
            born: Instant::now(),
            clock: ClockId::ThreadCPUTime,
            at_most: LOOK_MAX,
        }
    }

    /// For one that several threads drive.
    #[cfg(feature = "tokio")]
    pub(super) fn of_lane() -> Self {
        Self {
            clock: ClockId::ProcessCPUTime,
            at_most: LOOK_HELD_MAX,
            ..Self::of_owner()
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
        let looks = polls.waits(in_flight, || Moment {
            now_ns: nanoseconds_since(*born),
            processor_ns: processor_ns(*clock),
            completed,
        });
        looks.then_some(*at_most)
    }

    fn looked(&mut self, has_seen: bool) {
        self.polls.looked(has_seen);
    }
}

fn processor_ns(clock: ClockId) -> u64 {
    // It is never negative.
    let time = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
