//! The I/O scheduler of the disk.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const ID: &str = "scheduler";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "A scheduler holds requests back to put them into a better order. That pays on disks \
        that have to move a head. On solid state disks it takes a lock for each request and has \
        been measured to cost up to half of the operations per second (bfq most, then \
        mq-deadline and kyber). With `none` requests go straight to the device. The sysfs \
        setting lasts until the next start; a udev rule keeps it: ACTION==\"add|change\", \
        KERNEL==\"nvme*\", ATTR{queue/scheduler}=\"none\". Virtual disks often call themselves \
        rotational and are not.",
}];

/// A line for each disk that can have a scheduler.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let one = |name: &String| {
        let choices = site.queue(name, "scheduler")?;
        Some(judge(site, name, &choices))
    };
    let disks = site.disks().map(|disk| &disk.name);
    disks.filter_map(one).collect()
}

fn judge(site: &Site, disk: &str, choices: &str) -> Found {
    let active = choices.split(['[', ']']).nth(1).unwrap_or(choices);
    if active == "none" {
        return Found::ok(ID, format!("{disk} has no scheduler (none)"));
    }
    let turns = site.queue(disk, "rotational").as_deref() == Some("1");
    let virtual_disk = site.machine.virtualised || disk.starts_with("vd");
    let finding = format!("{active} schedules the requests of {disk}");
    if turns && !virtual_disk {
        return Found::ok(ID, format!("{finding}, a disk with a moving head"));
    }
    let found = match (active, turns) {
        // A virtual disk that says it turns: nobody knows what is below.
        ("mq-deadline" | "kyber", true) => Found::note(ID, finding),
        _ => Found::warning(ID, finding),
    };
    let fix = format!("echo none | sudo tee /sys/block/{disk}/queue/scheduler");
    found
        .so("Each request takes a lock and may be held back, which costs where the disk is fast")
        .fix(fix)
        .spoils(Spoils::Device)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    fn of(disk: &str, scheduler: &str, rotational: &str) -> Found {
        let tree = Tree::of(&[
            (&format!("sys/block/{disk}/queue/scheduler"), scheduler),
            (&format!("sys/block/{disk}/queue/rotational"), rotational),
        ]);
        check(&tree.site(&[disk])).remove(0)
    }

    #[test]
    fn a_scheduler_costs_where_no_head_moves() {
        let choices = "none [mq-deadline] kyber bfq\n";
        let solid = of("nvme0n1", choices, "0\n");
        assert_eq!(solid.line.status, Status::Warning);
        assert_eq!(
            solid.line.fix,
            "echo none | sudo tee /sys/block/nvme0n1/queue/scheduler"
        );
        assert_eq!(of("sda", choices, "1").line.status, Status::Ok);
        assert_eq!(of("vda", choices, "1").line.status, Status::Note);
        assert_eq!(
            of("vda", "none mq-deadline [bfq]", "1").line.status,
            Status::Warning
        );
        assert_eq!(of("sda", "[none] mq-deadline", "0").line.status, Status::Ok);
        assert_eq!(of("dm-0", "none", "0").line.status, Status::Ok);
    }
}
