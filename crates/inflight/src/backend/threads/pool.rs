//! A bounded pool of threads, and the lanes through which proactors hand it operations.
//!
//! A lane belongs to one proactor. Its owner puts operations in, helps to execute them while it
//! waits, and collects the completions; threads of the pool are woken only for what the owner
//! cannot do at once. The pool starts its threads when they are first needed and ends them when
//! it is dropped.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::execute::execute;
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
}

struct PoolState {
    /// One entry for each thread that a lane could use.
    calls: VecDeque<Arc<LaneShared>>,
    idle: usize,
    closed: bool,
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
}

struct LaneShared {
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

struct Task {
    user_data: u64,
    op: Op,
}

// SAFETY: the addresses in `op` stay valid until its completion has been reaped, whichever thread
// executes it: that is what `Lane::fill` asks of its caller.
unsafe impl Send for Task {}

/// A lock whose data is whole after every statement, so that a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of at most `threads_max` threads, none of them started yet.
    pub(crate) fn new(threads_max: u32) -> Self {
        let threads_max = super::execute::to_usize(threads_max.max(1));
        let calls = VecDeque::with_capacity(2 * threads_max);
        let state = Mutex::new(PoolState {
            calls,
            idle: 0,
            closed: false,
        });
        Self {
            shared: Arc::new(PoolShared {
                state,
                work: Condvar::new(),
            }),
            threads: Mutex::new(Vec::with_capacity(threads_max)),
            threads_max,
        }
    }

    /// Calls up to `count` threads to a lane. False when there is none and none can be started.
    fn call(&self, lane: &Arc<LaneShared>, count: usize) -> bool {
        let mut state = lock(&self.shared.state);
        // More entries than threads would only keep them busy finding empty lanes.
        let room = (2 * self.threads_max).saturating_sub(state.calls.len());
        let count = count.min(self.threads_max).min(room);
        for _ in 0..count {
            state.calls.push_back(Arc::clone(lane));
        }
        let (waiting, idle) = (state.calls.len(), state.idle);
        drop(state);
        for _ in 0..count.min(idle) {
            self.shared.work.notify_one();
        }
        if waiting > idle {
            return self.start_threads(waiting - idle) > 0;
        }
        true
    }

    /// Ends the threads. Lanes that are left execute their operations themselves.
    pub(crate) fn close(&self) {
        let mut threads = lock(&self.threads);
        lock(&self.shared.state).closed = true;
        self.shared.work.notify_all();
        for thread in threads.drain(..) {
            // A thread of the pool runs no foreign code, so it cannot have panicked.
            let _ = thread.join();
        }
    }

    /// Starts up to `count` more threads; returns how many there are.
    #[cold]
    fn start_threads(&self, count: usize) -> usize {
        let mut threads = lock(&self.threads);
        for _ in 0..count.min(self.threads_max - threads.len()) {
            let shared = Arc::clone(&self.shared);
            let name = "inflight-pool".to_owned();
            match thread::Builder::new()
                .name(name)
                .spawn(move || shared.work())
            {
                Ok(thread) => threads.push(thread),
                // Thread limits are met with the threads there are; the owner of the lane
                // executes what no thread takes.
                Err(_) => break,
            }
        }
        threads.len()
    }
}

impl PoolShared {
    /// What a thread of the pool does until the pool is closed.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(lane) = state.calls.pop_front() {
                drop(state);
                lane.work();
                state = lock(&self.state);
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl LaneShared {
    /// Executes operations of this lane until none is left.
    fn work(&self) {
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
        }
    }
}

fn run(task: &Task) -> Completion {
    // SAFETY: whoever submitted the task keeps its memory until the completion is reaped.
    let result = unsafe { execute(&task.op) };
    Completion {
        user_data: task.user_data,
        result,
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
        }
    }

    /// Queues operations for the next [`Lane::submit`].
    ///
    /// # Safety
    ///
    /// The addresses in each operation stay valid until its completion has been reaped.
    #[inline]
    pub(crate) unsafe fn fill(&mut self, mut next: impl FnMut() -> Option<(u64, Op)>) {
        while let Some((user_data, op)) = next() {
            self.queued.push(Task { user_data, op });
        }
    }

    /// What calls the owner away from its wait. From now on it leaves operations to the pool.
    pub(crate) fn bell(&mut self) -> Bell {
        self.helps = false;
        Bell(Arc::clone(&self.shared))
    }

    /// Lets the pool at what is queued.
    pub(crate) fn submit(&mut self) {
        let count = self.queued.len();
        if count == 0 {
            return;
        }
        lock(&self.shared.state)
            .submitted
            .extend(self.queued.drain(..));
        // An owner that helps executes one itself as soon as it waits.
        let calls = count - usize::from(self.helps);
        if calls > 0 && !self.pool.call(&self.shared, calls) {
            // There is nobody else.
            self.helps = true;
        }
    }

    /// Waits until `at_least` completions are there, executing operations meanwhile.
    pub(crate) fn wait(&mut self, at_least: usize) {
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

    /// Waits until `at_least` completions are there, the bell is rung, or the time is over.
    pub(crate) fn wait_or(&mut self, at_least: usize, at_most: Option<Duration>) {
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
