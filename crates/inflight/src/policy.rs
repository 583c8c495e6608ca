//! Which road an operation takes; the only place where that is decided.
//!
//! Start at [`road`] and what it asks: `wished_road` where there are wishes for a transfer,
//! `write_road` for writes. The roads themselves are in `op/road.rs`, what a future does when it is
//! polled in [`step`], and the figures behind the rules in `docs/design/roads.md`.

mod away;
mod busy_poll;
mod calls;
mod copies;
mod device;
mod direct_writes;
mod durable;
mod flush;
mod hand_over;
mod held_up;
mod misses;
mod pairs;
mod samples;
mod short;
mod spread;
mod step;
mod trials;
mod warmth;
mod way;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::op::{ASIDE_BYTES, Op, Road, Seen, Span, Wishes};
use copies::Copies;
use direct_writes::{DirectWrites, Shown};
use warmth::{
    ASK_AGAIN_NS, ASKED_MAX, FAST_AGAIN, FORGIVEN_AT, MEMORY_NS, Noted, REFUSED, TAKEN, UNKNOWN,
    Warmth, streak_after,
};

pub(crate) use away::{Away, LOOP_WAIT_MAX, loop_flushes, loop_waits, loop_waits_for};
pub(crate) use busy_poll::{BusyPollAlone, BusyPolls, LOOK_MAX, Moment, Tried};
pub(crate) use calls::{Calls, LATE};
pub(crate) use device::{Device, Devices};
pub use durable::Durably;
pub(crate) use durable::{Begun, Durables, Outcome};
pub(crate) use flush::{NOTHING_MAX, can_sleep, gather_for, is_little, is_short_flush};
pub(crate) use hand_over::{AtOnce, CROWD, LARGE_CROWD};
pub(crate) use held_up::HeldUp;
pub(crate) use misses::{GIVEN_MAX_BYTES, MISSES_CROWD, Misses};
pub(crate) use samples::{COLD_SAMPLE_EVERY, SAMPLE_EVERY, Samples};
pub(crate) use short::{SHORT_CALLS, SHORT_MAX, Short};
pub(crate) use spread::{Hands, Spread, weight};
pub(crate) use step::{Else, POLL_MAX_BYTES, Step, in_a_poll, in_time};
pub(crate) use trials::Trials;
pub(crate) use warmth::ASKED_MAX_BYTES;
pub use way::Way;
pub(crate) use way::{explain, explain_none, explain_refused, explain_sync, explain_unaligned};

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Opened past the page cache.
    pub(crate) direct: bool,
    /// Opened so that each write waits for the device (`O_DSYNC`, `O_SYNC`).
    pub(crate) durable_writes: bool,
    /// Largest transfer that the device takes at once, in bytes.
    pub(crate) limit_bytes: u32,
    /// Another program or machine serves it, so who makes a call waits for that; or it is a file of
    /// the kernel's own or of a character device, which may wait for anything.
    pub(crate) served: bool,
    /// Of a direct file, as the few requests see it that do not fit direct I/O.
    pub(crate) unaligned: bool,
}

impl Facts {
    /// The same file by way of the page cache, for requests that do not fit direct I/O: how those
    /// are served says nothing of the others.
    pub(crate) fn unaligned(self) -> Self {
        Self {
            direct: false,
            limit_bytes: limit_bytes(false, None, 0),
            unaligned: true,
            ..self
        }
    }
}

/// After a slow call, so many timed ones of the same thread are asked whether they gave up the
/// processor: to ask always would cost more than what is asked about.
pub(crate) const WATCHED_CALLS: u32 = 64;
/// After a long one, more: where writers are throttled, one in some hundreds waits.
pub(crate) const LONG_NS: u64 = 2_000_000;
pub(crate) const WATCHED_AFTER_LONG: u32 = 512;

/// A plain call that takes longer waited for something: the fastest drives answer in 10 us, and a
/// copy moves more than a byte in a nanosecond.
const WAITED_NS: u64 = 10_000;

/// Whether a plain call that took so long did not wait for anything.
#[inline]
pub(crate) fn is_fast(ns: u64, bytes: usize) -> bool {
    ns <= WAITED_NS + bytes as u64
}

/// What has been learned of a file by using it.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    reads: Warmth,
    /// Of a direct file, those that go through the page cache because they are not aligned. What
    /// is below the file is told of neither: it is another thing there.
    unaligned_reads: Warmth,
    writes: DirectWrites,
    copies: Copies,
    /// How long the last read and the last direct write took for which a thread waited, in
    /// nanoseconds; 0 if there was none.
    waited_ns: [AtomicU64; 2],
    /// What is below the file, and what others there have shown of it.
    device: Option<Arc<Device>>,
}

impl Learned {
    /// What is below the file, if that is known.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.device.as_deref()
    }

    /// Of a file on this device.
    pub(crate) fn on(device: Option<Arc<Device>>) -> Self {
        let refuses = device.as_ref().is_some_and(|device| device.refuses());
        let reads = match refuses {
            true => Warmth::refusing(),
            false => Warmth::default(),
        };
        let copies = match device
            .as_ref()
            .is_some_and(|device| device.refuses_copies())
        {
            true => Copies::refusing(),
            false => Copies::default(),
        };
        Self {
            reads,
            unaligned_reads: Warmth::default(),
            writes: DirectWrites::default(),
            copies,
            waited_ns: Default::default(),
            device,
        }
    }

    /// How reads are served that go by the same descriptor.
    #[inline(always)]
    fn reads_of(&self, facts: Facts) -> &Warmth {
        match facts.unaligned {
            true => &self.unaligned_reads,
            false => &self.reads,
        }
    }

    /// The road of a read, or of a direct write; `may_show`: it is one call with one buffer, which
    /// can show whether it is asynchronous.
    #[inline(always)]
    fn road(&self, facts: Facts, is_write: bool, may_show: bool) -> Road {
        let direct = facts.direct;
        let known = match is_write && !self.reads.refuses() {
            true => self.writes.road(),
            false => self.reads_of(facts).road(direct),
        };
        let road = match (known, &self.device) {
            (Road::Ask, Some(device)) if device.waits(is_write) => Road::Device,
            (Road::Ask, Some(device)) if device.is_asynchronous(is_write) => Road::Asynchronous,
            (Road::Slow, Some(device)) if direct => device.slow_road(is_write, may_show),
            (Road::Blind, Some(device)) if direct => device.fast_road(is_write, may_show),
            (road, _) => road,
        };
        match road {
            Road::Blind if facts.served => Road::Served,
            // A call that only starts them waits all the same, once the server has enough to do
            // (`max_background` of FUSE, `fuse_get_req` in `fs/fuse/dev.c` of Linux); it may be a
            // task of this thread.
            Road::Asynchronous | Road::Device if facts.served => Road::Slow,
            road => road,
        }
    }

    /// Whether one more read, or direct write, is to show what the device is, of a file that seemed
    /// to wait for it.
    #[inline(always)]
    fn may_be_memory(&self, is_write: bool) -> bool {
        let device = self.device.as_ref();
        device.is_some_and(|device| device.may_be_memory(is_write))
    }

    /// Whether such transfers are taken without waiting, as far as is known.
    pub(crate) fn takes_nowait(&self, facts: Facts, is_write: bool) -> Option<bool> {
        if is_write && !facts.direct {
            return self.copies.takes_nowait();
        }
        match self.reads_of(facts).nowait() {
            UNKNOWN => (is_write && self.writes.is_known()).then_some(true),
            nowait => Some(nowait != REFUSED),
        }
    }

    /// How long the last such transfer took for which a thread waited; of writes through the page
    /// cache nothing is known.
    pub(crate) fn waited(&self, facts: Facts, is_write: bool) -> Option<Duration> {
        let is_known = facts.direct || !is_write;
        let ns = self.waited_ns[usize::from(is_write)].load(Ordering::Relaxed);
        (is_known && ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// Learns from a transfer.
    #[inline(always)]
    pub(crate) fn note(&self, facts: Facts, is_write: bool, seen: Seen) {
        if is_write || seen != Seen::Hit || !self.reads_of(facts).expects_hits() {
            self.learn(facts, is_write, seen);
        }
    }

    /// As [`Learned::note`], from one that may show something new.
    #[inline(never)]
    fn learn(&self, facts: Facts, is_write: bool, seen: Seen) {
        if let (Seen::Started { is_asynchronous }, Some(device)) = (seen, &self.device) {
            return device.was_submitted(is_write, is_asynchronous);
        }
        if is_write && !facts.direct {
            // What waits for a flush each time says nothing of the others.
            if !facts.durable_writes && !facts.unaligned {
                self.copies.note(seen, self.device.as_deref());
            }
            return;
        }
        if let Seen::Pooled { ns, .. } = seen
            && !facts.unaligned
        {
            self.waited_ns[usize::from(is_write)].store(ns, Ordering::Relaxed);
        }
        if is_write && self.concerns_writes_alone(seen) {
            return self.note_write(seen);
        }
        let seen = match seen {
            Seen::Waited { ns, bytes } => Seen::Took { ns, bytes },
            seen => seen,
        };
        let noted = self.reads_of(facts).note(seen);
        if facts.unaligned {
            return;
        }
        let Some(device) = &self.device else {
            return;
        };
        if let Seen::Took { ns, bytes } | Seen::Pooled { ns, bytes } = seen
            && facts.direct
            && self.takes_nowait(facts, is_write) == Some(false)
        {
            device.was_called(is_write, is_fast(ns, bytes));
        }
        if let Seen::Asked { ns, bytes } = seen {
            device.asked(ns, bytes);
        }
        match noted {
            Noted::First { refuses } => device.was_asked(refuses),
            Noted::Slow => device.was_slow(),
            Noted::Nothing => {}
        }
    }

    /// Whether what was seen of a direct write says nothing of reads: a refusal does, unless they
    /// have shown that they can be asked.
    #[inline]
    fn concerns_writes_alone(&self, seen: Seen) -> bool {
        match self.reads.nowait() {
            UNKNOWN => seen != Seen::Refused,
            nowait => nowait != REFUSED,
        }
    }

    /// Learns from such a one.
    #[inline]
    fn note_write(&self, seen: Seen) {
        let is_first = !self.writes.is_known();
        let shown = self.writes.note(seen);
        let Some(device) = &self.device else {
            return;
        };
        match shown {
            Shown::Nothing => {}
            Shown::Memory => device.wrote_to_memory(),
            Shown::Waited => device.write_waited(true),
            Shown::Unclear => device.write_waited(false),
        }
        if is_first && self.writes.is_known() {
            device.was_asked(false);
        }
    }
}

/// The road of one operation in a batch. `grows` is asked only where it matters: whether it writes
/// beyond the end of the file.
#[inline(always)]
pub(crate) fn road(op: &Op, facts: Facts, learned: &Learned, grows: impl Fn() -> bool) -> Road {
    if !op.wishes().is_none() {
        return wished_road(op, facts);
    }
    match op {
        Op::ReadAt { span, .. } => match learned.road(facts, false, is_one_call(span)) {
            Road::Device if learned.may_be_memory(false) => Road::Ask,
            road => road,
        },
        Op::ReadVectoredAt { .. } => match learned.road(facts, false, false) {
            // Nothing is known of it, and a ring may wait as in `wished_road`.
            Road::Ask if facts.served => Road::Pool,
            // They do not show what a device is, nor is one that is direct shared for being on
            // memory.
            Road::Ask | Road::Memory => Road::Backend,
            road => road,
        },
        Op::WriteAt { span, .. } => write_road(facts, learned, grows, Some(span)),
        Op::WriteVectoredAt { .. } => write_road(facts, learned, grows, None),
        Op::Metadata { .. } if facts.served => Road::Pool,
        // What the kernel has in memory; a ring always hands it to a worker.
        Op::Metadata { .. } => Road::Now,
        Op::Nop | Op::Sync { .. } | Op::Allocate { .. } => Road::Backend,
    }
}

/// The road of a transfer with wishes. None is a guess at what the page cache has: that would read
/// without them, and teach what is not so of the others.
#[cold]
fn wished_road(op: &Op, facts: Facts) -> Road {
    let wishes = op.wishes();
    let is_write = op.is_write();
    let reaches_device = facts.direct
        || facts.durable_writes && is_write
        || wishes.has(Wishes::DSYNC)
        || wishes.has(Wishes::THEN_SYNC);
    // A ring takes a file that cannot be asked not to wait, but can be polled, for one that does
    // not wait (`io_file_supports_nowait` in `io_uring/rw.c`): one of FUSE says that it is always
    // ready, and who enters the ring waits for whoever serves it.
    let waits_in_a_ring = facts.served && !wishes.has(Wishes::BY_BACKEND);
    match (reaches_device, is_write) {
        // As without wishes: in the ring each would have a flush of its own.
        (true, true) if !facts.direct => Road::Pool,
        (true, _) if waits_in_a_ring => Road::Pool,
        (true, _) => Road::Backend,
        // It has been promised not to wait.
        (false, _) if wishes.has(Wishes::NO_WAIT) => Road::Now,
        (false, true) => Road::Plain,
        // It may pass the page cache all the same (`FOPEN_DIRECT_IO` of FUSE).
        (false, false) if waits_in_a_ring => Road::Pool,
        (false, false) => Road::Backend,
    }
}

/// Whether a thread of the pool makes such a transfer by one call.
#[inline(always)]
fn is_one_call(span: &Span) -> bool {
    span.len <= ASIDE_BYTES as usize
}

/// The road of a write, of one buffer or of a list.
#[inline]
fn write_road(
    facts: Facts,
    learned: &Learned,
    grows: impl Fn() -> bool,
    span: Option<&Span>,
) -> Road {
    let (is_list, may_show) = (span.is_none(), span.is_some_and(is_one_call));
    match (facts.direct, facts.durable_writes) {
        // A ring hands them to workers, which do them one after the other for each file, each with
        // a flush of its own; threads share the flushes.
        (false, true) => Road::Pool,
        (true, true) if grows() => Road::Pool,
        // They hold the file to themselves, so nobody else can do one at the same time.
        (true, false) if grows() => Road::Plain,
        (true, is_durable) => match learned.road(facts, true, may_show) {
            // It would be waited for where it is polled, and what it waits for is a flush.
            Road::Ask if is_durable && learned.takes_nowait(facts, false).is_some() => {
                Road::Backend
            }
            Road::Device if may_show && !is_durable && learned.may_be_memory(true) => Road::Ask,
            // Nothing is known of single ones by which a ring would be better.
            Road::Device => Road::Backend,
            // As for reads.
            Road::Memory if is_list => Road::Backend,
            road => road,
        },
        // A write into the page cache is a copy. A ring hands it to a kernel worker on ext4,
        // one after the other for each file.
        // Where it is awaited, one of a file that is served is always for the pool.
        (false, false) if !facts.unaligned && !facts.served => {
            learned.copies.road(learned.device.as_deref())
        }
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

/// The largest transfer for a file, given what its device takes at once, if that is known, and
/// what offsets of a direct file have to be multiples of.
pub(crate) fn limit_bytes(direct: bool, device_bytes: Option<u32>, offset_bytes: u32) -> u32 {
    if direct {
        // Parts after the first have to be aligned, whatever the device's limit is.
        let unit = offset_bytes.clamp(4096, DIRECT_LIMIT_BYTES);
        let limit = device_bytes.unwrap_or(DIRECT_LIMIT_BYTES);
        (limit.min(DIRECT_LIMIT_BYTES) / unit * unit).max(unit)
    } else {
        crate::op::TRANSFER_MAX_BYTES
    }
}

#[cfg(test)]
mod tests;
