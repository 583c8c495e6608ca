//! How full the file system is.

use super::explain::Topic;
use super::{Found, Site, Spoils};
use crate::measure::storage;
use crate::size::human;

const ID: &str = "free-space";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "File systems slow down when they are nearly full, because free blocks are scattered, \
        and so do solid state disks, which then copy data about to make room (write \
        amplification). `inflight bench` refuses to leave less than 10 % free. Space that other \
        users cannot have (reserved blocks, quotas) is not counted here. After deleting much, \
        fstrim tells the disk what is free.",
}];

/// One line.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let space = match storage::space(&site.path) {
        Ok(space) => space,
        Err(error) => return vec![Found::unknown(ID, format!("{error:#}"))],
    };
    vec![judge(
        &site.target.path,
        space.total_bytes,
        space.free_bytes,
    )]
}

fn judge(path: &str, total_bytes: u64, free_bytes: u64) -> Found {
    let (free, total) = (human(free_bytes), human(total_bytes));
    let finding = format!("{path}: {free} of {total} are free");
    // Also what has no blocks at all, as some network file systems.
    if free_bytes.saturating_mul(10) >= total_bytes {
        return Found::ok(ID, finding);
    }
    Found::warning(ID, finding)
        .so("Writes are slower on a file system, and on a solid state disk, that is nearly full")
        .fix("make room, then: sudo fstrim -v MOUNT_POINT")
        .spoils(Spoils::Nothing)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;

    #[test]
    fn a_tenth_is_the_border() {
        assert_eq!(judge("x", 1000, 100).line.status, Status::Ok);
        assert_eq!(judge("x", 1000, 99).line.status, Status::Warning);
        assert_eq!(judge("x", 0, 0).line.status, Status::Ok);
    }
}
