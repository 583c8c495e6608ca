//! One operation that a thread waits for: a plain system call, or the only one in its ring.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::busy_poll::BusyPollingAlone;
use super::caller::{Lease, lease, lease_with_ring};
use super::look::{Look, look};
use super::shared::Shared;
use super::syncs::{sync_alone, sync_of};
use crate::backend::threads::execute::execute_request;
use crate::backend::unasked::{Place, Unasked};
use crate::completion::{Answer, Refusal};
use crate::op::{Op, Plan, Prepare, Request, Road};
use crate::policy::Tried;

thread_local! {
    /// How this thread waits for single operations, whatever engines they are of.
    static WAITS: RefCell<Option<Waits>> = const { RefCell::new(None) };
}

/// See [`WAITS`].
struct Waits {
    polling: BusyPollingAlone,
    /// That a ring is made for them, until the thread ends.
    ring: Option<Place>,
}

/// Of such threads: a server may have thousands.
static RINGS: Unasked = Unasked::new();

impl Waits {
    fn new() -> Self {
        Self {
            polling: BusyPollingAlone::new(),
            ring: None,
        }
    }

    /// For how long to look at most for the completion of the next one in a ring; `None` if a plain
    /// call is to make it.
    #[inline]
    fn looks_for(&mut self, tried: &Tried) -> Option<Duration> {
        let at_most = self.polling.looks_for(tried)?;
        if self.ring.is_none() {
            self.ring = RINGS.take();
        }
        if self.ring.is_none() {
            self.polling.cannot_look();
            return None;
        }
        Some(at_most)
    }
}

/// As [`Waits::looks_for`].
#[inline]
fn looks_for(shared: &Shared) -> Option<Duration> {
    let asked = WAITS.try_with(|known| {
        let mut known = known.borrow_mut();
        known
            .get_or_insert_with(Waits::new)
            .looks_for(&shared.busy_polls)
    });
    // While the thread ends it does not.
    asked.ok().flatten()
}

/// What has become of a look; `None` if there was no ring for it.
fn looked(has_seen: Option<bool>) {
    // While the thread ends nobody learns.
    let _ = WAITS.try_with(|known| {
        let mut known = known.borrow_mut();
        match (&mut *known, has_seen) {
            (Some(waits), Some(has_seen)) => waits.polling.looked(has_seen),
            (Some(waits), None) => waits.polling.cannot_look(),
            (None, _) => {}
        }
    });
}

/// Runs one operation on this thread, by a plain system call if there is one for it.
#[inline]
pub(crate) fn run_alone<O: Prepare>(shared: &Arc<Shared>, operation: &mut O) -> Answer {
    loop {
        let answer = run_request(shared, operation);
        if !operation.proceed(answer) {
            return answer;
        }
    }
}

/// One request of an operation alone.
#[inline(always)]
fn run_request<O: Prepare>(shared: &Arc<Shared>, operation: &mut O) -> Answer {
    match operation.prepare().0 {
        Plan::Cover => run_cover(shared, operation),
        plan => run_plan(shared, operation, plan),
    }
}

#[inline(never)]
fn run_cover<O: Prepare>(shared: &Arc<Shared>, operation: &mut O) -> Answer {
    let plan = operation.cover().0;
    run_plan(shared, operation, plan)
}

#[inline(always)]
fn run_plan<O: Prepare>(shared: &Arc<Shared>, operation: &mut O, plan: Plan) -> Answer {
    let (road, request) = match plan {
        Plan::Answered(answer) => return answer,
        Plan::Run(road, request) => (road, request),
        Plan::Cover => unreachable!("it has been asked for"),
        Plan::Sync(_) if shared.is_forked() => return Answer::refused(Refusal::Forked),
        Plan::Sync(_) => return sync_alone(shared, sync_of(operation)),
    };
    if shared.is_forked() {
        return Answer::refused(Refusal::Forked);
    }
    if matches!(request.op, Op::Nop) {
        return match lease(shared) {
            // SAFETY: the addresses point into what the operation owns or has borrowed, and that
            // is ours until this returns.
            Ok(mut lease) => unsafe { lease.wait(&request, None) }.0,
            Err(refusal) => Answer::refused(refusal),
        };
    }
    if road == Road::Device
        && shared.has_rings()
        // That would have several in flight, and looks for each of them.
        && !request.is_split()
        && let Some(at_most) = looks_for(shared)
        // SAFETY: as above.
        && let Some(answer) = unsafe { run_looking(shared, &request, at_most) }
    {
        return answer;
    }
    shared.counters.plain_call();
    if road == Road::Ask
        && let Look::Done(answer) = look(road, operation, &request)
    {
        return answer;
    }
    // SAFETY: the addresses point into what the operation owns or has borrowed, and it is over
    // when this returns.
    unsafe { execute_request(&request) }
}

/// Runs a request in the ring of this thread, and looks for its completion for so long before it
/// sleeps; `None` if there is no ring for it, which a plain call does not need.
///
/// # Safety
///
/// As for [`Lease::wait`].
#[inline(never)]
unsafe fn run_looking(
    shared: &Arc<Shared>,
    request: &Request,
    at_most: Duration,
) -> Option<Answer> {
    let came = lease_with_ring(shared).map(|mut lease| {
        // SAFETY: passed on from the caller.
        unsafe { lease.wait(request, Some(at_most)) }
    });
    looked(came.map(|(_, has_seen)| has_seen));
    came.map(|(answer, _)| answer)
}

impl Lease<'_> {
    /// Waits for the answer of a request, which is the only one. If it is told for how long, it
    /// looks for the completion before it sleeps; whether it has seen it by then.
    ///
    /// # Safety
    ///
    /// Every address in the request stays valid, and nobody else touches what the kernel fills,
    /// until this returns or unwinds.
    #[inline(always)]
    unsafe fn wait(&mut self, request: &Request, looks_for: Option<Duration>) -> (Answer, bool) {
        let proactor = self.proactor();
        // SAFETY: passed on from the caller; the lease is drained should this unwind.
        unsafe { proactor.push(0, request) };
        proactor.turn_for_one(looks_for)
    }
}
