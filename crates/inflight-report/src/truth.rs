//! Whether a cell measured what its profile asked for: the share of bytes the device served.
//!
//! A cached, sparse or tmpfs file answers from memory and passes for a very fast disk; the
//! device share tells it from one. Caches below this system (of a hypervisor, a controller)
//! are invisible to it. A profile that is neither direct nor cached is not judged by its share.

use crate::figures::{device_share, failures, ops};
use crate::record::{Cell, ProfileSummary, Target};
use crate::strategy;

/// A direct profile below this share was not served by the disk.
const LEAST_DIRECT: f64 = 0.9;

/// A cached profile above this share was not served by the cache.
const MOST_CACHED: f64 = 0.1;

/// More failed or short operations than this share, and the rate means something else.
const MOST_FAILED: f64 = 0.001;

/// File systems that have no device below them.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];

/// Says whether the target is memory and not a disk.
#[must_use]
pub fn in_memory(target: &Target) -> bool {
    IN_MEMORY.contains(&target.fs.as_str())
}

/// Why a cell has no place in the ranking of its profile, as a sentence; `None` if it has one.
///
/// `null` does no I/O and is exempt; it is never ranked anyway. A cell that does not know its
/// device bytes is not judged by them.
#[must_use]
pub fn out_of_ranking(cell: &Cell, profile: &ProfileSummary, target: &Target) -> Option<String> {
    if cell.strategy == strategy::NULL {
        return None;
    }
    failed(cell).or_else(|| not_what_was_asked(device_share(cell)?, profile, target))
}

fn failed(cell: &Cell) -> Option<String> {
    let (errors, short) = failures(cell);
    let bad = errors.saturating_add(short);
    let tried = ops(cell).saturating_add(errors);
    (bad as f64 > tried as f64 * MOST_FAILED).then(|| {
        format!(
            "{errors} operations failed and {short} were short, of {tried}: its rate means little"
        )
    })
}

fn not_what_was_asked(share: f64, profile: &ProfileSummary, target: &Target) -> Option<String> {
    // The sentences have no figure of their own cell, so that cells with one reason share a line.
    if profile.direct && share < LEAST_DIRECT {
        Some(if in_memory(target) {
            format!(
                "this is memory, not a disk: {} has no device below it",
                target.fs
            )
        } else {
            "the disk served less than 90 % of the bytes: the page cache, \
             or unwritten or sparse data, answered the rest"
                .to_owned()
        })
    } else if profile.cached && share > MOST_CACHED {
        Some(
            "the disk served more than 10 % of the bytes: the data was not in the page cache"
                .to_owned(),
        )
    } else {
        None
    }
}
