//! A published comparison of system calls and io_uring for databases, whose rows a set of profiles
//! repeats: which profiles those are.
//!
//! A profile carries no name of it, so that a copy with another block size belongs to it too: what
//! is asked for makes a row.

use crate::record::{Access, ProfileSummary};

/// Whether a profile asks for what a row of the comparison asked for: blocks of one length in
/// batches through a page cache that is empty at first, in either order, read or written.
pub(crate) fn has(profile: &ProfileSummary) -> bool {
    let is_row = match profile.access {
        Access::SequentialRead | Access::RandomRead => true,
        Access::SequentialWrite | Access::RandomWrite => !profile.read_back,
        Access::Mixed | Access::RangeRead | Access::Append => false,
    };
    is_row && profile.batched && profile.cold && !profile.direct
}
