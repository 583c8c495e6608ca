//! Whether a thread that looks for completions lets others have its processor in between.
//!
//! What completes them may be a thread that the scheduler has put on the same processor, as a
//! worker of the kernel that serves a loop device: it would get on only by preemption, or when
//! whoever looks sleeps. But where programs compute on every processor, whoever yields waits for
//! its next turn, which is milliseconds. So how long that takes decides.

use std::time::{Duration, Instant};
use std::{hint, thread};

/// How often a thread that looks for something does so before it asks what time it is.
const LOOKS: u32 = 16;

/// One that takes longer has let somebody compute. A worker serves what is in flight in less.
const LONG: Duration = Duration::from_micros(200);

/// After one that took long so many are left out, about as long as that took, and twice as many
/// each time: in the end one or two hundredths of the time are lost.
const REST_MIN: u32 = 1 << 12;
const REST_MAX: u32 = 1 << 18;

/// After so many short ones in a row it begins with few again.
const SHORT: u32 = 1 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Yields {
    /// So many are left out from now on, and after the next one that takes long.
    rest: u32,
    next_rest: u32,
    short: u32,
}

impl Yields {
    pub(super) const NEW: Self = Self {
        rest: 0,
        next_rest: REST_MIN,
        short: 0,
    };

    /// Looks whether something is there until it is, or the time is over. True if it is.
    ///
    /// # Errors
    ///
    /// That of a look.
    #[inline(always)]
    pub(super) fn look<E>(
        &mut self,
        at_most: Duration,
        mut is_there: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let begun = Instant::now();
        let mut looked = Duration::ZERO;
        loop {
            for _ in 0..LOOKS {
                if is_there()? {
                    return Ok(true);
                }
                hint::spin_loop();
            }
            looked = self.go_on(looked, || begun.elapsed());
            if looked >= at_most {
                return Ok(false);
            }
        }
    }

    /// Yields, unless that has taken long. It was this time, and is the one that is returned.
    #[inline]
    fn go_on(&mut self, before: Duration, now: impl Fn() -> Duration) -> Duration {
        let yields = self.yields();
        if yields {
            thread::yield_now();
        }
        let after = now();
        if yields {
            self.took(after.saturating_sub(before));
        }
        after
    }

    /// Whether to yield now.
    #[inline]
    fn yields(&mut self) -> bool {
        let yields = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        yields
    }

    /// One has taken so long.
    #[inline]
    fn took(&mut self, took: Duration) {
        if took > LONG {
            self.rest = self.next_rest;
            self.next_rest = (2 * self.next_rest).min(REST_MAX);
            self.short = 0;
            return;
        }
        self.short += 1;
        if self.short == SHORT {
            (self.next_rest, self.short) = (REST_MIN, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many looks yield, if each of those takes so long.
    fn yielded(yields: &mut Yields, looks: u32, took: Duration) -> u32 {
        let mut count = 0;
        for _ in 0..looks {
            if yields.yields() {
                yields.took(took);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn who_gets_its_processor_back_at_once_yields_each_time() {
        let mut yields = Yields::NEW;
        let short = Duration::from_micros(20);
        assert_eq!(yielded(&mut yields, 1_000_000, short), 1_000_000);
    }

    #[test]
    fn who_has_to_wait_for_it_yields_less_and_less_until_it_does_not() {
        let mut yields = Yields::NEW;
        let long = Duration::from_millis(3);
        let first = yielded(&mut yields, 1_000_000, long);
        assert!((6..12).contains(&first), "{first}");
        let later = yielded(&mut yields, 10_000_000, long);
        assert!((35..45).contains(&later), "{later}");
        let mut is_alone = |looks| yielded(&mut yields, looks, Duration::ZERO);
        assert!(is_alone(REST_MAX + 2 * SHORT) >= SHORT);
        assert_eq!(yields.next_rest, REST_MIN);
    }
}
