//! One direct transfer by Linux AIO (io_submit(2)), to see whether its file
//! can do transfers asynchronously.
//!
//! A file that cannot be asked not to wait (`RWF_NOWAIT`) may still only *start* direct transfers
//! within a call. A worker of the kernel, to which a ring hands what cannot be asked, has then soon
//! done with each; otherwise it waits for one after the other. The ring does not tell which of it
//! happens. This call does: it takes as long as the transfer where that is not asynchronous
//! (`fs/aio.c` of Linux calls the file system on the thread that submits).
#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::calls::{self, IoEvent, Iocb};
use crate::backend::threads::execute::{execute, is_filtered};
use crate::fork::Process;
use crate::op::Op;

/// Where requests are submitted: one context for the process, for good, because to destroy one
/// waits for other processors of the machine.
#[derive(Clone, Copy)]
enum Context {
    Unknown,
    /// The kernel has none for this process.
    None,
    Made {
        id: c_ulong,
        /// A forked child has none of its parent's.
        by: Process,
    },
}

/// Whether these calls have been made before in this process, under the filter that it has.
static ARE_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Whether such calls can be made on this thread without harm: a process may be ended for one that
/// is filtered.
pub(super) fn are_allowed() -> bool {
    !is_filtered() || ARE_ALLOWED.load(Ordering::Relaxed)
}

/// Such calls have been made on this thread.
pub(super) fn allow() {
    if is_filtered() {
        ARE_ALLOWED.store(true, Ordering::Relaxed);
    }
}

/// How often what cannot be waited for is looked for.
const REFUSED_RETRY_AFTER: Duration = Duration::from_millis(1);

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
        Some((result, is_asynchronous)) => (result, Some(is_asynchronous)),
        // SAFETY: as above; what was submitted is over.
        None => (unsafe { execute(op) }, None),
    }
}

/// The result, and whether that was there after the call that submits. `None` where nothing was
/// submitted, and after an error, which is left to the plain call, unless it is told once.
///
/// # Safety
///
/// As for [`execute`].
unsafe fn submitted(op: &Op) -> Option<(i32, bool)> {
    // Held until the transfer is over; others need not wait for it. In a forked child it may be
    // held by a thread that is not there.
    let mut context = CONTEXT.try_lock().ok()?;
    // Engines that cannot do without these calls have seen that they are allowed.
    if cfg!(miri) || !are_allowed() {
        return None;
    }
    let id = made(&mut context)?;
    let mut request = Iocb::transfer(0, op, 0)?;
    // SAFETY: the caller keeps what the request names until it is over, for which this waits below.
    let taken = unsafe { calls::submit(id, std::slice::from_mut(&mut request)) };
    if !matches!(taken, Ok(1)) {
        return None;
    }
    let (result, is_asynchronous) = finished(id);
    drop(context);
    let result = i32::try_from(result).ok()?;
    let stands = result >= 0 || op.is_told_once(result);
    stands.then_some((result, is_asynchronous))
}

/// The context of this process, made now if there is none.
#[cold]
fn made(context: &mut Context) -> Option<c_ulong> {
    let by = Process::this();
    match *context {
        Context::Made { id, by: maker } if maker == by => return Some(id),
        Context::None => return None,
        Context::Made { .. } | Context::Unknown => {}
    }
    *context = Context::None;
    let id = calls::set_up(1).ok()?;
    // What is submitted has to be waited for, so it is tried whether that is allowed.
    let none = calls::take(id, 0, &mut [MaybeUninit::uninit()], Some(Duration::ZERO));
    if matches!(none, Ok(0)) {
        *context = Context::Made { id, by };
        return Some(id);
    }
    None
}

/// Waits for what was submitted, and returns its result and whether there was something to wait
/// for. The kernel uses the memory until then.
///
/// One that is over is no proof: this thread may have lost its processor. One that is not over is.
fn finished(id: c_ulong) -> (i64, bool) {
    let mut place = [MaybeUninit::<IoEvent>::uninit()];
    let mut taken = calls::take(id, 0, &mut place, Some(Duration::ZERO));
    let is_asynchronous = matches!(taken, Ok(0));
    while !matches!(taken, Ok(1)) {
        // It has worked when the context was made. A signal interrupts it; a filter that was
        // installed meanwhile may refuse it for ever.
        if taken.is_err_and(|cause| cause.kind() != io::ErrorKind::Interrupted) {
            thread::sleep(REFUSED_RETRY_AFTER);
        }
        taken = calls::take(id, 1, &mut place, None);
    }
    // SAFETY: the kernel has filled it.
    let event = unsafe { place[0].assume_init_ref() };
    (event.result, is_asynchronous)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::ffi::CStr;
    use std::fs;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::OpenOptionsExt;

    use super::super::read_of;
    use super::*;
    use crate::op::Wishes;

    fn read(file: &fs::File, buf: &mut [u8], offset: u64) -> Op {
        read_of(file.as_raw_fd(), buf, offset)
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
            if let (result, Some(is_asynchronous)) = unsafe { execute_submitted(op) } {
                return (result, is_asynchronous);
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

    /// A terminal whose other end is closed is a device that fails.
    fn hung_up() -> io::Result<fs::File> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it has just been opened, and nobody else has it.
        let master = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        unsafe { libc::unlockpt(master.as_raw_fd()) };
        let mut name = [0; 64];
        // SAFETY: `name` is ours to be filled.
        let named = unsafe { libc::ptsname_r(fd, name.as_mut_ptr(), name.len()) };
        assert_eq!(named, 0, "{}", io::Error::from_raw_os_error(named));
        // SAFETY: it has been filled.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(libc::O_NOCTTY);
        options.open(name.to_str().expect("it is a path"))
    }

    /// Whether such a call takes it, whatever comes of it. Before Linux 5.11 none of a terminal is.
    fn is_taken(op: &Op) -> bool {
        let mut context = CONTEXT.lock().expect("no test fails with it");
        let Some(id) = made(&mut context) else {
            return false;
        };
        let mut request = Iocb::transfer(0, op, 0).expect("it is a transfer");
        // SAFETY: the buffer of the caller outlives this, which waits for what is taken.
        let taken = unsafe { calls::submit(id, std::slice::from_mut(&mut request)) };
        let is_taken = matches!(taken, Ok(1));
        if is_taken {
            finished(id);
        }
        is_taken
    }

    #[test]
    fn what_a_device_says_of_a_write_is_not_asked_for_again() {
        let file = match hung_up() {
            Ok(file) => file,
            Err(cause) => return eprintln!("skipped: terminals: {cause}"),
        };
        let mut bytes = [0; 16];
        let op = write(&file, &mut bytes, 0);
        if !is_taken(&op) {
            return eprintln!("skipped: asynchronous calls: the kernel has none here");
        }
        assert_eq!(execute_until_seen(&op), (-libc::EIO, false));
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
