//! The control groups of this process, of both versions.

use std::fs;
use std::path::{Path, PathBuf};

use super::host;
use super::stack::mounts;

/// The directories, below `root`, of the group of this process and of those above it that can be
/// seen from here, nearest first, without the slash at the beginning. Those of both versions: a
/// controller is at work in one of them, and the other has no files of it.
///
/// # Source
/// cgroups(7), /proc/pid/cgroup; proc_pid_mountinfo(5).
pub(crate) fn of(root: &Path, controller: &str) -> Vec<PathBuf> {
    let text = |file| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (groups, mountinfo) = (text("proc/self/cgroup"), text("proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_second = controllers.is_empty();
        let is_it = |mut names: std::str::Split<'_, char>| names.any(|name| name == controller);
        if !is_second && !is_it(controllers.split(',')) {
            continue;
        }
        let mount = mounts(&mountinfo).map(|(_, mount)| mount).find(|mount| {
            match (mount.kind.as_str(), is_second) {
                ("cgroup2", true) => true,
                ("cgroup", false) => is_it(mount.options.split(',')),
                _ => false,
            }
        });
        let Some(mount) = mount else {
            continue;
        };
        let point = mount.point.trim_start_matches('/');
        found.extend(upwards(Path::new(point), &inside(path, &mount.root)));
    }
    found
}

/// The number in a file of a group; nothing for `max`, -1 and the like.
pub(crate) fn number(root: &Path, group: &Path, file: &str) -> Option<u64> {
    host::line(root.join(group).join(file))?.parse().ok()
}

/// The path of a group's file, as the user knows it.
pub(crate) fn shown(group: &Path, file: &str) -> String {
    format!("/{}", group.join(file).display())
}

/// The path of a group below the mount point. Where a container sees only its own part of the tree,
/// the mount's root is that part; a group outside of it is judged by the part's top.
fn inside(group: &str, root: &str) -> PathBuf {
    let group = Path::new(group);
    let below = group.strip_prefix(root).unwrap_or(Path::new(""));
    let below = below.strip_prefix("/").unwrap_or(below);
    match below.components().any(|part| part.as_os_str() == "..") {
        true => PathBuf::new(),
        false => below.to_owned(),
    }
}

fn upwards(point: &Path, below: &Path) -> Vec<PathBuf> {
    below.ancestors().map(|part| point.join(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Tree;

    const MOUNTS: &str = "\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        33 31 0:30 /docker/abc /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn of_tree(controller: &str) -> Vec<String> {
        let groups = "4:blkio:/docker/abc/one\n2:cpu,cpuacct:/a/b\n0::/../../out\n";
        let tree = Tree::of(&[
            ("proc/self/cgroup", groups),
            ("proc/self/mountinfo", MOUNTS),
        ]);
        let found = of(tree.root(), controller);
        let shown = found.iter().map(|path| path.display().to_string());
        shown
            .map(|path| path.trim_end_matches('/').to_owned())
            .collect()
    }

    #[test]
    fn a_group_is_found_with_those_above_it() {
        let expected = [
            "sys/fs/cgroup/cpu,cpuacct/a/b",
            "sys/fs/cgroup/cpu,cpuacct/a",
            "sys/fs/cgroup/cpu,cpuacct",
            "sys/fs/cgroup/unified",
        ];
        assert_eq!(of_tree("cpu"), expected);
    }

    #[test]
    fn a_container_that_sees_a_part_of_the_tree_finds_its_group() {
        let found = of_tree("blkio");
        assert_eq!(found[0], "sys/fs/cgroup/blkio/one");
        assert_eq!(found[1], "sys/fs/cgroup/blkio");
    }
}
