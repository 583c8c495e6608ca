//! The lanes through which proactors hand operations to the [pool](super::pool).
//!
//! A lane belongs to one proactor. Its owner puts operations in, helps to execute them while it
//! waits, and collects the completions; threads of the pool are woken only for what the owner
//! cannot do at once.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::pool::{Pool, Serve, lock};
use super::task::{Task, run};
use crate::backend::alarm::Alarm;
use crate::completion::Completion;
use crate::op::Op;

/// A proactor's side of the pool.
pub(crate) struct Lane {
    shared: Arc<LaneShared>,
    /// Not shown to the pool yet.
    queued: Vec<Task>,
    /// Completions taken over from the lane, to be reaped.
    taken: Vec<Completion>,
    /// Whether the owner executes operations itself while it waits; one that others wait for
    /// must not.
    helps: bool,
    /// Whether the owner has a ring, and wants to know how long operations take here.
    beside: bool,
    /// Whether there may be operations for which no thread was called, because the owner was to do
    /// one, or none could be.
    uncalled: bool,
}

pub(super) struct LaneShared {
    state: Mutex<LaneState>,
    pool: Arc<Pool>,
    calls: Calls,
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
    /// Operations for which no thread is called, because the owner is to do them.
    left_to_owner: usize,
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

impl LaneShared {
    /// Calls threads to all that waits. False when there is none and none can be started.
    fn call(self: &Arc<Self>, waiting: usize) -> bool {
        let lane = || Arc::clone(self) as Arc<dyn Serve>;
        self.calls.make(waiting as u64, &self.pool, lane)
    }
}

impl Serve for LaneShared {
    fn serve(self: Arc<Self>, others_wait: &AtomicBool) -> bool {
        self.calls.came();
        let mut state = lock(&self.state);
        while let Some(task) = state.submitted.pop_front() {
            self.calls.begins();
            let waiting = state.submitted.len().saturating_sub(state.left_to_owner);
            drop(state);
            if waiting > 0 {
                self.call(waiting);
            }
            let completion = run(&task);
            self.calls.ends();
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
            if others_wait.load(Ordering::Relaxed) && !state.submitted.is_empty() {
                self.calls.comes_again();
                return true;
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
            left_to_owner: 0,
        };
        let shared = LaneShared {
            state: Mutex::new(state),
            pool,
            calls: Calls::default(),
            done: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            queued: Vec::with_capacity(capacity),
            taken: Vec::with_capacity(capacity),
            helps: true,
            beside: false,
            uncalled: false,
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
        // An owner that helps executes one itself as soon as it waits.
        let left_to_owner = usize::from(self.helps && waits);
        let mut state = lock(&self.shared.state);
        state.submitted.extend(self.queued.drain(..));
        state.left_to_owner = left_to_owner;
        let waiting = state.submitted.len().saturating_sub(left_to_owner);
        drop(state);
        if waiting > 0 && !self.shared.call(waiting) {
            // There is nobody else.
            self.helps = true;
        }
    }

    /// Lets the pool at what is queued, for an owner that has a ring and helps this time or not.
    /// False if there is nobody but the owner.
    pub(crate) fn submit_beside(&mut self, helps: bool) -> bool {
        if self.queued.is_empty() && !self.uncalled {
            return true;
        }
        let mut state = lock(&self.shared.state);
        state.submitted.extend(self.queued.drain(..));
        self.uncalled = helps && !state.submitted.is_empty();
        state.left_to_owner = usize::from(self.uncalled);
        let waiting = state.submitted.len() - state.left_to_owner;
        drop(state);
        if waiting == 0 || self.shared.call(waiting) {
            return true;
        }
        self.uncalled = true;
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
