//! What is done to a file beside moving bytes: sync, allocate, truncate, metadata.

use std::future::IntoFuture;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rustix::fs::ftruncate;
use rustix::io::{Errno, retry_on_intr};

use super::calls::{Call, Make, forked};
use super::engine::Engine;
use super::file::{Alignment, File};
use super::handle::{Access, Handle};
use super::operation::Sealed;
use crate::completion::{Answer, Refusal};
use crate::error::BadRange;
use crate::op::{AllocateMode, Op, Prepare, Prepared, Request, SyncOf};

/// Makes what was written durable. Made by [`File::sync_all`] and [`File::sync_data`], which tell
/// of errors and of dropping it.
///
/// It yields `io::Result<()>`.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct SyncFile<'f> {
    pub(super) file: &'f File,
    pub(super) data_only: bool,
}

/// Reserves or frees space. Made by [`File::allocate`], which tells of errors and of dropping it.
///
/// It yields `io::Result<()>`.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct Allocate<'f> {
    pub(super) file: &'f File,
    pub(super) mode: AllocateMode,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Sets the length of a file. Made by [`File::truncate`]. It yields `io::Result<()>`.
///
/// It cannot be in a [`crate::Batch`], because it is always a call that blocks: no ring knows it
/// before Linux 6.9. When it is awaited, a thread of the pool does it; see [`Call`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct Truncate<'f> {
    pub(super) file: &'f File,
    pub(super) len: u64,
}

impl Truncate<'_> {
    /// Does it on this thread, and blocks until it is done.
    ///
    /// # Errors
    ///
    /// As [`File::truncate`].
    pub fn wait(self) -> io::Result<()> {
        if self.file.engine().shared().is_forked() {
            return Err(forked());
        }
        truncate(self.file.handle(), self.len)
    }
}

impl<'f> IntoFuture for Truncate<'f> {
    type Output = io::Result<()>;
    type IntoFuture = Call<'f, ()>;

    fn into_future(self) -> Call<'f, ()> {
        let Self { file, len } = self;
        // The descriptor stays open while a call goes on whose future has been dropped.
        let handle = Arc::clone(file.handle());
        let resizing = Resizing { handle, len };
        Call::new(Ok(file.engine().clone()), resizing, |(), _| ())
    }
}

/// A truncation that is awaited.
struct Resizing {
    handle: Arc<Handle>,
    len: u64,
}

impl Make for Resizing {
    type Made = ();

    fn may_wait_for_ever(&self) -> bool {
        self.handle.is_served()
    }

    fn make(self) -> io::Result<()> {
        truncate(&self.handle, self.len)
    }
}

/// Sets the length of a file.
fn truncate(handle: &Handle, len: u64) -> io::Result<()> {
    if i64::try_from(len).is_err() {
        return Err(BadRange::TooFar.into());
    }
    // ftruncate(2), EINTR: it was interrupted, and setting the length again does no harm.
    let set = retry_on_intr(|| ftruncate(handle, len));
    set.map_err(
        |cause| match (cause, handle.wrong_access(Access::Write, libc::EINVAL)) {
            // ftruncate(2), EINVAL: it is not open for writing, or no regular file.
            (Errno::INVAL, Some(wrong)) => wrong.into(),
            _ => io::Error::from(cause),
        },
    )?;
    handle.end().is_now(len);
    Ok(())
}

/// Asks for size and alignment. Made by [`File::metadata`]. Dropping it changes nothing. It yields
/// `io::Result<Metadata>`.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct ReadMetadata<'f> {
    pub(super) file: &'f File,
    pub(super) out: Out,
}

/// Where the kernel puts its answer; on the heap, so that it stays where it is when the operation
/// is moved.
pub(super) struct Out(Box<MaybeUninit<libc::statx>>);

impl Out {
    pub(super) fn new() -> Self {
        Self(Box::new(MaybeUninit::zeroed()))
    }
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Out")
    }
}

/// What the file system tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Size in bytes. 0 of a block device, whose size is told by ioctl(2) (`BLKGETSIZE64`).
    pub len: u64,
    /// Space taken on the device, in bytes.
    pub allocated_bytes: u64,
    /// The block size that the file system prefers, in bytes.
    pub block_size_bytes: u32,
    /// What direct I/O needs.
    pub direct: Alignment,
}

impl Metadata {
    pub(super) fn from_statx(statx: &libc::statx) -> Self {
        Self {
            len: statx.stx_size,
            allocated_bytes: statx.stx_blocks.saturating_mul(512),
            block_size_bytes: statx.stx_blksize,
            direct: Alignment::from_statx(statx),
        }
    }
}

/// How [`File::allocate`] treats the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateRange {
    /// Reserve space; the file grows if the range lies beyond its end.
    Reserve,
    /// Reserve space and leave the size as it is.
    ReserveKeepSize,
    /// Free the space; the range reads as zeros, and the size stays as it is.
    PunchHole,
    /// Make the range read as zeros, keeping its space where the file system can; the file grows if
    /// the range lies beyond its end.
    Zero,
}

impl AllocateRange {
    /// fallocate(2).
    pub(super) fn mode(self) -> AllocateMode {
        AllocateMode(match self {
            Self::Reserve => 0,
            Self::ReserveKeepSize => libc::FALLOC_FL_KEEP_SIZE,
            Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Self::Zero => libc::FALLOC_FL_ZERO_RANGE,
        })
    }
}

impl Prepare for SyncFile<'_> {
    type Output = io::Result<()>;

    fn prepare(&mut self) -> Prepared {
        if self.file.handle().commit().failure().is_some() {
            return Prepared::answered(Answer::refused(Refusal::SyncFailed));
        }
        let fd = self.file.handle().raw_fd();
        let data_only = self.data_only;
        Prepared::sync(Request::simple(Op::Sync { fd, data_only }))
    }

    fn sync(&self) -> Option<SyncOf<'_>> {
        let file = self.file.handle();
        Some(SyncOf {
            commit: file.commit(),
            file,
            data_only: self.data_only,
        })
    }

    fn finish(self, answer: Answer) -> Self::Output {
        // A durable write that ran at the same time may have been told of the error instead of
        // this one, and its program by now.
        let has_failed = self.file.handle().commit().failure().is_some();
        let answer = match has_failed && answer.errno().is_none() {
            true => Answer::refused(Refusal::SyncFailed),
            false => answer,
        };
        answer.decode(self.file.asked(Access::Any)).map(drop)
    }
}

impl Prepare for Allocate<'_> {
    type Output = io::Result<()>;

    fn prepare(&mut self) -> Prepared {
        let Self {
            file,
            mode,
            offset,
            len,
        } = *self;
        let end = offset
            .checked_add(len)
            .and_then(|end| i64::try_from(end).ok());
        if end.is_none() {
            return Prepared::answered(Answer::refused(Refusal::TooFar));
        }
        file.handle().simple(Op::Allocate {
            fd: file.handle().raw_fd(),
            mode,
            offset,
            len,
        })
    }

    fn finish(self, answer: Answer) -> Self::Output {
        if answer.errno() == Some(libc::EINVAL) && self.len == 0 {
            return Err(BadRange::Empty.into());
        }
        let keeps_size = self.mode.0 & libc::FALLOC_FL_KEEP_SIZE != 0;
        if answer.errno().is_none() && !keeps_size {
            self.file.handle().end().reaches(self.offset + self.len);
        }
        answer.decode(self.file.asked(Access::Write)).map(drop)
    }
}

impl Prepare for ReadMetadata<'_> {
    type Output = io::Result<Metadata>;

    fn prepare(&mut self) -> Prepared {
        let handle = self.file.handle();
        let (fd, out) = (handle.raw_fd(), self.out.0.as_mut_ptr());
        handle.simple(Op::Metadata { fd, out })
    }

    #[allow(unsafe_code)]
    fn finish(self, answer: Answer) -> Self::Output {
        answer.decode(self.file.asked(Access::Any))?;
        // SAFETY: `Out` was zeroed when it was made, and the kernel has filled it.
        let statx = unsafe { *self.out.0.assume_init_ref() };
        Ok(Metadata::from_statx(&statx))
    }
}

/// Implements what every operation on a file has in common.
macro_rules! on_a_file {
    ($($operation:ident),*) => {$(
        impl Sealed for $operation<'_> {
            fn engine<'a>(&self) -> &'a Engine
            where
                Self: 'a,
            {
                self.file.engine()
            }
        }
    )*};
}

on_a_file!(SyncFile, Allocate, ReadMetadata);
