//! The disk's queue: how many requests it takes, and whether neighbours are merged.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const DEPTH: &str = "depth-above-nr-requests";
const MERGES: &str = "nomerges";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: DEPTH,
        text: "queue/nr_requests is how many requests the kernel keeps for each queue of the \
            device. What is beyond waits before the device, and submitting, which should never \
            wait, waits for a free place (liburing issue 826). More in flight than that shows \
            longer waits and no more speed. With a scheduler the number can be raised; with \
            `none` it is the device's own limit.",
    },
    Topic {
        id: MERGES,
        text: "queue/nomerges other than 0 keeps the kernel from merging requests that are \
            neighbours on the disk. Tuning guides set it for random reads, where it saves a \
            little work; sequential reads and writes in small pieces lose a lot by it.",
    },
];

/// Below this, an ordinary queue depth does not fit.
const FEW_REQUESTS: u32 = 64;

/// Lines for each disk.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let disks = site.disks().map(|disk| disk.name.as_str());
    disks.flat_map(|disk| of(site, disk)).collect()
}

fn of(site: &Site, disk: &str) -> impl Iterator<Item = Found> {
    let requests = site.queue(disk, "nr_requests");
    let requests = requests.and_then(|text| text.parse::<u32>().ok());
    let depth = requests.map(|requests| match requests {
        FEW_REQUESTS.. => Found::ok(DEPTH, format!("{disk} takes {requests} requests at a time")),
        _ => Found::warning(
            DEPTH,
            format!("{disk} takes only {requests} requests at a time"),
        )
        .so("Deeper queues wait before the device, and submitting can block")
        .fix(format!(
            "echo 256 | sudo tee /sys/block/{disk}/queue/nr_requests"
        ))
        .spoils(Spoils::Direct),
    });
    let merges = site.queue(disk, "nomerges").filter(|merges| merges != "0");
    let merges = merges.map(|value| {
        Found::warning(
            MERGES,
            format!("{disk} does not merge neighbours (nomerges is {value})"),
        )
        .so("Sequential I/O in small pieces is slower")
        .fix(format!(
            "echo 0 | sudo tee /sys/block/{disk}/queue/nomerges"
        ))
        .spoils(Spoils::Nothing)
    });
    depth.into_iter().chain(merges)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn a_short_queue_and_missing_merges_are_told() {
        let tree = Tree::of(&[
            ("sys/block/sda/queue/nr_requests", "31\n"),
            ("sys/block/sda/queue/nomerges", "2\n"),
            ("sys/block/sdb/queue/nr_requests", "64\n"),
            ("sys/block/sdb/queue/nomerges", "0\n"),
        ]);
        let found = check(&tree.site(&["sda", "sdb"]));
        let status: Vec<Status> = found.iter().map(|found| found.line.status).collect();
        assert_eq!(status, [Status::Warning, Status::Warning, Status::Ok]);
        assert!(found[1].line.finding.contains("is 2"));
    }
}
