//! Wakes the tasks of an open loop when their operations are due.
//!
//! Runtimes have timers of very different grain, from microseconds to a millisecond, which would
//! be measured in place of the disk. So all of them are woken by the same thread.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::measure::clock::Clock;
use crate::measure::pace::{Pace, sharpen_timers};

/// The schedule, and who waits for it.
pub(crate) struct Alarm {
    clock: Clock,
    pub(crate) pace: Pace,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// By the time at which they are to be woken, and by their number.
    tasks: BTreeMap<(u64, usize), Waker>,
    closed: bool,
}

impl Alarm {
    pub(crate) fn new(clock: Clock, pace: Pace) -> Self {
        Self {
            clock,
            pace,
            waiting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes an operation for a task and waits until it is due; nothing when the schedule is over.
    pub(crate) async fn next(&self, task: usize) -> Option<u64> {
        poll_fn(|context| match self.pace.has_started() {
            true => Poll::Ready(()),
            false => self.wake_at(0, task, context.waker()),
        })
        .await;
        let due_ns = self.pace.take(self.clock.now_ns())?;
        let mut has_waited = false;
        poll_fn(|context| {
            let now_ns = self.clock.now_ns();
            if now_ns < due_ns {
                has_waited = true;
                return self.wake_at(due_ns, task, context.waker());
            }
            if has_waited {
                self.pace.waited(due_ns, now_ns);
            }
            Poll::Ready(())
        })
        .await;
        Some(due_ns)
    }

    fn wake_at(&self, due_ns: u64, task: usize, waker: &Waker) -> Poll<()> {
        let mut waiting = self.lock();
        waiting.tasks.insert((due_ns, task), waker.clone());
        let is_first = waiting.tasks.first_key_value().map(|(key, _)| *key) == Some((due_ns, task));
        drop(waiting);
        if is_first {
            self.changed.notify_one();
        }
        Poll::Pending
    }

    /// Wakes tasks until [`Alarm::close`] is called; has a thread of its own.
    pub(crate) fn run(&self) {
        sharpen_timers();
        self.pace.wait_for_start();
        let mut waiting = self.lock();
        while !waiting.closed {
            let now_ns = self.clock.now_ns();
            let first = waiting.tasks.first_entry();
            waiting = match first {
                None => self.until_changed(waiting),
                Some(first) if first.key().0 > now_ns => {
                    let left = Duration::from_nanos(first.key().0 - now_ns);
                    let woken = self.changed.wait_timeout(waiting, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(first) => {
                    let waker = first.remove();
                    drop(waiting);
                    // Foreign code, so that no lock is held.
                    waker.wake();
                    self.lock()
                }
            };
        }
    }

    fn until_changed<'w>(&self, waiting: MutexGuard<'w, Waiting>) -> MutexGuard<'w, Waiting> {
        let woken = self.changed.wait(waiting);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread, also if nothing was ever started.
    pub(crate) fn close(&self) {
        self.pace.start(Duration::ZERO, Duration::ZERO);
        self.lock().closed = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The list stays one if a task panicked while it was added.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
