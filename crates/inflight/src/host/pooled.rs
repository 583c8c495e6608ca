//! The pool host: what is awaited outside a run loop and is a plain call anyway. The thread of the
//! pool that makes the call answers it.
//!
//! A driver in between would add its own two wake-ups to each operation (`docs/design/hosts.md`).
//! The [`Mailbox`] is like that of a driver; what differs is that several threads look into it, one
//! for each request, and that nobody parks.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::cells::{Kept, Left, Then, Ticket, Wake};
use super::mail::{Mailbox, Rouse};
use crate::backend::threads::calls::Calls;
use crate::backend::threads::execute::{
    Clocked, execute_request, execute_submitted, to_usize, wanted_bytes,
};
use crate::backend::threads::pool::{Pool, Serve};
use crate::completion::Answer;
use crate::foreign::contain;
use crate::fork::in_the_parent;
use crate::op::{Request, TRANSFER_MAX_BYTES};
use crate::proactor::Tally;
use crate::sync::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Pooled {
    mailbox: Mailbox<Nobody>,
    tally: Arc<Tally>,
    /// Whether the engine has rings.
    beside: bool,
    pool: Arc<Pool>,
    /// Whether the pool has a thread; from then on it has one until it is closed.
    has_thread: AtomicBool,
    calls: Calls,
}

/// Threads are called by whoever hands something over, and by those that come.
#[derive(Clone)]
pub(super) struct Nobody;

impl Rouse for Nobody {
    fn ring(&self) {}
}

impl Pooled {
    /// With so many bytes in flight at most, of an engine with rings or without.
    pub(super) fn new(pool: Arc<Pool>, bytes_max: u64, beside: bool) -> Self {
        Self {
            mailbox: Mailbox::new(Nobody, bytes_max),
            tally: Arc::default(),
            beside,
            pool,
            has_thread: AtomicBool::new(false),
            calls: Calls::default(),
        }
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Hands over a request; `None` if the pool has no thread.
    ///
    /// # Safety
    ///
    /// As for [`super::cells::Cells::insert`].
    pub(super) unsafe fn submit(
        self: &Arc<Self>,
        request: Request,
        waker: &Waker,
    ) -> Option<Ticket> {
        if !self.has_thread() {
            return None;
        }
        // SAFETY: passed on from the caller.
        let ticket = unsafe { self.mailbox.submit(request, waker) }?;
        self.call(self.mailbox.waiting());
        Some(ticket)
    }

    /// Hands over requests together, and appends their tickets. Nobody is told of the answers
    /// until they have been polled. False if the pool has no thread.
    ///
    /// # Safety
    ///
    /// As for [`super::cells::Cells::insert`].
    pub(super) unsafe fn submit_all(
        self: &Arc<Self>,
        requests: impl Iterator<Item = Request>,
        tickets: &mut Vec<Ticket>,
    ) -> bool {
        // SAFETY: passed on from the caller.
        if !self.has_thread() || !unsafe { self.mailbox.submit_all(requests, tickets) } {
            return false;
        }
        self.call(self.mailbox.waiting());
        true
    }

    fn has_thread(&self) -> bool {
        if self.has_thread.load(Ordering::Relaxed) {
            return true;
        }
        let has_thread = self.pool.has_thread();
        if has_thread {
            self.has_thread.store(true, Ordering::Relaxed);
        }
        has_thread
    }

    fn call(self: &Arc<Self>, waiting: u64) {
        // A pool that has a thread keeps one.
        let _ = self
            .calls
            .make(waiting, &self.pool, || Arc::clone(self) as _);
    }

    pub(super) fn poll(&self, ticket: Ticket, waker: &Waker) -> Option<Answer> {
        self.mailbox.poll(ticket, waker)
    }

    pub(super) fn abandon(
        self: &Arc<Self>,
        ticket: Ticket,
        keep: impl FnOnce() -> Box<dyn Kept>,
    ) -> Left {
        let left = self.mailbox.abandon(ticket, keep);
        if matches!(left, Left::Withdrawn) {
            // It may have been the one for which there was no room, and those behind it smaller.
            self.call(self.mailbox.waiting());
        }
        left
    }

    /// Requests without an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        self.mailbox.unanswered()
    }

    /// Waits until nothing is in flight, but no longer than until `deadline`. Returns how many
    /// requests are then left; the pool's threads go on with them.
    pub(super) fn end(&self, deadline: Instant) -> u32 {
        self.mailbox.end();
        if self.unanswered() == 0 {
            return 0;
        }
        match self.mailbox.wait_for_end(deadline) {
            true => 0,
            false => self.unanswered(),
        }
    }

    fn make(&self, request: &Request) -> Answer {
        self.tally.in_flight.add_with_others(1);
        // SAFETY: whoever has the ticket of a request keeps its memory until the cell is done, or
        // has left it in the cell; it is done when this answer has been left there.
        let answer = unsafe { self.time(request) };
        self.tally.in_flight.take_with_others(1);
        self.tally.answered.add_with_others(1);
        answer
    }

    /// As [`execute_request`]; the policy learns how long it takes.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn time(&self, request: &Request) -> Answer {
        if self.beside {
            self.tally.pool_calls.add_with_others(1);
        }
        // SAFETY: passed on from the caller. What is made shortens the list of buffers.
        let wanted = unsafe { wanted_bytes(&request.op) };
        let clocked = Clocked::begin(&request.op);
        let (answer, is_asynchronous) = match request.submitted {
            // SAFETY: passed on from the caller.
            true => unsafe { execute_submitted(request) },
            // SAFETY: as above.
            false => (unsafe { execute_request(request) }, None),
        };
        let took = clocked.took_ns();
        let is_full = answer.errno().is_none() && answer.bytes() == wanted;
        let is_one_call = (1..=to_usize(TRANSFER_MAX_BYTES)).contains(&wanted);
        if !(is_full && is_one_call && request.op.wishes().is_none()) {
            return answer;
        }
        let answer = Answer::timed(wanted, took);
        is_asynchronous.map_or(answer, |was| answer.submitted(was))
    }

    /// Tells of an answer that has been left.
    fn tell(&self, then: Then) {
        match then {
            Then::Wake(Wake::Waker(waker)) => in_the_parent(|| contain(|| waker.wake())),
            Then::Wake(Wake::Nobody | Wake::Task(_)) => {}
            Then::Over(kept, answer) => {
                in_the_parent(|| contain(|| kept.over(answer)));
                self.mailbox.has_let_go();
            }
        }
    }
}

impl Serve for Pooled {
    fn serve(self: Arc<Self>, others_wait: &std::sync::atomic::AtomicBool) -> bool {
        let call = |waiting| self.call(waiting);
        let make = |request: &Request| self.make(request);
        let others_wait = || others_wait.load(Ordering::Relaxed);
        let tell = |then| self.tell(then);
        serve(&self.mailbox, &self.calls, others_wait, call, make, tell)
    }
}

/// Makes all that is in a mailbox, on a thread that was called to it, unless others wait. True if
/// there may be more.
pub(super) fn serve(
    mailbox: &Mailbox<Nobody>,
    calls: &Calls,
    others_wait: impl Fn() -> bool,
    call: impl Fn(u64),
    make: impl Fn(&Request) -> Answer,
    tell: impl Fn(Then),
) -> bool {
    calls.came();
    while let (Some((token, request)), waiting) = mailbox.take_one() {
        calls.begins();
        if waiting > 0 {
            call(waiting);
        }
        let answer = make(&request);
        calls.ends();
        tell(mailbox.answer(token, answer));
        if others_wait() {
            calls.comes_again();
            return true;
        }
    }
    false
}
