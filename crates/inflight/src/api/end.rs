//! Where a file ends, as far as is known: a write beyond makes it grow.
//!
//! The program is not the only one who makes a file longer: another process does, or another
//! descriptor of this one. So a write that seems to make it grow may have the kernel asked.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::open::statx_cached;
use crate::backend::threads::execute::is_filtered;

/// See the module.
#[derive(Debug)]
pub(super) struct End {
    /// Of a device, beyond everything.
    len: AtomicU64,
    /// Writes beyond it since one was found not to be.
    beyond: AtomicU32,
}

/// Of many writes beyond the end, one in so many is asked about.
///
/// Where a file is written from one end to the other each of them does make it grow, and the answer
/// is always the same. So it is asked about the first, the second, the fourth, and so on up to this
/// distance. Where somebody reserves space ahead of the writes, the first one behind the known end
/// finds it, and none has to wait for its turn: after an answer that the file is longer they are
/// counted from the beginning.
const ASKED_EVERY: u32 = 64;

impl End {
    pub(super) fn at(len: u64) -> Self {
        Self {
            len: AtomicU64::new(len),
            beyond: AtomicU32::new(0),
        }
    }

    /// Learns that the file has bytes up to here. Threads may learn at the same time, and an older
    /// answer says less than a newer one.
    #[inline]
    pub(super) fn reaches(&self, end: u64) {
        if self.len.load(Ordering::Relaxed) < end {
            self.len.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Learns where the file has been made to end. A thread that has asked just before may put it
    /// back to where it was: then the next writes take the wrong road, and do no harm.
    pub(super) fn is_now(&self, len: u64) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// Whether a write up to here makes the file grow. `ask` is asked where the file ends.
    #[inline]
    pub(super) fn is_before(&self, end: u64, ask: impl FnOnce() -> Option<u64>) -> bool {
        end > self.len.load(Ordering::Relaxed) && !self.was_moved_behind(end, ask)
    }

    /// Whether somebody else has made the file so long.
    #[cold]
    fn was_moved_behind(&self, end: u64, ask: impl FnOnce() -> Option<u64>) -> bool {
        let before = self.beyond.fetch_add(1, Ordering::Relaxed);
        let is_asked = before.is_power_of_two() || before.is_multiple_of(ASKED_EVERY);
        let Some(len) = is_asked.then(ask).flatten() else {
            return false;
        };
        self.reaches(len);
        let is_longer = end <= len;
        if is_longer {
            self.beyond.store(0, Ordering::Relaxed);
        }
        is_longer
    }
}

/// Where an open file ends, without asking a server. `was_filtered`: system calls were when the
/// engine was made, so opening the file has had the same call go through a filter. A process may be
/// ended for it by one that has come since.
pub(super) fn len_of(fd: BorrowedFd<'_>, was_filtered: bool) -> Option<u64> {
    if !was_filtered && is_filtered() {
        return None;
    }
    let told = statx_cached(fd, libc::STATX_SIZE).ok()?;
    (told.stx_mask & libc::STATX_SIZE != 0).then_some(told.stx_size)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn few_writes_that_make_a_file_grow_are_asked_about() {
        let (end, mut asked) = (End::at(0), 0);
        for len in 1..=1000 {
            let ask = || {
                asked += 1;
                Some(len - 1)
            };
            assert!(end.is_before(len, ask), "{len}");
            end.reaches(len);
        }
        // The first, and those after 1, 2, 4, 8, 16, 32, and each 64.
        assert_eq!(asked, 7 + 1000 / ASKED_EVERY);
    }

    #[test]
    fn a_file_that_somebody_makes_longer_in_steps_is_found_so_each_time() {
        let end = End::at(0);
        for write in 1..=1000 {
            let step = u64::next_multiple_of(write, 100);
            assert!(!end.is_before(write, || Some(step)), "{write}");
        }
    }

    #[test]
    fn what_others_append_is_known_and_the_next_writes_grow_all_the_same() {
        let (end, mut asked) = (End::at(0), 0);
        for write in (2..2000).step_by(2) {
            let ask = || {
                asked += 1;
                Some(write - 1)
            };
            assert!(end.is_before(write, ask));
        }
        assert!(asked < 50, "{asked}");
    }

    #[test]
    fn what_cannot_be_told_grows() {
        let end = End::at(10);
        assert!(end.is_before(11, || None));
        assert!(!end.is_before(10, || unreachable!("it is known")));
        end.is_now(5);
        assert!(end.is_before(10, || Some(5)));
    }
}
