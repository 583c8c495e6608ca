//! How fast completions come, and how many of them a thread may wait for that has others to look
//! after: the task of a lane.

use std::time::{Duration, Instant};

/// The longest that a thread with others to look after is expected to wait for completions.
const EXPECTED_MAX: Duration = Duration::from_micros(20);

/// The longest that it does, once, when they unexpectedly stay away. A nearer limit is dear, see
/// [`super::pace`].
pub(super) const HELD_MAX: Duration = Duration::from_millis(1);

/// From so many in flight on it may wait.
const HOLD_MIN: u32 = 8;

/// How fast completions come, for a thread that has others to look after.
#[derive(Default)]
pub(super) struct Flow {
    /// When the last ones were seen.
    seen: Option<Instant>,
    /// How far one is from the next, as a moving average.
    apart: Duration,
}

impl Flow {
    /// So many have come; none when a wait was in vain.
    pub(super) fn note(&mut self, completions: u32) {
        self.note_at(Instant::now(), completions);
    }

    fn note_at(&mut self, now: Instant, completions: u32) {
        let apart = match self.seen.replace(now) {
            Some(seen) => (now - seen).min(HELD_MAX) / completions.max(1),
            None => HELD_MAX,
        };
        self.apart = match completions {
            0 => HELD_MAX,
            _ => (self.apart * 7 + apart) / 8,
        };
    }

    /// How many of those in flight may be waited for; 0 if the next one is too far.
    pub(super) fn worth(&self, in_flight: u32) -> u32 {
        if in_flight < HOLD_MIN || self.seen.is_none() {
            return 0;
        }
        let near = EXPECTED_MAX.as_nanos() / self.apart.as_nanos().max(1);
        let near = u32::try_from(near).unwrap_or(u32::MAX);
        (in_flight / 8).clamp(2, 4).min(near)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_completions_that_are_near_are_waited_for() {
        let mut flow = Flow::default();
        assert_eq!(flow.worth(128), 0);
        let mut now = Instant::now();
        let mut come = |flow: &mut Flow, after, completions| {
            now += after;
            flow.note_at(now, completions);
        };
        let wave = Duration::from_micros(32);
        (0..100).for_each(|_| come(&mut flow, wave, 8));
        // One each 4 us: up to five are near.
        assert_eq!([7, 8, 24, 128].map(|of| flow.worth(of)), [0, 2, 3, 4]);
        (0..100).for_each(|_| come(&mut flow, wave, 2));
        assert_eq!(flow.worth(128), 1);
        // A wait in vain is enough; then they have to be near for a while.
        come(&mut flow, HELD_MAX, 0);
        assert_eq!(flow.worth(128), 0);
        come(&mut flow, wave, 8);
        assert_eq!(flow.worth(128), 0);
        (0..100).for_each(|_| come(&mut flow, wave, 8));
        assert_eq!(flow.worth(128), 4);
    }
}
