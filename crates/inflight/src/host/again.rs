//! A thread that had to do without a ring, or without asynchronous calls, tries again to have them:
//! descriptors and memory that were scarce for a moment would be missed for good.

use super::shared::Shared;
use crate::clock::now_ms;
use crate::proactor::Proactor;

/// To try costs a few system calls, and is told to nobody.
const AFTER_MS: u64 = 1_000;

/// When a thread tries again, if it does: milliseconds of the coarse clock, or 0.
pub(super) struct Again(u64);

impl Again {
    /// For whoever has just had this proactor made.
    pub(super) fn of(shared: &Shared, proactor: &Proactor) -> Self {
        Self(match shared.is_makeshift(proactor) {
            true => now_ms() + AFTER_MS,
            false => 0,
        })
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.0 != 0 && now_ms() >= self.0
    }

    /// What is to be used from now on instead, if it can be had.
    #[cold]
    pub(super) fn made(&mut self, shared: &Shared) -> Option<Proactor> {
        let made = shared.asynchronous();
        self.0 = match made {
            Some(_) => 0,
            None => now_ms() + AFTER_MS,
        };
        made
    }
}
