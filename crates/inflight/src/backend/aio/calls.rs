//! The calls, and what they take and give (linux/aio_abi.h).
#![allow(unsafe_code)]

use std::ffi::{c_long, c_ulong};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::op::Op;

/// A request, as the kernel reads it. Source: `struct iocb`, where the two halves of the key are
/// swapped on machines with the other byte order; the kernel writes zero there, and `RWF_*` of the
/// request is read from the other half.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Iocb {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: i32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// A completion, as the kernel writes it. Source: `struct io_event`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IoEvent {
    pub(super) data: u64,
    request: u64,
    pub(super) result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32);

/// `IOCB_CMD_PREAD`, `IOCB_CMD_PWRITE` and `IOCB_CMD_POLL`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const POLL: u16 = 5;

/// `IOCB_FLAG_RESFD`: the eventfd counts.
const SIGNALS: u32 = 1;

/// `IOCB_FLAG_IOPRIO`: the priority counts.
const HAS_PRIORITY: u32 = 2;

impl Iocb {
    /// A transfer with one buffer; none of anything else. `flags`: `RWF_*` beside those wished for.
    ///
    /// The kernel writes through the address that it is given here.
    pub(super) fn transfer(user_data: u64, op: &Op, flags: i32) -> Option<Self> {
        let (opcode, fd, span, offset, wishes) = match *op {
            Op::ReadAt {
                fd,
                span,
                offset,
                wishes,
            } => (PREAD, fd, span, offset, wishes),
            Op::WriteAt {
                fd,
                span,
                offset,
                wishes,
            } => (PWRITE, fd, span, offset, wishes),
            _ => return None,
        };
        let priority = wishes.ioprio();
        Some(Self {
            data: user_data,
            opcode,
            rw_flags: wishes.rwf() | flags,
            priority: i16::try_from(priority).ok()?,
            flags: if priority == 0 { 0 } else { HAS_PRIORITY },
            fd: u32::try_from(fd).ok()?,
            buffer: u64::try_from(span.start.expose_provenance()).ok()?,
            bytes: u64::try_from(span.len).ok()?,
            offset: i64::try_from(offset).ok()?,
            ..Self::default()
        })
    }

    /// The same, and its completion signals an eventfd.
    pub(super) fn signals(self, eventfd: libc::c_int) -> Self {
        let Ok(eventfd) = u32::try_from(eventfd) else {
            return self;
        };
        Self {
            eventfd,
            flags: self.flags | SIGNALS,
            ..self
        }
    }

    /// A wait until a descriptor is readable, once.
    pub(super) fn readable(user_data: u64, fd: libc::c_int) -> Option<Self> {
        Some(Self {
            data: user_data,
            opcode: POLL,
            fd: u32::try_from(fd).ok()?,
            buffer: u64::from(libc::POLLIN.unsigned_abs()),
            ..Self::default()
        })
    }
}

fn answered(answer: c_long) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// A new context for so many requests.
pub(super) fn set_up(requests: u32) -> io::Result<c_ulong> {
    let mut id: c_ulong = 0;
    // SAFETY: the kernel writes the id, which is zero before, into memory of its type.
    answered(unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut id) })?;
    Ok(id)
}

/// Ends a context, once nothing is in flight in it any more; waits for other processors.
pub(super) fn destroy(id: c_ulong) {
    // SAFETY: no memory of ours is named. What could fail is that there is no such context.
    unsafe { libc::syscall(libc::SYS_io_destroy, id) };
}

/// How many of the requests were submitted, from the first on. The requests themselves are not
/// needed any more then. An error is that of the first one.
///
/// # Safety
///
/// What the requests name stays valid until their completions have been taken.
pub(super) unsafe fn submit(id: c_ulong, requests: &mut [Iocb]) -> io::Result<usize> {
    const AT_ONCE: usize = 128;
    let mut list = [ptr::null_mut::<Iocb>(); AT_ONCE];
    let count = requests.len().min(AT_ONCE);
    for (place, request) in list.iter_mut().zip(requests) {
        *place = request;
    }
    let count = c_long::try_from(count).expect("at most AT_ONCE");
    // SAFETY: so many of the list are requests; the caller sees to what they name.
    answered(unsafe { libc::syscall(libc::SYS_io_submit, id, count, list.as_mut_ptr()) })
}

/// Takes completions, at most as many as there are places, and how many that were. Waits until
/// `at_least` can be taken, a signal comes (`EINTR`, if none can), or the time is over.
pub(super) fn take(
    id: c_ulong,
    at_least: usize,
    places: &mut [MaybeUninit<IoEvent>],
    at_most: Option<Duration>,
) -> io::Result<usize> {
    let at_least = c_long::try_from(at_least.min(places.len())).expect("there are so many places");
    let room = c_long::try_from(places.len()).expect("a slice has at most isize::MAX");
    let mut limit = at_most.map(|at_most| libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        // Below 10^9.
        tv_nsec: i32::try_from(at_most.subsec_nanos()).map_or(0, Into::into),
    });
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let first = places.as_mut_ptr();
    // SAFETY: the kernel writes at most `room` completions from `first` on, and reads the time.
    answered(unsafe { libc::syscall(libc::SYS_io_getevents, id, at_least, room, first, limit) })
}
