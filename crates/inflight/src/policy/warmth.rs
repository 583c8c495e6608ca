//! How the reads of a file were served last, and the road of the next one.

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, Ordering};

use super::is_fast;
use crate::op::{Road, Seen};

/// How the reads of a file were served last. Direct writes of one that cannot be asked go with
/// them; of the others there are [`DirectWrites`](super::DirectWrites), and
/// [`Copies`](super::Copies) through the page cache.
///
/// A plain call is the fastest way to what the page cache has (a ring takes 1.3 times as long
/// for 4 KiB here, `RWF_NOWAIT` 1.1 times), and the slowest way to what it has not, because the
/// device then works on one request at a time. So reads start with `RWF_NOWAIT`, which tells hits
/// from misses, and change to the cheaper ways that cannot tell once the answer is always the
/// same, with a sample to notice when it changes.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    /// Whether the file takes `RWF_NOWAIT`: see [`UNKNOWN`], [`TAKEN`], [`REFUSED`], [`MEMORY`].
    nowait: AtomicU8,
    /// Hits in a row, or misses in a row below zero. Of a file that refuses `RWF_NOWAIT`: fast
    /// calls since the last slow one; below zero, how many have yet to be fast.
    streak: AtomicI32,
    /// How often hits were followed by a miss, at most [`WARY_MAX`].
    wary: AtomicU8,
    /// Which share of those that were asked the page cache did not have, in 65,536ths: a running
    /// mean of about [`MEAN_OF`] of them. Of a file that refuses `RWF_NOWAIT`: of those that were
    /// timed, which share was slow.
    misses: AtomicU16,
}

pub(super) const UNKNOWN: u8 = 0;
pub(super) const TAKEN: u8 = 1;
pub(super) const REFUSED: u8 = 2;
/// It does, and is direct, on a device that is memory: whoever asks does the copying.
const MEMORY: u8 = 3;

/// A direct read that takes less, and half a nanosecond for each byte, has met no device: the
/// fastest ones answer in about 10 us. Memory with a file system takes 3 to 5 us for 4 KiB here.
pub(super) const MEMORY_NS: u64 = 4_000;
/// A device may have moved more as fast as memory.
pub(crate) const ASKED_MAX_BYTES: usize = 8 << 10;
/// The first read of a file also finds out where its blocks are; if it takes no longer than this,
/// up to [`ASKED_MAX`] are asked.
pub(super) const ASK_AGAIN_NS: u64 = 30_000;
pub(super) const ASKED_MAX: i32 = 4;

/// After so many hits in a row the next read is taken for a hit. A single miss costs a thousand
/// times what is saved by not asking, so after a miss behind [`MIXED_FROM`] hits or more it takes
/// eight times as many, up to [`WARY_MAX`] times.
const WARM_AT: i32 = 64;
const MIXED_FROM: i32 = 8;
const WARY_MAX: u8 = 2;
/// After so many in a row that is forgotten.
const WARM_MAX: i32 = 8192;
/// After so many misses in a row the next read is taken for a miss.
const COLD_AT: i32 = -32;
/// With this share of misses it may be better not to ask each time (`policy/misses.rs`); and where
/// nobody can ask, not to make calls where others wait for them: most are fast, but the device has
/// one of the slow ones at a time.
const MIXED_FROM_SHARE: u16 = u16::MAX / 8;
const MEAN_OF: u16 = 64;
/// After a slow call, so many by the pool have to be fast before one is made in a poll again.
pub(super) const FAST_AGAIN: i32 = 2;
/// After so many fast calls in a row a slow one is forgiven: it may be the scheduler that took the
/// thread off its processor. The next ones are watched
/// ([`WATCHED_CALLS`](super::WATCHED_CALLS)), so that it is known.
pub(super) const FORGIVEN_AT: i32 = 8;

/// Fast calls in a row, or below zero how many of the pool have yet to be fast, after one more.
#[inline]
pub(super) fn streak_after(streak: i32, is_fast: bool, by_pool: bool) -> i32 {
    match (is_fast, by_pool) {
        (true, false) => (streak.max(0) + 1).min(FORGIVEN_AT),
        (true, true) => (streak + 1).min(FORGIVEN_AT),
        (false, _) if streak >= FORGIVEN_AT => 0,
        (false, _) => -FAST_AGAIN,
    }
}

impl Warmth {
    #[inline(always)]
    pub(super) fn road(&self, direct: bool) -> Road {
        let streak = self.streak.load(Ordering::Relaxed);
        match self.nowait() {
            UNKNOWN if direct => Road::Ask,
            UNKNOWN => Road::First,
            MEMORY if direct => Road::Memory,
            TAKEN if direct => Road::Device,
            TAKEN if streak >= self.warm_at() => Road::Warm,
            TAKEN if streak <= COLD_AT => Road::Cold,
            TAKEN if self.misses_many() => Road::Mixed,
            TAKEN => Road::CacheFirst,
            _ if streak >= 0 => Road::Blind,
            _ => Road::Slow,
        }
    }

    #[inline(always)]
    fn misses_many(&self) -> bool {
        self.misses.load(Ordering::Relaxed) >= MIXED_FROM_SHARE
    }

    /// Hits in a row after which the next read is taken for a hit.
    #[inline(always)]
    fn warm_at(&self) -> i32 {
        WARM_AT << (3 * self.wary.load(Ordering::Relaxed))
    }

    /// Whether the file takes `RWF_NOWAIT`: [`UNKNOWN`], [`TAKEN`], [`REFUSED`] or [`MEMORY`].
    #[inline(always)]
    pub(super) fn nowait(&self) -> u8 {
        self.nowait.load(Ordering::Relaxed)
    }

    /// Whether the file is taken to refuse `RWF_NOWAIT`.
    pub(super) fn refuses(&self) -> bool {
        self.nowait() == REFUSED
    }

    /// Of such a file.
    pub(super) fn refusing() -> Self {
        Self {
            nowait: AtomicU8::new(REFUSED),
            ..Self::default()
        }
    }

    /// Whether another hit shows nothing that is not known.
    #[inline]
    pub(super) fn expects_hits(&self) -> bool {
        self.streak.load(Ordering::Relaxed) == WARM_MAX
            && self.nowait() == TAKEN
            && self.wary.load(Ordering::Relaxed) == 0
    }

    /// Counts one that was asked, or timed.
    #[inline]
    fn count(&self, is_hit: bool) {
        let misses = self.misses.load(Ordering::Relaxed);
        let next = match is_hit {
            true => misses - misses / MEAN_OF,
            false => misses + (u16::MAX - misses) / MEAN_OF,
        };
        if next != misses {
            self.misses.store(next, Ordering::Relaxed);
        }
    }

    /// Learns from a transfer. Threads may learn at the same time; a lost update does no harm.
    #[inline]
    pub(super) fn note(&self, seen: Seen) -> Noted {
        let streak = self.streak.load(Ordering::Relaxed);
        let nowait = self.nowait();
        let refuses = nowait == REFUSED;
        let next = match seen {
            Seen::Hit => (streak.max(0) + 1).min(WARM_MAX),
            Seen::Asked { .. } => streak.max(0) + 1,
            Seen::Miss | Seen::Short => (streak.min(0) - 1).max(COLD_AT),
            Seen::Refused => 0,
            Seen::Took { ns, bytes } | Seen::Pooled { ns, bytes } if refuses => {
                let by_pool = matches!(seen, Seen::Pooled { .. });
                let is_fast = is_fast(ns, bytes);
                self.count(is_fast);
                // Some fast ones in a row say nothing where half of all are slow.
                let most = if self.misses_many() { -1 } else { FORGIVEN_AT };
                streak_after(streak, is_fast, by_pool).min(most)
            }
            Seen::Took { ns, bytes } | Seen::Pooled { ns, bytes } if nowait == MEMORY => {
                match is_fast(ns, bytes / 2) {
                    true => (streak + 1).min(FORGIVEN_AT),
                    false => streak - FORGIVEN_AT / 2,
                }
            }
            Seen::Took { ns, bytes } if is_fast(ns, bytes) && streak >= WARM_AT => {
                (streak + 1).min(WARM_MAX)
            }
            Seen::Took { ns, bytes } if is_fast(ns, bytes) => streak.max(0),
            Seen::Took { .. } | Seen::Waited { .. } => 0,
            Seen::Pooled { .. } | Seen::Preempted | Seen::Started { .. } => streak,
        };
        let known = match seen {
            Seen::Took { .. } | Seen::Pooled { .. } if nowait == MEMORY && next < 0 => TAKEN,
            Seen::Hit | Seen::Miss | Seen::Short | Seen::Asked { .. } if nowait == MEMORY => MEMORY,
            Seen::Asked { ns, bytes } if bytes <= ASKED_MAX_BYTES => match ns {
                _ if ns <= MEMORY_NS + bytes as u64 / 2 => MEMORY,
                _ if nowait == UNKNOWN && ns <= ASK_AGAIN_NS && next < ASKED_MAX => UNKNOWN,
                _ => TAKEN,
            },
            Seen::Hit | Seen::Miss | Seen::Short | Seen::Asked { .. } => TAKEN,
            Seen::Refused => REFUSED,
            Seen::Took { .. } | Seen::Waited { .. } | Seen::Pooled { .. } => nowait,
            Seen::Preempted | Seen::Started { .. } => nowait,
        };
        if matches!(seen, Seen::Hit | Seen::Miss | Seen::Short) {
            self.count(seen == Seen::Hit);
        }
        let wary = self.wary.load(Ordering::Relaxed);
        if seen == Seen::Miss && streak >= MIXED_FROM && wary < WARY_MAX {
            self.wary.store(wary + 1, Ordering::Relaxed);
        } else if next == WARM_MAX && wary > 0 {
            self.wary.store(0, Ordering::Relaxed);
        }
        // In the steady state nothing changes, and the cache line stays shared.
        if next != streak {
            self.streak.store(next, Ordering::Relaxed);
        }
        if known != nowait {
            self.nowait.store(known, Ordering::Relaxed);
            if nowait == UNKNOWN {
                let refuses = known == REFUSED;
                return Noted::First { refuses };
            }
        }
        match next < 0 && refuses {
            true => Noted::Slow,
            false => Noted::Nothing,
        }
    }
}

/// What a transfer of one file says of others.
pub(super) enum Noted {
    Nothing,
    /// It has shown whether the file can be asked.
    First {
        refuses: bool,
    },
    /// The file cannot be asked, and its calls have been slow.
    Slow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_can_ask_and_many_calls_are_slow_a_few_fast_ones_change_nothing() {
        let [fast, slow] = [1_500, 80_000].map(|ns| Seen::Pooled { ns, bytes: 4096 });
        for (slow_of, is_slow_for_good) in [(2, true), (4, true), (64, false)] {
            let reads = Warmth::refusing();
            let mut roads = Vec::new();
            for number in 0..4096 {
                reads.note(match number % slow_of {
                    0 => slow,
                    _ => fast,
                });
                roads.push(reads.road(false));
            }
            let lately = &roads[2048..];
            let is_slow = lately.iter().all(|road| *road == Road::Slow);
            assert_eq!(is_slow, is_slow_for_good, "one in {slow_of}");
            (0..256).for_each(|_| _ = reads.note(fast));
            assert_eq!(reads.road(false), Road::Blind, "one in {slow_of}, and fast");
        }
    }

    #[test]
    fn a_file_of_which_many_reads_miss_is_told_from_one_of_which_few_do() {
        for (missing, of, expected) in [
            (0, 1, Road::Warm),
            (1, 64, Road::CacheFirst),
            (1, 32, Road::CacheFirst),
            (1, 16, Road::CacheFirst),
            (1, 4, Road::Mixed),
            (9, 10, Road::Mixed),
            (1, 1, Road::Cold),
        ] {
            let reads = Warmth::default();
            for number in 0..4096 {
                reads.note(match number % of < missing {
                    true => Seen::Miss,
                    false => Seen::Hit,
                });
            }
            assert_eq!(reads.road(false), expected, "{missing} of {of}");
            (0..256).for_each(|_| _ = reads.note(Seen::Hit));
            assert_ne!(
                reads.road(false),
                Road::Mixed,
                "{missing} of {of}, and hits"
            );
        }
    }
}
