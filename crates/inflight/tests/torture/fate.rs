//! What becomes of a future: it is awaited, or left at a random moment in one of several ways.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use inflight::fs::{Close, NameOp, Open, Truncate};
use inflight::{Awaited, Detach, Late, Operation, Pending, Timeout};

use crate::random::Random;

/// Operations so far, of all tests; the watchdog looks at it.
pub(crate) static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// What has been done with futures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fates {
    pub(crate) operations: u64,
    pub(crate) awaited: u64,
    pub(crate) blocked: u64,
    pub(crate) unpolled: u64,
    pub(crate) dropped: u64,
    pub(crate) dropped_elsewhere: u64,
    pub(crate) polled_elsewhere: u64,
    pub(crate) late_dropped: u64,
    pub(crate) late_awaited: u64,
    pub(crate) forgotten: u64,
    /// Buffers of the operations that were forgotten.
    pub(crate) forgotten_bufs: u64,
    /// Forgotten after they had been handed over: these keep their file open too.
    pub(crate) forgotten_in_flight: u64,
    /// Errors of the backend that reached the caller.
    pub(crate) errors: u64,
}

impl Fates {
    /// Operations that were left after they had been polled and not answered.
    pub(crate) fn left_begun(&self) -> u64 {
        self.dropped + self.dropped_elsewhere + self.late_dropped + self.forgotten_in_flight
    }

    /// All operations that were left.
    pub(crate) fn left(&self) -> u64 {
        self.unpolled + self.dropped + self.dropped_elsewhere + self.late_dropped + self.forgotten
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.awaited += other.awaited;
        self.blocked += other.blocked;
        self.unpolled += other.unpolled;
        self.dropped += other.dropped;
        self.dropped_elsewhere += other.dropped_elsewhere;
        self.polled_elsewhere += other.polled_elsewhere;
        self.late_dropped += other.late_dropped;
        self.late_awaited += other.late_awaited;
        self.forgotten += other.forgotten;
        self.forgotten_bufs += other.forgotten_bufs;
        self.forgotten_in_flight += other.forgotten_in_flight;
        self.errors += other.errors;
    }
}

/// How an operation has ended for whoever asked for it.
pub(crate) enum End<T> {
    Answered(T),
    /// Nothing of it can have happened.
    Never,
    /// It has happened, or happens, or never will.
    Left,
}

/// What may be done with an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leeway {
    /// In thousandths, how often its future is left.
    pub(crate) leave: usize,
    /// Whether it may be forgotten, and how many buffers are lost then.
    pub(crate) forget: Option<u64>,
}

/// An operation whose future may be left anywhere.
pub(crate) trait Leave: Sized {
    type Output: Send;
    type Future: Begun<Output = Self::Output>;
    type Late: IntoFuture<Output = Self::Output, IntoFuture: Send> + Send;
    type Timeout: Future<Output = Result<Self::Output, Self::Late>> + Unpin + Send;

    fn begin(self) -> Self::Future;
    fn wait(self) -> Self::Output;
    fn within(self, at_most: Duration) -> Self::Timeout;
}

impl<O> Leave for O
where
    O: Detach + Awaited<Output = <Pending<O> as Future>::Output, IntoFuture = Pending<O>> + Send,
    Pending<O>: Send,
    Late<O>: Send,
    Timeout<O>: Send,
    <Pending<O> as Future>::Output: Send,
{
    type Output = <Pending<O> as Future>::Output;
    type Future = Pending<O>;
    type Late = Late<O>;
    type Timeout = Timeout<O>;

    fn begin(self) -> Pending<O> {
        self.into_future()
    }

    fn wait(self) -> Self::Output {
        Operation::wait(self)
    }

    fn within(self, at_most: Duration) -> Timeout<O> {
        Awaited::timeout(self, at_most)
    }
}

/// What an operation becomes when it is awaited.
pub(crate) trait Begun: Future<Output: Send> + Unpin + Send {}

impl<F: Future<Output: Send> + Unpin + Send> Begun for F {}

/// One of the operations that are not for a backend.
pub(crate) struct Aside<O>(pub(crate) O);

macro_rules! aside {
    ($([$($generics:tt)*] $operation:ty;)*) => {$(
        impl<$($generics)*> Leave for Aside<$operation> {
            type Output = <$operation as IntoFuture>::Output;
            type Future = <$operation as IntoFuture>::IntoFuture;
            type Late = Late<$operation>;
            type Timeout = Timeout<$operation>;

            fn begin(self) -> Self::Future {
                self.0.into_future()
            }

            fn wait(self) -> Self::Output {
                self.0.wait()
            }

            fn within(self, at_most: Duration) -> Self::Timeout {
                self.0.timeout(at_most)
            }
        }
    )*};
}

aside! {
    ['f] Truncate<'f>;
    [] NameOp;
    [] Open;
    [] Close;
}

/// Runs an operation to one of its ends.
pub(crate) async fn meet<O: Leave>(
    random: &mut Random,
    fates: &mut Fates,
    operation: O,
    leeway: Leeway,
) -> End<O::Output> {
    fates.operations += 1;
    PROGRESS.fetch_add(1, Ordering::Relaxed);
    if !random.happens(leeway.leave) {
        if random.happens(15) {
            fates.blocked += 1;
            return End::Answered(operation.wait());
        }
        fates.awaited += 1;
        return End::Answered(operation.begin().await);
    }
    match random.below(100) {
        0..25 => {
            fates.unpolled += 1;
            drop(operation.begin());
            End::Never
        }
        25..65 => drop_in_flight(random, fates, operation.begin()).await,
        65..98 => give_up(random, fates, operation).await,
        _ => match leeway.forget {
            Some(bufs) => forget(random, fates, operation.begin(), bufs).await,
            None => drop_in_flight(random, fates, operation.begin()).await,
        },
    }
}

/// Polls once, as a task of its own would.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// Lets others have their turn.
async fn pause() {
    let mut has_paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn drop_in_flight<F: Begun>(
    random: &mut Random,
    fates: &mut Fates,
    mut pending: F,
) -> End<F::Output> {
    if let Poll::Ready(output) = poll_once(&mut pending).await {
        fates.awaited += 1;
        return End::Answered(output);
    }
    for _ in 0..random.below(4) {
        pause().await;
    }
    match random.below(200) {
        // In a run loop, these are no longer at home.
        0 => {
            fates.dropped_elsewhere += 1;
            thread::scope(|scope| scope.spawn(|| drop(pending)).join()).expect("no panic");
            End::Left
        }
        1 => {
            fates.polled_elsewhere += 1;
            match poll_elsewhere(&mut pending) {
                Poll::Ready(output) => End::Answered(output),
                Poll::Pending => End::Answered(pending.await),
            }
        }
        _ => {
            fates.dropped += 1;
            drop(pending);
            End::Left
        }
    }
}

/// Polls on another thread, on which nobody is told.
fn poll_elsewhere<F: Begun>(future: &mut F) -> Poll<F::Output> {
    let poll = move || {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(future).poll(&mut cx)
    };
    thread::scope(|scope| scope.spawn(poll).join()).expect("no panic")
}

async fn give_up<O: Leave>(random: &mut Random, fates: &mut Fates, operation: O) -> End<O::Output> {
    let at_most = u64::try_from(random.below(200)).expect("small");
    let mut timeout = operation.within(Duration::from_micros(at_most));
    let polled = poll_once(&mut timeout).await;
    if polled.is_pending() && random.happens(300) {
        fates.dropped += 1;
        drop(timeout);
        return End::Left;
    }
    let ended = match polled {
        Poll::Ready(ended) => ended,
        Poll::Pending => timeout.await,
    };
    let late = match ended {
        Ok(output) => {
            fates.awaited += 1;
            return End::Answered(output);
        }
        Err(late) => late,
    };
    if random.happens(500) {
        fates.late_dropped += 1;
        drop(late);
        return End::Left;
    }
    fates.late_awaited += 1;
    End::Answered(late.await)
}

async fn forget<F: Begun>(
    random: &mut Random,
    fates: &mut Fates,
    mut pending: F,
    bufs: u64,
) -> End<F::Output> {
    if random.happens(800) {
        if let Poll::Ready(output) = poll_once(&mut pending).await {
            fates.awaited += 1;
            return End::Answered(output);
        }
        fates.forgotten_in_flight += 1;
    }
    fates.forgotten += 1;
    fates.forgotten_bufs += bufs;
    std::mem::forget(pending);
    End::Left
}
