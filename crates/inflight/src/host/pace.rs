//! How long a driver or a run loop waits for several completions at a time.
//!
//! Waiting for several saves wake-ups, but what has completed, and mail, wait with it. So the wait
//! is limited. In a virtual machine a timer that goes off soon is dear, one that goes off after the
//! next tick is not. So the limit is a far one as long as waits are short by themselves
//! (`docs/design/hosts.md`).

use std::time::{Duration, Instant};

/// From so many in flight on, completions come so often that several are waited for.
pub(super) const MANY: u32 = 4;

/// The longest that completions and mail are to wait unseen.
const UNSEEN_MAX: Duration = Duration::from_micros(50);

/// The longest that they do, once, when a wait has unexpectedly become a long one.
pub(super) const FAR: Duration = Duration::from_millis(20);

/// What the last wait tells of the next.
#[derive(Default)]
pub(super) struct Pace {
    is_short: bool,
}

impl Pace {
    /// Calls `wait` with the time it may take; `until` is what remains until the next timer.
    pub(super) fn wait(&mut self, until: Option<Duration>, wait: impl FnOnce(Duration)) {
        let limit = if self.is_short { FAR } else { UNSEEN_MAX };
        let begun = Instant::now();
        wait(until.map_or(limit, |until| until.min(limit)));
        self.is_short = begun.elapsed() < UNSEEN_MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_was_long_is_followed_by_one_with_a_near_limit() {
        let mut pace = Pace::default();
        let mut limits = Vec::new();
        for _ in 0..2 {
            pace.wait(None, |limit| {
                limits.push(limit);
                std::thread::sleep(2 * UNSEEN_MAX);
            });
        }
        assert_eq!(limits, [UNSEEN_MAX; 2]);
        pace.is_short = true;
        let soon = Duration::from_micros(1);
        pace.wait(Some(soon), |limit| limits.push(limit));
        pace.is_short = true;
        pace.wait(None, |limit| limits.push(limit));
        assert_eq!(limits[2..], [soon, FAR]);
    }
}
