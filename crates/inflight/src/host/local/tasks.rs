//! The tasks of a run loop, and the wakers that name them.

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
    let aborted = nested::with_entered(key.home, |this| this.tasks.borrow_mut().abort(key));
    contain(|| drop(aborted));
}

impl Tasks {
    /// No task but the main one.
    pub(super) fn new(remote: Arc<Remote>) -> Self {
        let mut tasks = Self {
            tasks: Vec::new(),
            free: Vec::new(),
            births: 0,
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

    /// Takes a task out to be polled; `None` for the main one.
    #[inline]
    pub(super) fn begin(&mut self, task: u32) -> (Option<Spawned>, Rc<Waker>) {
        let task = &mut self.tasks[to_usize(task)];
        task.is_ready = false;
        (task.future.take(), Rc::clone(&task.waker))
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
    fn abort(&mut self, key: TaskKey) -> Option<Spawned> {
        let place = self.tasks.get_mut(to_usize(key.task))?;
        if !place.lives || place.birth != key.birth {
            return None;
        }
        let future = place.future.take();
        match future.is_some() {
            true => self.remove(key.task),
            false => place.is_aborted = true,
        }
        future
    }

    /// Frees the place of a task that is over.
    pub(super) fn remove(&mut self, task: u32) {
        let place = &mut self.tasks[to_usize(task)];
        place.lives = false;
        place.is_ready = false;
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
