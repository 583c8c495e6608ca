//! A file that is open, opened a second time.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::open::statx;

/// Opens a file again by way of its descriptor, so that it is the same file whatever has become of
/// the path. By the table of this thread, which need not be that of the process
/// (`CLONE_FILES`, unshare(2)).
///
/// # Errors
///
/// Those of open(2); `Unsupported` if something else is found there.
pub(super) fn open_again(
    fd: BorrowedFd<'_>,
    file: &libc::statx,
    options: &OpenOptions,
) -> io::Result<(OwnedFd, libc::statx)> {
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let other: OwnedFd = options.open(path)?.into();
    let statx = statx(other.as_raw_fd())?;
    // What is mounted there may be something else.
    let name = |file: &libc::statx| (file.stx_dev_major, file.stx_dev_minor, file.stx_ino);
    match name(&statx) == name(file) {
        true => Ok((other, statx)),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}
