//! Whether a file goes past the page cache, and why one does not of which that was wished.

use std::{fmt, io};

/// Whether a file is opened past the page cache (`O_DIRECT`, open(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Through the page cache.
    #[default]
    Off,
    /// Past the page cache where the file system can and the request is aligned, else through
    /// it. [`is_direct`](crate::fs::File::is_direct) tells which; that a file is not direct, and
    /// why, is among the [fallbacks](crate::Stats::fallbacks). It takes a second descriptor, by way
    /// of `/proc/thread-self/fd`: a program with many files raises `RLIMIT_NOFILE`, without which
    /// some of them are not direct, or has them [`Direct::Required`] with
    /// [`any_range`](crate::fs::OpenOptions::any_range), which needs one for reads.
    ///
    /// **A plain `Vec` is practically never aligned**, so that its transfers go through the page
    /// cache: give what [`aligned_buf`](crate::fs::File::aligned_buf) makes, or open the file with
    /// [`any_range`](crate::fs::OpenOptions::any_range). [`crate::Stats::unaligned`] counts such
    /// transfers, and for the first one of each file [`crate::Stats::fallbacks`] says what is
    /// needed.
    ///
    /// Writes to the same bytes that are in flight together, one aligned and one not, meet in the
    /// page cache, and the kernel takes that for damage: a durable write or a sync may be told
    /// `EIO` (`dio_warn_stale_pagecache`, `fs/iomap/direct-io.c`). Wait for one before the other.
    Auto,
    /// Past the page cache only. Opening fails where the file system refuses, and a request that
    /// is not aligned is [`crate::Misaligned`], unless
    /// [`any_range`](crate::fs::OpenOptions::any_range) says otherwise.
    Required,
}

/// Why a file is not direct that was to be where it can ([`Direct::Auto`]).
#[derive(Debug)]
pub(super) enum NotDirect {
    /// The file system has no direct I/O for it.
    Refused,
    /// It could not be opened a second time.
    NotAgain(io::Error),
}

impl From<io::Error> for NotDirect {
    fn from(cause: io::Error) -> Self {
        match cause.raw_os_error() {
            // open(2), EINVAL: the file system does not support O_DIRECT.
            Some(libc::EINVAL) => Self::Refused,
            _ => Self::NotAgain(cause),
        }
    }
}

impl fmt::Display for NotDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a file with Direct::Auto goes through the page cache: ")?;
        match self {
            Self::Refused => f.write_str("its file system has no direct I/O for it"),
            Self::NotAgain(cause) => write!(
                f,
                "it cannot be opened a second time, by way of /proc/thread-self/fd: {cause}"
            ),
        }
    }
}

/// Of what no second opening is tried.
#[cold]
pub(super) fn not_storage() -> io::Error {
    let what = "it is neither a regular file nor a block device";
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cold]
pub(super) fn no_direct() -> io::Error {
    let what = "there is no direct I/O for this: its file system has none, or it is no regular \
                file; use Direct::Auto or Direct::Off";
    io::Error::new(io::ErrorKind::Unsupported, what)
}
