//! How many direct transfers are handed over at a time: what has been measured decides.
//!
//! The kernel tells a device of all requests together that one enter brings, and those complete
//! together, so that the next ones come together as well: after some thousands of completions they
//! go about in waves. A device that begins with each as soon as it is there does up to a fifth
//! more; for others it is the same, and each enter costs processor time (`docs/design/roads.md`).
//! So few are handed over at a time, until a trial has shown that all at once are as fast. The next
//! trials are to notice when it has changed. With very many in flight it is always all.

use super::trials::Rival;

/// How many requests are handed over at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    All,
    Few,
}

/// With less in flight than this, there are never many to be handed over.
pub(crate) const CROWD: u32 = 8;

/// From so many on, a device has enough to do whatever comes together: all at once were as fast at
/// 128, and few were up to a fifth faster at 32 and 64. So nothing is tried there: chance has found
/// few to be faster where they only cost processor time.
pub(crate) const LARGE_CROWD: u32 = 96;

impl Rival for AtOnce {
    /// Few at a time cost processor time, so they have to win clearly to come back, and all at once
    /// have only to be as fast.
    const BOTH: [(Self, u64); 2] = [(Self::Few, 1000), (Self::All, 960)];
    /// Completions, as many as it takes until waves have come or gone.
    const RUN: u32 = 4096;
    const BEFORE_RUN: u32 = 4096;
    const FIRST: u32 = 1 << 16;
}
