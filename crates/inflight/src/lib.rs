//! Disk I/O that keeps the device's queue full: io_uring first, Linux AIO (`io_submit`) and a pool
//! of threads where it is blocked, one API for all.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! use inflight::{Batch, Operation, fs::File};
//!
//! # let path = std::env::current_exe()?;
//! let file = File::open(path)?;
//!
//! // One operation: a value, run on this thread.
//! let (result, page) = file.read_at(vec![0; 4096], 0).wait();
//! assert_eq!(result?, page.len());
//!
//! // Many: handed to the kernel together, a result for each.
//! let mut batch = Batch::new();
//! for block in 0..64 {
//!     batch.push(file.read_at(vec![0; 4096], block * 4096));
//! }
//! for (result, _page) in batch.wait() {
//!     result?;
//! }
//! # Ok(()) }
//! ```
//!
//! - [`fs::File`] makes operations; [`Operation::wait`] runs one on this thread.
//! - [`Batch`] runs many and has a result for each; [`read_many`] and [`write_many`] return the
//!   first error instead. [`Engine::queue`] keeps a bounded number in flight and hands out results
//!   as they come.
//! - Operations and batches whose buffers are `Send + 'static` can be awaited, on any runtime or in
//!   the run loop of [`local`]; with a time limit, see [`Awaited`]. Blocking calls take borrowed
//!   buffers as well.
//! - Of an operation a future is made by `.await` or [`into_future`](std::future::IntoFuture): push
//!   that into `join_all` or `FuturesUnordered`.
//! - [`BufPool`] has buffers that a ring knows in advance; threads take them, tasks wait for them.
//!   Part of any buffer is a buffer as well: [`IoBuf::slice`].
//! - [`Engine`] is the configuration: which backend, how deep. [`Engine::backend`] tells which
//!   backend was chosen and why, [`Engine::stats`] what has been done and what was given up.
//!
//! # Features
//!
//! None is on by itself. Without any the library depends on `io-uring`, `libc` and `rustix`.
//!
//! - `tokio`: `Engine::serve_on_tokio` has the threads of a tokio runtime drive what is awaited in
//!   it. Without it operations can be awaited there all the same, and threads of the library drive
//!   them. Depends on `tokio` with its features `net` and `rt`.
//! - `bytes`: the buffers of the `bytes` crate are buffers here: `Bytes` is written, `BytesMut` is
//!   read into. Depends on `bytes` without its default features.
//! - `faulty`: `Builder::faults` makes an engine whose operations are delayed, shortened, reordered
//!   and failed as a seed decides, for tests of programs that use this library. Depends on nothing
//!   more.
//!
//! # Environment
//!
//! `INFLIGHT_BACKEND` is `uring`, `aio`, `threads` or `auto`. With `aio` no io_uring system call is
//! ever made, with `threads` none of Linux AIO (io_setup(2)) either.
//!
//! # Kernels
//!
//! io_uring is the default from Linux 6.1 on and can be demanded from 5.6 on; Linux AIO is used
//! from 4.19 on; the thread pool works on any. What the kernel can do is probed, never guessed from
//! its version.
//!
//! # Errors
//!
//! Operations fail with [`std::io::Error`]. Where there is more to tell than an errno, the error
//! holds a type of this crate ([`Partial`], [`Ended`], [`Misaligned`] and others), found with
//! [`std::io::Error::get_ref`] and `downcast_ref`. It then has no `raw_os_error`; [`errno_of`]
//! finds the errno in either, where there is one.
//!
//! # Cancellation
//!
//! A blocking call returns, or unwinds, only when its operation has completed. A future may be
//! dropped at any moment: the library keeps its buffer and file until the kernel is done with them
//! ([`Pending`]). No memory is freed before that.
//!
//! # Storing an operation beside its file
//!
//! An operation borrows its file, so one struct cannot hold both. Share the file, and store the
//! operation as a future that owns its share:
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # inflight::local::run(async {
//! use std::{future::Future, io, pin::Pin, sync::Arc};
//! use inflight::fs::File;
//!
//! type InFlight = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;
//!
//! struct Reader {
//!     file: Arc<File>,
//!     /// The block that is asked for ahead.
//!     ahead: Option<InFlight>,
//! }
//!
//! impl Reader {
//!     fn ask(&mut self, offset: u64) {
//!         let file = Arc::clone(&self.file);
//!         self.ahead = Some(Box::pin(async move {
//!             let (result, block) = file.read_exact_at(vec![0; 512], offset).await;
//!             result.map(|_| block)
//!         }));
//!     }
//! }
//!
//! # let path = std::env::current_exe()?;
//! let file = Arc::new(File::open(path)?);
//! let mut reader = Reader { file, ahead: None };
//! reader.ask(0);
//! let block = reader.ahead.take().expect("it was asked for").await?;
//! assert_eq!(block.len(), 512);
//! # Ok(()) })?
//! # }
//! ```
//!
//! It starts at its first poll: spawn it as a task to start it at once. A [queue](Engine::queue) is
//! only lent to its closure, so pass the file to the code that uses one.
//!
//! # Before the process exits
//!
//! Dropping the last handle of an [`Engine`] waits for what is in flight. The [global
//! engine](Engine::global) is never dropped: if futures may have been dropped in flight, call
//! [`Engine::drain`] before `main` returns, and sync what must be durable.
//!
//! # When the library aborts the process
//!
//! If the kernel loses completions, or a ring can no longer be entered while operations are in
//! flight and does not report them either, nobody knows which memory the kernel still writes to.
//! Going on would corrupt memory, so the process aborts with a message
//! (`docs/design/lost-completions.md`). The first should not happen: no more is ever in flight than
//! the kernel has room to report. The second happens when a seccomp filter that forbids
//! io_uring_enter(2) is installed while operations are in flight. Install filters before you use
//! the library, which then probes what it may use, or use no ring ([`Builder::backend`],
//! `INFLIGHT_BACKEND=threads`). A filter that kills (`SCMP_ACT_KILL`) kills even the probe, so
//! there you must use no ring.
//!
//! The source is laid out along the way of a call: `api`, `op`, `host`, `proactor`, `backend`,
//! `completion`. ARCHITECTURE.md in the repository is the map.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("inflight works on 64-bit Linux only");

mod api;
mod op;

mod policy;

mod host;

mod proactor;

mod backend;

mod completion;

mod buf;
mod clock;
mod commit;
mod error;
mod foreign;
mod fork;
mod stats;
mod sync;

pub use api::any::AnyOp;
pub use api::batch::{Batch, Results};
pub use api::detach::Detach;
pub use api::engine::{BackendInfo, BackendKind, Builder, Engine};
pub use api::many::{ReadInto, WriteFrom, read_many, write_many};
pub use api::operation::{Nop, Operation};
pub use api::pending::{Pending, PendingBatch};
pub use api::queue::{Queue, TimedOut};
pub use api::timeout::{Awaited, Late, Sleep, Timeout};
#[cfg(feature = "faulty")]
pub use backend::faulty::Faults;
pub use buf::{AlignedBuf, BufPool, InPlace, IoBuf, IoBufMut, PoolBuf, Slice, Spare, TakeWhenFree};
pub use error::{
    BadRange, Ended, Forked, Misaligned, NoPositions, NoThread, Partial, RefusedBy, SetupError,
    SyncFailed, WishRefused, WrongAccess, errno_of,
};
pub use op::Priority;
pub use policy::{Durably, Way};
pub use stats::{Fallback, Stats};

/// Operations that were still in flight when their engine had waited long enough for them
/// ([`Builder::drain_for`]), in this process. Their memory is with the kernel until they have
/// completed.
pub fn leaked_operations() -> u64 {
    host::shared::leaked()
}

/// The library's own run loop: tasks of one thread, whose idle wait is the wait for completions.
///
/// [`run`](local::run) enters it; [`spawn`](local::spawn) adds a task, whose handle waits for its
/// result or ends it ([`abort`](local::JoinHandle::abort)).
pub mod local {
    pub use crate::api::local::{JoinHandle, run, sleep, spawn, yield_now};
}

/// Files, names, and the operations on them.
///
/// # Durable writes
///
/// - [`WriteAt::dsync`](fs::WriteAt::dsync): this write, when it has completed. Concurrent ones
///   share their flushes where that is measured to be faster. For a log that many append to.
/// - [`OpenOptions::durable_writes`](fs::OpenOptions::durable_writes): each write, when it has
///   completed, with a flush of its own. For one writer, and where others write by the same
///   descriptor.
/// - [`WriteAt::then_sync`](fs::WriteAt::then_sync): this write and all that had completed before
///   it was started, with a flush of its own. For the last of several writes of one writer.
/// - Writes, and then [`File::sync_data`](fs::File::sync_data): all that had completed before the
///   sync was started. Flushes are shared. For many writes that count together.
///
/// Which of them is the fastest depends on the device, and on how many come together: `inflight
/// bench --profile durable-append,group-commit` measures it. A new file's name is durable after
/// [`sync_dir`](fs::sync_dir).
///
/// # Logs that many append to
///
/// Where clients write at the same time and each is told of its own record, a crash may leave a
/// gap before one that counts. A length and a sum in each record tell what is whole, but not where
/// the next one begins: the length of a record that is missing is missing too. So
///
/// - either records are of one size, or in blocks of a fixed size, and whoever reads the log goes
///   on behind a gap. `examples/log.rs` in the repository is such a log;
/// - or there are no gaps: a client takes a lock for the end of the log, writes there by
///   [`write_all_at`](fs::File::write_all_at), releases the lock and calls
///   [`sync_data`](fs::File::sync_data), which covers all that was written before. Clients that
///   come together share the flush. Whoever reads the log stops at the first record that is not
///   whole.
///
/// **An append that is dropped in flight** (by a timeout, `select!`, an aborted task) releases its
/// lock but not its offset: the kernel may still write there after another record was written to
/// that offset and acknowledged. So run appends to completion in a task that is never dropped
/// (`tokio::spawn`; [`local::spawn`], joined before the loop ends), or on a thread, and have the
/// client wait for that. The same holds for any write to a range that is reused.
///
/// After a failed append, rewrite its range before anything is written behind it, or end the log
/// there and continue in another file. After a failed sync, always end it ([`SyncFailed`]).
///
/// # What is not here
///
/// - Streams: whole files ([`std::fs::read`] and `write`), `std::io::{Read, Write, Seek}`,
///   `AsyncRead`, `AsyncWrite`. All is at offsets here.
/// - Listing folders, links, and changing permissions: [`std::fs`] has them, which blocks.
/// - Times, types and owners: [`std::fs::metadata`] of a name, fstat(2) of an open file, whose
///   descriptor is had by [`AsFd`](std::os::fd::AsFd).
/// - Locks (flock(2), fcntl(2)) and advice (posix_fadvise(2)): by the descriptor too.
/// - Untorn writes (`RWF_ATOMIC`), copies within the kernel (copy_file_range(2), reflinks), holes
///   (lseek(2), `SEEK_HOLE`), sync_file_range(2), collapsing and inserting ranges: likewise.
/// - Folders with all that is in them (`create_dir_all`, `remove_dir_all`), and a second handle of
///   an open file: a [`File`](fs::File) is shared by [`Arc`](std::sync::Arc).
/// - A [`Queue`] that is awaited: for results in the order in which they come, push
///   `operation.into_future()` into `FuturesUnordered` (crate `futures`).
/// - Names relative to an open folder (openat(2)), `O_TMPFILE`, renameat2(2) with flags.
/// - Rings that poll the device (`IORING_SETUP_IOPOLL`) or have a thread that polls them
///   (`SQPOLL`): the command measures both.
///
/// The library may read a file by a second descriptor that it has opened itself
/// ([`File`](fs::File) says when). Locks stand all the same: reads ask for none, and the second
/// descriptor is closed with the first, so that no record lock of the process ends early. Advice on
/// how a file is read (`POSIX_FADV_RANDOM` and the like) is of one descriptor, and reads by the
/// other do not heed it; a file that is opened by [`std::fs`] and given to
/// [`File::from_std`](fs::File::from_std) has no other. Advice on a range (`WILLNEED`, `DONTNEED`)
/// is of the file.
pub mod fs {
    pub use crate::api::bounce::AnyRange;
    pub use crate::api::calls::Call;
    pub use crate::api::close::{Close, Closing};
    pub use crate::api::direct::Direct;
    pub use crate::api::explain::Explanation;
    pub use crate::api::file::{Alignment, File};
    pub use crate::api::names::{
        MetadataOf, NameOp, create_dir, metadata, remove_dir, remove_file, rename, sync_dir,
    };
    pub use crate::api::open::{Open, OpenOptions};
    pub use crate::api::transfer::{ReadAt, WriteAt};
    pub use crate::api::upkeep::{
        Allocate, AllocateRange, Metadata, ReadMetadata, SyncFile, Truncate,
    };
    pub use crate::api::vectored::{ReadVectoredAt, WriteVectoredAt};
}
