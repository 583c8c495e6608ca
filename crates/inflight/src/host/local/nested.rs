//! Loops that are nested. While an inner one has the thread, the tasks of those outside do not run,
//! but what they have begun may be awaited in the inner one or on another thread. Whoever does so
//! sends those loops messages, as from anywhere but home. So the inner one hears what is sent to
//! them and has their proactors turn.
//!
//! Their parts are not borrowed meanwhile: they run foreign code, the inner loop.
//!
//! A loop that a fork has copied into this process is none of these: what it has in flight is the
//! parent's, and a thread that is not here may have had its locks. A loop of the child's own that
//! is nested in it leaves it alone.

use std::rc::Rc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use super::{Home, Loop, Until, with_current};

/// The longest that an inner loop sleeps while something is in flight outside, and that this thread
/// is blocked in a loop: a completion there does not wake it.
const UNSEEN_MAX: Duration = Duration::from_millis(1);

/// What is said when an inner loop could only sleep for ever.
pub(super) const BARRED: &str = "this run loop waits for a task of a loop that it is nested in, \
     which cannot run meanwhile: await the task there, or spawn it in this one";

/// Counts those who keep a waker of a task for when a task outside is over.
pub(crate) type Barred = Rc<()>;

/// Sleeps until this thread is unparked, or shorter. In loops it does before what needs none of
/// their tasks: what this thread waits for may end there.
pub(crate) fn park() {
    let in_loops = with_current(|current| {
        let here = current.entered().filter(|this| !this.is_forked());
        here.for_each(|this| _ = this.serve());
    });
    match in_loops {
        Some(()) => thread::park_timeout(UNSEEN_MAX),
        None => thread::park(),
    }
}

/// Calls `body` with the loop of this number, if this thread is in it, however deep.
pub(super) fn with_entered<R>(home: Home, body: impl FnOnce(&Loop<'static>) -> R) -> Option<R> {
    with_current(|current| {
        let of_home = |this: &&Loop<'_>| this.remote.id == home;
        current.entered().find(of_home).map(body)
    })?
}

/// Whether this thread is in a loop, of whatever engine: it then polls nothing else meanwhile.
#[cfg(feature = "tokio")]
pub(crate) fn is_in_any() -> bool {
    with_current(|_| ()).is_some()
}

/// What is to be kept beside this waker until a task of the loop with this number is over: nothing,
/// unless the loop of this thread is nested in it, and the waker is of the task that is polled. Who
/// has made another one of that may wake the task for other reasons as well.
#[inline]
pub(crate) fn bars(home: Home, waker: &Waker) -> Option<Barred> {
    with_current(|current| {
        if current.remote.id == home {
            return None;
        }
        current.polled_task(waker)?;
        let is_outside = current.outers().any(|outer| outer.remote.id == home);
        is_outside.then(|| Rc::clone(&current.barred))
    })?
}

/// Has what is sent to any loop of this thread interrupt the innermost.
pub(super) fn hear_for_all() {
    with_current(|current| {
        // The loop that was nested in it may be the child's own.
        if current.is_forked() {
            return;
        }
        let alarm = current.alarm.borrow().clone();
        for outer in current.outers_here() {
            outer.remote.replace_alarm(alarm.clone());
        }
        current.remote.replace_alarm(alarm);
    });
}

impl Loop<'static> {
    /// This loop and those that it is nested in, the innermost first.
    fn entered(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.outers())
    }
}

impl Loop<'_> {
    /// The loops that this one is nested in, the innermost first.
    fn outers(&self) -> impl Iterator<Item = &Loop<'static>> {
        std::iter::successors(self.outer(), |outer| outer.outer())
    }

    /// Those of them that are not of the process that this one was forked from.
    fn outers_here(&self) -> impl Iterator<Item = &Loop<'static>> {
        self.outers().filter(|outer| !outer.is_forked())
    }

    /// Does for the loops outside what needs no task of theirs. Returns how long this one may sleep
    /// then; and, if it is free, whether it would sleep for ever unless something is heard.
    #[inline]
    pub(super) fn serve_outer(&self, is_free: bool) -> (Option<Duration>, bool) {
        match self.outer {
            None => (self.until_timer(), false),
            Some(_) => self.serve_all_outer(is_free),
        }
    }

    #[cold]
    fn serve_all_outer(&self, is_free: bool) -> (Option<Duration>, bool) {
        let mut limit = self.outers_here().filter_map(Loop::serve).min();
        if !self.ready.borrow().is_empty() {
            limit = Some(Duration::ZERO);
        }
        // What was told outside may have begun something here, and set a timer.
        let is_free = is_free && self.cells.borrow().is_idle();
        match (limit, self.until_timer()) {
            (Some(limit), Some(until)) => (Some(limit.min(until)), false),
            (None, None) if is_free && self.count_barred() > 0 => {
                // Who else has a waker may drop it without a word.
                (Some(UNSEEN_MAX), self.is_barred())
            }
            (limit, until) => (limit.or(until), false),
        }
    }

    /// Does what needs no task of this loop. Returns how long whoever has the thread may sleep
    /// then, if not until something is heard.
    fn serve(&self) -> Option<Duration> {
        let mut limit = (!self.hear(true)).then_some(Duration::ZERO);
        self.ring_timers();
        // Whoever was told may have forked.
        if self.is_forked() {
            return limit;
        }
        self.hand_over();
        self.take_all_shared();
        if !self.cells.borrow().is_idle() {
            // Nobody waits here for what no thread can be had for.
            self.lease.borrow_mut().proactor().make_one();
            self.turn_proactor(Until::Completions(0));
            limit = limit.or(Some(UNSEEN_MAX));
        }
        self.deliver();
        if !self.is_forked() {
            self.look_for_news();
        }
        [limit, self.until_timer()].into_iter().flatten().min()
    }

    fn count_barred(&self) -> usize {
        let own = 1;
        Rc::strong_count(&self.barred) - own
    }

    /// Whether all that could wake a task of this loop is tasks outside. Right only if nothing is
    /// in flight and there is no timer, and until something is heard.
    fn is_barred(&self) -> bool {
        self.tasks.borrow().wakers() == self.count_barred()
    }
}
