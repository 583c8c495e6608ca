//! The syncs that one flush serves, and their places.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use super::{Commit, HostId, Keep, lock};
use crate::completion::Answer;
use crate::foreign::{clone_waker, contain};
use crate::sync::{Condvar, Mutex, PoisonError};

/// However long a thread has waited, it looks so often whether there is somebody to wait for.
const PATIENCE_MAX: Duration = Duration::from_millis(320);

/// What a flush needs until it is over: the open file.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// The syncs that are served by one flush.
pub(super) struct Round {
    /// Of the same file.
    commit: Weak<Commit>,
    members: Mutex<Members>,
    told: Condvar,
}

#[derive(Default)]
struct Members {
    /// One of them wants metadata too.
    wants_all: bool,
    /// Who waits for the answer and has not left.
    waiting: usize,
    /// Those of them whose threads sleep. Where none does, telling them is a system call for
    /// nothing, one for each flush of a run loop.
    asleep: usize,
    /// One of those that sleep looks after the leader.
    is_watched: bool,
    /// One of those who wait is to make the flush: nobody has looked since they were told so.
    is_offered: bool,
    /// Tasks have been woken for that, and their wakers are not here until they are polled.
    is_of_tasks: bool,
    wakers: Vec<Option<Waker>>,
    /// Keeps the descriptor open until the flush is over.
    kept: Option<Kept>,
    answer: Option<Answer>,
}

/// The place of one sync in its round.
pub(crate) struct Seat {
    round: Arc<Round>,
    place: usize,
}

impl Round {
    /// An empty one.
    pub(super) fn new(commit: &Arc<Commit>) -> Arc<Self> {
        Arc::new(Self {
            commit: Arc::downgrade(commit),
            members: Mutex::default(),
            told: Condvar::new(),
        })
    }

    /// An empty one with the memory of one that nobody has a seat in any more.
    pub(super) fn renewed(mut round: Arc<Self>) -> Option<Arc<Self>> {
        let members = Arc::get_mut(&mut round)?.members.get_mut();
        let members = members.unwrap_or_else(PoisonError::into_inner);
        members.wakers.clear();
        let wakers = std::mem::take(&mut members.wakers);
        *members = Members {
            wakers,
            ..Members::default()
        };
        Some(round)
    }

    /// A place in it.
    pub(super) fn sit(
        this: &Arc<Self>,
        data_only: bool,
        file: &dyn Keep,
        waker: Option<Waker>,
    ) -> Seat {
        let mut members = lock(&this.members);
        members.wants_all |= !data_only;
        members.waiting += 1;
        members.kept.get_or_insert_with(|| file.keep());
        let place = members.wakers.len();
        members.wakers.push(waker);
        Seat {
            round: Arc::clone(this),
            place,
        }
    }

    /// Who waits for the answer.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.members).waiting
    }

    /// Asks something of the file, unless all have left.
    pub(super) fn as_long_as_open<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        // Who leaves last closes it, and waits for this.
        let members = lock(&self.members);
        (members.waiting > 0).then(ask)
    }

    /// Whether nobody but threads waits for the answer.
    pub(super) fn is_of_threads(&self) -> bool {
        let members = lock(&self.members);
        !members.is_of_tasks && members.wakers.iter().all(Option::is_none)
    }

    /// Begins the flush: whether it is of data only, and what it needs. `None` if all have left.
    pub(super) fn begin(&self) -> Option<(bool, Option<Kept>)> {
        let mut members = lock(&self.members);
        (members.waiting > 0).then(|| (!members.wants_all, members.kept.take()))
    }

    /// Leaves the answer to everyone; how many they are, and who is to be woken.
    pub(super) fn tell(&self, answer: Answer) -> (usize, Vec<Option<Waker>>) {
        let mut members = lock(&self.members);
        members.answer = Some(answer);
        let wakers = std::mem::take(&mut members.wakers);
        let (waiting, asleep) = (members.waiting, members.asleep);
        drop(members);
        if asleep > 0 {
            self.told.notify_all();
        }
        (waiting, wakers)
    }

    /// Has one of those who wait make the flush: a thread that sleeps, or if none does, the first
    /// task that is polled. Those are to be woken, all of them: some may never be polled again.
    pub(super) fn offer(&self) -> Vec<Waker> {
        let mut members = lock(&self.members);
        members.is_offered = true;
        if members.asleep > 0 {
            drop(members);
            self.told.notify_one();
            return Vec::new();
        }
        let wakers = members.wakers.iter_mut();
        let wakers: Vec<_> = wakers.filter_map(Option::take).collect();
        members.is_of_tasks |= !wakers.is_empty();
        wakers
    }

    /// Takes back the memory of the wakers it has told, to be used again.
    pub(super) fn give_back(&self, wakers: Vec<Option<Waker>>) {
        lock(&self.members).wakers = wakers;
    }
}

impl Seat {
    /// Whether one flush serves both.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.round, &other.round)
    }

    /// Makes the flush that its host has promised, if it still has to be made.
    pub(crate) fn lead(&self, host: HostId) {
        if let Some(commit) = self.round.commit.upgrade() {
            commit.keep_promise(host, |_, _| true);
        }
    }

    /// Has the pool make the flush that a host has promised, if it still has to be made, or that
    /// those who wait are to make. Where there is no pool it is made here.
    pub(crate) fn leave_to_the_pool(&self) {
        if let Some(commit) = self.round.commit.upgrade() {
            commit.break_promise(&self.round);
        }
    }

    /// The answer, if it has come.
    pub(crate) fn answer(&self) -> Option<Answer> {
        lock(&self.round.members).answer
    }

    /// The answer, if it has come; else the waker is kept.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Answer> {
        let members = lock(&self.round.members);
        if members.answer.is_some() {
            return members.answer;
        }
        let known = members.wakers[self.place].as_ref();
        if known.is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        drop(members);
        // Cloning a waker is foreign code, and so is dropping one.
        let waker = clone_waker(waker);
        let mut members = lock(&self.round.members);
        let answer = members.answer;
        let unneeded = match answer {
            None => members.wakers[self.place].replace(waker),
            Some(_) => Some(waker),
        };
        drop(members);
        contain(|| drop(unneeded));
        if answer.is_some() {
            return answer;
        }
        // Whoever is woken now need not be of the host that began this.
        self.leave_to_the_pool();
        self.answer()
    }

    /// As if it had never been polled: it is a thread that waits.
    pub(crate) fn forget_waker(&self) {
        let mut members = lock(&self.round.members);
        let waker = match members.answer {
            None => members.wakers[self.place].take(),
            // All have been taken.
            Some(_) => None,
        };
        drop(members);
        drop(waker);
    }

    /// Whether it is one of these.
    pub(super) fn is_in(&self, round: &Arc<Round>) -> bool {
        Arc::ptr_eq(&self.round, round)
    }

    /// Blocks until the answer is there. Makes the flush if nobody else does so for long.
    ///
    /// One of those that wait looks after the leader: a timer for each of them cost 2 % of the
    /// syncs and more.
    pub(crate) fn wait(self) -> Answer {
        // It lasts as long as a file that is waited for.
        let commit = self.round.commit.upgrade();
        let mut patience = commit.as_ref().map(|commit| commit.flush.patience());
        let mut members = lock(&self.round.members);
        loop {
            if let Some(answer) = members.answer {
                return answer;
            }
            if std::mem::take(&mut members.is_offered) {
                drop(members);
                if let Some(answer) = commit.as_ref().and_then(|commit| commit.accept(&self)) {
                    return answer;
                }
                members = lock(&self.round.members);
                continue;
            }
            let time = patience.filter(|_| !members.is_watched);
            members.asleep += 1;
            members.is_watched |= time.is_some();
            let Some(time) = time else {
                let waited = self.round.told.wait(members);
                members = waited.unwrap_or_else(PoisonError::into_inner);
                members.asleep -= 1;
                continue;
            };
            let waited = self.round.told.wait_timeout(members, time);
            let (after, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            members = after;
            members.asleep -= 1;
            members.is_watched = false;
            if waited.timed_out() && members.answer.is_none() {
                drop(members);
                if let Some(answer) = commit.as_ref().and_then(|commit| commit.take_over(&self)) {
                    return answer;
                }
                patience = patience.map(|patience| patience.saturating_mul(2).min(PATIENCE_MAX));
                members = lock(&self.round.members);
            }
        }
    }

    /// Gives up the place in a round whose flush has not begun. Whether one of data only is enough
    /// for all of it.
    pub(super) fn stand_up(&self) -> bool {
        let mut members = lock(&self.round.members);
        members.waiting -= 1;
        let kept = match members.waiting {
            0 => members.kept.take(),
            _ => None,
        };
        let data_only = !members.wants_all;
        let asleep = members.asleep;
        drop(members);
        drop(kept);
        if asleep > 0 {
            // Another one looks after the leader.
            self.round.told.notify_all();
        }
        data_only
    }

    /// The future is gone. Returns the answer, if it had come, and what is to be dropped: that may
    /// be foreign code.
    pub(crate) fn leave(self) -> (Option<Answer>, Option<Waker>) {
        let mut members = lock(&self.round.members);
        let answer = members.answer;
        let (mut waker, mut kept) = (None, None);
        if answer.is_none() {
            waker = members.wakers[self.place].take();
            members.waiting -= 1;
            if members.waiting == 0 {
                // If the flush has begun it has this already.
                kept = members.kept.take();
            }
        }
        drop(members);
        drop(kept);
        (answer, waker)
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}
