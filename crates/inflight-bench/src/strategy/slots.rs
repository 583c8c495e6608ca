//! The operations of a ring strategy: one buffer, one start time and one next block for each.

use super::arena::Arena;
use super::offsets::Offsets;
use super::{Job, Modes};
use crate::measure::meter::Meter;

/// Where an operation reads from, and where to.
pub(crate) struct Place {
    pub(crate) buffer: *mut u8,
    pub(crate) length: u32,
    pub(crate) offset: u64,
}

/// As many slots as operations may be in flight.
pub(crate) struct Slots {
    arena: Arena,
    began_ns: Vec<u64>,
    offsets: Offsets,
    block_bytes: u32,
    depth: u32,
}

impl Slots {
    pub(crate) fn new(job: &Job<'_>) -> Self {
        Self {
            arena: Arena::new(job.depth, job.block_bytes),
            began_ns: (0..job.depth).map(|_| 0).collect(),
            offsets: Offsets::new(job.seed, job.size_bytes, job.block_bytes),
            block_bytes: job.block_bytes,
            depth: job.depth,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Gives a free slot its next operation, which begins at the clock's last reading.
    #[inline]
    pub(crate) fn begin(&mut self, slot: u32, meter_ns: u64) -> Place {
        self.began_ns[index(slot)] = meter_ns;
        Place {
            buffer: self.arena.slot(slot),
            length: self.block_bytes,
            offset: self.offsets.next(),
        }
    }

    /// Takes note of a completed operation; its slot is free again.
    #[inline]
    pub(crate) fn complete(&mut self, slot: u32, result: i32, meter: &mut Meter) {
        let took_ns = meter.last_reading_ns() - self.began_ns[index(slot)];
        meter.latency(took_ns);
        meter.complete(result, self.block_bytes);
    }

    pub(crate) fn iovec(&self) -> libc::iovec {
        self.arena.iovec()
    }
}

/// The slot that a completion belongs to.
#[inline]
pub(crate) fn slot_of(user_data: u64) -> u32 {
    u32::try_from(user_data).expect("the slot number that went in")
}

#[inline]
fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("u32 fits into usize")
}

/// Whether entering the kernel failed in a way that goes away by collecting completions.
/// Source: io_uring_enter(2), EINTR, EAGAIN and EBUSY.
pub(crate) fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}

/// One line for the record about the flags of a ring.
pub(crate) fn flags_mode(flags: &str) -> Modes {
    super::modes(&[("ring-flags", if flags.is_empty() { "none" } else { flags })])
}
