//! What the first direct reads of files have shown of the device below them.
//!
//! The first read of a direct file shows whether the file can be asked not to wait and whether its
//! device is memory, and whoever makes it waits for the device meanwhile. That is nothing for a
//! file that is read often. Of many files that are read once it would make the device serve one
//! request at a time. So once a few files have shown that their device takes its time, others on
//! it are taken to be alike; one read in many is still asked, because the device may change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::{ASK_AGAIN_NS, MEMORY_NS};

/// The device below some files.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// What speaks for a device that takes its time, at most [`SURE`].
    evidence: AtomicU8,
    /// Reads that were taken to wait without having been asked.
    passed: AtomicU32,
}

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
        if self.evidence.load(Ordering::Relaxed) < SURE {
            return false;
        }
        // Threads may lose counts of each other.
        let passed = self.passed.load(Ordering::Relaxed).wrapping_add(1);
        self.passed.store(passed, Ordering::Relaxed);
        !passed.is_multiple_of(ASK_EVERY)
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

/// The devices below the files of an engine, by major and minor number.
#[derive(Debug, Default)]
pub(crate) struct Devices(Mutex<BTreeMap<(u32, u32), Arc<Device>>>);

impl Devices {
    /// What is known of a device. None if that cannot be told now.
    pub(crate) fn of(&self, number: (u32, u32)) -> Option<Arc<Device>> {
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
    fn one_read_in_many_is_asked_all_the_same() {
        let device = after(&[(90_000, 4096); 4]);
        let asked = (0..4 * ASK_EVERY).filter(|_| !device.waits()).count();
        assert_eq!(asked, 4);
    }

    #[test]
    fn devices_are_told_apart_and_there_is_room_for_so_many() {
        let devices = Devices::default();
        let first = devices.of((8, 0)).expect("nobody else is here");
        (0..4).for_each(|_| first.asked(90_000, 4096));
        let of = |number| devices.of(number).expect("as above");
        assert!(of((8, 0)).waits() && !of((8, 1)).waits());
        (0..1000).for_each(|minor| drop(of((9, minor))));
        assert!(devices.0.lock().unwrap().len() <= DEVICES_MAX);
        assert!(first.waits(), "its files know it");
    }
}
