//! Operations that a calling thread makes itself, or has to look at first.
#![allow(unsafe_code)]

use super::super::cells::bytes_of;
use super::super::look::{Look, look};
use super::super::sharing::shown::Manner;
use super::super::stopwatch::time;
use super::{Lease, Start};
use crate::backend::threads::execute::execute_request;
use crate::completion::Answer;
use crate::op::{Plan, Prepare, Request, Road};
use crate::policy::{MISSES_CROWD, Misses, SAMPLE_EVERY, Step, in_time};

impl Lease<'_> {
    /// Starts an operation, for which the proactor has room, on a thread that has to be back by
    /// some time: it makes no call that may wait.
    #[cold]
    pub(in super::super) fn start_in_time<O: Prepare>(
        &mut self,
        token: u32,
        operation: &mut O,
    ) -> Start {
        let mut plan = operation.prepare().0;
        if matches!(plan, Plan::Cover) {
            plan = operation.cover().0;
        }
        let (road, mut request) = match plan {
            Plan::Answered(answer) => return Start::Answered(answer),
            Plan::Sync(request) => return Start::Sync(request),
            Plan::Run(road, request) => (road, request),
            Plan::Cover => unreachable!("it has been asked for"),
        };
        match in_time(road) {
            Step::Call => {
                self.proactor().tally().answered.add(1);
                return Start::Answered(self.do_here(&request));
            }
            Step::Pool if road == Road::Submit => request = request.submitted(),
            Step::Pool => request = request.aside(),
            _ => {}
        }
        // SAFETY: the addresses point into what the operation owns or has borrowed, and whoever
        // starts it keeps it in its place until the answer has been taken, as for `start`.
        unsafe { self.proactor().push_in_time(token, &request) };
        Start::InFlight
    }

    /// Starts an operation that this thread does itself, or has to look at first.
    #[inline(never)]
    pub(super) fn start_here<O: Prepare>(
        &mut self,
        token: u32,
        operation: &mut O,
        road: Road,
        request: Request,
    ) -> Option<Answer> {
        if matches!(
            road,
            Road::Copy | Road::CopyBlind | Road::CopySlow | Road::Plain
        ) {
            self.proactor().submit_queued();
        }
        let is_sample = self.is_looked_at(road, &request);
        let mut request = request;
        let answer = match (road, is_sample) {
            (Road::Plain | Road::CopySlow, _) if self.is_held_up_by(&request) => {
                request = request.aside();
                None
            }
            (Road::CacheFirst | Road::First | Road::Ask, _) | (Road::Mixed | Road::Cold, true) => {
                self.proactor().tally().plain_calls.add(1);
                match look(road, operation, &request) {
                    Look::Done(answer) => Some(answer),
                    Look::WouldWait => None,
                    // A ring would hand it to a worker of the kernel.
                    Look::Refused => Some(self.time_here(operation, &request)),
                }
            }
            (Road::Warm | Road::Memory | Road::Slow, true) | (Road::Blind | Road::Served, true) => {
                self.proactor().tally().plain_calls.add(1);
                Some(self.time_here(operation, &request))
            }
            (Road::Submit, _) => {
                request = request.submitted();
                None
            }
            (Road::Copy | Road::CopyBlind | Road::CopySlow, _)
            | (Road::Plain | Road::Now, _)
            | (Road::Warm | Road::Blind | Road::Served, _) => Some(self.do_here(&request)),
            (Road::Pool | Road::Slow, _) => {
                request = request.aside();
                None
            }
            (Road::Mixed, false) => {
                request = request.among_hits();
                None
            }
            (Road::Backend | Road::Device | Road::Memory | Road::Cold, _)
            | (Road::Asynchronous, _) => None,
        };
        match answer {
            Some(_) => self.proactor().tally().answered.add(1),
            // SAFETY: as in `start`.
            None => unsafe { self.proactor().push(token, &request) },
        }
        answer
    }

    /// Whether an operation that is not for the proactor alone is made, or asked for, by this
    /// thread to learn from it.
    #[inline(always)]
    fn is_looked_at(&mut self, road: Road, request: &Request) -> bool {
        // A warm read that comes here is a sample.
        let is_blind = matches!(road, Road::Blind | Road::Served);
        let is_warm = is_blind || matches!(road, Road::Warm | Road::Memory);
        match road {
            _ if is_warm => self.passed(request, Manner::of_warm(road, &request.op), SAMPLE_EVERY),
            Road::CacheFirst | Road::First | Road::Mixed => self.passed(request, Manner::Asking, 1),
            _ => {}
        }
        match road {
            // Else the pool times the others, and what completes meanwhile would wait for this one.
            Road::Slow => !self.shared.is_asynchronous() && self.is_sample(),
            Road::Mixed if self.asks_for_misses(self.owned.proactor.in_flight()) => true,
            Road::Mixed | Road::Cold => self.owned.cold_samples.takes_next(),
            _ => is_warm || self.is_sample(),
        }
    }

    /// Whether this thread, which has so many others in flight, asks for the next read of a file of
    /// which the page cache has a part.
    pub(in crate::host) fn asks_for_misses(&mut self, others: u32) -> bool {
        let has_crowd = others >= MISSES_CROWD && self.owned.proactor.can_look();
        !has_crowd || self.owned.misses.next() == Misses::Asked
    }

    /// Makes a call that may wait, and learns from how long it takes.
    fn time_here<O: Prepare>(&mut self, operation: &mut O, request: &Request) -> Answer {
        self.proactor().submit_queued();
        time(operation, request)
    }

    /// So many transfers like this one have not been shared.
    fn passed(&mut self, request: &Request, manner: Manner, transfers: u32) {
        // SAFETY: as in `start`.
        let bytes = unsafe { bytes_of(request) };
        let gathered = &mut self.owned.gathered;
        gathered.passed(self.shared, manner, transfers, bytes);
    }

    /// Whether a write, for which nothing is known to be better than a plain call, holds up what
    /// else this thread has in flight, or could have.
    fn is_held_up_by(&mut self, request: &Request) -> bool {
        let has_others = self.proactor().has_others();
        request.op.is_write() && self.owned.held_up.by(request.op.fd(), has_others)
    }

    fn do_here(&mut self, request: &Request) -> Answer {
        self.proactor().tally().plain_calls.add(1);
        // SAFETY: as in `start`; it is over when this returns.
        unsafe { execute_request(request) }
    }
}
