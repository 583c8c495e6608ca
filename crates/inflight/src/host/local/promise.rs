//! The flush that a run loop makes itself, when it has nothing else to do.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::{Loop, with_current};
use crate::commit::{Commit, HostId};
use crate::host::shared::Shared;
use crate::policy::{LOOP_WAIT_MAX, loop_flushes};

/// What a loop has promised: the next flush of one file. Those of several files run side by side in
/// the pool.
pub(super) struct Promise {
    host: HostId,
    commit: RefCell<Option<Arc<Commit>>>,
    /// Whether it has outlasted a turn in which tasks were ready.
    has_waited: Cell<bool>,
    /// As many besides this one as syncs of the loop's tasks are waited for.
    syncs: OfLoop,
}

/// Goes with a sync of a task of a loop as long as it is waited for, wherever it is polled and
/// dropped.
pub(crate) type OfLoop = Arc<()>;

/// The loop of this thread, if this is the waker of the task that it polls (one that blocks the
/// thread does not wake by way of the loop), and whether it promises to make the next flush.
pub(crate) fn may_promise(
    shared: &Arc<Shared>,
    commit: &Arc<Commit>,
    waker: &Waker,
) -> (Option<HostId>, Option<OfLoop>) {
    let may = |current: &Loop<'static>| {
        let is_task = current.polled_task(waker).is_some();
        let promise = &current.promise;
        (is_task && Arc::ptr_eq(current.shared, shared))
            .then(|| (promise.make(commit), Some(Arc::clone(&promise.syncs))))
    };
    with_current(may).flatten().unwrap_or_default()
}

impl Default for Promise {
    fn default() -> Self {
        Self {
            host: HostId::new(),
            commit: RefCell::default(),
            has_waited: Cell::new(false),
            syncs: OfLoop::default(),
        }
    }
}

impl Promise {
    fn make(&self, commit: &Arc<Commit>) -> Option<HostId> {
        let mut promised = self.commit.borrow_mut();
        let promised = promised.get_or_insert_with(|| Arc::clone(commit));
        Arc::ptr_eq(promised, commit).then_some(self.host)
    }

    /// Whether syncs of the loop's tasks are waited for.
    pub(super) fn has_syncs(&self) -> bool {
        Arc::strong_count(&self.syncs) > 1
    }

    /// Whether there is a flush to be made.
    pub(super) fn stands(&self) -> bool {
        self.commit.borrow().is_some()
    }

    /// Makes the flush that was promised, if there is one, the loop is free to be away, and neither
    /// a timer is due meanwhile nor a flush of another file that the pool makes; else leaves it to
    /// the pool. True if it was made.
    ///
    /// Busy: tasks are ready. Those that have only yielded ask for syncs as well, which one flush
    /// serves all, so the promise waits for one turn of theirs.
    pub(super) fn keep(&self, is_busy: bool, is_free: bool, next_timer: Option<Instant>) -> bool {
        if is_busy && self.stands() && !self.has_waited.replace(true) {
            return false;
        }
        self.has_waited.set(false);
        let Some(commit) = self.commit.take() else {
            return false;
        };
        let is_soon = |at| at <= Instant::now() + LOOP_WAIT_MAX;
        let is_free = is_free && !next_timer.is_some_and(is_soon);
        commit.keep_promise(self.host, |took, of_this| {
            let others = Arc::strong_count(&self.syncs) - 1 > of_this;
            is_free && !others && commit.has_little() && loop_flushes(took)
        })
    }
}

impl Loop<'_> {
    /// The task that is polled, if this is its waker.
    #[inline]
    pub(super) fn polled_task(&self, waker: &Waker) -> Option<u32> {
        let (task, data, table) = self.polled.get();
        let is_it = std::ptr::eq(waker.data(), data) && std::ptr::eq(waker.vtable(), table);
        is_it.then_some(task)
    }
}
