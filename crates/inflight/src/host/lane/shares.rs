//! Cached reads that the lane of a runtime with one thread shares with a thread of the pool, where
//! that has been measured to be faster ([`crate::host::sharing::spread`], [`crate::policy`]).
//!
//! A future that is polled on that thread shows its read and leaves it; the lane's task, when it
//! has its turn among the others, takes what the other thread has made, makes some reads itself if
//! there is nothing, and sleeps, to be roused, if the other one is at work at all of them. The
//! tables are the owner's of the desk, and used under its lock: whoever takes the desk finishes
//! what is shared first. A runtime of several threads has them copy side by side as it is.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::{Lane, Movable};
use crate::foreign::{clone_waker, contain};
use crate::host::cells::{Ticket, Wake, bytes_of};
use crate::host::crew;
use crate::host::driver::Desk;
use crate::host::mail::{Rouse, Rouser};
use crate::host::shared::Shared;
use crate::host::sharing::shares::{Came, Offer, take};
use crate::host::sharing::shown::{KINDS, Manner, Shown};
use crate::op::{Prepare, Request};
use crate::policy::{SAMPLE_EVERY, Samples};

pub(super) use crate::host::sharing::shares::Taken;

thread_local! {
    /// Reads of this thread of what the page cache is taken to have, for taking samples.
    static SAMPLES: Cell<Samples> = const { Cell::new(Samples::new()) };
    /// Whether the lane that this thread has asked last shares reads, or may, by [`Manner::kind`].
    /// A hint.
    static IS_OPEN: Cell<[bool; KINDS]> = const { Cell::new([false; KINDS]) };
    /// What the waker was made of that [`Lane::is_alone`] was asked with last. A hint.
    static ASKED: Cell<usize> = const { Cell::new(0) };
    /// Its address is that of no other thread that lives.
    static HERE: u8 = const { 0 };
}

fn is_open(manner: Manner) -> bool {
    IS_OPEN.get()[manner.kind()]
}

fn set_open(manner: Manner, is_open: bool) {
    let mut of_kinds = IS_OPEN.get();
    of_kinds[manner.kind()] = is_open;
    IS_OPEN.set(of_kinds);
}

fn here() -> usize {
    HERE.with(|here| ptr::from_ref(here).addr())
}

/// Shares a read of what the page cache is taken to have with the lane that this thread serves, if
/// that finds it worth it; else it is to be made now.
///
/// # Safety
///
/// As for [`Cells::insert`](crate::host::cells::Cells::insert).
#[inline]
pub(crate) unsafe fn share<O: Prepare>(
    engine: &Arc<Shared>,
    operation: &O,
    request: &Request,
    manner: Manner,
    waker: &Waker,
) -> Offer<(Arc<Lane>, Ticket)> {
    if !engine.lanes.has_any() {
        return Offer::Declined;
    }
    let mut samples = SAMPLES.get();
    // One in a few is made where it is polled, which shows whether they are as fast as they are
    // taken to be.
    let is_sample = samples.takes_next();
    SAMPLES.set(samples);
    if !is_sample && !is_open(manner) {
        return Offer::Declined;
    }
    let lane = crew::current(engine).filter(|lane| lane.is_served_here());
    if is_sample {
        // SAFETY: the caller vouches for what the request names.
        let bytes = unsafe { bytes_of(request) };
        set_open(
            manner,
            lane.is_some_and(|lane| lane.pass_sample(engine, manner, bytes)),
        );
        return match is_open(manner) {
            true => Offer::Sample,
            false => Offer::Declined,
        };
    }
    let Some(lane) = lane else {
        return Offer::Declined;
    };
    // SAFETY: passed on from the caller.
    match unsafe { lane.share(engine, operation, request, manner, waker) } {
        Some(ticket) => Offer::Shared((lane, ticket)),
        None => Offer::Declined,
    }
}

/// Whether the lane that this thread serves, as the only one of its runtime, hands over what the
/// task with this waker asks for: not a call that most likely does not wait, if it is the only one.
/// `None` if there is no such lane.
pub(crate) fn hands_over(engine: &Arc<Shared>, waker: &Waker, is_call: bool) -> Option<bool> {
    let lane = crew::current(engine).filter(|lane| lane.is_served_here())?;
    Some(!(is_call && lane.is_alone(waker)))
}

impl Lane {
    /// Whether this is the only thread of its runtime.
    fn is_served_here(&self) -> bool {
        self.crowd.is_alone() && self.served_by.load(Ordering::Relaxed) == here()
    }

    /// Whether nothing is in flight here, and the same task has been the last to ask, so that it
    /// most likely has one operation at a time. A batch is polled with a waker that is made of
    /// nothing: its others would wait.
    fn is_alone(&self, waker: &Waker) -> bool {
        let asks = waker.data().addr();
        let is_same = ASKED.replace(asks) == asks && asks != 0;
        is_same && self.mailbox.unanswered() == 0
    }

    /// The task is polled on this thread.
    pub(super) fn be_served_here(&self) {
        self.served_by.store(here(), Ordering::Relaxed);
    }

    /// This thread has made as many reads of so many bytes as there are to a sample, if it shares
    /// none. Whether it does now, or may.
    fn pass_sample(&self, engine: &Shared, manner: Manner, bytes: u64) -> bool {
        let Ok(mut desk) = self.desk.try_lock() else {
            return false;
        };
        desk.as_mut().is_some_and(|Movable { gathered, .. }| {
            gathered.passed(engine, manner, SAMPLE_EVERY, bytes);
            gathered.is_open(manner)
        })
    }

    /// Shares a read, unless it is to be made now.
    ///
    /// # Safety
    ///
    /// As for [`share`].
    unsafe fn share<O: Prepare>(
        &self,
        engine: &Shared,
        operation: &O,
        request: &Request,
        manner: Manner,
        waker: &Waker,
    ) -> Option<Ticket> {
        // Cloned, and dropped if it is not needed, while nothing is locked: that is foreign code.
        let mut wake = Some(Wake::Waker(clone_waker(waker)));
        // SAFETY: passed on from the caller.
        let (ticket, rouser) =
            unsafe { self.try_share(engine, operation, request, manner, &mut wake) };
        if let Some(rouser) = rouser {
            // The read is in flight: nothing may unwind any more.
            contain(move || rouser.ring());
        }
        self.keeper.attend();
        // If it is not in flight; else the waker has been taken.
        drop(wake);
        ticket
    }

    /// As [`Lane::share`]; takes whom to wake if the read is shared. Also whom to rouse.
    ///
    /// # Safety
    ///
    /// As for [`share`].
    unsafe fn try_share<O: Prepare>(
        &self,
        engine: &Shared,
        operation: &O,
        request: &Request,
        manner: Manner,
        wake: &mut Option<Wake>,
    ) -> (Option<Ticket>, Option<Arc<Rouser>>) {
        // Somebody else may be about to take it.
        let Ok(mut desk) = self.desk.try_lock() else {
            return (None, None);
        };
        let Some(movable) = desk.as_mut() else {
            return (None, None);
        };
        // SAFETY: the caller vouches for what the request names.
        let bytes = unsafe { bytes_of(request) };
        let gathered = &mut movable.gathered;
        // The hint may be that of another lane.
        let in_flight = || self.mailbox.unanswered();
        let wants = gathered.is_open(manner) && gathered.wants(engine, bytes, manner, in_flight);
        set_open(manner, gathered.is_open(manner));
        if !wants {
            // In a trial it has to be known when there is nothing more to do.
            let rouser = gathered.is_on_trial(manner).then(|| self.mailbox.rouse());
            return (None, rouser.flatten());
        }
        if gathered.is_full() {
            // Else the task would make its read now, and the next one, while what is shown waits.
            movable.take_some(false);
        }
        let has_place = !movable.gathered.is_full();
        let started = has_place.then(|| self.mailbox.start(bytes, wake)).flatten();
        let Some((token, ticket, rouser)) = started else {
            // What has been taken is to be told.
            return (None, self.mailbox.rouse());
        };
        // SAFETY: the caller vouches for what the request names.
        let shown = unsafe { Shown::new(operation, request, manner) };
        let gathered = &mut movable.gathered;
        // SAFETY: passed on from the caller: the cell is done only when the answer has been taken
        // and, if the read was missed, when the proactor has delivered its own.
        unsafe { gathered.show(token, &shown) };
        (Some(ticket), rouser)
    }
}

impl Movable {
    /// Takes answers of what is shared; if none is there, makes some of it itself. Requests for
    /// what was missed are left on the desk.
    pub(super) fn take_shared(&mut self) -> Taken {
        if self.gathered.is_empty() {
            self.gathered.pauses();
            return Taken::Nothing;
        }
        match self.take_some(false) {
            true => Taken::Some,
            false => Taken::Theirs,
        }
    }

    /// Takes the answers of all that is shared, and leaves them on the desk.
    pub(super) fn finish_shared(&mut self) {
        while !self.gathered.is_empty() {
            self.take_some(true);
        }
        self.desk.answers.append(&mut self.made);
    }

    fn take_some(&mut self, waits: bool) -> bool {
        let Desk {
            proactor, taken, ..
        } = &mut self.desk;
        proactor.submit_queued();
        let took = take(&mut self.gathered, waits, |token, came| match came {
            Came::Answer(answer) => self.made.push((token, answer)),
            // Nobody would tell the task of what a thread of the pool has done.
            Came::Missed(request) => self.missed.push((token, request.by_the_backend())),
        });
        // The first one is last there, and these are behind all others.
        let missed = self.missed.drain(..).rev();
        taken.requests.splice(..0, missed);
        took.count(proactor.tally());
        took.is_some()
    }

    /// Whether there is nothing but shared reads: neither in flight, nor reaped and not told.
    pub(super) fn only_shares(&self) -> bool {
        let is_idle = self.desk.proactor.is_idle() && self.desk.answers.is_empty();
        is_idle && self.desk.taken.requests.is_empty()
    }
}
