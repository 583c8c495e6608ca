//! Direct transfers that Linux AIO starts, beside a ring.
//!
//! Those of files that cannot be asked not to wait (`RWF_NOWAIT`), of which it has been seen that a
//! call only starts them. A ring would hand each to a worker of the kernel, which has to be woken
//! for it; io_submit(2) starts it on the thread that hands over (`docs/design/backends.md`).
//!
//! Only for an owner that sleeps until completions are announced: each of these signals what those
//! of the ring do. Who waits in a ring makes as many transfers by its workers, on other processors,
//! though that costs more of them. They have slots like all others.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::aside::UNTOLD;
use super::pushing::role_of;
use super::slots::STARTED;
use super::{Proactor, Reaping, Wait, completions_lost};
use crate::backend::Broken;
use crate::backend::aio::queue::Aio;
use crate::backend::threads::execute::to_usize;
use crate::completion::Answer;
use crate::op::{Op, Request};

/// A submission that takes so long has waited for something: others of its thread wait with it.
const HELD_UP: Duration = Duration::from_micros(500);
/// For so many times as long the ring has what comes, of which its workers may wait.
const HELD_UP_TIMES: u32 = 16;
/// Longer ones say little of the file: the thread may have been stopped.
const HELD_UP_MAX: Duration = Duration::from_millis(300);

/// Where the calls cannot be had the ring has what comes for so long.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct Older {
    /// Made when it is first needed.
    calls: Option<Box<Aio>>,
    in_flight: u32,
    /// Until then the ring has them.
    rests_until: Option<Instant>,
    /// Why the calls cannot be had, to be told.
    refusal: Option<String>,
    was_refused: bool,
}

impl Older {
    /// Whether something is in flight here.
    #[inline(always)]
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// How many operations are in flight here.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.as_ref().map_or(0, |calls| calls.calls())
    }

    /// Whether another turn would get further.
    pub(super) fn has_work(&self) -> bool {
        let has_work = |calls: &Aio| calls.has_completed() || calls.unsubmitted() > 0;
        self.in_flight > 0 && self.calls.as_deref().is_some_and(has_work)
    }

    /// Whether there is something for [`Older::take_refusal`].
    #[inline]
    pub(super) fn has_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// Why the ring has what these calls would do better, once.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    fn rests(&mut self) -> bool {
        match self.rests_until {
            Some(until) if Instant::now() < until => true,
            _ => {
                self.rests_until = None;
                false
            }
        }
    }

    fn refused(&mut self, why: &str) {
        self.rests_until = Some(Instant::now() + TRY_AGAIN);
        if !self.was_refused {
            self.was_refused = true;
            self.refusal = Some(format!(
                "direct transfers of files that cannot be asked not to wait are left to workers of \
                 the kernel, because {why}"
            ));
        }
    }

    /// Hands over what is queued.
    fn submit(&mut self) -> Result<(), Broken> {
        let Some(calls) = &mut self.calls else {
            return Ok(());
        };
        if calls.unsubmitted() == 0 {
            return Ok(());
        }
        let begun = Instant::now();
        calls.turn(0)?;
        self.has_taken(begun.elapsed());
        Ok(())
    }

    /// Leaves what comes to the ring for a while, if a submission took so long that it has waited.
    pub(super) fn has_taken(&mut self, took: Duration) {
        if took > HELD_UP {
            self.rests_until = Some(Instant::now() + took.min(HELD_UP_MAX) * HELD_UP_TIMES);
        }
    }

    /// Waits until `at_least` can be reaped, a signal comes, or the time is over.
    fn wait(&mut self, at_least: u32, at_most: Option<Duration>) -> Result<(), Broken> {
        match &mut self.calls {
            Some(calls) => calls.take_for(to_usize(at_least.min(self.in_flight)), at_most),
            None => Ok(()),
        }
    }
}

impl Proactor {
    /// Takes a request of which a call only starts the transfer. There is room.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    #[cold]
    pub(super) unsafe fn push_started(&mut self, token: u32, request: &Request) {
        let len = request.op.span().map_or(0, |span| span.len);
        let expected = u32::try_from(len).expect("at most the limit");
        let role = role_of(request);
        let user_data = self.slots.insert(&request.op, token, expected, role);
        // SAFETY: passed on from the caller; slots bound what is in flight.
        unsafe { self.queue_started(user_data, &request.op) };
        if self.is_enough(request) {
            self.submit();
        }
    }

    /// Queues such an operation of a slot; for the ring, where these calls do not take it.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::queue`].
    pub(super) unsafe fn queue_started(&mut self, user_data: u64, op: &Op) {
        let calls = match self.has_older_calls() {
            true => self.older.calls.as_mut(),
            false => None,
        };
        // SAFETY: passed on from the caller; there is room for as many as there are slots.
        let is_queued = calls.is_some_and(|calls| unsafe { calls.push(user_data, op, true) });
        if !is_queued {
            // SAFETY: passed on from the caller; these calls have not taken it.
            return unsafe { self.queue(user_data, op) };
        }
        let index = self.slots.find(user_data).expect("it is in flight");
        self.slots.get_mut(index).retries = STARTED;
        self.queued += 1;
        self.older.in_flight += 1;
    }

    /// Whether there are such calls beside the backend now. They are made if there are none.
    fn has_older_calls(&mut self) -> bool {
        if !self.aside.has_announcements() || self.older.rests() {
            return false;
        }
        if let Some(calls) = &self.older.calls {
            // What is to be handed over together is asked about together.
            let is_allowed = calls.unsubmitted() > 0 || Aio::are_allowed();
            if !is_allowed {
                self.older
                    .refused("a filter that has come since may refuse Linux AIO");
            }
            return is_allowed;
        }
        match self.new_older_calls() {
            Ok(calls) => self.older.calls = Some(Box::new(calls)),
            Err(why) => self.older.refused(&why),
        }
        self.older.calls.is_some()
    }

    fn new_older_calls(&mut self) -> Result<Aio, String> {
        let announcer = self
            .backend
            .announcer()
            .map_err(|cause| cause.to_string())?;
        let calls = Aio::beside_a_ring(self.slots.capacity(), announcer);
        calls.map_err(|why| why.to_string())
    }

    /// Hands over what is for these calls.
    pub(super) fn submit_started(&mut self) {
        let submitted = self.older.submit();
        go_on_or_end(submitted);
    }

    /// As [`Proactor::hand_over`], with something in flight here and nothing in the pool.
    #[cold]
    pub(super) fn hand_over_started(&mut self, at_least: u32, wait: Wait) -> Result<(), Broken> {
        self.submit_started();
        let waits = at_least > 0 && !self.older.has_work();
        let at_most = self.until_untold(wait);
        if waits && self.in_backend() == 0 {
            go_on_or_end(self.older.wait(at_least, at_most));
            self.all_is_handed_over();
            self.count_enters();
            return Ok(());
        }
        let wait = match wait {
            Wait::Not | Wait::Now => wait,
            _ => Wait::OrAlarm(at_most, false),
        };
        self.hand_over(u32::from(waits), wait)
    }

    /// Whether something is in flight here and in the ring: it completes in one of the two places
    /// without a word to who waits in the other, unless completions are announced.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_in_two_places(&self) -> bool {
        self.older.is_busy() && self.in_backend() > 0
    }

    /// How long may be waited in one place, where nobody tells of what completes in the other.
    pub(super) fn until_untold(&self, wait: Wait) -> Option<Duration> {
        match self.older.is_busy() {
            true => Some(wait.at_most().map_or(UNTOLD, |at_most| at_most.min(UNTOLD))),
            false => wait.at_most(),
        }
    }

    /// Hands over what is for these calls, and looks until one can be reaped or the time is over.
    /// True if one can.
    #[cfg(feature = "tokio")]
    pub(super) fn look_in_older_calls(&mut self, at_most: Duration) -> bool {
        self.submit_started();
        let calls = self.older.calls.as_mut();
        calls.is_some_and(|calls| calls.look(at_most))
    }

    /// Delivers what has completed; the rest goes to `troubled`.
    #[cold]
    pub(super) fn reap_started(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        go_on_or_end(self.older.wait(0, None));
        let Older {
            calls, in_flight, ..
        } = &mut self.older;
        let Some(calls) = calls else {
            return;
        };
        let mut reaping = Reaping::begin(&mut self.slots, &mut self.troubled, &self.tally);
        for completion in calls.reap() {
            *in_flight -= 1;
            reaping.take(completion, deliver);
        }
        self.reaped += reaping.end();
    }

    /// Waits for what is in flight here.
    pub(super) fn drain_started(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        if self.older.is_busy() {
            self.submit_started();
            go_on_or_end(self.older.wait(1, None));
            self.reap_started(deliver);
        }
    }
}

/// There is no sound way on where it is unknown which buffers the kernel still writes to.
fn go_on_or_end(done: Result<(), Broken>) {
    if let Err(broken) = done {
        completions_lost(&format!(
            "asynchronous calls cannot be made any more with transfers in flight ({})",
            broken.cause
        ));
    }
}
