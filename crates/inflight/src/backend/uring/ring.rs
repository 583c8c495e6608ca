//! A ring and its owner's side: push, enter, reap.
#![allow(unsafe_code)]

mod listening;
mod looking;

use std::io;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::types::Timespec;
use io_uring::{EnterFlags, IoUring, SubmissionQueue, cqueue};
use rustix::io_uring::{
    IoringEnterFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};

use super::descriptor;
use super::encode::{Known, encode};
use super::fixed::Files;
use super::register::Arenas;
use crate::backend::alarm::{Event, wait_readable};
use crate::backend::returns;
use crate::backend::yields::Yields;
use crate::buf::Arena;
use crate::completion::Completion;
use crate::op::Op;

/// How long the kernel is given to find memory for requests.
const MEMORY_RETRY_AFTER: Duration = Duration::from_millis(1);

/// What the ring sends back for the alarm. No slot has this number.
const ALARM: u64 = u64::MAX;

/// A ring owned by one thread, or by one at a time.
pub(crate) struct Uring {
    ring: IoUring,
    /// Whether it completes operations without being entered.
    is_shared: bool,
    /// Index of the ring's descriptor among those this thread has registered, which saves a
    /// look-up in each enter: io_uring_register(2), `IORING_REGISTER_RING_FDS`.
    registered: Option<u32>,
    /// What enters name the ring by: this index, or its descriptor.
    target: RawFd,
    /// Flags of every enter.
    flags: EnterFlags,
    arenas: Arenas,
    files: Files,
    /// Interrupts the owner's wait, once somebody has asked for that.
    event: Option<Arc<Event>>,
    /// Whether the ring watches the event.
    listens: bool,
    /// Whether it watches for one signal at a time, because the kernel cannot otherwise.
    listens_once: bool,
    /// Whether the entry for that may still be in the queue.
    listen_queued: bool,
    /// What completions are announced by, if anything.
    announcer: Option<Arc<Event>>,
    enters: u64,
    /// Enters in a row for which the kernel had no memory.
    fruitless: u32,
    yields: Yields,
}

/// A ring, while operations are pushed one after the other; the kernel is told of them together.
pub(crate) struct Held<'r> {
    ring: &'r IoUring,
    queue: SubmissionQueue<'r>,
    arenas: &'r mut Arenas,
    files: &'r mut Files,
    /// The arena that was met last, which nearly always is that of the next buffer too, and its
    /// place. It lives: something that needs it has been pushed and cannot have completed.
    last: (Option<NonNull<Arena>>, Option<u16>),
}

impl Held<'_> {
    /// Entries in the queue.
    #[inline(always)]
    pub(crate) fn queued(&self) -> u32 {
        u32::try_from(self.queue.len()).expect("a queue has at most 32768 places")
    }

    /// How many operations have a place in the queue.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        let room = self.queue.capacity() - self.queue.len();
        u32::try_from(room).expect("a queue has at most 32768 places")
    }

    /// As [`Uring::push`].
    ///
    /// # Safety
    ///
    /// As for [`Uring::push`].
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op) -> bool {
        let mut known = Known {
            buffer: None,
            file: op.fd().and_then(|fd| self.files.place(self.ring, fd)),
        };
        if let Some(arena) = op.span().and_then(|span| span.arena) {
            if self.last.0 != Some(arena) {
                // SAFETY: the buffer that the span points into keeps its arena alive.
                let place = unsafe { self.arenas.place(self.ring, arena) };
                self.last = (Some(arena), place);
            }
            known.buffer = self.last.1;
        }
        let pushed = encode(op, known, |entry| {
            // SAFETY: passed on from the caller.
            unsafe { self.queue.push(&entry.user_data(user_data)) }
        });
        pushed.is_ok()
    }
}

/// After so many the kernel is not expected to find memory any more.
const FRUITLESS_MAX: u32 = 1000;

/// Why an enter has failed for good.
#[derive(Debug)]
pub(crate) struct EnterFailed {
    pub(crate) cause: io::Error,
    /// Whether another try can still go well.
    pub(crate) may_pass: bool,
}

impl Uring {
    pub(crate) fn new(ring: IoUring) -> Self {
        let registered = descriptor::register(&ring);
        Self::with(ring, registered, false)
    }

    /// A ring that any thread may enter, one at a time (`probe::open_shared`).
    #[cfg(feature = "tokio")]
    pub(crate) fn shared(ring: IoUring) -> Self {
        // A registered descriptor is known to the thread alone that has registered it.
        Self::with(ring, None, true)
    }

    fn with(ring: IoUring, registered: Option<u32>, is_shared: bool) -> Self {
        let mut flags = EnterFlags::empty();
        if ring.params().is_feature_no_iowait() {
            // An idle wait is not I/O pressure (io_uring_enter(2), IORING_ENTER_NO_IOWAIT).
            flags |= EnterFlags::NO_IOWAIT;
        }
        if registered.is_some() {
            flags |= EnterFlags::REGISTERED_RING;
        }
        let target = match registered {
            Some(index) => RawFd::try_from(index).expect("there are few of them"),
            None => ring.as_raw_fd(),
        };
        Self {
            arenas: Arenas::default(),
            target,
            ring,
            is_shared,
            registered,
            flags,
            files: Files::default(),
            event: None,
            listens: false,
            listens_once: false,
            listen_queued: false,
            announcer: None,
            enters: 0,
            fruitless: 0,
            yields: Yields::NEW,
        }
    }

    /// Most operations that may be in flight: each has a place in both queues, so neither can
    /// overflow.
    pub(crate) fn capacity(&self) -> u32 {
        let params = self.ring.params();
        params.sq_entries().min(params.cq_entries())
    }

    /// Queues an operation; the kernel sees it at the next enter. False if there is no place for
    /// it, because the kernel does not take the entry that listens to the alarm.
    ///
    /// # Safety
    ///
    /// The addresses in the operation stay valid until its completion has been reaped, and no more
    /// than [`Uring::capacity`] are in flight.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op) -> bool {
        // SAFETY: passed on from the caller.
        unsafe { self.hold().push(user_data, op) }
    }

    /// The ring, for many operations that are pushed one after the other.
    #[inline(always)]
    pub(crate) fn hold(&mut self) -> Held<'_> {
        if self.listen_queued {
            self.let_listen();
        }
        let ring = &self.ring;
        Held {
            // SAFETY: this ring is borrowed mutably until the queue is dropped, and nothing that
            // is done with it meanwhile asks for the queue.
            queue: unsafe { ring.submission_shared() },
            ring,
            arenas: &mut self.arenas,
            files: &mut self.files,
            last: (None, None),
        }
    }

    /// Hands over the entry that listens to the alarm: it has the place of an operation.
    #[cold]
    fn let_listen(&mut self) {
        // A failure shows at the next turn.
        let _ = self.enter(0);
    }

    /// Hands what is queued to the kernel and waits until `at_least` completions are there.
    /// Returns early when the kernel wants completions reaped first, or a signal came.
    ///
    /// # Errors
    ///
    /// When the kernel refuses in a way that another try will not change.
    #[inline]
    pub(crate) fn enter(&mut self, at_least: u32) -> Result<(), EnterFailed> {
        self.enter_with(at_least, None)
    }

    /// Hands what is queued to the kernel. Where that makes completions only for who asks for them,
    /// they stay there until the next enter: to make some for each few that are handed over costs
    /// more than to make all of them at once (`docs/design/roads.md`).
    ///
    /// # Errors
    ///
    /// As [`Uring::enter`].
    pub(crate) fn submit(&mut self) -> Result<(), EnterFailed> {
        match self.queued() {
            0 => Ok(()),
            to_submit => self.enter_now(to_submit, None, None),
        }
    }

    /// How much is queued.
    #[inline]
    fn queued(&mut self) -> u32 {
        // Each push has told the kernel's side of the queue where it ends.
        let queued = u32::try_from(self.ring.submission().len());
        queued.expect("a queue has at most 32768 places")
    }

    /// As [`Uring::enter`], for at most so long.
    fn enter_for(&mut self, at_least: u32, at_most: Option<Duration>) -> Result<(), EnterFailed> {
        let Some(mut limit) = at_most.map(Timespec::from) else {
            return self.enter(at_least);
        };
        let argument = io_uring_getevents_arg {
            ts: io_uring_ptr::new((&raw mut limit).cast()),
            ..io_uring_getevents_arg::default()
        };
        self.enter_with(at_least, Some(&argument))
    }

    /// Enters, for at most as long as the argument says. What it points to is there.
    #[inline]
    fn enter_with(
        &mut self,
        at_least: u32,
        argument: Option<&io_uring_getevents_arg>,
    ) -> Result<(), EnterFailed> {
        let to_submit = self.queued();
        if self.is_shared && to_submit == 0 && at_least == 0 {
            return Ok(());
        }
        self.enter_now(to_submit, Some(at_least), argument)
    }

    /// As [`Uring::enter_with`], for so many queued operations. Without a number of completions
    /// none are made.
    #[inline]
    fn enter_now(
        &mut self,
        to_submit: u32,
        at_least: Option<u32>,
        argument: Option<&io_uring_getevents_arg>,
    ) -> Result<(), EnterFailed> {
        match self.call(to_submit, at_least, argument) {
            Ok(submitted) => {
                self.fruitless = 0;
                self.listen_queued &= submitted != to_submit;
                Ok(())
            }
            Err(errno) => self.enter_failed(errno.into(), to_submit),
        }
    }

    /// The system call itself.
    #[inline]
    fn call(
        &mut self,
        to_submit: u32,
        at_least: Option<u32>,
        argument: Option<&io_uring_getevents_arg>,
    ) -> rustix::io::Result<u32> {
        // Without GETEVENTS a ring that defers task work completes nothing, and a host that is busy
        // never waits (io_uring_setup(2), `IORING_SETUP_DEFER_TASKRUN`).
        let asks = match at_least {
            Some(_) => IoringEnterFlags::GETEVENTS,
            None => IoringEnterFlags::empty(),
        };
        let flags = IoringEnterFlags::from_bits_retain(self.flags.bits()) | asks;
        let at_least = at_least.unwrap_or(0);
        self.enters += 1;
        // SAFETY: the ring is open, and the index, where it is one, is passed on as a number.
        let target = unsafe { BorrowedFd::borrow_raw(self.target) };
        let entered = match argument {
            // SAFETY: no memory is named but the ring's own; what the queued operations name is
            // valid, by the contract of `push`.
            None => unsafe { io_uring_enter(target, to_submit, at_least, flags) },
            Some(_) => {
                let flags = flags | IoringEnterFlags::EXT_ARG;
                // SAFETY: as above, and the argument is of the form that the flag announces.
                unsafe { io_uring_enter_arg(target, to_submit, at_least, flags, argument) }
            }
        };
        returns::ease();
        entered
    }

    /// Whether any thread may enter it.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What an enter that the kernel has refused means.
    #[cold]
    fn enter_failed(&mut self, cause: io::Error, to_submit: u32) -> Result<(), EnterFailed> {
        match cause.raw_os_error() {
            // io_uring_enter(2): a signal, or completions have to be reaped first. The caller reaps
            // and enters again; what was queued stays queued.
            // ETIME: what was queued has been handed over.
            Some(libc::EINTR | libc::EBUSY | libc::ETIME) => Ok(()),
            Some(libc::EAGAIN | libc::ENOMEM) => self.without_memory(cause, to_submit),
            _ => Err(EnterFailed {
                cause,
                may_pass: false,
            }),
        }
    }

    /// The kernel has no memory for requests now (EAGAIN), or none for what it keeps of a thread
    /// that enters its first ring (ENOMEM, `io_uring_add_tctx_node` in `io_uring/tctx.c`).
    fn without_memory(&mut self, cause: io::Error, to_submit: u32) -> Result<(), EnterFailed> {
        // The kernel leaves before it looks for completions when it takes nothing. Those of a ring
        // that defers task work would not be posted until it takes something, and they are what
        // frees memory.
        let _ = match to_submit {
            0 => Ok(0),
            _ => self.call(0, Some(0), None),
        };
        if !self.ring.completion().is_empty() {
            return Ok(());
        }
        thread::sleep(MEMORY_RETRY_AFTER);
        if self.fruitless < FRUITLESS_MAX {
            self.fruitless += 1;
            return Ok(());
        }
        let may_pass = true;
        Err(EnterFailed { cause, may_pass })
    }

    /// As [`Uring::enter`], but it comes back when the alarm is rung, and when the time is over.
    ///
    /// # Errors
    ///
    /// As [`Uring::enter`].
    pub(crate) fn enter_or(
        &mut self,
        at_least: u32,
        at_most: Option<Duration>,
        is_idle: bool,
    ) -> Result<(), EnterFailed> {
        if !self.listens {
            self.listen();
        }
        let params = self.ring.params();
        if let Some(event) = &self.event
            && is_idle
            && !params.is_feature_no_iowait()
        {
            // Waiting in the ring would count as waiting for I/O.
            let event = Arc::clone(event);
            self.enter(0)?;
            event.wait(at_most);
            return self.enter(0);
        }
        if at_least == 0 {
            return self.enter(0);
        }
        if at_most.is_some() && !params.is_feature_ext_arg() {
            // Such old kernels have no rings that only an enter can make work in.
            self.enter(0)?;
            if self.ring.completion().is_empty() {
                wait_readable(self.ring.as_raw_fd(), at_most);
            }
            return self.enter(0);
        }
        self.enter_for(at_least, at_most)
    }

    /// Gives every completion that is there to `each`. Returns false when the kernel has lost
    /// some.
    #[inline]
    pub(crate) fn reap(&mut self, mut each: impl FnMut(Completion)) -> bool {
        let mut queue = self.ring.completion();
        let mut may_go_on = false;
        for entry in &mut queue {
            if entry.user_data() == ALARM {
                self.listens = cqueue::more(entry.flags());
                // Before Linux 5.13 no poll goes on after its first completion.
                let is_news = entry.result() == -libc::EINVAL && !self.listens_once;
                self.listens_once |= is_news;
                let has_failed = entry.result() < 0 && entry.result() != -libc::ECANCELED;
                may_go_on = !has_failed || is_news;
                if let (Some(event), true) = (&self.event, self.listens_once) {
                    // The next poll would complete at once otherwise. Whoever signals has left
                    // first what the owner looks for when it has reaped.
                    event.take_back();
                }
                continue;
            }
            each(Completion {
                user_data: entry.user_data(),
                result: entry.result(),
                took_ns: 0,
                is_asynchronous: None,
            });
        }
        let is_complete = queue.overflow() == 0;
        drop(queue);
        if may_go_on && !self.listens && self.is_shared {
            self.listen_on();
        }
        is_complete
    }

    /// A descriptor that becomes readable with each completion.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    #[cfg(feature = "tokio")]
    pub(crate) fn watched(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring is open while it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }.try_clone_to_owned()
    }

    /// The same, for completions that come while they are announced ([`Uring::announce`]): who
    /// waits in the ring itself need not have another thread woken.
    ///
    /// # Errors
    ///
    /// When no descriptor is left, or the ring cannot be told of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn watched_if_announced(&mut self) -> io::Result<OwnedFd> {
        let event = Event::new()?;
        self.ring.submitter().register_eventfd(event.raw_fd())?;
        let watched = event.try_clone_to_owned()?;
        self.announcer = Some(Arc::new(event));
        Ok(watched)
    }

    /// Has completions announced, or not (io_uring_register(2), `IORING_CQ_EVENTFD_DISABLED`). The
    /// kernel shows a completion, then looks at this, with a full barrier between: whoever has
    /// completions announced, and looks for them after a barrier of its own, misses none.
    #[cfg(feature = "tokio")]
    pub(crate) fn announce(&mut self, is_wanted: bool) {
        if self.announcer.is_none() {
            return;
        }
        let queue = self.ring.completion();
        match is_wanted {
            true => queue.enable_eventfd(),
            false if !queue.eventfd_disabled() => queue.disable_eventfd(),
            false => {}
        }
    }

    /// Whether completions wait to be reaped.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_completed(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Queued operations that the kernel has not taken yet.
    pub(crate) fn unsubmitted(&mut self) -> u32 {
        let entries = self.ring.submission().len();
        let queued = entries.saturating_sub(usize::from(self.listen_queued));
        u32::try_from(queued).expect("a queue has at most 32768 places")
    }

    /// The table of fixed files.
    pub(crate) fn files(&mut self) -> &mut Files {
        &mut self.files
    }

    /// Lets the files go that the ring knows.
    #[inline]
    pub(crate) fn release_files(&mut self) {
        if self.files.is_wanted() {
            self.files.release(&self.ring.submitter());
        }
    }

    /// Forgets registered memory whose owner is gone. Nothing in flight can name it: the buffer of
    /// an operation keeps its arena alive until the answer has been delivered.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        if self.arenas.is_stale() {
            self.arenas.sweep(&self.ring.submitter());
        }
    }

    /// Why memory or files are not registered, once.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        self.arenas
            .take_refusal()
            .or_else(|| self.files.take_refusal())
    }

    /// Whether there is something for [`Uring::take_refusal`].
    #[inline]
    pub(crate) fn has_refusal(&self) -> bool {
        self.arenas.has_refusal() || self.files.has_refusal()
    }

    /// Enters so far.
    #[inline]
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if let Some(index) = self.registered {
            descriptor::unregister(&self.ring, index);
        }
    }
}

// Miri has no rings.
#[cfg(all(test, not(miri), not(loom)))]
#[path = "ring_test.rs"]
mod tests;
