//! What the first reads, and the first direct writes, of files have shown of what is below them.
//!
//! **Direct files.** The first read shows whether the file can be asked not to wait and whether its
//! device is memory, and whoever makes it waits for the device meanwhile. That is nothing for a
//! file that is read often. Of many files that are read once it would make the device serve one
//! request at a time. So once a few reads have shown that their device takes its time, other files
//! on it are taken to be alike; one read in many is still asked, because the device may change.
//! Until then one read in many of a file that seemed to wait is asked again: a thread that has lost
//! its processor is as slow as a device. The same holds of direct writes, by themselves.
//!
//! **Files that cannot be asked** not to wait, as those of tmpfs, show that at their first read,
//! which then goes to the pool where it is awaited. Of many files that are read once it would be
//! each. So once a few have shown it, others there are taken to be alike as well; likewise those
//! that cannot be asked whether a write into the page cache would wait, as those of ext4.
//!
//! **Direct files that cannot be asked** differ in what a ring does for them. Where a call only
//! starts a transfer, as on an overlay, the worker of the kernel that gets it is free at once, and
//! a ring is 1.3 to 7 times as fast as the pool; where the call waits, as with FUSE, the pool is 6
//! times as fast as a ring (`docs/design/roads.md`). So one transfer of each kind is made such that
//! it shows which, and one in many again.
//!
//! **Flushes.** A run loop makes those that are short itself. Of a new file nothing is known, and
//! it may be flushed once, so a small one goes by what the first flush of another file there has
//! taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use super::copies::Held;
use super::durable::LastFound;
use super::{ASK_AGAIN_NS, MEMORY_NS};
use crate::fork::{Inherit, Lock};
use crate::op::Road;

/// The device below some files, or the mounted file system that they are on.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// What speaks for a device that takes its time for reads, and for writes, at most [`SURE`].
    evidence: [AtomicU8; 2],
    /// Files in a row that could not be asked, at most [`REFUSED_MIN`].
    refused: AtomicU8,
    /// Transfers that were taken to wait, and files to refuse, without having been asked.
    passed: AtomicU32,
    /// Direct reads of files that cannot be asked, and direct writes.
    slow: [Slow; 2],
    /// As `refused` and `passed`, of writes into the page cache.
    copies_refused: AtomicU8,
    copies_passed: AtomicU32,
    /// Until when such writes are for the pool.
    pub(super) copies: Held,
    /// Microseconds that the first flush of a file has taken last, rounded up; 0 if there was none.
    first_flush_us: AtomicU32,
    /// How durable writes of the last file were kept.
    pub(super) durables: LastFound,
    /// Whether the backend is asynchronous, so that it makes a difference.
    is_asynchronous: bool,
}

/// Slow direct transfers of one kind.
#[derive(Debug, Default)]
struct Slow {
    /// [`UNSEEN`], [`WAITS`] or [`ASYNCHRONOUS`].
    seen: AtomicU8,
    /// How many there have been.
    count: AtomicU32,
}

const UNSEEN: u8 = 0;
const WAITS: u8 = 1;
const ASYNCHRONOUS: u8 = 2;

/// One of so many is made such that it shows whether it is asynchronous: of those that wait, and
/// of those that do not. The thread that submitted may have lost its processor meanwhile, and the
/// device may be another one under the same number.
const SUBMIT_EVERY: u32 = 64;
const CHECK_EVERY: u32 = 4096;

/// After so many of which none could show it, fast ones are not asked any more.
const GIVEN_UP: u32 = 16 * SUBMIT_EVERY;

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

impl Slow {
    /// There is one more. Threads may lose counts of each other.
    fn counts(&self, count: u32) {
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
    }
}

impl Device {
    /// Whether a read, or a direct write, of a file of which nothing is known is taken to wait for
    /// the device.
    #[inline]
    pub(super) fn waits(&self, is_write: bool) -> bool {
        self.is_sure(is_write) && passes(&self.passed)
    }

    #[inline]
    fn is_sure(&self, is_write: bool) -> bool {
        self.evidence[usize::from(is_write)].load(Ordering::Relaxed) >= SURE
    }

    /// Whether a file that is taken to be on a device that waits is to be asked once more: its
    /// first reads may have been slow for another reason, as long as no others have been.
    #[inline]
    pub(super) fn may_be_memory(&self, is_write: bool) -> bool {
        !self.is_sure(is_write) && !passes(&self.passed)
    }

    /// Whether a new file is taken to refuse to be asked.
    pub(super) fn refuses(&self) -> bool {
        self.refused.load(Ordering::Relaxed) >= REFUSED_MIN && passes(&self.passed)
    }

    /// As [`Device::refuses`], of writes into the page cache.
    pub(super) fn refuses_copies(&self) -> bool {
        self.copies_refused.load(Ordering::Relaxed) >= REFUSED_MIN && passes(&self.copies_passed)
    }

    /// A file could be asked, or could not, of which that was not known.
    pub(super) fn was_asked(&self, is_refused: bool) {
        count_refused(&self.refused, is_refused);
    }

    /// As [`Device::was_asked`], by a write into the page cache.
    pub(super) fn was_asked_to_copy(&self, is_refused: bool) {
        count_refused(&self.copies_refused, is_refused);
    }

    /// A read of a file that cannot be asked was slow: whoever polls the first one of another is
    /// not to wait as well.
    #[cold]
    pub(super) fn was_slow(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// The road of a slow direct transfer of a file that cannot be asked; `may_show`: this one can
    /// show whether it is asynchronous.
    #[cold]
    pub(super) fn slow_road(&self, is_write: bool, may_show: bool) -> Road {
        let slow = &self.slow[usize::from(is_write)];
        let count = slow.count.load(Ordering::Relaxed);
        match slow.seen.load(Ordering::Relaxed) {
            _ if !self.is_asynchronous => Road::Slow,
            ASYNCHRONOUS => {
                // Of those nobody learns anything.
                slow.counts(count);
                match may_show && count.is_multiple_of(CHECK_EVERY) {
                    true => Road::Submit,
                    false => Road::Asynchronous,
                }
            }
            _ if may_show && count.is_multiple_of(SUBMIT_EVERY) => Road::Submit,
            _ => Road::Slow,
        }
    }

    /// The road of a direct transfer of a file that cannot be asked, of which the last ones were
    /// fast: as memory is, or a device that moves large blocks as fast as memory does.
    pub(super) fn fast_road(&self, is_write: bool, may_show: bool) -> Road {
        let slow = &self.slow[usize::from(is_write)];
        match slow.seen.load(Ordering::Relaxed) {
            WAITS => return Road::Blind,
            UNSEEN if slow.count.load(Ordering::Relaxed) >= GIVEN_UP => {
                slow.seen.store(WAITS, Ordering::Relaxed);
                return Road::Blind;
            }
            _ => {}
        }
        match self.slow_road(is_write, may_show) {
            Road::Slow => Road::Blind,
            road => road,
        }
    }

    /// A direct transfer of a file that cannot be asked was a plain call.
    pub(super) fn was_called(&self, is_write: bool, is_fast: bool) {
        let slow = &self.slow[usize::from(is_write)];
        // What is memory is fast, and read by many threads.
        if !(is_fast && slow.seen.load(Ordering::Relaxed) == WAITS) {
            slow.counts(slow.count.load(Ordering::Relaxed));
        }
    }

    /// Whether direct transfers of files that cannot be asked are asynchronous, as far as it is
    /// known.
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

    /// How long the first flush of a file has taken last.
    pub(crate) fn first_flush(&self) -> Option<Duration> {
        match self.first_flush_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(u64::from(us))),
        }
    }

    /// The first flush of a file has taken so long.
    pub(crate) fn was_flushed_first(&self, took: Duration) {
        let us = u32::try_from(took.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
        self.first_flush_us.store(us.max(1), Ordering::Relaxed);
    }

    /// A read of a file of which nothing was known was answered, after so long.
    pub(super) fn asked(&self, ns: u64, bytes: usize) {
        let copied_ns = bytes as u64 / 2;
        match ns.saturating_sub(copied_ns) {
            ..=MEMORY_NS => self.evidence[0].store(0, Ordering::Relaxed),
            ns if ns > ASK_AGAIN_NS => self.speaks(false, CLEAR),
            _ => self.speaks(false, UNCLEAR),
        }
    }

    /// A direct write has shown that it meets no device.
    pub(super) fn wrote_to_memory(&self) {
        self.evidence[1].store(0, Ordering::Relaxed);
    }

    /// A direct write has waited that was to show whether it does, or perhaps would have.
    pub(super) fn write_waited(&self, is_clear: bool) {
        self.speaks(true, if is_clear { CLEAR } else { UNCLEAR });
    }

    /// There is so much more evidence.
    fn speaks(&self, of_writes: bool, more: u8) {
        let evidence = &self.evidence[usize::from(of_writes)];
        let before = evidence.load(Ordering::Relaxed);
        evidence.store(before.saturating_add(more).min(SURE), Ordering::Relaxed);
    }
}

/// Counts one more; whether it need not be asked.
fn passes(passed: &AtomicU32) -> bool {
    // Threads may lose counts of each other.
    let count = passed.load(Ordering::Relaxed).wrapping_add(1);
    passed.store(count, Ordering::Relaxed);
    !count.is_multiple_of(ASK_EVERY)
}

/// One more file in a row could not be asked, or this one could.
fn count_refused(refused: &AtomicU8, is_refused: bool) {
    let before = refused.load(Ordering::Relaxed);
    let refusals = match is_refused {
        true => (before + 1).min(REFUSED_MIN),
        false => 0,
    };
    refused.store(refusals, Ordering::Relaxed);
}

/// Most devices remembered.
const DEVICES_MAX: usize = 64;

/// What is below the files of an engine, by a number that says what it is.
#[derive(Debug)]
pub(crate) struct Devices {
    known: Lock<Known>,
    is_asynchronous: bool,
}

type Known = BTreeMap<u64, Arc<Device>>;

impl Inherit for Known {
    /// None of it is of threads.
    fn inherit(&mut self) {}
}

impl Devices {
    /// Of an engine with an asynchronous backend, or without.
    pub(crate) fn new(is_asynchronous: bool) -> Self {
        Self {
            known: Lock::default(),
            is_asynchronous,
        }
    }

    /// What is known of one. None in a forked child, if a thread that is not there was looking.
    pub(crate) fn of(&self, number: u64) -> Option<Arc<Device>> {
        let mut devices = self.known.lock()?;
        if devices.len() >= DEVICES_MAX && !devices.contains_key(&number) {
            devices.clear();
        }
        let device = || {
            Arc::new(Device {
                is_asynchronous: self.is_asynchronous,
                ..Device::default()
            })
        };
        Some(Arc::clone(devices.entry(number).or_insert_with(device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Facts, Learned};

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
        assert!(!after(&[drive; 3]).waits(false));
        assert!(after(&[drive; 4]).waits(false));
        let fast_drive = (12_000, 4096);
        assert!(!after(&[fast_drive; 15]).waits(false));
        assert!(after(&[fast_drive; 16]).waits(false));
    }

    #[test]
    fn one_answer_of_memory_is_enough_to_ask_again() {
        let (drive, memory, large) = ((90_000, 4096), (3_000, 4096), (90_000, 256 << 10));
        assert!(!after(&[drive, drive, drive, drive, memory]).waits(false));
        assert!(!after(&[drive, drive, drive, drive, large, drive]).waits(false));
        assert!(!after(&[drive, drive, drive, memory, drive]).waits(false));
    }

    #[test]
    fn a_few_files_that_refuse_are_enough_and_one_that_does_not() {
        let device = Device::default();
        for _ in 1..REFUSED_MIN {
            device.was_asked(true);
            assert!(!device.refuses());
        }
        device.was_asked(true);
        assert!(device.refuses() && !device.waits(false));
        device.was_asked(false);
        assert!(!device.refuses());
        (0..REFUSED_MIN).for_each(|_| device.was_asked(true));
        assert!(device.refuses());
        device.was_slow();
        assert!(!device.refuses());
    }

    #[test]
    fn the_last_first_flush_counts_and_none_is_told_as_shorter_than_it_was() {
        let device = Device::default();
        assert_eq!(device.first_flush(), None);
        let told = [0, 1, 1000, 1001, u64::MAX].map(|ns| {
            device.was_flushed_first(Duration::from_nanos(ns));
            device.first_flush().expect("there was one").as_micros()
        });
        assert_eq!(told, [1, 1, 1, 2, u128::from(u32::MAX)]);
    }

    #[test]
    fn one_read_in_many_is_asked_all_the_same() {
        let device = after(&[(90_000, 4096); 4]);
        let asked = (0..4 * ASK_EVERY).filter(|_| !device.waits(false)).count();
        assert_eq!(asked, 4);
    }

    #[test]
    fn devices_are_told_apart_and_there_is_room_for_so_many() {
        let devices = Devices::new(true);
        let first = devices.of(80).expect("nobody else is here");
        (0..4).for_each(|_| first.asked(90_000, 4096));
        let of = |number| devices.of(number).expect("as above");
        assert!(of(80).waits(false) && !of(81).waits(false));
        (0..1000).for_each(|minor| drop(of(900 + minor)));
        assert!(devices.known.lock().unwrap().len() <= DEVICES_MAX);
        assert!(first.waits(false), "its files know it");
    }

    /// The roads of so many transfers, each of which is made before the next one.
    fn roads(device: &Device, is_write: bool, count: u32, is_fast: bool) -> Vec<Road> {
        let road = |_| {
            let road = match is_fast {
                true => device.fast_road(is_write, true),
                false => device.slow_road(is_write, true),
            };
            if road != Road::Asynchronous {
                device.was_called(is_write, is_fast);
            }
            road
        };
        (0..count).map(road).collect()
    }

    fn asked(device: &Device, count: u32, is_fast: bool) -> usize {
        let roads = roads(device, false, count, is_fast).into_iter();
        roads.filter(|road| *road == Road::Submit).count()
    }

    #[test]
    fn what_a_call_only_starts_is_for_the_pool_where_somebody_else_serves_it() {
        let devices = Devices::new(true);
        let device = devices.of(83).expect("nobody else is here");
        device.was_submitted(false, true);
        let learned = Learned::on(Some(device));
        let facts = |served| Facts {
            direct: true,
            durable_writes: false,
            limit_bytes: 4096,
            served,
            unaligned: false,
        };
        let road = |served| learned.road(facts(served), false, true);
        assert_eq!([false, true].map(road), [Road::Asynchronous, Road::Slow]);
    }

    #[test]
    fn slow_direct_transfers_take_the_ring_once_one_of_their_kind_was_asynchronous() {
        let devices = Devices::new(true);
        let device = devices.of(80).expect("nobody else is here");
        let of_reads = roads(&device, false, 3, false);
        assert_eq!(of_reads, [Road::Submit, Road::Slow, Road::Slow]);
        device.was_submitted(false, true);
        assert_eq!(roads(&device, false, 2, false), [Road::Asynchronous; 2]);
        assert!(device.is_asynchronous(false) && !device.is_asynchronous(true));
        let of_writes = roads(&device, true, 2, false);
        assert_eq!(of_writes, [Road::Submit, Road::Slow]);
        // Now and then one shows it again.
        assert_eq!(asked(&device, CHECK_EVERY, false), 1);
        device.was_submitted(false, false);
        assert_eq!(asked(&device, 10 * SUBMIT_EVERY, false), 10);
        assert!(!device.is_asynchronous(false));
    }

    #[test]
    fn fast_direct_transfers_take_the_ring_too_if_they_are_asynchronous() {
        let devices = Devices::new(true);
        let device = devices.of(80).expect("nobody else is here");
        let first = roads(&device, false, 3, true);
        assert_eq!(first, [Road::Submit, Road::Blind, Road::Blind]);
        device.was_submitted(false, true);
        assert_eq!(roads(&device, false, 2, true), [Road::Asynchronous; 2]);
        device.was_submitted(false, false);
        let count = device.slow[0].count.load(Ordering::Relaxed);
        assert_eq!(asked(&device, 2 * CHECK_EVERY, true), 0);
        assert_eq!(device.slow[0].count.load(Ordering::Relaxed), count);
        // Where nothing can be submitted it is given up.
        let other = devices.of(81).expect("nobody else is here");
        let asked = asked(&other, 2 * CHECK_EVERY, true);
        assert_eq!(u32::try_from(asked), Ok(GIVEN_UP / SUBMIT_EVERY));
    }

    #[test]
    fn to_look_at_a_road_changes_nothing_until_it_is_known() {
        let device = Devices::new(true).of(80).expect("nobody else is here");
        assert!((0..3).all(|_| device.slow_road(false, true) == Road::Submit));
        assert_eq!(device.slow_road(false, false), Road::Slow);
        assert_eq!(device.fast_road(false, false), Road::Blind);
        device.was_called(false, false);
        assert!((0..3).all(|_| device.slow_road(false, true) == Road::Slow));
    }

    #[test]
    fn without_rings_nobody_needs_to_know() {
        let devices = Devices::new(false);
        let device = devices.of(80).expect("nobody else is here");
        assert_eq!(device.slow_road(false, true), Road::Slow);
        assert_eq!(device.fast_road(false, true), Road::Blind);
    }

    #[test]
    fn who_asks_for_a_device_while_others_do_is_told_of_it() {
        let devices = Devices::new(false);
        let first = devices.of(1).expect("this is no child");
        let asks = || (0..1_000).all(|_| devices.of(1).is_some_and(|it| Arc::ptr_eq(&it, &first)));
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(asks)).collect();
            threads
                .into_iter()
                .all(|thread| thread.join().unwrap_or(false))
        });
        assert!(all);
    }
}
