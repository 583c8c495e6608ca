//! How many threads of a pool are called to what waits for them.

use std::sync::Arc;

use super::pool::{Pool, Serve};
use crate::sync::{AtomicU64, Ordering};

/// How many threads are called to what is handed over under a lock.
///
/// What nobody is called for is seen by those who are on their way, or at work. Whoever hands
/// something over has done so, under the lock, before it looks who these are; whoever comes, or has
/// done something, says so before it takes the lock to look. So either it sees what was handed
/// over, or it is not counted on.
#[derive(Default)]
pub(crate) struct Calls {
    /// Threads that have been called and have not come.
    coming: AtomicU64,
    /// Threads that make a call.
    busy: AtomicU64,
}

/// So many are called at a time. To wake one is a system call, for which whoever hands over should
/// not pay each time; the others are called by those that come (`docs/design/hosts.md`).
const CALLS_MAX: u64 = if cfg!(loom) { 1 } else { 4 };

/// With so many at work one is called at a time: they have soon done what they are at.
const BUSY: u64 = 8;

impl Calls {
    /// How many threads are to be called now, of so many that there are at most, to all that waits:
    /// they count as coming.
    pub(crate) fn to_be_made(&self, waiting: u64, threads_max: u64) -> u64 {
        let coming = self.coming.load(Ordering::Relaxed);
        let busy = self.busy.load(Ordering::Relaxed);
        let at_once = match busy < BUSY {
            true => CALLS_MAX,
            false => 1,
        };
        let room = threads_max.saturating_sub(busy + coming);
        let count = waiting.min(at_once).saturating_sub(coming).min(room);
        if count > 0 {
            self.coming.fetch_add(count, Ordering::Relaxed);
        }
        count
    }

    /// Calls threads of a pool to all that waits. False if it has none, and none can be started.
    pub(crate) fn make(
        &self,
        waiting: u64,
        pool: &Pool,
        serving: impl Fn() -> Arc<dyn Serve>,
    ) -> bool {
        let count = self.to_be_made(waiting, pool.threads_max());
        let made = (0..count).take_while(|_| pool.call(serving())).count() as u64;
        if made < count {
            self.coming.fetch_sub(count - made, Ordering::Relaxed);
        }
        made == count
    }

    /// A thread that was called has come.
    pub(crate) fn came(&self) {
        self.coming.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether nobody is on the way or at work.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.coming.load(Ordering::Relaxed) + self.busy.load(Ordering::Relaxed) == 0
    }

    /// Whether nobody is at work.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// A thread is at work.
    pub(crate) fn begins(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread that leaves something for later counts as called to it.
    pub(crate) fn comes_again(&self) {
        self.coming.fetch_add(1, Ordering::Relaxed);
    }

    /// It has done that.
    pub(crate) fn ends(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}
