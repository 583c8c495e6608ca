//! Whether an owner of a proactor asks for reads of which many are not in the page cache, as the
//! policy has found to be best ([`crate::policy`]).

use std::time::Instant;

use super::stopwatch::nanoseconds_since;
use crate::policy::{MISSES_CROWD, Misses, Trials};

/// What the owner of a proactor has learned of such reads.
pub(super) struct MeetsMisses {
    trials: Trials<Misses>,
    way: Misses,
    /// Since when fewer are in flight than a crowd, while a run is timed.
    pause_from_ns: Option<u64>,
    born: Instant,
}

impl MeetsMisses {
    pub(super) fn new() -> Self {
        Self {
            trials: Trials::new(Misses::Asked),
            way: Misses::Asked,
            pause_from_ns: None,
            born: Instant::now(),
        }
    }

    /// After a turn of the proactor, with so many still in flight. A run loop may have other things
    /// to wait for.
    #[inline]
    pub(super) fn turned(&mut self, in_flight: u32) {
        if in_flight < MISSES_CROWD && self.pause_from_ns.is_none() && self.trials.is_timed() {
            self.pause_from_ns = Some(nanoseconds_since(self.born));
        }
    }

    /// What is done with the next one, which has a crowd in flight beside it.
    #[inline]
    pub(super) fn next(&mut self) -> Misses {
        if let Some(from_ns) = self.pause_from_ns.take() {
            self.trials.paused(nanoseconds_since(self.born) - from_ns);
        }
        if self.trials.completes(1) {
            self.way = self.trials.goes_on(nanoseconds_since(self.born));
        }
        self.way
    }
}
