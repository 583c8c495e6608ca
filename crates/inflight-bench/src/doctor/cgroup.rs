//! Limits of control groups, of both versions: I/O, processor time, threads, memory.

use std::path::{Path, PathBuf};

use super::explain::Topic;
use super::{Found, Site, Spoils};
use crate::measure::groups::{self, shown};
use crate::measure::host::{self, cpu_list};
use crate::measure::memory;
use crate::size::human;

const IO: &str = "cgroup-io";
const CPU: &str = "cgroup-cpu";
const PIDS: &str = "cgroup-pids";
const MEMORY: &str = "cgroup-memory";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: IO,
        text: "A control group may do only so many operations or bytes a second on a device \
            (io.max, or blkio.throttle in version 1). What is measured then is the limit, and \
            every way of doing I/O looks the same. Container engines set it with \
            --device-read-iops and the like, systemd with IOReadIOPSMax= and IOReadBandwidthMax=.",
    },
    Topic {
        id: CPU,
        text: "A quota (cpu.max, or cpu.cfs_quota_us in version 1) stops all threads of the group \
            for the rest of each period, usually 100 ms, once they have used it up. Latencies \
            then have a tail of many milliseconds that no disk made, and ways that use many \
            threads hit it first. Kubernetes sets it from limits.cpu; leaving that out, or giving \
            whole processors with the static CPU manager, avoids it.",
    },
    Topic {
        id: PIDS,
        text: "Threads count as processes for pids.max. A ring's kernel workers count as well: \
            where none can be made, what needs one (every fsync does) comes back with ECANCELED, \
            though nobody has cancelled it. The library does such an operation by a plain call; \
            other programs report an error.",
    },
    Topic {
        id: MEMORY,
        text: "The page cache counts as memory of the group that filled it. With a small limit, \
            files do not stay cached, and reading them again goes to the disk, however much \
            memory the machine has free. Programs that write much are slowed down as well, \
            because less may be dirty at a time.",
    },
    Topic {
        id: "page-cache-too-small",
        text: "The test data does not fit into the memory that is available, so it cannot be in \
            the page cache when it is read, and figures of cached reads would be those of a \
            mixture. Choose less data with --size, or make memory free. What the limits of \
            control groups leave counts as well (see cgroup-memory); pages that another group \
            has brought into the page cache would not count against them, which no one can tell \
            before.",
    },
];

/// So few threads are used up by a pool and the kernel's workers.
const FEW_THREADS: u64 = 64;

/// A line for each kind of limit.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let mut found = io(site);
    found.extend([cpu(site), pids(site), memory_limit(site)]);
    found
}

fn io(site: &Site) -> Vec<Found> {
    let groups = [
        groups::of(&site.root, "io"),
        groups::of(&site.root, "blkio"),
    ]
    .concat();
    let mut found = Vec::new();
    for device in &site.target.stack {
        let Some(node) = site.line(&format!("sys/block/{}/dev", device.name)) else {
            continue;
        };
        let limits = groups.iter().filter_map(|group| {
            let limit = second(site, group, &node);
            let limit = limit.or_else(|| first(site, group, &node))?;
            Some(limited(&device.name, limit))
        });
        found.extend(limits);
    }
    // The second version is searched for both names.
    found.dedup_by(|one, other| one.line == other.line);
    if found.is_empty() {
        found.push(Found::ok(
            IO,
            "no control group limits I/O on these devices",
        ));
    }
    found
}

fn limited(disk: &str, (what, fix): (String, String)) -> Found {
    Found::warning(IO, format!("a control group limits {disk} to {what}"))
        .so("What is measured is this limit, not the disk")
        .fix(fix)
        .spoils(Spoils::Device)
}

/// The limit of version 2, and how it is lifted: `254:0 rbps=max wbps=1048576 riops=max wiops=max`.
fn second(site: &Site, group: &Path, node: &str) -> Option<(String, String)> {
    let all = site.text(&shown(group, "io.max")[1..])?;
    let line = all.lines().find_map(|line| line.strip_prefix(node))?;
    let limits = line.split_whitespace().filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some(words(key, value.parse().ok()?))
    });
    let limits: Vec<String> = limits.collect();
    let fix = format!(
        "echo '{node} rbps=max wbps=max riops=max wiops=max' | sudo tee {}",
        shown(group, "io.max")
    );
    (!limits.is_empty()).then(|| (limits.join(", "), fix))
}

/// The limit of version 1, and how it is lifted: a file for each kind, with lines `254:0 1000`.
fn first(site: &Site, group: &Path, node: &str) -> Option<(String, String)> {
    const FILES: [(&str, &str); 4] = [
        ("rbps", "blkio.throttle.read_bps_device"),
        ("wbps", "blkio.throttle.write_bps_device"),
        ("riops", "blkio.throttle.read_iops_device"),
        ("wiops", "blkio.throttle.write_iops_device"),
    ];
    let (mut limits, mut fixes) = (Vec::new(), Vec::new());
    for (key, file) in FILES {
        let all = site.text(&shown(group, file)[1..]).unwrap_or_default();
        let mut pairs = all.lines().filter_map(|line| line.split_once(' '));
        let value = pairs.find(|(device, _)| *device == node);
        if let Some(value) = value.and_then(|(_, value)| value.trim().parse().ok()) {
            limits.push(words(key, value));
            fixes.push(format!("echo '{node} 0' | sudo tee {}", shown(group, file)));
        }
    }
    (!limits.is_empty()).then(|| (limits.join(", "), fixes.join("; ")))
}

fn words(key: &str, value: u64) -> String {
    match key {
        "rbps" => format!("{}/s of reads", human(value)),
        "wbps" => format!("{}/s of writes", human(value)),
        "riops" => format!("{value} reads/s"),
        "wiops" => format!("{value} writes/s"),
        _ => format!("{key}={value}"),
    }
}

fn cpu(site: &Site) -> Found {
    let status = site.text("proc/self/status").unwrap_or_default();
    let allowed = cpu_list(host::field(&status, "Cpus_allowed_list:").unwrap_or_default());
    let quotas = groups::of(&site.root, "cpu")
        .into_iter()
        .filter_map(|group| {
            let (file, quota, period) = quota(site, &group)?;
            let milli = quota.checked_mul(1_000)?.checked_div(period)?;
            Some((milli, shown(&group, file)))
        });
    let (tightest, cpus) = (quotas.min(), allowed.len() as u64);
    match tightest {
        Some((milli, file)) if milli < cpus * 1_000 => {
            let value = if file.ends_with("cpu.max") {
                "max"
            } else {
                "-1"
            };
            let quota = milli as f64 / 1_000.0;
            Found::warning(
                CPU,
                format!("a control group allows {quota:.2} of {cpus} processors"),
            )
            .so("All threads stop for the rest of a period once that is used up")
            .fix(format!("echo {value} | sudo tee {file}"))
        }
        _ => Found::ok(
            CPU,
            format!("all of {cpus} processors may be used all the time"),
        ),
    }
}

/// The file with the quota, the quota and its period in microseconds.
fn quota(site: &Site, group: &Path) -> Option<(&'static str, u64, u64)> {
    if let Some(line) = site.line(&shown(group, "cpu.max")[1..]) {
        let (quota, period) = line.split_once(' ')?;
        return Some(("cpu.max", quota.parse().ok()?, period.parse().ok()?));
    }
    let quota = groups::number(&site.root, group, "cpu.cfs_quota_us")?;
    let period = groups::number(&site.root, group, "cpu.cfs_period_us")?;
    Some(("cpu.cfs_quota_us", quota, period))
}

/// The tightest of a number that groups have, with its group.
fn tightest(
    site: &Site,
    controller: &str,
    limit: impl Fn(&Path) -> Option<u64>,
) -> Option<(u64, PathBuf)> {
    let groups = groups::of(&site.root, controller).into_iter();
    let limits = groups.filter_map(|group| Some((limit(&group)?, group)));
    limits.min_by_key(|(limit, _)| *limit)
}

fn pids(site: &Site) -> Found {
    let room = |group: &Path| {
        let most = groups::number(&site.root, group, "pids.max")?;
        Some(most.saturating_sub(groups::number(&site.root, group, "pids.current")?))
    };
    match tightest(site, "pids", room) {
        Some((room, group)) if room < FEW_THREADS => Found::warning(
            PIDS,
            format!("a control group has room for {room} more threads"),
        )
        .so("Where the kernel cannot make a worker, an fsync on a ring ends in ECANCELED")
        .fix(format!("echo max | sudo tee {}", shown(&group, "pids.max"))),
        Some((room, _)) => Found::ok(PIDS, format!("there is room for {room} more threads")),
        None => Found::ok(PIDS, "no control group limits the number of threads"),
    }
}

fn memory_limit(site: &Site) -> Found {
    let Some((bytes, _)) = tightest(site, "memory", |group| {
        memory::limit_bytes(&site.root, group)
    }) else {
        return Found::ok(MEMORY, "no control group limits memory");
    };
    Found::note(
        MEMORY,
        format!("a control group limits memory to {}", human(bytes)),
    )
    .so("That includes the page cache: larger files do not stay in it")
    .spoils(Spoils::Buffered)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    /// A machine with version 2 alone, as most have.
    fn modern(files: &[(&str, &str)]) -> Tree {
        let tree = Tree::of(&[
            ("proc/self/cgroup", "0::/box\n"),
            (
                "proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("proc/self/status", "Cpus_allowed_list:\t0-3\n"),
            ("sys/block/sda/dev", "8:0\n"),
        ]);
        for (name, text) in files {
            tree.write(&format!("sys/fs/cgroup/box/{name}"), text);
        }
        tree
    }

    fn statuses(tree: &Tree) -> Vec<(String, Status)> {
        let found = check(&tree.site(&["sda"])).into_iter();
        found
            .map(|found| (found.line.id, found.line.status))
            .collect()
    }

    #[test]
    fn no_limit_is_ok() {
        let unlimited = modern(&[
            ("io.max", ""),
            ("cpu.max", "max 100000\n"),
            ("pids.max", "max\n"),
            ("memory.max", "max\n"),
        ]);
        for (id, status) in statuses(&unlimited) {
            assert_eq!(status, Status::Ok, "{id}");
        }
    }

    #[test]
    fn limits_of_version_2_are_found_and_lifted() {
        let limited = modern(&[
            (
                "io.max",
                "8:16 rbps=1\n8:0 rbps=1048576 wbps=max riops=500 wiops=max\n",
            ),
            ("cpu.max", "150000 100000\n"),
            ("pids.max", "20\n"),
            ("pids.current", "12\n"),
            ("memory.max", "1073741824\n"),
        ]);
        let found = check(&limited.site(&["sda"]));
        let lines: Vec<String> = found
            .iter()
            .map(|found| format!("{} -> {}", found.line.finding, found.line.fix))
            .collect();
        assert!(
            lines[0].contains("1 MiB/s of reads, 500 reads/s"),
            "{lines:?}"
        );
        assert!(lines[0].contains("echo '8:0 rbps=max"), "{lines:?}");
        assert!(lines[0].ends_with("/sys/fs/cgroup/box/io.max"), "{lines:?}");
        assert!(
            lines[1].contains("1.50 of 4") && lines[1].contains("echo max"),
            "{lines:?}"
        );
        assert!(lines[2].contains("room for 8 more"), "{lines:?}");
        assert!(lines[3].contains("1 GiB"), "{lines:?}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_quota_of_all_processors_is_no_limit() {
        let generous = modern(&[("cpu.max", "400000 100000\n")]);
        assert_eq!(statuses(&generous)[1], (CPU.to_owned(), Status::Ok));
    }

    #[test]
    fn the_limit_of_a_group_above_counts() {
        let tree = modern(&[("memory.max", "max\n")]);
        tree.write("sys/fs/cgroup/memory.max", "268435456\n");
        assert_eq!(statuses(&tree)[3], (MEMORY.to_owned(), Status::Note));
    }
}
