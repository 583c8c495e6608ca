//! Operations of several kinds in one batch.

use std::io;
use std::os::fd::RawFd;

use super::bounce::Bounced;
use super::engine::Engine;
use super::file::File;
use super::kept::Tells;
use super::operation::Sealed;
use super::transfer::{ReadAt, WriteAt};
use super::upkeep::SyncFile;
use crate::buf::{IoBuf, IoBufMut};
use crate::completion::Answer;
use crate::op::{Prepare, Prepared, SeenOf, SyncOf};

/// A read, a write or a sync, for a [`crate::Batch`] of several kinds.
///
/// It yields `(io::Result<usize>, Option<B>)`: the buffer of a read or a write, `None` of a sync.
///
/// All buffers are of one type, which can be filled ([`IoBufMut`]), also those that are only
/// written: not `Arc<[u8]>`, `Bytes` or `&[u8]`. Transfers of several buffers and
/// [`Allocate`](crate::fs::Allocate) are not among them: such run by themselves, or a write that is
/// to be followed by a sync as
/// [`WriteVectoredAt::then_sync`](crate::fs::WriteVectoredAt::then_sync).
///
/// There is no order among the operations of a batch: a sync covers only what had been written
/// before the batch was run.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{AnyOp, Batch, fs::OpenOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// let file = OpenOptions::new().read(true).write(true).create(true).open(path)?;
/// let mut batch: Batch<AnyOp<Vec<u8>>> = Batch::new();
/// batch.push(file.write_at(b"hello".to_vec(), 0).into());
/// batch.push(file.sync_data().into());
/// for (result, _buf) in batch.wait() {
///     result?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
#[non_exhaustive]
pub enum AnyOp<'f, B> {
    /// A read; its buffer comes back.
    Read(ReadAt<'f, B>),
    /// A write; its buffer comes back.
    Write(WriteAt<'f, B>),
    /// A sync; it has no buffer.
    Sync(SyncFile<'f>),
}

impl<'f, B> From<ReadAt<'f, B>> for AnyOp<'f, B> {
    fn from(read: ReadAt<'f, B>) -> Self {
        Self::Read(read)
    }
}

impl<'f, B> From<WriteAt<'f, B>> for AnyOp<'f, B> {
    fn from(write: WriteAt<'f, B>) -> Self {
        Self::Write(write)
    }
}

impl<'f, B> From<SyncFile<'f>> for AnyOp<'f, B> {
    fn from(sync: SyncFile<'f>) -> Self {
        Self::Sync(sync)
    }
}

impl<B> AnyOp<'_, B> {
    pub(super) fn file(&self) -> &File {
        match self {
            Self::Read(read) => read.file,
            Self::Write(write) => write.file,
            Self::Sync(sync) => sync.file,
        }
    }

    pub(super) fn tells(&self) -> Tells
    where
        B: IoBuf,
    {
        match self {
            Self::Read(_) => Tells::Nothing,
            Self::Write(write) => write.tells(),
            Self::Sync(_) => Tells::Nothing,
        }
    }

    /// What a request names, when it is left; of the rest, what is to be dropped has been.
    pub(super) fn leave(&mut self) -> Option<(&mut B, &mut Option<Box<Bounced>>)> {
        match self {
            Self::Read(read) => Some((&mut read.buf, &mut read.bounced)),
            Self::Write(write) => {
                write.durable = None;
                Some((&mut write.buf, &mut write.bounced))
            }
            Self::Sync(_) => None,
        }
    }
}

impl<B: IoBufMut> Prepare for AnyOp<'_, B> {
    type Output = (io::Result<usize>, Option<B>);

    fn prepare(&mut self) -> Prepared {
        match self {
            Self::Read(read) => read.prepare(),
            Self::Write(write) => write.prepare(),
            Self::Sync(sync) => sync.prepare(),
        }
    }

    fn cover(&mut self) -> Prepared {
        match self {
            Self::Read(read) => read.cover(),
            Self::Write(write) => write.cover(),
            Self::Sync(sync) => sync.cover(),
        }
    }

    fn sync(&self) -> Option<SyncOf<'_>> {
        match self {
            Self::Sync(sync) => sync.sync(),
            Self::Write(write) => write.sync(),
            Self::Read(_) => None,
        }
    }

    fn proceed(&mut self, answer: Answer) -> bool {
        match self {
            Self::Write(write) => write.proceed(answer),
            Self::Read(_) | Self::Sync(_) => false,
        }
    }

    fn twin(&self, of: RawFd) -> Option<RawFd> {
        match self {
            Self::Read(read) => read.twin(of),
            Self::Write(_) | Self::Sync(_) => None,
        }
    }

    fn is_short(&self) -> bool {
        match self {
            Self::Read(read) => read.is_short(),
            Self::Write(write) => write.is_short(),
            Self::Sync(_) => false,
        }
    }

    fn is_on_device(&self) -> bool {
        match self {
            Self::Read(read) => read.is_on_device(),
            Self::Write(_) | Self::Sync(_) => false,
        }
    }

    fn note(&self, seen: SeenOf) {
        match self {
            Self::Read(read) => read.note(seen),
            Self::Write(write) => write.note(seen),
            Self::Sync(_) => {}
        }
    }

    fn finish(self, answer: Answer) -> Self::Output {
        let with_buf = |(result, buf)| (result, Some(buf));
        match self {
            Self::Read(read) => with_buf(read.finish(answer)),
            Self::Write(write) => with_buf(write.finish(answer)),
            Self::Sync(sync) => (sync.finish(answer).map(|()| 0), None),
        }
    }
}

impl<B: IoBufMut> Sealed for AnyOp<'_, B> {
    fn engine<'a>(&self) -> &'a Engine
    where
        Self: 'a,
    {
        match self {
            Self::Read(read) => read.engine(),
            Self::Write(write) => write.engine(),
            Self::Sync(sync) => sync.engine(),
        }
    }
}
