//! What is opened and asked for where it is awaited, because the kernel has it in its caches.
//!
//! A call that blocks is not made where a future is polled. But an open that finds its path in the
//! kernel's caches, of a regular file on a local file system, takes a microsecond and waits for
//! nothing; to have another thread make it takes ten times as long (`docs/design/calls.md`).

use std::cell::Cell;
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

/// What has this name, if the kernel has it in its caches. It is not opened for anything, so it may
/// be anything, a FIFO too.
///
/// # Source
///
/// openat2(2): `RESOLVE_CACHED` (from Linux 5.12 on) fails with `EAGAIN` where the path is not in
/// the caches. open(2): `O_PATH` opens nothing.
fn look(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let found = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED);
    match found {
        // This is no name, and the kernel has not been asked.
        Err(Errno::INVAL) if path.as_os_str().as_bytes().contains(&0) => {}
        Err(Errno::NOSYS | Errno::INVAL | Errno::TOOBIG | Errno::PERM) => {
            IS_REFUSED.store(true, Ordering::Relaxed);
        }
        _ => {}
    }
    found
}

/// What has this name, if that is known without waiting.
fn find(path: &Path, mask: u32) -> Option<(OwnedFd, libc::statx)> {
    // Where it is not found, whoever may wait finds out what it is.
    let fd = look(path, OFlags::empty()).ok()?;
    let statx = statx_cached(fd.as_fd(), mask | libc::STATX_MNT_ID_UNIQUE).ok()?;
    Some((fd, statx))
}

/// What a name stands for; a symbolic link for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Nothing,
    /// A regular file; `is_last`: it has no other name.
    File {
        len: u64,
        is_last: bool,
    },
    Folder {
        len: u64,
    },
    Other,
}

impl Named {
    /// Whether it takes long to take that away: there is much space to be given back, or a folder
    /// to be looked through that was large once, which some file systems never make smaller.
    pub(super) fn is_large(self) -> bool {
        match self {
            Self::File { is_last, .. } => is_last && self.is_long(),
            _ => self.is_long(),
        }
    }

    /// Whether there is much in it.
    pub(super) fn is_long(self) -> bool {
        match self {
            Self::File { len, .. } | Self::Folder { len } => len > LARGE_BYTES,
            Self::Nothing | Self::Other => false,
        }
    }

    fn of(statx: &libc::statx) -> Self {
        match u32::from(statx.stx_mode) & libc::S_IFMT {
            libc::S_IFREG => Self::File {
                len: space_of(statx),
                is_last: statx.stx_nlink <= 1,
            },
            libc::S_IFDIR => Self::Folder {
                len: statx.stx_size,
            },
            _ => Self::Other,
        }
    }
}

/// What is given back with a file: there may be more of it than the file is long (fallocate(2),
/// `FALLOC_FL_KEEP_SIZE`).
fn space_of(statx: &libc::statx) -> u64 {
    statx.stx_size.max(statx.stx_blocks.saturating_mul(512))
}

/// In pieces, a file of this size may have 256 of them.
const LARGE_BYTES: u64 = 1 << 20;

/// What a name stands for, if to find that out, and to change it, waits for nobody but a device:
/// its folder is local. `is_new`, if it is not known on what kind of file system it is, and whoever
/// waits would do well to [`learn`] that.
pub(super) fn name(shared: &Shared, path: &Path, is_new: &Cell<bool>) -> Option<Named> {
    let name = path.file_name()?;
    // The kernel follows a link that ends like this, and goes on to what is mounted there.
    let path_bytes = path.as_os_str().as_bytes();
    if path_bytes.ends_with(b"/") || path_bytes.ends_with(b"/.") {
        return None;
    }
    if !may_ask(shared, is_filtered()) {
        return None;
    }
    let is_local = |statx: &libc::statx| {
        is_new.set(is_new.get() || mounts::is_new(statx));
        mounts::is_known(statx)
    };
    let found = match look(path, OFlags::NOFOLLOW) {
        Err(Errno::NOENT | Errno::AGAIN) => {
            let (folder, statx) = find(folder_of(path)?, 0)?;
            if !is_local(&statx) {
                return None;
            }
            // In this folder it waits for the device alone.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&folder, name, flags, Mode::empty())
        }
        found => found,
    };
    match found {
        Ok(fd) => {
            let size = libc::STATX_SIZE | libc::STATX_BLOCKS;
            let mask = libc::STATX_TYPE | size | libc::STATX_NLINK;
            let statx = statx_cached(fd.as_fd(), mask | libc::STATX_MNT_ID_UNIQUE).ok()?;
            // Of the folder that something is mounted in nothing is known.
            let mounted = u64::from(libc::STATX_ATTR_MOUNT_ROOT.cast_unsigned());
            let is_mounted = statx.stx_attributes & mounted != 0;
            (!is_mounted && is_local(&statx)).then(|| Named::of(&statx))
        }
        Err(Errno::NOENT) => Some(Named::Nothing),
        Err(_) => None,
    }
}

/// The folder that a name is in.
pub(super) fn folder_of(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    Some(match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    })
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
    let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    if !is_regular || !mounts::is_known(&found) {
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

const IDENTITY: u32 = libc::STATX_INO;

fn identity(statx: &libc::statx) -> (u32, u32, u64) {
    (statx.stx_dev_major, statx.stx_dev_minor, statx.stx_ino)
}

/// What the file system tells of what has this name, if it tells without waiting.
pub(super) fn metadata(shared: &Shared, path: &Path) -> Option<libc::statx> {
    let (_, statx) = may_ask(shared, is_filtered()).then(|| find(path, ALL))??;
    mounts::is_known(&statx).then_some(statx)
}

/// Learns on which kind of file system what has this name is; for whoever may wait.
#[cold]
pub(super) fn learn(path: &Path) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if let Ok(fd) = openat(CWD, path, flags, Mode::empty())
        && let Ok(statx) = statx_cached(fd.as_fd(), libc::STATX_MNT_ID_UNIQUE)
    {
        mounts::learn(fd.as_fd(), &statx);
    }
}

/// Whether to close a descriptor of a regular file takes nothing away: nobody has removed the file,
/// whose space is given back when it is closed for the last time. If it was written it also has to
/// be small: some file systems begin to write it back when it is closed, if it was emptied before.
pub(super) fn closes_at_once(fd: BorrowedFd<'_>, was_written: bool) -> bool {
    let mask =
        libc::STATX_NLINK | libc::STATX_SIZE | libc::STATX_BLOCKS | libc::STATX_MNT_ID_UNIQUE;
    let is_named =
        |statx: &libc::statx| statx.stx_mask & libc::STATX_NLINK != 0 && statx.stx_nlink > 0;
    let is_small = |statx: &libc::statx| !(was_written && space_of(statx) > LARGE_BYTES);
    statx_cached(fd, mask)
        .is_ok_and(|statx| is_named(&statx) && is_small(&statx) && mounts::is_known(&statx))
}
