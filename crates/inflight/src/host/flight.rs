//! One awaited operation, wherever it was handed over: to a driver, or to the run loop of the
//! thread that polled it first.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::at_once::{WRITE_BYTES, copied_in, count_at_once};
use super::cells::{Kept, Left, Ticket};
#[cfg(feature = "tokio")]
use super::crew;
#[cfg(feature = "tokio")]
use super::lane::{self, Lane};
use super::local::{self, Home, OfLoop};
use super::look::{Look, look, probe};
use super::shared::Shared;
use super::sharing::shares::Offer;
use super::sharing::shown::Manner;
use super::stopwatch::{time, time_some};
use super::syncs::sync_of;
use super::timers::TimerKey;
use crate::backend::threads::execute::{execute_request, wanted_bytes};
use crate::commit::{Asker, Seat};
use crate::completion::{Answer, Refusal};
use crate::foreign::contain;
use crate::op::{Op, Plan, Prepare, Request, Road, SyncOf};
use crate::policy::{COLD_SAMPLE_EVERY, Else, GIVEN_MAX_BYTES, Samples, Step, in_a_poll};

/// Where an operation is in flight.
#[derive(Debug)]
pub(crate) enum Flight {
    /// In the mailbox with this number.
    Driver(usize, Ticket),
    /// In a run loop.
    Local(Home, Ticket),
    /// In the lane of a runtime.
    #[cfg(feature = "tokio")]
    Lane(Arc<Lane>, Ticket),
    /// Made by a thread of the pool.
    Pooled(Ticket),
    /// With other syncs of its file.
    Sync {
        seat: Seat,
        /// If it is of a task of a loop.
        _of_loop: Option<OfLoop>,
    },
}

/// What has become of an operation that could not be refused at once.
pub(crate) enum Tried {
    Answered(Answer),
    /// It is to be handed over.
    Request(Request),
    /// It is shared, or waits with other syncs of its file.
    InFlight(Flight),
}

/// What polling an operation for the first time has led to.
pub(crate) enum Launch {
    Answered(Answer),
    InFlight(Flight),
}

thread_local! {
    /// Reads of this thread that are taken to wait for the device, for taking samples.
    static SAMPLES: Cell<Samples<COLD_SAMPLE_EVERY>> = const { Cell::new(Samples::new()) };
    /// Which file this thread has asked to be flushed last, by the address of its syncs.
    static SYNCED: Cell<usize> = const { Cell::new(0) };
    /// Which driver serves this thread.
    static THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn is_sample() -> bool {
    let mut samples = SAMPLES.get();
    let is_sample = samples.takes_next();
    SAMPLES.set(samples);
    is_sample
}

/// What can be answered without waiting for a device is answered at once, or shared by a run loop,
/// and syncs join the others of their file, so that the waker is woken; the request of the rest.
/// Not in a forked child.
///
/// # Safety
///
/// As for [`launch`].
#[inline]
pub(crate) unsafe fn try_here<O: Prepare>(
    shared: &Arc<Shared>,
    operation: &mut O,
    waker: &Waker,
) -> Tried {
    let mut plan = operation.prepare().0;
    if matches!(plan, Plan::Cover) {
        plan = operation.cover().0;
    }
    let (road, request) = match plan {
        Plan::Answered(answer) => {
            count_at_once(answer.bytes());
            return Tried::Answered(answer);
        }
        Plan::Run(road, request) => (road, request),
        Plan::Cover => unreachable!("it has been asked for"),
        Plan::Sync(_) => return try_sync(shared, sync_of(operation), waker),
    };
    #[cfg(feature = "faulty")]
    if shared.is_faulty() && road != Road::Now {
        // Faults are to be met by whatever can be.
        return Tried::Request(request);
    }
    // SAFETY: the operation has just named its list of buffers.
    let bytes = unsafe { wanted_bytes(&request.op) };
    let mut step = in_a_poll(road, bytes, is_sample);
    if let Some(manner) = may_share(road, step, &request.op) {
        // SAFETY: passed on from the caller.
        match unsafe { share(shared, operation, &request, manner, waker) } {
            Offer::Shared(flight) => return Tried::InFlight(flight),
            Offer::Declined
                if road == Road::Memory
                    && (local::is_in_time() || is_for_own_ring(shared, step, waker)) =>
            {
                return Tried::Request(request);
            }
            Offer::Call => step = Step::Call,
            Offer::Declined | Offer::Sample => {}
        }
    }
    let answer = match step {
        Step::Backend => return Tried::Request(request),
        Step::Probe => {
            return Tried::Request(match probe(road, operation, &request) {
                // A ring would hand it to a worker of the kernel.
                Some(true) => request.aside(),
                Some(false) | None => request,
            });
        }
        Step::Pool if road == Road::Submit => return Tried::Request(request.submitted()),
        Step::Pool => return Tried::Request(request.aside()),
        Step::Try(_) if is_given(shared, road, bytes) => {
            return Tried::Request(request.among_hits());
        }
        Step::Try(or) => match (look(road, operation, &request), or) {
            (Look::Done(answer), _) => answer,
            (Look::WouldWait, Else::TimedCall) => time(operation, &request),
            (Look::WouldWait, Else::Backend) => return Tried::Request(request),
            (Look::Refused, _) | (_, Else::Pool) => return Tried::Request(request.aside()),
        },
        // Of writes one in some hundreds may wait, and is to be noticed.
        Step::TimedCall if request.op.is_write() => time(operation, &request),
        Step::TimedCall => time_some(operation, &request),
        // SAFETY: the addresses point into what the operation owns, and it is over when this
        // returns.
        Step::Call => unsafe { execute_request(&request) },
    };
    count_here(shared, &request, bytes);
    Tried::Answered(answer)
}

/// A transfer of so many bytes has been made where it was polled.
#[inline]
fn count_here(shared: &Arc<Shared>, request: &Request, bytes: usize) {
    shared.counters.plain_call();
    count_at_once(match request.op.is_write() && local::is_current(shared) {
        true => bytes + WRITE_BYTES,
        false => bytes,
    });
}

/// Whether the ring of this thread has the next read on this road, without asking for it: the page
/// cache has a part of the file, and that has been found to be faster. One now and then is asked
/// for, to learn from it.
#[inline]
fn is_given(shared: &Arc<Shared>, road: Road, bytes: usize) -> bool {
    let may_be = road == Road::Mixed && bytes <= GIVEN_MAX_BYTES;
    may_be && local::gives_misses(shared) && !is_sample()
}

/// A sync joins the others of its file, unless its flush is short and few ask. Flushes of a file
/// that somebody else serves are for the pool.
fn try_sync(shared: &Arc<Shared>, sync: SyncOf<'_>, waker: &Waker) -> Tried {
    let SyncOf {
        commit,
        file,
        data_only,
    } = sync;
    let is_served = commit.is_served();
    // Flushes of several files run side by side in the pool, and one after the other here.
    let file_number = Arc::as_ptr(commit).addr();
    let is_same_file = SYNCED.replace(file_number) == file_number;
    let asker = Asker {
        may_wait: is_same_file && !local::is_in_time(),
        is_host: local::is_current(shared),
    };
    let at_once = || commit.at_once(data_only, asker);
    if let Some((answer, took)) = (!is_served).then(at_once).flatten() {
        count_at_once(copied_in(took));
        return Tried::Answered(answer);
    }
    let (host, of_loop) = match is_served {
        true => (None, None),
        false => local::may_promise(shared, commit, waker),
    };
    let seat = commit.join(data_only, file, Some(waker), host);
    Tried::InFlight(Flight::Sync {
        seat,
        _of_loop: of_loop,
    })
}

/// How a thread that serves others may have another one make a transfer that is a copy, if it may.
#[inline]
fn may_share(road: Road, step: Step, op: &Op) -> Option<Manner> {
    match (road, step) {
        (Road::Warm, Step::Try { .. }) => Some(Manner::WithoutWaiting),
        (Road::CacheFirst | Road::Mixed, Step::Try { .. }) => Some(Manner::Asking),
        // What cannot be asked not to wait is a plain call here as well.
        (Road::Blind, Step::TimedCall) | (Road::Memory, Step::TimedCall | Step::Pool) => {
            Some(Manner::of_warm(road, op))
        }
        _ => None,
    }
}

/// Whether this thread hands over what is awaited on it, and takes the answers, itself; but not
/// what is the only operation, as far as can be told, if it is to be a plain call elsewhere: a ring
/// is dearer than a call where it cannot have several at a time.
#[inline]
fn is_for_own_ring(shared: &Arc<Shared>, step: Step, waker: &Waker) -> bool {
    let is_call = step == Step::TimedCall;
    let hands_over = local::hands_over(shared, waker, is_call);
    #[cfg(feature = "tokio")]
    let hands_over = hands_over.or_else(|| lane::hands_over(shared, waker, is_call));
    hands_over.unwrap_or(false)
}

/// Shares a read with the run loop or the lane of this thread, if that finds it worth it.
///
/// # Safety
///
/// As for [`launch`].
#[inline]
unsafe fn share<O: Prepare>(
    shared: &Arc<Shared>,
    operation: &O,
    request: &Request,
    manner: Manner,
    waker: &Waker,
) -> Offer<Flight> {
    // SAFETY: passed on from the caller.
    let local = unsafe { local::share(shared, operation, request, manner, waker) };
    #[cfg(feature = "tokio")]
    if matches!(local, Offer::Declined) && !local::nested::is_in_any() {
        // SAFETY: passed on from the caller.
        let lane = unsafe { lane::share(shared, operation, request, manner, waker) };
        return lane.map(|(lane, ticket)| Flight::Lane(lane, ticket));
    }
    local.map(|(home, ticket)| Flight::Local(home, ticket))
}

/// Starts an operation.
///
/// # Safety
///
/// Until the answer has been taken, the memory that the request names stays where it is, is not
/// touched, and is not freed; or it is left to [`Flight::abandon`]. The descriptor stays open.
#[inline]
pub(crate) unsafe fn launch<O: Prepare>(
    shared: &Arc<Shared>,
    operation: &mut O,
    waker: &Waker,
) -> Launch {
    if shared.is_forked() {
        return Launch::Answered(Answer::refused(Refusal::Forked));
    }
    // SAFETY: passed on from the caller.
    let request = match unsafe { try_here(shared, operation, waker) } {
        Tried::Answered(answer) => return Launch::Answered(answer),
        Tried::InFlight(flight) => return Launch::InFlight(flight),
        Tried::Request(request) => request,
    };
    // SAFETY: passed on from the caller.
    if let Some((home, ticket)) = unsafe { local::submit(shared, operation, &request, waker) } {
        return Launch::InFlight(Flight::Local(home, ticket));
    }
    if shared.is_pooled(&request)
        // SAFETY: passed on from the caller.
        && let Some(ticket) = unsafe { shared.pooled().submit(request, waker) }
    {
        return Launch::InFlight(Flight::Pooled(ticket));
    }
    #[cfg(feature = "tokio")]
    if lane::suits(&request)
        && let Some(lane) = crew::current(shared)
    {
        // SAFETY: passed on from the caller.
        match unsafe { lane.submit(request, waker) } {
            Some(ticket) => return Launch::InFlight(Flight::Lane(lane, ticket)),
            None => crew::forget(),
        }
    }
    if shared.is_rather_pooled(&[request])
        // SAFETY: passed on from the caller.
        && let Some(ticket) = unsafe { shared.pooled().submit(request, waker) }
    {
        return Launch::InFlight(Flight::Pooled(ticket));
    }
    match shared.drivers() {
        Ok(drivers) => {
            let number = this_thread(drivers.count());
            // SAFETY: passed on from the caller.
            let taken = unsafe { drivers.mailbox(number).submit(request, waker) };
            let ticket = taken.expect("drivers end with their engine");
            Launch::InFlight(Flight::Driver(number, ticket))
        }
        // SAFETY: passed on from the caller.
        Err(refusal) => match unsafe { without_driver(shared, refusal, request, waker) } {
            Some(ticket) => Launch::InFlight(Flight::Pooled(ticket)),
            None => Launch::Answered(Answer::refused(refusal)),
        },
    }
}

/// Hands a request over to the pool, if it has a thread where a driver could not have one.
///
/// # Safety
///
/// As for [`launch`].
#[cold]
unsafe fn without_driver(
    shared: &Arc<Shared>,
    refusal: Refusal,
    request: Request,
    waker: &Waker,
) -> Option<Ticket> {
    match refusal {
        // SAFETY: passed on from the caller.
        Refusal::NoThread => unsafe { shared.pooled().submit(request, waker) },
        _ => None,
    }
}

/// The number of the driver that serves this thread.
fn this_thread(drivers: usize) -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    if drivers == 1 {
        return 0;
    }
    let number = THREAD.try_with(|thread| {
        if thread.get() == usize::MAX {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    });
    number.unwrap_or(0) % drivers
}

impl Flight {
    /// The answer, if it has come; else the waker is kept.
    #[inline]
    pub(crate) fn poll(&self, shared: &Arc<Shared>, waker: &Waker) -> Option<Answer> {
        if shared.is_forked() {
            return Some(Answer::refused(Refusal::Forked));
        }
        match *self {
            Self::Sync { ref seat, .. } => seat.poll(waker),
            Self::Local(home, ticket) => local::poll(home, ticket, waker),
            Self::Pooled(ticket) => shared.pooled().poll(ticket, waker),
            #[cfg(feature = "tokio")]
            Self::Lane(ref lane, ticket) => lane.poll(ticket, waker),
            Self::Driver(number, ticket) => match shared.drivers() {
                Ok(drivers) => drivers.mailbox(number).poll(ticket, waker),
                Err(refusal) => Some(Answer::refused(refusal)),
            },
        }
    }

    /// The future is gone. `keep` is asked for what the operation needs if it is in flight.
    pub(crate) fn abandon(
        self,
        shared: &Arc<Shared>,
        keep: impl FnOnce() -> Box<dyn Kept>,
    ) -> Left {
        if shared.is_forked() {
            // What is in flight is the parent's, and so is the memory that the kernel fills.
            std::mem::forget(self);
            return Left::Withdrawn;
        }
        match self {
            Self::Sync { seat, _of_loop } => {
                let (answer, waker) = seat.leave();
                contain(|| drop(waker));
                // The flush needs nothing of the operation.
                answer.map_or(Left::Withdrawn, Left::Answered)
            }
            Self::Local(home, ticket) => local::abandon(home, ticket, keep),
            Self::Pooled(ticket) => shared.pooled().abandon(ticket, keep),
            #[cfg(feature = "tokio")]
            Self::Lane(lane, ticket) => lane.abandon(ticket, keep),
            Self::Driver(number, ticket) => match shared.drivers() {
                Ok(drivers) => drivers.mailbox(number).abandon(ticket, keep),
                Err(_) => unreachable!("it was handed to a driver"),
            },
        }
    }
}

/// Hands requests over to the pool together. False if it has no thread.
///
/// # Safety
///
/// As for [`launch_all`].
unsafe fn submit_to_the_pool(
    shared: &Shared,
    requests: &[Request],
    flights: &mut Vec<Flight>,
) -> bool {
    let mut tickets = Vec::new();
    // SAFETY: passed on from the caller.
    let is_taken = unsafe {
        shared
            .pooled()
            .submit_all(requests.iter().copied(), &mut tickets)
    };
    flights.extend(tickets.into_iter().map(Flight::Pooled));
    is_taken
}

/// Starts operations together and appends their flights. Nobody is told of the answers until
/// they have been polled.
///
/// # Errors
///
/// In a forked child, and if no driver can be started.
///
/// # Safety
///
/// As for [`launch`], for each of them; the requests come from [`try_here`].
pub(crate) unsafe fn launch_all(
    shared: &Arc<Shared>,
    requests: &[Request],
    flights: &mut Vec<Flight>,
) -> Result<(), Refusal> {
    if shared.is_forked() {
        return Err(Refusal::Forked);
    }
    let mut tickets = Vec::new();
    if local::is_current(shared) {
        // SAFETY: passed on from the caller.
        let home = unsafe { local::submit_all(requests.iter().copied(), &mut tickets) };
        flights.extend(
            tickets
                .into_iter()
                .map(|ticket| Flight::Local(home, ticket)),
        );
        return Ok(());
    }
    let is_pooled = |request: &Request| shared.is_pooled(request);
    if requests.iter().all(is_pooled)
        // SAFETY: passed on from the caller.
        && unsafe { submit_to_the_pool(shared, requests, flights) }
    {
        return Ok(());
    }
    #[cfg(feature = "tokio")]
    if requests.iter().all(lane::suits)
        && let Some(lane) = crew::current(shared)
    {
        // SAFETY: passed on from the caller.
        if unsafe { lane.submit_all(requests.iter().copied(), &mut tickets) } {
            let flight = |ticket| Flight::Lane(Arc::clone(&lane), ticket);
            flights.extend(tickets.into_iter().map(flight));
            return Ok(());
        }
        crew::forget();
    }
    if shared.is_rather_pooled(requests)
        // SAFETY: passed on from the caller.
        && unsafe { submit_to_the_pool(shared, requests, flights) }
    {
        return Ok(());
    }
    let drivers = match shared.drivers() {
        Ok(drivers) => drivers,
        // SAFETY: passed on from the caller.
        Err(Refusal::NoThread) if unsafe { submit_to_the_pool(shared, requests, flights) } => {
            return Ok(());
        }
        Err(refusal) => return Err(refusal),
    };
    let number = this_thread(drivers.count());
    let mailbox = drivers.mailbox(number);
    // SAFETY: passed on from the caller.
    let taken = unsafe { mailbox.submit_all(requests.iter().copied(), &mut tickets) };
    assert!(taken, "drivers end with their engine");
    flights.extend(
        tickets
            .into_iter()
            .map(|ticket| Flight::Driver(number, ticket)),
    );
    Ok(())
}

/// A timer, wherever it was set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    Driver(usize, TimerKey),
    Local(Home, TimerKey),
}

impl Timer {
    /// Has the waker woken at an instant, by the run loop of this thread or a driver.
    pub(crate) fn set(shared: &Arc<Shared>, at: Instant, waker: &Waker) -> Result<Self, Refusal> {
        if shared.is_forked() {
            return Err(Refusal::Forked);
        }
        if let Some((home, key)) = local::set_timer(at, waker) {
            return Ok(Self::Local(home, key));
        }
        let drivers = shared.drivers()?;
        let number = this_thread(drivers.count());
        Ok(Self::Driver(
            number,
            drivers.mailbox(number).set_timer(at, waker),
        ))
    }

    /// Has another waker woken; false when the timer has gone off or cannot be reached from here.
    pub(crate) fn update(self, shared: &Arc<Shared>, waker: &Waker) -> bool {
        if shared.is_forked() {
            return false;
        }
        match self {
            Self::Local(home, key) => local::update_timer(home, key, waker),
            Self::Driver(number, key) => shared
                .drivers()
                .is_ok_and(|drivers| drivers.mailbox(number).update_timer(key, waker)),
        }
    }

    pub(crate) fn cancel(self, shared: &Arc<Shared>) {
        if shared.is_forked() {
            return;
        }
        match self {
            Self::Local(home, key) => local::cancel_timer(home, key),
            Self::Driver(number, key) => {
                if let Ok(drivers) = shared.drivers() {
                    drivers.mailbox(number).cancel_timer(key);
                }
            }
        }
    }
}
