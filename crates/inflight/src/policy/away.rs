//! Whether a run loop that has nothing else to do makes a call itself that waits for a device, or
//! may.

use std::time::Duration;

use super::step::POLL_MAX_BYTES;

/// Whether it does, given how long the last one of the same kind took.
///
/// To hand it to a thread of the pool and hear of it takes two wake-ups, a quarter of the time of a
/// durable append (`docs/measurements/2026-11-21-policy-virtio-2cpu`), and a third of that of a
/// cold read (`docs/measurements/2026-11-25-made-virtio-2cpu`). While the loop makes it, it does
/// not see what other threads bring.
pub(crate) fn loop_waits(took: Option<Duration>) -> bool {
    took.is_some_and(|took| took <= LOOP_WAIT_MAX)
}

/// Whether it makes a flush, given how long the last one and the one before took.
///
/// On most disks one in some flushes takes milliseconds, and says nothing of the next.
pub(crate) fn loop_flushes([last, before]: [Option<Duration>; 2]) -> bool {
    let is_forgiven = last.is_some_and(|last| last <= FORGIVEN_MAX);
    loop_waits(last) || (is_forgiven && loop_waits(before))
}

/// What takes longer has had much to write.
const FORGIVEN_MAX: Duration = Duration::from_millis(10);

/// Whether the last transfer tells how long one of so many bytes takes: of a larger one the
/// wake-ups are a small part anyway.
pub(crate) fn loop_waits_for(bytes: u64) -> bool {
    bytes <= POLL_MAX_BYTES as u64
}

/// The longest that a run loop is to be away.
pub(crate) const LOOP_WAIT_MAX: Duration = Duration::from_millis(1);

/// Whether a loop has been away in calls that most likely do not wait, as reads of what was in the
/// page cache until now, since it last looked for what others have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Away {
    #[default]
    Not,
    /// The first one began then, on a clock that ticks every few milliseconds.
    Since(u64),
    /// It is to look first.
    Enough,
}

impl Away {
    /// Whether another one may begin. Not once the clock has ticked, so nothing else waits for
    /// longer than a tick and one such call, however slow the device is and whatever was believed
    /// of the page cache.
    #[inline]
    pub(crate) fn may_go(&mut self, now_ms: u64) -> bool {
        *self = match *self {
            Self::Not => Self::Since(now_ms),
            Self::Since(began_ms) if began_ms == now_ms => return true,
            Self::Since(_) | Self::Enough => Self::Enough,
        };
        *self != Self::Enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_was_away_for_a_tick_has_to_look_first() {
        let mut away = Away::default();
        assert!(away.may_go(7) && away.may_go(7));
        assert!(!away.may_go(11) && !away.may_go(11));
        assert_eq!(away, Away::Enough);
        assert!(Away::default().may_go(11));
    }

    #[test]
    fn a_loop_makes_calls_that_are_known_to_be_short() {
        assert!(!loop_waits(None));
        assert!(loop_waits(Some(Duration::from_micros(90))));
        assert!(!loop_waits(Some(Duration::from_millis(5))));
    }

    #[test]
    fn one_slow_flush_is_forgiven_and_two_in_a_row_are_not() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert!(loop_flushes([ms(1), ms(80)]) && loop_flushes([ms(1), None]));
        assert!(loop_flushes([ms(5), ms(1)]));
        assert!(!loop_flushes([ms(5), ms(5)]) && !loop_flushes([ms(5), None]));
        assert!(!loop_flushes([ms(80), ms(1)]), "it had much to write");
        assert!(!loop_flushes([None, None]));
    }

    #[test]
    fn a_short_read_says_nothing_of_a_large_one() {
        assert!(loop_waits_for(4096) && loop_waits_for(256 << 10));
        assert!(!loop_waits_for(1 << 30));
    }
}
