//! Whether reads of a file are asked for of which the page cache has a part: what has been measured
//! decides.
//!
//! A hit costs a thread least that asks, without waiting, and has it. A miss costs it more than one
//! that goes to the ring at once: the kernel looks for it twice, and begins to read ahead for who
//! asks in vain. And a ring that is given many at a time takes the hits among them with one enter.
//! Which is faster depends on the device: on some, what is handed over together also comes together
//! (`docs/design/roads.md`). So each is asked for, until a trial has shown that to give them to the
//! ring is faster.

use super::step::POLL_MAX_BYTES;
use super::trials::Rival;

/// What is done with reads of which many are not in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misses {
    /// Each is asked for.
    Asked,
    /// The ring has all but a few.
    Given,
}

/// With less in flight than this all are asked for: the device waits for the next request.
pub(crate) const MISSES_CROWD: u32 = 2;

/// Where a future is polled, the ring is given reads of at most so many bytes: the enter that hands
/// them over copies as much as a poll may, and others wait for the thread.
pub(crate) const GIVEN_MAX_BYTES: usize = POLL_MAX_BYTES / 32;

impl Rival for Misses {
    /// What is asked for is known to be there or not, by which other ways are chosen; and where the
    /// ring wins it wins clearly.
    const BOTH: [(Self, u64); 2] = [(Self::Asked, 900), (Self::Given, 1000)];
    /// Reads: where one in eight is a miss, so many that chance makes the time of a run differ by
    /// 4 %.
    const RUN: u32 = 4096;
    const BEFORE_RUN: u32 = 512;
    const FIRST: u32 = 4096;
}
