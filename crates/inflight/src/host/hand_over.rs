//! How many requests a proactor hands over at a time, as the policy has found to be best for what
//! this owner of one has in flight ([`crate::policy`]).

use std::time::Instant;

use super::stopwatch::nanoseconds_since;
use crate::policy::{AtOnce, CROWD, HandOver, LARGE_CROWD};
use crate::proactor::Proactor;

/// What the owner of a proactor has learned of handing over.
pub(super) struct HandsOver {
    /// For a crowd in flight, and for a large one.
    rules: [HandOver; 2],
    is_large: bool,
    /// Completions of the backend that have been seen.
    seen: u64,
    born: Instant,
}

impl HandsOver {
    pub(super) fn new() -> Self {
        Self {
            rules: [HandOver::new(AtOnce::Few), HandOver::new(AtOnce::All)],
            is_large: false,
            seen: 0,
            born: Instant::now(),
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
        let in_flight = came.saturating_add(proactor.in_flight());
        if came == 0 || in_flight < CROWD {
            return;
        }
        let is_large = in_flight >= LARGE_CROWD;
        let rule = &mut self.rules[usize::from(is_large)];
        if rule.completes(came) || is_large != self.is_large {
            self.go_on(is_large, proactor);
        }
    }

    #[cold]
    fn go_on(&mut self, is_large: bool, proactor: &mut Proactor) {
        let now_ns = nanoseconds_since(self.born);
        if is_large != self.is_large {
            self.rules[usize::from(self.is_large)].give_up();
            self.is_large = is_large;
        }
        let at_once = self.rules[usize::from(is_large)].goes_on(now_ns);
        proactor.hand_over_few(at_once == AtOnce::Few);
    }
}
