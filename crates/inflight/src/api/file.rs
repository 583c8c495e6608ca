//! A file: a descriptor, what is known of it, and the operations it makes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::sync::Arc;

use super::close::Close;
use super::engine::Engine;
use super::handle::{Access, Handle, Opened};
use super::open::OpenOptions;
use super::transfer::{ReadAt, WriteAt};
use super::upkeep::{Allocate, AllocateRange, Out, ReadMetadata, SyncFile, Truncate};
use super::vectored::{List, ReadVectoredAt, WriteVectoredAt};
use crate::buf::{AlignedBuf, IoBuf, IoBufMut};
use crate::completion::Explain;
use crate::error::{Misaligned, NoThread, SetupError, SyncFailed, WrongAccess};
use crate::op::Wishes;

/// Alignment that is assumed where the file system tells none: a page fits every device in use.
const ASSUMED_BYTES: u32 = 4096;

/// What direct I/O on a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alignment {
    /// The file system tells (statx(2), `STATX_DIOALIGN`).
    Known {
        /// Addresses of buffers have to be multiples of this, in bytes: of 4096 at least where
        /// offsets have to be, whatever the file system tells. zram says that it takes addresses
        /// of 512, and then moves the whole page around each (Linux 6.18,
        /// `drivers/block/zram/zram_drv.c`): it overwrites what is beside a buffer, and writes
        /// that to the device.
        memory_bytes: u32,
        /// Offsets and lengths have to be multiples of this, in bytes.
        offset_bytes: u32,
    },
    /// The file system does not tell. That does not mean that direct I/O is refused: tmpfs
    /// takes it, and so do old kernels.
    Unknown,
    /// The file system says that this file cannot do direct I/O.
    Refused,
}

impl Alignment {
    pub(super) fn from_statx(statx: &libc::statx) -> Self {
        if statx.stx_mask & libc::STATX_DIOALIGN == 0 {
            return Self::Unknown;
        }
        Self::told(statx.stx_dio_mem_align, statx.stx_dio_offset_align)
    }

    /// What is needed of memory and of offsets, given what the file system tells, in bytes.
    fn told(memory_bytes: u32, offset_bytes: u32) -> Self {
        match (memory_bytes, offset_bytes) {
            (0, _) | (_, 0) => Self::Refused,
            (told_bytes, offset_bytes) => Self::Known {
                memory_bytes: match offset_bytes < ASSUMED_BYTES {
                    true => told_bytes,
                    false => told_bytes.max(ASSUMED_BYTES),
                },
                offset_bytes,
            },
        }
    }

    /// What is needed as far as it is known, else what fits every device in use.
    pub(super) fn or_assumed(self) -> Misaligned {
        let (memory_bytes, offset_bytes) = match self {
            Self::Known {
                memory_bytes,
                offset_bytes,
            } => (memory_bytes, offset_bytes),
            Self::Unknown | Self::Refused => (ASSUMED_BYTES, ASSUMED_BYTES),
        };
        Misaligned {
            memory_bytes,
            offset_bytes,
            offset: false,
            len: false,
            address: false,
        }
    }
}

/// An open file that makes operations.
///
/// Operations are values; see [`crate::Operation`] for how they are run. What they have in
/// common:
///
/// - Offsets are bytes from the start of the file; a range that ends beyond `i64::MAX` is
///   [`crate::BadRange`] (`EINVAL`). The file has no current position, and one opened for appending
///   is refused.
/// - A read at or beyond the end of the file yields 0 bytes, an exact one `UnexpectedEof`.
///   A write beyond the end extends the file.
/// - A transfer of no bytes yields 0, without an access to the device; that of one buffer to a
///   character device is up to that (`/dev/full` refuses it).
/// - A transfer may be longer than the 2 GiB that one system call moves: it is split.
/// - The access the file was not opened for is [`crate::WrongAccess`] (`EBADF`); a read of a
///   directory is `EISDIR` (of no bytes, it may yield 0); any transfer on what has no positions is
///   [`crate::NoPositions`], whose errno ([`crate::errno_of`]) is `ESPIPE`: a pipe, socket or
///   terminal, a stream of the kernel (`/dev/kmsg`), a descriptor that is not of a file
///   (eventfd(2), epoll(7)) or opened with `O_PATH`.
/// - What a direct file does not take is [`Misaligned`]. In a forked child every operation is
///   [`crate::Forked`]; where io_uring was demanded and a thread cannot have a ring,
///   [`crate::SetupError`]; awaited, [`crate::NoThread`] where no thread can be started.
///
/// A file is `Send` and `Sync`: share it in an [`Arc`], between threads and tasks.
///
/// When two threads read cached data of one block device, or of one regular file on a local file
/// system (also on an overlay from Linux 5.8 on), the library opens it a second time, for reading,
/// by way of `/proc/thread-self/fd`: two readers of one open file description slow each other down.
/// That descriptor is closed with the file. It is not opened
/// - for a file that the program has opened itself ([`File::from_std`]),
/// - beside a lease that this process holds on the file (fcntl(2)),
/// - if a seccomp filter was installed after the file was opened (a second filter goes unnoticed),
/// - beyond a sixteenth of the descriptors that the process may have.
///
/// A write lease that is taken later (`F_SETLEASE`) may fail with `EAGAIN`, and advice for your own
/// descriptor (posix_fadvise(2)) does not apply to the second one.
///
/// Dropping the file closes it, there and then, or on a thread of the engine's pool once no
/// operation is in flight whose future was dropped. On a file system that another program or
/// machine serves, closing may wait for that one (NFS writes back when a file is closed; FUSE may
/// be asked): [`File::close`] does not block when it is awaited, and reports how closing went.
///
/// A file is a handle of its engine. If it is the last one, dropping it ends the engine, which
/// waits for operations whose futures were dropped, for at most
/// [`Builder::drain_for`](crate::Builder::drain_for): a program whose tasks drop files keeps an
/// [`Engine`] for as long as they run.
#[derive(Debug)]
pub struct File {
    handle: Arc<Handle>,
    engine: Engine,
}

// As of the engine: a panic that unwinds through an operation leaves the file as any error does.
impl UnwindSafe for File {}
impl RefUnwindSafe for File {}

impl File {
    /// Opens a file for reading through the page cache, on the global engine. That may block; to
    /// await it there is [`OpenOptions::opening`].
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens or creates a file for writing through the page cache, and empties it.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
    }

    /// Takes over a file that was opened elsewhere; whether it is direct is found out. A direct
    /// one takes aligned transfers only, as with
    /// [`Direct::Required`](crate::fs::Direct::Required). [`OpenOptions::any_range`] and
    /// [`OpenOptions::mapped`] are not available for it.
    ///
    /// # Errors
    ///
    /// After each the file is closed. If the descriptor cannot be asked, or was opened for
    /// appending (`InvalidInput`), where the kernel ignores positions (pwrite(2), BUGS).
    pub fn from_std(engine: &Engine, file: fs::File) -> io::Result<Self> {
        super::open::adopt(engine, file.into())
    }

    pub(super) fn new(engine: Engine, opened: Opened) -> Self {
        let given_up = [
            opened.not_mapped.as_ref().map(ToString::to_string),
            opened.not_direct.as_ref().map(ToString::to_string),
        ];
        for reason in given_up.into_iter().flatten() {
            engine.shared().counters.fallback(reason);
        }
        let handle = Arc::new(Handle::new(opened, engine.shared()));
        Self { handle, engine }
    }

    /// Gives the descriptor back, unless operations whose futures were dropped are still in
    /// flight on it. That of a file with [`Direct::Auto`](crate::fs::Direct::Auto) is no longer
    /// direct, so that it takes any transfer.
    ///
    /// A second descriptor that the library has of the file is closed, but if somebody may have a
    /// record lock on the file it is left open as long as the process lives: a record lock of this
    /// process would end with any of its descriptors (fcntl(2), "Advisory record locking").
    ///
    /// # Errors
    ///
    /// The file itself, while such operations are in flight; [`File::close`] waits for them.
    pub fn into_std(self) -> Result<fs::File, Self> {
        let Self { handle, engine } = self;
        match Arc::try_unwrap(handle) {
            Ok(handle) => Ok(handle.into_fd().into()),
            Err(handle) => Err(Self { handle, engine }),
        }
    }

    /// Closes the file, and tells of errors that the file system kept back until then. Operations
    /// in flight whose futures were dropped are waited for.
    ///
    /// A closed file is not a durable one: that is what [`File::sync_all`] is for. A future that
    /// was forgotten ([`std::mem::forget`]) keeps its file open, and closing then has no end.
    ///
    /// # Errors
    ///
    /// As close(2): `EIO`, `ENOSPC` or `EDQUOT` for earlier writes on network file systems and
    /// with quotas. The file is closed all the same. In a forked child [`crate::Forked`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future lets the closing go on; before it was polled, that is as dropping the
    /// file.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use inflight::fs::File;
    ///
    /// # let path = std::env::current_exe()?;
    /// let file = File::open(path)?;
    /// file.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn close(self) -> Close {
        Close { file: self }
    }

    pub(super) fn into_parts(self) -> (Arc<Handle>, Engine) {
        (self.handle, self.engine)
    }

    /// A read of up to `buf.len()` bytes at `offset`; it may be short, as read(2) is.
    ///
    /// Yields the number of bytes read and the buffer, which keeps its length: the bytes read come
    /// first in it.
    ///
    /// **A `Vec` is read into up to its length, not its capacity:** `Vec::with_capacity(4096)` has
    /// no bytes, so nothing is read and that is `Ok(0)`. Give `vec![0; 4096]`, or [`crate::Spare`],
    /// which fills capacity.
    pub fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> ReadAt<'_, B> {
        ReadAt {
            file: self,
            buf,
            offset,
            exact: false,
            wishes: Wishes::NONE,
            bounced: None,
        }
    }

    /// A read that fills the buffer: short reads are resumed.
    ///
    /// **A `Vec` is filled up to its length, not its capacity:** that of `Vec::with_capacity(4096)`
    /// is 0, so nothing is read and that is `Ok(0)`. Give `vec![0; 4096]`, or [`crate::Spare`],
    /// which fills capacity.
    ///
    /// Yields `UnexpectedEof` if the file ends before, and [`crate::Partial`] if an error comes
    /// after some bytes; [`crate::errno_of`] finds its errno.
    ///
    /// A direct read that stops within a block has met the end of the file. If somebody appends to
    /// it before the read is resumed there, that may still be taken for the end, because the kernel
    /// refuses direct reads from within a block: a program that follows a growing file reads again.
    pub fn read_exact_at<B: IoBufMut>(&self, buf: B, offset: u64) -> ReadAt<'_, B> {
        ReadAt {
            exact: true,
            ..self.read_at(buf, offset)
        }
    }

    /// A write of up to `buf.len()` bytes at `offset`; it may be short, as write(2) is.
    ///
    /// Through the page cache it is a copy of the buffer, until more has been written than the
    /// device keeps up with: the kernel then holds a writer for up to 200 ms at a time, until
    /// enough has been written back. Awaited writes are moved to threads of the pool when that is
    /// noticed, by the first one that is held. Writes past the page cache
    /// ([`OpenOptions::direct`]) are not held, and a sync now and then ([`File::sync_data`]) keeps
    /// what is dirty small.
    ///
    /// # Source
    ///
    /// `balance_dirty_pages` and `MAX_PAUSE` in `mm/page-writeback.c`; `vm.dirty_ratio` in
    /// `Documentation/admin-guide/sysctl/vm.rst`.
    pub fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> WriteAt<'_, B> {
        WriteAt {
            file: self,
            buf,
            offset,
            all: false,
            wishes: Wishes::NONE,
            bounced: None,
            durable: None,
        }
    }

    /// A write of the whole buffer: short writes are resumed.
    ///
    /// Yields `WriteZero` if the device takes no more, and [`crate::Partial`] if an error comes
    /// after some bytes; [`crate::errno_of`] finds its errno. It is `EINVAL` where a direct write
    /// has stopped within a block: it cannot be resumed there.
    pub fn write_all_at<B: IoBuf>(&self, buf: B, offset: u64) -> WriteAt<'_, B> {
        WriteAt {
            all: true,
            ..self.write_at(buf, offset)
        }
    }

    /// A read into several buffers, filled one after the other. Of more than 1024 that have bytes
    /// only the first 1024 are used, as readv(2) takes no more, and of more than 2 GiB it may be
    /// short. It is not split at the device's limit: past the page cache, one that is larger is
    /// left to a worker of the kernel.
    pub fn read_vectored_at<B: IoBufMut>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> ReadVectoredAt<'_, B> {
        ReadVectoredAt {
            file: self,
            bufs,
            list: List::default(),
            offset,
            exact: false,
            wishes: Wishes::NONE,
        }
    }

    /// As [`File::read_vectored_at`], filling all buffers, however many there are: short reads are
    /// resumed.
    ///
    /// Yields `UnexpectedEof` if the file ends before, and [`crate::Partial`] if an error comes
    /// after some bytes; [`crate::errno_of`] finds its errno. For direct files that grow see
    /// [`File::read_exact_at`].
    pub fn read_vectored_exact_at<B: IoBufMut>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> ReadVectoredAt<'_, B> {
        ReadVectoredAt {
            exact: true,
            ..self.read_vectored_at(bufs, offset)
        }
    }

    /// A write from several buffers, one after the other. Of more than 1024 that have bytes only
    /// the first 1024 are used, as writev(2) takes no more, and of more than 2 GiB it may be
    /// short. It is not split at the device's limit, as a read is not.
    pub fn write_vectored_at<B: IoBuf>(&self, bufs: Vec<B>, offset: u64) -> WriteVectoredAt<'_, B> {
        WriteVectoredAt {
            file: self,
            bufs,
            list: List::default(),
            offset,
            all: false,
            wishes: Wishes::NONE,
            durable: None,
        }
    }

    /// As [`File::write_vectored_at`], writing all buffers, however many there are: short writes
    /// are resumed. More than 1024 are written by several calls.
    ///
    /// Yields `WriteZero` if the device takes no more, and [`crate::Partial`] if an error comes
    /// after some bytes; [`crate::errno_of`] finds its errno.
    pub fn write_vectored_all_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> WriteVectoredAt<'_, B> {
        WriteVectoredAt {
            all: true,
            ..self.write_vectored_at(bufs, offset)
        }
    }

    /// Makes data and metadata durable (fsync(2)).
    ///
    /// It covers every write to the file, by anyone, that had completed before this sync was
    /// started (by `wait`, its first poll, or `push`); none that is in flight then, or in the same
    /// batch.
    ///
    /// Syncs that are asked for while one runs are served together by the next flush, from however
    /// many threads and tasks ([`crate::Stats::shared_syncs`]). Flushes and failures are shared by
    /// all who use one `File`, not by all who open one path: open a log once, and share it in an
    /// [`Arc`].
    ///
    /// # Errors
    ///
    /// Those of fsync(2), for everyone whom the flush was for. After one, whatever its errno, data
    /// may be lost, and no sync is made again: the kernel reports a failed write-back once and then
    /// takes the pages for clean, so every later sync of this handle yields [`crate::SyncFailed`].
    /// To recover, open the file anew, or another one, write again what had not been acknowledged,
    /// and sync that. If you act on such errors, do not mix syncs with [`WriteAt::dsync`],
    /// [`WriteAt::then_sync`] or [`OpenOptions::durable_writes`] on one handle: the kernel reports
    /// a failed write-back once, and may report it to the other.
    ///
    /// # Cancellation
    ///
    /// Dropping it while others wait for the same flush does not keep them from it.
    ///
    /// # Source
    ///
    /// fsync(2), NOTES; `lib/errseq.c`.
    pub fn sync_all(&self) -> SyncFile<'_> {
        SyncFile {
            file: self,
            data_only: false,
        }
    }

    /// Makes data durable, and of the metadata what reading it back needs (fdatasync(2)). It may be
    /// served by the flush of a [`File::sync_all`], never the reverse.
    /// Otherwise as [`File::sync_all`].
    pub fn sync_data(&self) -> SyncFile<'_> {
        SyncFile {
            file: self,
            data_only: true,
        }
    }

    /// Reserves or frees space (fallocate(2)): `len` bytes from `offset`. No bytes are
    /// [`crate::BadRange`], and a file that was not opened for writing is [`crate::WrongAccess`].
    /// A signal may end it with `EINTR`, which is not made good: it would begin anew each time, and
    /// under a timer that sends signals never end.
    ///
    /// # Errors
    ///
    /// As fallocate(2): `ENOSPC`; `EOPNOTSUPP` where the file system does not know how. In a forked
    /// child [`crate::Forked`].
    ///
    /// # Cancellation
    ///
    /// Dropped in flight, it takes place or not.
    pub fn allocate(&self, range: AllocateRange, offset: u64, len: u64) -> Allocate<'_> {
        Allocate {
            file: self,
            mode: range.mode(),
            offset,
            len,
        }
    }

    /// Sets the length of the file to `len` bytes (ftruncate(2)): what lies beyond is cut off, what
    /// is added reads as zeros.
    ///
    /// # Errors
    ///
    /// As ftruncate(2): `EINVAL` if it is no plain file; `EFBIG`. [`crate::WrongAccess`] if it was
    /// not opened for writing, [`crate::BadRange`] if `len` exceeds `i64::MAX`. In a forked child
    /// [`crate::Forked`].
    ///
    /// # Cancellation
    ///
    /// As [`crate::fs::Call`] says. One that a thread has begun takes place.
    pub fn truncate(&self, len: u64) -> Truncate<'_> {
        Truncate { file: self, len }
    }

    /// Asks for the size and for what direct I/O needs (statx(2), whose errors it yields; in a
    /// forked child [`crate::Forked`]). Dropping it changes nothing.
    pub fn metadata(&self) -> ReadMetadata<'_> {
        ReadMetadata {
            file: self,
            out: Out::new(),
        }
    }

    /// Whether transfers go past the page cache. With
    /// [`Direct::Auto`](crate::fs::Direct::Auto), those that do not fit the alignment go through it
    /// all the same ([`crate::Stats::unaligned`]).
    pub fn is_direct(&self) -> bool {
        self.handle.facts().direct
    }

    /// Whether reads of what the page cache has are copied from a mapping: see
    /// [`OpenOptions::mapped`].
    pub fn is_mapped(&self) -> bool {
        self.handle.mapping().is_some()
    }

    /// What direct I/O on this file needs, as it was when the file was opened.
    pub fn alignment(&self) -> Alignment {
        self.handle.alignment()
    }

    /// `len` zeroed bytes at an address that direct I/O on this file takes; at a page where the
    /// file system does not tell. The length is taken as it is: for a direct transfer it has to be
    /// a multiple of [`offset_bytes`](Alignment::Known::offset_bytes), too.
    ///
    /// # Errors
    ///
    /// As [`AlignedBuf::new`].
    pub fn aligned_buf(&self, len: usize) -> io::Result<AlignedBuf> {
        let memory_bytes = self.handle.alignment().or_assumed().memory_bytes;
        AlignedBuf::new(
            len,
            usize::try_from(memory_bytes).expect("usize has 32 bits or more"),
        )
    }

    /// The engine that runs this file's operations where none is named.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Who explains the answer to an operation.
    #[inline]
    pub(super) fn asked(&self, access: Access) -> Asked<'_> {
        Asked(self, access)
    }
}

/// The descriptor that direct transfers use: of a file with
/// [`Direct::Auto`](crate::fs::Direct::Auto) that is direct it takes aligned transfers only.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.raw_fd()
    }
}

/// A file, and what an operation needs it to be open for.
pub(super) struct Asked<'f>(&'f File, Access);

impl Explain for Asked<'_> {
    fn misaligned(&self) -> Misaligned {
        self.0.handle.alignment().or_assumed()
    }
    fn sync_failed(&self) -> SyncFailed {
        self.0.handle.sync_failed()
    }
    fn setup(&self) -> SetupError {
        (&self.0.engine).setup()
    }
    fn no_thread(&self) -> NoThread {
        (&self.0.engine).no_thread()
    }
    fn wrong_access(&self, errno: i32) -> Option<WrongAccess> {
        self.0.handle.wrong_access(self.1, errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_to_what_is_told_and_to_pages_where_offsets_are() {
        let cases = [
            ((4, 512), (4, 512)),
            ((512, 512), (512, 512)),
            ((512, 4096), (4096, 4096)),
            ((4, 65_536), (4096, 65_536)),
            ((8192, 4096), (8192, 4096)),
        ];
        for ((memory_told, offset_told), (memory_bytes, offset_bytes)) in cases {
            let expected = Alignment::Known {
                memory_bytes,
                offset_bytes,
            };
            assert_eq!(Alignment::told(memory_told, offset_told), expected);
        }
        assert_eq!(Alignment::told(0, 0), Alignment::Refused);
    }
}
