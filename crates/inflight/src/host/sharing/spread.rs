//! Copies that a caller shares with a thread of the pool, where the policy has found that to be
//! faster: that thread begins while the caller still adds to them. They are reads of what the page
//! cache has, and direct reads and writes of memory.
//!
//! Next: [`super::helper`], [`super::shown`], [`super::share`], [`crate::policy`].
#![allow(unsafe_code)]

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use super::super::mail::Rouser;
use super::super::shared::Shared;
use super::super::stopwatch::nanoseconds_since;
use super::callers::Caller;
use super::helper::{CREDIT, Common};
use super::share::Side;
use super::shown::{Block, KINDS, Made, Makers, Manner, PLACES, Place, Places, Shown};
use super::sides::Owners;
use crate::backend::threads::execute::{to_usize, wanted_bytes};
use crate::completion::Answer;
use crate::op::{Op, Request};
use crate::policy::{Calls, Hands, LATE, Spread, weight};

/// What a caller shares, and what it has learned of sharing.
pub(in crate::host) struct Gathered {
    /// By [`Manner::kind`].
    spreads: [Spread; KINDS],
    /// Made for the first trial.
    common: Option<Arc<Common>>,
    owner: Owners,
    /// What the places are to the owner, of each side.
    own: [Box<[Own]>; 2],
    makers: Makers,
    /// Of all whose answers have not been taken.
    weight: u64,
    calls: Calls,
    called: Instant,
    /// Processors that this thread may use, when that has been asked.
    processors: usize,
    caller: Option<Caller>,
    born: Instant,
}

/// What only the owner has to know of the read at a place.
#[derive(Clone, Copy, Default)]
struct Own {
    token: u32,
    block: Block,
    manner: Manner,
}

impl Gathered {
    pub(in crate::host) fn new() -> Self {
        Self {
            spreads: std::array::from_fn(|kind| Spread::new(Manner::has_ring(kind))),
            common: None,
            owner: Owners::default(),
            own: Default::default(),
            makers: Makers::new(),
            weight: 0,
            calls: Calls::default(),
            called: Instant::now(),
            processors: 0,
            caller: None,
            born: Instant::now(),
        }
    }

    /// Whether reads of this kind are shared now, or may be: [`Gathered::push`] is to be asked.
    #[inline(always)]
    pub(in crate::host) fn is_open(&self, manner: Manner) -> bool {
        self.spreads[manner.kind()].is_open()
    }

    /// Whether reads of this kind are made alone and shared in turn, to find out what is faster.
    #[cfg(feature = "tokio")]
    pub(in crate::host) fn is_on_trial(&self, manner: Manner) -> bool {
        self.spreads[manner.kind()].is_on_trial()
    }

    /// Whether the answers of all that is shared have been taken.
    #[inline(always)]
    pub(in crate::host) fn is_empty(&self) -> bool {
        self.owner.is_empty()
    }

    /// Whether there is no place for another read.
    pub(in crate::host) fn is_full(&self) -> bool {
        to_usize(self.owner.len()) == PLACES
    }

    /// The caller has made so many reads of so many bytes one by one, or a ring has, while nothing
    /// of their kind is to be shared.
    #[inline]
    pub(in crate::host) fn passed(
        &mut self,
        shared: &Shared,
        manner: Manner,
        reads: u32,
        bytes: u64,
    ) {
        let spread = &mut self.spreads[manner.kind()];
        if !spread.is_open() && spread.passes(u64::from(reads), weight(bytes)) {
            self.open_trial(shared, manner);
        }
    }

    #[cold]
    fn open_trial(&mut self, shared: &Shared, manner: Manner) {
        if self.processors == 0 {
            self.processors = thread::available_parallelism().map_or(1, NonZero::get);
        }
        let caller = self.caller.get_or_insert_default();
        if 2 * shared.callers.hear(caller) > self.processors {
            self.spreads[manner.kind()].waives();
            return;
        }
        let common = self.common.get_or_insert_with(|| {
            self.owner = Owners::new(PLACES);
            self.own = [(); 2].map(|()| vec![Own::default(); PLACES].into());
            Arc::new(Common::new(shared.pool(), false))
        });
        // What a trial is to show is what another thread brings if it comes.
        common.is_in_vain.store(false, Relaxed);
        self.calls = Calls::default();
        common.lend(CREDIT);
    }

    /// Shares a read, unless the caller is to make it, or there is no place.
    ///
    /// # Safety
    ///
    /// As for [`Gathered::show`].
    #[inline]
    pub(in crate::host) unsafe fn push<'r>(
        &mut self,
        shared: &Shared,
        token: u32,
        request: &'r Request,
        manner: Manner,
        in_flight: impl FnOnce() -> u32,
        shown: impl FnOnce(&'r Request) -> Shown,
    ) -> bool {
        let bytes = match request.op {
            Op::ReadAt { span, .. } | Op::WriteAt { span, .. } => span.len,
            Op::ReadVectoredAt { .. } | Op::WriteVectoredAt { .. } => {
                // SAFETY: the caller vouches for what the request names.
                unsafe { wanted_bytes(&request.op) }
            }
            _ => return false,
        };
        let wants = self.wants(shared, bytes as u64, manner, in_flight) && !self.is_full();
        if wants {
            // SAFETY: passed on from the caller.
            unsafe { self.show(token, &shown(request)) };
        }
        wants
    }

    /// Whether a read of so many bytes is to be shown; else the caller is to make it now. How many
    /// of its operations are in flight is asked in trials alone.
    #[inline]
    pub(in crate::host) fn wants(
        &mut self,
        shared: &Shared,
        bytes: u64,
        manner: Manner,
        in_flight: impl FnOnce() -> u32,
    ) -> bool {
        self.hands(shared, weight(bytes), manner, in_flight) == Hands::Shared
    }

    /// Shows a read that is [wanted](Gathered::wants) and for which there is a place: see
    /// [`Gathered::is_full`].
    ///
    /// # Safety
    ///
    /// What the request names stays valid, and nobody else uses it, until its answer has been taken
    /// or [`Gathered::withdraw`] returns. The other descriptor stays open as long.
    #[inline]
    pub(in crate::host) unsafe fn show(&mut self, token: u32, read: &Shown) {
        let common = self.common.as_ref().expect("made before it is open");
        let block = read.block;
        let is_attended = common.is_attended.load(Relaxed);
        let side = match is_attended {
            true => *self.makers.of(block),
            false => Side::Near,
        };
        let at = self.owner.next_place(&common.sides, side);
        let at = at.expect("there is one where a read is wanted");
        self.weight += common.sides.table(side).write(at, read);
        self.own[side.index()][at] = Own {
            token,
            block,
            manner: read.manner,
        };
        let is_called_for = self.calls.shows(self.weight);
        match is_attended {
            true if self.calls.may_be_late() && self.called.elapsed() >= LATE => {
                common.call_again();
            }
            false if is_called_for && self.calls.calls(common.is_in_vain.swap(false, Relaxed)) => {
                self.called = Instant::now();
                common.call();
            }
            _ => {}
        }
        // Last, because a read that has been shown is in flight: after a panic from here it would
        // count as one that is not.
        // SAFETY: passed on from the caller.
        unsafe { self.owner.show(&common.sides, side) };
    }

    /// By whom a read is made.
    #[inline]
    fn hands(
        &mut self,
        shared: &Shared,
        weight: u64,
        manner: Manner,
        in_flight: impl FnOnce() -> u32,
    ) -> Hands {
        debug_assert!(self.is_open(manner), "else nobody has to ask");
        let at = manner.kind();
        if !self.spreads[at].is_on_trial() {
            if !self.spreads[at].passes(1, weight) {
                return Hands::Shared;
            }
            self.open_trial(shared, manner);
            if !self.is_open(manner) {
                return Hands::Own;
            }
        }
        let (others, born) = (self.owner.len(), self.born);
        self.spreads[at].enters(weight, others, in_flight, || nanoseconds_since(born))
    }

    /// The caller has nothing more to do until the program asks for more.
    #[inline(always)]
    pub(in crate::host) fn pauses(&mut self) {
        for spread in &mut self.spreads {
            if spread.asks_for_pauses() {
                spread.pauses(nanoseconds_since(self.born));
            }
        }
    }

    /// Takes answers of what is shared, and hands each to `each`, with its token and place: those
    /// that are there, else one at least, which the caller makes itself unless all are being made.
    /// None if nothing is shared.
    #[inline]
    pub(in crate::host) fn take_some(
        &mut self,
        each: &mut impl FnMut(u32, Answer, &Place),
    ) -> Made {
        let mut made = self.take_now(each);
        if made.helped + made.own == 0
            && let Some(common) = &self.common
        {
            self.owner.wait(&common.sides);
            made = self.take_now(each);
        }
        made
    }

    /// From here on the caller makes nothing of what is shared by now that would wait: of that
    /// [`Place::missed`] tells instead.
    pub(in crate::host) fn forbid_waiting(&self) {
        if let Some(common) = &self.common {
            let forbid = |places: &Places, at| places.place(at).forbid_waiting();
            self.owner.unclaimed(&common.sides, forbid);
        }
    }

    /// As [`Gathered::take_some`], but none if all are being made.
    #[inline]
    pub(in crate::host) fn take_now(&mut self, each: &mut impl FnMut(u32, Answer, &Place)) -> Made {
        let Self {
            spreads,
            common,
            owner,
            own,
            makers,
            weight,
            ..
        } = self;
        let Some(common) = common else {
            return Made::default();
        };
        let sides = &common.sides;
        let mut each = |maker, side: Side, at: usize, answer| {
            let place = sides.table(side).place(at);
            let completed = place.weight();
            *weight -= completed;
            let Own {
                token,
                block,
                manner,
            } = own[side.index()][at];
            spreads[manner.kind()].completes(completed);
            *makers.of(block) = maker;
            each(token, Answer::from_number(answer), place);
        };
        let helped = owner.take(sides, &mut |side, at, answer| {
            each(Side::Far, side, at, answer)
        });
        let own = match helped {
            0 => owner.work(sides, &mut |side, at, answer| {
                each(Side::Near, side, at, answer)
            }),
            _ => 0,
        };
        Made { own, helped }
    }

    /// Has the alarm rung by whoever makes what is shared, once that is over. True if some of it is
    /// over already.
    pub(in crate::host) fn watch(&mut self, alarm: &Rouser) -> bool {
        match &self.common {
            Some(common) => self.owner.watch(&common.sides, alarm),
            None => true,
        }
    }

    /// Whether there is something for the caller to do, or to take, of what is shared, as far as
    /// nobody is to ring for it.
    #[cfg(feature = "tokio")]
    pub(in crate::host) fn is_due(&self) -> bool {
        let common = self.common.as_ref();
        common.is_some_and(|common| self.owner.is_due(&common.sides))
    }

    /// Takes back what is shared. When this returns nobody is at work at it, and its answers are
    /// gone.
    #[inline]
    pub(in crate::host) fn withdraw(&mut self) {
        if !self.owner.is_empty() {
            self.withdraw_all();
        }
        self.weight = 0;
    }

    #[cold]
    fn withdraw_all(&mut self) {
        if let Some(common) = &self.common {
            self.owner.withdraw(&common.sides);
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if let Some(common) = &self.common {
            common.is_closed.store(true, Relaxed);
        }
    }
}
