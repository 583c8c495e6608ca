//! What is asked of a single transfer beyond moving its bytes: the methods of the operations, and
//! what becomes of a wish that is refused (`docs/design/wishes.md`).

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use super::explain::scheduler_of;
use super::file::File;
use super::handle::Access;
use super::kept::Tells;
use super::transfer::{ReadAt, WriteAt};
use super::vectored::{ReadVectoredAt, WriteVectoredAt, total};
use crate::backend::threads::execute::is_filtered;
use crate::buf::IoBuf;
use crate::completion::{Answer, Refusal};
use crate::error::WishRefused;
use crate::op::{Priority, Wishes};

/// Which hints a file has refused, so that they are not tried again, and what of its transfers has
/// been told, which is done once.
#[derive(Debug, Default)]
pub(super) struct Hints(AtomicU8);

const NO_DONT_CACHE: u8 = 1;
const NO_PRIORITY: u8 = 2;
const TOLD_BUFFERED: u8 = 4;
/// Whether the scheduler has been asked for, whether it heeds no priority of one class, and whether
/// that has been told.
const ASKED_SCHEDULER: u8 = 8;
const NO_SCHEDULER: u8 = 16;
const TOLD_SCHEDULER: u8 = 32;
const TOLD_UNALIGNED: u8 = 64;

impl Hints {
    /// What is asked of the kernel; whether that is less than what was wished for is marked in
    /// `wishes`.
    pub(super) fn heard(&self, wishes: &mut Wishes, direct: bool) -> Wishes {
        let known = self.0.load(Ordering::Relaxed);
        let asked = wishes.asked();
        let may_have_priority = direct && known & NO_PRIORITY == 0;
        let mut heard = asked;
        if !may_have_priority {
            heard = heard.without_priority();
        }
        if direct {
            // Nothing is cached as it is.
            heard = heard.without(Wishes::DONT_CACHE);
        } else if known & NO_DONT_CACHE != 0 {
            heard = heard.without(Wishes::DONT_CACHE);
        }
        let is_cached = !direct && heard.has(Wishes::DONT_CACHE) != asked.has(Wishes::DONT_CACHE);
        *wishes = match is_cached || heard.has_priority() != asked.has_priority() {
            true => asked.with(Wishes::UNHEARD),
            false => asked,
        };
        heard
    }

    /// Whether the I/O scheduler makes nothing of a priority that was handed over. All are of one
    /// class (`Priority`), within which `bfq` alone has an order (Documentation/block/ioprio.rst
    /// and bfq-iosched.rst of the kernel); whether a device has one is its secret.
    fn is_passed_over(&self, wishes: Wishes, scheduler: impl FnOnce() -> Option<String>) -> bool {
        if !wishes.has_priority() {
            return false;
        }
        let mut known = self.0.load(Ordering::Relaxed);
        if known & ASKED_SCHEDULER == 0 {
            let is_other = scheduler().is_some_and(|name| name != "bfq");
            known = ASKED_SCHEDULER | if is_other { NO_SCHEDULER } else { 0 };
            self.0.fetch_or(known, Ordering::Relaxed);
        }
        known & NO_SCHEDULER != 0
    }

    /// Whether it has still to be told that a transfer was not aligned. It has been, from here on.
    fn is_unaligned_untold(&self) -> bool {
        let is_told = |known| known & TOLD_UNALIGNED != 0;
        !is_told(self.0.load(Ordering::Relaxed))
            && !is_told(self.0.fetch_or(TOLD_UNALIGNED, Ordering::Relaxed))
    }

    /// Learns that a transfer went without its hints. Returns why, if that has not been told.
    #[cold]
    fn note(&self, wishes: Wishes, answer: Answer) -> Option<&'static str> {
        // A transfer is asked for one of the two at most: a priority past the page cache, and not
        // to be cached on the way through it.
        let (fact, reason) = match answer.is_unheard() {
            true if wishes.has(Wishes::DONT_CACHE) => (
                NO_DONT_CACHE,
                "dont_cache is refused by a file system or the kernel (RWF_DONTCACHE), and left \
                 out",
            ),
            true => (
                NO_PRIORITY,
                "priority is refused by the kernel (ioprio_set), and left out",
            ),
            false if wishes.has(Wishes::UNHEARD) && wishes.has_priority() => (
                TOLD_BUFFERED,
                "priority concerns direct transfers; through the page cache it is left out",
            ),
            false if wishes.has_priority() => (
                TOLD_SCHEDULER,
                "priority is handed over, but the I/O scheduler of the device does not heed it; \
                 bfq does",
            ),
            false => return None,
        };
        let before = self.0.fetch_or(fact, Ordering::Relaxed);
        (before & fact == 0).then_some(reason)
    }
}

/// Tells of something that was given up. Not in a forked child, of a result from before: a thread
/// that is not there may have been telling of something else, and keeps its lock.
fn tell(file: &File, reason: String) {
    let shared = file.engine().shared();
    if !shared.is_forked() {
        shared.counters.fallback(reason);
    }
}

/// Counts a transfer that does not fit direct I/O, if it has moved something through the page
/// cache, and tells of the first one of its file.
#[cold]
pub(super) fn count_unaligned(file: &File, answer: Answer) {
    if answer.bytes() == 0 {
        return;
    }
    file.engine().shared().counters.unaligned();
    if file.handle().hints().is_unaligned_untold() {
        let needed = file.alignment().or_assumed();
        let reason = format!(
            "a transfer of a file with Direct::Auto went through the page cache, because it is not \
             aligned: past it, this takes buffers aligned to {} bytes, and offset and length in \
             multiples of {} bytes; use buffers of File::aligned_buf or BufPool, or \
             OpenOptions::any_range, which is for reads of one buffer (AnyRange::Reads) and for \
             writes (AnyRange::ReadsAndWrites), and not for lists, read_many and write_many",
            needed.memory_bytes, needed.offset_bytes,
        );
        tell(file, reason);
    }
}

/// The result of a transfer with wishes or marks. What it tells of the file's syncs has been
/// noted.
#[cold]
pub(super) fn settle(
    file: &File,
    wishes: Wishes,
    answer: Answer,
    result: io::Result<usize>,
) -> io::Result<usize> {
    let handle = file.handle();
    if wishes.has(Wishes::UNALIGNED) {
        count_unaligned(file, answer);
    }
    match result {
        // A sync that ran at the same time may have been told of the error instead of this one.
        Ok(_) if handle.refuses_sync_after(wishes) => {
            Answer::refused(Refusal::SyncFailed).decode(file.asked(Access::Write))
        }
        Ok(moved) => {
            // A process whose system calls are filtered may be ended for looking.
            let scheduler = || match is_filtered() {
                true => None,
                false => scheduler_of(handle.raw_fd()),
            };
            if answer.is_unheard()
                || wishes.has(Wishes::UNHEARD)
                || handle.hints().is_passed_over(wishes, scheduler)
            {
                file.engine().shared().counters.hint_unheard();
                if let Some(reason) = handle.hints().note(wishes, answer) {
                    tell(file, reason.to_owned());
                }
            }
            Ok(moved)
        }
        Err(error) => Err(named(error, wishes)),
    }
}

/// The error, which names the wish if it is about one.
fn named(error: io::Error, wishes: Wishes) -> io::Error {
    // preadv2(2), EOPNOTSUPP: an unknown flag, or one that the file does not take.
    let Some(errno @ (libc::EOPNOTSUPP | libc::ENOSYS)) = error.raw_os_error() else {
        return error;
    };
    let wishes = match (wishes.has(Wishes::DSYNC), wishes.has(Wishes::NO_WAIT)) {
        (false, false) => return error,
        (true, false) => "dsync",
        (false, true) => "no_wait",
        (true, true) => "dsync or no_wait",
    };
    io::Error::new(io::ErrorKind::Unsupported, WishRefused { wishes, errno })
}

impl<B: IoBuf> WriteAt<'_, B> {
    pub(super) fn tells(&self) -> Tells {
        match &self.bounced {
            None => Tells::of_write(self.wishes, || self.buf.len()),
            Some(bounced) => bounced.tells(self.wishes),
        }
    }
}

impl<B: IoBuf> WriteVectoredAt<'_, B> {
    pub(super) fn tells(&self) -> Tells {
        Tells::of_write(self.wishes, || total(&self.bufs))
    }
}

/// What writes have in common.
macro_rules! notes {
    ($($operation:ident),*) => {$(
        impl<B: IoBuf> $operation<'_, B> {
            /// Remembers what a failure tells of the file's syncs. At once: the kernel does not
            /// tell it again to a sync that begins before the result is looked at.
            #[cold]
            pub(super) fn note_failed(&self, answer: Answer) {
                self.tells().note(self.file.handle(), answer);
            }
        }
    )*};
}

notes!(WriteAt, WriteVectoredAt);

/// The wishes that reads and writes have in common.
macro_rules! wishes {
    ($($operation:ident),*) => {$(
        impl<B> $operation<'_, B> {
            /// If it would have to wait, it fails with `WouldBlock` instead, or yields a short
            /// count if some bytes could be moved before (`RWF_NOWAIT`, preadv2(2)).
            ///
            /// Through the page cache that is a call which never waits for the device, made at
            /// once wherever the operation is run. Past it, the transfer waits for the device,
            /// but not for locks or for room in its queue.
            ///
            /// # Errors
            ///
            /// `WouldBlock`; [`crate::WishRefused`], of the kind `Unsupported`, where the file
            /// system cannot tell: ext4 for writes through the page cache, files in `/proc`; and of
            /// writes with [`any_range`](crate::fs::OpenOptions::any_range) whose ends are not
            /// aligned, because what is read there may wait.
            pub fn no_wait(mut self) -> Self {
                self.wishes = self.wishes.with(Wishes::NO_WAIT);
                self
            }

            /// Does not leave in the page cache what this transfer brings there
            /// (`RWF_DONTCACHE`, from Linux 6.14 on). What has been there before stays.
            ///
            /// It saves memory, not time: large reads take 1.3 to 1.6 times as long, and direct
            /// ones are faster. A write begins to write back at once. On xfs its pages go then; on
            /// ext4 they stay (`folio_end_dropbehind` in the kernel's mm/filemap.c drops none in
            /// an interrupt; seen on 6.18), which nothing tells of.
            ///
            /// This is a hint. A file system that refuses it carries the transfer out as any
            /// other; [`crate::Stats::hints_unheard`] counts that. Direct transfers do so anyway.
            pub fn dont_cache(mut self) -> Self {
                self.wishes = self.wishes.with(Wishes::DONT_CACHE);
                self
            }

            /// Has the device serve this transfer before or after others. The last one given
            /// counts.
            ///
            /// This is a hint, for direct transfers only: the kernel gives those through the
            /// page cache no priority of their own. It is up to the I/O scheduler what it is
            /// worth: `bfq` heeds it, `mq-deadline` heeds classes only, and `none` and `kyber`
            /// do not (ioprio_set(2)). Where a ring does the transfer, it is told in the entry;
            /// where a plain call does, of this thread or of the pool, the thread has the
            /// priority for as long as the call takes. A transfer that goes without it, or by a
            /// scheduler that does not heed it, is counted in [`crate::Stats::hints_unheard`]: for
            /// that the first one of a file looks the scheduler up in `/sys`, unless system calls
            /// are filtered.
            pub fn priority(mut self, priority: Priority) -> Self {
                self.wishes = self.wishes.with_priority(priority);
                self
            }
        }
    )*};
}

wishes!(ReadAt, WriteAt, ReadVectoredAt, WriteVectoredAt);

/// What only tests wish for.
macro_rules! wishes_of_reads {
    ($($operation:ident),*) => {$(
        impl<B> $operation<'_, B> {
            /// Has the backend read, whatever is known of the file: tests of what is in flight need
            /// reads that are not answered at once.
            #[doc(hidden)]
            pub fn by_backend(mut self) -> Self {
                self.wishes = self.wishes.with(Wishes::BY_BACKEND);
                self
            }
        }
    )*};
}

wishes_of_reads!(ReadAt, ReadVectoredAt);

/// The wishes of writes.
macro_rules! wishes_of_writes {
    ($($operation:ident),*) => {$(
        impl<B> $operation<'_, B> {
            /// Makes what this write moves durable before it completes, as
            /// [`OpenOptions::durable_writes`](crate::fs::OpenOptions::durable_writes) does for
            /// all.
            ///
            /// Other writes are not covered. [`Self::then_sync`] also covers those whose results
            /// had been delivered before, but not those in flight or in the same batch. A short
            /// write is durable as far as it goes.
            ///
            /// It is implemented with a flag of the kernel (`RWF_DSYNC`, pwritev2(2)), or with a
            /// sync of the file whose flush such writes share: whichever has been measured to be
            /// faster for this file and as many in flight (`docs/design/durable.md`).
            /// [`Self::explain`] tells which it is, and [`crate::Stats::synced_writes`] counts the
            /// second.
            ///
            /// # Errors
            ///
            /// [`crate::WishRefused`] where the kernel does not know it; then nothing is written.
            /// After an error of a device or a server (`EIO`, `ETIMEDOUT`, `ESTALE` and the like),
            /// also where it has only made a write short, and after any of the sync that keeps it,
            /// syncs of this file yield [`crate::SyncFailed`], and so does a write that was waiting
            /// for its own; then nobody knows what of it is durable.
            ///
            /// **Later writes with this wish are made all the same**, and each tells of itself
            /// alone. A log whose records count only if all before them are there stops at the
            /// first error of any kind, or uses [`Self::then_sync`], which is refused from then
            /// on. The kernel reports a failed write-back once, to whoever asks first: if you act
            /// on that, do not mix this with syncs and `then_sync` on one handle.
            pub fn dsync(mut self) -> Self {
                self.wishes = self.wishes.with(Wishes::DSYNC);
                self
            }

            /// Writes all of it, and then makes the file's data durable (fdatasync(2)): one
            /// operation, whose result comes when both are done. Its flush serves no other: where
            /// many write together, [`Self::dsync`] or [`File::sync_data`] share theirs.
            ///
            /// A short write is resumed. Unless all has been written there is no sync, so a count
            /// of bytes is always the length, and durable.
            ///
            /// # Errors
            ///
            /// Those of the write. A sync that fails is [`crate::Partial`] with all bytes done, and
            /// later ones yield [`crate::SyncFailed`]. That is also the answer if an earlier sync
            /// has failed; then nothing is written.
            ///
            /// # Cancellation
            ///
            /// Dropped in flight, the write may be done with or without the sync.
            pub fn then_sync(mut self) -> Self {
                self.wishes = self.wishes.with(Wishes::THEN_SYNC);
                self.all = true;
                self
            }
        }
    )*};
}

wishes_of_writes!(WriteAt, WriteVectoredAt);
