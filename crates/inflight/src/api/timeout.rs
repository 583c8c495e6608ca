//! Waiting for an operation no longer than so long, and sleeping.

use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::calls::Call;
use super::close::{Close, Closing};
use super::detach::Detach;
use super::engine::Engine;
use super::file::File;
use super::names::{MetadataOf, NameOp};
use super::open::Open;
use super::pending::{Pending, PendingBatch};
use super::upkeep::{Metadata, Truncate};
use crate::completion::Answer;
use crate::host::flight::Timer;
use crate::host::local::without_being_away;

/// An operation or a batch that is waited for until an instant. Made by [`Awaited::timeout`] and
/// [`Awaited::deadline`]. It yields what the operation yields in `Ok`, and [`Late`] when the time
/// has completed.
///
/// # Cancellation
///
/// As for the operation's own future: [`Pending`], [`PendingBatch`], [`Call`] or [`Closing`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Timeout<O: Awaited> {
    pending: Option<O::IntoFuture>,
    at: At,
    timer: Alarm,
}

/// When the time is over; from the first poll on if it is a duration.
#[derive(Clone, Copy, Debug)]
enum At {
    After(Duration),
    Instant(Instant),
}

/// The operation is late, and goes on. Whoever has this chooses: await it to get the result and
/// the buffer after all, or drop it and leave the buffer behind until the kernel lets go of it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # inflight::local::run(async {
/// use std::time::Duration;
/// use inflight::{Awaited, fs::File};
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let read = file.read_at(vec![0; 4096], 0).timeout(Duration::from_secs(1));
/// let (result, buf) = match read.await {
///     Ok(in_time) => in_time,
///     Err(late) => late.await,
/// };
/// assert!(result? <= buf.len());
/// # Ok(()) })?
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping it is dropping the future of the operation, which is documented there.
#[must_use = "the operation goes on: await it, or drop it on purpose"]
pub struct Late<O: Awaited>(O::IntoFuture);

impl<O: Awaited> IntoFuture for Late<O> {
    type Output = O::Output;
    type IntoFuture = O::IntoFuture;

    fn into_future(self) -> O::IntoFuture {
        self.0
    }
}

impl<B, O> Late<B>
where
    B: Awaited<IntoFuture = PendingBatch<O>>,
    O: Detach + IntoFuture<IntoFuture = Pending<O>>,
{
    /// Takes a late batch apart: what each operation yields that has completed by now, and each of
    /// the others by itself, late. In the order pushed.
    ///
    /// An operation that has completed has its result here, an error as well: a sync that has
    /// failed is told. A durable write ([`dsync`](crate::fs::WriteAt::dsync),
    /// [`then_sync`](crate::fs::WriteAt::then_sync)) has completed when it is durable, and late
    /// until then. One that is late can be awaited, and yields its result and its buffer then. What
    /// takes several steps (a write that is kept by a sync behind it, one of any range) begins the
    /// next one when the operation pushed last comes, or here: behind one that hangs it may be late
    /// though its device was not.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # inflight::local::run(async {
    /// use std::time::{Duration, Instant};
    /// use inflight::{Awaited, Batch, fs::File};
    ///
    /// # let path = std::env::current_exe()?;
    /// let file = File::open(path)?;
    /// let blocks: Batch<_> = (0..8).map(|n| file.read_at(vec![0; 512], 512 * n)).collect();
    /// let results = match blocks.deadline(Instant::now() + Duration::from_millis(5)).await {
    ///     Ok(all) => all.into_iter().map(Ok).collect(),
    ///     Err(late) => late.into_results(),
    /// };
    /// for (n, result) in results.into_iter().enumerate() {
    ///     match result {
    ///         Ok((result, _buf)) => println!("block {n}: {} bytes", result?),
    ///         // Its buffer is left behind.
    ///         Err(late) => println!("block {n}: {late}"),
    ///     }
    /// }
    /// # Ok(()) })?
    /// # }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Those that are late go on, each by itself. Dropping one is dropping the future of the
    /// operation ([`Pending`]): its buffer is kept until the kernel is done with it, and a write
    /// or sync has happened, or happens, or never will. A result that is dropped is no longer
    /// there, but a failed sync among them is remembered for its file
    /// ([`SyncFailed`](crate::SyncFailed)), as when the late batch is dropped whole.
    pub fn into_results(self) -> Vec<Result<<Pending<O> as Future>::Output, Late<O>>> {
        let results = without_being_away(|| self.0.into_results());
        let alone = |result: Result<_, _>| result.map_err(Late);
        results.into_iter().map(alone).collect()
    }
}

impl<O: Awaited> fmt::Debug for Late<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Late").field(&self.0).finish()
    }
}

impl<O: Awaited> fmt::Display for Late<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operation was not over in time; it goes on")
    }
}

impl<O: Awaited> Error for Late<O> {}

impl<O: Awaited> From<Late<O>> for io::Error {
    /// For those who leave the buffer behind: an error of the kind `TimedOut`.
    fn from(late: Late<O>) -> Self {
        Self::new(io::ErrorKind::TimedOut, late.to_string())
    }
}

/// What this crate asks of what is awaited with a limit; only its own types have it.
pub trait Limited: IntoFuture<IntoFuture: Unpin + fmt::Debug> + Sized {
    /// Whose timers are used. Where there is no engine, the first poll is the last.
    #[doc(hidden)]
    fn timed_by(future: &Self::IntoFuture) -> Option<&Engine>;

    /// Whether it is still to be begun. One that has been polled all the same has given way to
    /// other tasks, and has woken its own.
    #[doc(hidden)]
    fn is_fresh(future: &Self::IntoFuture) -> bool;
}

impl<O: Detach + IntoFuture<IntoFuture = Pending<O>>> Limited for O {
    fn timed_by(pending: &Pending<O>) -> Option<&Engine> {
        Some(pending.engine())
    }

    fn is_fresh(pending: &Pending<O>) -> bool {
        pending.is_fresh()
    }
}

/// What can be awaited, with a limit in time: every operation whose buffer is `'static`, a
/// [`Batch`] of them, the calls on files and names, as [`Open`], and the futures of all these.
///
/// Code for all of them asks for this trait alone. What they yield is `Output` of [`IntoFuture`]:
/// of an operation what [`wait`](crate::Operation::wait) yields, of a batch a vector of that in the
/// order pushed, and of a call what its page says.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # inflight::local::run(async {
/// use std::io;
/// use std::time::{Duration, Instant};
/// use inflight::{Awaited, Batch, fs::File};
///
/// /// The result, and how long it took.
/// async fn timed<O: Awaited>(op: O) -> (O::Output, Duration) {
///     let begun = Instant::now();
///     (op.await, begun.elapsed())
/// }
///
/// /// The result, unless it takes longer than a second: then the buffers are left behind.
/// async fn soon<O: Awaited>(op: O) -> io::Result<O::Output> {
///     Ok(op.timeout(Duration::from_secs(1)).await?)
/// }
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let ((result, buf), took) = timed(file.read_at(vec![0; 4096], 0)).await;
/// println!("{} bytes of {} in {took:?}", result?, buf.len());
/// let begun = file.read_at(vec![0; 512], 0).into_future();
/// assert!(soon(begun).await?.0? <= 512);
/// let batch: Batch<_> = (0..4).map(|n| file.read_at(vec![0; 512], 512 * n)).collect();
/// for (result, _buf) in soon(batch).await? {
///     result?;
/// }
/// # Ok(()) })?
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be awaited by this library",
    note = "what is awaited is an operation or a batch of them, and what it owns must be `Send` \
            and `'static`: a buffer that is borrowed is waited for with `wait()`"
)]
pub trait Awaited: Limited {
    /// Limits the wait to `at_most`, from the first poll on.
    ///
    /// I/O on a file cannot be cancelled, so a late operation goes on: see [`Late`]. Every
    /// operation is tried once before it counts as late, even if its time is up before its turn
    /// comes, so what needs no waiting is in time. Of a batch this holds for the first operations;
    /// later ones may not have been started.
    fn timeout(self, at_most: Duration) -> Timeout<Self> {
        Timeout::new(self.into_future(), At::After(at_most))
    }

    /// As [`Awaited::timeout`], until an instant.
    ///
    /// # Deadlines and depth
    ///
    /// What is late goes on and keeps its place at the device. Where more is in flight than the
    /// device serves within the deadline, everything that comes later is late as well, however
    /// early it is left behind. So keep what is in flight below that, by
    /// [`Builder::queue_depth`](crate::Builder::queue_depth) times the drivers, lanes or run loops
    /// of the engine, or by how much is asked for at a time. A disk of 10,000 reads a second serves
    /// 50 within 5 ms.
    ///
    /// Of a batch that is late, what came in time can be had without the rest:
    /// [`Late::into_results`].
    fn deadline(self, at: Instant) -> Timeout<Self> {
        Timeout::new(self.into_future(), At::Instant(at))
    }
}

impl<O: Limited> Awaited for O {}

/// Gives what is not an operation of a backend, and its future, the methods of [`Awaited`].
macro_rules! limited {
    ($([$($generics:tt)*] $operation:ty => $future:ty, |$this:ident| $engine:expr;)*) => {$(
        impl<$($generics)*> Limited for $operation {
            #[allow(clippy::needless_lifetimes, reason = "some futures have another one")]
            fn timed_by<'a>($this: &'a $future) -> Option<&'a Engine> {
                $engine
            }

            fn is_fresh(future: &$future) -> bool {
                future.is_fresh()
            }
        }
    )*};
}

limited! {
    [] Open => Call<'static, File>, |call| call.engine();
    [] NameOp => Call<'static, ()>, |call| call.engine();
    [] MetadataOf => Call<'static, Metadata>, |call| call.engine();
    ['f] Truncate<'f> => Call<'f, ()>, |call| call.engine();
    ['f, T] Call<'f, T> => Call<'f, T>, |call| call.engine();
    [] Close => Closing, |closing| Some(closing.engine());
    [] Closing => Closing, |closing| Some(closing.engine());
    [O: Detach] Pending<O> => Pending<O>, |pending| Some(pending.engine());
    [O: Detach] Batch<O> => PendingBatch<O>, |batch| batch.engine();
    [O: Detach] PendingBatch<O> => PendingBatch<O>, |batch| batch.engine();
}

impl<O: Awaited> Timeout<O> {
    fn new(pending: O::IntoFuture, at: At) -> Self {
        Self {
            timer: Alarm::of(O::timed_by(&pending)),
            pending: Some(pending),
            at,
        }
    }
}

impl<O: Awaited> Future for Timeout<O> {
    type Output = Result<O::Output, Late<O>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let pending = this
            .pending
            .as_mut()
            .expect("a future is not polled after it is ready");
        // Each time: what is to be made may be made at a later poll, and have several steps.
        if let Poll::Ready(output) = without_being_away(|| Pin::new(&mut *pending).poll(cx)) {
            this.pending = None;
            this.timer.cancel();
            return Poll::Ready(Ok(output));
        }
        let at = match this.at {
            At::Instant(at) => Some(at),
            // Beyond what the clock counts, there is no deadline.
            At::After(at_most) => Instant::now().checked_add(at_most),
        };
        let Some(at) = at else {
            return Poll::Pending;
        };
        this.at = At::Instant(at);
        if O::is_fresh(pending) {
            // It has given way to others, and is tried once before it is called late: what is in
            // the page cache would have been in time.
            return Poll::Pending;
        }
        match this.timer.poll(at, cx) {
            Poll::Pending => Poll::Pending,
            // Without a timer the deadline is not kept, which is better than no operation; the
            // engine's statistics tell of it.
            Poll::Ready(Err(_)) => Poll::Pending,
            Poll::Ready(Ok(())) => {
                let pending = this.pending.take().expect("it was there");
                Poll::Ready(Err(Late(pending)))
            }
        }
    }
}

/// A timer of an engine, set when it is first polled.
#[derive(Debug)]
struct Alarm {
    engine: Option<Engine>,
    timer: Option<Timer>,
}

impl Alarm {
    fn of(engine: Option<&Engine>) -> Self {
        Self {
            engine: engine.cloned(),
            timer: None,
        }
    }

    fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if at <= Instant::now() {
            self.cancel();
            return Poll::Ready(Ok(()));
        }
        let Some(engine) = &self.engine else {
            return Poll::Pending;
        };
        let shared = engine.shared();
        if let Some(timer) = self.timer
            && timer.update(shared, cx.waker())
        {
            return Poll::Pending;
        }
        // One that is set where this future was before.
        if let Some(timer) = self.timer.take() {
            timer.cancel(shared);
        }
        match Timer::set(shared, at, cx.waker()) {
            Ok(timer) => {
                self.timer = Some(timer);
                Poll::Pending
            }
            Err(refusal) => {
                let error = Answer::refused(refusal).decode(engine);
                Poll::Ready(error.map(drop))
            }
        }
    }

    fn cancel(&mut self) {
        if let (Some(timer), Some(engine)) = (self.timer.take(), &self.engine) {
            timer.cancel(engine.shared());
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Sleeps until an instant. Made by [`Engine::sleep`] and [`crate::local::sleep`].
///
/// It yields an error only where the engine has neither a run loop on this thread nor a driver
/// and cannot start one.
///
/// # Cancellation
///
/// Dropping it takes the timer back.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are polled"]
pub struct Sleep {
    alarm: Alarm,
    at: Option<Instant>,
}

impl Sleep {
    pub(super) fn new(engine: &Engine, at_least: Duration) -> Self {
        Self {
            alarm: Alarm::of(Some(engine)),
            at: Instant::now().checked_add(at_least),
        }
    }
}

impl Future for Sleep {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.at {
            Some(at) => self.alarm.poll(at, cx),
            // Beyond what the clock counts: for ever.
            None => Poll::Pending,
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::Operation;
    use crate::fs::OpenOptions;
    use crate::host::at_once::count_at_once;
    use crate::host::local::is_in_time;

    /// Never ready; tells at each poll whether it knows of its limit.
    #[derive(Debug)]
    struct Knows<'s>(&'s Engine, Vec<bool>);

    impl Future for Knows<'_> {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
            self.1.push(is_in_time());
            Poll::Pending
        }
    }

    impl Limited for Knows<'_> {
        fn timed_by(future: &Self) -> Option<&Engine> {
            Some(future.0)
        }

        fn is_fresh(_: &Self) -> bool {
            false
        }
    }

    #[test]
    fn no_poll_within_a_limit_may_wait_for_a_device() {
        let engine = Engine::new().unwrap();
        let mut timeout = Knows(&engine, Vec::new()).timeout(Duration::from_secs(3600));
        let mut context = Context::from_waker(Waker::noop());
        (0..3).for_each(|_| assert!(Pin::new(&mut timeout).poll(&mut context).is_pending()));
        let knew = timeout.pending.as_ref().map(|knows| knows.1.as_slice());
        assert_eq!((knew, is_in_time()), (Some([true; 3].as_slice()), false));
    }

    /// What two polls say: whether it was in time, once it is ready.
    fn polled<O: Awaited>(timed: impl Fn() -> Timeout<O>) -> [Option<bool>; 2] {
        // Much has been answered at once, so the next one gives way.
        count_at_once(1 << 30);
        let mut timeout = timed();
        [(); 2].map(|()| {
            let polled = Pin::new(&mut timeout).poll(&mut Context::from_waker(Waker::noop()));
            match polled {
                Poll::Ready(told) => Some(told.is_ok()),
                Poll::Pending => None,
            }
        })
    }

    #[test]
    fn what_gives_way_is_tried_once_before_it_is_late() {
        let engine = Engine::new().unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), [7; 512]).unwrap();
        let options = || OpenOptions::new().read(true).engine(&engine);
        let file = options().open(path.path()).unwrap();
        file.read_at(vec![0; 512], 0).wait().0.unwrap();
        let in_time = [None, Some(true)];
        let read = || file.read_at(vec![0; 512], 0);
        assert_eq!(polled(|| read().timeout(Duration::ZERO)), in_time);
        let batch = || Batch::from_iter([read(), read()]);
        assert_eq!(polled(|| batch().timeout(Duration::ZERO)), in_time);
        let close = || options().open(path.path()).unwrap().close();
        assert_eq!(polled(|| close().timeout(Duration::ZERO)), in_time);
        // What is not answered at once is late then.
        let nop = || engine.nop().timeout(Duration::ZERO);
        assert_eq!(polled(nop), [None, Some(false)]);
    }
}
