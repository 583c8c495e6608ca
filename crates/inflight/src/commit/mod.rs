//! Group commit: one flush of a file for all syncs that wait for it.
//!
//! A flush makes durable what had been written before it began. So a sync that is asked for while
//! a flush runs is not served by that one but by the next, together with all others that are asked
//! for until it begins: they are its [`Round`]. At most one flush of an open file runs at a time,
//! made by its leader:
//!
//! - a thread that waits for a sync of its own, if nobody leads;
//! - a batch that is waited for, which has the backend make it among its other operations;
//! - a run loop or a queue that has nothing else to do, if nobody else waits: until then it has
//!   promised to lead ([`HostId`]);
//! - else a thread of the engine's pool, until no sync is left;
//! - where no such thread can be had, one of those who wait, for one flush: a thread, or a task in
//!   its poll.
//!
//! Each of them gets the answer without running foreign code first. A waker that a leader runs may
//! wait for a sync itself: it takes the lead from whoever runs wakers then. So does any thread that
//! has waited in vain for a while, and it takes the lead that the pool was called to as well, if no
//! thread of it has come: all of them may be away for long. Where there is a pool, a future never
//! leads, because it can be dropped, forgotten, or in a run loop that somebody blocks, and the
//! others would wait for it. Why all this is sound: `docs/design/group-commit.md`.

mod lately;
mod lead;
mod round;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::completion::{Answer, Refusal};
use crate::foreign::clone_waker;
use crate::sync::lock_explored as lock;
use crate::sync::{Condvar, Mutex, MutexGuard};
use lately::Lately;
use round::Round;

pub(crate) use lately::Asker;
pub(crate) use round::{Kept, Seat};

#[cfg(not(loom))]
thread_local! {
    /// Whether this thread runs wakers of those it has served.
    static RUNS_WAKERS: Cell<bool> = const { Cell::new(false) };
}

#[cfg(loom)]
loom::thread_local! {
    static RUNS_WAKERS: Cell<bool> = Cell::new(false);
}

/// How a flush is put off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    pub(crate) at_most: Duration,
    /// Whether the leader sleeps meanwhile; else it yields its processor to whoever wants it.
    pub(crate) sleeps: bool,
}

/// How a file is flushed, and by whom.
pub(crate) trait Flush: Send + Sync {
    /// Flushes on this thread, which waits for its own sync.
    fn alone(&self, data_only: bool) -> Answer;

    /// Flushes for a round, on a thread of the pool.
    fn flush(&self, data_only: bool) -> Answer;

    /// Has a thread of the pool call [`Commit::lead`]. False if there is none.
    fn delegate(&self, commit: &Arc<Commit>) -> bool;

    /// Whether something else waits for a thread of the pool.
    fn is_wanted(&self) -> bool;

    /// How long to wait for those who were here the last time, when that flush has taken so long.
    fn gathers_for(&self, took: Duration) -> Option<Gather>;

    /// For how long a task looks for the end of a flush that most likely takes nothing, before it
    /// waits for it.
    fn looks_for(&self) -> Duration;

    /// Whether who flushes waits for another program or machine, which may need this very thread.
    fn is_served(&self) -> bool;

    /// Whether a flush that has taken so long is worth no way to another thread, where so many
    /// syncs are asked for at a time.
    fn is_short(&self, took: Duration, syncs: usize) -> bool;

    /// After how long a thread that waits takes the lead, if nobody makes a flush.
    fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Whether so many bytes that have been written are soon written back.
    fn is_little(&self, bytes: u64) -> bool;

    /// How long the first flush of another file on its device has taken last, if that is known and
    /// says something of this one, of which no flush is known. The file is open.
    fn usual(&self) -> Option<Duration>;

    /// The first flush of the file has succeeded, and taken so long.
    fn was_first(&self, took: Duration);

    /// So many syncs have been served by one flush.
    fn count(&self, served: usize);

    /// Wakes; a panic in that ends here.
    fn wake(&self, waker: Waker);
}

/// Longer than a thread of the pool that is free takes to come, so that threads are not woken for
/// nothing.
const PATIENCE: Duration = Duration::from_millis(5);

/// An open file.
pub(crate) trait Keep {
    /// Keeps it open.
    fn keep(&self) -> Kept;
}

/// An open file that nothing depends on.
#[cfg(test)]
pub(crate) struct Nothing;

#[cfg(test)]
impl Keep for Nothing {
    fn keep(&self) -> Kept {
        Arc::new(())
    }
}

/// A run loop or a queue, as long as it lasts. A round of which all are its own may be left to it:
/// before it sleeps it makes the flush, or has it made. Whoever else asks for a sync of the file
/// does not count on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostId(u64);

impl HostId {
    /// One that nobody else has.
    pub(crate) fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self(IDS.fetch_add(1, Ordering::Relaxed))
    }
}

/// The syncs of one open file.
pub(crate) struct Commit {
    state: Mutex<State>,
    /// Told when a leader that gathers need not wait any longer.
    gathered: Condvar,
    /// The errno of the first flush that failed; 0 if none has.
    errno: AtomicI32,
    /// About so many bytes have been written by way of the handle since the last flush began.
    unflushed: AtomicU64,
    /// A regular file or a block device. What others say may be that they have no sync.
    is_storage: bool,
    flush: Box<dyn Flush>,
}

#[derive(Default)]
struct State {
    lead: Lead,
    /// The pool has been called, and no thread of it has come.
    is_called: bool,
    /// Whose the syncs are that wait while nobody leads.
    promised: Option<HostId>,
    /// The leader runs wakers, and makes no flush before it has come back from them.
    is_waking: bool,
    /// How often the lead has been taken from one that runs wakers.
    taken: u64,
    /// Those who have asked since the last flush began.
    next: Option<Arc<Round>>,
    /// One that is over, to be used again.
    spare: Option<Arc<Round>>,
    /// How many syncs the next flush is for, if all come back who were here the last time.
    expected: usize,
    lately: Lately,
}

/// Who leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lead {
    /// Nobody: no sync waits but those of a host that has promised to lead.
    #[default]
    Nobody,
    /// Whoever takes it: the thread that comes from the pool, or one that waits. If none has been
    /// called, whoever waits, a task too.
    Free,
    /// Somebody makes a flush, or is about to.
    Taken,
}

/// How a thread that can wait goes about a sync.
pub(crate) enum Turn {
    /// It leads: it makes the flush, and then calls [`Commit::over`].
    Lead,
    /// The leader makes it.
    Wait(Seat),
}

impl Commit {
    pub(crate) fn new(flush: impl Flush + 'static, is_storage: bool) -> Self {
        Self {
            is_storage,
            state: Mutex::default(),
            gathered: Condvar::new(),
            errno: AtomicI32::new(0),
            unflushed: AtomicU64::new(0),
            flush: Box::new(flush),
        }
    }

    /// The errno of the first flush that failed.
    pub(crate) fn failure(&self) -> Option<i32> {
        let errno = self.errno.load(Ordering::Relaxed);
        (errno != 0).then_some(errno)
    }

    /// What is told of a flush that has been answered so. A failed one is remembered.
    pub(crate) fn settle(&self, answer: Answer) -> Answer {
        self.note(answer);
        // The kernel tells an error once: a write that syncs by itself may have taken what this
        // flush would have told.
        match answer.errno() {
            None if self.failure().is_some() => Answer::refused(Refusal::SyncFailed),
            _ => answer,
        }
    }

    /// Remembers a failed flush, with any errno of the kernel: a write-back that fails leaves what
    /// the file system or the device said, ESTALE or ETIMEDOUT as well as EIO, and an fsync that
    /// has told of it once does not do so again.
    pub(crate) fn note(&self, answer: Answer) {
        let is_lasting = |errno: &i32| match *errno {
            // Of a pipe or a device that has no sync: there is nothing to be lost.
            libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS => self.is_storage,
            errno => !Refusal::is_one(errno),
        };
        if let Some(errno) = answer.cause().filter(is_lasting) {
            // The first one stands.
            let _ = self
                .errno
                .compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// So many bytes have been written. Of two at a time one may be missed: it is no more than a
    /// hint of how long the next flush takes, and costs a write nothing.
    #[inline]
    pub(crate) fn wrote(&self, bytes: usize) {
        let before = self.unflushed.load(Ordering::Relaxed);
        let after = before.saturating_add(bytes as u64);
        self.unflushed.store(after, Ordering::Relaxed);
    }

    /// Whether the next flush has little to write back, as far as is known here.
    pub(crate) fn has_little(&self) -> bool {
        self.flush.is_little(self.unflushed.load(Ordering::Relaxed))
    }

    /// Flushes on this thread, which leads.
    pub(crate) fn alone(&self, data_only: bool) -> Answer {
        self.checked(|| self.flush.alone(data_only))
    }

    /// For a thread that can wait: whether it leads.
    pub(crate) fn enter(self: &Arc<Self>, data_only: bool, file: &dyn Keep) -> Turn {
        self.turn(lock(&self.state), data_only, file)
    }

    /// As [`Commit::enter`].
    fn turn(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        data_only: bool,
        file: &dyn Keep,
    ) -> Turn {
        if !state.is_led() {
            state.lead = Lead::Taken;
            // Those who were promised something wait for the next flush, as everybody does.
            state.promised = None;
            self.begins();
            return Turn::Lead;
        }
        if state.is_waking && RUNS_WAKERS.with(Cell::get) {
            // Of two leaders that run wakers, each may be waited for in a waker of the other; or
            // the leader is this very thread.
            state.take();
            self.begins();
            return Turn::Lead;
        }
        let seat = state.sit(self, data_only, file, None);
        self.tell_who_gathers(&state);
        Turn::Wait(seat)
    }

    /// Whether who flushes waits for another program or machine, which may need this very thread.
    pub(crate) fn is_served(&self) -> bool {
        self.flush.is_served()
    }

    /// Makes the flush at once, if it is known to be short and nobody else is concerned, and tells
    /// how long that took.
    pub(crate) fn at_once(
        self: &Arc<Self>,
        data_only: bool,
        asker: Asker,
    ) -> Option<(Answer, Duration)> {
        let mut state = self.free_for(asker)?;
        state.lead = Lead::Taken;
        // Nobody counts on it any more.
        state.promised = None;
        drop(state);
        let (answer, took) = self.timed(data_only);
        self.flush.count(1);
        let mut state = lock(&self.state);
        let asked = 1 + state.waiting();
        self.learn(&mut state, answer, took, asked);
        self.leave(state);
        Some((answer, took))
    }

    /// Whether the next flush is to be made where it is asked for.
    fn is_short(&self, state: &State, asker: Asker) -> bool {
        let is_nothing = |took| self.flush.is_short(took, usize::MAX);
        state.lately.is_short(asker, is_nothing) && self.has_little()
    }

    /// Has the leader make the flush. Where there is none, `host` may promise to lead; else a
    /// thread of the pool does, or this one if there is none. Without a waker the thread comes back
    /// and waits ([`Seat::wait`]).
    pub(crate) fn join(
        self: &Arc<Self>,
        data_only: bool,
        file: &dyn Keep,
        waker: Option<&Waker>,
        host: Option<HostId>,
    ) -> Seat {
        // Foreign code, so not under the lock.
        let waker = waker.map(clone_waker);
        let mut state = lock(&self.state);
        let seat = state.sit(self, data_only, file, waker);
        if state.is_led() && !state.is_offered() {
            self.tell_who_gathers(&state);
            return seat;
        }
        if host.is_some()
            && !state.is_offered()
            && (state.promised.is_none() || state.promised == host)
        {
            state.promised = host;
            return seat;
        }
        // Another one's promise is worth nothing here: it may never come back.
        state.promised = None;
        self.have_led(state);
        seat
    }

    /// Keeps the promise of a host, if it still stands: makes the flush on this thread if `leads`,
    /// given how long the last one and the one before took (of a file that had none, the first one
    /// of another file there) and how many wait for this one; else has the pool make it. True if
    /// it was made here.
    pub(crate) fn keep_promise(
        self: &Arc<Self>,
        host: HostId,
        leads: impl FnOnce([Option<Duration>; 2], usize) -> bool,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.promised != Some(host) {
            return false;
        }
        state.promised = None;
        if state.waiting() == 0 {
            // All have left, and nobody keeps the file open.
            let round = state.next.take();
            drop(state);
            drop(round);
            return false;
        }
        // All of them are the host's own, and here.
        state.expected = 0;
        let [last, before] = state.lately.took();
        // Others may leave at any time, and the last of them closes the file.
        let next = state.next.as_ref();
        let usual = || next?.as_long_as_open(|| self.flush.usual())?;
        let took = [last.or_else(usual), before];
        let round = match leads(took, state.waiting()) {
            true => state.next.take(),
            false => None,
        };
        let Some(round) = round else {
            self.have_led(state);
            return false;
        };
        state.lead = Lead::Taken;
        drop(state);
        if self.serve(round) {
            self.leave(lock(&self.state));
        }
        true
    }

    /// Has the pool make the flush of a round that a host has promised to lead, because somebody
    /// else waits for it, or that is offered to those who wait. If there is no pool, makes it here.
    fn break_promise(self: &Arc<Self>, round: &Arc<Round>) {
        let mut state = lock(&self.state);
        let is_next = |next| Arc::ptr_eq(next, round);
        let is_nobodys = state.promised.is_some() || state.is_offered();
        if is_nobodys && state.next.as_ref().is_some_and(is_next) {
            state.promised = None;
            self.have_led(state);
        }
    }

    /// The answer of a flush, which is not made if one has failed before.
    fn checked(&self, flush: impl FnOnce() -> Answer) -> Answer {
        if self.failure().is_some() {
            return Answer::refused(Refusal::SyncFailed);
        }
        self.settle(flush())
    }

    fn tell_who_gathers(&self, state: &State) {
        if state.expected > 0 && state.waiting() >= state.expected {
            self.gathered.notify_one();
        }
    }
}

impl State {
    /// Whether somebody leads, or is to.
    fn is_led(&self) -> bool {
        match self.lead {
            Lead::Nobody => false,
            Lead::Taken => true,
            // All of those to whom it is offered may have left.
            Lead::Free => self.is_called || self.waiting() > 0,
        }
    }

    /// Whether those who wait are to lead, because there is no thread of the pool.
    fn is_offered(&self) -> bool {
        self.lead == Lead::Free && !self.is_called
    }

    /// Takes the lead that somebody is called to, unless somebody else has taken it.
    fn take_if_free(&mut self) -> bool {
        let is_free = self.lead == Lead::Free;
        if is_free {
            self.lead = Lead::Taken;
        }
        is_free
    }

    /// Takes the lead from one that runs wakers, or before whoever is called to it.
    fn take(&mut self) {
        self.lead = Lead::Taken;
        if std::mem::take(&mut self.is_waking) {
            self.taken += 1;
        }
    }

    /// Who waits for the next flush.
    fn waiting(&self) -> usize {
        let next = self.next.as_ref();
        next.map_or(0, |round| round.waiting())
    }

    /// Ends the lead, if nobody waits.
    fn ends_lead(&mut self) -> bool {
        let ends = self.waiting() == 0;
        if ends {
            self.expected = 0;
            self.lead = Lead::Nobody;
        }
        ends
    }

    fn sit(
        &mut self,
        commit: &Arc<Commit>,
        data_only: bool,
        file: &dyn Keep,
        waker: Option<Waker>,
    ) -> Seat {
        let spare = &mut self.spare;
        let round = self.next.get_or_insert_with(|| {
            let spare = spare.take().and_then(Round::renewed);
            spare.unwrap_or_else(|| Round::new(commit))
        });
        Round::sit(round, data_only, file, waker)
    }
}

impl std::fmt::Debug for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Commit").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "alone_test.rs"]
mod without_a_pool;

#[cfg(all(test, not(loom)))]
#[path = "lead_test.rs"]
mod leaders;

#[cfg(all(test, not(loom)))]
#[path = "settle_test.rs"]
mod settle;
