//! Closing a file, and being told how it went.
//!
//! A file is closed when nobody needs its descriptors any more: operations in flight whose futures
//! have been dropped do. So the descriptors go to a [`Closer`] from wherever the last of them
//! ends, and it has a thread of the pool close them. That holds for a file that was just dropped
//! as well: whoever serves it may be asked when it is closed, and the kernel may wait for a sync
//! of it until then.

use std::future::{Future, IntoFuture};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::calls::forked;
use super::engine::Engine;
use super::file::File;
use super::handle::{Closes, Handle};
use super::open::close;
use super::short;
use crate::backend::threads::pool::{Pool, Run};
use crate::foreign::{clone_waker, contain};
use crate::fork;
use crate::host::at_once::{Yielded, count_at_once};
use crate::host::local;
use crate::policy::Short;
use crate::sync::lock;

/// Closes a file. Made by [`File::close`]. It yields `io::Result<()>`.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run; dropping it closes without telling"]
pub struct Close {
    pub(super) file: File,
}

impl Close {
    /// Closes the file and blocks until it is closed, and until then for the operations in flight
    /// on it whose futures have been dropped.
    ///
    /// In a run loop the tasks do not run meanwhile. What the loop has in flight goes on; its
    /// completions are looked for every millisecond.
    ///
    /// Not for what a thread of the library calls, as a waker, or the drop of a buffer: it may have
    /// to wait for what this thread would do next.
    ///
    /// # Errors
    ///
    /// As for the operation, see [`File::close`].
    pub fn wait(self) -> io::Result<()> {
        let (handle, engine) = self.file.into_parts();
        if engine.shared().is_forked() {
            return Err(forked());
        }
        let handle = match Arc::try_unwrap(handle) {
            Ok(handle) => return close_all(handle.into_fds()),
            Err(handle) => handle,
        };
        block_on(Closing::new(handle, engine))
    }
}

impl IntoFuture for Close {
    type Output = io::Result<()>;
    type IntoFuture = Closing;

    fn into_future(self) -> Closing {
        let (handle, engine) = self.file.into_parts();
        Closing::new(handle, engine)
    }
}

/// A file that is being closed. Made by `.await` on a [`Close`].
///
/// # Cancellation
///
/// Dropping it lets the closing go on; dropping it before it has been polled closes the file as
/// dropping the file does.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Closing {
    engine: Engine,
    stage: Stage,
    yielded: Yielded,
}

#[derive(Debug)]
enum Stage {
    Fresh(Arc<Handle>),
    Begun(Arc<Closer>),
    Over,
}

impl Closing {
    /// Whether it is still to be begun.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.stage, Stage::Fresh(_))
    }

    fn new(handle: Arc<Handle>, engine: Engine) -> Self {
        Self {
            engine,
            stage: Stage::Fresh(handle),
            yielded: Yielded::default(),
        }
    }

    /// The engine whose pool closes the file.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Closes the file here, if nobody else has it and that waits for nothing, or mostly not.
    fn close_here(&mut self) -> Option<io::Result<()>> {
        let Stage::Fresh(handle) = &mut self.stage else {
            return None;
        };
        Arc::get_mut(handle)?;
        match handle.closes() {
            Closes::AtOnce => {
                let closed = self.close_named()?;
                count_at_once(0);
                Some(closed)
            }
            Closes::Written => short::here(Short::Close, || self.close_named()),
            Closes::Waits | Closes::Asks => None,
        }
    }

    /// Closes the file here, if it has a name.
    fn close_named(&mut self) -> Option<io::Result<()>> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Fresh(handle) if handle.closes_at_once() => match Arc::try_unwrap(handle) {
                Ok(handle) => Some(close_all(handle.into_fds())),
                Err(_) => unreachable!("nobody else has it"),
            },
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Lets go of what is left.
    fn end(&mut self) {
        if let Stage::Begun(closer) = std::mem::replace(&mut self.stage, Stage::Over) {
            if self.engine.shared().is_forked() {
                // Whoever closes is in the parent, and may have held the lock.
                std::mem::forget(closer);
            } else {
                closer.leave();
            }
        }
    }
}

impl Future for Closing {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let shared = this.engine.shared();
        if shared.is_forked() {
            this.end();
            return Poll::Ready(Err(forked()));
        }
        if let Stage::Fresh(handle) = &this.stage {
            if this.yielded.must_yield(cx.waker()) {
                return Poll::Pending;
            }
            let closes = handle.closes();
            let pool = Arc::clone(shared.pool());
            if let Some(closed) = this.close_here() {
                return Poll::Ready(closed);
            }
            let closer = Arc::new(Closer::new(pool, closes));
            let begun = Stage::Begun(Arc::clone(&closer));
            if let Stage::Fresh(handle) = std::mem::replace(&mut this.stage, begun) {
                // Whoever drops the last handle hands the descriptors over; that may be this.
                handle.leave_to(closer);
            }
        }
        let Stage::Begun(closer) = &this.stage else {
            panic!("a future is not polled after it is ready");
        };
        match closer.poll(cx.waker()) {
            None => Poll::Pending,
            Some(result) => {
                this.end();
                Poll::Ready(result)
            }
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.end();
    }
}

/// What closes the descriptors of a file.
pub(super) struct Closer {
    pool: Arc<Pool>,
    closes: Closes,
    fork_generation: u32,
    state: Mutex<State>,
}

struct State {
    fds: [Option<OwnedFd>; 3],
    result: Option<io::Result<()>>,
    waker: Option<Waker>,
}

impl Closer {
    fn new(pool: Arc<Pool>, closes: Closes) -> Self {
        let state = State {
            fds: [None, None, None],
            result: None,
            waker: None,
        };
        Self {
            pool,
            closes,
            fork_generation: fork::generation(),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Has the descriptors closed, which nobody needs any more. This may be a driver, so it is
    /// done elsewhere.
    pub(super) fn take_over(self: Arc<Self>, fds: [Option<OwnedFd>; 3]) {
        if self.fork_generation != fork::generation() {
            // Nobody is to be told: whoever closed the file is in the parent.
            return drop(fds);
        }
        self.lock().fds = fds;
        if self.pool.give(Arc::clone(&self) as _).is_err() {
            // There is no other thread; dropping the descriptors would close them here as well.
            self.run();
        }
    }

    /// The result, if it has come; else the waker is kept.
    fn poll(&self, waker: &Waker) -> Option<io::Result<()>> {
        let waker = clone_waker(waker);
        let mut state = self.lock();
        let result = state.result.take();
        let unused = match result {
            None => state.waker.replace(waker),
            Some(_) => Some(waker),
        };
        drop(state);
        // A panic would lose the result.
        contain(|| drop(unused));
        result
    }

    fn leave(&self) {
        let waker = self.lock().waker.take();
        drop(waker);
    }
}

impl Run for Closer {
    fn run(self: Arc<Self>) {
        let fds = std::mem::take(&mut self.lock().fds);
        let result = match self.closes {
            Closes::Written => short::in_pool(Short::Close, || close_all(fds)),
            Closes::AtOnce | Closes::Waits | Closes::Asks => close_all(fds),
        };
        let mut state = self.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            contain(|| waker.wake());
        }
    }

    fn may_wait_for_ever(&self) -> bool {
        self.closes == Closes::Asks
    }
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Closer")
    }
}

/// Closes a file that has been dropped, when the last operation that was in flight on it is over:
/// here, if that waits for nothing. Nobody is told.
pub(super) fn close_aside(handle: Handle) {
    let closes = handle.closes();
    let may_be_at_once = matches!(closes, Closes::AtOnce | Closes::Written);
    let is_at_once = may_be_at_once && handle.closes_at_once();
    if !is_at_once
        && !handle.has_closer()
        && let Some(pool) = handle.pool()
    {
        handle.leave_to(Arc::new(Closer::new(pool, closes)));
    }
}

/// Closes all of them; the first error counts.
fn close_all(fds: [Option<OwnedFd>; 3]) -> io::Result<()> {
    let results = fds.map(|fd| fd.map_or(Ok(()), close));
    results.into_iter().collect()
}

/// Runs a future that another thread brings to its end, or a loop that this one is in.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => local::park(),
        }
    }
}
