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
//!
//! **Direct files that cannot be asked**, as those of an overlay, a FUSE file system, or a device
//! below dm-crypt, differ in what a ring does for them. Where a call only starts a transfer, the
//! worker of the kernel that gets it is free at once, and a ring is 1.3 to 7 times as fast as
//! threads; where the call waits, threads are 6 times as fast as a ring (`docs/design/roads.md`).
//! So one transfer of each kind is made such that it shows which, and one in many again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::{ASK_AGAIN_NS, MEMORY_NS};
use crate::op::Road;

/// The device below some files, or the mounted file system that they are on.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// What speaks for a device that takes its time, at most [`SURE`].
    evidence: AtomicU8,
    /// Files in a row that could not be asked, at most [`REFUSED_MIN`].
    refused: AtomicU8,
    /// Reads that were taken to wait, and files to refuse, without having been asked.
    passed: AtomicU32,
    /// Direct reads of files that cannot be asked, and direct writes.
    slow: [Slow; 2],
    /// Whether there are rings, so that it makes a difference.
    has_rings: bool,
}

/// Slow direct transfers of one kind.
#[derive(Debug, Default)]
struct Slow {
    /// [`WAITS`], [`ASYNCHRONOUS`], or 0 before one has shown it.
    seen: AtomicU8,
    /// How many there have been.
    count: AtomicU32,
}

const WAITS: u8 = 1;
const ASYNCHRONOUS: u8 = 2;

/// One of so many is made such that it shows whether it is asynchronous: of those that wait, and
/// of those that do not. The thread that submitted may have lost its processor meanwhile, and the
/// device may be another one under the same number.
const SUBMIT_EVERY: u32 = 64;
const CHECK_EVERY: u32 = 4096;

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

    /// The road of a slow direct transfer of a file that cannot be asked.
    #[cold]
    pub(super) fn slow_road(&self, is_write: bool) -> Road {
        let slow = &self.slow[usize::from(is_write)];
        // Threads may lose counts of each other.
        let count = slow.count.load(Ordering::Relaxed);
        slow.count.store(count.wrapping_add(1), Ordering::Relaxed);
        match slow.seen.load(Ordering::Relaxed) {
            _ if !self.has_rings => Road::Slow,
            ASYNCHRONOUS if count.is_multiple_of(CHECK_EVERY) => Road::Submit,
            ASYNCHRONOUS => Road::Asynchronous,
            _ if count.is_multiple_of(SUBMIT_EVERY) => Road::Submit,
            _ => Road::Slow,
        }
    }

    /// Whether direct transfers of files that cannot be asked are asynchronous, as far as is known.
    pub(super) fn is_asynchronous(&self, is_write: bool) -> bool {
        let seen = &self.slow[usize::from(is_write)].seen;
        seen.load(Ordering::Relaxed) == ASYNCHRONOUS
    }

    /// One of them was, or was not.
    #[cold]
    pub(super) fn was_submitted(&self, is_write: bool, is_asynchronous: bool) {
        let seen = match is_asynchronous {
            true => ASYNCHRONOUS,
            false => WAITS,
        };
        self.slow[usize::from(is_write)]
            .seen
            .store(seen, Ordering::Relaxed);
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
#[derive(Debug)]
pub(crate) struct Devices {
    known: Mutex<BTreeMap<u64, Arc<Device>>>,
    has_rings: bool,
}

impl Devices {
    /// Of an engine with rings, or without.
    pub(crate) fn new(has_rings: bool) -> Self {
        Self {
            known: Mutex::default(),
            has_rings,
        }
    }

    /// What is known of one. None if that cannot be told now.
    pub(crate) fn of(&self, number: u64) -> Option<Arc<Device>> {
        // In a forked child it may be held by a thread that is not there.
        let mut devices = self.known.try_lock().ok()?;
        if devices.len() >= DEVICES_MAX && !devices.contains_key(&number) {
            devices.clear();
        }
        let device = || {
            Arc::new(Device {
                has_rings: self.has_rings,
                ..Device::default()
            })
        };
        Some(Arc::clone(devices.entry(number).or_insert_with(device)))
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
        let devices = Devices::new(true);
        let first = devices.of(80).expect("nobody else is here");
        (0..4).for_each(|_| first.asked(90_000, 4096));
        let of = |number| devices.of(number).expect("as above");
        assert!(of(80).waits() && !of(81).waits());
        (0..1000).for_each(|minor| drop(of(900 + minor)));
        assert!(devices.known.lock().unwrap().len() <= DEVICES_MAX);
        assert!(first.waits(), "its files know it");
    }

    #[test]
    fn slow_direct_transfers_take_the_ring_once_one_of_their_kind_was_asynchronous() {
        let devices = Devices::new(true);
        let device = devices.of(80).expect("nobody else is here");
        let roads = |is_write, count: u32| -> Vec<Road> {
            (0..count).map(|_| device.slow_road(is_write)).collect()
        };
        assert_eq!(roads(false, 3), [Road::Submit, Road::Slow, Road::Slow]);
        device.was_submitted(false, true);
        assert_eq!(roads(false, 2), [Road::Asynchronous; 2]);
        assert!(device.is_asynchronous(false) && !device.is_asynchronous(true));
        assert_eq!(roads(true, 2), [Road::Submit, Road::Slow]);
        // Now and then one shows it again.
        let again = roads(false, CHECK_EVERY).into_iter();
        assert_eq!(again.filter(|road| *road == Road::Submit).count(), 1);
        device.was_submitted(false, false);
        let again = roads(false, 10 * SUBMIT_EVERY).into_iter();
        assert_eq!(again.filter(|road| *road == Road::Submit).count(), 10);
        assert!(!device.is_asynchronous(false));
    }

    #[test]
    fn without_rings_nobody_needs_to_know() {
        let devices = Devices::new(false);
        let device = devices.of(80).expect("nobody else is here");
        assert!((0..SUBMIT_EVERY + 1).all(|_| device.slow_road(false) == Road::Slow));
    }
}
