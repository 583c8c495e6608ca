//! Operations one after the other, with a bounded number in flight.

use super::operation::Operation;
use crate::host::flights::Flights;

/// A bounded number of operations in flight, lent by [`crate::Engine::queue`].
///
/// What is pushed goes to the kernel together with the next call of [`Queue::next`], so that one
/// system call serves many operations.
pub struct Queue<'q, 's, O: Operation> {
    pub(super) flights: &'q mut Flights<'s, O>,
}

impl<O: Operation> Queue<'_, '_, O> {
    /// Takes an operation; `tag` comes back with its result.
    ///
    /// # Errors
    ///
    /// The operation itself, when [`Queue::depth`] are in flight (call [`Queue::next`] first), or
    /// when this is a forked child.
    #[inline]
    pub fn push(&mut self, tag: u64, operation: O) -> Result<(), O> {
        self.flights.push(tag, operation)
    }

    /// The next result in the order of completion, waiting if there is none; `None` when
    /// nothing is in flight. From 16 in flight on it waits for several, which saves wake-ups; what
    /// completes while the others hang comes at most 20 ms late. Not so if it hangs itself: it
    /// makes what is for a pool whose threads are late, and waits for syncs in the order in which
    /// they were asked for.
    #[expect(
        clippy::should_implement_trait,
        reason = "a queue can go on after it was empty"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<(u64, O::Output)> {
        self.flights.next()
    }

    /// Whether the next push would be refused.
    pub fn is_full(&self) -> bool {
        !self.flights.has_room()
    }

    /// Most operations in flight at a time: what was asked for, but at least 1, and at most
    /// [`Engine::queue_depth`](crate::Engine::queue_depth). Of large ones that are split, no more
    /// parts than that are with the device at a time; the others wait here.
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
