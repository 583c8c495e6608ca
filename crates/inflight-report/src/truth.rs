//! Whether a cell measured what its profile asked for: the share of bytes the device served.
//!
//! A cached, sparse or tmpfs file answers from memory and passes for a very fast disk; the
//! device share tells it from one. Caches below this system (of a hypervisor, a controller)
//! are invisible to it. A profile that is neither direct nor cached is not judged by its share.

use crate::figures::{device_share, failures, ops, written_share, wrong};
use crate::record::{Access, Cell, ProfileSummary, Sync, Target};
use crate::strategy;

/// A direct profile below this share was not served by the disk.
const LEAST_DIRECT: f64 = 0.9;

/// A cached profile above this share was not served by the cache.
const MOST_CACHED: f64 = 0.1;

/// A cold profile below this share was served by the cache it was to be without.
const LEAST_COLD: f64 = 0.8;

/// Of what was written and synced, the device took at least this share: blocks that were written
/// twice before the sync went to it once.
const LEAST_WRITTEN: f64 = 0.5;

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
    failed(cell)
        .or_else(|| not_read(device_share(cell)?, profile, target))
        .or_else(|| not_written(written_share(cell)?, profile))
}

fn failed(cell: &Cell) -> Option<String> {
    let wrong = wrong(cell);
    if wrong > 0 {
        return Some(format!(
            "{wrong} operations delivered other bytes than were written: nothing it did counts"
        ));
    }
    let (errors, short) = failures(cell);
    let bad = errors.saturating_add(short);
    let tried = ops(cell).saturating_add(errors);
    (bad as f64 > tried as f64 * MOST_FAILED).then(|| {
        format!(
            "{errors} operations failed and {short} were short, of {tried}: its rate means little"
        )
    })
}

/// Why a share of what was read does not fit a profile.
fn not_read(share: f64, profile: &ProfileSummary, target: &Target) -> Option<String> {
    // The sentences have no figure of their own cell, so that cells with one reason share a line.
    // Where reads are mixed with writes, those are among the bytes that were delivered.
    let least = match profile.access {
        Access::Mixed => LEAST_DIRECT / 2.0,
        _ => LEAST_DIRECT,
    };
    if profile.direct && in_memory(target) {
        Some(format!(
            "this is memory, not a disk: {} has no device below it",
            target.fs
        ))
    } else if !profile.access.reads() {
        None
    } else if profile.direct && share < least {
        Some(
            "the disk served less than 90 % of the bytes: the page cache, \
             or unwritten or sparse data, answered the rest"
                .to_owned(),
        )
    } else if profile.cold && share < LEAST_COLD {
        Some(
            "the disk served less than 80 % of the bytes: the page cache did not stay empty"
                .to_owned(),
        )
    } else if profile.cached && share > MOST_CACHED {
        Some(
            "the disk served more than 10 % of the bytes: the data was not in the page cache"
                .to_owned(),
        )
    } else {
        None
    }
}

/// Why a share of what was written does not fit a profile.
fn not_written(share: f64, profile: &ProfileSummary) -> Option<String> {
    let reaches_device = profile.direct || profile.sync != Sync::None;
    let all_written = profile.access.writes() && !profile.access.reads();
    (reaches_device && all_written && share < LEAST_WRITTEN).then(|| {
        "the disk took less than half of the bytes: they did not get further than a cache"
            .to_owned()
    })
}
