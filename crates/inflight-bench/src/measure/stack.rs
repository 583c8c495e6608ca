//! The block devices below a file: partitions, device mapper, loop files, overlays, btrfs.
//!
//! Everything is looked up below a root, so that a tree made for a test can stand for a machine.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use inflight_report::record::Device;

use super::host::line;

/// How many files are followed downwards: an overlay on a loop file on an overlay, and so on.
const FILES_MAX: u32 = 8;

/// A line of `/proc/self/mountinfo`. Source: proc_pid_mountinfo(5).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mount {
    pub(crate) point: String,
    /// What of the file system is mounted there.
    pub(crate) root: String,
    /// Options of the mount, then of the file system.
    pub(crate) options: String,
    pub(crate) kind: String,
    /// Device or whatever else the file system was mounted from.
    pub(crate) source: String,
}

impl Mount {
    /// The value of an option of the form `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let mut options = self.options.split(',');
        options.find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// All mounts, each with its device number as `major:minor`.
pub(crate) fn mounts(mountinfo: &str) -> impl Iterator<Item = (&str, Mount)> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let mut right = right.split(' ');
        let (kind, source) = (right.next()?.to_owned(), unescape(right.next()?));
        let super_options = right.next().unwrap_or_default();
        let mount = Mount {
            point: unescape(left.get(4)?),
            root: unescape(left.get(3)?),
            options: unescape(&format!("{},{super_options}", left.get(5)?)),
            kind,
            source,
        };
        Some((*left.get(2)?, mount))
    })
}

/// The mount that a file is on: by device number, or by path where the file system has
/// numbers of its own (btrfs).
pub(crate) fn mount_of(mountinfo: &str, device: &str, path: &Path) -> Option<Mount> {
    mounts(mountinfo)
        .filter(|(_, mount)| path.starts_with(&mount.point))
        .max_by_key(|(number, mount)| (*number == device, mount.point.len()))
        .map(|(_, mount)| mount)
}

/// Spaces and the like are octal in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The mount of a file and the devices below it, top first. A block device is on no mount.
pub(crate) fn below(root: &Path, path: &Path) -> (Option<Mount>, Vec<Device>) {
    let mountinfo = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut search = Search {
        root,
        mountinfo: &mountinfo,
        stack: Vec::new(),
        known: HashSet::new(),
        files_left: FILES_MAX,
    };
    let mount = search.file(path);
    (mount, search.stack)
}

struct Search<'a> {
    root: &'a Path,
    mountinfo: &'a str,
    stack: Vec<Device>,
    known: HashSet<String>,
    files_left: u32,
}

impl Search<'_> {
    /// Adds what a file is on.
    fn file(&mut self, path: &Path) -> Option<Mount> {
        self.files_left = self.files_left.checked_sub(1)?;
        let facts = fs::metadata(path).ok()?;
        let is_device = facts.file_type().is_block_device();
        let device = match is_device {
            true => facts.rdev(),
            false => facts.dev(),
        };
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        if is_device {
            self.device(&self.root.join("sys/dev/block").join(&number));
            return None;
        }
        let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mount = mount_of(self.mountinfo, &number, &absolute);
        let node = self.root.join("sys/dev/block").join(&number);
        if node.exists() {
            self.device(&node);
        } else if let Some(mount) = &mount {
            self.unnumbered(mount);
        }
        mount
    }

    /// Adds what a file system with device numbers of its own is on.
    fn unnumbered(&mut self, mount: &Mount) {
        match mount.kind.as_str() {
            // New files are made in the upper directory. In a container it is out of sight.
            "overlay" => {
                if let Some(upper) = mount.option("upperdir") {
                    self.file(Path::new(upper));
                }
            }
            "btrfs" => self.members(&mount.source),
            _ => self.source(&mount.source),
        }
    }

    /// Adds all devices of the btrfs that this one belongs to.
    fn members(&mut self, source: &str) {
        let Some(name) = name_of(source) else {
            return;
        };
        let has_it = |set: &PathBuf| set.join(&name).exists();
        let sets = children(&self.root.join("sys/fs/btrfs"));
        let set = sets.into_iter().map(|set| set.join("devices")).find(has_it);
        match set {
            Some(set) => children(&set).iter().for_each(|node| self.device(node)),
            None => self.source(source),
        }
    }

    fn source(&mut self, source: &str) {
        if let Some(name) = name_of(source) {
            self.device(&self.root.join("sys/class/block").join(name));
        }
    }

    /// Adds a block device and those it consists of.
    fn device(&mut self, node: &Path) {
        let Ok(found) = fs::canonicalize(node) else {
            return;
        };
        // A partition has no queue of its own: the disk above it in sysfs has.
        let disk: PathBuf = match (found.join("partition").exists(), found.parent()) {
            (true, Some(parent)) => parent.to_owned(),
            _ => found,
        };
        let Some(name) = disk.file_name() else {
            return;
        };
        let name = name.to_string_lossy().into_owned();
        if !self.known.insert(name.clone()) {
            return;
        }
        self.stack.push(describe(&disk, name));
        let lower = children(&disk.join("slaves"));
        lower.iter().for_each(|node| self.device(node));
        if let Some(backing) = line(disk.join("loop/backing_file")) {
            self.file(Path::new(&backing));
        }
    }
}

/// The kernel's name of a device node; device mapper has others in `/dev`.
fn name_of(source: &str) -> Option<String> {
    let node = Path::new(source);
    let absolute = fs::canonicalize(node).unwrap_or_else(|_| node.to_owned());
    let inside = absolute.strip_prefix("/dev").ok()?;
    Some(inside.to_string_lossy().replace('/', "!"))
}

/// What is in a directory, in order of names; nothing if it cannot be read.
fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn describe(disk: &Path, name: String) -> Device {
    let queue = |key: &str| line(disk.join("queue").join(key));
    let number = |key: &str| queue(key).and_then(|text| text.parse().ok());
    let flag = |key: &str| queue(key).map(|text| text != "0");
    let scheduler = queue("scheduler").map(|text| {
        let active = text
            .split('[')
            .nth(1)
            .and_then(|rest| rest.split(']').next());
        active.map_or(text.clone(), str::to_owned)
    });
    Device {
        name,
        model: line(disk.join("device/model")),
        scheduler,
        nr_requests: number("nr_requests"),
        read_ahead_kb: number("read_ahead_kb"),
        max_sectors_kb: number("max_sectors_kb"),
        io_poll: flag("io_poll"),
        write_cache: queue("write_cache"),
        rotational: flag("rotational"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/root rw,data=ordered\n\
        30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g\n\
        31 22 0:40 /sub /mnt/my\\040data rw - btrfs /dev/vdb rw,compress=zstd\n\
        32 22 0:41 / /merged rw - overlay overlay rw,lowerdir=/l,upperdir=/up\\040per,workdir=/w\n";

    #[test]
    fn a_mount_is_found_by_device_or_by_path() {
        let kind = |device, path| {
            mount_of(MOUNTS, device, Path::new(path))
                .map(|mount| mount.kind)
                .unwrap()
        };
        assert_eq!(kind("254:0", "/root/x"), "ext4");
        assert_eq!(kind("0:25", "/dev/shm/x"), "tmpfs");
        assert_eq!(kind("0:99", "/mnt/my data/x"), "btrfs");
        let mount = mount_of(MOUNTS, "254:0", Path::new("/x")).unwrap();
        assert_eq!(mount.options, "rw,relatime,rw,data=ordered");
        let overlay = mount_of(MOUNTS, "0:41", Path::new("/merged/x")).unwrap();
        assert_eq!(overlay.option("upperdir"), Some("/up per"));
        assert_eq!(overlay.option("upper"), None);
    }

    /// A tree in which the device of this very file is a partition of `disk`.
    fn machine(mountinfo: &str) -> (tempfile::TempDir, PathBuf) {
        let tree = tempfile::tempdir().unwrap();
        let file = tree.path().join("data");
        fs::write(&file, "x").unwrap();
        fs::create_dir_all(tree.path().join("proc/self")).unwrap();
        let mountinfo = mountinfo.replace("TREE", tree.path().to_str().unwrap());
        fs::write(tree.path().join("proc/self/mountinfo"), mountinfo).unwrap();
        (tree, file)
    }

    fn disk(tree: &Path, name: &str) -> PathBuf {
        let disk = tree.join("sys/devices").join(name);
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::write(disk.join("queue/nr_requests"), "31\n").unwrap();
        disk
    }

    fn names(tree: &Path, file: &Path) -> Vec<String> {
        let (_, stack) = below(tree, file);
        stack.into_iter().map(|device| device.name).collect()
    }

    #[test]
    fn a_mapped_device_is_followed_to_the_disks_of_its_partitions() {
        let (tree, file) = machine("");
        let tree = tree.path();
        let (mapped, one, two) = (disk(tree, "dm-0"), disk(tree, "sda"), disk(tree, "sdb"));
        fs::create_dir_all(one.join("sda1")).unwrap();
        fs::write(one.join("sda1/partition"), "1\n").unwrap();
        fs::create_dir_all(mapped.join("slaves")).unwrap();
        symlink(one.join("sda1"), mapped.join("slaves/sda1")).unwrap();
        symlink(&two, mapped.join("slaves/sdb")).unwrap();
        let device = fs::metadata(&file).unwrap().dev();
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        fs::create_dir_all(tree.join("sys/dev/block")).unwrap();
        symlink(&mapped, tree.join("sys/dev/block").join(number)).unwrap();
        assert_eq!(names(tree, &file), ["dm-0", "sda", "sdb"]);
        assert_eq!(below(tree, &file).1[1].nr_requests, Some(31));
    }

    #[test]
    fn every_disk_of_a_btrfs_is_found() {
        let mounts = "31 22 0:9999 / TREE rw - btrfs /dev/nowhere-b rw\n";
        let (tree, file) = machine(mounts);
        let tree = tree.path();
        let set = tree.join("sys/fs/btrfs/some-uuid/devices");
        fs::create_dir_all(&set).unwrap();
        for name in ["nowhere-a", "nowhere-b"] {
            symlink(disk(tree, name), set.join(name)).unwrap();
        }
        assert_eq!(names(tree, &file), ["nowhere-a", "nowhere-b"]);
    }

    #[test]
    fn an_overlay_on_itself_comes_to_an_end() {
        let mounts = "31 22 0:9999 / TREE rw - overlay overlay rw,upperdir=TREE\n";
        let (tree, file) = machine(mounts);
        assert!(names(tree.path(), &file).is_empty());
    }
}
