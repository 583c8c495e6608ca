//! Which road an operation takes; the only place where that is decided.
//!
//! An operation alone is a plain system call. In a batch:
//!
//! - a write into the page cache is a plain call: it is a copy;
//! - a read goes where the last ones of the same file were served best: by a plain call when they
//!   were in the page cache, by the backend when they were not ([`Warmth`]);
//! - everything else goes through the backend.
//!
//! The figures behind the rules are in `docs/design/roads.md`.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::Duration;

use crate::op::{Op, Road, Seen, Wishes};

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Opened past the page cache.
    pub(crate) direct: bool,
    /// Opened so that each write waits for the device (`O_DSYNC`, `O_SYNC`).
    pub(crate) durable_writes: bool,
    /// Largest transfer that the device takes at once, in bytes.
    pub(crate) limit_bytes: u32,
    /// Whether reads tell how the next ones are served best.
    pub(crate) learns: bool,
}

impl Facts {
    /// The same file by way of the page cache, for the few requests that do not fit direct I/O:
    /// how those are served says nothing of the others.
    pub(crate) fn buffered(self) -> Self {
        Self {
            direct: false,
            limit_bytes: limit_bytes(false, None),
            learns: false,
            ..self
        }
    }
}

/// One operation in so many is looked at, where looking at all of them would cost too much.
pub(crate) const SAMPLE_EVERY: u32 = 16;

/// How the last reads of a file were served, kept with the file.
///
/// A plain `pread` is the fastest way to what the page cache has (a ring takes 1.3 times as long
/// for 4 KiB here, `RWF_NOWAIT` 1.1 times), and the slowest way to what it has not, because the
/// device then works on one request at a time. So reads start with `RWF_NOWAIT`, which tells hits
/// from misses, and change to the cheaper ways that cannot tell once the answer is always the
/// same, with a sample to notice when it changes.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    /// Whether the file takes `RWF_NOWAIT`: see [`UNKNOWN`], [`TAKEN`], [`REFUSED`].
    nowait: AtomicU8,
    /// Hits in a row, or misses in a row below zero.
    streak: AtomicI32,
}

const UNKNOWN: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;

/// After so many hits in a row the next read is taken for a hit.
const WARM_AT: i32 = 64;
/// After so many misses in a row the next read is taken for a miss.
const COLD_AT: i32 = -32;

/// A plain call that takes longer waited for something: the fastest drives answer in 10 us, and a
/// copy moves more than a byte in a nanosecond.
const WAITED_NS: u64 = 10_000;

impl Warmth {
    #[inline]
    fn road(&self, direct: bool) -> Road {
        let streak = self.streak.load(Ordering::Relaxed);
        match self.nowait.load(Ordering::Relaxed) {
            UNKNOWN if direct => Road::Ask,
            UNKNOWN => Road::CacheFirst,
            TAKEN if direct => Road::Device,
            TAKEN if streak >= WARM_AT => Road::Warm,
            TAKEN if streak <= COLD_AT => Road::Cold,
            TAKEN => Road::CacheFirst,
            _ if streak >= 0 => Road::Blind,
            _ => Road::Slow,
        }
    }

    /// Learns from a read. Threads may learn at the same time; a lost update does no harm.
    #[inline]
    pub(crate) fn note(&self, seen: Seen) {
        let streak = self.streak.load(Ordering::Relaxed);
        let nowait = self.nowait.load(Ordering::Relaxed);
        let next = match seen {
            Seen::Hit => (streak.max(0) + 1).min(WARM_AT),
            Seen::Miss => (streak.min(0) - 1).max(COLD_AT),
            Seen::Refused => 0,
            Seen::Took { ns, bytes } if ns <= WAITED_NS + bytes as u64 => {
                if streak < 0 {
                    0
                } else {
                    streak
                }
            }
            Seen::Took { .. } if nowait == REFUSED => -1,
            Seen::Took { .. } => 0,
        };
        let known = match seen {
            Seen::Hit | Seen::Miss => TAKEN,
            Seen::Refused => REFUSED,
            Seen::Took { .. } => nowait,
        };
        // In the steady state nothing changes, and the cache line stays shared.
        if next != streak {
            self.streak.store(next, Ordering::Relaxed);
        }
        if known != nowait {
            self.nowait.store(known, Ordering::Relaxed);
        }
    }
}

/// The road of one operation in a batch.
#[inline]
pub(crate) fn road(op: &Op, facts: Facts, warmth: &Warmth) -> Road {
    if !op.wishes().is_none() {
        return wished_road(op, facts);
    }
    match op {
        Op::ReadAt { .. } if facts.learns => warmth.road(facts.direct),
        // A write into the page cache is a copy. A ring hands it to a kernel worker on ext4,
        // one after the other for each file, at 24 times the cost.
        Op::WriteAt { .. } | Op::WriteVectoredAt { .. }
            if !facts.direct && !facts.durable_writes =>
        {
            Road::Plain
        }
        // What the kernel has in memory; a ring always hands it to a worker.
        Op::Metadata { .. } => Road::Now,
        Op::Nop
        | Op::ReadAt { .. }
        | Op::WriteAt { .. }
        | Op::ReadVectoredAt { .. }
        | Op::WriteVectoredAt { .. }
        | Op::Sync { .. }
        | Op::Allocate { .. } => Road::Backend,
    }
}

/// The road of a transfer with wishes. None is a guess at what the page cache has: that would read
/// without them, and teach what is not so of the others.
#[cold]
fn wished_road(op: &Op, facts: Facts) -> Road {
    let wishes = op.wishes();
    let is_write = matches!(op, Op::WriteAt { .. } | Op::WriteVectoredAt { .. });
    let reaches_device = facts.direct
        || facts.durable_writes && is_write
        || wishes.has(Wishes::DSYNC)
        || wishes.has(Wishes::THEN_SYNC);
    match (reaches_device, is_write) {
        (true, _) => Road::Backend,
        // It has been promised not to wait.
        (false, _) if wishes.has(Wishes::NO_WAIT) => Road::Now,
        (false, true) => Road::Plain,
        (false, false) => Road::Backend,
    }
}

/// How many times the queue depth a batch has to hold for its files to be made known to the ring:
/// that costs two system calls, and saves 2 to 5 % of the CPU of each operation.
pub(crate) const FIXED_FILES_FROM: usize = 8;

/// How many completions a host waits for in one enter, with so many operations in flight.
///
/// With few in flight each one counts: the device must not run dry. With many, waking for
/// several at a time takes up to a fifth off the CPU per operation; more than 8 at a time save no
/// more, and leave a fast device waiting (`docs/design/roads.md`).
#[inline]
pub(crate) fn wait_for(in_flight: u32) -> u32 {
    if in_flight < 16 {
        1
    } else {
        (in_flight / 4).min(8)
    }
}

/// How long a flush is put off for those who are expected to ask for it too, when the last one has
/// taken so long; `None` where waiting would not pay.
///
/// Whoever comes too late waits for almost two flushes, so a quarter of one is not much to wait for
/// them; and nobody waits for those who did not come the last time. A thread cannot sleep for less
/// than about 50 us (`PR_SET_TIMERSLACK`, prctl(2)).
pub(crate) fn gather_for(flush: Duration) -> Option<Duration> {
    let at_most = (flush / 4).min(GATHER_MAX);
    (at_most >= GATHER_MIN).then_some(at_most)
}

const GATHER_MIN: Duration = Duration::from_micros(50);
const GATHER_MAX: Duration = Duration::from_millis(5);

/// Largest direct transfer handed over at once. A bio has 256 places, one for each page that does
/// not follow the one before (`BIO_MAX_VECS`, `include/linux/bio.h`); what takes more than one bio
/// is refused inline and goes to a kernel worker.
pub(crate) const DIRECT_LIMIT_BYTES: u32 = 1 << 20;

/// The largest transfer for a file, given what its device takes at once, if that is known.
pub(crate) fn limit_bytes(direct: bool, device_bytes: Option<u32>) -> u32 {
    if direct {
        // Parts after the first have to be aligned, whatever the device's limit is.
        let limit = device_bytes.unwrap_or(DIRECT_LIMIT_BYTES);
        (limit / 4096 * 4096).clamp(4096, DIRECT_LIMIT_BYTES)
    } else {
        crate::op::TRANSFER_MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Span;

    #[test]
    fn buffered_writes_and_metadata_stay_on_the_caller() {
        let buffered = Facts {
            direct: false,
            durable_writes: false,
            limit_bytes: 1,
            learns: true,
        };
        let direct = Facts {
            direct: true,
            ..buffered
        };
        let durable = Facts {
            durable_writes: true,
            ..buffered
        };
        let span = Span {
            start: std::ptr::null_mut(),
            len: 0,
            arena: None,
        };
        let write = Op::WriteAt {
            fd: 0,
            span,
            offset: 0,
            wishes: Wishes::NONE,
        };
        let read = Op::ReadAt {
            fd: 0,
            span,
            offset: 0,
            wishes: Wishes::NONE,
        };
        let metadata = Op::Metadata {
            fd: 0,
            out: std::ptr::null_mut(),
        };
        let warmth = Warmth::default();
        assert_eq!(road(&write, buffered, &warmth), Road::Plain);
        assert_eq!(road(&write, direct, &warmth), Road::Backend);
        assert_eq!(road(&write, durable, &warmth), Road::Backend);
        assert_eq!(road(&read, buffered, &warmth), Road::CacheFirst);
        assert_eq!(road(&metadata, direct, &warmth), Road::Now);
        let wished = |wishes| Op::WriteAt {
            fd: 0,
            span,
            offset: 0,
            wishes,
        };
        let cases = [
            (Wishes::DONT_CACHE, Road::Plain),
            (Wishes::NO_WAIT, Road::Now),
            (Wishes::DSYNC, Road::Backend),
            (Wishes::THEN_SYNC.with(Wishes::NO_WAIT), Road::Backend),
        ];
        for (wishes, expected) in cases {
            let op = wished(wishes);
            assert_eq!(road(&op, buffered, &warmth), expected, "{wishes:?}");
            assert_eq!(road(&op, direct, &warmth), Road::Backend, "{wishes:?}");
            assert_eq!(road(&op, durable, &warmth), Road::Backend, "{wishes:?}");
        }
    }

    fn after(seen: &[(Seen, usize)]) -> Warmth {
        let warmth = Warmth::default();
        for (seen, times) in seen {
            (0..*times).for_each(|_| warmth.note(*seen));
        }
        warmth
    }

    #[test]
    fn reads_follow_what_was_seen() {
        let fast = Seen::Took {
            ns: 900,
            bytes: 4096,
        };
        let slow = Seen::Took {
            ns: 90_000,
            bytes: 4096,
        };
        let cases: [(&[(Seen, usize)], Road); 9] = [
            (&[], Road::CacheFirst),
            (&[(Seen::Hit, 63)], Road::CacheFirst),
            (&[(Seen::Hit, 64)], Road::Warm),
            (&[(Seen::Hit, 64), (fast, 5)], Road::Warm),
            (&[(Seen::Hit, 64), (slow, 1)], Road::CacheFirst),
            (&[(Seen::Hit, 64), (Seen::Miss, 32)], Road::Cold),
            (&[(Seen::Miss, 32), (Seen::Hit, 1)], Road::CacheFirst),
            (&[(Seen::Refused, 1), (fast, 1)], Road::Blind),
            (&[(Seen::Refused, 1), (slow, 1)], Road::Slow),
        ];
        for (seen, expected) in cases {
            assert_eq!(after(seen).road(false), expected, "after {seen:?}");
        }
    }

    #[test]
    fn direct_reads_ask_once_and_then_take_the_ring() {
        assert_eq!(after(&[]).road(true), Road::Ask);
        assert_eq!(after(&[(Seen::Hit, 100)]).road(true), Road::Device);
        assert_eq!(after(&[(Seen::Miss, 1)]).road(true), Road::Device);
        assert_eq!(after(&[(Seen::Refused, 1)]).road(true), Road::Blind);
    }

    #[test]
    fn few_in_flight_are_waited_for_one_at_a_time() {
        assert_eq!([0, 1, 15].map(wait_for), [1, 1, 1]);
        assert!(wait_for(128) > 1 && wait_for(128) < 128);
    }

    #[test]
    fn direct_transfers_are_split_at_what_the_device_takes() {
        assert_eq!(limit_bytes(true, Some(131_072)), 131_072);
        assert_eq!(limit_bytes(true, Some(127 * 1024)), 124 * 1024);
        assert_eq!(limit_bytes(true, Some(1 << 30)), DIRECT_LIMIT_BYTES);
        assert_eq!(limit_bytes(true, None), DIRECT_LIMIT_BYTES);
        assert!(limit_bytes(false, Some(4096)) > 1 << 30);
    }
}
