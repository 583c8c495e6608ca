//! What other threads have for a run loop: wake-ups of its tasks, and futures that began there
//! and have been moved away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use super::Loop;
use crate::backend::alarm::Alarm;
use crate::completion::Answer;
use crate::foreign::{clone_waker, contain};
use crate::fork::{self, PerProcess};
use crate::host::cells::{Kept, Left, Ticket, Wake};
use crate::host::timers::TimerKey;
use crate::sync::lock;

/// The loops that live, and those that are gone while futures that began there are not.
static HOMES: PerProcess<Mutex<HashMap<u64, Arc<Remote>>>> = PerProcess::new();

/// The side of a run loop that other threads see.
pub(super) struct Remote {
    pub(super) id: u64,
    fork_generation: u32,
    /// Whether a message waits. Whoever has been handed a future sees what was asked for it before.
    has_messages: AtomicBool,
    state: Mutex<State>,
}

struct State {
    alarm: Option<Alarm>,
    parked: bool,
    ended: bool,
    woken: Vec<u32>,
    messages: Vec<Message>,
    /// The wakers of futures that have been moved away, each the last one that polled it.
    watches: HashMap<Ticket, Waker>,
    /// Answers for futures that have been moved away.
    answers: HashMap<Ticket, Answer>,
}

/// What a future that has been moved away asks of its loop.
pub(super) enum Message {
    /// To keep this until the operation is over.
    Abandon(Ticket, Box<dyn Kept>),
    /// To forget a timer.
    CancelTimer(TimerKey),
}

/// The loop with this number, if any of its futures can still ask for it.
pub(super) fn find(id: u64) -> Option<Arc<Remote>> {
    lock(HOMES.get()).get(&id).cloned()
}

/// As [`Remote::poll`], of the loop with this number.
#[cold]
pub(super) fn poll_from_afar(id: u64, ticket: Ticket, waker: &Waker) -> Option<Answer> {
    let remote = find(id).expect("a loop is known while futures have claims on it");
    remote.poll(ticket, waker)
}

fn forget(id: u64) {
    let gone = lock(HOMES.get()).remove(&id);
    drop(gone);
}

impl Remote {
    /// The remote side of a new loop.
    pub(super) fn register(alarm: Alarm) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let remote = Arc::new(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            fork_generation: fork::generation(),
            has_messages: AtomicBool::new(false),
            state: Mutex::new(State {
                alarm: Some(alarm),
                parked: false,
                ended: false,
                woken: Vec::new(),
                messages: Vec::new(),
                watches: HashMap::new(),
                answers: HashMap::new(),
            }),
        });
        let known = Arc::clone(&remote);
        lock(HOMES.get()).insert(remote.id, known);
        remote
    }

    fn deliver(mut state: MutexGuard<'_, State>) {
        let alarm = if state.parked {
            state.alarm.clone()
        } else {
            None
        };
        state.parked = false;
        drop(state);
        if let Some(alarm) = alarm {
            alarm.ring();
        }
    }

    /// Ends a visit after which nobody may have a claim on the loop any more.
    fn leave_behind(&self, state: MutexGuard<'_, State>) {
        let is_over = state.ended && state.answers.is_empty();
        drop(state);
        if is_over {
            forget(self.id);
        }
    }

    /// Another thread wakes a task; once, until the loop has seen it. Not of a loop that a fork has
    /// copied: a thread that is not here may have had its lock, and it polls its tasks anyway.
    pub(super) fn wake(&self, task: u32) {
        if self.fork_generation != fork::generation() {
            return;
        }
        let mut state = lock(&self.state);
        if !state.ended {
            state.woken.push(task);
            Self::deliver(state);
        }
    }

    /// A future that began in this loop is polled elsewhere.
    fn poll(&self, ticket: Ticket, waker: &Waker) -> Option<Answer> {
        let waker = clone_waker(waker);
        let mut state = lock(&self.state);
        let answer = state.answers.remove(&ticket);
        if answer.is_none() && !state.ended {
            self.has_messages.store(true, Ordering::Relaxed);
            let before = state.watches.insert(ticket, waker);
            Self::deliver(state);
            contain(|| drop(before));
            return None;
        }
        self.leave_behind(state);
        // The answer has been taken: a panic would lose it.
        contain(|| drop(waker));
        answer
    }

    /// A future that began in this loop is dropped elsewhere. Returns its answer if it had come.
    pub(super) fn abandon(
        &self,
        ticket: Ticket,
        keep: impl FnOnce() -> Box<dyn Kept>,
    ) -> Option<Answer> {
        let mut state = lock(&self.state);
        let answer = state.answers.remove(&ticket);
        if answer.is_none() && !state.ended {
            let message = Message::Abandon(ticket, keep());
            state.messages.push(message);
            let waker = state.watches.remove(&ticket);
            Self::deliver(state);
            contain(|| drop(waker));
            return None;
        }
        self.leave_behind(state);
        answer
    }

    /// A timer of this loop is cancelled elsewhere.
    pub(super) fn cancel_timer(&self, key: TimerKey) {
        let mut state = lock(&self.state);
        if !state.ended {
            state.messages.push(Message::CancelTimer(key));
            Self::deliver(state);
        }
    }

    /// The answer for a future that is polled at home again.
    pub(super) fn take(&self, ticket: Ticket) -> Option<Answer> {
        let mut state = lock(&self.state);
        let answer = state.answers.remove(&ticket);
        self.leave_behind(state);
        answer
    }

    /// For the loop: whether a future that is polled at home may have been polled elsewhere before.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        self.has_messages.load(Ordering::Relaxed)
    }

    /// For the loop: leaves an answer for a future that has been moved away. In a child it is the
    /// parent's.
    pub(super) fn leave(&self, ticket: Ticket, answer: Answer) {
        if self.fork_generation != fork::generation() {
            return;
        }
        lock(&self.state).answers.insert(ticket, answer);
    }

    /// For the loop: takes what has come. If there is nothing and `may_park`, the loop counts as
    /// parked from now on, until it takes again.
    pub(super) fn take_all(
        &self,
        woken: &mut Vec<u32>,
        watches: &mut Vec<(Ticket, Waker)>,
        messages: &mut Vec<Message>,
        may_park: bool,
    ) -> bool {
        let mut state = lock(&self.state);
        woken.append(&mut state.woken);
        watches.extend(state.watches.drain());
        messages.append(&mut state.messages);
        self.has_messages.store(false, Ordering::Relaxed);
        let is_nothing = woken.is_empty() && watches.is_empty() && messages.is_empty();
        state.parked = may_park && is_nothing;
        state.parked
    }

    /// For the loop: another alarm interrupts it from now on.
    pub(super) fn replace_alarm(&self, alarm: Alarm) {
        let before = lock(&self.state).alarm.replace(alarm);
        drop(before);
    }

    /// The loop ends, unless there are messages; after this, none come.
    pub(super) fn end(&self, untaken: impl Iterator<Item = (Ticket, Answer)>) -> bool {
        let mut state = lock(&self.state);
        if !state.messages.is_empty() || !state.watches.is_empty() {
            return false;
        }
        state.ended = true;
        state.answers.extend(untaken);
        let alarm = state.alarm.take();
        let is_over = state.answers.is_empty();
        drop(state);
        drop(alarm);
        if is_over {
            forget(self.id);
        }
        true
    }
}

impl Loop<'_> {
    /// Takes what other threads have sent. True if nothing has come and the loop counts as parked.
    pub(super) fn hear(&self, may_park: bool) -> bool {
        let (mut woken, mut watches, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        let parked = self
            .remote
            .take_all(&mut woken, &mut watches, &mut messages, may_park);
        for task in woken {
            if self.tasks.borrow_mut().wake_from_afar(task) {
                self.ready.borrow_mut().push_back(task);
            }
        }
        self.watch_all(watches);
        for message in messages {
            self.answer(message);
        }
        parked
    }

    /// Tells these wakers when the answers are there, which it leaves with [`Remote`].
    ///
    /// Foreign code comes last: it may poll one of these futures here, whose waker is then newer
    /// than the one that came with the message.
    fn watch_all(&self, watches: Vec<(Ticket, Waker)>) {
        let (mut replaced, mut woken) = (Vec::new(), Vec::new());
        let mut cells = self.cells.borrow_mut();
        for (ticket, waker) in watches {
            // What is no longer known has been left there by an earlier message.
            match cells.knows(ticket).then(|| cells.poll(ticket)) {
                Some(Err(wake)) => {
                    replaced.push(std::mem::replace(wake, Wake::Waker(waker)));
                    continue;
                }
                Some(Ok(answer)) => self.remote.leave(ticket, answer),
                None => {}
            }
            woken.push(waker);
        }
        drop(cells);
        for wake in replaced {
            contain(|| drop(wake));
        }
        for waker in woken {
            contain(|| waker.wake());
        }
    }

    /// Does what a future that has been moved away asks for.
    fn answer(&self, message: Message) {
        match message {
            Message::Abandon(ticket, kept) => {
                let mut kept = Some(kept);
                let left = self.abandon(ticket, &mut || kept.take().expect("asked once"));
                match (left, kept) {
                    (Left::Answered(answer), Some(kept)) => contain(|| kept.over(answer)),
                    (_, kept) => contain(|| drop(kept)),
                }
            }
            Message::CancelTimer(key) => self.cancel_timer(key),
        }
    }
}
