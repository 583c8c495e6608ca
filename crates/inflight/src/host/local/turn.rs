//! How a run loop hands over what its tasks have asked for, and waits.
//!
//! A request for a thread of the pool that is the only one in flight is made by the loop itself, if
//! it has nothing else to do and the request is known to be short ([`loop_waits`]): it would sleep
//! as long in its proactor, and be woken by that thread.
//!
//! [`loop_waits`]: crate::policy::loop_waits
#![allow(unsafe_code)]

use std::cell::Cell;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::shares::Taken;
use super::{CHILD_STEP, Loop, nested};
use crate::clock::now_ms;
use crate::host::pace::unseen;
use crate::policy::LOOP_WAIT_MAX;

/// What a turn of the proactor waits for.
pub(super) enum Until {
    /// So many completions.
    Completions(u32),
    /// As many, the alarm, or the end of this time.
    Alarm(u32, Option<Duration>),
    /// The only one, which this thread makes itself.
    Made,
}

thread_local! {
    /// Whether what is polled is to be over by some time.
    static IS_IN_TIME: Cell<bool> = const { Cell::new(false) };
}

/// Whether no call that is made where it is polled may wait for a device.
pub(crate) fn is_in_time() -> bool {
    IS_IN_TIME.get()
}

/// Polls what is to be over by some time: no call that it makes may wait for a device.
pub(crate) fn without_being_away<R>(poll: impl FnOnce() -> R) -> R {
    /// Also when a poll panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_IN_TIME.set(self.0);
        }
    }
    let _restore = Restore(IS_IN_TIME.replace(true));
    poll()
}

impl Loop<'_> {
    /// What a loop waits for that has no task to poll, and has to be back after this time.
    /// `is_free`: nothing but its proactor is at work for it.
    pub(super) fn until_called(&self, is_free: bool, at_most: Option<Duration>) -> Until {
        let is_soon = at_most.is_some_and(|at_most| at_most <= LOOP_WAIT_MAX);
        // A loop that this one is nested in may be called meanwhile.
        let may_wait = is_free && self.is_short.get() && self.outer.is_none() && !is_soon;
        match may_wait && self.lease.borrow_mut().proactor().has_one_for_a_thread() {
            true => Until::Made,
            false => Until::Alarm(1, at_most),
        }
    }

    /// Whether the task that is polled, with this waker, may make a call that waits for a device,
    /// though most likely it does not: the loop has nothing else to do, has not been
    /// away for long, and is not to be back by some time. A batch is polled with another waker: the
    /// others of it would wait.
    #[inline]
    pub(super) fn may_be_away(&self, waker: &Waker) -> bool {
        let has_else = is_in_time()
            || !self.ready.borrow().is_empty()
            || !self.cells.borrow().is_idle()
            || self.timers.borrow().next().is_some()
            || self.outer.is_some()
            || self.promise.has_syncs();
        if has_else || self.polled_task(waker).is_none() {
            return false;
        }
        let mut away = self.away.get();
        let may_go = away.may_go(now_ms());
        self.away.set(away);
        may_go
    }

    /// Has the proactor turn, and takes answers to their cells. Returns how many have come.
    pub(super) fn turn_proactor(&self, until: Until) -> usize {
        let mut lease = self.lease.borrow_mut();
        let mut answering = self.answering();
        let mut came = 0;
        let deliver = |token, answer| {
            came += 1;
            answering.take(token, answer);
        };
        lease.turns();
        let proactor = lease.proactor();
        match until {
            Until::Completions(at_least) => proactor.turn(at_least, deliver),
            Until::Alarm(at_least, at_most) => proactor.turn_or(at_least, at_most, deliver),
            Until::Made => proactor.turn_alone(deliver),
        }
        lease.turned();
        came
    }

    /// Sleeps until a task is to be polled, for all that is known; `taken` is what has become of
    /// shared reads, and `is_free` as in [`Loop::serve_outer`].
    pub(super) fn wait(&self, taken: Taken, is_free: bool) {
        let (mut until, is_barred) = self.serve_outer(is_free);
        if self.is_forked() {
            return;
        }
        let in_flight = {
            let mut lease = self.lease.borrow_mut();
            if taken == Taken::Nothing && lease.has_gathered() {
                // Shared by what runs outside. Nobody would tell of it.
                until = Some(Duration::ZERO);
            }
            lease.proactor().in_flight()
        };
        // Who has been asked to tell of shared reads is one completion.
        let timed = match taken {
            Taken::Nothing => in_flight,
            _ => 0,
        };
        let mut came = 0;
        if let at_least @ 1.. = self.pace.get().at_least(timed) {
            came = self.turn_timed(timed, Until::Alarm(at_least, Some(unseen(until))));
        }
        if self.hear(came == 0) {
            assert!(!is_barred, "{}", nested::BARRED);
            self.was_alone.set(in_flight == 1);
            self.turn_timed(timed, self.until_called(taken == Taken::Nothing, until));
        }
    }

    /// As [`Loop::turn_proactor`], and notes how long that takes with so many in flight.
    fn turn_timed(&self, in_flight: u32, until: Until) -> usize {
        let mut came = 0;
        let pace = self.pace.get().after(in_flight, || {
            came = self.turn_proactor(until);
            came
        });
        self.pace.set(pace);
        came
    }

    /// How long it is until the next timer, if there is one.
    pub(super) fn until_timer(&self) -> Option<Duration> {
        let next = self.timers.borrow().next();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Hands queued requests to the proactor, as far as it has room.
    #[inline]
    pub(super) fn hand_over(&self) {
        self.hand_over_missed();
        let mut cells = self.cells.borrow_mut();
        if !cells.may_take() {
            return;
        }
        let mut lease = self.lease.borrow_mut();
        let proactor = lease.proactor();
        while proactor.has_room()
            && let Some((token, request)) = cells.take()
        {
            self.is_short.set(false);
            // SAFETY: whoever has the ticket of a request keeps its memory until the cell is done,
            // or has left it in the cell; cells are done only by the answers that the proactor
            // delivers.
            unsafe { proactor.push(token, &request) };
        }
    }

    /// What is in flight is the parent's, so operations answer when they are polled; nothing else
    /// can wake a task but a timer.
    #[cold]
    pub(super) fn turn_in_child(&self) {
        let count = self.tasks.borrow().count();
        (0..count).for_each(|task| self.wake(task));
        self.ring_timers();
        thread::sleep(CHILD_STEP);
    }
}
