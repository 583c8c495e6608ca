//! How much is read ahead of sequential readers, and around page faults.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const ID: &str = "read-ahead";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "queue/read_ahead_kb is how far the kernel reads ahead of a sequential reader through \
        the page cache, and how much it reads around a page fault of a memory map. 128 KiB is \
        the default. 0 makes sequential buffered reads wait for each block. Megabytes help one \
        sequential reader, but make each random fault of a memory map read as much, and push out \
        pages that others need. Direct I/O does not care. A program can choose for one file with \
        posix_fadvise or madvise.",
}];

/// More than this around a fault is a flood.
const MUCH_KIB: u32 = 1024;

/// A line for the device on top: it is that one's setting that counts.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let Some(device) = site.target.stack.first() else {
        return Vec::new();
    };
    let name = &device.name;
    let Some(kib) = site
        .queue(name, "read_ahead_kb")
        .and_then(|text| text.parse::<u32>().ok())
    else {
        return Vec::new();
    };
    let finding = format!("{name} reads {kib} KiB ahead");
    let fix = format!("echo 128 | sudo tee /sys/block/{name}/queue/read_ahead_kb");
    let found = match kib {
        0 => Found::warning(ID, finding)
            .so("Sequential buffered reads wait for each block")
            .spoils(Spoils::ReadAhead),
        MUCH_KIB.. => Found::note(ID, finding)
            .so("Random faults of a memory map that is not cached read as much around each")
            .spoils(Spoils::ColdMaps),
        _ => return vec![Found::ok(ID, finding)],
    };
    vec![found.fix(fix)]
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn nothing_and_floods_are_told() {
        let status = |kib: &str| {
            let tree = Tree::of(&[("sys/block/sda/queue/read_ahead_kb", kib)]);
            check(&tree.site(&["sda"]))[0].line.status
        };
        assert_eq!(status("0"), Status::Warning);
        assert_eq!(status("128"), Status::Ok);
        assert_eq!(status("8192"), Status::Note);
    }
}
