//! A bounded pool of threads, and the lanes through which proactors hand it operations.
//!
//! A lane belongs to one proactor. Its owner puts operations in, helps to execute them while it
//! waits, and collects the completions; threads of the pool are woken only for what the owner
//! cannot do at once. The pool starts its threads when they are first needed and ends them when
//! it is closed.
//!
//! Beside the lanes there are calls: whatever blocks and is not an operation of a proactor. A call
//! may block for as long as a FIFO has no writer, so calls leave one thread to the lanes where
//! there are two. Flushes wait for the device only, so they may take every thread.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::task::{Task, run};
use super::turns::{PoolState, Work};
use crate::backend::alarm::Alarm;
use crate::completion::Completion;
use crate::op::Op;

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
    /// Whether a thread may take a call or a flush, for those that are busy with a lane.
    calls_wait: AtomicBool,
    /// Most threads that are in calls at the same time.
    calls_max: usize,
}

/// A call, for a thread of the pool. Foreign code in it is contained.
pub(crate) trait Run: Send + Sync {
    fn run(self: Arc<Self>);
}

/// A proactor's side of the pool.
pub(crate) struct Lane {
    shared: Arc<LaneShared>,
    pool: Arc<Pool>,
    /// Not shown to the pool yet.
    queued: Vec<Task>,
    /// Completions taken over from the lane, to be reaped.
    taken: Vec<Completion>,
    /// Whether the owner executes operations itself while it waits; one that others wait for
    /// must not.
    helps: bool,
    /// Whether the owner has a ring, and wants to know how long operations take here.
    beside: bool,
    /// Operations for which no thread was called, because the owner was to do them.
    uncalled: usize,
}

pub(super) struct LaneShared {
    state: Mutex<LaneState>,
    /// Told when `completed` has reached what the owner waits for.
    done: Condvar,
}

struct LaneState {
    submitted: VecDeque<Task>,
    completed: Vec<Completion>,
    /// How many completions the owner sleeps for; 0 when it does not sleep.
    wanted: usize,
    /// Whether the owner has been called away from its wait.
    rung: bool,
    /// What interrupts an owner that waits in a ring; rung by the next completion.
    alarm: Option<Alarm>,
}

/// Calls the owner of a lane away from its wait.
#[derive(Clone)]
pub(crate) struct Bell(Arc<LaneShared>);

impl Bell {
    pub(crate) fn ring(&self) {
        lock(&self.0.state).rung = true;
        self.0.done.notify_one();
    }
}

/// A lock whose data is whole after every statement, so that a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
                calls_wait: AtomicBool::new(false),
                calls_max: (threads_max - 1).max(1),
            }),
            threads: Mutex::new(Vec::with_capacity(threads_max)),
            threads_max,
        }
    }

    /// Calls up to `count` threads to a lane. False when there is none and none can be started.
    fn call(&self, lane: &Arc<LaneShared>, count: usize) -> bool {
        let mut state = lock(&self.shared.state);
        // More entries than threads would only keep them busy finding empty lanes. One is needed
        // all the same: the others may all be for lanes that do not concern this one.
        let room = (2 * self.threads_max).saturating_sub(state.lanes.len());
        let count = count.min(self.threads_max).min(room.max(1));
        for _ in 0..count {
            state.lanes.push_back(Arc::clone(lane));
        }
        // An idle thread may have been woken for a call before.
        let waiting = state.to_take(self.shared.calls_max);
        let idle = state.idle;
        drop(state);
        for _ in 0..count.min(idle) {
            self.shared.work.notify_one();
        }
        if waiting > idle {
            return self.start_threads(waiting - idle).is_ok();
        }
        true
    }

    /// Has a thread of the pool make a call. Returns the number by which it can be taken back.
    ///
    /// # Errors
    ///
    /// When there is no thread and none can be started, or the pool is closed; nothing is kept of
    /// the call then.
    pub(crate) fn give(&self, call: Arc<dyn Run>) -> io::Result<u64> {
        let shared = &*self.shared;
        let mut state = lock(&shared.state);
        if state.closed {
            return Err(io::Error::other("the pool of threads is closed"));
        }
        let number = state.next_number;
        state.next_number += 1;
        state.calls.insert(number, call);
        match self.show(state) {
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
        let Err(cause) = self.show(state) else {
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
        lock(&self.shared.state).to_take(self.shared.calls_max) > 0
    }

    /// Calls a thread to what has just been queued.
    ///
    /// # Errors
    ///
    /// When there is no thread and none can be started.
    fn show(&self, state: MutexGuard<'_, PoolState>) -> io::Result<()> {
        self.shared.show_calls(&state);
        let (idle, waiting) = (state.idle, state.to_take(self.shared.calls_max));
        drop(state);
        if idle > 0 {
            self.shared.work.notify_one();
        }
        if waiting > idle {
            return self.start_threads(waiting - idle);
        }
        Ok(())
    }

    /// Takes back a call that no thread has taken.
    pub(crate) fn take_back(&self, number: u64) -> Option<Arc<dyn Run>> {
        let mut state = lock(&self.shared.state);
        let call = state.calls.remove(&number);
        self.shared.show_calls(&state);
        call
    }

    /// Calls and flushes that are not over.
    pub(crate) fn calls(&self) -> usize {
        let state = lock(&self.shared.state);
        state.calls.len() + state.calling + state.flushes.len() + state.flushing
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
                state.calls.len() + state.flushes.len()
            } else {
                0
            };
            let left = queued + (state.calling + state.flushing).saturating_sub(own);
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

    /// Starts up to `count` more threads.
    ///
    /// # Errors
    ///
    /// If there is no thread then.
    #[cold]
    fn start_threads(&self, count: usize) -> io::Result<()> {
        let mut threads = lock(&self.threads);
        let mut refusal = None;
        for _ in 0..count.min(self.threads_max - threads.len()) {
            let mut state = lock(&self.shared.state);
            if state.closed {
                break;
            }
            state.living += 1;
            drop(state);
            let shared = Arc::clone(&self.shared);
            let name = "inflight-pool".to_owned();
            match thread::Builder::new()
                .name(name)
                .spawn(move || shared.work())
            {
                Ok(thread) => threads.push(thread),
                // Thread limits are met with the threads there are; the owner of the lane
                // executes what no thread takes.
                Err(cause) => {
                    lock(&self.shared.state).living -= 1;
                    refusal = Some(cause);
                    break;
                }
            }
        }
        if threads.is_empty() {
            let closed = || io::Error::other("the pool of threads is closed");
            return Err(refusal.unwrap_or_else(closed));
        }
        Ok(())
    }
}

impl PoolShared {
    /// What a thread of the pool does until the pool is closed.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            match state.take(self.calls_max) {
                Some(Work::Lane(lane)) => {
                    drop(state);
                    let has_more = lane.work(&self.calls_wait);
                    state = lock(&self.state);
                    if has_more {
                        state.lanes.push_back(lane);
                    }
                }
                Some(Work::Call(call)) => {
                    state = self.run(state, call);
                    state.calling -= 1;
                    self.show_calls(&state);
                    self.tell_if_closed(&state);
                }
                Some(Work::Flush(flush)) => {
                    state = self.run(state, flush);
                    state.flushing -= 1;
                    self.tell_if_closed(&state);
                }
                Some(Work::Share(share)) => {
                    state = self.run(state, share);
                }
                None if state.closed => break,
                None => {
                    state.idle += 1;
                    state = self
                        .work
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        }
        state.living -= 1;
        self.tell_if_closed(&state);
    }

    fn run<'s>(
        &'s self,
        state: MutexGuard<'s, PoolState>,
        call: Arc<dyn Run>,
    ) -> MutexGuard<'s, PoolState> {
        self.show_calls(&state);
        drop(state);
        // Calls contain what is foreign in them; were it otherwise, the pool would still be whole.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            call.run();
        }));
        lock(&self.state)
    }

    /// Lets threads that are busy with a lane know whether a call waits for one of them.
    fn show_calls(&self, state: &PoolState) {
        let wait = state.calls_to_take(self.calls_max) > 0 || !state.flushes.is_empty();
        self.calls_wait.store(wait, Ordering::Relaxed);
    }

    fn tell_if_closed(&self, state: &PoolState) {
        if state.closed {
            self.over.notify_all();
        }
    }
}

impl LaneShared {
    /// Executes operations of this lane until none is left, or something else waits. True if there
    /// may be more.
    fn work(&self, others_wait: &AtomicBool) -> bool {
        let mut state = lock(&self.state);
        while let Some(task) = state.submitted.pop_front() {
            drop(state);
            let completion = run(&task);
            state = lock(&self.state);
            state.completed.push(completion);
            if state.wanted > 0 && state.completed.len() >= state.wanted {
                state.wanted = 0;
                self.done.notify_one();
            }
            if let Some(alarm) = state.alarm.take() {
                drop(state);
                alarm.ring();
                state = lock(&self.state);
            }
            if others_wait.load(Ordering::Relaxed) {
                return !state.submitted.is_empty();
            }
        }
        false
    }
}

impl Lane {
    /// A lane for at most `capacity` operations at a time.
    pub(crate) fn new(pool: Arc<Pool>, capacity: u32) -> Self {
        let capacity = super::execute::to_usize(capacity);
        let state = LaneState {
            submitted: VecDeque::with_capacity(capacity),
            completed: Vec::with_capacity(capacity),
            wanted: 0,
            rung: false,
            alarm: None,
        };
        let shared = LaneShared {
            state: Mutex::new(state),
            done: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            pool,
            queued: Vec::with_capacity(capacity),
            taken: Vec::with_capacity(capacity),
            helps: true,
            beside: false,
            uncalled: 0,
        }
    }

    /// The lane of an owner that has a ring.
    pub(crate) fn beside(pool: Arc<Pool>, capacity: u32) -> Self {
        Self {
            beside: true,
            ..Self::new(pool, capacity)
        }
    }

    /// Queues an operation for the next [`Lane::submit`].
    ///
    /// # Safety
    ///
    /// The addresses in the operation stay valid until its completion has been reaped.
    #[inline]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op) {
        self.queued.push(Task {
            user_data,
            op: *op,
            timed: self.beside,
        });
    }

    /// What calls the owner away from its wait. From now on it leaves operations to the pool.
    pub(crate) fn bell(&mut self) -> Bell {
        self.helps = false;
        Bell(Arc::clone(&self.shared))
    }

    /// Lets the pool at what is queued, for an owner that waits then or does not.
    pub(crate) fn submit(&mut self, waits: bool) {
        let count = self.queued.len();
        if count == 0 {
            return;
        }
        lock(&self.shared.state)
            .submitted
            .extend(self.queued.drain(..));
        // An owner that helps executes one itself as soon as it waits.
        let calls = count - usize::from(self.helps && waits);
        if calls > 0 && !self.pool.call(&self.shared, calls) {
            // There is nobody else.
            self.helps = true;
        }
    }

    /// Lets the pool at what is queued, for an owner that has a ring and helps this time or not.
    /// False if there is nobody but the owner.
    pub(crate) fn submit_beside(&mut self, helps: bool) -> bool {
        let count = self.queued.len();
        if count > 0 {
            lock(&self.shared.state)
                .submitted
                .extend(self.queued.drain(..));
        }
        let waiting = self.uncalled + count;
        self.uncalled = usize::from(helps).min(waiting);
        let calls = waiting - self.uncalled;
        if calls == 0 || self.pool.call(&self.shared, calls) {
            return true;
        }
        self.uncalled = waiting;
        false
    }

    /// Has the next completion ring the alarm. True if there is one already.
    pub(crate) fn watch(&mut self, alarm: &Alarm) -> bool {
        let mut state = lock(&self.shared.state);
        let is_ready = !state.completed.is_empty();
        state.alarm = (!is_ready).then(|| alarm.clone());
        is_ready
    }

    /// Takes over what has completed, for [`Lane::reap`]. The alarm is not rung any more.
    pub(crate) fn collect(&mut self) {
        let mut state = lock(&self.shared.state);
        state.alarm = None;
        self.taken.append(&mut state.completed);
    }

    /// Waits until `at_least` completions can be reaped, executing operations meanwhile.
    pub(crate) fn wait(&mut self, at_least: usize) {
        let at_least = self.still_to_come(at_least);
        let mut state = lock(&self.shared.state);
        while state.completed.len() < at_least {
            if let Some(task) = state.submitted.pop_front() {
                drop(state);
                let completion = run(&task);
                state = lock(&self.shared.state);
                state.completed.push(completion);
            } else {
                state.wanted = at_least;
                state = self
                    .shared
                    .done
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.wanted = 0;
        self.taken.append(&mut state.completed);
    }

    /// What was taken over by an earlier wait and has not been reaped is there already: an owner
    /// that hands over without reaping, and then waits for all that is in flight, waits for it too.
    fn still_to_come(&self, at_least: usize) -> usize {
        at_least.saturating_sub(self.taken.len())
    }

    /// Waits until `at_least` completions can be reaped, the bell is rung, or the time is over.
    pub(crate) fn wait_or(&mut self, at_least: usize, at_most: Option<Duration>) {
        let at_least = self.still_to_come(at_least);
        let until = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        let mut state = lock(&self.shared.state);
        while state.completed.len() < at_least && !state.rung {
            if self.helps
                && let Some(task) = state.submitted.pop_front()
            {
                drop(state);
                let completion = run(&task);
                state = lock(&self.shared.state);
                state.completed.push(completion);
                continue;
            }
            state.wanted = at_least;
            state = match until {
                None => self
                    .shared
                    .done
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let waited = self.shared.done.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.wanted = 0;
        state.rung = false;
        self.taken.append(&mut state.completed);
    }

    /// The completions that are there.
    pub(crate) fn reap(&mut self) -> std::vec::Drain<'_, Completion> {
        self.taken.drain(..)
    }
}
