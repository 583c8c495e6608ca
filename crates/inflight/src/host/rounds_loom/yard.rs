//! The disk and the pool of the models of group commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::commit::{Commit, Flush, Gather};
use crate::completion::Answer;

/// What a model's disk and pool are like.
#[derive(Clone, Copy, Default)]
pub(super) struct Site {
    /// There is no thread of the pool, and none can be started.
    pub(super) has_no_thread: bool,
    /// Another thread leads when they come, for its own sync. There is no thread of the pool then.
    pub(super) has_leader: bool,
    /// Something else always waits for the thread of the pool.
    pub(super) is_busy: bool,
    /// Every flush fails.
    pub(super) fails: bool,
    /// It is known before that flushes take nothing.
    pub(super) is_quick: bool,
    /// Threads have been served together before.
    pub(super) is_shared: bool,
}

/// A disk, and what a thread of the pool has to do. Its own numbers are no primitives of `loom`:
/// they observe, and must not order anything.
pub(super) struct Yard {
    pub(super) site: Site,
    /// Syncs asked for and flushes begun, in the order they come.
    pub(super) clock: AtomicUsize,
    /// When the last flush that has succeeded began.
    pub(super) flushed: AtomicUsize,
    pub(super) flushes: AtomicUsize,
    /// Held by whoever flushes.
    pub(super) device: Mutex<()>,
    pub(super) given: Mutex<Given>,
    pub(super) told: Condvar,
}

#[derive(Default)]
pub(super) struct Given {
    pub(super) leads: VecDeque<Arc<Commit>>,
    pub(super) is_closed: bool,
}

impl Yard {
    pub(super) fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().expect("no panic")
    }
}

pub(super) struct Disk(pub(super) Arc<Yard>);

impl Flush for Disk {
    fn alone(&self, _data_only: bool) -> Answer {
        let yard = &self.0;
        yard.flushes.fetch_add(1, Ordering::Relaxed);
        let begins = yard.clock.fetch_add(1, Ordering::Relaxed);
        let held = yard.device.try_lock().expect("one flush at a time");
        // The others come in here.
        thread::yield_now();
        if yard.site.fails {
            return Answer::failed(libc::EIO, 0);
        }
        yard.flushed.store(begins, Ordering::Relaxed);
        drop(held);
        Answer::moved(0)
    }

    fn flush(&self, data_only: bool) -> Answer {
        self.alone(data_only)
    }

    fn delegate(&self, commit: &Arc<Commit>) -> bool {
        if self.0.site.has_no_thread {
            return false;
        }
        self.0.given().leads.push_back(Arc::clone(commit));
        self.0.told.notify_one();
        true
    }

    fn is_wanted(&self) -> bool {
        self.0.site.is_busy
    }

    fn gathers_for(&self, _took: Duration) -> Option<Gather> {
        None
    }

    fn looks_for(&self) -> Duration {
        Duration::ZERO
    }

    fn is_served(&self) -> bool {
        false
    }

    fn patience(&self) -> Duration {
        // A model has no time; see `Client::wait_hastily`.
        Duration::from_secs(3600)
    }

    fn is_little(&self, _bytes: u64) -> bool {
        true
    }

    fn is_short(&self, _took: Duration, _syncs: usize) -> bool {
        self.0.site.is_quick
    }

    fn usual(&self) -> Option<Duration> {
        None
    }

    fn was_first(&self, _took: Duration) {}

    fn count(&self, served: usize) {
        assert!(served <= 3, "nobody is counted twice");
    }

    fn wake(&self, waker: Waker) {
        waker.wake();
    }
}
