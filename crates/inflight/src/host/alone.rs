//! One operation that a thread waits for: a plain system call, or the only one in its ring.
#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use super::caller::{Lease, lease};
use super::look::{Look, look};
use super::shared::Shared;
use super::syncs::{sync_alone, sync_of};
use crate::backend::threads::execute::execute_request;
use crate::backend::unasked::{Place, Unasked};
use crate::completion::{Answer, Refusal};
use crate::op::{Op, Plan, Prepare, Request, Road};

thread_local! {
    /// Operations of this thread for which a ring would have been made, at most [`BEFORE_A_RING`].
    static BEFORE: Cell<u32> = const { Cell::new(0) };
    /// That a ring is made for them, until the thread ends.
    static EARNED: OnceCell<Place> = const { OnceCell::new() };
}

/// Of such threads, which have done with a plain call until then: a server may have thousands.
static RINGS: Unasked = Unasked::new();

/// So many of a thread's operations are plain calls before a ring is made for them. That and its
/// end take as long as a read of a fast drive, and save a twentieth of each one: nothing for
/// threads that make a few and end.
const BEFORE_A_RING: u32 = 16;

/// Whether this thread has come so far that a ring pays, and there are not too many.
#[inline]
fn earns_a_ring() -> bool {
    // While the thread ends, none does.
    let counted = BEFORE.try_with(|before| {
        let made = before.get();
        if made <= BEFORE_A_RING {
            before.set(made + 1);
        }
        made
    });
    match counted {
        Ok(made) if made > BEFORE_A_RING => true,
        Ok(BEFORE_A_RING) => takes_a_ring(),
        _ => false,
    }
}

/// Whether there is a place for a ring of this thread. If not, it is asked for again after as many
/// operations.
#[cold]
fn takes_a_ring() -> bool {
    let place = RINGS.take();
    let has_one = place.is_some();
    let kept = EARNED.try_with(|earned| match place {
        Some(place) => drop(earned.set(place)),
        None => BEFORE.set(0),
    });
    has_one && kept.is_ok()
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
    if road == Road::Device && shared.has_rings() && earns_a_ring() || matches!(request.op, Op::Nop)
    {
        return match lease(shared) {
            // SAFETY: the addresses point into what the operation owns or has borrowed, and that
            // is ours until this returns.
            Ok(mut lease) => unsafe { lease.wait(&request) },
            Err(refusal) => Answer::refused(refusal),
        };
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

impl Lease<'_> {
    /// Waits for the answer of a request, which is the only one.
    ///
    /// # Safety
    ///
    /// Every address in the request stays valid, and nobody else touches what the kernel fills,
    /// until this returns or unwinds.
    #[inline(always)]
    unsafe fn wait(&mut self, request: &Request) -> Answer {
        let proactor = self.proactor();
        // SAFETY: passed on from the caller; the lease is drained should this unwind.
        unsafe { proactor.push(0, request) };
        proactor.turn_for_one()
    }
}
