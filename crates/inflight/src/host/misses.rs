//! Whether an owner of a proactor asks for reads of which many are not in the page cache, as the
//! policy has found to be best ([`crate::policy`]).

use std::time::Instant;

use super::stopwatch::nanoseconds_since;
use crate::policy::{Misses, Trials};

/// What the owner of a proactor has learned of such reads.
pub(super) struct MeetsMisses {
    trials: Trials<Misses>,
    way: Misses,
    born: Instant,
}

impl MeetsMisses {
    pub(super) fn new() -> Self {
        Self {
            trials: Trials::new(Misses::Asked),
            way: Misses::Asked,
            born: Instant::now(),
        }
    }

    /// What is done with the next one.
    #[inline]
    pub(super) fn next(&mut self) -> Misses {
        if self.trials.completes(1) {
            self.way = self.trials.goes_on(nanoseconds_since(self.born));
        }
        self.way
    }
}
