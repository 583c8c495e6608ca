//! Errors that are more than an errno: what went wrong, why, and what to do about it.
//!
//! Operations return [`std::io::Error`]. Where one of the types here is the cause, it is found
//! with [`std::io::Error::get_ref`] and `downcast_ref`, and the errno in it with [`errno_of`].

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The errno of an error, also of one that says more than an errno.
///
/// An [`io::Error`] has an errno or something more to tell, never both: its
/// [`raw_os_error`](io::Error::raw_os_error) is `None` for [`Partial`], [`SyncFailed`],
/// [`WishRefused`], [`WrongAccess`], [`BadRange`], [`NoPositions`], [`NoThread`] and
/// [`SetupError`], which have it themselves. This looks there too. `None` for what is not from the
/// kernel: the end of a file ([`Ended`]), or a refusal of this library ([`Misaligned`],
/// [`Forked`]).
///
/// ```
/// use std::io;
/// use inflight::{Partial, errno_of};
///
/// // As `write_all_at` fails when the disk is full after 4096 bytes.
/// let full = Partial { done_bytes: 4096, errno: 28 };
/// let error = io::Error::new(io::ErrorKind::StorageFull, full);
/// assert_eq!((error.raw_os_error(), errno_of(&error)), (None, Some(28)));
/// ```
pub fn errno_of(error: &io::Error) -> Option<i32> {
    if let Some(errno) = error.raw_os_error() {
        return Some(errno);
    }
    let told = error.get_ref()?;
    let partial = told.downcast_ref().map(|partial: &Partial| partial.errno);
    let sync = || told.downcast_ref().map(|failed: &SyncFailed| failed.errno);
    let wish = || {
        told.downcast_ref()
            .map(|refused: &WishRefused| refused.errno)
    };
    let thread = || told.downcast_ref::<NoThread>()?.cause.raw_os_error();
    let setup = || told.downcast_ref::<SetupError>()?.cause()?.raw_os_error();
    let access = || told.downcast_ref().map(|wrong: &WrongAccess| wrong.errno);
    let range = || told.is::<BadRange>().then_some(libc::EINVAL);
    let positions = || told.is::<NoPositions>().then_some(libc::ESPIPE);
    let errno = partial.or_else(sync).or_else(wish).or_else(thread);
    let errno = errno.or_else(access).or_else(range).or_else(positions);
    errno.or_else(setup)
}

/// Why an engine could not be opened as it was asked for.
///
/// Beside a wrong `INFLIGHT_BACKEND`, and `Engine::serve_on_tokio` by its own reasons, only a
/// demanded backend can fail: with the default, `auto`, an engine falls back to Linux's older
/// asynchronous calls and threads, or to threads alone, and [`crate::Engine::backend`] tells why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// The kernel refuses io_uring to this process (`EPERM`), or does not know it (`ENOSYS`), or
    /// not what this library asks it first (`EINVAL`; Linux 5.1 to 5.5).
    Forbidden {
        /// The kernel's answer.
        cause: Arc<io::Error>,
        /// Who refuses, as far as the process can see.
        by: RefusedBy,
    },
    /// Memory for the ring was refused (`ENOMEM`), also for the smallest ring.
    Memory {
        /// The kernel's answer.
        cause: Arc<io::Error>,
        /// `RLIMIT_MEMLOCK` of this process in bytes; `None` when unlimited.
        memlock_bytes: Option<u64>,
    },
    /// Any other refusal, as too many open files (`EMFILE`).
    Refused {
        /// The kernel's answer; without an errno, what the library says.
        cause: Arc<io::Error>,
    },
    /// The kernel has io_uring, but of an age that is not used unless it is demanded.
    TooOld,
    /// The kernel refuses Linux AIO (io_setup(2)).
    NoAio {
        /// The kernel's answer.
        cause: Arc<io::Error>,
        /// Whether a seccomp filter is installed, which may be what refuses.
        is_filtered: bool,
    },
    /// `Engine::serve_on_tokio` was called outside a tokio runtime.
    NoRuntime,
    /// `INFLIGHT_BACKEND` has a value that is not a backend.
    UnknownBackend {
        /// The value.
        value: String,
    },
}

/// Who keeps io_uring from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusedBy {
    /// `kernel.io_uring_disabled` is 1 or 2.
    Sysctl(u32),
    /// A seccomp filter is installed, and the sysctl does not forbid it.
    Seccomp,
    /// The kernel was built without io_uring, or is older than 5.6.
    Kernel,
    /// Something else: a security module, or a sandbox that hides its reason.
    Unknown,
}

impl fmt::Display for RefusedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(value) => write!(f, "the sysctl kernel.io_uring_disabled={value}"),
            Self::Seccomp => write!(f, "a seccomp filter, as container runtimes install it"),
            Self::Kernel => write!(f, "a kernel without io_uring, or older than 5.6"),
            Self::Unknown => write!(f, "a security module or sandbox"),
        }
    }
}

impl RefusedBy {
    fn remedy(self) -> &'static str {
        match self {
            Self::Sysctl(1) => {
                "add the process to the group in kernel.io_uring_group, or set \
                 kernel.io_uring_disabled=0"
            }
            Self::Sysctl(_) => "set kernel.io_uring_disabled=0 on the host",
            Self::Seccomp => {
                "allow io_uring_setup, io_uring_enter and io_uring_register in the container's \
                 seccomp profile"
            }
            Self::Kernel => {
                "use a kernel with CONFIG_IO_URING: from 6.1 on it is used by itself, from 5.6 on \
                 if it is demanded (INFLIGHT_BACKEND=uring)"
            }
            Self::Unknown => "look in the kernel's audit log for who denies io_uring_setup",
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden { cause, by } => {
                write!(f, "io_uring is refused by {by} ({cause}); {}", by.remedy())
            }
            Self::Memory {
                cause,
                memlock_bytes,
            } => {
                write!(f, "no memory for a ring ({cause}): ")?;
                match memlock_bytes {
                    Some(bytes) => write!(
                        f,
                        "RLIMIT_MEMLOCK is {bytes} bytes for all rings of this user; raise it \
                         (ulimit -l, LimitMEMLOCK=) or use fewer threads"
                    ),
                    None => write!(f, "the machine or the memory cgroup is out of memory"),
                }
            }
            // It is the library that refuses, and says why.
            Self::Refused { cause } if cause.raw_os_error().is_none() => write!(f, "{cause}"),
            Self::Refused { cause } => write!(f, "io_uring could not be set up: {cause}"),
            Self::TooOld => write!(
                f,
                "this kernel's io_uring has no deferred task work (Linux 6.1); demand it with \
                 INFLIGHT_BACKEND=uring if it has to be used all the same"
            ),
            Self::NoAio { cause, is_filtered } => {
                write!(
                    f,
                    "asynchronous calls (io_setup, io_submit) are refused: {cause}; "
                )?;
                f.write_str(match (cause.raw_os_error(), is_filtered) {
                    (Some(libc::EAGAIN), _) => "raise the sysctl fs.aio-max-nr on the host",
                    (Some(libc::EMFILE), _) => {
                        "raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE=) or keep fewer files open"
                    }
                    (Some(libc::ENFILE), _) => "raise the sysctl fs.file-max on the host",
                    (Some(libc::ENOMEM), _) => {
                        "the machine or the memory cgroup is out of memory, or the process of \
                         addresses (RLIMIT_AS)"
                    }
                    (Some(libc::EPERM | libc::EACCES), _) | (Some(libc::ENOSYS), true) => {
                        "allow io_setup, io_submit, io_getevents and io_destroy in the seccomp \
                         profile"
                    }
                    _ => "use a kernel from 4.19 on with CONFIG_AIO",
                })
            }
            Self::NoRuntime => f.write_str(
                "there is no tokio runtime here that could serve the engine; call serve_on_tokio \
                 within it: in `block_on`, or in a function under `#[tokio::main]`",
            ),
            Self::UnknownBackend { value } => write!(
                f,
                "INFLIGHT_BACKEND={value:?} is not a backend; use uring, aio, threads or auto"
            ),
        }
    }
}

impl SetupError {
    fn cause(&self) -> Option<&io::Error> {
        match self {
            Self::Forbidden { cause, .. }
            | Self::Memory { cause, .. }
            | Self::Refused { cause }
            | Self::NoAio { cause, .. } => Some(cause),
            Self::TooOld | Self::NoRuntime | Self::UnknownBackend { .. } => None,
        }
    }
}

impl Error for SetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause()?)
    }
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> Self {
        Self::other(error)
    }
}

/// The engine was made before a `fork`, and this is the child: its rings and threads belong to
/// the parent. Open the files anew in the child, with its own global engine, which is made when it
/// is needed, or with a new [`crate::Engine`].
///
/// As after any fork of a process with threads, a lock that another thread held at that moment
/// stays locked in the child: [`crate::BufPool`] has one.
/// Rust's standard library has one too, which threads take when they start and when they end. A
/// child that starts threads (drivers, those of the pool, or its own) may therefore hang if a
/// thread of the parent was just starting or ending: fork while none comes or goes, or execute a
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked;

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this engine was made before fork and belongs to the parent process; open the file \
             anew in the child, with the global engine or a new one",
        )
    }
}

impl Error for Forked {}

/// The engine has no thread, neither a driver nor one of its pool, and none could be started, so
/// nothing can be awaited outside a run loop, and what blocks nowhere (pthread_create(3),
/// `EAGAIN`). Try later, raise the limit on threads, or wait for the operation on a thread of your
/// own.
#[derive(Clone, Debug)]
pub struct NoThread {
    /// Why no thread could be started.
    pub cause: Arc<io::Error>,
}

impl fmt::Display for NoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no thread could be started ({}); raise the limit on threads (RLIMIT_NPROC: ulimit -u; \
             or pids.max of the cgroup), or use wait() on a thread of your own",
            self.cause
        )
    }
}

impl Error for NoThread {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

impl From<NoThread> for io::Error {
    fn from(error: NoThread) -> Self {
        // Not as its cause, EAGAIN, which adapters take for "not ready yet" and wait.
        Self::new(io::ErrorKind::ResourceBusy, error)
    }
}

/// Direct I/O is required for the file, and the request does not fit its alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misaligned {
    /// The address of every buffer has to be a multiple of this, in bytes.
    pub memory_bytes: u32,
    /// Offset and length have to be multiples of this, in bytes.
    pub offset_bytes: u32,
    /// Whether the offset does not fit.
    pub offset: bool,
    /// Whether the length does not fit, or that of a buffer of several.
    pub len: bool,
    /// Whether the address of a buffer does not fit.
    pub address: bool,
}

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.offset, "the offset"),
            (self.len, "the length"),
            (self.address, "the address of the buffer"),
        ];
        let misfits = parts.iter().filter(|(does_not_fit, _)| *does_not_fit);
        let misfits: Vec<_> = misfits.map(|(_, part)| *part).collect();
        let remedy = if self.address { "AlignedBuf, " } else { "" };
        write!(
            f,
            "direct I/O on this file needs offset and length in multiples of {} bytes and \
             buffers aligned to {} bytes; what does not fit: {}; use {remedy}Direct::Auto, or \
             any_range (Reads, or ReadsAndWrites; not for lists of buffers, read_many and \
             write_many)",
            self.offset_bytes,
            self.memory_bytes,
            misfits.join(", "),
        )
    }
}

impl Error for Misaligned {}

/// The file has no positions (`ESPIPE`), so nothing can be read or written at one: it is a pipe, a
/// socket, a terminal or another stream, or was opened with `O_PATH`. Some streams of the kernel
/// look like files (`/dev/kmsg`, many below `/sys/kernel/tracing`), and the kernel takes a transfer
/// at a position for one in order there, or does so on one road only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPositions;

impl fmt::Display for NoPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this has no positions (lseek(2)): it is a stream, as a pipe, a socket, a terminal or \
             a log of the kernel, or was opened with O_PATH; read and write it in order, by \
             std::fs::File (File::into_std) or by what the runtime has for streams",
        )
    }
}

impl Error for NoPositions {}

/// The file was not opened for this: it is open for reading only and was to be changed, or for
/// writing only and was to be read. Nothing was done. The error is of the kind `InvalidInput`
/// (the permissions of the file are not what refuses). Where the file is open for what was asked,
/// `EBADF` is somebody else's answer, as of a program that serves the file, and told as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongAccess {
    /// Whether it would have to be open for writing; else for reading.
    pub is_write: bool,
    /// The kernel's answer: `EBADF`, and `EINVAL` to a new length.
    pub errno: i32,
}

impl fmt::Display for WrongAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = io::Error::from_raw_os_error(self.errno);
        match self.is_write {
            true => write!(
                f,
                "the file was opened for reading only, as File::open does, and this changes it \
                 ({cause}); open it by OpenOptions with write(true), if it is no directory"
            ),
            false => write!(
                f,
                "the file was opened for writing only, as File::create does, and this reads it \
                 ({cause}); open it by OpenOptions with read(true) as well"
            ),
        }
    }
}

impl Error for WrongAccess {}

impl From<WrongAccess> for io::Error {
    fn from(wrong: WrongAccess) -> Self {
        Self::new(io::ErrorKind::InvalidInput, wrong)
    }
}

/// No file has such a range (`EINVAL`). Nothing was done. The error is of the kind `InvalidInput`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRange {
    /// It ends beyond the largest offset, `i64::MAX`.
    TooFar,
    /// It has no bytes, of which nothing can be reserved or freed (fallocate(2)).
    Empty,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFar => write!(
                f,
                "the range ends beyond the largest offset there is, {} (i64::MAX): offset and \
                 length are counted in bytes from the start of the file, and \
                 File::metadata tells where a regular one ends",
                i64::MAX
            ),
            Self::Empty => f.write_str(
                "no bytes are to be reserved or freed; give a length, or leave the call out",
            ),
        }
    }
}

impl Error for BadRange {}

impl From<BadRange> for io::Error {
    fn from(bad: BadRange) -> Self {
        Self::new(io::ErrorKind::InvalidInput, bad)
    }
}

/// A wish that changes what a transfer means was refused, and the transfer was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WishRefused {
    /// The wishes, by the names of their methods; there may be two of them, of which the kernel
    /// does not tell which one it refuses.
    pub wishes: &'static str,
    /// The kernel's answer: `EOPNOTSUPP`, or `ENOSYS` where it has no wishes at all.
    pub errno: i32,
}

impl fmt::Display for WishRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the file system or the kernel refuses {} for this transfer ({}); ask without it{}",
            self.wishes,
            io::Error::from_raw_os_error(self.errno),
            match self.wishes {
                "dsync" => ", and make it durable by then_sync or sync_data",
                _ => "",
            }
        )
    }
}

impl Error for WishRefused {}

/// A sync of this file failed before, so what was written may be lost, and the kernel would
/// report success now (fsync(2), NOTES): every later sync of this handle is refused.
/// [`File::sync_all`](crate::fs::File::sync_all) says how to recover.
///
/// The error has the kind of the errno, but its `raw_os_error` is `None`: see [`errno_of`].
///
/// As the answer to a write with [`dsync`](crate::fs::WriteAt::dsync), this says of its record what
/// an error of the device says there: nobody knows whether it is durable, and after a crash it may
/// be found or not. Later writes with `dsync` are made all the same, and one that succeeds is
/// durable; but where records count only with all before them, none behind this one does, so the
/// log ends here and goes on in another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncFailed {
    /// The errno of the sync that failed.
    pub errno: i32,
}

impl fmt::Display for SyncFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an earlier sync of this file failed ({}): data may be lost, and a repeated sync \
             cannot tell; open the file anew, or better another one, write again what was not \
             acknowledged, and sync that",
            io::Error::from_raw_os_error(self.errno)
        )
    }
}

impl Error for SyncFailed {}

impl From<SyncFailed> for io::Error {
    fn from(failed: SyncFailed) -> Self {
        let cause = Self::from_raw_os_error(failed.errno);
        Self::new(cause.kind(), failed)
    }
}

/// A whole transfer (`*_exact`, `*_all`) failed after a part of it had been moved.
///
/// The error has the kind of the errno, but its `raw_os_error` is `None`: see [`errno_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Bytes moved before the error.
    pub done_bytes: usize,
    /// The errno that ended it.
    pub errno: i32,
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = io::Error::from_raw_os_error(self.errno);
        write!(f, "{cause}, after {} bytes", self.done_bytes)
    }
}

impl Error for Partial {}

/// A whole transfer (`*_exact`, `*_all`) ended early though nothing failed: a read met the end of
/// the file (`UnexpectedEof`), or the kernel took no more of a write (`WriteZero`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Bytes moved before the end.
    pub done_bytes: usize,
    /// Bytes that were to be moved.
    pub asked_bytes: usize,
    /// Whether they were to be written.
    pub is_write: bool,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            done_bytes,
            asked_bytes,
            is_write,
        } = self;
        match is_write {
            true => write!(
                f,
                "{done_bytes} of {asked_bytes} bytes were written, and no more were taken, though \
                 nothing failed"
            ),
            false => write!(
                f,
                "the file ended after {done_bytes} of {asked_bytes} bytes"
            ),
        }
    }
}

impl Error for Ended {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_is_found_in_whatever_has_one() {
        let errno = libc::ENOSPC;
        let partial = Partial {
            done_bytes: 1,
            errno,
        };
        let wishes = "dsync";
        let others = [
            io::Error::other(partial),
            io::Error::other(SyncFailed { errno }),
            io::Error::other(WishRefused { wishes, errno }),
            io::Error::from(WrongAccess {
                is_write: true,
                errno,
            }),
            io::Error::from(SetupError::Refused {
                cause: Arc::new(io::Error::from_raw_os_error(errno)),
            }),
        ];
        assert!(others.iter().all(|error| error.raw_os_error().is_none()));
        assert!(others.iter().all(|error| errno_of(error) == Some(errno)));
        let bare = io::Error::from_raw_os_error(errno);
        assert_eq!(errno_of(&bare), Some(errno));
        let bad = [BadRange::TooFar, BadRange::Empty].map(io::Error::from);
        assert!(bad.iter().all(|bad| errno_of(bad) == Some(libc::EINVAL)));
        assert_eq!(errno_of(&io::Error::other(Forked)), None);
        assert_eq!(errno_of(&SetupError::TooOld.into()), None);
        assert_eq!(errno_of(&io::ErrorKind::NotFound.into()), None);
    }

    #[test]
    fn the_remedy_for_a_kernel_names_the_one_that_is_used_by_itself() {
        let refused = SetupError::Forbidden {
            cause: Arc::new(io::Error::from_raw_os_error(libc::ENOSYS)),
            by: RefusedBy::Kernel,
        };
        let told = refused.to_string();
        let parts = ["6.1", "5.6", "INFLIGHT_BACKEND=uring", "CONFIG_IO_URING"];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
}
