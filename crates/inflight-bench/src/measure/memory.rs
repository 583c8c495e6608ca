//! How much memory the page cache can have: what the machine has available, or what the control
//! groups of this process leave.

use std::fmt;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use super::groups;
use crate::size::human;

/// Version 1 of the control groups writes the largest number of pages for no limit.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// Memory that pages of files can have, those that they have already included.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// The control group whose limit it is.
    group: Option<PathBuf>,
}

/// "20 MiB of memory are available", and where, if it is a control group that has no more.
impl fmt::Display for Room {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} of memory are available", human(self.bytes))?;
        match &self.group {
            Some(group) => write!(to, " in the control group /{}", group.display()),
            None => Ok(()),
        }
    }
}

/// The least of what the machine and the control groups leave; nothing where none of them tells.
/// `root` is where `proc` and `sys` are.
pub(crate) fn room(root: &Path) -> Option<Room> {
    let machine = available_bytes(root).map(|bytes| Room { bytes, group: None });
    let groups = groups::of(root, "memory").into_iter();
    let groups = groups.filter_map(|group| {
        let bytes = room_in(root, &group)?;
        let group = Some(group);
        Some(Room { bytes, group })
    });
    machine
        .into_iter()
        .chain(groups)
        .min_by_key(|room| room.bytes)
}

/// The memory that a control group may have; absent where it is unlimited.
pub(crate) fn limit_bytes(root: &Path, group: &Path) -> Option<u64> {
    let files = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limits = files
        .iter()
        .filter_map(|file| groups::number(root, group, file));
    limits.min().filter(|bytes| *bytes < NO_LIMIT_BYTES)
}

/// What a group with a limit has left. Pages of files make room for others, as in `MemAvailable`;
/// those of tmpfs do not, and are not among them.
///
/// # Source
/// Linux, Documentation/admin-guide/cgroup-v2.rst, "memory.stat"; cgroup-v1/memory.rst, 5.2: there
/// the names with `total_` are those that have groups below in them.
fn room_in(root: &Path, group: &Path) -> Option<u64> {
    let limit_bytes = limit_bytes(root, group)?;
    let used = ["memory.current", "memory.usage_in_bytes"];
    let used_bytes = used
        .iter()
        .find_map(|file| groups::number(root, group, file))?;
    let stat = read_to_string(root.join(group).join("memory.stat")).ok()?;
    let of = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines
            .find(|(found, _)| *found == name)?
            .1
            .parse::<u64>()
            .ok()
    };
    let of_files = ["inactive_file", "active_file"].map(|name| {
        let with_those_below = of(&format!("total_{name}"));
        with_those_below.or_else(|| of(name)).unwrap_or(0)
    });
    let kept_bytes = used_bytes.saturating_sub(of_files.iter().sum());
    Some(limit_bytes.saturating_sub(kept_bytes))
}

/// Memory of the machine that can be had without pushing anything out.
fn available_bytes(root: &Path) -> Option<u64> {
    let memory = read_to_string(root.join("proc/meminfo")).ok()?;
    let value = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib = value.trim().trim_end_matches(" kB").parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Tree;

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:  8192 kB\nMemAvailable:    4096 kB\n",
    );

    fn second(files: &[(&str, &str)]) -> Tree {
        let tree = Tree::of(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/box/inner\n"),
            (
                "proc/self/mountinfo",
                "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
        ]);
        for (name, text) in files {
            tree.write(&format!("sys/fs/cgroup/{name}"), text);
        }
        tree
    }

    #[test]
    fn without_limits_it_is_what_the_machine_has() {
        let found = room(second(&[("box/memory.max", "max\n")]).root()).unwrap();
        assert_eq!(found.to_string(), "4 MiB of memory are available");
    }

    #[test]
    fn a_group_above_that_has_less_is_named_and_pages_of_files_make_room() {
        let tree = second(&[
            ("box/inner/memory.max", "max\n"),
            ("box/memory.max", "3145728\n"),
            ("box/memory.current", "2097152\n"),
            (
                "box/memory.stat",
                "anon 524288\nshmem 524288\ninactive_file 524288\nactive_file 524288\n",
            ),
        ]);
        let told = room(tree.root()).unwrap().to_string();
        let expected = "2 MiB of memory are available in the control group /sys/fs/cgroup/box";
        assert_eq!(told, expected);
        tree.write("sys/fs/cgroup/box/memory.high", "1048576\n");
        assert_eq!(room(tree.root()).unwrap().bytes, 0, "used up, and more");
    }

    #[test]
    fn groups_of_version_1_have_those_below_in_names_of_their_own() {
        let tree = Tree::of(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/box\n"),
            (
                "proc/self/mountinfo",
                "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
        ]);
        let write = |name: &str, text| tree.write(&format!("sys/fs/cgroup/memory/{name}"), text);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("box/memory.limit_in_bytes", "2097152\n");
        write("box/memory.usage_in_bytes", "2097152\n");
        write(
            "box/memory.stat",
            "inactive_file 0\ntotal_inactive_file 262144\ntotal_active_file 262144\n",
        );
        assert_eq!(room(tree.root()).unwrap().bytes, 524_288);
    }
}
