//! What a queue has in flight, on the calling thread. How it waits for results is in [`limited`].

mod limited;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::task::Waker;

use super::caller::{Lease, Start, Want};
use super::syncs::sync_of;
use crate::backend::threads::execute::to_usize;
use crate::commit::{HostId, Seat};
use crate::completion::{Answer, Refusal};
use crate::foreign::contain;
use crate::op::{Plan, Prepare, SyncOf};
use limited::Waits;

pub(crate) use limited::Limit;

/// Operations in flight one by one, and their results in the order they come.
pub(crate) struct Flights<'s, O: Prepare> {
    // Dropped first: it is drained while the operations are still there.
    lease: Lease<'s>,
    /// The operations in flight, which are not moved until their answers have come.
    table: Box<[Option<(u64, O)>]>,
    free: Vec<u32>,
    /// Operations that the proactor has no room for yet: of large ones that are split it has as
    /// many parts as it has places.
    later: VecDeque<u32>,
    /// Answers that nobody has asked for yet.
    ready: VecDeque<(u32, Answer)>,
    /// Results taken since the last turn.
    taken: usize,
    /// Syncs that others make; this queue, once it is asked for results and has nothing else in
    /// flight, if nobody else waits for them: nobody knows when it is asked.
    joined: VecDeque<(u32, Seat)>,
    host: HostId,
    waits: Waits,
    /// Rings the proactor's alarm, once a call with a limit has waited for syncs.
    waker: Option<Waker>,
}

impl<'s, O: Prepare> Flights<'s, O> {
    /// At most `depth` operations, or as many as the proactor can have in flight.
    pub(crate) fn new(mut lease: Lease<'s>, depth: u32) -> Self {
        let depth = depth.clamp(1, lease.proactor().capacity());
        // Operations borrow their files for as long as the queue is used, so a number cannot
        // come to mean another file meanwhile.
        lease.proactor().fix_files();
        Self {
            lease,
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            later: VecDeque::new(),
            ready: VecDeque::with_capacity(to_usize(depth)),
            taken: 0,
            joined: VecDeque::new(),
            host: HostId::new(),
            waits: Waits::default(),
            waker: None,
        }
    }

    /// Whether an operation can be pushed now.
    pub(crate) fn has_room(&self) -> bool {
        !self.lease.is_forked() && !self.free.is_empty()
    }

    /// Most operations in flight at a time.
    pub(crate) fn depth(&self) -> usize {
        self.table.len()
    }

    /// Operations pushed whose results have not been taken.
    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// Takes an operation, or gives it back when there is no room.
    #[inline(always)]
    pub(crate) fn push(&mut self, tag: u64, operation: O) -> Result<(), O> {
        // Put together in its place: to copy what has just been written waits for everything that
        // was written before. If a buffer that a panic has left there panics once more when it is
        // dropped, this operation is leaked.
        let operation = ManuallyDrop::new(operation);
        let Some(token) = self.vacate() else {
            return Err(ManuallyDrop::into_inner(operation));
        };
        let Some(place) = self.table.get_mut(to_usize(token)) else {
            return Err(ManuallyDrop::into_inner(operation));
        };
        // There is nothing in it.
        let entry = (tag, ManuallyDrop::into_inner(operation));
        std::mem::forget(place.replace(entry));
        let (_, operation) = place.as_mut().expect("it has just been put there");
        if !self.later.is_empty() || !self.lease.proactor().has_room() {
            self.later.push_back(token);
        } else if let Some(plan) = self.lease.begin(token, operation) {
            self.start(token, plan);
        }
        // Not before it has been started: its buffer may panic.
        self.free.pop();
        Ok(())
    }

    /// Starts what had to wait for room, as far as there is some.
    #[cold]
    fn start_later(&mut self, limit: Limit) {
        while self.lease.proactor().has_room()
            && let Some(token) = self.later.pop_front()
        {
            // As in `next_answer`.
            self.free.push(token);
            self.begin(token, limit);
            self.free.pop();
        }
    }

    /// Starts an operation that is in its place, for which there is room.
    fn begin(&mut self, token: u32, limit: Limit) {
        let place = self.table[to_usize(token)].as_mut();
        let (_, operation) = place.expect("it is not over");
        if limit.is_set() {
            let started = self.lease.start_in_time(token, operation);
            self.has_started(token, started);
        } else if let Some(plan) = self.lease.begin(token, operation) {
            self.start(token, plan);
        }
    }

    /// A place that is free, with nothing in it; `None` if there is no room.
    #[inline(always)]
    fn vacate(&mut self) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let token = *self.free.last()?;
        let place = self.table.get_mut(to_usize(token))?;
        if place.is_some() {
            abandon(place);
        }
        Some(token)
    }

    /// Starts an operation that is not simply for the backend.
    #[inline(never)]
    fn start(&mut self, token: u32, plan: Plan) {
        let place = self.table[to_usize(token)].as_mut();
        let (_, operation) = place.expect("it has just been put there");
        let started = self.lease.start(token, operation, plan);
        self.has_started(token, started);
    }

    /// Keeps what has come of starting an operation.
    fn has_started(&mut self, token: u32, started: Start) {
        match started {
            // Nobody is waited for: without a place the next is not shared.
            Start::Gathered if self.lease.is_gathered_full() => self.take_gathered(Want::Now),
            Start::InFlight | Start::Gathered => {}
            Start::Answered(answer) => self.ready.push_back((token, answer)),
            Start::Sync(_) => {
                let place = self.table[to_usize(token)].as_ref();
                let (_, operation) = place.expect("it is not over");
                let SyncOf {
                    commit,
                    file,
                    data_only,
                } = sync_of(operation);
                let seat = commit.join(data_only, file, None, Some(self.host));
                self.joined.push_back((token, seat));
            }
        }
    }

    /// The next result, waiting for one if need be; `None` when nothing is in flight, or what is
    /// was not over in time.
    #[inline(always)]
    pub(crate) fn next(&mut self, limit: Limit) -> Option<(u64, O::Output)> {
        let (token, answer) = self.next_answer(limit)?;
        let (tag, operation) = self.table[to_usize(token)]
            .take()
            .expect("it was in flight");
        if self.free.len() == self.table.len() {
            self.lease.pauses();
        }
        Some((tag, operation.finish(answer)))
    }

    /// Of the next operation that is over, whose place is free from here on.
    #[inline(never)]
    fn next_answer(&mut self, limit: Limit) -> Option<(u32, Answer)> {
        loop {
            // Those that are answered at once must not keep the others waiting for ever.
            if self.ready.is_empty() || self.taken >= self.table.len() {
                self.turn(limit);
            }
            let (token, answer) = self.ready.pop_front()?;
            self.taken += 1;
            let place = self.table[to_usize(token)].as_mut();
            let (_, operation) = place.expect("it was in flight");
            // Its buffer may panic: what is left of it goes when the place is needed, as in `push`.
            self.free.push(token);
            if !operation.proceed(answer) {
                return Some((token, answer));
            }
            self.go_on(token, limit);
            self.free.pop();
        }
    }

    /// Starts the next request of an operation that has several.
    #[cold]
    fn go_on(&mut self, token: u32, limit: Limit) {
        if self.lease.is_forked() {
            let refused = Answer::refused(Refusal::Forked);
            return self.ready.push_back((token, refused));
        }
        match self.lease.proactor().has_room() {
            true => self.begin(token, limit),
            false => self.later.push_back(token),
        }
    }

    /// Looks for results, and waits for one if there is none.
    #[inline]
    fn turn(&mut self, limit: Limit) {
        loop {
            self.turn_once(limit);
            // Else there is room now for what had none.
            if !self.ready.is_empty() || self.later.is_empty() || limit.is_over() {
                return;
            }
        }
    }

    /// As [`Flights::turn`], but there may be none as long as some have to wait for room.
    #[inline]
    fn turn_once(&mut self, limit: Limit) {
        self.taken = 0;
        if self.lease.is_forked() {
            // They are answered as all that is in its place.
            self.later.clear();
            if !self.ready.is_empty() {
                return;
            }
            let free = &self.free;
            let places = (0_u32..).zip(&self.table);
            // One whose buffer has panicked is still in its place, which is free all the same.
            let abandoned = places.filter(|(at, place)| place.is_some() && !free.contains(at));
            let refused = Answer::refused(Refusal::Forked);
            self.ready
                .extend(abandoned.map(|(token, _)| (token, refused)));
            return;
        }
        if !self.later.is_empty() {
            self.start_later(limit);
        }
        if self.lease.has_gathered() {
            let want = match limit.is_set() {
                false => self.wanted(),
                true => Want::InTime,
            };
            self.take_gathered(want);
        }
        self.lease.turns();
        let (has_results, is_idle) = (!self.ready.is_empty(), self.lease.proactor().is_idle());
        if !self.joined.is_empty() && (has_results || !is_idle || limit.is_set()) {
            // This thread is about to do or to wait for something else.
            let seats = self.joined.iter();
            seats.for_each(|(_, seat)| seat.leave_to_the_pool());
        }
        if has_results && !is_idle {
            self.look(limit);
        }
        while self.ready.is_empty() && self.is_awaited(limit) {
            self.wait(limit);
            if !self.later.is_empty() || (self.ready.is_empty() && limit.is_over()) {
                break;
            }
        }
        self.lease.turned();
        if !self.joined.is_empty() {
            self.look_for_syncs(limit);
        }
    }

    /// Takes answers of reads that are shared with another thread.
    fn take_gathered(&mut self, want: Want) {
        let Self { lease, ready, .. } = self;
        lease.take_gathered(want, |token, answer| ready.push_back((token, answer)));
    }

    /// Which of them are taken by a call without a limit.
    fn wanted(&mut self) -> Want {
        match (self.lease.proactor().is_idle(), self.ready.is_empty()) {
            // With others in flight, results are looked for once for many.
            (false, _) => Want::All,
            (true, true) => Want::Some,
            // The program goes on with those it has.
            (true, false) => Want::Now,
        }
    }

    /// Takes the answers of syncs that are over, and waits for one when nothing else is left.
    #[cold]
    fn look_for_syncs(&mut self, limit: Limit) {
        self.take_syncs();
        if limit.is_set() {
            return self.forget_wakers();
        }
        if !self.ready.is_empty() || !self.lease.proactor().is_idle() {
            // What is in flight leaves others room before it is over.
            return;
        }
        let Some((token, first)) = self.joined.pop_front() else {
            return;
        };
        // Flushes of several files run side by side.
        let others = self.joined.iter().map(|(_, seat)| seat);
        others
            .filter(|other| !other.is_beside(&first))
            .for_each(Seat::leave_to_the_pool);
        first.lead(self.host);
        self.ready.push_back((token, first.wait()));
        self.take_syncs();
    }

    #[cold]
    fn take_syncs(&mut self) {
        let ready = &mut self.ready;
        self.joined.retain(|(token, seat)| {
            let answer = seat.answer();
            ready.extend(answer.map(|answer| (*token, answer)));
            answer.is_none()
        });
    }
}

/// Drops an operation whose buffer has panicked when it was pushed.
#[cold]
fn abandon<O>(place: &mut Option<(u64, O)>) {
    *place = None;
}

impl<O: Prepare> Drop for Flights<'_, O> {
    /// Results that nobody takes are looked at all the same: a failed sync has to be remembered.
    fn drop(&mut self) {
        #[cfg(feature = "faulty")]
        if self.lease.shared.config.undrained {
            return;
        }
        let mut is_left = true;
        while is_left {
            // One that panics, as its buffer is dropped, is over as well: what is behind it has to
            // be looked at all the same.
            contain(|| is_left = self.next(Limit::None).is_some());
        }
    }
}
