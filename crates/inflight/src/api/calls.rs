//! Operations that are a few system calls which always block: opening, truncating, renaming. They
//! have no request for a backend; who waits for them makes the calls, and who awaits them has a
//! thread of the engine's pool make them (`docs/design/calls.md`).
//!
//! A call is one allocation, the [`Desk`], which its future and the pool share. No foreign code
//! runs under its lock: wakers are woken and dropped, and results are dropped, after it has been
//! released. Closing a file waits for more than a thread, and is in [`super::close`].

use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;

use super::engine::Engine;
use super::file::File;
use crate::backend::threads::pool::Run;
use crate::error::{Forked, NoThread, SetupError};
use crate::foreign::{clone_waker, contain};
use crate::host::at_once::{Yielded, count_at_once};
use crate::host::shared::Shared;
use crate::sync::lock;

/// A call that is awaited: an operation that blocks, made by a thread of the engine's pool; or
/// where it is polled, if it is known to wait for nothing, or for nobody but a device and mostly
/// not.
///
/// Nothing happens until it is polled for the first time. At most as many calls are made at the
/// same time as the pool has threads but one ([`crate::Builder::threads`]), and opens and others
/// that may wait for somebody else (a FIFO's other end, a server) leave one thread in eight to the
/// rest; the others wait their turn, also behind some that hang. A future that is dropped, or timed
/// out, gives no thread back. It may be polled and dropped on any thread, by any runtime.
///
/// # Errors
///
/// Those of the operation; [`crate::Forked`] in a forked child; [`crate::NoThread`] if the pool
/// has no thread and cannot start one, or none but the one that is left to the rest.
///
/// # Cancellation
///
/// Dropping it before it has been polled does nothing. Later, a call that no thread has taken is
/// taken back. One that a thread is making goes on to its end, and its result is dropped: a file
/// that was being opened is closed, but it may have been created or emptied.
#[must_use = "futures do nothing unless they are polled"]
pub struct Call<'f, T> {
    stage: Stage<T>,
    yielded: Yielded,
    /// An operation on a file borrows it until it has completed, as all do.
    _file: PhantomData<&'f File>,
}

enum Stage<T> {
    /// There is no engine to make the call.
    Refused(SetupError),
    Fresh(Engine, Arc<dyn Answering<T>>),
    /// The pool has it under this number.
    Given(Engine, Arc<dyn Answering<T>>, u64),
    Over,
}

/// What a call does.
pub(super) trait Make: Send + 'static {
    type Made: Send + 'static;

    /// As [`Run::may_wait_for_ever`].
    fn may_wait_for_ever(&self) -> bool {
        false
    }

    /// Does it, if it is known to wait for nothing.
    fn at_once(&self, _shared: &Shared) -> Option<io::Result<Self::Made>> {
        None
    }

    /// Does it.
    fn make(self) -> io::Result<Self::Made>;
}

/// What polling a call for the first time has led to.
enum Started<T> {
    Given(Stage<T>),
    Made(io::Result<T>),
}

impl<T: 'static> Call<'_, T> {
    /// A call that `make` makes, and whose result `finish` makes of what it yields, where it is
    /// awaited.
    pub(super) fn new<M: Make>(
        engine: Result<Engine, SetupError>,
        make: M,
        finish: fn(M::Made, &Engine) -> T,
    ) -> Self {
        let stage = match engine {
            Ok(engine) => Stage::Fresh(engine, Desk::of(make, finish)),
            Err(refusal) => Stage::Refused(refusal),
        };
        Self {
            stage,
            yielded: Yielded::default(),
            _file: PhantomData,
        }
    }
}

impl<T> Call<'_, T> {
    /// The engine that makes the call, if there is one and the call is not over.
    pub(super) fn engine(&self) -> Option<&Engine> {
        match &self.stage {
            Stage::Fresh(engine, _) | Stage::Given(engine, _, _) => Some(engine),
            Stage::Refused(_) | Stage::Over => None,
        }
    }

    fn start(
        engine: Engine,
        desk: Arc<dyn Answering<T>>,
        waker: &Waker,
    ) -> Result<Started<T>, io::Error> {
        if engine.shared().is_forked() {
            return Err(forked());
        }
        if let Some(made) = desk.at_once(&engine) {
            count_at_once(0);
            return Ok(Started::Made(made));
        }
        // Before the pool has it, so that there is somebody to be told.
        let answer = desk.poll(waker, &engine);
        debug_assert!(answer.is_none(), "nobody has made the call");
        let call: Arc<dyn Run> = Arc::clone(&desk) as _;
        match engine.shared().pool().give(call) {
            Ok(number) => Ok(Started::Given(Stage::Given(engine, desk, number))),
            Err(cause) => Err(no_thread(cause)),
        }
    }
}

/// In a forked child.
#[cold]
pub(super) fn forked() -> io::Error {
    io::Error::other(Forked)
}

#[cold]
fn no_thread(cause: io::Error) -> io::Error {
    let cause = Arc::new(cause);
    NoThread { cause }.into()
}

impl<T> Future for Call<'_, T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let this = &mut *self;
        if let Stage::Given(engine, desk, _) = &this.stage {
            let answer = match engine.shared().is_forked() {
                true => Some(Err(forked())),
                false => desk.poll(cx.waker(), engine),
            };
            let Some(answer) = answer else {
                return Poll::Pending;
            };
            this.end();
            return Poll::Ready(answer);
        }
        match std::mem::replace(&mut this.stage, Stage::Over) {
            fresh @ Stage::Fresh(..) if this.yielded.must_yield(cx.waker()) => {
                this.stage = fresh;
                Poll::Pending
            }
            Stage::Fresh(engine, desk) => match Self::start(engine, desk, cx.waker()) {
                Ok(Started::Given(given)) => {
                    this.stage = given;
                    Poll::Pending
                }
                Ok(Started::Made(made)) => Poll::Ready(made),
                Err(refusal) => Poll::Ready(Err(refusal)),
            },
            Stage::Refused(refusal) => Poll::Ready(Err(refusal.into())),
            Stage::Given(..) | Stage::Over => panic!("a future is not polled after it is ready"),
        }
    }
}

impl<T> Call<'_, T> {
    /// Whether it is still to be begun.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.stage, Stage::Fresh(..))
    }

    /// Lets go of the call, wherever it is.
    fn end(&mut self) {
        let Stage::Given(engine, desk, number) = std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return;
        };
        if engine.shared().is_forked() {
            // The thread that makes it is the parent's, and it may have held the lock.
            std::mem::forget(desk);
            return;
        }
        // Outside the pool's lock, what the call owns is dropped.
        if engine.shared().pool().take_back(number).is_none() {
            desk.leave();
        }
    }
}

impl<T> Drop for Call<'_, T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> fmt::Debug for Call<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Refused(_) => "Refused",
            Stage::Fresh(..) => "Fresh",
            Stage::Given(..) => "Given",
            Stage::Over => "Over",
        };
        f.debug_struct("Call")
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}

/// What the future of a call asks of it.
trait Answering<T>: Run {
    /// The result, if it is known to wait for nothing. Nobody else has the call yet.
    fn at_once(&self, engine: &Engine) -> Option<io::Result<T>>;

    /// The result, if it has come; else the waker is kept.
    fn poll(&self, waker: &Waker, engine: &Engine) -> Option<io::Result<T>>;

    /// The future is gone.
    fn leave(&self);
}

/// What the future of a call and the pool share.
struct Desk<M: Make, T> {
    state: Mutex<State<M>>,
    finish: fn(M::Made, &Engine) -> T,
}

struct State<M: Make> {
    progress: Progress<M>,
    waker: Option<Waker>,
}

enum Progress<M: Make> {
    Ready(M),
    Running,
    Made(thread::Result<io::Result<M::Made>>),
    /// The future is gone, or has the result.
    Left,
}

impl<M: Make, T: 'static> Desk<M, T> {
    fn of(make: M, finish: fn(M::Made, &Engine) -> T) -> Arc<dyn Answering<T>> {
        let state = State {
            progress: Progress::Ready(make),
            waker: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            finish,
        })
    }
}

impl<M: Make, T> Desk<M, T> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.state)
    }
}

impl<M: Make, T> Run for Desk<M, T> {
    fn run(self: Arc<Self>) {
        let mut state = self.lock();
        let Progress::Ready(make) = std::mem::replace(&mut state.progress, Progress::Running)
        else {
            // A call is given to the pool once, so its future has just gone.
            state.progress = Progress::Left;
            return;
        };
        drop(state);
        let made = catch_unwind(AssertUnwindSafe(|| make.make()));
        let mut state = self.lock();
        if let Progress::Left = state.progress {
            drop(state);
            contain(|| drop(made));
            return;
        }
        state.progress = Progress::Made(made);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            contain(|| waker.wake());
        }
    }

    fn may_wait_for_ever(&self) -> bool {
        match &self.lock().progress {
            Progress::Ready(make) => make.may_wait_for_ever(),
            // It has been taken.
            Progress::Running | Progress::Made(_) | Progress::Left => false,
        }
    }
}

impl<M: Make, T> Answering<T> for Desk<M, T> {
    fn at_once(&self, engine: &Engine) -> Option<io::Result<T>> {
        let made = match &self.lock().progress {
            Progress::Ready(make) => make.at_once(engine.shared())?,
            Progress::Running | Progress::Made(_) | Progress::Left => return None,
        };
        Some(made.map(|made| (self.finish)(made, engine)))
    }

    fn poll(&self, waker: &Waker, engine: &Engine) -> Option<io::Result<T>> {
        let waker = clone_waker(waker);
        let mut state = self.lock();
        match std::mem::replace(&mut state.progress, Progress::Left) {
            Progress::Made(made) => {
                drop(state);
                // What was made has been taken: a panic would lose it.
                contain(|| drop(waker));
                let made = made.unwrap_or_else(|panic| resume_unwind(panic));
                Some(made.map(|made| (self.finish)(made, engine)))
            }
            other => {
                state.progress = other;
                let before = state.waker.replace(waker);
                drop(state);
                contain(|| drop(before));
                None
            }
        }
    }

    fn leave(&self) {
        let mut state = self.lock();
        let progress = std::mem::replace(&mut state.progress, Progress::Left);
        let waker = state.waker.take();
        drop(state);
        drop((progress, waker));
    }
}
