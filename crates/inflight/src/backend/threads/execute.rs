//! One operation as a plain system call, on whatever thread this is.
//!
//! This is how the `threads` backend works, how an operation alone is run, and how the proactor
//! sees an operation through that a ring has refused.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::time::Instant;

use rustix::io::ReadWriteFlags;

use super::transfers::{Said, read_at, read_list, read_one, sync, write_at, write_list, write_one};
use crate::backend::aio::once;
use crate::backend::statx::statx;
use crate::completion::Answer;
use crate::op::{Iovecs, Op, Request, TRANSFER_MAX_BYTES};

/// Executes one operation and returns a byte count or a negated errno, as a ring would.
///
/// A signal does not end it: EINTR is tried again, but for an allocation.
///
/// # Safety
///
/// The descriptor in `op` is open, and every address in it valid for what `op` does, until this
/// returns.
#[inline(always)]
pub(crate) unsafe fn execute(op: &Op) -> i32 {
    loop {
        // SAFETY: passed on from the caller.
        match unsafe { call(op) } {
            // At most TRANSFER_MAX_BYTES were asked for.
            Ok(moved) => return i32::try_from(moved).expect("a transfer is at most MAX_RW_COUNT"),
            // An allocation begins anew each time, so under a timer it would never end.
            Err(errno) if errno != libc::EINTR || matches!(op, Op::Allocate { .. }) => {
                return -errno;
            }
            Err(_) => {}
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
    let span = match request.op {
        Op::ReadAt { span, wishes, .. } | Op::WriteAt { span, wishes, .. } if wishes.is_none() => {
            span
        }
        // SAFETY: passed on from the caller.
        _ => return unsafe { execute_other(request) },
    };
    // SAFETY: as above.
    let result = unsafe { execute(&request.op) };
    match usize::try_from(result) {
        Ok(moved) if moved == span.len || stops(request, moved) => Answer::moved(moved),
        // SAFETY: passed on from the caller.
        _ => unsafe { go_on(request, result) }.0,
    }
}

/// Whether nothing more is to be moved after so many bytes, though more may have been asked for.
#[inline]
fn stops(request: &Request, moved: usize) -> bool {
    moved < to_usize(TRANSFER_MAX_BYTES) && !request.whole
}

/// As [`execute_request`], for what has a wish or no single buffer.
///
/// # Safety
///
/// As for [`execute`].
#[inline(never)]
unsafe fn execute_other(request: &Request) -> Answer {
    // SAFETY: passed on from the caller.
    let result = unsafe { execute(&request.op) };
    if !request.op.wishes().is_none() {
        // SAFETY: passed on from the caller.
        return unsafe { see_wishes_through(request, result) };
    }
    match usize::try_from(result) {
        Ok(moved) if stops(request, moved) => Answer::moved(moved),
        // SAFETY: passed on from the caller.
        _ => unsafe { go_on(request, result) }.0,
    }
}

/// As [`execute_request`], for a transfer without wishes. Also says whether it was asynchronous, if
/// that has been seen.
///
/// # Safety
///
/// As for [`execute`].
#[cold]
pub(crate) unsafe fn execute_submitted(request: &Request) -> (Answer, Option<bool>) {
    // SAFETY: passed on from the caller.
    let (result, is_asynchronous) = unsafe { once::execute_submitted(&request.op) };
    // SAFETY: as above.
    let (answer, _) = unsafe { go_on(request, result) };
    (answer, is_asynchronous)
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
        // Of a list of buffers the kernel takes what it can.
        let was_full = moved >= to_usize(TRANSFER_MAX_BYTES);
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
/// next call the error, as write(2) does (hosts are told of it, because there may be none that is
/// told); a whole one reports both.
pub(crate) fn after(done: usize, whole: bool, errno: i32) -> Answer {
    if done > 0 && !whole {
        Answer::stopped(done, errno)
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
#[inline]
pub(crate) unsafe fn execute_now(op: &Op) -> i32 {
    // SAFETY: passed on from the caller.
    match unsafe { with_flags(op, ReadWriteFlags::NOWAIT) } {
        // Linux 5.9 and 5.10 say so also where the page cache has lost something (preadv2(2),
        // BUGS). At the end of the file the plain call does not wait.
        // SAFETY: as above; the first call is over.
        Ok(0) if op.is_read() => unsafe { execute(op) },
        // Of no bytes this call, which takes a list, does not ask a device (`vfs_writev` in
        // fs/read_write.c), and the plain one does: `/dev/full` refuses it.
        // SAFETY: as above.
        Ok(0) if op.span().is_some_and(|span| span.len == 0) => unsafe { execute(op) },
        Ok(moved) => i32::try_from(moved).expect("a transfer is at most MAX_RW_COUNT"),
        Err(errno) => -errno,
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
    // SAFETY: passed on from the caller.
    unsafe { list_bytes(iovecs) }
}

/// The sum of a list of buffers: apart, because the compiler makes much of it.
///
/// # Safety
///
/// The list is valid.
#[inline(never)]
unsafe fn list_bytes(iovecs: Iovecs) -> usize {
    // SAFETY: the caller says so; an empty one has an address too.
    let list = unsafe { std::slice::from_raw_parts(iovecs.first, to_usize(iovecs.count)) };
    list.iter().map(|iovec| iovec.iov_len).sum()
}

/// The address of the first buffer of a list; 0 where there is none.
///
/// # Safety
///
/// The list is valid.
pub(crate) unsafe fn first_address(iovecs: Iovecs) -> usize {
    if iovecs.count == 0 {
        return 0;
    }
    // SAFETY: the caller says so, and it has an entry.
    unsafe { (*iovecs.first).iov_base }.addr()
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

/// How long a call of the pool takes.
pub(crate) struct Clocked {
    begun: Instant,
    switches: Option<i64>,
}

/// Whoever has waited has waited for longer; as [`Clocked::took_ns`] tells of those who have not.
const NOT_WAITED_NS: u32 = 1_000;

impl Clocked {
    /// Now. Of a write it is seen whether it gave its processor up: one that was only taken off it
    /// has not waited. (Of reads it is not, because of what it costs.)
    pub(crate) fn begin(op: &Op) -> Self {
        Self {
            switches: if op.is_write() { switches() } else { None },
            begun: Instant::now(),
        }
    }

    /// Nanoseconds since it began.
    pub(crate) fn took_ns(&self) -> u32 {
        let took_ns = u32::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
        let is_long = took_ns > 10 * NOT_WAITED_NS;
        match is_long && self.switches.is_some() && self.switches == switches() {
            true => NOT_WAITED_NS,
            false => took_ns,
        }
    }
}

/// Whether system calls of this thread are filtered (seccomp(2)).
pub(crate) fn is_filtered() -> bool {
    if cfg!(miri) {
        return false; // It does not know this call.
    }
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) != 0 }
}

pub(crate) fn to_usize(number: u32) -> usize {
    usize::try_from(number).expect("usize has 32 bits or more")
}

/// What a function of the C library says: -1 leaves the reason in `errno`.
fn said(result: isize) -> Said {
    usize::try_from(result).map_err(|_| last_errno())
}

fn last_errno() -> i32 {
    let failed = io::Error::last_os_error();
    failed.raw_os_error().unwrap_or(libc::EIO)
}

/// The system call itself. Reads and writes of one buffer are asked for first: a table of all
/// kinds, wherever a call is made, is a sixth of a read's instructions (`docs/design/hot-path.md`).
///
/// # Safety
///
/// As for [`execute`].
#[inline(always)]
unsafe fn call(op: &Op) -> Said {
    match *op {
        // SAFETY: passed on from the caller.
        _ if !op.wishes().is_none() => unsafe { other_call(op) },
        Op::ReadAt {
            fd, span, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { read_at(fd, span, offset) }
        }
        Op::WriteAt {
            fd, span, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { write_at(fd, span, offset) }
        }
        // SAFETY: as above.
        _ => unsafe { other_call(op) },
    }
}

/// As [`call`], of any other kind.
///
/// # Safety
///
/// As for [`execute`].
#[inline(never)]
unsafe fn other_call(op: &Op) -> Said {
    match *op {
        Op::Nop => Ok(0),
        // SAFETY: passed on from the caller.
        _ if !op.wishes().is_none() => unsafe { wished(op) },
        Op::ReadAt { .. }
        | Op::WriteAt { .. }
        | Op::ReadVectoredAt { .. }
        | Op::WriteVectoredAt { .. } => {
            // SAFETY: as above.
            unsafe { with_flags(op, ReadWriteFlags::empty()) }
        }
        Op::Sync { fd, data_only } => {
            // SAFETY: the caller vouches for the descriptor.
            unsafe { sync(fd, data_only) }
        }
        Op::Allocate {
            fd,
            mode,
            offset,
            len,
        } => {
            // SAFETY: no memory is involved.
            said(widen(unsafe {
                libc::fallocate64(fd, mode.0, signed(offset), signed(len))
            }))
        }
        Op::Metadata { fd, out } => {
            let told = statx(fd, c"", libc::AT_EMPTY_PATH, METADATA_MASK);
            let told = told.map_err(|cause| cause.raw_os_error().unwrap_or(libc::EIO))?;
            // SAFETY: the caller vouches for `out`.
            unsafe { out.write(told) };
            Ok(0)
        }
    }
}

/// A transfer with flags, and with a priority if it has one: the kernel takes that of the thread,
/// which gets its own back afterwards (ioprio_set(2)).
///
/// # Safety
///
/// As for [`execute`].
#[cold]
unsafe fn wished(op: &Op) -> Said {
    let before = match op.wishes().ioprio() {
        0 => None,
        // Where it is refused, that is said, and the caller tries without.
        ioprio => Some(swap_ioprio(ioprio)?),
    };
    let flags = ReadWriteFlags::from_bits_retain(op.wishes().rwf().cast_unsigned());
    // SAFETY: passed on from the caller.
    let result = unsafe { with_flags(op, flags) };
    if let Some(before) = before {
        // What was set before without a privilege can be set again.
        let _ = set_ioprio(before);
    }
    result
}

/// A transfer with these flags; EOPNOTSUPP if it is none.
///
/// # Safety
///
/// As for [`execute`].
#[inline]
unsafe fn with_flags(op: &Op, flags: ReadWriteFlags) -> Said {
    match *op {
        Op::ReadAt {
            fd, span, offset, ..
        } => {
            // SAFETY: passed on from the caller.
            unsafe { read_one(fd, span, offset, flags) }
        }
        Op::WriteAt {
            fd, span, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { write_one(fd, span, offset, flags) }
        }
        Op::ReadVectoredAt {
            fd, iovecs, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { read_list(fd, iovecs, offset, flags) }
        }
        Op::WriteVectoredAt {
            fd, iovecs, offset, ..
        } => {
            // SAFETY: as above.
            unsafe { write_list(fd, iovecs, offset, flags) }
        }
        Op::Nop | Op::Sync { .. } | Op::Allocate { .. } | Op::Metadata { .. } => {
            Err(libc::EOPNOTSUPP)
        }
    }
}

/// Gives this thread a priority, and returns the one it had.
fn swap_ioprio(ioprio: u16) -> Result<libc::c_long, i32> {
    /// `IOPRIO_CLASS_BE` above `IOPRIO_CLASS_SHIFT`, ioprio_set(2).
    const BEST_EFFORT: libc::c_long = 2 << 13;
    // SAFETY: no memory is involved.
    let before = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, THIS) };
    if before < 0 {
        return Err(last_errno());
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

fn set_ioprio(ioprio: libc::c_long) -> Result<(), i32> {
    // SAFETY: no memory is involved.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, THIS, ioprio) };
    if answer < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
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
pub(super) fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Span, Wishes};

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
            if let Err(errno) = set_ioprio(own) {
                let cause = io::Error::from_raw_os_error(errno);
                return eprintln!("skipped: priorities are refused: {cause}");
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
                // There is no such file.
                fd: i32::MAX,
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
