//! Cached reads that a run loop shares with a thread of the pool, where that has been measured to
//! be faster ([`crate::host::sharing::spread`], [`crate::policy`]).
//!
//! A future that is polled in the loop shows its read and leaves it; when all tasks that were ready
//! have been polled, the loop takes what the other thread has made, makes some reads itself if
//! there is nothing, and sleeps in its proactor if the other one is at work at all of them. Who may
//! have to wait for a device is told in [`crate::host::sharing::shares`].
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::{Home, Loop, with_current};
use crate::host::caller::Lease;
use crate::host::cells::{Ticket, bytes_of};
use crate::host::mail::Rouser;
use crate::host::shared::Shared as Engine;
use crate::host::sharing::shares::{Came, Offer, take};
use crate::host::sharing::shown::{Manner, Shown};
use crate::op::{Prepare, Request};
use crate::policy::{SAMPLE_EVERY, Samples};

pub(super) use crate::host::sharing::shares::Taken;

/// What a loop shares beside its lease.
pub(super) struct Shared {
    /// Reads that it has been asked about, for taking samples.
    samples: Cell<Samples>,
    /// Reads that the page cache did not have, and for which the proactor has had no room.
    missed: RefCell<VecDeque<(u32, Request)>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            samples: Cell::new(Samples::new()),
            missed: RefCell::default(),
        }
    }
}

/// Shares a read of what the page cache is taken to have with the loop of this thread, if it is of
/// this engine and finds that worth it; else it is to be made now.
///
/// # Safety
///
/// As for [`Cells::insert`](crate::host::cells::Cells::insert).
#[inline]
pub(crate) unsafe fn share<O: Prepare>(
    engine: &Arc<Engine>,
    operation: &O,
    request: &Request,
    manner: Manner,
    waker: &Waker,
) -> Offer<(Home, Ticket)> {
    let offered = with_current(|current| {
        if !Arc::ptr_eq(current.shared, engine) {
            return Offer::Declined;
        }
        // SAFETY: the caller vouches for what the request names.
        let bytes = unsafe { bytes_of(request) };
        let (is_open, is_sample) = current.is_sharing(manner, bytes);
        if is_sample {
            return match is_open {
                true => Offer::Sample,
                false => Offer::Declined,
            };
        }
        if is_open
            // SAFETY: passed on from the caller.
            && let Some(ticket) = unsafe { current.share(operation, request, bytes, manner, waker) }
        {
            return Offer::Shared((current.remote.id, ticket));
        }
        // Of the others it is not as likely that they do not wait.
        let is_warm = manner == Manner::WithoutWaiting;
        match is_warm && operation.is_on_device() && current.may_be_away(waker) {
            true => Offer::Call,
            false => Offer::Declined,
        }
    });
    offered.unwrap_or(Offer::Declined)
}

/// Whether the loop of this thread, if operations of this engine belong to it, gives its ring the
/// next read of a file of which the page cache has a part, without asking for it.
pub(crate) fn gives_misses(engine: &Arc<Engine>) -> bool {
    let gives = with_current(|current| {
        if !Arc::ptr_eq(current.shared, engine) {
            return false;
        }
        let others = current.cells.borrow().unanswered();
        !current.lease.borrow_mut().asks_for_misses(others)
    });
    gives.unwrap_or(false)
}

impl Loop<'_> {
    /// Whether it has to be asked who makes a read of so many bytes, and whether it is one of the
    /// few that are made where they are polled, which shows whether they are as fast as they are
    /// taken to be.
    #[inline]
    fn is_sharing(&self, manner: Manner, bytes: u64) -> (bool, bool) {
        let mut samples = self.shares.samples.get();
        let is_sample = samples.takes_next();
        self.shares.samples.set(samples);
        let mut lease = self.lease.borrow_mut();
        if is_sample {
            let gathered = lease.gathered();
            gathered.passed(self.shared, manner, SAMPLE_EVERY, bytes);
        }
        (lease.gathered().is_open(manner), is_sample)
    }

    /// Shares a read of so many bytes, unless it is to be made now.
    ///
    /// # Safety
    ///
    /// As for [`share`].
    unsafe fn share<O: Prepare>(
        &self,
        operation: &O,
        request: &Request,
        bytes: u64,
        manner: Manner,
        waker: &Waker,
    ) -> Option<Ticket> {
        let wake = self.wake_of(waker);
        let may_start = self.cells.borrow().may_start(bytes);
        let mut lease = self.lease.borrow_mut();
        let gathered = lease.gathered();
        // Cloning a waker is foreign code, which may have ended a trial.
        let in_flight = || self.cells.borrow().unanswered();
        let is_wanted = may_start
            && gathered.is_open(manner)
            && gathered.wants(self.shared, bytes, manner, in_flight);
        if is_wanted && lease.gathered().is_full() {
            // Else the task would make its read now, and the next one, while what is shown waits.
            self.take_some(&mut lease, false);
        }
        if !is_wanted || lease.gathered().is_full() {
            drop(lease);
            drop(wake);
            return None;
        }
        let (token, ticket) = self.cells.borrow_mut().insert_in_flight(bytes, wake);
        let gathered = lease.gathered();
        // SAFETY: the caller vouches for what the request names.
        let shown = unsafe { Shown::new(operation, request, manner) };
        // SAFETY: passed on from the caller: the cell is done only when the answer has been taken
        // and, if the read was missed, when the proactor has delivered its own.
        unsafe { gathered.show(token, &shown) };
        Some(ticket)
    }

    /// Takes answers of what is shared; if none is there, makes some of it itself. A loop with no
    /// task to poll has itself told of the rest.
    #[inline]
    pub(super) fn take_shared(&self, is_busy: bool) -> Taken {
        let mut lease = self.lease.borrow_mut();
        if !lease.has_gathered() {
            if !is_busy {
                lease.pauses();
            }
            return Taken::Nothing;
        }
        self.take(&mut lease, is_busy)
    }

    fn take(&self, lease: &mut Lease<'_>, is_busy: bool) -> Taken {
        if self.take_some(lease, false) {
            return Taken::Some;
        }
        if is_busy {
            return Taken::Theirs;
        }
        if let Ok(alarm) = lease.proactor().alarm()
            && !lease.gathered().watch(&Rouser::Alarm(alarm))
        {
            return Taken::Theirs;
        }
        // One is there now. Without an alarm it waits for them alone: they are copies.
        self.take_some(lease, true);
        Taken::Some
    }

    /// Takes the answers of all that is shared. False if there is nothing.
    pub(super) fn take_all_shared(&self) -> bool {
        let mut lease = self.lease.borrow_mut();
        let has_any = lease.has_gathered();
        while lease.has_gathered() {
            self.take_some(&mut lease, true);
        }
        has_any
    }

    /// Takes answers that are there, or made by this thread, or waited for. False if there is none.
    fn take_some(&self, lease: &mut Lease<'_>, waits: bool) -> bool {
        lease.proactor().submit_queued();
        let mut answering = self.answering();
        let mut missed = self.shares.missed.borrow_mut();
        let took = take(lease.gathered(), waits, |token, came| match came {
            Came::Answer(answer) => answering.take(token, answer),
            Came::Missed(request) => missed.push_back((token, request)),
        });
        took.count(lease.proactor().tally());
        drop((answering, missed));
        self.miss(lease);
        took.is_some()
    }

    /// Hands reads over that the page cache did not have, if the proactor has had no room for them.
    #[inline]
    pub(super) fn hand_over_missed(&self) {
        if !self.shares.missed.borrow().is_empty() {
            self.miss(&mut self.lease.borrow_mut());
        }
    }

    fn miss(&self, lease: &mut Lease<'_>) {
        let mut missed = self.shares.missed.borrow_mut();
        let proactor = lease.proactor();
        while proactor.has_room()
            && let Some((token, request)) = missed.pop_front()
        {
            self.is_short.set(false);
            // SAFETY: as for what is shared: the cell is in flight until this is answered. Nobody
            // is at work at it any more, as its answer has been taken.
            unsafe { proactor.push(token, &request) };
        }
    }
}
