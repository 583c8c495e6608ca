//! One direct transfer by Linux's older asynchronous calls (io_submit(2)), to see whether its file
//! can do transfers asynchronously.
//!
//! A file that cannot be asked not to wait (`RWF_NOWAIT`) may still only *start* direct transfers
//! within a call. A worker of the kernel, to which a ring hands what cannot be asked, has then soon
//! done with each; otherwise it waits for one after the other. The ring does not tell which of it
//! happens. This call does: it takes as long as the transfer where that is not asynchronous
//! (`fs/aio.c` of Linux calls the file system on the thread that submits).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;

use super::execute::{execute, is_filtered};
use crate::op::Op;

/// A request, as the kernel reads it. Source: `struct iocb` of linux/aio_abi.h, where the two
/// halves of the key are swapped on machines with the other byte order; both are zero here.
#[derive(Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
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

/// A completion, as the kernel writes it. Source: `struct io_event` of linux/aio_abi.h.
#[repr(C)]
struct IoEvent {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// As many are submitted, and waited for.
const ONE: libc::c_long = 1;

/// `IOCB_CMD_PREAD` and `IOCB_CMD_PWRITE` of linux/aio_abi.h.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;

/// Where requests are submitted: one context for the process, for good, because to destroy one
/// waits for other processors of the machine.
#[derive(Clone, Copy)]
enum Context {
    Unknown,
    /// The kernel has none for this process.
    None,
    Made {
        id: libc::c_ulong,
        /// A forked child has none of its parent's.
        by: u32,
    },
}

static CONTEXT: Mutex<Context> = Mutex::new(Context::Unknown);

/// Executes a transfer as [`execute`] does. Also says whether it was asynchronous, if that has been
/// seen.
///
/// # Safety
///
/// As for [`execute`].
pub(crate) unsafe fn execute_submitted(op: &Op) -> (i32, Option<bool>) {
    // SAFETY: passed on from the caller.
    match unsafe { submitted(op) } {
        Some((moved, is_asynchronous)) => (moved, Some(is_asynchronous)),
        // SAFETY: as above; what was submitted is over.
        None => (unsafe { execute(op) }, None),
    }
}

/// The bytes that were moved, and whether that was done after the call that submits. `None` where
/// nothing was submitted, and after an error, which is left to the plain call.
///
/// # Safety
///
/// As for [`execute`].
unsafe fn submitted(op: &Op) -> Option<(i32, bool)> {
    let (opcode, fd, span, offset) = match *op {
        Op::ReadAt {
            fd, span, offset, ..
        } => (PREAD, fd, span, offset),
        Op::WriteAt {
            fd, span, offset, ..
        } => (PWRITE, fd, span, offset),
        _ => return None,
    };
    // Held until the transfer is over; others need not wait for it. In a forked child it may be
    // held by a thread that is not there.
    let mut context = CONTEXT.try_lock().ok()?;
    // A process may be ended for a call that is filtered.
    if cfg!(miri) || is_filtered() {
        return None;
    }
    let id = made(&mut context)?;
    let mut request = Iocb {
        opcode,
        fd: u32::try_from(fd).ok()?,
        buffer: u64::try_from(span.start.addr()).ok()?,
        bytes: u64::try_from(span.len).ok()?,
        offset: i64::try_from(offset).ok()?,
        ..Iocb::default()
    };
    // The kernel writes through the address that it is given here.
    span.start.expose_provenance();
    let mut requests = [&raw mut request];
    // SAFETY: the list and the request are there until this returns; the caller keeps what the
    // request names until it is over, for which this waits below.
    let taken = unsafe { libc::syscall(libc::SYS_io_submit, id, ONE, requests.as_mut_ptr()) };
    if taken != ONE {
        return None;
    }
    let (result, is_asynchronous) = finished(id);
    drop(context);
    let moved = i32::try_from(result).ok().filter(|moved| *moved >= 0)?;
    Some((moved, is_asynchronous))
}

/// The context of this process, made now if there is none.
#[cold]
fn made(context: &mut Context) -> Option<libc::c_ulong> {
    let by = std::process::id();
    match *context {
        Context::Made { id, by: maker } if maker == by => return Some(id),
        Context::None => return None,
        Context::Made { .. } | Context::Unknown => {}
    }
    *context = Context::None;
    let mut id: libc::c_ulong = 0;
    // SAFETY: the kernel writes the id, which is zero before, into memory of its type.
    let answer = unsafe { libc::syscall(libc::SYS_io_setup, 1_u32, &raw mut id) };
    // What is submitted has to be waited for, so it is tried whether that is allowed.
    if answer == 0 && events(id, Wait::No, &mut MaybeUninit::uninit()) == 0 {
        *context = Context::Made { id, by };
        return Some(id);
    }
    None
}

/// Waits for what was submitted, and returns its result and whether there was something to wait
/// for. The kernel uses the memory until then.
///
/// One that is over is no proof: this thread may have lost its processor. One that is not over is.
fn finished(id: libc::c_ulong) -> (i64, bool) {
    let mut event = MaybeUninit::uninit();
    let mut taken = events(id, Wait::No, &mut event);
    let is_asynchronous = taken == 0;
    while taken != ONE {
        // It has worked when the context was made; a signal interrupts it.
        taken = events(id, Wait::Yes, &mut event);
    }
    // SAFETY: the kernel has filled it.
    let event = unsafe { event.assume_init_ref() };
    (event.result, is_asynchronous)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Yes,
}

/// Takes one completion if there is one, or waits for it. Returns how many that were; -1 after a
/// signal.
fn events(id: libc::c_ulong, wait: Wait, event: &mut MaybeUninit<IoEvent>) -> libc::c_long {
    let mut at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let (at_least, at_most) = match wait {
        Wait::No => (0, &raw mut at_once),
        Wait::Yes => (ONE, ptr::null_mut()),
    };
    let event = event.as_mut_ptr();
    // SAFETY: the kernel writes into `event`, which is one completion, and reads the time.
    unsafe { libc::syscall(libc::SYS_io_getevents, id, at_least, ONE, event, at_most) }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::op::{Span, Wishes};

    fn read(file: &fs::File, buf: &mut [u8], offset: u64) -> Op {
        Op::ReadAt {
            fd: file.as_raw_fd(),
            span: Span {
                start: buf.as_mut_ptr(),
                len: buf.len(),
                arena: None,
            },
            offset,
            wishes: Wishes::NONE,
        }
    }

    fn write(file: &fs::File, bytes: &mut [u8], offset: u64) -> Op {
        let Op::ReadAt { fd, span, .. } = read(file, bytes, offset) else {
            unreachable!("that is what it makes");
        };
        Op::WriteAt {
            fd,
            span,
            offset,
            wishes: Wishes::NONE,
        }
    }

    /// Tests run side by side, and one context serves one of them at a time.
    fn execute_until_seen(op: &Op) -> (i32, bool) {
        for _ in 0..1000 {
            // SAFETY: the buffer of the caller outlives this.
            if let (moved, Some(is_asynchronous)) = unsafe { execute_submitted(op) } {
                return (moved, is_asynchronous);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("nothing could be submitted");
    }

    /// Whether there is such a context here at all.
    fn can_submit() -> bool {
        let mut context = CONTEXT.lock().expect("no test fails with it");
        made(&mut context).is_some()
    }

    #[test]
    fn what_the_page_cache_has_is_not_asynchronous() {
        if !can_submit() {
            return eprintln!("skipped: asynchronous calls: the kernel has none here");
        }
        let mut file = tempfile::tempfile().expect("the temporary directory can be written");
        file.write_all(&[7; 10_000]).expect("there is room");
        let mut bytes = [0; 4096];
        let op = read(&file, &mut bytes, 4096);
        assert_eq!(execute_until_seen(&op), (4096, false));
        assert_eq!(bytes, [7; 4096]);
        let op = read(&file, &mut bytes, 8192);
        assert_eq!(execute_until_seen(&op).0, 10_000 - 8192);
        bytes.fill(9);
        let op = write(&file, &mut bytes, 0);
        assert_eq!(execute_until_seen(&op), (4096, false));
        let op = read(&file, &mut bytes, 4000);
        assert_eq!(execute_until_seen(&op).0, 4096);
        assert_eq!((bytes[95], bytes[96]), (9, 7));
    }

    #[test]
    fn errors_are_those_of_the_plain_call() {
        let file = fs::File::open("/dev/null").expect("it is there");
        let mut bytes = [0; 16];
        let op = write(&file, &mut bytes, 0);
        // SAFETY: the buffer outlives the call.
        let (result, is_asynchronous) = unsafe { execute_submitted(&op) };
        assert_eq!((result, is_asynchronous), (-libc::EBADF, None));
    }
}
