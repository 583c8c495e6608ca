//! Operations one after the other, with a bounded number in flight.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use super::operation::Operation;
use crate::host::queue::{Flights, Limit};

/// A bounded number of operations in flight, lent by [`crate::Engine::queue`].
///
/// What is pushed goes to the kernel together with the next call of [`Queue::next`], so that one
/// system call serves many operations. The engine of the queue runs them, whichever their files
/// are of.
///
/// **Operations in flight are not ordered**: take the result of a write before you push one that
/// overlaps or depends on it.
pub struct Queue<'q, 's, O: Operation> {
    pub(super) flights: &'q mut Flights<'s, O>,
}

impl<O: Operation> fmt::Debug for Queue<'_, '_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("depth", &self.depth())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<O: Operation> Queue<'_, '_, O> {
    /// Takes an operation; `tag` comes back with its result.
    ///
    /// # Errors
    ///
    /// The operation itself, when [`Queue::depth`] have been pushed whose results have not been
    /// taken, whether they have completed or not (call [`Queue::next`] first), or when this is a
    /// forked child.
    #[inline]
    pub fn push(&mut self, tag: u64, operation: O) -> Result<(), O> {
        self.flights.push(tag, operation)
    }

    /// The next result in order of completion; blocks until there is one. `None` when nothing is in
    /// flight. With 16 or more in flight it waits for several completions at once, which saves
    /// wake-ups; if the rest hang, a finished result is at most 20 ms late.
    ///
    /// It may block longer itself: it makes calls that no thread of the pool has taken in time, and
    /// waits for syncs in the order in which they were asked for. [`Queue::next_timeout`] does
    /// neither.
    #[expect(
        clippy::should_implement_trait,
        reason = "a queue can go on after it was empty"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<(u64, O::Output)> {
        self.flights.next(Limit::None)
    }

    /// The next result in order of completion, if there is one: it waits for none. `None` when
    /// nothing has completed yet, or nothing is in flight, which [`Queue::is_empty`] tells apart.
    ///
    /// What has been pushed is handed to the kernel first, as by [`Queue::next`]. With nothing to
    /// hand over there is no system call, unless the kernel says that it has completions for who
    /// enters it. For all else, and where it may hang, see [`Queue::next_timeout`].
    #[inline]
    pub fn try_next(&mut self) -> Option<(u64, O::Output)> {
        self.flights.next(Limit::Now)
    }

    /// The next result in order of completion, waiting for one no longer than `timeout`; `Ok(None)`
    /// when nothing is in flight. A limit of zero is that of [`Queue::try_next`]; with
    /// [`Duration::MAX`] it waits as long as it takes, and makes no more itself than with another.
    ///
    /// It returns in time even if a device or a file server hangs: it makes no flush and no call
    /// that a thread of the pool can make, only copies of what the page cache has, by calls that do
    /// not wait. So work for the pool is late while calls that hang occupy all its threads
    /// ([`Builder::threads`](crate::Builder::threads)), even if its own device is fine; without a
    /// limit this thread makes such a call after 2 ms, and a sync after 5. Where reads are shared
    /// with a thread of the pool, that one takes up to 8 at a time: if the first hangs, the others
    /// are as late.
    ///
    /// It may hang all the same
    /// - in [`Queue::push`], which has no limit: what the policy has a plain call make is made
    ///   there, as long as the last ones of the file did not wait ([`explain`] tells the way);
    /// - where no thread can be had: then this one makes what is for a thread, one operation at a
    ///   time, and flushes;
    /// - when the ring, or what stands for it, cannot be entered any more, which is among the
    ///   fallbacks of [`Stats`](crate::Stats): this thread waits for what threads make, makes what
    ///   has not reached the kernel, and until the queue ends all that it begins;
    /// - on the backend `aio`, in handing over direct transfers of a file that cannot be asked not
    ///   to wait but has been found to start them only (`io_submit(2)`), as on an overlay;
    /// - if handing over waits in the kernel: for memory, or for a place in the queue of a device
    ///   that has none left.
    ///
    /// [`explain`]: crate::fs::ReadAt::explain
    ///
    /// # Errors
    ///
    /// [`TimedOut`] when nothing was over in time.
    ///
    /// # Cancellation
    ///
    /// Nothing is cancelled: what is late stays in flight, with its buffer, and comes from a later
    /// call, a plain [`Queue::next`] for instance, which is as if there had been no limit before.
    /// The end of the queue waits for all of it, without a limit.
    ///
    /// # Source
    ///
    /// io_uring_enter(2), `IORING_ENTER_EXT_ARG`; before Linux 5.11, and for what is not in a ring,
    /// poll(2) and condition variables.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::time::Duration;
    /// use inflight::{Engine, TimedOut, fs::File};
    ///
    /// # let path = std::env::current_exe()?;
    /// let file = File::open(path)?;
    /// Engine::global()?.queue(8, |queue| {
    ///     for block in 0..8 {
    ///         let pushed = queue.push(block, file.read_at(vec![0; 4096], block * 4096));
    ///         assert!(pushed.is_ok(), "there is room");
    ///     }
    ///     loop {
    ///         match queue.next_timeout(Duration::from_millis(100)) {
    ///             Ok(Some((block, (result, _buf)))) => println!("{block}: {} bytes", result?),
    ///             Ok(None) => return Ok(()),
    ///             Err(TimedOut) => eprintln!("{} reads are late", queue.len()),
    ///         }
    ///     }
    /// })?
    /// # }
    /// ```
    pub fn next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(u64, O::Output)>, TimedOut> {
        match self.flights.next(Limit::after(timeout)) {
            None if !self.is_empty() => Err(TimedOut),
            result => Ok(result),
        }
    }

    /// Whether the next push would be refused.
    pub fn is_full(&self) -> bool {
        !self.flights.has_room()
    }

    /// Maximum number of operations in flight, or completed and not taken: what was asked for, but
    /// at least 1, and at most [`Engine::queue_depth`](crate::Engine::queue_depth). Of large ones
    /// that are split, no more parts than that are with the device at a time; the others wait here.
    pub fn depth(&self) -> usize {
        self.flights.depth()
    }

    /// Operations pushed whose results have not been taken.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether every result has been taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Nothing that is in flight was over in time; all of it goes on. From [`Queue::next_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no operation was over in time; those in flight go on")
    }
}

impl Error for TimedOut {}

impl From<TimedOut> for io::Error {
    /// An error of the kind `TimedOut`.
    fn from(timed_out: TimedOut) -> Self {
        Self::new(io::ErrorKind::TimedOut, timed_out)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "queue_test.rs"]
mod tests;
