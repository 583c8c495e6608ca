//! Whether this process runs where its disk is attached.

use super::explain::Topic;
use super::{Found, Site};
use crate::measure::host::{self, cpu_list};

const ID: &str = "numa";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "In a machine with several memory nodes, a disk is attached to one of them. A process \
        on another node sends each request, its data and its interrupt across, which costs \
        latency, and bandwidth that others need as well. numactl --cpunodebind=N --membind=N \
        keeps program and memory on the disk's node. Without it the scheduler moves threads \
        about, and two runs differ for no other reason.",
}];

/// A line for each disk whose node is known, if there is more than one node.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let online = site.line("sys/devices/system/node/online");
    let nodes = cpu_list(online.as_deref().unwrap_or("0"));
    if nodes.len() < 2 {
        return vec![Found::ok(ID, "there is one memory node")];
    }
    let status = site.text("proc/self/status").unwrap_or_default();
    let allowed = cpu_list(host::field(&status, "Cpus_allowed_list:").unwrap_or_default());
    let disks = site.disks().map(|disk| disk.name.as_str());
    disks.map(|disk| judge(site, disk, &allowed)).collect()
}

fn judge(site: &Site, disk: &str, allowed: &[u32]) -> Found {
    let Some(node) = node_of(site, disk) else {
        return Found::unknown(ID, format!("nobody tells to which node {disk} is attached"));
    };
    let local = site.line(&format!("sys/devices/system/node/node{node}/cpulist"));
    let local = cpu_list(local.as_deref().unwrap_or_default());
    let near = allowed.iter().filter(|cpu| local.contains(cpu)).count();
    let bind = format!("numactl --cpunodebind={node} --membind={node} COMMAND");
    let finding = format!("{disk} is attached to node {node}");
    match near {
        0 => Found::warning(ID, format!("{finding}, and this process may not run there"))
            .so("Every request, its data and its interrupt cross to another node")
            .fix(bind),
        _ if near < allowed.len() => Found::note(
            ID,
            format!("{finding}, and this process may run on others as well"),
        )
        .so("Threads that the scheduler moves away pay for each request")
        .fix(bind),
        _ => Found::ok(ID, format!("{finding}, and so is this process")),
    }
}

/// The node of the nearest thing above the disk that has one.
fn node_of(site: &Site, disk: &str) -> Option<u32> {
    let device = site.root.join("sys/block").join(disk).canonicalize().ok()?;
    let attached = device.join("device").canonicalize().unwrap_or(device);
    let told = |above: &std::path::Path| host::line(above.join("numa_node"))?.parse().ok();
    // Where nobody knows it is -1, which is no u32.
    attached.ancestors().find_map(told)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    fn machine(allowed: &str) -> Found {
        let tree = Tree::of(&[
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/block/nvme0n1/queue/io_poll", "0\n"),
            ("sys/block/nvme0n1/device/numa_node", "1\n"),
            (
                "proc/self/status",
                &format!("Cpus_allowed_list:\t{allowed}\n"),
            ),
        ]);
        check(&tree.site(&["nvme0n1"])).remove(0)
    }

    #[test]
    fn a_process_far_from_its_disk_is_told() {
        let far = machine("0-3");
        assert_eq!(far.line.status, Status::Warning);
        assert!(far.line.fix.contains("--cpunodebind=1"), "{far:?}");
        assert_eq!(machine("2-5").line.status, Status::Note);
        assert_eq!(machine("4,6-7").line.status, Status::Ok);
    }

    #[test]
    fn one_node_and_a_disk_without_node_are_no_finding() {
        let one = Tree::of(&[("sys/devices/system/node/online", "0\n")]);
        assert_eq!(check(&one.site(&["sda"]))[0].line.status, Status::Ok);
        let two = Tree::of(&[("sys/devices/system/node/online", "0-1\n")]);
        assert_eq!(check(&two.site(&["sda"]))[0].line.status, Status::Unknown);
    }
}
