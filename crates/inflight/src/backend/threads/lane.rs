//! The lanes through which proactors hand operations to the [pool](super::pool).
//!
//! A lane belongs to one proactor. Its owner puts operations in and collects the completions. While
//! it waits it executes an operation itself if that is the only one, so that no thread has to be
//! woken, or if no thread comes. With several in flight it would find those that complete meanwhile
//! too late (`docs/design/hosts.md`).
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::pool::{Pool, Serve};
use super::task::{Task, run};
use crate::backend::alarm::Alarm;
use crate::completion::Completion;
use crate::op::Op;
use crate::sync::lock;

/// A proactor's side of the pool.
pub(crate) struct Lane {
    shared: Arc<LaneShared>,
    /// Not shown to the pool yet.
    queued: Vec<Task>,
    /// Completions taken over from the lane, to be reaped.
    taken: Vec<Completion>,
    /// Whether the owner executes operations itself while it waits; one that others wait for
    /// must not, as long as there is a thread.
    helps: bool,
    /// Whether there may be operations for which no thread could be called. Those the owner
    /// executes in any case, until one can be called again.
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

/// When the owner does what no thread has taken: the pool may be busy with what never ends, as a
/// call of a FUSE file system.
const LATE: Duration = Duration::from_millis(2);

/// So many times as late the owner makes a flush as well, though others wait for those that threads
/// make meanwhile, and do not hear of their ends as long as it lasts.
const LATE_FOR_FLUSHES: u32 = 100;

impl LaneState {
    /// How many of the operations the owner is to do.
    fn leave_to_owner(&mut self, calls: &Calls, owner_waits: bool) {
        let is_alone = self.submitted.len() == 1 && calls.is_at_rest();
        self.left_to_owner = usize::from(owner_waits && is_alone);
    }

    /// Operations for which threads are to be called.
    fn to_call_for(&self) -> usize {
        self.submitted.len().saturating_sub(self.left_to_owner)
    }

    /// The operation that the owner is to do now; `late`: how many times [`LATE`] no thread has
    /// taken one.
    fn take_by_owner(&mut self, late: u32, calls: &Calls) -> Option<Task> {
        if self.left_to_owner > 0 {
            self.left_to_owner -= 1;
            return self.submitted.pop_front();
        }
        if late == 0 {
            return None;
        }
        let is_any = late >= LATE_FOR_FLUSHES || (self.submitted.len() == 1 && calls.is_idle());
        let may_take = |task: &Task| is_any || !matches!(task.op, Op::Sync { .. });
        let place = self.submitted.iter().position(may_take)?;
        self.submitted.remove(place)
    }
}

/// What an owner does while it waits.
#[derive(Clone, Copy)]
struct Owner {
    /// It executes operations that nobody else does.
    helps: bool,
    /// Its bell calls it away.
    heeds_bell: bool,
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
            let waiting = state.to_call_for();
            drop(state);
            if waiting > 0 {
                self.call(waiting);
            }
            let completion = run(&task);
            self.calls.ends();
            state = lock(&self.state);
            state.completed.push(completion);
            let is_enough = state.wanted > 0 && state.completed.len() >= state.wanted;
            let alarm = state.alarm.take();
            if is_enough {
                state.wanted = 0;
            }
            if is_enough || alarm.is_some() {
                // Whoever wakes wants the lock.
                drop(state);
                if is_enough {
                    self.done.notify_one();
                }
                if let Some(alarm) = alarm {
                    alarm.ring();
                }
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
            uncalled: false,
        }
    }

    /// Queues an operation for the next [`Lane::submit`]; `submitted`: it is to show whether it is
    /// asynchronous.
    ///
    /// # Safety
    ///
    /// The addresses in the operation stay valid until its completion has been reaped.
    #[inline]
    pub(crate) unsafe fn push(&mut self, user_data: u64, op: &Op, submitted: bool) {
        self.queued.push(Task {
            user_data,
            op: *op,
            submitted,
        });
    }

    /// What calls the owner away from its wait. From now on it leaves operations to the pool.
    pub(crate) fn bell(&mut self) -> Bell {
        self.be_interrupted(true);
        Bell(Arc::clone(&self.shared))
    }

    /// Whether the owner is interrupted by its bell from now on, so that it leaves operations to
    /// the pool.
    pub(crate) fn be_interrupted(&mut self, is_interrupted: bool) {
        self.helps = !is_interrupted;
    }

    /// Lets the pool at what is queued, for an owner that waits then or does not.
    pub(crate) fn submit(&mut self, waits: bool) {
        if self.queued.is_empty() && !self.uncalled {
            return;
        }
        let mut state = lock(&self.shared.state);
        state.submitted.extend(self.queued.drain(..));
        state.leave_to_owner(&self.shared.calls, self.helps && waits);
        let waiting = state.to_call_for();
        drop(state);
        if waiting > 0 {
            match self.shared.call(waiting) {
                true => self.uncalled = false,
                false => self.be_alone(),
            }
        }
    }

    /// Makes one operation that nobody else does, for an owner that is too busy to wait.
    pub(crate) fn make_one(&mut self) {
        if !self.uncalled {
            return;
        }
        let Some(task) = lock(&self.shared.state).submitted.pop_front() else {
            return;
        };
        let completion = run(&task);
        lock(&self.shared.state).completed.push(completion);
    }

    /// There is nobody but the owner.
    #[cold]
    fn be_alone(&mut self) {
        lock(&self.shared.state).left_to_owner = usize::MAX;
        self.uncalled = true;
    }

    /// Lets the pool at what is queued, for an owner that has a ring and helps this time or not.
    /// False if there is nobody but the owner.
    pub(crate) fn submit_beside(&mut self, helps: bool) -> bool {
        if self.queued.is_empty() && !self.uncalled {
            return true;
        }
        let mut state = lock(&self.shared.state);
        state.submitted.extend(self.queued.drain(..));
        state.leave_to_owner(&self.shared.calls, helps);
        self.uncalled = false;
        let waiting = state.to_call_for();
        drop(state);
        if waiting == 0 || self.shared.call(waiting) {
            return true;
        }
        self.be_alone();
        false
    }

    /// Whether completions wait to be taken over.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_completed(&self) -> bool {
        !self.taken.is_empty() || !lock(&self.shared.state).completed.is_empty()
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

    /// Waits until `at_least` completions can be reaped, or the time is over, executing operations
    /// meanwhile that nobody else does.
    pub(crate) fn wait(&mut self, at_least: usize, at_most: Option<Duration>) {
        self.wait_as(
            at_least,
            at_most.and_then(|at_most| Instant::now().checked_add(at_most)),
            Owner {
                helps: true,
                heeds_bell: false,
            },
        );
    }

    /// As [`Lane::wait`], but whatever waits for a thread is left to those of the pool.
    pub(crate) fn wait_for_threads(&mut self, at_least: usize, at_most: Duration) {
        self.wait_as(
            at_least,
            Instant::now().checked_add(at_most),
            Owner {
                helps: false,
                heeds_bell: false,
            },
        );
    }

    /// Waits until `at_least` completions can be reaped, the bell is rung, or the time is over.
    pub(crate) fn wait_or(&mut self, at_least: usize, at_most: Option<Duration>) {
        let until = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        self.wait_as(
            at_least,
            until,
            Owner {
                helps: self.helps || self.uncalled,
                heeds_bell: true,
            },
        );
    }

    fn wait_as(&mut self, at_least: usize, until: Option<Instant>, owner: Owner) {
        // What was taken over by an earlier wait and has not been reaped is there already: an owner
        // that hands over without reaping, and then waits for all that is in flight, waits for it
        // too.
        let at_least = at_least.saturating_sub(self.taken.len());
        let mut state = lock(&self.shared.state);
        let mut late = 0;
        while state.completed.len() < at_least && !(owner.heeds_bell && state.rung) {
            if owner.helps
                && let Some(task) = state.take_by_owner(late, &self.shared.calls)
            {
                late = 0;
                drop(state);
                let completion = run(&task);
                state = lock(&self.shared.state);
                state.completed.push(completion);
                if until.is_some_and(|until| until <= Instant::now()) {
                    break;
                }
                continue;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let may_be_late = owner.helps && !state.submitted.is_empty();
            let at_most = match may_be_late {
                true => Some(left.map_or(LATE, |left| left.min(LATE))),
                false => left,
            };
            state.wanted = at_least;
            state = match at_most {
                None => {
                    let woken = self.shared.done.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(at_most) => {
                    let woken = self.shared.done.wait_timeout(state, at_most);
                    let (state, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                    late = match may_be_late && timeout.timed_out() {
                        true => late.saturating_add(1),
                        false => 0,
                    };
                    state
                }
            };
        }
        state.wanted = 0;
        if owner.heeds_bell {
            state.rung = false;
        }
        self.taken.append(&mut state.completed);
        // What was left to the owner, and not done because enough had completed.
        let is_left = state.left_to_owner == 1 && !state.submitted.is_empty();
        if is_left {
            state.left_to_owner = 0;
        }
        drop(state);
        if is_left && !self.shared.call(1) {
            self.be_alone();
        }
    }

    /// The completions that are there.
    pub(crate) fn reap(&mut self) -> std::vec::Drain<'_, Completion> {
        self.taken.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(user_data: u64, op: Op) -> Task {
        Task {
            user_data,
            op,
            submitted: false,
        }
    }

    fn sync() -> Op {
        Op::Sync {
            fd: -1,
            data_only: true,
        }
    }

    fn lane(ops: impl IntoIterator<Item = Op>) -> LaneState {
        let tasks = ops.into_iter().enumerate();
        LaneState {
            submitted: tasks.map(|(number, op)| task(number as u64, op)).collect(),
            completed: Vec::new(),
            wanted: 0,
            rung: false,
            alarm: None,
            left_to_owner: 0,
        }
    }

    fn takes(state: &mut LaneState, late: u32, calls: &Calls) -> Option<u64> {
        Some(state.take_by_owner(late, calls)?.user_data)
    }

    /// A lane to which no thread has been called, with so many operations for one.
    fn uncalled(count: u64) -> Lane {
        let mut lane = Lane::new(Arc::new(Pool::new(1)), 8);
        lane.be_alone();
        let tasks = (0..count).map(|number| task(number, Op::Nop));
        lock(&lane.shared.state).submitted.extend(tasks);
        lane
    }

    #[test]
    fn an_owner_whose_time_is_over_makes_one_operation_and_no_more() {
        let mut lane = uncalled(3);
        for _ in 0..3 {
            lane.wait_or(3, Some(Duration::ZERO));
            assert_eq!(lane.reap().len(), 1);
        }
    }

    #[test]
    fn an_owner_that_hands_over_tries_again_to_call_a_thread() {
        let mut lane = uncalled(3);
        lane.submit(false);
        assert!(!lane.uncalled);
        lane.helps = false;
        lane.wait_or(3, None);
        assert_eq!(lane.reap().len(), 3, "a thread has made them");
    }

    #[test]
    fn an_owner_makes_no_flush_while_others_wait_for_what_threads_make() {
        let calls = Calls::default();
        let mut state = lane([sync(), Op::Nop, sync()]);
        assert_eq!(takes(&mut state, 0, &calls), None);
        assert_eq!(takes(&mut state, 1, &calls), Some(1));
        assert_eq!(
            takes(&mut state, 1, &calls),
            None,
            "a thread may make the other"
        );
        assert_eq!(takes(&mut state, LATE_FOR_FLUSHES, &calls), Some(0));
        calls.begins();
        assert_eq!(takes(&mut state, 1, &calls), None, "a thread makes another");
        calls.ends();
        assert_eq!(takes(&mut state, 1, &calls), Some(2));
    }
}
