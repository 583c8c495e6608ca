//! A published comparison of system calls and io_uring for databases, whose rows a set of profiles
//! repeats: which profiles those are, and what was found there.
//!
//! A profile carries no name of it, so that a copy with another block size belongs to it too: what
//! is asked for makes a row.

use crate::record::{Access, ProfileSummary};

/// Where the published figures are from. Its system calls are of all rows together, and not told
/// for each operation.
pub(crate) const SOURCE: &str = "Published: with fio, on a SATA disk, Linux 6.8, in batches of 5. \
    In all it made 532 k system calls by plain calls, 358 k with one entry, 112 k in \
    batches.";

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

/// The ratio of a ring with `entries` to plain calls that was published for a row; `None` where
/// none was.
pub(crate) fn published(profile: &ProfileSummary, entries: u32) -> Option<&'static str> {
    match (profile.access, profile.block_size_bytes, entries) {
        // All equal, with half the rate for twice the bytes.
        (Access::SequentialRead, 4096 | 8192, 1 | 5) => Some("1x"),
        (Access::RandomRead, 4096, 5) => Some("4.6x"),
        (Access::SequentialWrite | Access::RandomWrite, 4096, 1) => Some("0.71x"),
        (Access::SequentialWrite | Access::RandomWrite, 4096, 5) => Some("1x"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_published_stands_beside_a_row() {
        let found = |access, block_size_bytes| {
            let profile = ProfileSummary {
                access,
                block_size_bytes,
                ..ProfileSummary::default()
            };
            [1, 5, 32].map(|entries| published(&profile, entries))
        };
        let equal = [Some("1x"), Some("1x"), None];
        assert_eq!(found(Access::SequentialRead, 4096), equal);
        assert_eq!(found(Access::SequentialRead, 8192), equal);
        assert_eq!(found(Access::RandomRead, 4096), [None, Some("4.6x"), None]);
        let writes = [Some("0.71x"), Some("1x"), None];
        assert_eq!(found(Access::RandomWrite, 4096), writes);
        assert_eq!(found(Access::SequentialWrite, 4096), writes);
        assert_eq!(found(Access::SequentialWrite, 8192), [None; 3]);
        assert_eq!(found(Access::RandomRead, 16_384), [None; 3]);
    }
}
