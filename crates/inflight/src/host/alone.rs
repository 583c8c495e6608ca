//! One operation that a thread waits for: a plain system call, or the only one in its ring.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::caller::{Lease, Look, lease, look};
use super::shared::Shared;
use super::syncs::{sync_alone, sync_of};
use crate::backend::threads::execute::execute_request;
use crate::completion::{Answer, Refusal};
use crate::op::{Op, Plan, Prepare, Request, Road};

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
    if road == Road::Device || matches!(request.op, Op::Nop) {
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
