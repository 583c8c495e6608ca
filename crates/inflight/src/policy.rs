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

mod durable;
mod flush;
mod hand_over;
mod pairs;
mod spread;
mod step;
mod way;

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use crate::op::{Op, Road, Seen, Wishes};

pub use durable::Durably;
pub(crate) use durable::{Begun, Durables, Outcome};
pub(crate) use flush::{LOOP_FLUSH_MAX, can_sleep, gather_for, loop_flushes};
pub(crate) use hand_over::{AtOnce, CROWD, HandOver, LARGE_CROWD};
pub(crate) use spread::{Calls, Hands, Spread, weight};
pub(crate) use step::{Step, in_a_poll};
pub use way::Way;
pub(crate) use way::{explain, explain_none, explain_sync};

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

/// How the transfers of one kind on a file were served last: reads, or writes through the page
/// cache. Direct writes go with the reads.
///
/// A plain call is the fastest way to what the page cache has (a ring takes 1.3 times as long
/// for 4 KiB here, `RWF_NOWAIT` 1.1 times), and the slowest way to what it has not, because the
/// device then works on one request at a time. So reads start with `RWF_NOWAIT`, which tells hits
/// from misses, and change to the cheaper ways that cannot tell once the answer is always the
/// same, with a sample to notice when it changes.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    /// Whether the file takes `RWF_NOWAIT`: see [`UNKNOWN`], [`TAKEN`], [`REFUSED`].
    nowait: AtomicU8,
    /// Hits in a row, or misses in a row below zero. Of a file that refuses `RWF_NOWAIT`: fast
    /// calls since the last slow one; below zero, how many have yet to be fast.
    streak: AtomicI32,
}

const UNKNOWN: u8 = 0;
const TAKEN: u8 = 1;
const REFUSED: u8 = 2;

/// After so many hits in a row the next read is taken for a hit.
const WARM_AT: i32 = 64;
/// After so many misses in a row the next read is taken for a miss.
const COLD_AT: i32 = -32;
/// After a slow call, so many by the pool have to be fast before one is made in a poll again.
const FAST_AGAIN: i32 = 2;
/// After so many fast calls in a row a slow one is forgiven: it may be the scheduler that took the
/// thread off its processor. The next ones are watched ([`WATCHED_CALLS`]), so that it is known.
const FORGIVEN_AT: i32 = 8;

/// A plain call that takes longer waited for something: the fastest drives answer in 10 us, and a
/// copy moves more than a byte in a nanosecond.
const WAITED_NS: u64 = 10_000;

impl Warmth {
    #[inline(always)]
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

    /// The road of a write into the page cache.
    #[inline]
    fn copy_road(&self) -> Road {
        match self.nowait.load(Ordering::Relaxed) {
            REFUSED if self.streak.load(Ordering::Relaxed) >= 0 => Road::CopyBlind,
            REFUSED => Road::Plain,
            _ => Road::Copy,
        }
    }

    /// Learns from a transfer. Threads may learn at the same time; a lost update does no harm.
    #[inline]
    pub(crate) fn note(&self, seen: Seen) {
        let streak = self.streak.load(Ordering::Relaxed);
        let nowait = self.nowait.load(Ordering::Relaxed);
        let refuses = nowait == REFUSED;
        let next = match seen {
            Seen::Hit => (streak.max(0) + 1).min(WARM_AT),
            Seen::Miss => (streak.min(0) - 1).max(COLD_AT),
            Seen::Refused => 0,
            Seen::Took { ns, bytes } | Seen::Pooled { ns, bytes } if refuses => {
                match (is_fast(ns, bytes), seen) {
                    (true, Seen::Took { .. }) => (streak.max(0) + 1).min(FORGIVEN_AT),
                    (true, _) => (streak + 1).min(FORGIVEN_AT),
                    (false, _) if streak >= FORGIVEN_AT => 0,
                    (false, _) => -FAST_AGAIN,
                }
            }
            Seen::Took { ns, bytes } if is_fast(ns, bytes) => streak.max(0),
            Seen::Took { .. } => 0,
            Seen::Pooled { .. } | Seen::Preempted => streak,
        };
        let known = match seen {
            Seen::Hit | Seen::Miss => TAKEN,
            Seen::Refused => REFUSED,
            Seen::Took { .. } | Seen::Pooled { .. } | Seen::Preempted => nowait,
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

/// After a slow call, so many timed ones of the same thread are asked whether they gave up the
/// processor: to ask always would cost more than what is asked about.
pub(crate) const WATCHED_CALLS: u32 = 64;

/// Whether a plain call that took so long did not wait for anything.
#[inline]
pub(crate) fn is_fast(ns: u64, bytes: usize) -> bool {
    ns <= WAITED_NS + bytes as u64
}

/// What has been learned of a file by using it.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    reads: Warmth,
    /// Writes through the page cache.
    copies: Warmth,
}

impl Learned {
    /// What transfers of a kind have shown.
    fn of(&self, facts: Facts, is_write: bool) -> &Warmth {
        match is_write && !facts.direct {
            true => &self.copies,
            false => &self.reads,
        }
    }

    /// Whether such transfers are taken without waiting, as far as is known.
    pub(crate) fn takes_nowait(&self, facts: Facts, is_write: bool) -> Option<bool> {
        match self.of(facts, is_write).nowait.load(Ordering::Relaxed) {
            UNKNOWN => None,
            nowait => Some(nowait == TAKEN),
        }
    }

    /// Learns from a transfer.
    #[inline]
    pub(crate) fn note(&self, facts: Facts, is_write: bool, seen: Seen) {
        self.of(facts, is_write).note(seen);
    }
}

/// The road of one operation in a batch. `grows`: it writes beyond the end of the file.
#[inline(always)]
pub(crate) fn road(op: &Op, facts: Facts, learned: &Learned, grows: bool) -> Road {
    if !op.wishes().is_none() {
        return wished_road(op, facts);
    }
    match op {
        Op::ReadAt { .. } if facts.learns => learned.reads.road(facts.direct),
        // They do not learn, but what has been learned of a file that refuses counts for them.
        Op::ReadVectoredAt { .. } if facts.learns => match learned.reads.road(facts.direct) {
            road @ (Road::Blind | Road::Slow) => road,
            _ => Road::Backend,
        },
        Op::WriteAt { .. } | Op::WriteVectoredAt { .. } => write_road(facts, learned, grows),
        // What the kernel has in memory; a ring always hands it to a worker.
        Op::Metadata { .. } => Road::Now,
        Op::Nop
        | Op::ReadAt { .. }
        | Op::ReadVectoredAt { .. }
        | Op::Sync { .. }
        | Op::Allocate { .. }
        | Op::Truncate { .. } => Road::Backend,
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
        // As without wishes: in the ring each would have a flush of its own.
        (true, true) if !facts.direct => Road::Pool,
        (true, _) => Road::Backend,
        // It has been promised not to wait.
        (false, _) if wishes.has(Wishes::NO_WAIT) => Road::Now,
        (false, true) => Road::Plain,
        (false, false) => Road::Backend,
    }
}

/// The road of a write.
#[inline]
fn write_road(facts: Facts, learned: &Learned, grows: bool) -> Road {
    match (facts.direct, facts.durable_writes) {
        // A ring hands them to workers, which do them one after the other for each file, each with
        // a flush of its own; threads share the flushes.
        (false, true) => Road::Pool,
        (true, true) if grows => Road::Pool,
        // They hold the file to themselves, so nobody else can do one at the same time.
        (true, false) if grows => Road::Plain,
        (true, _) => match learned.reads.road(true) {
            // Nothing is known of single ones by which a ring would be better.
            Road::Device => Road::Backend,
            road => road,
        },
        // A write into the page cache is a copy. A ring hands it to a kernel worker on ext4,
        // one after the other for each file.
        (false, false) if facts.learns => learned.copies.copy_road(),
        (false, false) => Road::Plain,
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
    use super::step::POLL_MAX_BYTES;
    use super::*;
    use crate::op::Span;

    const BUFFERED: Facts = Facts {
        direct: false,
        durable_writes: false,
        limit_bytes: 1,
        learns: true,
    };
    const DIRECT: Facts = Facts {
        direct: true,
        ..BUFFERED
    };
    const FAST: Seen = Seen::Took {
        ns: 900,
        bytes: 4096,
    };
    const SLOW: Seen = Seen::Took {
        ns: 90_000,
        bytes: 4096,
    };
    const FAST_IN_POOL: Seen = Seen::Pooled {
        ns: 900,
        bytes: 4096,
    };
    const SLOW_IN_POOL: Seen = Seen::Pooled {
        ns: 90_000,
        bytes: 4096,
    };

    fn durable(facts: Facts) -> Facts {
        Facts {
            durable_writes: true,
            ..facts
        }
    }

    fn write() -> Op {
        let span = Span {
            start: std::ptr::null_mut(),
            len: 0,
            arena: None,
        };
        Op::WriteAt {
            fd: 0,
            span,
            offset: 0,
            wishes: Wishes::NONE,
        }
    }

    fn learned(facts: Facts, is_write: bool, seen: &[(Seen, usize)]) -> Learned {
        let learned = Learned::default();
        for (seen, times) in seen {
            (0..*times).for_each(|_| learned.note(facts, is_write, *seen));
        }
        learned
    }

    #[test]
    fn metadata_is_asked_for_at_once() {
        let metadata = Op::Metadata {
            fd: 0,
            out: std::ptr::null_mut(),
        };
        let road = road(&metadata, DIRECT, &Learned::default(), false);
        assert_eq!(road, Road::Now);
    }

    #[test]
    fn lists_of_buffers_go_by_the_ring_unless_it_would_need_a_worker() {
        let read = Op::ReadVectoredAt {
            fd: 0,
            iovecs: crate::op::Iovecs {
                first: std::ptr::null_mut(),
                count: 0,
            },
            offset: 0,
            wishes: Wishes::NONE,
        };
        let cases: [(&[(Seen, usize)], Road); 4] = [
            (&[], Road::Backend),
            (&[(Seen::Hit, 100)], Road::Backend),
            (&[(Seen::Refused, 1)], Road::Blind),
            (&[(Seen::Refused, 1), (SLOW, 1)], Road::Slow),
        ];
        for (seen, expected) in cases {
            let learned = learned(BUFFERED, false, seen);
            assert_eq!(road(&read, BUFFERED, &learned, false), expected, "{seen:?}");
        }
    }

    #[test]
    fn what_was_preempted_says_nothing_of_the_file() {
        for (seen, expected) in [
            ((Seen::Hit, 100), Road::Warm),
            ((Seen::Miss, 100), Road::Cold),
            ((Seen::Refused, 1), Road::Blind),
        ] {
            let learned = learned(BUFFERED, false, &[seen, (Seen::Preempted, 100)]);
            assert_eq!(learned.reads.road(false), expected, "{seen:?}");
        }
    }

    #[test]
    fn copies_are_plain_calls_and_what_may_wait_is_for_the_pool() {
        let cases: [(&[(Seen, usize)], Road); 10] = [
            (&[], Road::Copy),
            (&[(Seen::Hit, 100)], Road::Copy),
            (&[(Seen::Miss, 100)], Road::Copy),
            (&[(Seen::Refused, 1), (FAST, 100)], Road::CopyBlind),
            (&[(Seen::Refused, 1), (SLOW, 1)], Road::Plain),
            (&[(Seen::Refused, 1), (FAST, 7), (SLOW, 1)], Road::Plain),
            (&[(Seen::Refused, 1), (FAST, 8), (SLOW, 1)], Road::CopyBlind),
            (&[(Seen::Refused, 1), (FAST, 8), (SLOW, 2)], Road::Plain),
            (
                &[(Seen::Refused, 1), (SLOW, 1), (FAST_IN_POOL, 1)],
                Road::Plain,
            ),
            (
                &[(Seen::Refused, 1), (SLOW, 1), (FAST_IN_POOL, 2)],
                Road::CopyBlind,
            ),
        ];
        for (seen, expected) in cases {
            let learned = learned(BUFFERED, true, seen);
            let road = road(&write(), BUFFERED, &learned, true);
            assert_eq!(road, expected, "after {seen:?}");
        }
        // What reads have shown says nothing of writes.
        let learned = learned(BUFFERED, false, &[(Seen::Refused, 1)]);
        assert_eq!(road(&write(), BUFFERED, &learned, false), Road::Copy);
        let road = road(&write(), BUFFERED.buffered(), &learned, false);
        assert_eq!(road, Road::Plain);
    }

    #[test]
    fn durable_copies_share_their_flushes_in_the_pool() {
        let road = road(&write(), durable(BUFFERED), &Learned::default(), false);
        assert_eq!(road, Road::Pool);
    }

    #[test]
    fn direct_writes_take_the_ring_where_it_need_not_wait_for_a_worker() {
        let taken = learned(DIRECT, false, &[(Seen::Hit, 1)]);
        let cases = [
            (DIRECT, false, Road::Backend),
            (DIRECT, true, Road::Plain),
            (durable(DIRECT), false, Road::Backend),
            (durable(DIRECT), true, Road::Pool),
        ];
        for (facts, grows, expected) in cases {
            let road = road(&write(), facts, &taken, grows);
            assert_eq!(road, expected, "{facts:?}, grows: {grows}");
        }
        let refused = learned(DIRECT, true, &[(Seen::Refused, 1)]);
        assert_eq!(road(&write(), DIRECT, &refused, false), Road::Blind);
        let road = road(&write(), DIRECT, &Learned::default(), false);
        assert_eq!(road, Road::Ask);
    }

    fn after(seen: &[(Seen, usize)]) -> Warmth {
        learned(BUFFERED, false, seen).reads
    }

    #[test]
    fn reads_follow_what_was_seen() {
        let cases: [(&[(Seen, usize)], Road); 12] = [
            (&[], Road::CacheFirst),
            (&[(Seen::Hit, 63)], Road::CacheFirst),
            (&[(Seen::Hit, 64)], Road::Warm),
            (&[(Seen::Hit, 64), (FAST, 5)], Road::Warm),
            (&[(Seen::Hit, 64), (SLOW, 1)], Road::CacheFirst),
            (&[(Seen::Hit, 64), (Seen::Miss, 32)], Road::Cold),
            (&[(Seen::Miss, 32), (Seen::Hit, 1)], Road::CacheFirst),
            (&[(Seen::Miss, 32), (FAST_IN_POOL, 20)], Road::Cold),
            (&[(Seen::Refused, 1), (FAST, 1)], Road::Blind),
            (&[(Seen::Refused, 1), (SLOW, 1)], Road::Slow),
            (&[(Seen::Refused, 1), (SLOW, 1), (FAST, 1)], Road::Blind),
            (
                &[
                    (Seen::Refused, 1),
                    (SLOW, 1),
                    (FAST_IN_POOL, 1),
                    (SLOW_IN_POOL, 1),
                ],
                Road::Slow,
            ),
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
    fn wishes_are_granted_where_nobody_guesses() {
        let wished = |wishes| {
            let Op::WriteAt {
                fd, span, offset, ..
            } = write()
            else {
                unreachable!("it is a write");
            };
            Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            }
        };
        let cases = [
            (Wishes::DONT_CACHE, Road::Plain),
            (Wishes::NO_WAIT, Road::Now),
            (Wishes::DSYNC, Road::Pool),
            (Wishes::THEN_SYNC.with(Wishes::NO_WAIT), Road::Pool),
        ];
        let learned = Learned::default();
        for (wishes, expected) in cases {
            let road = |facts| road(&wished(wishes), facts, &learned, false);
            assert_eq!(road(BUFFERED), expected, "{wishes:?}");
            assert_eq!(road(DIRECT), Road::Backend, "{wishes:?}");
            assert_eq!(road(durable(BUFFERED)), Road::Pool, "{wishes:?}");
        }
    }

    #[test]
    fn who_polls_does_not_wait() {
        let step = |road, bytes| in_a_poll(road, bytes, || true);
        let try_then = |then_pool| Step::Try { then_pool };
        let cases = [
            (Road::Now, Step::Call, Step::Call),
            (Road::Copy, try_then(true), Step::Pool),
            (Road::CopyBlind, Step::TimedCall, Step::Pool),
            (Road::Blind, Step::TimedCall, Step::Pool),
            (Road::Plain, Step::Pool, Step::Pool),
            (Road::Pool, Step::Pool, Step::Pool),
            (Road::Slow, Step::Pool, Step::Pool),
            (Road::Warm, try_then(false), Step::Backend),
            (Road::CacheFirst, try_then(false), Step::Backend),
            (Road::Ask, try_then(false), Step::Backend),
            (Road::Cold, try_then(false), Step::Backend),
            (Road::Backend, Step::Backend, Step::Backend),
            (Road::Device, Step::Backend, Step::Backend),
        ];
        for (road, small, large) in cases {
            assert_eq!(step(road, 4096), small, "{road:?}");
            assert_eq!(step(road, POLL_MAX_BYTES + 1), large, "{road:?}");
        }
        assert_eq!(in_a_poll(Road::Cold, 1, || false), Step::Backend);
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
