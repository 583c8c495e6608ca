//! How requests come in, and when what has come in is handed over.
#![allow(unsafe_code)]

use super::Proactor;
use super::slots::Role;
use super::splits::Split;
use crate::backend::threads::execute::{execute_request, to_usize};
use crate::op::{KINDS, Op, Request};

/// So many transfers are handed over at a time: the kernel tells the device of the first one only
/// when it has taken the last one that an enter brings (`struct blk_plug`), and what the device is
/// told of together completes together (`docs/design/roads.md`).
pub(super) const AT_ONCE: u32 = 4;
/// The same of reads among which are many hits.
const HITS_AT_ONCE: u32 = 32;

/// The bytes asked for and the role of a request that is one operation of the backend.
#[inline(always)]
pub(super) fn as_one(request: &Request, refused: &[bool; KINDS]) -> Option<(u32, Role)> {
    let len = request.op.span().map_or(0, |span| span.len);
    let is_large = len > to_usize(request.limit_bytes);
    if refused[request.op.kind()] || is_large || request.aside | request.submitted {
        return None;
    }
    let expected = u32::try_from(len).expect("at most the limit");
    Some((expected, role_of(request)))
}

/// The role of a request that is one operation.
#[inline(always)]
pub(super) fn role_of(request: &Request) -> Role {
    match request.whole {
        true => Role::Whole,
        false => Role::Plain,
    }
}

impl Proactor {
    /// Takes a request, for which there is room; the token goes back with its answer.
    ///
    /// # Safety
    ///
    /// Every address in the request stays valid, and nobody else touches what the kernel fills,
    /// until its answer has been delivered by [`Proactor::turn`].
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, token: u32, request: &Request) {
        // SAFETY: passed on from the caller.
        let is_queued = unsafe { self.push_one(token, request) };
        if is_queued && self.is_enough(request) {
            self.submit();
        }
    }

    /// As [`Proactor::push`], for an owner that has to be back by some time.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    pub(crate) unsafe fn push_in_time(&mut self, token: u32, request: &Request) {
        // SAFETY: passed on from the caller.
        self.in_time(|this| unsafe { this.push(token, request) });
    }

    /// As [`Proactor::push`], but nothing is handed over yet. False if it has not been queued as
    /// it is.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    #[inline(always)]
    unsafe fn push_one(&mut self, token: u32, request: &Request) -> bool {
        debug_assert!(self.has_room());
        let Some((expected, role)) = as_one(request, &self.refused) else {
            // SAFETY: passed on from the caller.
            unsafe { self.push_odd(token, *request) };
            return false;
        };
        let user_data = self.slots.insert(&request.op, token, expected, role);
        // SAFETY: passed on from the caller; slots bound what is in flight.
        unsafe { self.queue(user_data, &request.op) };
        true
    }

    /// Whether no more are to be handed over together with this one. Reads through the page cache
    /// never gain by it, but by answers that come at once: the kernel has to find pages for each
    /// first.
    #[inline]
    pub(super) fn is_enough(&self, request: &Request) -> bool {
        if request.among_hits {
            return self.queued >= HITS_AT_ONCE;
        }
        let is_transfer = matches!(request.op, Op::ReadAt { .. } | Op::WriteAt { .. });
        self.queued >= AT_ONCE
            && (request.reads_through_the_cache() || (self.hands_over_few && is_transfer))
    }

    /// Queues the operation of a slot.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`], and it is not queued or in flight already.
    #[inline(always)]
    pub(super) unsafe fn queue(&mut self, user_data: u64, op: &Op) {
        self.queued += 1;
        // SAFETY: passed on from the caller.
        if !unsafe { self.backend.push(user_data, op) } {
            self.not_taken(user_data);
        }
    }

    /// As if the backend had taken the operation and given it up.
    #[cold]
    pub(super) fn not_taken(&mut self, user_data: u64) {
        let index = self.slots.find(user_data).expect("it has a slot");
        self.troubled.push((index, -libc::ECANCELED));
    }

    /// Takes a request that is not one operation of the backend.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    #[cold]
    unsafe fn push_odd(&mut self, token: u32, mut request: Request) {
        if self.is_for_direct_transfers && self.broken.is_none() {
            // SAFETY: passed on from the caller.
            return unsafe { self.push_direct_or_aside(token, request) };
        }
        let leaves_calls = self.is_in_time && self.aside.has_pool() && self.broken.is_none();
        if self.is_unserved(&request.op) || (leaves_calls && self.refused[request.op.kind()]) {
            request = request.aside();
        } else if self.refused[request.op.kind()] {
            self.tally.plain_calls.add(1);
            self.tally.answered.add(1);
            // SAFETY: passed on from the caller.
            let answer = unsafe { execute_request(&request) };
            self.early.push((token, answer));
            return;
        }
        if request.is_split() {
            self.push_split(Split::new(token, request, 0));
        } else if request.aside {
            // SAFETY: passed on from the caller.
            unsafe { self.push_aside(token, request) };
        } else {
            // SAFETY: as above.
            unsafe { self.push_started(token, &request) };
        }
    }
}
