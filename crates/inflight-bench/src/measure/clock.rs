//! The clock of the measurement, what reading it costs, and the date for the record.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            base: Instant::now(),
        }
    }

    /// Nanoseconds since the start of the run.
    pub(crate) fn now_ns(&self) -> u64 {
        let elapsed = self.base.elapsed();
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    /// What one reading costs, in picoseconds; the least of several tries, so that being
    /// interrupted once does not count.
    pub(crate) fn cost_ps(&self) -> u64 {
        const READINGS: u64 = 2_000;
        let one_try = || {
            let begin = self.now_ns();
            for _ in 0..READINGS {
                std::hint::black_box(self.now_ns());
            }
            (self.now_ns() - begin) * 1_000 / READINGS
        };
        (0..20).map(|_| one_try()).min().unwrap_or(0).max(1)
    }
}

/// The time now, UTC, as `2026-01-31T12:00:00Z`.
pub(crate) fn utc_now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    utc(since.as_secs())
}

/// Days to a civil date. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`.
fn utc(seconds: u64) -> String {
    let (days, second_of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (
        second_of_day / 3_600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn the_clock_advances_and_costs_something() {
        let clock = Clock::start();
        let before = clock.now_ns();
        assert!(clock.cost_ps() > 0);
        assert!(clock.now_ns() > before);
    }
}
