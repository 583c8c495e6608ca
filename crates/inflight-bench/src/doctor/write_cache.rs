//! Whether the disk has a cache that syncs have to flush.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const ID: &str = "write-cache";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "queue/write_cache is what the kernel believes about the disk. With `write back` each \
        fsync and each durable write flushes the disk's cache, which takes from tens of \
        microseconds to milliseconds. With `write through` none is needed: the disk has no \
        cache, or one that survives a power cut. Writing `write through` into the file does not \
        change the disk: it only keeps the kernel from flushing, and the next power cut may lose \
        what was reported as safe. So there is no command to copy here. A sync that takes less \
        than a few microseconds on a disk is a sign that something below does not flush.",
}];

/// A line for each disk.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let one = |name: &String| {
        let cache = site.queue(name, "write_cache")?;
        Some(match cache.as_str() {
            "write through" => Found::ok(ID, format!("{name} needs no flush (write through)")),
            _ => Found::note(ID, format!("{name} has a volatile cache ({cache})"))
                .so("Every fsync waits for it to be flushed")
                .spoils(Spoils::Syncs),
        })
    };
    site.disks()
        .map(|disk| &disk.name)
        .filter_map(one)
        .collect()
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn a_volatile_cache_is_told_and_nobody_is_told_to_switch_it_off() {
        let tree = Tree::of(&[
            ("sys/block/sda/queue/write_cache", "write back\n"),
            ("sys/block/sdb/queue/write_cache", "write through\n"),
        ]);
        let found = check(&tree.site(&["sda", "sdb"]));
        assert_eq!(found[0].line.status, Status::Note);
        assert_eq!(found[0].line.fix, "");
        assert_eq!(found[1].line.status, Status::Ok);
    }
}
