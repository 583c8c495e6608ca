//! How many requests a proactor hands over at a time, as the policy has found to be best for what
//! this owner of one has in flight ([`crate::policy`]).

use std::time::Instant;

use super::stopwatch::nanoseconds_since;
use crate::policy::{AtOnce, CROWD, LARGE_CROWD, Trials};
use crate::proactor::Proactor;

/// After so many completions in a row with another kind of crowd in flight that is the one. What is
/// left of a large one at the end of a burst is fewer.
const STRAYS: u32 = 1024;

/// What the owner of a proactor has learned of handing over.
pub(super) struct HandsOver {
    /// For a crowd in flight that is not a large one.
    rule: Trials<AtOnce>,
    is_large: bool,
    strays: u32,
    /// Completions of the backend that have been seen.
    seen: u64,
    /// Since when there is no crowd in flight, while that is timed.
    pause_from_ns: Option<u64>,
    born: Instant,
}

impl HandsOver {
    pub(super) fn new() -> Self {
        Self {
            rule: Trials::new(AtOnce::Few),
            is_large: false,
            strays: 0,
            seen: 0,
            pause_from_ns: None,
            born: Instant::now(),
        }
    }

    /// Before a turn of the proactor that may wait.
    #[inline]
    pub(super) fn turns(&mut self, proactor: &Proactor) {
        if self.pause_from_ns.is_some() && proactor.in_flight() >= CROWD {
            self.resume();
        }
    }

    /// After a turn of the proactor.
    #[inline]
    pub(super) fn turned(&mut self, proactor: &mut Proactor) {
        let reaped = proactor.reaped();
        let came = reaped.wrapping_sub(self.seen);
        self.seen = reaped;
        // Of another proactor it may be less than before.
        let came = u32::try_from(came).unwrap_or(0);
        let left = proactor.in_flight();
        let in_flight = came.saturating_add(left);
        if in_flight >= CROWD {
            if self.pause_from_ns.is_some() {
                self.resume();
            }
            self.complete(came, in_flight >= LARGE_CROWD, proactor);
        }
        if left < CROWD && self.pause_from_ns.is_none() && self.rule.is_timed() {
            self.pause_from_ns = Some(nanoseconds_since(self.born));
        }
    }

    #[inline]
    fn complete(&mut self, came: u32, is_large: bool, proactor: &mut Proactor) {
        if is_large == self.is_large {
            self.strays = 0;
            if !is_large && came > 0 && self.rule.completes(came) {
                self.go_on(proactor);
            }
            return;
        }
        self.strays += came;
        if self.strays >= STRAYS {
            self.rule.give_up();
            (self.is_large, self.strays) = (is_large, 0);
            self.go_on(proactor);
        }
    }

    #[cold]
    fn go_on(&mut self, proactor: &mut Proactor) {
        let at_once = match self.is_large {
            true => AtOnce::All,
            false => self.rule.goes_on(nanoseconds_since(self.born)),
        };
        proactor.hand_over_few(at_once == AtOnce::Few);
    }

    #[cold]
    fn resume(&mut self) {
        if let Some(from_ns) = self.pause_from_ns.take() {
            let ns = nanoseconds_since(self.born) - from_ns;
            self.rule.paused(ns);
        }
    }
}
