//! The kind of file system: memory, network, user space, layers, or one on a disk.

use inflight_report::truth;

use super::explain::Topic;
use super::{Found, Site, Spoils};
use crate::measure::storage::{NO_FILE_SYSTEM, UNKNOWN};

const MEMORY: &str = "tmpfs-target";
const ID: &str = "file-system";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: MEMORY,
        text: "The place is on a file system in memory (tmpfs, ramfs). Newer kernels accept \
            direct I/O there, so a benchmark of it runs without an error and shows fantastic \
            figures of copying memory. Often /tmp is such a place. Name a directory on a disk, \
            such as /var/tmp or your home directory.",
    },
    Topic {
        id: ID,
        text: "ext4 and XFS on a disk serve io_uring best: direct reads are handed to the device \
            without a worker thread. Network file systems and FUSE add a round trip to a server \
            or to another process, and answer from caches that this machine does not see. An \
            overlay copies a file as a whole when it is first written; in a container, put data \
            on a volume. ZFS keeps a cache of its own besides the page cache. On btrfs, direct \
            writes to files with checksums go through the page cache, and compression changes how \
            much is read.",
    },
];

/// File systems whose server is another machine, or the host of this one.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "ceph",
    "9p",
    "virtiofs",
    "afs",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.ceph",
    "fuse.juicefs",
];

/// One line about the kind, and one if it is memory.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let fs = site.target.fs.as_str();
    let shown = &site.target.path;
    if truth::in_memory(&site.target) {
        let finding = format!("{shown} is on {fs}: this is memory, no disk");
        return vec![
            Found::problem(MEMORY, finding)
                .so("Direct I/O may be accepted, but no device is involved")
                .fix("name a directory on a disk, such as /var/tmp")
                .spoils(Spoils::Direct),
        ];
    }
    let is_disk = match fs {
        UNKNOWN => Found::unknown(MEMORY, format!("what {shown} is on is not known"))
            .so("It may be memory, and no disk")
            .fix("mount /proc, which tells"),
        _ => Found::ok(MEMORY, format!("{shown} is not in memory")),
    };
    vec![is_disk, kind(site, fs)]
}

fn kind(site: &Site, fs: &str) -> Found {
    let warning = |what: &str| Found::warning(ID, format!("{fs} is {what}"));
    match fs {
        _ if NETWORK.contains(&fs) => warning("a network file system")
            .so("Each request goes to a server, whose caches cannot be told from its disks"),
        _ if fs.starts_with("fuse") => warning("a file system in user space")
            .so("Each request goes to another process; io_uring cannot make it faster than that"),
        "overlay" => overlay(site),
        "zfs" => Found::note(ID, "zfs has a cache of its own")
            .so("What is read twice is read from memory, unless primarycache=metadata is set"),
        "btrfs" => Found::note(ID, "btrfs checks sums and may compress")
            .so("Direct writes go through the page cache where a file has checksums")
            .fix("chattr +C DIRECTORY # for new, empty files: no checksums, no copies"),
        NO_FILE_SYSTEM => Found::ok(ID, "the device is read without a file system"),
        "unknown" => Found::unknown(ID, "the file system was not found in the list of mounts"),
        _ if journals_data(site) => warning("mounted with data=journal")
            .so("Direct I/O goes through the page cache, and data is written twice")
            .fix("mount with data=ordered, the default"),
        _ => Found::ok(ID, format!("{fs} is on a disk")),
    }
}

fn journals_data(site: &Site) -> bool {
    let options = site.target.mount_options.as_deref().unwrap_or_default();
    options.split(',').any(|option| option == "data=journal")
}

fn overlay(site: &Site) -> Found {
    let below = match site.target.stack.first() {
        Some(disk) => format!("overlay, with its upper directory on {}", disk.name),
        None => "overlay; the disk below it is out of sight here".to_owned(),
    };
    Found::warning(ID, format!("the file system is an {below}"))
        .so("A file is copied as a whole when it is first written, and the disk shows through late")
        .fix("put data on a volume: docker run -v /data:/data")
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;

    fn on(fs: &str, options: &str) -> Found {
        let mut site = Site::in_tree(std::path::Path::new("/nowhere"), &["sda"]);
        fs.clone_into(&mut site.target.fs);
        site.target.mount_options = Some(options.to_owned());
        check(&site).pop().unwrap()
    }

    #[test]
    fn kinds_are_told_apart() {
        let status = |fs| on(fs, "rw").line.status;
        assert_eq!(status("tmpfs"), Status::Problem);
        for slow in ["nfs4", "9p", "fuse", "fuse.sshfs", "fuseblk", "overlay"] {
            assert_eq!(status(slow), Status::Warning, "{slow}");
        }
        assert_eq!(status("zfs"), Status::Note);
        assert_eq!(status("xfs"), Status::Ok);
        assert_eq!(status("unknown"), Status::Unknown);
        assert!(on("fuse.sshfs", "rw").line.finding.contains("network"));
        assert_eq!(on("ext4", "rw,data=journal").line.status, Status::Warning);
    }
}
