//! What an open file is to the operations on it: its descriptors, and what is known of them.
//!
//! It outlives the [`super::file::File`] while operations are in flight whose futures have been
//! dropped: the number of a closed descriptor may come to mean another file.

mod told;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::bounce::AnyRange;
use super::cached;
use super::close::Closer;
use super::direct::NotDirect;
use super::durable::Keeping;
use super::end::{End, len_of};
use super::file::Alignment;
use super::twin::{Twin, Wanted, close_beside};
use super::wishes::Hints;
use crate::backend::threads::pool::Pool;
use crate::buf::{Mapping, NotMapped};
use crate::commit::{Commit, Keep, Kept};
use crate::completion::{Answer, Refusal};
use crate::error::{SyncFailed, WrongAccess};
use crate::fork;
use crate::host::flush::Disk;
use crate::host::shared::Shared;
use crate::op::{Op, Prepared, Request, Road, Span, TRANSFER_MAX_BYTES, Wishes};
use crate::policy::{Device, Facts, Learned, loop_waits, road};

/// See the module.
#[derive(Debug)]
pub struct Handle {
    /// The number of `owned`, which is there until this is dropped.
    fd: RawFd,
    owned: Option<OwnedFd>,
    /// For requests that do not fit direct I/O, where that is optional, and for the ends of writes
    /// of any range.
    buffered: Option<OwnedFd>,
    /// For a thread that reads while another does.
    twin: Twin,
    facts: Facts,
    alignment: Alignment,
    /// The bits that are 0 in offsets and lengths that are aligned, and those in addresses.
    position_bits: u64,
    address_bits: u64,
    /// Whether nothing is to go through the page cache, however it is aligned.
    is_strict: bool,
    has_positions: bool,
    /// A regular file or a block device. Others may take writes and have no sync.
    is_storage: bool,
    /// `O_ACCMODE` and `O_PATH` of its flags.
    access: i32,
    closes: Closes,
    /// What of the file is resident is copied from here.
    mapping: Option<Mapping>,
    any_range: AnyRange,
    learned: Learned,
    end: End,
    /// System calls were when the engine was made.
    was_filtered: bool,
    hints: Hints,
    keeping: Keeping,
    /// How it is synced.
    commit: Arc<Commit>,
    /// Of its engine, and the process that opened it.
    pool: Arc<Pool>,
    fork_generation: u32,
    /// Who closes the descriptors when this is dropped and tells of errors, if somebody does.
    closer: OnceLock<Arc<Closer>>,
}

/// What closing a file waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closes {
    /// For nothing, if it has a name: it is a regular file that was opened to be read.
    AtOnce,
    /// As that, but it may have been written, of which something may be left to be done.
    Written,
    /// It may wait.
    Waits,
    /// It asks another program or machine, which may never answer.
    Asks,
}

/// What opening has found out.
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) buffered: Option<OwnedFd>,
    pub(super) twin: Wanted,
    pub(super) facts: Facts,
    /// The number of what is below it (`super::mounts`).
    pub(super) below: Option<u64>,
    pub(super) alignment: Alignment,
    pub(super) required: bool,
    pub(super) has_positions: bool,
    pub(super) is_storage: bool,
    pub(super) access: i32,
    pub(super) closes: Closes,
    pub(super) mapping: Option<Mapping>,
    pub(super) not_mapped: Option<NotMapped>,
    pub(super) not_direct: Option<NotDirect>,
    pub(super) len: u64,
    pub(super) any_range: AnyRange,
}

/// What an operation needs its file to be open for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Read,
    Write,
    /// It may be open for either.
    Any,
}

impl Handle {
    pub(super) fn new(opened: Opened, shared: &Shared) -> Self {
        let device = opened.below.and_then(|number| shared.devices.of(number));
        let (fd, is_served) = (opened.fd.as_raw_fd(), opened.facts.served);
        let disk = Disk::new(shared, fd, device.clone(), is_served);
        let needed = opened.alignment.or_assumed();
        Self {
            is_strict: opened.required,
            fd,
            owned: Some(opened.fd),
            buffered: opened.buffered,
            twin: Twin::new(opened.twin),
            facts: opened.facts,
            alignment: opened.alignment,
            position_bits: u64::from(needed.offset_bytes) - 1,
            address_bits: u64::from(needed.memory_bytes) - 1,
            has_positions: opened.has_positions,
            is_storage: opened.is_storage,
            access: opened.access,
            closes: opened.closes,
            mapping: opened.mapping,
            learned: Learned::on(device),
            end: End::at(opened.len),
            was_filtered: shared.config.was_filtered,
            any_range: match opened.facts.direct {
                true => opened.any_range,
                false => AnyRange::Off,
            },
            hints: Hints::default(),
            keeping: Keeping::default(),
            commit: Arc::new(Commit::new(disk, opened.is_storage)),
            pool: Arc::clone(shared.pool()),
            fork_generation: fork::generation(),
            closer: OnceLock::new(),
        }
    }

    /// The descriptor alone. Where direct I/O is optional it is no longer direct, so that it takes
    /// any transfer.
    pub(super) fn into_fd(mut self) -> OwnedFd {
        let is_optional = self.buffered.is_some() && !self.is_strict;
        let [owned, buffered, twin] = self.take_fds();
        [buffered, twin]
            .into_iter()
            .flatten()
            .for_each(close_beside);
        let fd = owned.expect("it is there until the end");
        if is_optional && let Ok(flags) = fcntl_getfl(&fd) {
            // One that cannot be changed is as it was.
            let _ = fcntl_setfl(&fd, flags & !OFlags::DIRECT);
        }
        fd
    }

    /// The descriptors, to be closed.
    pub(super) fn into_fds(mut self) -> [Option<OwnedFd>; 3] {
        self.take_fds()
    }

    fn take_fds(&mut self) -> [Option<OwnedFd>; 3] {
        [self.owned.take(), self.buffered.take(), self.twin.take()]
    }

    /// What closing the descriptors waits for.
    pub(super) fn closes(&self) -> Closes {
        self.closes
    }

    /// Whether closing the descriptors of a regular file takes nothing away.
    pub(super) fn closes_at_once(&self) -> bool {
        let fd = self.owned.as_ref().map(AsFd::as_fd);
        let was_written = self.closes == Closes::Written;
        fd.is_some_and(|fd| cached::closes_at_once(fd, was_written))
    }

    /// The pool of its engine, if this is the process that opened it.
    pub(super) fn pool(&self) -> Option<Arc<Pool>> {
        let is_own = self.fork_generation == fork::generation();
        is_own.then(|| Arc::clone(&self.pool))
    }

    /// From now on the descriptors are left to this closer when nobody needs them any more.
    pub(super) fn leave_to(&self, closer: Arc<Closer>) {
        let set = self.closer.set(closer);
        debug_assert!(set.is_ok(), "a file is closed once");
    }

    pub(super) fn has_closer(&self) -> bool {
        self.closer.get().is_some()
    }

    pub(super) fn alignment(&self) -> Alignment {
        self.alignment
    }

    pub(super) fn sync_failed(&self) -> SyncFailed {
        SyncFailed {
            errno: self.commit.failure().unwrap_or(libc::EIO),
        }
    }

    /// What the file is not open for, if that is what this errno of the kernel means where so much
    /// was asked for. Of what it is open for, whoever serves the file may say the same.
    #[cold]
    pub(super) fn wrong_access(&self, asked: Access, errno: i32) -> Option<WrongAccess> {
        let is_write = match (self.access, asked) {
            (libc::O_RDONLY, Access::Write) => true,
            (libc::O_WRONLY, Access::Read) => false,
            _ => return None,
        };
        Some(WrongAccess { is_write, errno })
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd
    }

    /// The descriptors of a direct file that takes writes of any range: past the page cache, and
    /// through it.
    pub(super) fn fds(&self) -> [RawFd; 2] {
        let buffered = self.buffered.as_ref().map(AsRawFd::as_raw_fd);
        [self.fd, buffered.unwrap_or(self.fd)]
    }

    /// A descriptor for another thread than the one that reads by this one, if there can be one.
    #[inline]
    pub(super) fn twin(&self, of: RawFd) -> Option<RawFd> {
        let twin = self.twin.of(self.as_fd())?;
        match of {
            _ if of == self.fd => Some(twin),
            _ if of == twin => Some(self.fd),
            _ => None,
        }
    }

    /// Whether transfers of a kind are taken without waiting, as far as is known.
    pub(super) fn takes_nowait(&self, facts: Facts, is_write: bool) -> Option<bool> {
        self.learned.takes_nowait(facts, is_write)
    }

    /// Whether a run loop with nothing else to do makes such a transfer itself, if it is for a
    /// thread: it waits for a device, and not for long. One with wishes may, as for a flush.
    pub(super) fn is_short(&self, is_write: bool, wishes: Wishes) -> bool {
        let waited = || self.learned.waited(self.facts, is_write);
        self.is_on_device() && wishes.asked().is_none() && loop_waits(waited())
    }

    /// Whether another program or machine serves the file.
    pub(super) fn is_served(&self) -> bool {
        self.facts.served
    }

    /// As [`crate::op::Prepare::is_on_device`].
    #[inline]
    pub(super) fn is_on_device(&self) -> bool {
        self.is_storage && !self.facts.served
    }

    #[inline]
    fn is_durable(&self, wishes: Wishes) -> bool {
        wishes.has(Wishes::DSYNC) || self.facts.durable_writes
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// Whether a write of so many bytes makes the file grow. Of a file that is served nobody is
    /// asked: there are file systems that ask a server whatever they are told, and this may be
    /// where a future is polled.
    #[inline]
    fn grows(&self, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        self.end.is_before(end, || match self.facts.served {
            true => None,
            false => len_of(self.as_fd(), self.was_filtered),
        })
    }

    pub(super) fn facts(&self) -> Facts {
        self.facts
    }

    /// What is known of the file as this descriptor of it has it open.
    pub(super) fn facts_of(&self, fd: Option<RawFd>) -> Facts {
        let buffered = self.buffered.as_ref().map(AsRawFd::as_raw_fd);
        match fd.is_some() && fd == buffered {
            true => self.facts.unaligned(),
            false => self.facts,
        }
    }

    pub(super) fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }

    /// The request of a transfer, or why there is none. Where it is inlined, plan and request are
    /// never stored: each stage would wait for the stores of the one before.
    #[inline(always)]
    pub(super) fn transfer(
        &self,
        span: Span,
        offset: u64,
        whole: bool,
        wishes: &mut Wishes,
        op: impl FnOnce(RawFd, Span, Wishes) -> Op,
    ) -> Prepared {
        if let Some(answer) = self.refuse_position(offset, span.len) {
            return Prepared::answered(answer);
        }
        let fits = self.fits(span.start.addr(), span.len, offset);
        let Some((fd, facts)) = self.descriptor(fits) else {
            return self.misaligned(offset, [(span.start.addr(), span.len)], *wishes);
        };
        let heard = match *wishes {
            Wishes::NONE => Wishes::NONE,
            _ if self.refuses_sync_after(*wishes) => {
                return Prepared::answered(Answer::refused(Refusal::SyncFailed));
            }
            _ => self.hints.heard(wishes, facts.direct),
        };
        if facts.unaligned {
            *wishes = wishes.with(Wishes::UNALIGNED);
        }
        let mut op = op(fd, span, heard);
        let grows = || self.grows(offset, span.len);
        let road = road(&op, facts, &self.learned, grows);
        if let (Road::Warm | Road::Blind, Op::ReadAt { fd, .. }) = (road, &mut op) {
            self.read_by_this_thread(fd);
        }
        let request = Request {
            whole,
            limit_bytes: facts.limit_bytes,
            submitted: road == Road::Asynchronous,
            ..Request::simple(op)
        };
        Prepared::run(road, request)
    }

    /// Has cached data read by the descriptor of this thread. The twin is direct if the file is, so
    /// it is not for what does not fit.
    #[inline(always)]
    fn read_by_this_thread(&self, fd: &mut RawFd) {
        if *fd == self.fd {
            *fd = self.twin.for_this_thread(self.as_fd());
        }
    }

    /// As [`Handle::transfer`], for a list of buffers.
    pub(super) fn vectored(
        &self,
        list: &[libc::iovec],
        offset: u64,
        whole: bool,
        wishes: &mut Wishes,
        op: impl FnOnce(RawFd, Wishes) -> Op,
    ) -> Prepared {
        let len = list
            .iter()
            .map(|iovec| iovec.iov_len)
            .fold(0, usize::saturating_add);
        if let Some(answer) = self.refuse_position(offset, len) {
            return Prepared::answered(answer);
        }
        let fits = |iovec: &libc::iovec| self.fits(iovec.iov_base.addr(), iovec.iov_len, offset);
        let Some((fd, facts)) = self.descriptor(list.iter().all(fits)) else {
            let bufs = list.iter().map(|buf| (buf.iov_base.addr(), buf.iov_len));
            return self.misaligned(offset, bufs, *wishes);
        };
        if self.refuses_sync_after(*wishes) {
            return Prepared::answered(Answer::refused(Refusal::SyncFailed));
        }
        let mut op = op(fd, self.hints.heard(wishes, facts.direct));
        if facts.unaligned {
            *wishes = wishes.with(Wishes::UNALIGNED);
        }
        let grows = || self.grows(offset, len);
        let road = road(&op, facts, &self.learned, grows);
        if let (Road::Warm | Road::Blind, Op::ReadVectoredAt { fd, .. }) = (road, &mut op) {
            self.read_by_this_thread(fd);
        }
        let request = Request {
            whole,
            ..Request::simple(op)
        };
        Prepared::run(road, request)
    }

    /// Whether reads, or writes, go by way of aligned memory where they are not aligned.
    #[inline(always)]
    pub(super) fn takes_any_range(&self, is_write: bool) -> bool {
        match self.any_range {
            AnyRange::Off => false,
            AnyRange::Reads => !is_write,
            AnyRange::ReadsAndWrites => true,
        }
    }

    /// Whether a transfer on such a file is not aligned, and nothing else refuses it.
    #[cold]
    pub(super) fn needs_cover(&self, span: Span, offset: u64, wishes: Wishes) -> bool {
        let is_needed = !self.fits(span.start.addr(), span.len, offset);
        let is_refused =
            self.refuse_position(offset, span.len).is_some() || self.refuses_sync_after(wishes);
        is_needed && !is_refused
    }

    /// The request of a read past the page cache.
    pub(super) fn read_past_the_cache(&self, op: Op, whole: bool) -> Prepared {
        let mut request = self.past_the_cache(op, whole);
        let road = road(&op, self.facts, &self.learned, || false);
        request.submitted = road == Road::Asynchronous;
        Prepared::run(road, request)
    }

    /// One of several requests of a write past the page cache. What they read says nothing of the
    /// file's reads.
    pub(super) fn write_past_the_cache(&self, op: Op, whole: bool) -> Prepared {
        let road = match self.facts.served {
            // A ring would wait for whoever serves it where it is entered.
            true => Road::Pool,
            false => Road::Backend,
        };
        Prepared::run(road, self.past_the_cache(op, whole))
    }

    /// As [`Handle::write_past_the_cache`], for the end of the file: it may have to read a page
    /// first, or to be durable.
    pub(super) fn write_through_the_cache(&self, op: Op, whole: bool) -> Prepared {
        let request = Request::simple(op);
        Prepared::run(Road::Pool, Request { whole, ..request })
    }

    fn past_the_cache(&self, op: Op, whole: bool) -> Request {
        let limit_bytes = match op.span() {
            Some(_) => self.facts.limit_bytes,
            None => TRANSFER_MAX_BYTES,
        };
        Request {
            whole,
            limit_bytes,
            ..Request::simple(op)
        }
    }

    /// The descriptor for a request, which fits direct I/O or not, and what is known of it. None if
    /// it would have to fit.
    #[inline(always)]
    fn descriptor(&self, fits: bool) -> Option<(RawFd, Facts)> {
        match &self.buffered {
            _ if fits || !self.facts.direct => {}
            // Else the kernel says what it needs.
            _ if self.is_strict && self.alignment != Alignment::Unknown => return None,
            Some(buffered) if !self.is_strict => {
                return Some((buffered.as_raw_fd(), self.facts.unaligned()));
            }
            _ => {}
        }
        Some((self.raw_fd(), self.facts))
    }

    /// The refusal of a transfer with these addresses and lengths. After a failed sync that is more
    /// than to be told how it would fit.
    #[cold]
    fn misaligned(
        &self,
        offset: u64,
        bufs: impl IntoIterator<Item = (usize, usize)>,
        wishes: Wishes,
    ) -> Prepared {
        if self.refuses_sync_after(wishes) {
            return Prepared::answered(Answer::refused(Refusal::SyncFailed));
        }
        let (mut len, mut address) = (false, false);
        for (start, bytes) in bufs {
            len |= bytes as u64 & self.position_bits != 0;
            address |= start as u64 & self.address_bits != 0;
        }
        let offset = offset & self.position_bits != 0;
        Prepared::answered(Answer::misaligned(offset, len, address))
    }

    /// A ring takes an offset of -1 for the current position, and ignores the offset on what has
    /// no positions (io_uring_enter(2), `IORING_OP_READV`); pread(2) refuses both, and a range that
    /// ends beyond the largest offset.
    #[inline(always)]
    fn refuse_position(&self, offset: u64, len: usize) -> Option<Answer> {
        if !self.has_positions {
            return Some(Answer::refused(Refusal::NoPositions));
        }
        // If the sum wraps around, offset or length are beyond the largest offset by themselves.
        let len = len as u64;
        let end = offset.wrapping_add(len);
        let fits = i64::try_from(offset | len | end).is_ok();
        (!fits).then(|| Answer::refused(Refusal::TooFar))
    }

    #[inline(always)]
    fn fits(&self, address: usize, len: usize, offset: u64) -> bool {
        // Alignments are powers of two, so the bits of all can be looked at together.
        let positions = (len as u64 | offset) & self.position_bits;
        let address = address as u64 & self.address_bits;
        // Of no bytes neither place matters: the kernel yields 0 before it looks at them.
        positions | address == 0 || len == 0
    }

    /// An operation that is no transfer.
    pub(super) fn simple(&self, op: Op) -> Prepared {
        let road = road(&op, self.facts, &self.learned, || false);
        Prepared::run(road, Request::simple(op))
    }

    pub(super) fn commit(&self) -> &Arc<Commit> {
        &self.commit
    }

    /// Whether a write is to be followed by a sync that would tell nothing.
    pub(super) fn refuses_sync_after(&self, wishes: Wishes) -> bool {
        wishes.has(Wishes::THEN_SYNC) && self.commit.failure().is_some()
    }

    pub(super) fn is_storage(&self) -> bool {
        self.is_storage
    }

    /// What is below it, if that is known.
    pub(super) fn device(&self) -> Option<&Device> {
        self.learned.device()
    }

    pub(super) fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    pub(super) fn hints(&self) -> &Hints {
        &self.hints
    }
}

impl Keep for Arc<Handle> {
    fn keep(&self) -> Kept {
        Arc::clone(self) as _
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let owned = self.owned.as_ref();
        owned.expect("it is there until the end").as_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(closer) = self.closer.take() {
            closer.take_over(self.take_fds());
        }
    }
}
