//! For how many completions a driver or a run loop waits at a time.
//!
//! Waiting for several saves wake-ups, but what has completed, and mail, wait with it. So several
//! are waited for only as long as they come soon. A limit that is near would be dear: in a virtual
//! machine a timer that goes off soon costs processor time each time, one that goes off after the
//! next tick does not (`docs/design/hosts.md`).

use std::time::{Duration, Instant};

use crate::policy::wait_for;

/// From so many in flight on, completions come so often that mail may wait for one.
pub(super) const MANY: u32 = 4;

/// The longest that completions and mail are expected to wait unseen.
const UNSEEN_MAX: Duration = Duration::from_micros(50);

/// The longest that they do, once, when a wait has unexpectedly become a long one.
pub(super) const FAR: Duration = Duration::from_millis(20);

/// How long a wait may take at most from which nobody is called away, with so much time until the
/// next timer.
pub(super) fn unseen(until: Option<Duration>) -> Duration {
    until.map_or(FAR, |until| until.min(FAR))
}

/// What the last waits tell of the next.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    /// For how long each completion was waited for, as a moving average.
    each: Duration,
}

impl Pace {
    /// How many of those in flight are to be waited for unseen; 0 if the next one is too far, or
    /// too few are in flight to tell: then who waits is to be called.
    pub(super) fn at_least(&self, in_flight: u32) -> u32 {
        if in_flight < MANY {
            return 0;
        }
        let near = UNSEEN_MAX.as_nanos() / self.each.as_nanos().max(1);
        wait_for(in_flight).min(u32::try_from(near).unwrap_or(u32::MAX))
    }

    /// What is known after `wait`, with so many in flight, which returns how many have come.
    pub(super) fn after(self, in_flight: u32, wait: impl FnOnce() -> usize) -> Self {
        if in_flight < MANY {
            wait();
            return self;
        }
        let begun = Instant::now();
        let came = wait();
        self.after_one_of(begun.elapsed(), came)
    }

    /// What is known after a wait that has taken so long.
    fn after_one_of(self, took: Duration, came: usize) -> Self {
        let took = took.min(FAR);
        let each = match u32::try_from(came) {
            // Called away, or in vain.
            Ok(0) => self.each.max(took),
            came => (self.each * 3 + took / came.unwrap_or(u32::MAX)) / 4,
        };
        Self { each }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_are_waited_for_while_they_come_soon() {
        let mut pace = Pace::default();
        let wave = |pace: &mut Pace, micros, came| {
            let took = Duration::from_micros(micros);
            (0..20).for_each(|_| *pace = pace.after_one_of(took, came));
        };
        assert_eq!([3, 4, 16, 128].map(|of| pace.at_least(of)), [0, 1, 4, 8]);
        wave(&mut pace, 40, 8);
        assert_eq!(pace.at_least(128), 8);
        wave(&mut pace, 80, 8);
        assert_eq!(pace.at_least(128), 5, "8 take longer than 50 us");
        wave(&mut pace, 100, 1);
        assert_eq!(pace.at_least(128), 0);
        wave(&mut pace, 45, 1);
        assert_eq!(pace.at_least(128), 1);
        pace = pace.after_one_of(FAR, 0);
        assert_eq!(pace.at_least(128), 0, "one wait in vain is enough");
        let called = pace.after_one_of(Duration::from_micros(5), 0);
        assert_eq!(called.at_least(128), 0, "that says nothing of completions");
    }
}
