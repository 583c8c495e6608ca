//! Wakers and when they are to be woken: plain data, to be owned or locked by its host.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Instant;

use crate::foreign::contain;

/// One timer. Two of the same instant are told apart by a number.
pub(crate) type TimerKey = (Instant, u64);

/// See the module. A timer that is cancelled leaves nothing behind.
#[derive(Default)]
pub(crate) struct Timers {
    timers: BTreeMap<TimerKey, Waker>,
    numbers: u64,
}

impl Timers {
    /// Sets a timer. True when it is now the first.
    pub(crate) fn set(&mut self, at: Instant, waker: Waker) -> (TimerKey, bool) {
        self.numbers += 1;
        let key = (at, self.numbers);
        self.timers.insert(key, waker);
        (key, self.next() == Some(at))
    }

    /// Has another waker woken and returns the one before, to be dropped outside any lock; gives
    /// it back when the timer has gone off.
    pub(crate) fn update(&mut self, key: TimerKey, waker: Waker) -> Result<Waker, Waker> {
        match self.timers.get_mut(&key) {
            Some(known) => Ok(std::mem::replace(known, waker)),
            None => Err(waker),
        }
    }

    /// Cancels a timer and gives its waker back, to be dropped outside any lock.
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<Waker> {
        self.timers.remove(&key)
    }

    /// When the first goes off.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// The waker of the first, whenever its time comes.
    pub(crate) fn pop(&mut self) -> Option<Waker> {
        self.timers.pop_first().map(|(_, waker)| waker)
    }

    /// The waker of a timer whose time has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl Drop for Timers {
    /// One by one: wakers are foreign code, and two that panic while all are dropped together would
    /// end the process.
    fn drop(&mut self) {
        while let Some(waker) = self.pop() {
            contain(|| drop(waker));
        }
    }
}
