//! The timers of a run loop.

use std::task::Waker;
use std::time::Instant;

use super::{Home, Loop, remote, with_current, with_home};
use crate::foreign::{clone_waker, contain};
use crate::host::timers::TimerKey;

/// Has the waker woken by the loop of this thread at an instant. `None` where there is no loop, or
/// one that ends.
pub(crate) fn set_timer(at: Instant, waker: &Waker) -> Option<(Home, TimerKey)> {
    with_current(|current| {
        if current.is_ending.get() {
            return None;
        }
        let waker = clone_waker(waker);
        let (key, _) = current.timers.borrow_mut().set(at, waker);
        Some((current.remote.id, key))
    })?
}

/// Has another waker woken; false when the timer has gone off, or is not of this thread.
pub(crate) fn update_timer(home: Home, key: TimerKey, waker: &Waker) -> bool {
    let updated = with_home(home, |current| {
        let waker = clone_waker(waker);
        current.timers.borrow_mut().update(key, waker)
    });
    let is_set = matches!(updated, Some(Ok(_)));
    contain(|| drop(updated));
    is_set
}

/// Cancels a timer; one of another thread, as soon as its loop looks.
pub(crate) fn cancel_timer(home: Home, key: TimerKey) {
    if with_home(home, |current| current.cancel_timer(key)).is_none()
        && let Some(remote) = remote::find(home)
    {
        remote.cancel_timer(key);
    }
}

impl Loop<'_> {
    pub(super) fn cancel_timer(&self, key: TimerKey) {
        let waker = self.timers.borrow_mut().cancel(key);
        contain(|| drop(waker));
    }

    pub(super) fn ring_timers(&self) {
        if self.timers.borrow().next().is_none() {
            return;
        }
        let now = Instant::now();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(waker) => contain(|| waker.wake()),
                None => return,
            }
        }
    }

    /// Has whoever still waits for a timer set one elsewhere: this loop is about to end.
    pub(super) fn give_timers_up(&self) {
        self.is_ending.set(true);
        loop {
            let waker = self.timers.borrow_mut().pop();
            match waker {
                // Whoever is woken by it may be in the parent.
                Some(waker) if self.is_forked() => contain(|| drop(waker)),
                Some(waker) => contain(|| waker.wake()),
                None => return,
            }
        }
    }
}
