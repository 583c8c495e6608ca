//! When a thread is called that shares the copies of another. Plain data of one thread.

use std::time::Duration;

use super::spread::weight;

/// What has to be left to be read before another thread is called, in units of [`weight`]: less is
/// over before it has come.
const CALLED_FROM: u64 = 8 * weight(4096);

/// Of reads that are few at a time, so many are shown before a thread is called that has left.
const SHOWN_BEFORE_CALL: u32 = 64;

/// So many are shown at most before one is called again that has come in vain.
const SHOWN_MAX: u32 = 2048;

/// After so many have been shown, and twice as many and so on, it is looked whether a thread that
/// has been called is late.
const SHOWN_UNTIL_LATE: u32 = 64;

/// Waking a thread takes 5 to 50 us; one that has not begun after this waits for a processor.
pub(crate) const LATE: Duration = Duration::from_micros(100);

/// When another thread is called. One that the scheduler has put on the caller's own processor
/// takes the caller's place until it is elsewhere, which would be repeated for every read. So it is
/// called again after twice as many.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Reads shown since the last call, or since it was found to have been in vain.
    shown: u32,
    /// So many have to be shown, whatever is left to be read.
    due: u32,
    /// Whether the last call was found to have been in vain, and none has been made since.
    in_vain: bool,
}

impl Calls {
    /// A read is shown, and what waits for its answer has so much weight. Whether a thread is to
    /// be called if none is there.
    #[inline]
    pub(crate) fn shows(&mut self, weight: u64) -> bool {
        self.shown = self.shown.saturating_add(1);
        self.shown >= self.due && (weight >= CALLED_FROM || self.shown >= SHOWN_BEFORE_CALL)
    }

    /// One has been called, and has not left. Whether it is time to see whether it is late.
    #[inline]
    pub(crate) fn may_be_late(&self) -> bool {
        self.shown >= SHOWN_UNTIL_LATE && self.shown.is_power_of_two()
    }

    /// None is there, and the last one has come in vain or has not. Whether to call one now.
    pub(crate) fn calls(&mut self, in_vain: bool) -> bool {
        self.shown = 0;
        if in_vain {
            self.due = (2 * self.due).clamp(SHOWN_BEFORE_CALL, SHOWN_MAX);
        } else if !self.in_vain {
            self.due = 0;
        }
        self.in_vain = in_vain;
        !in_vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_in_vain_is_called_less_and_less_and_who_helps_at_once() {
        let mut calls = Calls::default();
        // Shown until one is called.
        let until_called = |calls: &mut Calls, in_vain: bool| {
            let mut in_vain = in_vain;
            for shown in 1..=2 * SHOWN_MAX {
                if calls.shows(CALLED_FROM) && calls.calls(std::mem::take(&mut in_vain)) {
                    return shown;
                }
            }
            panic!("nobody is called any more");
        };
        assert_eq!(until_called(&mut calls, false), 1);
        assert_eq!(until_called(&mut calls, false), 1);
        // Until it is found to have left, and from then on.
        let in_vain = [true; 10].map(|in_vain| until_called(&mut calls, in_vain));
        assert_eq!(in_vain[..4], [1 + 64, 64 + 128, 128 + 256, 256 + 512]);
        assert_eq!(in_vain[8..], [2 * SHOWN_MAX; 2]);
        // It has helped.
        assert_eq!(until_called(&mut calls, false), SHOWN_MAX);
        assert_eq!(until_called(&mut calls, false), 1);
    }

    #[test]
    fn who_has_been_called_is_looked_for_less_and_less() {
        let mut calls = Calls::default();
        assert!(calls.shows(CALLED_FROM) && calls.calls(false));
        let late = (1..=SHOWN_MAX).filter(|_| {
            calls.shows(CALLED_FROM);
            calls.may_be_late()
        });
        assert_eq!(late.collect::<Vec<_>>(), [64, 128, 256, 512, 1024, 2048]);
    }

    #[test]
    fn few_at_a_time_call_a_thread_now_and_then() {
        let mut calls = Calls::default();
        let called =
            (0..10 * SHOWN_BEFORE_CALL).filter(|_| calls.shows(weight(4096)) && calls.calls(false));
        assert_eq!(called.count(), 10);
    }
}
