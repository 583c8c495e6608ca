//! Poll queues: whether completions can be polled for instead of waiting for an interrupt.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const ID: &str = "iopoll";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "With IOPOLL a ring asks the device for completions instead of waiting for interrupts: \
        less latency for a whole core. It needs queues that the driver sets aside, which none \
        does by default. Without them the ring is set up all the same; then direct reads fail \
        with EOPNOTSUPP (on older kernels they quietly use interrupts), and writes succeed \
        without being polled. A ring with IOPOLL cannot sync. NVMe: the line `options nvme \
        poll_queues=2` in a file in /etc/modprobe.d, then update-initramfs -u or dracut -f, and \
        a restart. virtio-blk: the same with virtio_blk, or virtio_blk.poll_queues=2 on the \
        kernel's command line where the driver is built in. This library never polls by itself.",
}];

/// Drivers that can have poll queues, by the beginning of their disks' names.
const DRIVERS: &[(&str, &str)] = &[("nvme", "nvme"), ("vd", "virtio_blk")];

/// A line for each disk.
pub(super) fn check(site: &Site) -> Vec<Found> {
    site.disks()
        .filter_map(|disk| one(site, &disk.name))
        .collect()
}

fn one(site: &Site, disk: &str) -> Option<Found> {
    let polls = site.queue(disk, "io_poll")?;
    if polls != "0" {
        return Some(Found::ok(ID, format!("{disk} can be polled")));
    }
    let so = "A ring with IOPOLL is set up, but its reads fail; the library does not need it";
    let driver = DRIVERS.iter().find(|(prefix, _)| disk.starts_with(prefix));
    let Some((_, driver)) = driver else {
        let finding = format!("{disk} cannot be polled (io_poll is 0)");
        return Some(Found::note(ID, finding).so(so).spoils(Spoils::Nothing));
    };
    let finding = format!("{disk} has no poll queues (io_poll is 0)");
    // A driver that is built in has no state of being loaded.
    let is_module = site
        .line(&format!("sys/module/{driver}/initstate"))
        .is_some();
    let fix = match is_module {
        true => format!(
            "echo options {driver} poll_queues=2 | sudo tee /etc/modprobe.d/poll.conf \
             # then update-initramfs -u or dracut -f, and restart"
        ),
        false => format!("add {driver}.poll_queues=2 to the kernel's command line, and restart"),
    };
    Some(
        Found::note(ID, finding)
            .so(so)
            .fix(fix)
            .spoils(Spoils::Nothing),
    )
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn poll_queues_are_seen_and_the_driver_is_named() {
        let tree = Tree::of(&[
            ("sys/block/nvme0n1/queue/io_poll", "0\n"),
            ("sys/block/nvme1n1/queue/io_poll", "1\n"),
            ("sys/block/sda/queue/io_poll", "0\n"),
            ("sys/module/nvme/initstate", "live\n"),
            ("sys/block/vda/queue/io_poll", "0\n"),
        ]);
        let found = check(&tree.site(&["nvme0n1", "nvme1n1", "sda", "vda", "gone"]));
        assert_eq!(found.len(), 4);
        assert!(found[3].line.fix.contains("virtio_blk.poll_queues=2"));
        assert!(found[0].line.fix.contains("options nvme poll_queues"));
        assert_eq!(found[1].line.status, Status::Ok);
        assert!(found[2].line.fix.is_empty() && found[2].line.status == Status::Note);
    }
}
