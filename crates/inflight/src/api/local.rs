//! The run loop of a thread: tasks, and how it is entered.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::engine::Engine;
use super::timeout::Sleep;
use crate::foreign::contain;
use crate::host::local;

/// Runs a future to its end on this thread, with the tasks it spawns, on the global engine.
///
/// The loop waits where the operations complete, so nothing has to be woken: it is the way of
/// least cost for a program that has a thread for each core. Tasks may be `!Send`. Tasks that are
/// left when the future is ready are dropped, and what they have in flight is waited for, without
/// the deadline of [`Builder::drain_for`](crate::Builder::drain_for): the loop waits on a ring of
/// this thread, which cannot be left to anybody.
///
/// **So it returns only when everything that was begun in it has completed**, also what was
/// dropped, or was late ([`Awaited::timeout`](crate::Awaited::timeout)); on a device that does not
/// answer it does not return. Where this thread is to go on in time, await with the limit on
/// another executor (tokio, or a `block_on` without a runtime): a driver thread then keeps what is
/// late.
///
/// A loop that has one task to poll, nothing in flight and no timer reads what was in the page
/// cache until now by calls that may wait, which are cheaper; not where they are limited by
/// [`Awaited::timeout`](crate::Awaited::timeout) or part of a batch. If the data has left the page
/// cache, the loop blocks in one such read, and what other threads wake in it is polled that much
/// later, and 1 to 10 ms at most. So a thread that runs a loop must not serve the device that its
/// files are on (NBD, ublk).
///
/// The loop is one of the [global engine](crate::Engine::global). Operations on files of an engine
/// of your own go to that engine's drivers: run those by [`Engine::run`](crate::Engine::run), whose
/// loop does the work itself.
///
/// Loops may be nested. While an inner one runs, the tasks of the outer do not, so their
/// [`JoinHandle`]s are never ready in there. A task of the inner loop that awaits one itself, where
/// nothing else can wake that loop, is refused with a panic of the loop. One that awaits it by way
/// of a combinator with wakers of its own (`FuturesUnordered`, a large `join_all`) is not, because
/// nobody can tell who else has those: it waits for ever. Operations that began in the outer loop
/// can be awaited in the inner, which looks for their completions every millisecond while it
/// sleeps.
///
/// A task must not block by other means until a future of its own loop is ready (another runtime's
/// `block_on`): that never happens. [`Operation::wait`](crate::Operation::wait) is fine, it needs
/// no loop.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{fs::File, local};
///
/// # let path = std::env::current_exe()?;
/// let bytes = local::run(async {
///     let file = std::rc::Rc::new(File::open(path)?);
///     let mut tasks = Vec::new();
///     for block in 0..4 {
///         let file = file.clone();
///         tasks.push(local::spawn(async move {
///             file.read_at(vec![0; 512], block * 512).await.0
///         }));
///     }
///     let mut bytes = 0;
///     for task in tasks {
///         bytes += task.await?;
///     }
///     std::io::Result::Ok(bytes)
/// })??;
/// assert_eq!(bytes, 2048);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`crate::Forked`] in a forked child; [`crate::SetupError`] if what is demanded cannot be had.
///
/// # Panics
///
/// When the future panics. A panic of a task goes to who awaits its handle. In a loop that is
/// nested in another, if all that it waits for, without wakers in between, is tasks of that one.
///
/// # Aborts
///
/// When it ends before a loop that was entered on this thread later, as where stackful coroutines
/// take turns: that one would go on with a loop around it that is gone.
pub fn run<F: Future>(future: F) -> io::Result<F::Output> {
    Engine::global()?.run(future)
}

/// Adds a task to the run loop of this thread. It goes on until it is over, the loop ends, or
/// [`JoinHandle::abort`] is called.
///
/// # Panics
///
/// Outside a run loop.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let join = Rc::new(RefCell::new(Join::Running(None)));
    let teller = Teller(Rc::clone(&join));
    let task = async move {
        let output = Caught(Some(Box::pin(future))).await;
        teller.tell(Join::Over(output));
    };
    match local::spawn(Box::pin(task)) {
        Ok(task) => JoinHandle { join, task },
        Err(_) => panic!("spawned outside a run loop: enter one with inflight::local::run"),
    }
}

/// Sleeps; in a run loop by its own timers, elsewhere by those of the global engine.
///
/// # Errors
///
/// At once, if the global engine cannot be made.
pub fn sleep(at_least: Duration) -> io::Result<Sleep> {
    Ok(Sleep::new(Engine::global()?, at_least))
}

/// Lets the other tasks that are ready have their turn.
///
/// # Cancellation
///
/// Dropping it does nothing; the task may be polled once more than it needs.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut has_yielded = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Who is told of the end of a task.
struct Waiter {
    waker: Waker,
    /// If it is in a loop that keeps the task from running.
    _barred: Option<local::Barred>,
}

enum Join<T> {
    Running(Option<Waiter>),
    Over(thread::Result<T>),
    /// The task was dropped with its loop.
    Dropped,
    Taken,
}

/// Tells the [`JoinHandle`] how its task has ended, also when it is dropped. Foreign code in there
/// must not end the loop.
struct Teller<T>(Rc<RefCell<Join<T>>>);

impl<T> Teller<T> {
    fn tell(&self, end: Join<T>) {
        if !matches!(*self.0.borrow(), Join::Running(_)) {
            return;
        }
        if let Join::Running(Some(waiter)) = self.0.replace(end) {
            contain(|| waiter.waker.wake());
        }
        if Rc::strong_count(&self.0) == 1 {
            // Nobody takes the result, so it is dropped here.
            let unwanted = self.0.replace(Join::Taken);
            contain(|| drop(unwanted));
        }
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        self.tell(Join::Dropped);
    }
}

/// The result of a task. Made by [`spawn`].
///
/// # Cancellation
///
/// Dropping it lets the task go on; [`JoinHandle::abort`] ends it.
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
    task: local::TaskKey,
}

impl<T> JoinHandle<T> {
    /// Ends the task: its future is dropped before this returns, and never polled again.
    ///
    /// If it is being polled, because the task aborts itself or has entered a loop in which it is
    /// aborted, it goes on to where it next waits, and is dropped there. Operations that it has in
    /// flight are left behind as by any future that is dropped ([`Pending`](crate::Pending)). Of a
    /// task that is over the result is dropped; where its loop has ended, that is all.
    ///
    /// What the future or the result panics with when it is dropped goes no further.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::{future::pending, rc::Rc};
    /// use inflight::local;
    ///
    /// local::run(async {
    ///     let shared = Rc::new(());
    ///     let its = Rc::clone(&shared);
    ///     let task = local::spawn(async move {
    ///         let _its = its;
    ///         pending::<()>().await;
    ///     });
    ///     local::yield_now().await;
    ///     task.abort();
    ///     assert_eq!(Rc::strong_count(&shared), 1); // it has let go
    /// })
    /// # }
    /// ```
    pub fn abort(self) {
        local::abort(self.task);
        contain(|| drop(self.join));
    }
}

impl<T> std::fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinHandle")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    /// # Panics
    ///
    /// With the panic of the task, if it has panicked, and if the task was dropped with its loop.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Cloning a waker is foreign code: nothing is borrowed meanwhile.
        let is_running = matches!(*self.join.borrow(), Join::Running(_));
        let waiter = is_running.then(|| Waiter {
            waker: cx.waker().clone(),
            _barred: local::bars(self.task.home, cx.waker()),
        });
        let mut join = self.join.borrow_mut();
        if let Join::Running(place) = &mut *join {
            let before = std::mem::replace(place, waiter);
            drop(join);
            drop(before);
            return Poll::Pending;
        }
        let over = std::mem::replace(&mut *join, Join::Taken);
        drop(join);
        match over {
            Join::Over(Ok(output)) => Poll::Ready(output),
            Join::Over(Err(panic)) => resume_unwind(panic),
            Join::Dropped => panic!("the run loop of this task has ended before it"),
            Join::Running(_) | Join::Taken => panic!("a future is not polled after it is ready"),
        }
    }
}

/// A future whose panics are its result, also those when it is dropped after it has completed.
struct Caught<F>(Option<Pin<Box<F>>>);

impl<F: Future> Future for Caught<F> {
    type Output = thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.0.as_mut().expect("polled until it is ready");
        let output = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        let future = self.0.take();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(future)));
        Poll::Ready(match dropped {
            Ok(()) => output,
            Err(panic) => {
                contain(|| drop(output));
                Err(panic)
            }
        })
    }
}
