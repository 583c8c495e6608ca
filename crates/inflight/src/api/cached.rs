//! What is opened and asked for where it is awaited, because the kernel has it in its caches.
//!
//! A call that blocks is not made where a future is polled. But an open that finds its path in the
//! kernel's caches, of a regular file on a local file system, takes a microsecond and waits for
//! nothing; to have another thread make it takes ten times as long (`docs/design/calls.md`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fcntl_setfl, openat, openat2};
use rustix::io::Errno;

use super::mounts;
use super::open::{ALL, statx_cached};
use crate::backend::threads::execute::is_filtered;
use crate::host::choice::Wish;
use crate::host::shared::Shared;

/// Whether the kernel, or a filter, has refused to look into the caches only.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether a call may be made that the program may not have made itself.
///
/// A process may be ended for a call that is filtered (seccomp(2)), and this one is newer than
/// others. Who has made an engine under a filter, and has not ruled out io_uring, has let it ask
/// for a ring there, which is no less unusual.
fn may_ask(shared: &Shared, is_filtered: bool) -> bool {
    let config = &shared.config;
    let may_under_filter = config.was_filtered && matches!(config.wish, Wish::Auto | Wish::Uring);
    !IS_REFUSED.load(Ordering::Relaxed) && (may_under_filter || !is_filtered)
}

/// What has this name, if that is known without waiting and is on a local file system. It is not
/// opened for anything yet, so it may be anything, a FIFO too.
///
/// # Source
///
/// openat2(2): `RESOLVE_CACHED` (from Linux 5.12 on) fails with `EAGAIN` where the path is not in
/// the caches. open(2): `O_PATH` opens nothing.
fn find(path: &Path, mask: u32) -> Option<(OwnedFd, libc::statx)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(fd) => fd,
        // This is no name, and the kernel has not been asked.
        Err(Errno::INVAL) if path.as_os_str().as_bytes().contains(&0) => return None,
        Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => {
            IS_REFUSED.store(true, Ordering::Relaxed);
            return None;
        }
        // Whoever may wait finds out what it is.
        Err(_) => return None,
    };
    let statx = statx_cached(fd.as_fd(), mask).ok()?;
    mounts::is_known(&statx).then_some((fd, statx))
}

/// Opens a regular file that is there, if that waits for nothing, and says what is known of it.
///
/// An open may still wait for whom the system asks for permission (fanotify(7), security modules),
/// as one by the kernel's ring does.
pub(super) fn open(
    shared: &Shared,
    is_filtered: bool,
    path: &Path,
    flags: OFlags,
) -> Option<(OwnedFd, libc::statx)> {
    if !may_ask(shared, is_filtered) {
        return None;
    }
    let (place, found) = find(path, IDENTITY | libc::STATX_TYPE)?;
    if u32::from(found.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    // Who has a lease on the file is not waited for (fcntl(2), "Leases").
    let now = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(CWD, path, now, Mode::empty(), ResolveFlags::CACHED).ok()?;
    drop(place);
    let statx = statx_cached(file.as_fd(), ALL).ok()?;
    fcntl_setfl(&file, flags).ok()?;
    // The name may have been given to something else.
    (identity(&statx) == identity(&found)).then_some((file, statx))
}

const IDENTITY: u32 = libc::STATX_INO | libc::STATX_MNT_ID_UNIQUE;

fn identity(statx: &libc::statx) -> (u32, u32, u64) {
    (statx.stx_dev_major, statx.stx_dev_minor, statx.stx_ino)
}

/// What the file system tells of what has this name, if it tells without waiting.
pub(super) fn metadata(shared: &Shared, path: &Path) -> Option<libc::statx> {
    let (_, statx) = may_ask(shared, is_filtered()).then(|| find(path, ALL))??;
    Some(statx)
}

/// Learns on which kind of file system what has this name is; for whoever may wait.
#[cold]
pub(super) fn learn(path: &Path) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if let Ok(fd) = openat(CWD, path, flags, Mode::empty())
        && let Ok(statx) = statx_cached(fd.as_fd(), IDENTITY)
    {
        mounts::learn(fd.as_fd(), &statx);
    }
}

/// Whether to close a descriptor of a regular file, opened to be read, waits for nothing: nobody
/// has removed the file, whose space is given back when it is closed for the last time.
pub(super) fn closes_at_once(fd: BorrowedFd<'_>) -> bool {
    let mask = libc::STATX_NLINK | libc::STATX_MNT_ID_UNIQUE;
    let is_named =
        |statx: &libc::statx| statx.stx_mask & libc::STATX_NLINK != 0 && statx.stx_nlink > 0;
    statx_cached(fd, mask).is_ok_and(|statx| is_named(&statx) && mounts::is_known(&statx))
}
