//! Writes into the page cache where they are awaited: which are made where they are polled.
//!
//! Such a write is a copy, but it may wait: for room among what is yet to be written back, for the
//! journal, for the rest of a page that only the device has. Some file systems can be asked
//! (`RWF_NOWAIT`), others not. Those that can also refuse what takes a few microseconds: xfs a
//! write that has to note a new time of change, as the first one after a flush; btrfs all that goes
//! to new places, and that is what it does with whatever is written. A thread of the pool takes
//! longer than such a call. So it is made where it is polled, and timed, as long as the last ones
//! were short; else by the pool, until a few of those were short. One that was long is followed by
//! a while without any, so that a thread that polls spends no more than a sixteenth of its time in
//! them, whatever they wait for (`docs/design/roads.md`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::short::{FORGIVEN_MAX, SHORT_MAX};
use super::{Device, FAST_AGAIN, REFUSED, TAKEN, UNKNOWN, streak_after};
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
    waits: Waits,
}

/// How long those took of which it was not known that they do not wait: of a file, or of all files
/// of a device.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Short ones since the last that was not; below zero, how many of the pool have yet to be.
    streak: AtomicI32,
    /// Until then all are for the pool ([`now_ms`]).
    held_until_ms: AtomicU64,
}

/// To ask a file that always says so costs nothing to speak of with one write in 64.
const MISSES_MAX: u8 = 7;

/// After a long one, so many times as long the others are for the pool.
const HELD: u32 = 16;

/// Milliseconds since somebody first wanted to know.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    whole_ms(START.get_or_init(Instant::now).elapsed())
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a copy did not wait for longer than it takes to have another thread make it.
fn is_short(took: Duration, bytes: usize) -> bool {
    took.saturating_sub(Duration::from_nanos(bytes as u64)) <= SHORT_MAX
}

impl Waits {
    fn is_held(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let until_ms = self.held_until_ms.load(Ordering::Relaxed);
        if until_ms == 0 {
            return false;
        }
        let is_held = now_ms() < until_ms;
        if !is_held {
            self.held_until_ms.store(0, Ordering::Relaxed);
        }
        is_held
    }

    /// Learns from one, before which the streak was this.
    fn note(&self, before: i32, took: Took, now_ms: impl FnOnce() -> u64) {
        let next = match took.is_long() {
            true => -FAST_AGAIN,
            false => streak_after(before, took.is_short, took.by_pool),
        };
        // In the steady state nothing changes, and the cache line stays shared.
        if next != self.streak.load(Ordering::Relaxed) {
            self.streak.store(next, Ordering::Relaxed);
        }
        if took.is_long() {
            let until_ms = now_ms().saturating_add(whole_ms(HELD * took.time));
            self.held_until_ms.fetch_max(until_ms, Ordering::Relaxed);
        }
    }
}

/// What one took.
#[derive(Clone, Copy)]
struct Took {
    time: Duration,
    is_short: bool,
    by_pool: bool,
}

impl Took {
    fn new(ns: u64, bytes: usize, by_pool: bool) -> Self {
        let time = Duration::from_nanos(ns);
        Self {
            time,
            is_short: is_short(time, bytes),
            by_pool,
        }
    }

    fn is_long(self) -> bool {
        !self.is_short && self.time > FORGIVEN_MAX
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
        self.road_at(device, now_ms)
    }

    #[inline]
    fn road_at(&self, device: Option<&Device>, now_ms: impl Fn() -> u64) -> Road {
        let is_refused = self.nowait.load(Ordering::Relaxed) == REFUSED;
        let asks = !is_refused && self.rest.load(Ordering::Relaxed) == 0;
        let is_held = self.waits.is_held(&now_ms)
            || device.is_some_and(|device| device.copies.is_held(&now_ms));
        match (asks, self.streak(device) >= 0 && !is_held) {
            (true, true) => Road::Copy,
            (true, false) => Road::CopySlow,
            (false, true) => Road::CopyBlind,
            (false, false) => Road::Plain,
        }
    }

    /// How its last calls went, or those of others on its device.
    fn streak(&self, device: Option<&Device>) -> i32 {
        match (self.waits.streak.load(Ordering::Relaxed), device) {
            (0, Some(device)) => device.copies.streak.load(Ordering::Relaxed),
            (streak, _) => streak,
        }
    }

    /// Learns from one. Threads may learn at the same time; a lost update does no harm.
    pub(super) fn note(&self, seen: Seen, device: Option<&Device>) {
        self.note_at(seen, device, now_ms);
    }

    fn note_at(&self, seen: Seen, device: Option<&Device>, now_ms: impl Fn() -> u64) {
        let took = match seen {
            Seen::Hit => return self.was_asked(TAKEN, 0, device),
            Seen::Miss | Seen::Short => {
                let misses = self.misses.load(Ordering::Relaxed) + 1;
                return self.was_asked(TAKEN, misses.min(MISSES_MAX), device);
            }
            Seen::Refused => return self.was_asked(REFUSED, 0, device),
            Seen::Took { ns, bytes } => Took::new(ns, bytes, false),
            Seen::Pooled { ns, bytes } => Took::new(ns, bytes, true),
            Seen::Preempted => return self.rests(),
            Seen::Asked { .. } | Seen::Started { .. } => return,
        };
        self.rests();
        self.waits.note(self.streak(device), took, &now_ms);
        if let Some(Device { copies, .. }) = device {
            copies.note(copies.streak.load(Ordering::Relaxed), took, &now_ms);
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
        let ns = us * 1000 + BYTES as u64;
        Seen::Took { ns, bytes: BYTES }
    }

    fn pooled(us: u64) -> Seen {
        let ns = us * 1000 + BYTES as u64;
        Seen::Pooled { ns, bytes: BYTES }
    }

    /// Makes as many writes at the beginning of time, of a file that answers so if it is asked,
    /// each of so many microseconds. Returns how many times it was asked.
    fn write(copies: &Copies, device: &Device, count: u32, asked: Seen, us: u64) -> u32 {
        let mut times = 0;
        for _ in 0..count {
            let road = copies.road_at(Some(device), || 0);
            if matches!(road, Road::Copy | Road::CopySlow) {
                times += 1;
                copies.note_at(asked, Some(device), || 0);
                if asked == Seen::Hit {
                    continue;
                }
            }
            let seen = match road {
                Road::Copy | Road::CopyBlind => took(us),
                _ => pooled(us),
            };
            copies.note_at(seen, Some(device), || 0);
        }
        times
    }

    #[test]
    fn who_always_says_that_a_write_would_wait_is_asked_less_and_less() {
        let (copies, device) = (Copies::default(), Device::default());
        // 1, 1, 2, 4 .. 32, and then one of 64.
        let first: Vec<_> = (0..128)
            .map(|_| write(&copies, &device, 1, Seen::Miss, 5))
            .collect();
        let asked: Vec<_> = (0..128).filter(|n| first[*n] == 1).collect();
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 127]);
        assert_eq!(write(&copies, &device, 640, Seen::Miss, 5), 10);
        // And after one that need not, always again.
        write(&copies, &device, 64, Seen::Hit, 5);
        assert_eq!(write(&copies, &device, 100, Seen::Hit, 5), 100);
        assert_eq!(write(&copies, &device, 3, Seen::Miss, 5), 2);
    }

    #[test]
    fn what_has_waited_goes_to_the_pool_until_it_is_short_there() {
        let (copies, device) = (Copies::default(), Device::default());
        write(&copies, &device, 1, Seen::Miss, 200);
        assert_eq!(copies.road(Some(&device)), Road::CopySlow);
        write(&copies, &device, 20, Seen::Miss, 200);
        assert_eq!(copies.road(Some(&device)), Road::Plain);
        write(&copies, &device, 1, Seen::Miss, 40);
        assert_eq!(copies.road(Some(&device)), Road::Plain);
        write(&copies, &device, 1, Seen::Miss, 40);
        assert_eq!(copies.road(Some(&device)), Road::CopyBlind);
        // One is forgiven after a few.
        write(&copies, &device, 12, Seen::Miss, 40);
        write(&copies, &device, 1, Seen::Miss, 1_900);
        assert_eq!(copies.road(Some(&device)), Road::CopyBlind);
    }

    #[test]
    fn after_a_long_one_nobody_on_its_device_polls_one_for_a_while() {
        let (copies, device, other) = (Copies::default(), Device::default(), Copies::default());
        for copies in [&copies, &other] {
            write(copies, &device, 64, Seen::Refused, 5);
        }
        write(&copies, &device, 1, Seen::Refused, 20_000);
        // Short ones of the pool do not bring them back.
        write(&copies, &device, 100, Seen::Refused, 5);
        let at = |copies: &Copies, ms| copies.road_at(Some(&device), || ms);
        for copies in [&copies, &other, &Copies::refusing()] {
            assert_eq!(at(copies, 319), Road::Plain);
        }
        for copies in [&copies, &other, &Copies::refusing()] {
            assert_eq!(at(copies, 320), Road::CopyBlind);
            assert_eq!(at(copies, 0), Road::CopyBlind, "it is over");
        }
        let long = Seen::Pooled {
            ns: 3_000_000,
            bytes: BYTES,
        };
        copies.note_at(long, Some(&device), || 1000);
        assert_eq!(at(&other, 1047), Road::Plain, "the pool has met it again");
        // Of what is large not all that takes long is a wait.
        let large = Seen::Took {
            ns: 3_000_000,
            bytes: 3 << 20,
        };
        copies.note_at(large, Some(&device), || 2000);
        assert_eq!(at(&other, 2000), Road::CopyBlind);
    }

    #[test]
    fn a_new_file_goes_by_what_others_on_its_device_have_shown() {
        let device = Device::default();
        write(&Copies::default(), &device, 1, Seen::Miss, 200);
        let new = Copies::default();
        assert_eq!(new.road(Some(&device)), Road::CopySlow);
        assert_eq!(new.road(Some(&Device::default())), Road::Copy);
        assert_eq!(new.road(None), Road::Copy);
        // One that need not wait says nothing of those that would.
        write(&new, &device, 1, Seen::Hit, 5);
        assert_eq!(new.road(Some(&device)), Road::CopySlow);
        write(&Copies::default(), &device, 1, Seen::Miss, 5);
        write(&Copies::default(), &device, 1, Seen::Miss, 5);
        assert_eq!(new.road(Some(&device)), Road::Copy);
    }

    #[test]
    fn a_few_files_that_cannot_be_asked_speak_for_others() {
        let device = Device::default();
        assert!(!device.refuses_copies());
        for _ in 0..4 {
            assert_eq!(write(&Copies::default(), &device, 9, Seen::Refused, 5), 1);
        }
        assert!(device.refuses_copies() && !device.refuses());
        assert_eq!(Copies::refusing().road(Some(&device)), Road::CopyBlind);
        assert_eq!(Copies::refusing().takes_nowait(), Some(false));
        write(&Copies::default(), &device, 1, Seen::Hit, 5);
        assert!(!device.refuses_copies());
    }

    #[test]
    fn what_only_lost_its_processor_says_nothing() {
        let (copies, device) = (Copies::default(), Device::default());
        copies.note(Seen::Miss, Some(&device));
        copies.note(Seen::Miss, Some(&device));
        copies.note(Seen::Preempted, Some(&device));
        assert_eq!(copies.road(Some(&device)), Road::CopyBlind);
        copies.note(Seen::Preempted, Some(&device));
        assert_eq!(copies.road(Some(&device)), Road::Copy);
    }
}
