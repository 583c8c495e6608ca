//! Setting a ring up, and asking the kernel what it can do: by trying, never by its version.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode};

use crate::backend::threads::execute::is_filtered;
use crate::error::{RefusedBy, SetupError};
use crate::op::KINDS;

/// What the kernel's io_uring can do for this process, asked once for an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Features {
    /// For each kind of operation whether the kernel has it.
    pub(crate) kinds: [bool; KINDS],
    /// Whether task work waits until the owner of the ring asks for it.
    pub(crate) deferred: bool,
}

/// A ring that has just been set up.
pub(crate) struct Opened {
    pub(crate) ring: IoUring,
    /// Whether task work waits until the owner of the ring asks for it.
    pub(crate) deferred: bool,
}

/// Set-up flags, newest first. A kernel that does not know one answers EINVAL
/// (io_uring_setup(2)), and the next rung is tried.
const OWNED: &[&[Flag]] = {
    use Flag::*;
    &[
        &[SubmitAll, SingleIssuer, DeferTaskrun, ToldOfWork, NoSqarray], // Linux 6.6
        &[SubmitAll, SingleIssuer, DeferTaskrun, ToldOfWork],            // 6.1
        &[SubmitAll, SingleIssuer, CoopTaskrun, ToldOfWork],             // 6.0
        &[SubmitAll, CoopTaskrun, ToldOfWork],                           // 5.19
        &[SubmitAll],                                                    // 5.18
        &[],
    ]
};

/// The same for a ring that any thread enters, one at a time. Task work waits until the thread that
/// has submitted enters the kernel for whatever reason, a tick of the clock at the latest; one that
/// sleeps is woken for it.
#[cfg(feature = "tokio")]
const SHARED: &[&[Flag]] = {
    use Flag::*;
    &[
        &[SubmitAll, CoopTaskrun, ToldOfWork, NoSqarray],
        &[SubmitAll, CoopTaskrun, ToldOfWork],
        &[SubmitAll],
        &[],
    ]
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flag {
    SubmitAll,
    SingleIssuer,
    DeferTaskrun,
    CoopTaskrun,
    ToldOfWork,
    NoSqarray,
}

/// Fewest entries that are still worth a ring.
const ENTRIES_MIN: u32 = 8;

/// How often memory is asked for again. Rings of threads that have just ended are refunded late:
/// the kernel tears a ring down in the background.
const MEMORY_RETRIES: u32 = 5;
const MEMORY_RETRY_AFTER: Duration = Duration::from_millis(20);

/// A new ring of `entries`, or of fewer when memory is short.
///
/// # Errors
///
/// Why there is none, with who refuses and what to do.
pub(crate) fn open(entries: u32) -> Result<Opened, SetupError> {
    open_one(entries, OWNED)
}

/// As [`open`], a ring that any thread may enter, one at a time.
///
/// # Errors
///
/// As there.
#[cfg(feature = "tokio")]
pub(crate) fn open_shared(entries: u32) -> Result<Opened, SetupError> {
    open_one(entries, SHARED)
}

fn open_one(entries: u32, ladder: &[&[Flag]]) -> Result<Opened, SetupError> {
    let mut retries = 0;
    let mut size = entries.max(ENTRIES_MIN);
    loop {
        match climb_down(size, ladder) {
            Ok(opened) => return Ok(opened),
            Err(cause) if cause.raw_os_error() == Some(libc::ENOMEM) => {
                if size > ENTRIES_MIN {
                    size = (size / 2).max(ENTRIES_MIN);
                } else if retries < MEMORY_RETRIES {
                    retries += 1;
                    thread::sleep(MEMORY_RETRY_AFTER);
                } else {
                    return Err(explain(cause));
                }
            }
            Err(cause) => return Err(explain(cause)),
        }
    }
}

fn climb_down(entries: u32, ladder: &[&[Flag]]) -> io::Result<Opened> {
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in ladder {
        let mut builder = IoUring::builder();
        // A child after fork must not write into the parent's ring.
        builder.dontfork();
        for flag in *flags {
            match flag {
                Flag::SubmitAll => builder.setup_submit_all(),
                Flag::SingleIssuer => builder.setup_single_issuer(),
                Flag::DeferTaskrun => builder.setup_defer_taskrun(),
                Flag::CoopTaskrun => builder.setup_coop_taskrun(),
                Flag::ToldOfWork => builder.setup_taskrun_flag(),
                Flag::NoSqarray => builder.setup_no_sqarray(),
            };
        }
        match builder.build(entries) {
            Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => refusal = cause,
            Err(cause) => return Err(cause),
            Ok(ring) => {
                return Ok(Opened {
                    ring,
                    deferred: flags.contains(&Flag::DeferTaskrun),
                });
            }
        }
    }
    Err(refusal)
}

/// Asks a ring what it can do, and whether it may be entered at all: a filter can allow the
/// set-up and refuse the rest.
pub(crate) fn features(opened: &mut Opened) -> Result<Features, SetupError> {
    let Opened { ring, deferred } = opened;
    let mut probe = Probe::new();
    let asked = ring.submitter().register_probe(&mut probe);
    asked.map_err(|cause| match cause.raw_os_error() {
        // io_uring_register(2), IORING_REGISTER_PROBE: since Linux 5.6, unknown before.
        Some(libc::EINVAL) => SetupError::Forbidden {
            cause: Arc::new(cause),
            by: RefusedBy::Kernel,
        },
        _ => explain(cause),
    })?;
    push_nop(ring)?;
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => break,
            Err(cause) if cause.raw_os_error() == Some(libc::EINTR) => {}
            Err(cause) => return Err(explain(cause)),
        }
    }
    let answered = ring
        .completion()
        .next()
        .is_some_and(|answer| answer.result() == 0);
    if !answered {
        let cause = io::Error::other("a no-op on a new ring was not answered");
        return Err(SetupError::Refused {
            cause: Arc::new(cause),
        });
    }
    let mut kinds = [false; KINDS];
    let codes = [
        opcode::Nop::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::Statx::CODE,
    ];
    for (kind, code) in kinds.iter_mut().zip(codes) {
        *kind = probe.is_supported(code);
    }
    Ok(Features {
        kinds,
        deferred: *deferred,
    })
}

fn push_nop(ring: &mut IoUring) -> Result<(), SetupError> {
    // SAFETY: a no-op touches no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(|full| SetupError::Refused {
        cause: Arc::new(io::Error::other(full)),
    })
}

/// Names the cause of a refusal and, as far as this process can see, who refuses.
pub(crate) fn explain(cause: io::Error) -> SetupError {
    let errno = cause.raw_os_error();
    let cause = Arc::new(cause);
    match errno {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => SetupError::Forbidden {
            cause,
            by: who_refuses(errno == Some(libc::ENOSYS)),
        },
        Some(libc::ENOMEM) => SetupError::Memory {
            cause,
            memlock_bytes: memlock_bytes(),
        },
        _ => SetupError::Refused { cause },
    }
}

fn who_refuses(unknown_call: bool) -> RefusedBy {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // Kernel documentation, admin-guide/sysctl/kernel, io_uring_disabled: 1 leaves it to a
    // group, 2 forbids it to all.
    let sysctl = read("/proc/sys/kernel/io_uring_disabled");
    if let (Ok(value @ 1..), false) = (sysctl.trim().parse(), unknown_call) {
        return RefusedBy::Sysctl(value);
    }
    match (is_filtered(), unknown_call) {
        (true, _) => RefusedBy::Seccomp,
        (false, true) => RefusedBy::Kernel,
        (false, false) => RefusedBy::Unknown,
    }
}

/// `RLIMIT_MEMLOCK`, soft; `None` when unlimited.
fn memlock_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours to be filled.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
