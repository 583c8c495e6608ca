//! An operation that is awaited.
#![allow(unsafe_code)]

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::batch::Batch;
use super::detach::Detach;
use super::engine::Engine;
use super::handle::Handle;
use crate::completion::{Answer, Refusal};
use crate::foreign::contain;
use crate::host::at_once::Yielded;
use crate::host::cells::Left;
use crate::host::flight::{Flight, Launch, Tried, launch, launch_all, try_here};
use crate::host::shared::Shared;

/// An operation that is awaited. Made by `.await`, or `into_future`.
///
/// It does nothing until it is first polled. That poll answers what needs no waiting (what the page
/// cache has), and what has been measured to be short: buffered writes where recent ones were
/// short, direct transfers of memory-backed devices (not under a timeout), syncs of a file whose
/// last ones took at most 50 us when nobody else asks, and, in an idle run loop, reads of what was
/// cached until now ([`crate::local::run`]). The rest goes to this thread's run loop if it is of
/// the same engine, else to a driver thread, or to a thread of the pool if it is a plain call.
///
/// Poll and drop it on any thread, under any runtime, or from your own epoll loop with a waker that
/// writes to an eventfd (`examples/epoll.rs` in the repository).
///
/// # Cancellation
///
/// Dropping it before it has been polled does nothing. Later: a request that has not been handed
/// to the kernel is taken back; one that has runs to its end, reads and writes alike, because the
/// kernel cannot cancel file operations. Its buffer and file are kept until then, out of reach.
/// A write or sync that was dropped has therefore either happened, or happens, or never will, and a
/// write with [`any_range`](crate::fs::OpenOptions::any_range) perhaps in part; which one cannot be
/// told. [`Timeout`](crate::Timeout) gives up waiting without this doubt.
#[must_use = "futures do nothing unless they are polled"]
pub struct Pending<O: Detach> {
    /// Initialised unless the stage is `Over`. Of this type, so that moving it says nothing of the
    /// memory that the kernel fills meanwhile: a box or a reference that is moved as such says that
    /// nobody else uses what it points to.
    operation: MaybeUninit<O>,
    /// Keeps the descriptor from being closed and used anew, also when this future is forgotten.
    handle: Option<Arc<Handle>>,
    /// The engine that has it, if it comes from a batch: that need not be the operation's own.
    batched_on: Option<Engine>,
    stage: Stage,
    yielded: Yielded,
}

#[derive(Debug)]
enum Stage {
    Fresh,
    InFlight(Flight),
    Over,
}

// The addresses that the kernel has are not in here.
impl<O: Detach> Unpin for Pending<O> {}

impl<O: Detach> Pending<O> {
    pub(super) fn new(operation: O) -> Self {
        Self {
            operation: MaybeUninit::new(operation),
            handle: None,
            batched_on: None,
            stage: Stage::Fresh,
            yielded: Yielded::default(),
        }
    }

    /// The engine that runs it; only while the stage is not `Over`.
    ///
    /// # Panics
    ///
    /// If it has been polled to its end.
    pub(super) fn engine(&self) -> &Engine {
        assert!(
            !matches!(self.stage, Stage::Over),
            "a future is not used after it is ready"
        );
        // SAFETY: it is initialised until the stage is `Over`, and nobody but this module makes
        // it so.
        engine_of(&self.batched_on, unsafe {
            self.operation.assume_init_ref()
        })
    }

    /// Whether it, or its next step, is still to be begun.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(self.stage, Stage::Fresh)
    }

    /// The operation, which owns what it names; only while the stage is `Fresh`.
    fn take(&mut self) -> O {
        debug_assert!(matches!(self.stage, Stage::Fresh));
        self.stage = Stage::Over;
        // SAFETY: it was initialised, and from now on counts as taken.
        unsafe { self.operation.assume_init_read() }
    }

    fn finish(&mut self, answer: Answer) -> O::Output {
        let handle = self.handle.take();
        let output = self.take().finish(answer);
        drop(handle);
        output
    }
}

/// The engine that runs an operation.
#[inline(always)]
fn engine_of<'a, O: Detach + 'a>(batched_on: &'a Option<Engine>, operation: &O) -> &'a Engine {
    match batched_on {
        None => operation.engine(),
        Some(engine) => engine,
    }
}

impl<O: Detach> Future for Pending<O> {
    type Output = O::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O::Output> {
        let this = &mut *self;
        loop {
            let answer = match this.poll_request(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending => return Poll::Pending,
            };
            // From here on it is like one that has not been started: it owns what it names.
            this.stage = Stage::Fresh;
            // SAFETY: it is initialised until the stage is `Over`, and nobody else uses it now.
            let operation = unsafe { this.operation.assume_init_mut() };
            if !operation.proceed(answer) {
                return Poll::Ready(this.finish(answer));
            }
        }
    }
}

impl<O: Detach> Pending<O> {
    /// Takes the answer for one request. The operation's answer, unless it has another request,
    /// which is in flight then.
    #[inline]
    fn go_on(&mut self, shared: &Arc<Shared>, answer: Answer, cx: &Context<'_>) -> Option<Answer> {
        // From here on it is like one that has not been started: it owns what it names.
        self.stage = Stage::Fresh;
        // SAFETY: it is initialised until the stage is `Over`, and nobody else uses it now.
        let operation = unsafe { self.operation.assume_init_mut() };
        match operation.proceed(answer) {
            true => self.launch_next(shared, cx),
            false => Some(answer),
        }
    }

    /// Makes the next request, as [`Self::go_on`] does.
    fn launch_next(&mut self, shared: &Arc<Shared>, cx: &Context<'_>) -> Option<Answer> {
        loop {
            // SAFETY: it is initialised until the stage is `Over`, and nobody else uses it now.
            let operation = unsafe { self.operation.assume_init_mut() };
            // SAFETY: as for its first request, see `poll_request`.
            match unsafe { launch(shared, operation, cx.waker()) } {
                Launch::Answered(answer) if operation.proceed(answer) => {}
                Launch::Answered(answer) => return Some(answer),
                Launch::InFlight(flight) => {
                    self.handle = operation.handle().cloned();
                    self.stage = Stage::InFlight(flight);
                    return None;
                }
            }
        }
    }

    /// The answer for the request that is in flight, or to be made.
    #[inline]
    fn poll_request(&mut self, cx: &Context<'_>) -> Poll<Answer> {
        let this = self;
        match &this.stage {
            Stage::InFlight(flight) => {
                // SAFETY: it is initialised while it is in flight; the engine is not what the
                // kernel fills.
                let operation = unsafe { this.operation.assume_init_ref() };
                let shared = engine_of(&this.batched_on, operation).shared();
                match flight.poll(shared, cx.waker()) {
                    Some(answer) => Poll::Ready(answer),
                    None => Poll::Pending,
                }
            }
            Stage::Fresh if this.yielded.must_yield(cx.waker()) => Poll::Pending,
            Stage::Fresh => {
                // SAFETY: it is initialised until the stage is `Over`.
                let operation = unsafe { this.operation.assume_init_mut() };
                let shared = engine_of(&this.batched_on, operation).shared();
                // SAFETY: from here to the answer, the operation is touched only to ask for its
                // engine. It owns the memory, or leaves it to `abandon` when this is dropped; when
                // this is forgotten, so are memory and handle.
                match unsafe { launch(shared, operation, cx.waker()) } {
                    Launch::Answered(answer) => Poll::Ready(answer),
                    Launch::InFlight(flight) => {
                        // The file is borrowed until here at least.
                        this.handle = operation.handle().cloned();
                        let fresh = std::mem::replace(&mut this.stage, Stage::InFlight(flight));
                        // There is nothing in it to be dropped.
                        std::mem::forget(fresh);
                        Poll::Pending
                    }
                }
            }
            Stage::Over => panic!("a future is not polled after it is ready"),
        }
    }
}

impl<O: Detach> Drop for Pending<O> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Over) {
            self.leave();
        }
    }
}

impl<O: Detach> Pending<O> {
    /// Gives it up before it has completed.
    #[cold]
    fn leave(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Fresh) {
            Stage::Over => {}
            Stage::Fresh => drop(self.take()),
            Stage::InFlight(flight) => {
                let batched_on = self.batched_on.take();
                // SAFETY: it is initialised until the stage is `Over`.
                let operation = unsafe { self.operation.assume_init_ref() };
                let engine = engine_of(&batched_on, operation);
                self.leave_flight(engine.shared(), flight);
            }
        }
    }

    /// Gives it up while it is in flight, in this engine.
    fn leave_flight(&mut self, shared: &Arc<Shared>, flight: Flight) {
        let handle = self.handle.take();
        self.stage = Stage::Over;
        // It becomes an `O` again when it is over, and only then: see [`Self::operation`].
        let operation = std::mem::replace(&mut self.operation, MaybeUninit::uninit());
        // SAFETY: it was initialised, and is until it is kept.
        let foreseen = unsafe { operation.assume_init_ref() }.foresee();
        let mut operation = Some(operation);
        let keep = || {
            let operation = operation.take().expect("asked once");
            // SAFETY: it is initialised, and its cell keeps this until the request is over.
            unsafe { O::into_kept(operation, handle, foreseen) }.0
        };
        let left = flight.abandon(shared, keep);
        let Some(operation) = operation else {
            return;
        };
        // SAFETY: it is initialised, and nothing is in flight: there was nothing to be kept.
        let mut operation = unsafe { operation.assume_init() };
        if let Left::Answered(answer) = left
            && !operation.proceed(answer)
        {
            // Nobody takes the result; a failed sync is remembered all the same.
            drop(operation.finish(answer));
        }
    }
}

/// A batch that is awaited. Made by `.await` on a [`crate::Batch`].
///
/// All operations are handed over together when it is first polled, but for those behind so many
/// that were answered at once that other tasks are to have their turn: those come at the next poll,
/// for which it wakes its task. The result is a vector of their results in the order pushed.
///
/// # Cancellation
///
/// As for [`Pending`], for each operation: all of them are left, also those that have completed,
/// whose results go with it; but a failed sync among them is remembered. With a limit in time what
/// has come can be had ([`Late::into_results`](crate::Late::into_results)).
#[must_use = "futures do nothing unless they are polled"]
pub struct PendingBatch<O: Detach> {
    /// The engine that has them all, which need not be that of each; absent if there are none.
    engine: Option<Engine>,
    /// Those that have no answer yet are initialised.
    operations: Vec<Pending<O>>,
    answers: Vec<Answer>,
    /// The operations without an answer. The last one knows whom to tell: most of the others are
    /// over before it.
    left: Vec<usize>,
    /// How many have been begun.
    begun: usize,
    yielded: Yielded,
    is_over: bool,
}

impl<O: Detach> PendingBatch<O> {
    /// None if there is no operation.
    pub(super) fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Whether all of it is still to be begun.
    pub(super) fn is_fresh(&self) -> bool {
        self.begun == 0 && !self.operations.is_empty()
    }

    pub(super) fn new(engine: Option<Engine>, operations: Vec<O>) -> Self {
        let answers = vec![Answer::NOT_RUN; operations.len()];
        Self {
            engine,
            operations: operations.into_iter().map(Pending::new).collect(),
            answers,
            left: Vec::new(),
            begun: 0,
            yielded: Yielded::default(),
            is_over: false,
        }
    }

    /// Begins the operations, until other tasks are to have their turn. A buffer may panic
    /// meanwhile: those that are left without a flight are begun when they are looked at, and the
    /// next call goes on with the others.
    fn start(&mut self, waker: &Waker) {
        let Some(engine) = &self.engine else {
            return;
        };
        let shared = engine.shared();
        let (mut requests, mut handed) = (Vec::new(), Vec::new());
        for pending in &mut self.operations[self.begun..] {
            if self.yielded.must_yield(waker) {
                break;
            }
            let number = self.begun;
            self.begun += 1;
            // SAFETY: it is initialised until the stage is `Over`.
            let operation = unsafe { pending.operation.assume_init_mut() };
            if shared.is_forked() {
                self.answers[number] = Answer::refused(Refusal::Forked);
                continue;
            }
            self.left.push(number);
            loop {
                // Whoever is to be told is known when it is polled.
                // SAFETY: as for a single one, see `Pending::poll`.
                match unsafe { try_here(shared, operation, Waker::noop()) } {
                    Tried::Answered(answer) if operation.proceed(answer) => continue,
                    Tried::Answered(answer) => {
                        self.answers[number] = answer;
                        self.left.pop();
                    }
                    Tried::InFlight(flight) => {
                        pending.handle = operation.handle().cloned();
                        pending.stage = Stage::InFlight(flight);
                    }
                    Tried::Request(request) => {
                        handed.push(number);
                        requests.push(request);
                    }
                }
                break;
            }
        }
        if requests.is_empty() {
            return;
        }
        let mut flights = Vec::with_capacity(requests.len());
        // SAFETY: as for a single one, see `Pending::poll`.
        match unsafe { launch_all(shared, &requests, &mut flights) } {
            Ok(()) => {
                for (&number, flight) in handed.iter().zip(flights) {
                    let pending = &mut self.operations[number];
                    // SAFETY: as above.
                    let operation = unsafe { pending.operation.assume_init_ref() };
                    pending.handle = operation.handle().cloned();
                    pending.stage = Stage::InFlight(flight);
                }
            }
            Err(refusal) => {
                for &number in &handed {
                    self.answers[number] = Answer::refused(refusal);
                }
                let answers = &self.answers;
                self.left
                    .retain(|&number| answers[number] == Answer::NOT_RUN);
            }
        }
    }
}

impl<O: Detach> Future for PendingBatch<O> {
    type Output = Vec<O::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        assert!(!this.is_over, "a future is not polled after it is ready");
        if this.begun < this.operations.len() {
            this.start(cx.waker());
            if this.begun < this.operations.len() {
                return Poll::Pending;
            }
        }
        while let Some(&number) = this.left.last() {
            match this.advance(number, cx) {
                Advance::Over => drop(this.left.pop()),
                // What comes next may be a sync that the others would share, or a read for each.
                Advance::Next => this.advance_others(cx),
                Advance::None => return Poll::Pending,
            }
        }
        this.is_over = true;
        let mut left = Unfinished(this.operations.drain(..).zip(this.answers.drain(..)));
        let results = left.0.by_ref();
        Poll::Ready(
            results
                .map(|(mut pending, answer)| pending.finish(answer))
                .collect(),
        )
    }
}

/// Operations, and their answers if they have completed. Nobody takes the results of those that are
/// left when a buffer panics; a failed sync is remembered all the same.
struct Unfinished<I: Iterator<Item = (Pending<O>, Answer)>, O: Detach>(I);

impl<I: Iterator<Item = (Pending<O>, Answer)>, O: Detach> Drop for Unfinished<I, O> {
    fn drop(&mut self) {
        for (mut pending, answer) in self.0.by_ref() {
            contain(|| match answer {
                Answer::NOT_RUN => drop(pending),
                _ => drop(pending.finish(answer)),
            });
        }
    }
}

/// What has become of an operation of a batch since it was looked at.
enum Advance {
    None,
    /// It has another request, which is in flight.
    Next,
    Over,
}

/// So many operations without an answer are passed over beside the last one: to look at more than
/// have one would cost more than the operations do.
const PATIENCE: usize = 16;

impl<O: Detach> PendingBatch<O> {
    /// Takes the answer of an operation that is left, if it has come.
    #[inline]
    fn advance(&mut self, number: usize, cx: &Context<'_>) -> Advance {
        let pending = &mut self.operations[number];
        let engine = self.engine.as_ref().expect("it was started there");
        let shared = engine.shared();
        let over = match &pending.stage {
            Stage::InFlight(flight) => match flight.poll(shared, cx.waker()) {
                Some(answer) => pending.go_on(shared, answer, cx),
                None => return Advance::None,
            },
            // A buffer has panicked, this one's or another's.
            _ if self.answers[number] != Answer::NOT_RUN => return Advance::Over,
            _ => pending.launch_next(shared, cx),
        };
        match over {
            Some(answer) => {
                self.answers[number] = answer;
                Advance::Over
            }
            None => Advance::Next,
        }
    }

    /// Goes on with those before the last one that have an answer, so that their next requests are
    /// in flight beside its own.
    #[cold]
    fn advance_others(&mut self, cx: &Context<'_>) {
        let mut others = self.left.len() - 1;
        let mut patience = PATIENCE;
        while others > 0 && patience > 0 {
            others -= 1;
            if let Advance::None = self.advance(self.left[others], cx) {
                patience -= 1;
            }
        }
        let looked_at = self.left.split_off(others);
        let answers = &self.answers;
        let is_left = |&number: &usize| answers[number] == Answer::NOT_RUN;
        self.left.extend(looked_at.into_iter().filter(is_left));
    }

    /// What those that have completed yield, and the others as they are, in the order pushed.
    pub(super) fn into_results(mut self) -> Vec<Result<O::Output, Pending<O>>> {
        let cx = Context::from_waker(Waker::noop());
        // Only the last one has been looked at each time. Whoever awaits one of them tells whom to
        // wake.
        while let Some(number) = self.left.pop() {
            self.advance(number, &cx);
        }
        for (pending, answer) in self.operations.iter_mut().zip(&self.answers) {
            if *answer == Answer::NOT_RUN {
                pending.batched_on.clone_from(&self.engine);
            }
        }
        let mut left = Unfinished(self.operations.drain(..).zip(self.answers.drain(..)));
        let results = left.0.by_ref();
        results
            .map(|(mut pending, answer)| match answer {
                Answer::NOT_RUN => Err(pending),
                _ => Ok(pending.finish(answer)),
            })
            .collect()
    }

    /// Gives the last operation up. False if there is none.
    fn leave_last(&mut self) -> bool {
        let (Some(engine), Some(mut pending)) = (&self.engine, self.operations.pop()) else {
            return false;
        };
        let number = self.operations.len();
        self.left.pop_if(|last| *last == number);
        if self.answers[number] != Answer::NOT_RUN {
            // Nobody takes the result; a failed sync is remembered all the same.
            drop(pending.finish(self.answers[number]));
            return true;
        }
        if let Stage::InFlight(flight) = std::mem::replace(&mut pending.stage, Stage::Fresh) {
            pending.leave_flight(engine.shared(), flight);
        }
        true
    }
}

/// A batch that is given up. A buffer may panic meanwhile: left to themselves, the others would
/// turn to their own engines, which do not have them, and free what the kernel still writes to.
struct Leaving<'b, O: Detach>(&'b mut PendingBatch<O>);

impl<O: Detach> Drop for Leaving<'_, O> {
    fn drop(&mut self) {
        while self.0.leave_last() {}
    }
}

impl<O: Detach> Drop for PendingBatch<O> {
    fn drop(&mut self) {
        if self.begun > 0 {
            let leaving = Leaving(self);
            while leaving.0.leave_last() {}
        }
    }
}

impl<O: Detach> fmt::Debug for Pending<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl<O: Detach> fmt::Debug for PendingBatch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingBatch")
            .field("left", &self.left.len())
            .finish_non_exhaustive()
    }
}

impl<O: Detach> IntoFuture for Batch<O> {
    type Output = Vec<O::Output>;
    type IntoFuture = PendingBatch<O>;

    fn into_future(self) -> PendingBatch<O> {
        let (engine, operations) = self.into_parts();
        PendingBatch::new(engine, operations)
    }
}
