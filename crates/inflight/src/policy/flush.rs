//! When a flush begins, and whether it is put off.

use std::time::Duration;

/// How long a flush is put off for those who are expected to ask for it too, when the last one has
/// taken so long; `None` where waiting would not pay.
///
/// Whoever comes too late waits for almost two flushes, so a quarter of one is not much to wait for
/// them; and nobody waits for those who did not come the last time. Where flushes are as short as
/// waking somebody, none is put off.
pub(crate) fn gather_for(flush: Duration) -> Option<Duration> {
    let at_most = (flush / 4).min(GATHER_MAX);
    (at_most >= GATHER_MIN).then_some(at_most)
}

const GATHER_MIN: Duration = Duration::from_micros(5);
const GATHER_MAX: Duration = Duration::from_millis(5);

/// Whether a thread can sleep for so short a time: not below about 50 us (`PR_SET_TIMERSLACK`,
/// prctl(2)).
pub(crate) fn can_sleep(time: Duration) -> bool {
    time >= Duration::from_micros(50)
}

/// Whether a flush has waited for nothing: drives take 20 us and more to tell that they have
/// written, file systems in memory half a microsecond.
pub(crate) fn is_short_flush(took: Duration) -> bool {
    took <= SHORT_FLUSH_MAX
}

const SHORT_FLUSH_MAX: Duration = Duration::from_micros(5);

/// Whether a file has so few bytes that its first flush takes as long as that of another one: a
/// drive writes so many in a millisecond.
pub(crate) fn is_little(bytes: u64) -> bool {
    bytes <= 1 << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_put_off_for_a_quarter_of_the_last_one() {
        let us = Duration::from_micros;
        assert_eq!(gather_for(us(19)), None);
        assert_eq!(gather_for(us(100)), Some(us(25)));
        assert!(!can_sleep(us(25)) && can_sleep(us(100)));
        assert_eq!(gather_for(us(1_000_000)), Some(us(5_000)));
    }

    #[test]
    fn a_flush_of_memory_is_short_and_one_of_a_drive_is_not() {
        assert!(is_short_flush(Duration::from_nanos(600)));
        assert!(!is_short_flush(Duration::from_micros(20)));
    }
}
