//! Writes into the page cache where they are awaited: which are made where they are polled.
//!
//! Such a write is a copy, but it may wait: for room among what is yet to be written back, for the
//! journal, for the rest of a page that only the device has. Some file systems can be asked
//! (`RWF_NOWAIT`), others not. Those that can also refuse what takes a few microseconds: xfs a
//! write that has to note a new time of change, as the first one after a flush; btrfs all that goes
//! to new places, and that is what it does with whatever is written. A thread of the pool takes
//! longer than such a call. So it is made where it is polled, and timed. One that has waited is
//! followed by a while in which all of its device are for the pool, 16 times as long, so that a
//! thread that polls spends little of its time in waiting (`docs/design/roads.md`).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use super::short::SHORT_MAX;
use super::step::POLL_MAX_BYTES;
use super::{Device, REFUSED, TAKEN, UNKNOWN};
use crate::clock::now_ns;
use crate::op::{Road, Seen};

/// How the writes of one file went last.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Whether the file takes `RWF_NOWAIT`: [`UNKNOWN`], [`TAKEN`] or [`REFUSED`].
    nowait: AtomicU8,
    /// How often in a row it has said that a write would wait, at most [`MISSES_MAX`].
    misses: AtomicU8,
    /// So many writes are made without asking: twice as many each time.
    rest: AtomicU8,
    /// For those whose device is not known.
    held: Held,
}

/// Until when the writes of a file, or of all files of a device, are for the pool: microseconds of
/// [`now_us`], or 0.
#[derive(Debug, Default)]
pub(super) struct Held(AtomicU64);

/// To ask a file that always says so costs nothing to speak of with one write in 64.
const MISSES_MAX: u8 = 7;

/// After one that has waited, so many times as long the others are for the pool.
const HELD: u32 = 16;

/// What took longer says no more: the kernel makes a writer wait 200 ms at a time (`MAX_PAUSE`,
/// mm/page-writeback.c), and a process that was stopped, or a file system that was frozen for an
/// hour, says nothing of the writes that come.
const TOOK_MAX: Duration = Duration::from_millis(300);

/// No thread is kept from its processor for so long while others have theirs in turn.
const SURELY_WAITED: Duration = Duration::from_millis(20);

fn now_us() -> u64 {
    now_ns() / 1_000
}

fn whole_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whether a copy did not wait for longer than it takes to have another thread make it.
fn is_short(took: Duration, bytes: usize) -> bool {
    took.saturating_sub(Duration::from_nanos(2 * bytes as u64)) <= SHORT_MAX
}

impl Held {
    fn is_on(&self, now_us: impl FnOnce() -> u64) -> bool {
        let until_us = self.0.load(Ordering::Relaxed);
        if until_us == 0 {
            return false;
        }
        let is_on = now_us() < until_us;
        if !is_on {
            // Unless somebody has waited again meanwhile.
            let order = Ordering::Relaxed;
            let _ = self.0.compare_exchange(until_us, 0, order, order);
        }
        is_on
    }

    fn until(&self, until_us: u64) {
        self.0.fetch_max(until_us, Ordering::Relaxed);
    }
}

impl Copies {
    /// Of a file that is taken to refuse `RWF_NOWAIT`.
    pub(super) fn refusing() -> Self {
        Self {
            nowait: AtomicU8::new(REFUSED),
            ..Self::default()
        }
    }

    /// Whether it takes `RWF_NOWAIT`, as far as is known.
    pub(super) fn takes_nowait(&self) -> Option<bool> {
        match self.nowait.load(Ordering::Relaxed) {
            UNKNOWN => None,
            nowait => Some(nowait != REFUSED),
        }
    }

    /// The road of the next one.
    #[inline]
    pub(super) fn road(&self, device: Option<&Device>) -> Road {
        self.road_at(device, now_us)
    }

    #[inline]
    fn road_at(&self, device: Option<&Device>, now_us: impl FnOnce() -> u64) -> Road {
        let is_refused = self.nowait.load(Ordering::Relaxed) == REFUSED;
        let asks = !is_refused && self.rest.load(Ordering::Relaxed) == 0;
        match (asks, self.held(device).is_on(now_us)) {
            (true, false) => Road::Copy,
            (true, true) => Road::CopySlow,
            (false, false) => Road::CopyBlind,
            (false, true) => Road::Plain,
        }
    }

    fn held<'a>(&'a self, device: Option<&'a Device>) -> &'a Held {
        device.map_or(&self.held, |device| &device.copies)
    }

    /// Learns from one. Threads may learn at the same time; a lost update does no harm.
    pub(super) fn note(&self, seen: Seen, device: Option<&Device>) {
        self.note_at(seen, device, now_us);
    }

    fn note_at(&self, seen: Seen, device: Option<&Device>, now_us: impl FnOnce() -> u64) {
        let (ns, bytes, has_waited) = match seen {
            Seen::Hit => return self.was_asked(TAKEN, 0, device),
            Seen::Miss | Seen::Short => {
                let misses = self.misses.load(Ordering::Relaxed) + 1;
                return self.was_asked(TAKEN, misses.min(MISSES_MAX), device);
            }
            Seen::Refused => return self.was_asked(REFUSED, 0, device),
            Seen::Took { ns, bytes } => {
                let is_long = Duration::from_nanos(ns) >= SURELY_WAITED;
                (ns, bytes, is_long)
            }
            Seen::Waited { ns, bytes } | Seen::Pooled { ns, bytes } => (ns, bytes, true),
            Seen::Preempted => return self.rests(),
            Seen::Asked { .. } | Seen::Started { .. } => return,
        };
        self.rests();
        let took = Duration::from_nanos(ns);
        // What is larger is always for the pool, and its time says nothing of what is not.
        if has_waited && bytes <= POLL_MAX_BYTES && !is_short(took, bytes) {
            let until_us = now_us().saturating_add(whole_us(HELD * took.min(TOOK_MAX)));
            self.held(device).until(until_us);
        }
    }

    /// It has said something, and so many times in a row that a write would wait.
    fn was_asked(&self, nowait: u8, misses: u8, device: Option<&Device>) {
        let before = self.nowait.load(Ordering::Relaxed);
        if before != nowait {
            self.nowait.store(nowait, Ordering::Relaxed);
        }
        if let (UNKNOWN, Some(device)) = (before, device) {
            device.was_asked_to_copy(nowait == REFUSED);
        }
        if misses > 0 || self.misses.load(Ordering::Relaxed) > 0 {
            self.misses.store(misses, Ordering::Relaxed);
            // The one that has just been asked about is the first of them.
            let rest = 1u8.checked_shl(u32::from(misses)).unwrap_or(0) / 2;
            self.rest.store(rest, Ordering::Relaxed);
        }
    }

    /// One more was made.
    fn rests(&self) {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4096;

    fn took(us: u64) -> Seen {
        let (ns, bytes) = (us * 1000, BYTES);
        Seen::Took { ns, bytes }
    }

    fn waited(us: u64) -> Seen {
        let (ns, bytes) = (us * 1000, BYTES);
        Seen::Waited { ns, bytes }
    }

    fn pooled(us: u64) -> Seen {
        let (ns, bytes) = (us * 1000, BYTES);
        Seen::Pooled { ns, bytes }
    }

    /// Makes so many short writes, of a file that answers so if it is asked. Returns how many times
    /// it was.
    fn write(copies: &Copies, device: &Device, count: u32, answer: Seen) -> u32 {
        let mut asked = 0;
        for _ in 0..count {
            if copies.road_at(Some(device), || 0) == Road::Copy {
                asked += 1;
                copies.note(answer, Some(device));
                if answer == Seen::Hit {
                    continue;
                }
            }
            copies.note(took(5), Some(device));
        }
        asked
    }

    #[test]
    fn who_always_says_that_a_write_would_wait_is_asked_less_and_less() {
        let (copies, device) = (Copies::default(), Device::default());
        // 1, 1, 2, 4 .. 32, and then one of 64.
        let first: Vec<_> = (0..128)
            .map(|_| write(&copies, &device, 1, Seen::Miss))
            .collect();
        let asked: Vec<_> = (0..128).filter(|n| first[*n] == 1).collect();
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 127]);
        assert_eq!(write(&copies, &device, 640, Seen::Miss), 10);
        // And after one that need not, always again.
        write(&copies, &device, 64, Seen::Hit);
        assert_eq!(write(&copies, &device, 100, Seen::Hit), 100);
        assert_eq!(write(&copies, &device, 3, Seen::Miss), 2);
    }

    #[test]
    fn after_one_that_has_waited_those_of_its_device_are_for_the_pool_for_a_while() {
        let (copies, device, other) = (Copies::default(), Device::default(), Copies::refusing());
        let at = |copies: &Copies, us| copies.road_at(Some(&device), || us);
        for (seen, until_us) in [
            (waited(100), 1_600),
            (pooled(300_000), 4_800_000),
            // The process was stopped.
            (pooled(3_600_000_000), 4_800_000),
            // Nobody has looked whether it waited, but nothing else takes so long.
            (took(20_000), 320_000),
        ] {
            copies.note_at(seen, Some(&device), || 0);
            // What is short in the pool does not bring them back.
            copies.note_at(pooled(5), Some(&device), || 0);
            assert_eq!(at(&copies, until_us - 1), Road::CopySlow, "{seen:?}");
            assert_eq!(at(&other, until_us - 1), Road::Plain, "{seen:?}");
            assert_eq!(at(&other, until_us), Road::CopyBlind, "{seen:?}");
            assert_eq!(at(&copies, 1), Road::Copy, "it is over");
        }
        // A longer while is not cut short.
        copies.note_at(waited(1_000), Some(&device), || 0);
        copies.note_at(waited(100), Some(&device), || 1);
        assert_eq!(at(&copies, 15_999), Road::CopySlow);
        assert_eq!(at(&copies, 16_000), Road::Copy);
        // Where the device is not known, each speaks for itself.
        copies.note_at(waited(100), None, || 0);
        assert_eq!(copies.road_at(None, || 1_599), Road::CopySlow);
        assert_eq!(Copies::default().road_at(None, || 0), Road::Copy);
        assert_eq!(at(&other, 0), Road::CopyBlind);
    }

    #[test]
    fn what_is_short_or_large_or_may_have_lost_its_processor_sends_nothing_to_the_pool() {
        let (copies, device) = (Copies::default(), Device::default());
        let (ns, bytes) = (30_000_000, POLL_MAX_BYTES + 1);
        let (in_time_ns, all_bytes) = (500_000, POLL_MAX_BYTES);
        for seen in [
            waited(50),
            pooled(50),
            took(19_999),
            Seen::Preempted,
            Seen::Pooled { ns, bytes },
            Seen::Waited {
                ns: in_time_ns,
                bytes: all_bytes,
            },
        ] {
            copies.note_at(seen, Some(&device), || 0);
            assert_eq!(copies.road_at(Some(&device), || 0), Road::Copy, "{seen:?}");
        }
    }

    #[test]
    fn a_few_files_that_cannot_be_asked_speak_for_others() {
        let device = Device::default();
        assert!(!device.refuses_copies());
        for _ in 0..4 {
            assert_eq!(write(&Copies::default(), &device, 9, Seen::Refused), 1);
        }
        assert!(device.refuses_copies() && !device.refuses());
        assert_eq!(Copies::refusing().road(Some(&device)), Road::CopyBlind);
        assert_eq!(Copies::refusing().takes_nowait(), Some(false));
        write(&Copies::default(), &device, 1, Seen::Hit);
        assert!(!device.refuses_copies());
    }

    #[test]
    fn what_is_made_without_asking_is_counted_however_it_went() {
        let (copies, device) = (Copies::default(), Device::default());
        copies.note(Seen::Miss, Some(&device));
        copies.note(Seen::Miss, Some(&device));
        copies.note(Seen::Preempted, Some(&device));
        assert_eq!(copies.road(Some(&device)), Road::CopyBlind);
        copies.note(took(5), Some(&device));
        assert_eq!(copies.road(Some(&device)), Road::Copy);
    }
}
