//! The tasks of a run loop, and the wakers that name them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Wake, Waker};

use super::remote::Remote;
use super::{Home, nested};
use crate::backend::threads::execute::to_usize;
use crate::foreign::contain;

/// The future that the loop was entered with is task 0; it lives on the stack.
pub(super) const MAIN: u32 = 0;

pub(crate) type Spawned = Pin<Box<dyn Future<Output = ()>>>;

/// See the module.
pub(super) struct Tasks {
    tasks: Vec<Task>,
    free: Vec<u32>,
    /// How many have been spawned.
    births: u64,
    /// Entries in the queue of those that are ready which stand for nobody: their tasks are over.
    stale: usize,
    remote: Arc<Remote>,
}

/// A task of a loop, as its handle remembers it. Others may have its place later.
#[derive(Clone, Copy)]
pub(crate) struct TaskKey {
    pub(crate) home: Home,
    pub(super) task: u32,
    birth: u64,
}

struct Task {
    /// Absent while it is polled, and when the place is free.
    future: Option<Spawned>,
    /// Which one it is of all that have been spawned.
    birth: u64,
    /// Whether its future is to be dropped when the poll that runs is over.
    is_aborted: bool,
    waker: Rc<Waker>,
    caller: Arc<Caller>,
    /// Whether it waits to be polled.
    is_ready: bool,
    /// Whether the place is taken.
    lives: bool,
}

/// What a waker of a task refers to. It may be anywhere, at any time.
struct Caller {
    remote: Arc<Remote>,
    task: u32,
    /// Whether another thread has woken the task and the loop has not seen it.
    is_woken: AtomicBool,
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !super::wake_here(self.remote.id, self.task)
            && !self.is_woken.swap(true, Ordering::AcqRel)
        {
            self.remote.wake(self.task);
        }
    }
}

/// Drops the future of a task, or has it dropped when the poll of it that runs is over. A task that
/// is over, or whose loop this thread is no longer in, has none.
pub(crate) fn abort(key: TaskKey) {
    let aborted = nested::with_entered(key.home, |this| {
        let ready = &mut this.ready.borrow_mut();
        this.tasks.borrow_mut().abort(key, ready)
    });
    contain(|| drop(aborted));
}

impl Tasks {
    /// No task but the main one.
    pub(super) fn new(remote: Arc<Remote>) -> Self {
        let mut tasks = Self {
            tasks: Vec::new(),
            free: Vec::new(),
            births: 0,
            stale: 0,
            remote,
        };
        tasks.place();
        tasks
    }

    /// A place for a task. A place keeps its waker: one that is left over from the task before
    /// wakes the next for nothing, which does no harm.
    fn place(&mut self) -> u32 {
        if let Some(task) = self.free.pop() {
            self.tasks[to_usize(task)].lives = true;
            return task;
        }
        let task = u32::try_from(self.tasks.len()).expect("fewer tasks than a u32 counts");
        let remote = Arc::clone(&self.remote);
        let caller = Arc::new(Caller {
            remote,
            task,
            is_woken: AtomicBool::new(false),
        });
        self.tasks.push(Task {
            future: None,
            birth: 0,
            is_aborted: false,
            waker: Rc::new(Waker::from(Arc::clone(&caller))),
            caller,
            is_ready: false,
            lives: true,
        });
        task
    }

    /// Adds a task, which is to be polled.
    pub(super) fn insert(&mut self, future: Spawned) -> TaskKey {
        let task = self.place();
        self.births += 1;
        let place = &mut self.tasks[to_usize(task)];
        place.future = Some(future);
        place.birth = self.births;
        place.is_ready = true;
        TaskKey {
            home: self.remote.id,
            task,
            birth: self.births,
        }
    }

    /// Marks a task as to be polled; false when it is already, or is no more.
    #[inline]
    pub(super) fn wake(&mut self, task: u32) -> bool {
        let Some(task) = self.tasks.get_mut(to_usize(task)) else {
            return false;
        };
        let wakes = task.lives && !task.is_ready;
        task.is_ready |= wakes;
        wakes
    }

    /// Takes a task that comes out of the queue to be polled; the main one has no future here.
    /// `None` if that entry was of a task which is over: there may be another one in its place.
    #[inline]
    pub(super) fn begin(&mut self, task: u32) -> Option<(Option<Spawned>, Rc<Waker>)> {
        let task = &mut self.tasks[to_usize(task)];
        if !task.is_ready {
            self.stale -= 1;
            return None;
        }
        task.is_ready = false;
        Some((task.future.take(), Rc::clone(&task.waker)))
    }

    /// As [`Tasks::wake`], for a task that another thread has woken.
    pub(super) fn wake_from_afar(&mut self, task: u32) -> bool {
        if let Some(task) = self.tasks.get(to_usize(task)) {
            // Who finds that the task is woken already sends nothing, so what it has done before is
            // to be seen by the poll that comes now: a store would not see it.
            task.caller.is_woken.swap(false, Ordering::AcqRel);
        }
        self.wake(task)
    }

    /// Puts a task back that is not over. Returns the future of one that has been aborted in this
    /// poll, to be dropped outside the borrow; its place is free.
    #[inline]
    pub(super) fn put_back(&mut self, task: u32, future: Spawned) -> Option<Spawned> {
        let place = &mut self.tasks[to_usize(task)];
        if !place.is_aborted {
            place.future = Some(future);
            return None;
        }
        self.remove(task);
        Some(future)
    }

    /// Takes a task away that is not over, and returns its future, to be dropped outside the
    /// borrow. One that is polled right now goes when that poll is over.
    fn abort(&mut self, key: TaskKey, ready: &mut VecDeque<u32>) -> Option<Spawned> {
        let place = self.tasks.get_mut(to_usize(key.task))?;
        if !place.lives || place.birth != key.birth {
            return None;
        }
        let future = place.future.take();
        match future.is_some() {
            true => {
                self.remove(key.task);
                self.sift(ready);
            }
            false => place.is_aborted = true,
        }
        future
    }

    /// Keeps stale entries from being more than the others: a task may spawn and abort without an
    /// end before the loop gets to them.
    fn sift(&mut self, ready: &mut VecDeque<u32>) {
        if self.stale <= ready.len() / 2 {
            return;
        }
        // One entry for each that is ready: others are of tasks that had its place before.
        ready.retain(|&task| {
            let place = self.tasks.get_mut(to_usize(task));
            place.is_some_and(|place| std::mem::take(&mut place.is_ready))
        });
        for &task in &*ready {
            self.tasks[to_usize(task)].is_ready = true;
        }
        self.stale = 0;
    }

    /// Frees the place of a task that is over.
    pub(super) fn remove(&mut self, task: u32) {
        let place = &mut self.tasks[to_usize(task)];
        place.lives = false;
        self.stale += usize::from(std::mem::take(&mut place.is_ready));
        place.is_aborted = false;
        self.free.push(task);
    }

    /// Any task, to be dropped: the loop ends, and the places of those before are no more.
    pub(super) fn pop(&mut self) -> Option<Spawned> {
        self.free.clear();
        loop {
            if let Some(future) = self.tasks.pop()?.future {
                return Some(future);
            }
        }
    }

    /// Whether there is no place that could have a task, as after [`Tasks::pop`].
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// How many wakers of its tasks there are beside those of the loop.
    pub(super) fn wakers(&self) -> usize {
        let own = 2;
        let of_task = |task: &Task| Arc::strong_count(&task.caller) - own;
        let wakers = self.tasks.iter().map(of_task).sum();
        // What the others have done with theirs until they dropped them is seen after this.
        fence(Ordering::Acquire);
        wakers
    }

    /// How many places there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.tasks.len()).expect("fewer tasks than a u32 counts")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backend::alarm::{Alarm, Event};

    /// Tasks of no loop, and the queue of those that are ready.
    struct Loopless {
        tasks: Tasks,
        ready: VecDeque<u32>,
    }

    impl Loopless {
        fn new() -> Self {
            let event = Event::new().expect("a descriptor is left");
            let remote = Remote::register(Alarm::Event(Arc::new(event)));
            Self {
                tasks: Tasks::new(remote),
                ready: VecDeque::new(),
            }
        }

        fn spawn(&mut self) -> TaskKey {
            let key = self.tasks.insert(Box::pin(std::future::pending()));
            self.ready.push_back(key.task);
            key
        }

        fn abort(&mut self, key: TaskKey) {
            assert!(self.tasks.abort(key, &mut self.ready).is_some());
        }

        /// Polls those that are ready, none of which gets over; one as often as it is polled.
        fn poll(&mut self) -> Vec<u32> {
            let mut polled = Vec::new();
            for task in std::mem::take(&mut self.ready) {
                let Some((future, _)) = self.tasks.begin(task) else {
                    continue;
                };
                let future = future.expect("it is not the main one");
                assert!(self.tasks.put_back(task, future).is_none());
                polled.push(task);
            }
            polled.sort_unstable();
            polled
        }
    }

    const MANY: usize = 1000;

    #[test]
    fn tasks_that_are_aborted_at_once_leave_nothing_in_the_queue() {
        let mut loopless = Loopless::new();
        for _ in 0..MANY {
            let key = loopless.spawn();
            loopless.abort(key);
        }
        assert!(loopless.ready.is_empty() && loopless.ready.capacity() < 8);
        let key = loopless.spawn();
        assert_eq!(loopless.poll(), [key.task]);
    }

    /// Where one is aborted the next one is spawned, so that stale entries name tasks that live.
    #[test]
    fn stale_entries_are_no_more_than_the_others_and_nobody_is_polled_twice() {
        let mut loopless = Loopless::new();
        let mut living: Vec<_> = (0..10).map(|_| loopless.spawn()).collect();
        let mut longest = 0;
        for round in 0..MANY {
            let at = round % living.len();
            loopless.abort(living[at]);
            living[at] = loopless.spawn();
            longest = longest.max(loopless.ready.len());
        }
        assert!(longest <= 2 * living.len(), "{longest}");
        let mut expected: Vec<_> = living.iter().map(|key| key.task).collect();
        expected.sort_unstable();
        assert_eq!(loopless.poll(), expected);
        assert_eq!(loopless.tasks.stale, 0);
        // Those that wait to be woken have no entry.
        living.into_iter().for_each(|key| loopless.abort(key));
        assert_eq!((loopless.tasks.stale, loopless.poll()), (0, vec![]));
    }
}
