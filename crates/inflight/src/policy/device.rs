//! What the first reads of files have shown of what is below them.
//!
//! **Direct files.** The first read shows whether the file can be asked not to wait and whether its
//! device is memory, and whoever makes it waits for the device meanwhile. That is nothing for a
//! file that is read often. Of many files that are read once it would make the device serve one
//! request at a time. So once a few files have shown that their device takes its time, others on
//! it are taken to be alike; one read in many is still asked, because the device may change.
//!
//! **Files that cannot be asked** not to wait, as those of tmpfs, show that at their first read,
//! which then goes to the pool where it is awaited. Of many files that are read once it would be
//! each. So once a few have shown it, others there are taken to be alike as well.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::{ASK_AGAIN_NS, MEMORY_NS};

/// The device below some files, or the mounted file system that they are on.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// What speaks for a device that takes its time, at most [`SURE`].
    evidence: AtomicU8,
    /// Files in a row that could not be asked, at most [`REFUSED_MIN`].
    refused: AtomicU8,
    /// Reads that were taken to wait, and files to refuse, without having been asked.
    passed: AtomicU32,
}

/// After so many files that cannot be asked the others are taken to be alike.
const REFUSED_MIN: u8 = 4;

/// So much evidence is enough.
const SURE: u8 = 16;

/// What a read is worth that took longer than the first one of a file on a device that is memory,
/// and one that did not, because it may have been that. A file tells four times at most.
const CLEAR: u8 = 4;
const UNCLEAR: u8 = 1;

/// One read in so many is asked all the same: a thousand take as long as a few that are waited for
/// one by one.
const ASK_EVERY: u32 = 1024;

impl Device {
    /// Whether a read of a file of which nothing is known is taken to wait for the device.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.evidence.load(Ordering::Relaxed) >= SURE && self.passes()
    }

    /// Whether a new file is taken to refuse to be asked.
    pub(super) fn refuses(&self) -> bool {
        self.refused.load(Ordering::Relaxed) >= REFUSED_MIN && self.passes()
    }

    fn passes(&self) -> bool {
        // Threads may lose counts of each other.
        let passed = self.passed.load(Ordering::Relaxed).wrapping_add(1);
        self.passed.store(passed, Ordering::Relaxed);
        !passed.is_multiple_of(ASK_EVERY)
    }

    /// A file could be asked, or could not, of which that was not known.
    pub(super) fn was_asked(&self, is_refused: bool) {
        let refused = self.refused.load(Ordering::Relaxed);
        let refused = match is_refused {
            true => (refused + 1).min(REFUSED_MIN),
            false => 0,
        };
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// A read of a file that cannot be asked was slow: whoever polls the first one of another is
    /// not to wait as well.
    #[cold]
    pub(super) fn was_slow(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// A read of a file of which nothing was known was answered, after so long.
    pub(super) fn asked(&self, ns: u64, bytes: usize) {
        let copied_ns = bytes as u64 / 2;
        let evidence = match ns.saturating_sub(copied_ns) {
            ..=MEMORY_NS => 0,
            ns => {
                let more = if ns > ASK_AGAIN_NS { CLEAR } else { UNCLEAR };
                let before = self.evidence.load(Ordering::Relaxed);
                before.saturating_add(more).min(SURE)
            }
        };
        self.evidence.store(evidence, Ordering::Relaxed);
    }
}

/// Most devices remembered.
const DEVICES_MAX: usize = 64;

/// What is below the files of an engine, by a number that says what it is.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<BTreeMap<u64, Arc<Device>>>);

impl Devices {
    /// What is known of one. None if that cannot be told now.
    pub(crate) fn of(&self, number: u64) -> Option<Arc<Device>> {
        // In a forked child it may be held by a thread that is not there.
        let mut devices = self.0.try_lock().ok()?;
        if devices.len() >= DEVICES_MAX && !devices.contains_key(&number) {
            devices.clear();
        }
        Some(Arc::clone(devices.entry(number).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(asked: &[(u64, usize)]) -> Device {
        let device = Device::default();
        for (ns, bytes) in asked {
            device.asked(*ns, *bytes);
        }
        device
    }

    #[test]
    fn a_few_slow_answers_show_that_a_device_takes_its_time() {
        let drive = (90_000, 4096);
        assert!(!after(&[drive; 3]).waits());
        assert!(after(&[drive; 4]).waits());
        let fast_drive = (12_000, 4096);
        assert!(!after(&[fast_drive; 15]).waits());
        assert!(after(&[fast_drive; 16]).waits());
    }

    #[test]
    fn one_answer_of_memory_is_enough_to_ask_again() {
        let (drive, memory, large) = ((90_000, 4096), (3_000, 4096), (90_000, 256 << 10));
        assert!(!after(&[drive, drive, drive, drive, memory]).waits());
        assert!(!after(&[drive, drive, drive, drive, large, drive]).waits());
        assert!(!after(&[drive, drive, drive, memory, drive]).waits());
    }

    #[test]
    fn a_few_files_that_refuse_are_enough_and_one_that_does_not() {
        let device = Device::default();
        for _ in 1..REFUSED_MIN {
            device.was_asked(true);
            assert!(!device.refuses());
        }
        device.was_asked(true);
        assert!(device.refuses() && !device.waits());
        device.was_asked(false);
        assert!(!device.refuses());
        (0..REFUSED_MIN).for_each(|_| device.was_asked(true));
        assert!(device.refuses());
        device.was_slow();
        assert!(!device.refuses());
    }

    #[test]
    fn one_read_in_many_is_asked_all_the_same() {
        let device = after(&[(90_000, 4096); 4]);
        let asked = (0..4 * ASK_EVERY).filter(|_| !device.waits()).count();
        assert_eq!(asked, 4);
    }

    #[test]
    fn devices_are_told_apart_and_there_is_room_for_so_many() {
        let devices = Devices::default();
        let first = devices.of(80).expect("nobody else is here");
        (0..4).for_each(|_| first.asked(90_000, 4096));
        let of = |number| devices.of(number).expect("as above");
        assert!(of(80).waits() && !of(81).waits());
        (0..1000).for_each(|minor| drop(of(900 + minor)));
        assert!(devices.0.lock().unwrap().len() <= DEVICES_MAX);
        assert!(first.waits(), "its files know it");
    }
}
