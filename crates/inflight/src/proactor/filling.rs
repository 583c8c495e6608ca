//! Many requests one after the other, straight into a ring.
//!
//! What is the same for all of them is looked at once, and what changes with each stays in
//! registers. Requests that are not one operation of the ring are left to [`Proactor::push`].
#![allow(unsafe_code)]

use super::pushing::as_one;
use super::{Proactor, slots};
use crate::backend::uring::ring;
use crate::op::{KINDS, Request};

/// A proactor that is being filled.
pub(crate) struct Filling<'p> {
    slots: slots::Held<'p>,
    ring: ring::Held<'p>,
    refused: &'p [bool; KINDS],
    in_flight: &'p mut u32,
    queued: &'p mut u32,
    /// Entries in the ring's queue when it began.
    before: u32,
}

impl Proactor {
    /// Also how many requests can be pushed. `None` where the backend is not a ring, or requests
    /// that were pushed before come first. Nor where the ring is broken: it may be entered here,
    /// and still has requests that were made elsewhere since.
    #[inline(always)]
    pub(crate) fn fill(&mut self) -> Option<(Filling<'_>, u32)> {
        if !self.unissued.is_empty() || self.broken.is_some() {
            return None;
        }
        let ring = self.backend.hold()?;
        let room = self.slots.room().min(ring.room());
        let (slots, in_flight) = self.slots.hold();
        let filling = Filling {
            before: ring.queued(),
            slots,
            ring,
            refused: &self.refused,
            in_flight,
            queued: &mut self.queued,
        };
        Some((filling, room))
    }
}

impl Filling<'_> {
    /// Takes a request, for which there is room; the token goes back with its answer. False if it
    /// is for [`Proactor::push`].
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn push(&mut self, token: u32, request: &Request) -> bool {
        let Some((expected, role)) = as_one(request, self.refused) else {
            return false;
        };
        let user_data = self.slots.insert(&request.op, token, expected, role);
        // SAFETY: passed on from the caller; slots bound what is in flight.
        let pushed = unsafe { self.ring.push(user_data, &request.op) };
        assert!(pushed, "there is room");
        true
    }
}

impl Drop for Filling<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let pushed = self.ring.queued() - self.before;
        *self.queued += pushed;
        *self.in_flight += pushed;
    }
}
