//! One operation as a plain system call, on whatever thread this is.
//!
//! This is how the `threads` backend works, how an operation alone is run, and how the proactor
//! sees an operation through that a ring has refused.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use crate::completion::Answer;
use crate::op::{Iovecs, Op, Request, Span, TRANSFER_MAX_BYTES};

/// Executes one operation and returns a byte count or a negated errno, as a ring would.
///
/// A signal does not end it: EINTR is tried again, but for an allocation.
///
/// # Safety
///
/// Every address in `op` is valid for what `op` does, until this returns.
#[inline(always)]
pub(crate) unsafe fn execute(op: &Op) -> i32 {
    loop {
        // SAFETY: passed on from the caller.
        let result = unsafe { call(op) };
        if result >= 0 {
            // At most TRANSFER_MAX_BYTES were asked for.
            return i32::try_from(result).expect("a transfer is at most MAX_RW_COUNT");
        }
        let errno = io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
        // An allocation begins anew each time, so under a timer it would never end.
        if errno != libc::EINTR || matches!(op, Op::Allocate { .. }) {
            return -errno;
        }
    }
}

/// Sees a request through with plain system calls: a transfer above the limit of one call goes
/// on, and a whole one resumes.
///
/// # Safety
///
/// As for [`execute`].
#[inline(always)]
pub(crate) unsafe fn execute_request(request: &Request) -> Answer {
    // SAFETY: passed on from the caller.
    let result = unsafe { execute(&request.op) };
    if !request.op.wishes().is_none() {
        // SAFETY: passed on from the caller.
        return unsafe { see_wishes_through(request, result) };
    }
    let asked = request.op.span().map_or(0, |span| span.len);
    match usize::try_from(result) {
        Ok(moved) if moved == asked || (moved < to_usize(TRANSFER_MAX_BYTES) && !request.whole) => {
            Answer::moved(moved)
        }
        // SAFETY: passed on from the caller.
        _ => unsafe { go_on(request, result) }.0,
    }
}

/// As [`execute_request`], for a transfer with wishes whose first call returned `result`.
///
/// # Safety
///
/// As for [`execute`].
#[cold]
unsafe fn see_wishes_through(request: &Request, mut result: i32) -> Answer {
    let mut request = *request;
    if request.op.leave_hints_out(-result) {
        // SAFETY: passed on from the caller.
        result = unsafe { execute(&request.op) };
    }
    // SAFETY: passed on from the caller.
    let (mut answer, is_complete) = unsafe { go_on(&request, result) };
    if let (Some(sync), true) = (request.op.sync_after(), is_complete) {
        // SAFETY: a sync names no memory.
        let synced = unsafe { execute(&sync) };
        if synced < 0 {
            answer = Answer::failed(-synced, answer.bytes());
        }
    }
    answer.marked(request.op.is_unheard())
}

/// Sees a request through whose first call returned `result`. True if all of it was moved.
///
/// # Safety
///
/// As for [`execute`].
#[cold]
unsafe fn go_on(request: &Request, mut result: i32) -> (Answer, bool) {
    let mut op = request.op;
    let mut done = 0;
    loop {
        let Ok(moved) = usize::try_from(result) else {
            return (after(done, request.whole, -result), false);
        };
        done += moved;
        let was_full = moved == to_usize(TRANSFER_MAX_BYTES);
        // SAFETY: the caller vouches for the list of buffers, and the call is over.
        let has_more = unsafe { advance(&mut op, moved) };
        if !has_more || moved == 0 || !(was_full || request.whole) {
            return (Answer::moved(done), !has_more);
        }
        // SAFETY: what is left of the memory that the caller vouches for.
        result = unsafe { execute(&op) };
    }
}

/// The answer when an error comes after `done` bytes: a plain transfer reports the bytes, and the
/// next call the error, as write(2) does; a whole one reports both.
pub(crate) fn after(done: usize, whole: bool, errno: i32) -> Answer {
    if done > 0 && !whole {
        Answer::moved(done)
    } else {
        Answer::failed(errno, done)
    }
}

/// Makes a transfer without waiting for the device (preadv2(2), `RWF_NOWAIT`). Returns a byte
/// count or a negated errno: EAGAIN where it would have waited, EOPNOTSUPP where the file does not
/// know this, or it is no transfer.
///
/// # Safety
///
/// As for [`execute`].
pub(crate) unsafe fn execute_now(op: &Op) -> i32 {
    let (fd, offset, is_write) = match *op {
        Op::ReadAt { fd, offset, .. } | Op::ReadVectoredAt { fd, offset, .. } => {
            (fd, signed(offset), false)
        }
        Op::WriteAt { fd, offset, .. } | Op::WriteVectoredAt { fd, offset, .. } => {
            (fd, signed(offset), true)
        }
        Op::Nop
        | Op::Sync { .. }
        | Op::Allocate { .. }
        | Op::Metadata { .. }
        | Op::Truncate { .. } => {
            return -libc::EOPNOTSUPP;
        }
    };
    let single = op.span().map(|span| libc::iovec {
        iov_base: span.start.cast(),
        iov_len: span.len.min(to_usize(TRANSFER_MAX_BYTES)),
    });
    let (list, count) = match (&single, op) {
        (Some(single), _) => (std::ptr::from_ref(single), 1),
        (None, Op::ReadVectoredAt { iovecs, .. } | Op::WriteVectoredAt { iovecs, .. }) => {
            (iovecs.first.cast_const(), signed_count(*iovecs))
        }
        (None, _) => unreachable!("a transfer has a span or a list"),
    };
    let call = match is_write {
        true => libc::SYS_pwritev2,
        false => libc::SYS_preadv2,
    };
    // SAFETY: the list is valid, and the caller vouches for what it points to.
    match i32::try_from(unsafe { listed_now(call, fd, list, count, offset) }) {
        Ok(moved) if moved >= 0 => moved,
        _ => -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    }
}

/// Bytes that a transfer moves if it is not short; 0 for any other operation.
///
/// # Safety
///
/// Its list of buffers, if it has one, is valid.
#[inline]
pub(crate) unsafe fn wanted_bytes(op: &Op) -> usize {
    let (Op::ReadVectoredAt { iovecs, .. } | Op::WriteVectoredAt { iovecs, .. }) = *op else {
        return op.span().map_or(0, |span| span.len);
    };
    // SAFETY: the caller says that the list is valid; an empty one has an address too.
    let list = unsafe { std::slice::from_raw_parts(iovecs.first, to_usize(iovecs.count)) };
    list.iter().map(|iovec| iovec.iov_len).sum()
}

/// Takes `moved` bytes off the front of a transfer. False when nothing is left of it, and for any
/// other operation.
///
/// # Safety
///
/// The list of buffers in `op` may be written, and no call that reads it is in flight.
pub(crate) unsafe fn advance(op: &mut Op, mut moved: usize) -> bool {
    let (Op::ReadVectoredAt { iovecs, offset, .. } | Op::WriteVectoredAt { iovecs, offset, .. }) =
        op
    else {
        let left = op.span().map_or(0, |span| span.len - moved);
        *op = op.part(moved, left);
        return left > 0;
    };
    *offset += moved as u64;
    while iovecs.count > 0 {
        // SAFETY: `first` points to `count` entries that the caller lets us write.
        let first = unsafe { &mut *iovecs.first };
        if moved < first.iov_len {
            first.iov_base = first.iov_base.wrapping_byte_add(moved);
            first.iov_len -= moved;
            return true;
        }
        moved -= first.iov_len;
        *iovecs = Iovecs {
            first: iovecs.first.wrapping_add(1),
            count: iovecs.count - 1,
        };
    }
    false
}

/// How often this thread has given up its processor to wait, if the kernel counts that.
///
/// # Source
///
/// getrusage(2), `RUSAGE_THREAD`, `ru_nvcsw`.
pub(crate) fn switches() -> Option<i64> {
    if cfg!(miri) {
        return None; // It does not know this call.
    }
    let mut usage = MaybeUninit::uninit();
    // SAFETY: `usage` is ours to be filled.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: the kernel has filled it.
    let usage: libc::rusage = unsafe { usage.assume_init() };
    Some(usage.ru_nvcsw)
}

pub(crate) fn to_usize(number: u32) -> usize {
    usize::try_from(number).expect("usize has 32 bits or more")
}

/// The system call itself; -1 leaves the reason in `errno`.
///
/// # Safety
///
/// As for [`execute`].
#[inline(always)]
unsafe fn call(op: &Op) -> isize {
    if !op.wishes().is_none() {
        // SAFETY: passed on from the caller.
        return unsafe { wished(op) };
    }
    match *op {
        Op::Nop => 0,
        Op::ReadAt {
            fd, span, offset, ..
        } => {
            // SAFETY: as for `positioned`.
            unsafe { positioned(libc::SYS_pread64, fd, span, offset) }
        }
        Op::WriteAt {
            fd, span, offset, ..
        } => {
            // SAFETY: as for `positioned`.
            unsafe { positioned(libc::SYS_pwrite64, fd, span, offset) }
        }
        Op::ReadVectoredAt {
            fd, iovecs, offset, ..
        } => {
            // SAFETY: the caller vouches for the list and for what it points to.
            unsafe { libc::preadv64(fd, iovecs.first, signed_count(iovecs), signed(offset)) }
        }
        Op::WriteVectoredAt {
            fd, iovecs, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { libc::pwritev64(fd, iovecs.first, signed_count(iovecs), signed(offset)) }
        }
        Op::Sync {
            fd,
            data_only: true,
        } => {
            // SAFETY: no memory is involved.
            widen(unsafe { libc::fdatasync(fd) })
        }
        Op::Sync {
            fd,
            data_only: false,
        } => {
            // SAFETY: no memory is involved.
            widen(unsafe { libc::fsync(fd) })
        }
        Op::Allocate {
            fd,
            mode,
            offset,
            len,
        } => {
            // SAFETY: no memory is involved.
            widen(unsafe { libc::fallocate64(fd, mode.0, signed(offset), signed(len)) })
        }
        Op::Truncate { fd, len } => {
            // SAFETY: no memory is involved.
            widen(unsafe { libc::ftruncate64(fd, signed(len)) })
        }
        Op::Metadata { fd, out } => {
            let (flags, mask) = (libc::AT_EMPTY_PATH, METADATA_MASK);
            // SAFETY: the path is a constant, and the caller vouches for `out`.
            widen(unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, out) })
        }
    }
}

/// pread or pwrite, not by way of the C library's functions, which are cancellation points
/// (pthreads(7)) and pay for that in a process with threads.
///
/// # Safety
///
/// The caller vouches for `span`.
#[inline]
#[cfg(not(miri))]
unsafe fn positioned(call: libc::c_long, fd: RawFd, span: Span, offset: u64) -> isize {
    let len = span.len.min(to_usize(TRANSFER_MAX_BYTES));
    // SAFETY: passed on from the caller. Each argument has the width of a register.
    let result = unsafe { libc::syscall(call, i64::from(fd), span.start, len, signed(offset)) };
    isize::try_from(result).expect("isize has 64 bits")
}

/// As above; Miri knows these calls by the names of their functions only.
///
/// # Safety
///
/// The caller vouches for `span`.
#[cfg(miri)]
unsafe fn positioned(call: libc::c_long, fd: RawFd, span: Span, offset: u64) -> isize {
    let (start, len, offset) = (span.start.cast(), span.len, signed(offset));
    if call == libc::SYS_pread64 {
        // SAFETY: passed on from the caller.
        unsafe { libc::pread64(fd, start, len, offset) }
    } else {
        // SAFETY: passed on from the caller.
        unsafe { libc::pwrite64(fd, start, len, offset) }
    }
}

/// preadv2 or pwritev2 with `RWF_NOWAIT`, made as in `positioned`.
///
/// # Safety
///
/// As for [`execute`].
#[inline]
unsafe fn listed_now(
    call: libc::c_long,
    fd: RawFd,
    list: *const libc::iovec,
    count: libc::c_int,
    offset: libc::off64_t,
) -> isize {
    let (fd, count, flags) = (i64::from(fd), i64::from(count), i64::from(libc::RWF_NOWAIT));
    // SAFETY: passed on from the caller. Each argument has the width of a register; the upper half
    // of the position, which is an argument of its own, is not looked at where a register has
    // 64 bits (preadv2(2)).
    let result = unsafe { libc::syscall(call, fd, list, count, offset, 0_i64, flags) };
    isize::try_from(result).expect("isize has 64 bits")
}

/// A transfer with flags, and with a priority if it has one: the kernel takes that of the thread,
/// which gets its own back afterwards (ioprio_set(2)).
///
/// # Safety
///
/// As for [`execute`].
#[cold]
unsafe fn wished(op: &Op) -> isize {
    let before = match op.wishes().ioprio() {
        0 => None,
        ioprio => match swap_ioprio(ioprio) {
            Ok(before) => Some(before),
            // It is said to be refused; the caller tries without.
            Err(()) => return -1,
        },
    };
    // SAFETY: passed on from the caller.
    let result = unsafe { with_flags(op) };
    let Some(before) = before else {
        return result;
    };
    let errno = io::Error::last_os_error().raw_os_error();
    // What was set before without a privilege can be set again.
    let _ = set_ioprio(before);
    if let (Some(errno), true) = (errno, result < 0) {
        // SAFETY: the C library tells where this thread's errno is.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: it belongs to this thread.
        unsafe { *place = errno };
    }
    result
}

/// preadv2 or pwritev2, for a transfer.
///
/// # Safety
///
/// As for [`execute`].
unsafe fn with_flags(op: &Op) -> isize {
    let flags = op.wishes().rwf();
    let list_of = |span: Span| libc::iovec {
        iov_base: span.start.cast(),
        iov_len: span.len.min(to_usize(TRANSFER_MAX_BYTES)),
    };
    match *op {
        Op::ReadAt {
            fd, span, offset, ..
        } => {
            let list = list_of(span);
            // SAFETY: the list is ours, and the caller vouches for what it points to.
            unsafe { libc::preadv2(fd, &raw const list, 1, signed(offset), flags) }
        }
        Op::WriteAt {
            fd, span, offset, ..
        } => {
            let list = list_of(span);
            // SAFETY: as above.
            unsafe { libc::pwritev2(fd, &raw const list, 1, signed(offset), flags) }
        }
        Op::ReadVectoredAt {
            fd, iovecs, offset, ..
        } => {
            let (count, offset) = (signed_count(iovecs), signed(offset));
            // SAFETY: the caller vouches for the list and for what it points to.
            unsafe { libc::preadv2(fd, iovecs.first, count, offset, flags) }
        }
        Op::WriteVectoredAt {
            fd, iovecs, offset, ..
        } => {
            let (count, offset) = (signed_count(iovecs), signed(offset));
            // SAFETY: as above.
            unsafe { libc::pwritev2(fd, iovecs.first, count, offset, flags) }
        }
        Op::Nop
        | Op::Sync { .. }
        | Op::Allocate { .. }
        | Op::Metadata { .. }
        | Op::Truncate { .. } => {
            unreachable!("only transfers have wishes")
        }
    }
}

/// Gives this thread a priority, and returns the one it had. The reason of a refusal is in
/// `errno`.
fn swap_ioprio(ioprio: u16) -> Result<libc::c_long, ()> {
    /// `IOPRIO_CLASS_BE` above `IOPRIO_CLASS_SHIFT`, ioprio_set(2).
    const BEST_EFFORT: libc::c_long = 2 << 13;
    // SAFETY: no memory is involved.
    let before = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, THIS) };
    if before < 0 {
        return Err(());
    }
    // Without a class it follows the nice value, and the level says nothing (ioprio_set(2), NOTES).
    let before = if before < 1 << 13 { 0 } else { before };
    if (1..BEST_EFFORT).contains(&before) {
        // Somebody with the privilege has made this thread a real-time one, which is more than can
        // be asked for here, and might not be given back.
        return Ok(before);
    }
    set_ioprio(libc::c_long::from(ioprio)).map(|()| before)
}

fn set_ioprio(ioprio: libc::c_long) -> Result<(), ()> {
    // SAFETY: no memory is involved.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, THIS, ioprio) };
    if answer < 0 { Err(()) } else { Ok(()) }
}

/// ioprio_set(2).
const IOPRIO_WHO_PROCESS: libc::c_long = 1;
/// The calling thread, ioprio_set(2).
const THIS: libc::c_long = 0;

/// What is asked of statx: the basics and the alignment for direct I/O.
pub(crate) const METADATA_MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN;

fn widen(result: i32) -> isize {
    isize::try_from(result).expect("isize has 32 bits or more")
}

/// Offsets above `i64::MAX` are refused before an operation is made; the kernel refuses -1 too.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(-1)
}

fn signed_count(iovecs: Iovecs) -> i32 {
    i32::try_from(iovecs.count).expect("at most IOVECS_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Wishes;

    fn lens(iovecs: &[libc::iovec]) -> Vec<usize> {
        iovecs.iter().map(|iovec| iovec.iov_len).collect()
    }

    #[test]
    fn advancing_skips_whole_buffers_and_cuts_the_next() {
        let mut memory = [0_u8; 30];
        let base = memory.as_mut_ptr();
        let entry = |at: usize| libc::iovec {
            iov_base: base.wrapping_add(at).cast(),
            iov_len: 10,
        };
        let mut list = [entry(0), entry(10), entry(20)];
        let iovecs = Iovecs {
            first: list.as_mut_ptr(),
            count: 3,
        };
        let mut op = Op::ReadVectoredAt {
            fd: -1,
            iovecs,
            offset: 100,
            wishes: Wishes::NONE,
        };
        // SAFETY: `list` is ours, and no call is in flight.
        assert!(unsafe { advance(&mut op, 13) });
        let Op::ReadVectoredAt { iovecs, offset, .. } = op else {
            unreachable!()
        };
        assert_eq!((iovecs.count, offset), (2, 113));
        assert_eq!(lens(&list), [10, 7, 10]);
        assert_eq!(list[1].iov_base, base.wrapping_add(13).cast());
        let mut op = Op::ReadVectoredAt {
            fd: -1,
            iovecs,
            offset,
            wishes: Wishes::NONE,
        };
        // SAFETY: as above.
        assert!(!unsafe { advance(&mut op, 17) });
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no priorities")]
    fn a_priority_is_given_and_taken_back() {
        let now = || {
            // SAFETY: no memory is involved.
            unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, THIS) }
        };
        let thread = std::thread::spawn(move || {
            // As somebody may have set it before: best effort, level 6.
            let own = 2 << 13 | 6;
            if set_ioprio(own).is_err() {
                return eprintln!(
                    "skipped: priorities are refused: {}",
                    io::Error::last_os_error()
                );
            }
            let latency = Wishes::NONE.with_priority(crate::op::Priority::Latency);
            assert_eq!(swap_ioprio(latency.ioprio()), Ok(own));
            assert_eq!(now(), 2 << 13);
            set_ioprio(own).unwrap();
            let mut memory = 0_u8;
            let span = Span {
                start: &raw mut memory,
                len: 1,
                arena: None,
            };
            let op = Op::ReadAt {
                fd: -1,
                span,
                offset: 0,
                wishes: latency,
            };
            // SAFETY: the memory is there until this returns.
            assert_eq!(unsafe { execute(&op) }, -libc::EBADF);
            assert_eq!(now(), own);
        });
        thread.join().unwrap();
    }
}
