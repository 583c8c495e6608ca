//! When a flush begins, and whether it is put off.

use std::time::Duration;

use super::SHORT_MAX;

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

/// Whether a flush that has taken so long is made where it is asked for, by each of so many who ask
/// at a time, instead of one for all by another thread: whether that one would come later. It does
/// unless the flush has waited for nothing: file systems in memory take half a microsecond, drives
/// 10 and more.
pub(crate) fn is_short_flush(took: Duration, syncs: usize) -> bool {
    let syncs = u32::try_from(syncs).unwrap_or(u32::MAX);
    took <= NOTHING_MAX || took.saturating_mul(syncs) <= SHORT_MAX
}

/// What takes longer has waited for something.
pub(crate) const NOTHING_MAX: Duration = Duration::from_micros(5);

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
    fn a_flush_of_memory_is_short_and_one_of_a_fast_drive_where_few_ask() {
        let us = Duration::from_micros;
        assert!(is_short_flush(Duration::from_nanos(600), usize::MAX));
        assert!(is_short_flush(us(30), 1) && !is_short_flush(us(30), 2));
        assert!(is_short_flush(us(10), 4) && !is_short_flush(us(10), 16));
        assert!(!is_short_flush(us(200), 1));
    }
}
