//! Reads and writes at a position, and syncs, as system calls, made where they are.
//!
//! Not by way of the C library's functions: those are cancellation points (pthreads(7)) and pay for
//! that in a process with threads; and after a system call a return to a function is one that the
//! processor does not foresee, which may be dear ([`returns`]).
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;

use rustix::io::{Errno, ReadWriteFlags};

use super::execute::{signed, to_usize};
use crate::backend::returns;
use crate::op::{Iovecs, Span, TRANSFER_MAX_BYTES};

/// What the kernel says: a number, or an errno.
pub(super) type Said = Result<usize, i32>;

/// pread.
///
/// # Safety
///
/// The descriptor is open, and the memory valid and nobody else's, until this returns.
#[inline]
pub(super) unsafe fn read_at(fd: RawFd, span: Span, offset: u64) -> Said {
    // SAFETY: passed on from the caller.
    let file = unsafe { borrowed(fd) };
    let (start, len) = memory(span);
    let mut memory = NonNull::slice_from_raw_parts(start.cast::<MaybeUninit<u8>>(), len);
    // SAFETY: passed on from the caller.
    let memory = unsafe { memory.as_mut() };
    let read = rustix::io::pread(file, memory, position(offset));
    returns::ease();
    read.map(|(read, _)| read.len())
        .map_err(Errno::raw_os_error)
}

/// pwrite.
///
/// # Safety
///
/// As for [`read_at`], but others may read the memory. It is initialised.
#[inline]
pub(super) unsafe fn write_at(fd: RawFd, span: Span, offset: u64) -> Said {
    // SAFETY: passed on from the caller.
    let file = unsafe { borrowed(fd) };
    let (start, len) = memory(span);
    // SAFETY: passed on from the caller.
    let bytes = unsafe { NonNull::slice_from_raw_parts(start, len).as_ref() };
    let written = rustix::io::pwrite(file, bytes, position(offset));
    returns::ease();
    written.map_err(Errno::raw_os_error)
}

/// preadv2 with one buffer.
///
/// # Safety
///
/// As for [`read_at`].
#[inline]
pub(super) unsafe fn read_one(fd: RawFd, span: Span, offset: u64, flags: ReadWriteFlags) -> Said {
    let mut one = iovec(span);
    // SAFETY: passed on from the caller.
    unsafe { read_list(fd, list_of(&mut one), offset, flags) }
}

/// pwritev2 with one buffer.
///
/// # Safety
///
/// As for [`write_at`].
#[inline]
pub(super) unsafe fn write_one(fd: RawFd, span: Span, offset: u64, flags: ReadWriteFlags) -> Said {
    let mut one = iovec(span);
    // SAFETY: passed on from the caller.
    unsafe { write_list(fd, list_of(&mut one), offset, flags) }
}

/// preadv, or preadv2 if there are flags.
///
/// # Safety
///
/// As for [`read_at`], for the list and all that it names.
#[inline]
pub(super) unsafe fn read_list(
    fd: RawFd,
    list: Iovecs,
    offset: u64,
    flags: ReadWriteFlags,
) -> Said {
    // SAFETY: passed on from the caller.
    let file = unsafe { borrowed(fd) };
    let first = list.first.cast::<IoSliceMut<'_>>();
    // SAFETY: passed on from the caller; on Unix the one is laid out as the other.
    let list = unsafe { std::slice::from_raw_parts_mut(first, to_usize(list.count_at_once())) };
    let read = match flags.is_empty() {
        true => rustix::io::preadv(file, list, position(offset)),
        false => rustix::io::preadv2(file, list, position(offset), flags),
    };
    returns::ease();
    read.map_err(Errno::raw_os_error)
}

/// pwritev, or pwritev2 if there are flags.
///
/// # Safety
///
/// As for [`write_at`], for the list and all that it names.
#[inline]
pub(super) unsafe fn write_list(
    fd: RawFd,
    list: Iovecs,
    offset: u64,
    flags: ReadWriteFlags,
) -> Said {
    // SAFETY: passed on from the caller.
    let file = unsafe { borrowed(fd) };
    let first = list.first.cast::<IoSlice<'_>>().cast_const();
    // SAFETY: passed on from the caller; on Unix the one is laid out as the other.
    let list = unsafe { std::slice::from_raw_parts(first, to_usize(list.count_at_once())) };
    let written = match flags.is_empty() {
        true => rustix::io::pwritev(file, list, position(offset)),
        false => rustix::io::pwritev2(file, list, position(offset), flags),
    };
    returns::ease();
    written.map_err(Errno::raw_os_error)
}

/// fdatasync, or fsync.
///
/// # Safety
///
/// The descriptor is open until this returns.
#[inline]
pub(super) unsafe fn sync(fd: RawFd, data_only: bool) -> Said {
    // SAFETY: passed on from the caller.
    let file = unsafe { borrowed(fd) };
    let synced = match data_only {
        true => rustix::fs::fdatasync(file),
        false => rustix::fs::fsync(file),
    };
    returns::ease();
    synced.map(|()| 0).map_err(Errno::raw_os_error)
}

/// The memory of a transfer, as much of it as one call moves. Where there is none of it, no address
/// is looked at, so any will do.
fn memory(span: Span) -> (NonNull<u8>, usize) {
    let start = NonNull::new(span.start).unwrap_or(NonNull::dangling());
    (start, span.len.min(to_usize(TRANSFER_MAX_BYTES)))
}

fn iovec(span: Span) -> libc::iovec {
    let (start, len) = memory(span);
    libc::iovec {
        iov_base: start.as_ptr().cast(),
        iov_len: len,
    }
}

fn list_of(one: &mut libc::iovec) -> Iovecs {
    Iovecs {
        first: one,
        count: 1,
    }
}

/// The descriptor of an operation.
///
/// # Safety
///
/// It is open as long as this is used.
unsafe fn borrowed<'f>(fd: RawFd) -> BorrowedFd<'f> {
    // SAFETY: passed on from the caller.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn position(offset: u64) -> u64 {
    signed(offset).cast_unsigned()
}
