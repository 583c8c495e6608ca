//! A bounded pool of threads, which work for [lanes](super::lane), mailboxes and others.
//!
//! The pool starts its threads when they are first needed and ends them when it is closed.
//!
//! Beside the lanes there are calls: whatever blocks and is not an operation of a proactor. They
//! leave one thread to the lanes where there are two. Some may block for as long as a FIFO has no
//! writer or a server hangs, so those leave one thread in eight to the others where there are
//! three, and never take the last one that lives. Flushes wait for the device only, so they may
//! take every thread.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::turns::{PoolState, Work};
use crate::fork::in_the_parent;
use crate::sync::lock;

/// A bounded pool of threads.
pub(crate) struct Pool {
    shared: Arc<PoolShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    threads_max: usize,
}

struct PoolShared {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Told of every call that is over and every thread that ends, once the pool is closed.
    over: Condvar,
    /// Whether something else could be taken, for those that are busy with a lane.
    others_wait: AtomicBool,
}

/// A call, for a thread of the pool. Foreign code in it is contained.
pub(crate) trait Run: Send + Sync {
    fn run(self: Arc<Self>);

    /// Whether it may wait for somebody else than a device, and so for ever.
    fn may_wait_for_ever(&self) -> bool {
        false
    }
}

/// A lane or a mailbox, for threads of the pool.
pub(crate) trait Serve: Send + Sync {
    /// Makes what is in it until it is empty, or others wait. Foreign code in that is contained.
    /// True if there is more.
    fn serve(self: Arc<Self>, others_wait: &AtomicBool) -> bool;
}

impl Pool {
    /// A pool of at most `threads_max` threads, none of them started yet.
    pub(crate) fn new(threads_max: u32) -> Self {
        let threads_max = super::execute::to_usize(threads_max.max(1));
        Self {
            shared: Arc::new(PoolShared {
                state: Mutex::new(PoolState::new(threads_max)),
                work: Condvar::new(),
                over: Condvar::new(),
                others_wait: AtomicBool::new(false),
            }),
            threads: Mutex::new(Vec::with_capacity(threads_max)),
            threads_max,
        }
    }

    /// Calls a thread to a lane or a mailbox. False when there is none and none can be started;
    /// nothing is kept of the call then.
    pub(super) fn call(&self, lane: Arc<dyn Serve>) -> bool {
        let mut state = lock(&self.shared.state);
        state.lanes.push_back(Arc::clone(&lane));
        let wakes = state.calls_to_lane();
        if self.show(state, wakes, 1).is_ok() {
            return true;
        }
        let mut state = lock(&self.shared.state);
        let place = state
            .lanes
            .iter()
            .position(|other| Arc::ptr_eq(other, &lane));
        // Where there is none a thread has turned up all the same.
        place.and_then(|place| state.lanes.remove(place)).is_none()
    }

    /// Whether this thread is of the pool.
    pub(crate) fn has_this_thread(&self) -> bool {
        let this = thread::current().id();
        let is_this = |thread: &JoinHandle<()>| thread.thread().id() == this;
        lock(&self.threads).iter().any(is_this)
    }

    /// Most threads.
    pub(crate) fn threads_max(&self) -> u64 {
        self.threads_max as u64
    }

    /// How many threads there are.
    #[cfg(all(test, feature = "faulty", not(loom)))]
    pub(crate) fn living(&self) -> usize {
        lock(&self.shared.state).living
    }

    /// Whether there is a thread, of which there is one from then on until the pool is closed. One
    /// is started if there is none and that can be.
    #[cold]
    pub(crate) fn has_thread(&self) -> bool {
        // One that is being started counts as living, and may not come to live.
        let starting = lock(&self.threads);
        let has_thread = lock(&self.shared.state).living > 0;
        drop(starting);
        has_thread || self.start_threads(1, 1).is_ok()
    }

    /// Has a thread of the pool make a call. Returns the number by which it can be taken back.
    ///
    /// # Errors
    ///
    /// When there is no thread and none can be started, or the pool is closed; nothing is kept of
    /// the call then.
    pub(crate) fn give(&self, call: Arc<dyn Run>) -> io::Result<u64> {
        let is_endless = call.may_wait_for_ever();
        let mut state = lock(&self.shared.state);
        if state.closed {
            return Err(io::Error::other("the pool of threads is closed"));
        }
        let least = state.least_for(is_endless);
        let number = state.queue_call(call, is_endless);
        let wakes = state.calls_one();
        match self.show(state, wakes, least) {
            Err(cause) if self.take_back(number).is_some() => Err(cause),
            _ => Ok(number),
        }
    }

    /// Has a thread of the pool make a flush, which may be the last thread.
    ///
    /// # Errors
    ///
    /// As for [`Pool::give`].
    pub(crate) fn give_flush(&self, flush: Arc<dyn Run>) -> io::Result<()> {
        self.queue(flush, |state| &mut state.flushes)
    }

    /// Has a thread of the pool share the work of a caller, who does not wait for it to come. It
    /// leaves when something else waits for a thread ([`Pool::is_wanted`]).
    ///
    /// # Errors
    ///
    /// As for [`Pool::give`].
    pub(crate) fn give_share(&self, share: Arc<dyn Run>) -> io::Result<()> {
        self.queue(share, |state| &mut state.shares)
    }

    /// Has a new thread share the work of a caller if the one that was woken for it has not begun,
    /// which then ends in its place. Nothing happens if all threads are busy, or none can be
    /// started: then it is still to come. Whether one was started.
    #[cold]
    pub(crate) fn hurry_share(&self, share: &Arc<dyn Run>) -> bool {
        let mut threads = self.threads_living();
        let mut state = lock(&self.shared.state);
        let place = state
            .shares
            .iter()
            .position(|other| Arc::ptr_eq(other, share));
        let is_awaited = state.idle > 0;
        let Some(share) = place
            .filter(|_| is_awaited)
            .and_then(|at| state.shares.remove(at))
        else {
            return false;
        };
        drop(state);
        let started = self.start_in_place(&mut threads, Arc::clone(&share));
        let mut state = lock(&self.shared.state);
        let is_started = started.is_ok();
        match is_started {
            true => state.surplus += 1,
            false => state.shares.push_back(share),
        }
        // The one that was woken may have found nothing meanwhile, and sleep again.
        self.shared.work.notify_one();
        is_started
    }

    /// Has a new thread share the work of a caller, in place of this one, which is of the pool and
    /// ends when there is nothing else to do.
    ///
    /// # Errors
    ///
    /// When none can be started, or the pool is closed; this one stays then.
    #[cold]
    pub(crate) fn replace_this(&self, share: Arc<dyn Run>) -> io::Result<()> {
        self.start_in_place(&mut self.threads_living(), share)?;
        IS_LEAVING.set(true);
        Ok(())
    }

    fn queue(
        &self,
        work: Arc<dyn Run>,
        queue: fn(&mut PoolState) -> &mut VecDeque<Arc<dyn Run>>,
    ) -> io::Result<()> {
        let mut state = lock(&self.shared.state);
        if state.closed {
            return Err(io::Error::other("the pool of threads is closed"));
        }
        queue(&mut state).push_back(Arc::clone(&work));
        let wakes = state.calls_one();
        let Err(cause) = self.show(state, wakes, 1) else {
            return Ok(());
        };
        let mut state = lock(&self.shared.state);
        let queue = queue(&mut state);
        let place = queue.iter().position(|other| Arc::ptr_eq(other, &work));
        match place {
            Some(place) => {
                queue.remove(place);
                Err(cause)
            }
            // A thread has turned up all the same.
            None => Ok(()),
        }
    }

    /// Whether something waits for a thread.
    pub(crate) fn is_wanted(&self) -> bool {
        lock(&self.shared.state).to_take() > 0
    }

    /// Calls a thread to what has just been queued, which needs so many that live; `wakes`: one
    /// that sleeps.
    ///
    /// # Errors
    ///
    /// When there are fewer threads and none can be started.
    fn show(&self, state: MutexGuard<'_, PoolState>, wakes: bool, least: usize) -> io::Result<()> {
        self.shared.show_waiting(&state);
        let lacking = state.lacking();
        drop(state);
        if wakes {
            self.shared.work.notify_one();
        }
        match lacking {
            0 => Ok(()),
            _ => self.start_threads(lacking, least),
        }
    }

    /// Takes back a call that no thread has taken.
    pub(crate) fn take_back(&self, number: u64) -> Option<Arc<dyn Run>> {
        let mut state = lock(&self.shared.state);
        let call = state.take_back(number);
        self.shared.show_waiting(&state);
        call
    }

    /// Calls and flushes that are not over.
    pub(crate) fn calls(&self) -> usize {
        let state = lock(&self.shared.state);
        state.calls_waiting() + state.calling() + state.flushes.len() + state.flushing
    }

    /// Ends the threads when all calls and flushes are over, but waits for that no longer than
    /// until `deadline`. Returns how many are left; they go on alone. Lanes that are left execute
    /// their operations themselves.
    pub(crate) fn close(&self, deadline: Instant) -> usize {
        let threads = {
            // As when threads are started: none is started any more after this.
            let mut threads = lock(&self.threads);
            lock(&self.shared.state).closed = true;
            std::mem::take(&mut *threads)
        };
        self.shared.work.notify_all();
        // What a call wakes may drop the last handle of the engine on this very thread.
        let this = thread::current().id();
        let is_this = |thread: &JoinHandle<()>| thread.thread().id() == this;
        let own = usize::from(threads.iter().any(is_this));
        let mut state = lock(&self.shared.state);
        loop {
            // What is queued when there is no other thread is done by this one, later.
            let queued = if state.living > own {
                state.calls_waiting() + state.flushes.len() + state.lanes.len()
            } else {
                0
            };
            let busy = state.calling() + state.flushing + state.serving;
            let left = queued + busy.saturating_sub(own);
            if left == 0 {
                break;
            }
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return left;
            }
            let waited = self.shared.over.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        for thread in threads {
            if !is_this(&thread) {
                // A thread of the pool runs no foreign code that is not contained, so it cannot
                // have panicked.
                let _ = thread.join();
            }
        }
        0
    }

    /// The threads there are, without those that have ended because others took their places.
    fn threads_living(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        let mut threads = lock(&self.threads);
        // Not joined: what is local to a thread is dropped after it counts as finished, and whoever
        // calls this may hold what that wants.
        threads.retain(|thread| !thread.is_finished());
        threads
    }

    /// Starts up to `count` more threads.
    ///
    /// # Errors
    ///
    /// If fewer than `least` live then.
    #[cold]
    fn start_threads(&self, count: usize, least: usize) -> io::Result<()> {
        let mut threads = self.threads_living();
        // Some of the threads may have ended but for what is local to them.
        let room = self
            .threads_max
            .saturating_sub(lock(&self.shared.state).living);
        let started = (0..count.min(room)).try_for_each(|_| self.start(&mut threads, None));
        match started {
            Err(cause) if lock(&self.shared.state).living < least => Err(cause),
            // Thread limits are met with the threads there are; the owner of the lane executes what
            // no thread takes.
            _ => Ok(()),
        }
    }

    /// Starts a thread in place of one that is to end, with this as the first it does.
    ///
    /// # Errors
    ///
    /// As for [`Pool::start`], and when another one is still to end.
    fn start_in_place(
        &self,
        threads: &mut Vec<JoinHandle<()>>,
        share: Arc<dyn Run>,
    ) -> io::Result<()> {
        if threads.len() > self.threads_max {
            return Err(io::Error::other("a thread that is to end has not ended"));
        }
        self.start(threads, Some(share))
    }

    /// Starts a thread, with this as the first it does.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or the pool is closed.
    fn start(
        &self,
        threads: &mut Vec<JoinHandle<()>>,
        first: Option<Arc<dyn Run>>,
    ) -> io::Result<()> {
        let mut state = lock(&self.shared.state);
        if state.closed {
            return Err(io::Error::other("the pool of threads is closed"));
        }
        state.living += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let name = "inflight-pool".to_owned();
        let started = thread::Builder::new()
            .name(name)
            .spawn(move || shared.work(first));
        threads.push(started.inspect_err(|_| lock(&self.shared.state).living -= 1)?);
        Ok(())
    }
}

thread_local! {
    /// Whether another thread of the pool has taken the place of this one, which ends when there is
    /// nothing to do.
    static IS_LEAVING: Cell<bool> = const { Cell::new(false) };
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl PoolShared {
    /// What a thread of the pool does, this at first, until the pool is closed or another one takes
    /// its place.
    fn work(&self, first: Option<Arc<dyn Run>>) {
        let mut state = match first {
            Some(share) => self.run(share),
            None => lock(&self.state),
        };
        loop {
            let Some(work) = state.take() else {
                if state.closed || IS_LEAVING.get() {
                    break;
                }
                state.idle += 1;
                let waited = self.work.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                state.came();
                if state.surplus > 0 {
                    state.surplus -= 1;
                    IS_LEAVING.set(true);
                }
                continue;
            };
            self.show_waiting(&state);
            let wakes = state.calls_one();
            drop(state);
            if wakes {
                self.work.notify_one();
            }
            match work {
                Work::Lane(lane) => {
                    let has_more = Arc::clone(&lane).serve(&self.others_wait);
                    state = lock(&self.state);
                    state.serving -= 1;
                    if has_more {
                        state.lanes.push_back(lane);
                    }
                    self.tell_if_closed(&state);
                }
                Work::Call(call, is_endless) => {
                    state = self.run(call);
                    state.has_called(is_endless);
                    self.show_waiting(&state);
                    self.tell_if_closed(&state);
                }
                Work::Flush(flush) => {
                    state = self.run(flush);
                    state.flushing -= 1;
                    self.tell_if_closed(&state);
                }
                Work::Share(share) => state = self.run(share),
            }
        }
        state.living -= 1;
        self.tell_if_closed(&state);
    }

    fn run(&self, call: Arc<dyn Run>) -> MutexGuard<'_, PoolState> {
        // Calls contain what is foreign in them; were it otherwise, the pool would still be whole.
        let run = || catch_unwind(AssertUnwindSafe(|| call.run()));
        let _ = in_the_parent(run);
        lock(&self.state)
    }

    /// Lets threads that are busy with a lane know whether something else waits for one of them:
    /// another lane too, unless there is a thread for it.
    fn show_waiting(&self, state: &PoolState) {
        let calls_wait = state.calls_to_take() > 0 || !state.flushes.is_empty();
        let lanes_wait = state.idle == 0 && !state.lanes.is_empty();
        let wait = calls_wait || lanes_wait;
        if self.others_wait.load(Ordering::Relaxed) != wait {
            self.others_wait.store(wait, Ordering::Relaxed);
        }
    }

    fn tell_if_closed(&self, state: &PoolState) {
        if state.closed {
            self.over.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
