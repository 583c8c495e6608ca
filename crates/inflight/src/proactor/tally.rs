//! What a proactor counts. Only its owner writes, so a count costs a load and a store; anyone may
//! read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter, mostly with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds; only the owner of the proactor may.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Relaxed,
        );
    }

    /// Replaces the value; only the owner of the proactor may.
    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Adds to a count that several threads add to.
    pub(crate) fn add_with_others(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes off what was [added with others](Self::add_with_others).
    pub(crate) fn take_with_others(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of one proactor since it was made.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Operations handed over and not completed, as of the last turn.
    pub(crate) in_flight: Count,
    /// Requests answered.
    pub(crate) answered: Count,
    /// Enters into the ring.
    pub(crate) enters: Count,
    /// Waits that ended while the owner looked for completions.
    pub(crate) busy_polls: Count,
    /// Plain system calls made in place of the backend.
    pub(crate) plain_calls: Count,
    /// Transfers that another thread than the caller copied.
    pub(crate) helped: Count,
    /// Operations that threads of the pool did beside a ring.
    pub(crate) pool_calls: Count,
    /// Operations handed over again.
    pub(crate) retries: Count,
    /// Transfers that moved fewer bytes than asked.
    pub(crate) short_transfers: Count,
    /// Completions that nobody waited for.
    pub(crate) strays: Count,
}
