//! How the last flushes of a file went, and whether the next one is made where it is asked for.

use std::time::Duration;

#[derive(Default)]
pub(super) struct Lately {
    /// How long the last flush of a round has taken, if there was one, and the one before.
    took: [Option<Duration>; 2],
    /// How many of the last ones, in a row, were short.
    short: u64,
    /// How many, in a row, were for one sync, with none waiting for the next.
    alone: u64,
}

/// Who asks for a flush.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    /// It may wait for a device, for a short time, and asks for flushes of no other file.
    pub(crate) may_wait: bool,
    /// A host could promise to make it, whom it costs nothing to make one for all.
    pub(crate) is_host: bool,
}

/// After so many short flushes in a row the next one is made where it is asked for, in a poll too.
/// Where the device has got slower, a flush in so many waits for it there.
const SHORT_MIN: u64 = if cfg!(loom) { 1 } else { 32 };

/// Of those that are short only as few are asked for at a time one in so many is not made there, to
/// see whether there are more: nobody else of the thread that makes them can ask meanwhile.
const LOOK_EVERY: u64 = 256;

impl Lately {
    pub(super) fn took(&self) -> [Option<Duration>; 2] {
        self.took
    }

    /// Learns from a flush that has taken so long, when so many had asked for it or for the next.
    pub(super) fn learn(&mut self, took: Duration, asked: usize, is_short: bool) {
        let [last, _] = self.took;
        self.took = [Some(took), last];
        let counted = |count: u64, goes_on| if goes_on { count + 1 } else { 0 };
        self.short = counted(self.short, is_short);
        self.alone = counted(self.alone, asked == 1);
    }

    /// Whether the next one is made where it is asked for. A host makes one for all who ask there,
    /// and one for each only if there is nobody else. `is_nothing` tells whether so short a one is
    /// worth nothing else, whoever asks.
    pub(super) fn is_short(&self, asker: Asker, is_nothing: impl FnOnce(Duration) -> bool) -> bool {
        let [last, _] = self.took;
        if self.short < SHORT_MIN {
            return false;
        }
        let is_for_few = asker.may_wait && (!asker.is_host || self.alone >= SHORT_MIN);
        let is_looked_after = self.short.is_multiple_of(LOOK_EVERY);
        last.is_some_and(is_nothing) || is_for_few && !is_looked_after
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SOME: Duration = Duration::from_micros(20);

    const TASK: Asker = Asker {
        may_wait: true,
        is_host: false,
    };
    const IN_LOOP: Asker = Asker {
        is_host: true,
        ..TASK
    };

    fn after(flushes: u32, asked: usize) -> Lately {
        let mut lately = Lately::default();
        for _ in 0..flushes {
            lately.learn(SOME, asked, true);
        }
        lately
    }

    #[test]
    fn the_last_two_flushes_are_known() {
        let mut lately = Lately::default();
        let mut known = |took_ms| {
            lately.learn(Duration::from_millis(took_ms), 1, false);
            lately.took().map(|took| took.map(|took| took.as_millis()))
        };
        let expected = [[Some(9), None], [Some(1), Some(9)], [Some(8), Some(1)]];
        assert_eq!([9, 1, 8].map(&mut known), expected);
    }

    #[test]
    fn short_flushes_are_made_where_they_are_asked_for_until_one_is_not() {
        let is_short = |lately: &Lately| lately.is_short(TASK, |_| false);
        assert!(!is_short(&after(31, 2)) && is_short(&after(32, 2)));
        let mut lately = after(40, 2);
        lately.learn(SOME, 2, false);
        assert!(!is_short(&lately));
    }

    #[test]
    fn a_host_makes_one_for_all_unless_there_is_one_or_it_takes_nothing() {
        let mut lately = after(40, 2);
        assert!(!lately.is_short(IN_LOOP, |_| false));
        assert!(lately.is_short(IN_LOOP, |took| took == SOME));
        for _ in 0..32 {
            assert!(!lately.is_short(IN_LOOP, |_| false));
            lately.learn(SOME, 1, true);
        }
        assert!(lately.is_short(IN_LOOP, |_| false));
    }

    #[test]
    fn whoever_may_not_wait_makes_none_but_of_nothing() {
        let asker = Asker {
            may_wait: false,
            ..TASK
        };
        assert!(!after(40, 1).is_short(asker, |_| false));
        assert!(after(40, 1).is_short(asker, |_| true));
    }

    #[test]
    fn one_in_256_is_left_to_others_unless_it_takes_nothing() {
        let left = |is_nothing: bool| {
            let is_left = |flushes: &u32| !after(*flushes, 1).is_short(TASK, |_| is_nothing);
            (32..1000).filter(is_left).collect::<Vec<u32>>()
        };
        assert_eq!(left(false), [256, 512, 768]);
        assert_eq!(left(true), []);
    }
}
