//! `cargo xtask loop-disk`: a block device so fast that the cost of software shows.
//!
//! ext4 on a loop device with direct I/O over a file in memory: a real block device with a real
//! file system, which accepts `RWF_NOWAIT`, without a disk behind it. `down` finds what `up` made
//! by the name of the backing file, so there is no state to lose.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::sys;
use crate::tools::output;

const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "inflight-loop-disk-";

/// One device that `up` made.
struct LoopDisk {
    device: String,
    backing: PathBuf,
}

/// Makes the device, mounts it and prints the mount point; on failure nothing is left behind.
pub(crate) fn up(directory: Option<&Path>, size_gib: u64) -> Result<()> {
    ensure!(
        sys::is_root(),
        "a loop device and a mount need root: run this with sudo"
    );
    let mount_point = MountPoint::prepare(directory)?;
    let file = tempfile::Builder::new()
        .prefix(PREFIX)
        .suffix(".img")
        .tempfile_in(MEMORY)?;
    file.as_file()
        .set_len(size_gib << 30)
        .context("sizing the file in memory")?;

    let attach = ["--find", "--show", "--direct-io=on"];
    let device = output(Command::new("losetup").args(attach).arg(file.path()))?;
    if let Err(error) = format_and_mount(device.trim(), mount_point.path()) {
        // The first error is the one to report; a device that does not detach is seen by `down`.
        drop(output(
            Command::new("losetup").args(["--detach", device.trim()]),
        ));
        return Err(error);
    }
    file.keep().context("keeping the file in memory")?;
    println!("{}", mount_point.keep().display());
    Ok(())
}

/// Unmounts and removes the device mounted at `directory`; without one, the only device there is,
/// because others may belong to somebody who is measuring on them.
pub(crate) fn down(directory: Option<&Path>) -> Result<()> {
    ensure!(
        sys::is_root(),
        "unmounting a loop device needs root: run this with sudo"
    );
    let wanted = directory
        .map(fs::canonicalize)
        .transpose()
        .context("the directory given")?;
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let up = loop_disks()?.into_iter().map(|disk| {
        let mounted = mount_points(&mounts, &disk.device);
        (disk, mounted)
    });
    let (disk, mounted) = chosen(up.collect(), wanted.as_deref())?;
    remove(&disk, &mounted)?;
    println!("loop-disk: {} removed", disk.device);
    Ok(())
}

/// A device, and where it is mounted.
type Mounted = (LoopDisk, Vec<PathBuf>);

/// The device that is to be removed.
fn chosen(mut up: Vec<Mounted>, wanted: Option<&Path>) -> Result<Mounted> {
    let Some(wanted) = wanted else {
        ensure!(
            up.len() < 2,
            "several devices are up: name the one to remove\n{}",
            listed(&up)
        );
        return up.pop().context("no device of `loop-disk up` is there");
    };
    let found = up
        .iter()
        .position(|(_, at)| at.iter().any(|at| at == wanted));
    found.map(|found| up.swap_remove(found)).with_context(|| {
        let none = format!(
            "no device of `loop-disk up` is mounted at {}",
            wanted.display()
        );
        format!("{none}\n{}", listed(&up))
    })
}

/// A line for each device.
fn listed(up: &[Mounted]) -> String {
    let line = |(disk, mounted): &Mounted| {
        let places: Vec<String> = mounted.iter().map(|at| at.display().to_string()).collect();
        let place = if places.is_empty() {
            "nowhere".to_owned()
        } else {
            places.join(", ")
        };
        format!("  {} at {place}", disk.device)
    };
    up.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A directory to mount on; a fresh one goes away with this value unless it is kept.
enum MountPoint {
    Given(PathBuf),
    Fresh(TempDir),
}

impl MountPoint {
    fn prepare(directory: Option<&Path>) -> Result<Self> {
        let Some(directory) = directory else {
            return Ok(Self::Fresh(
                tempfile::Builder::new().prefix(PREFIX).tempdir()?,
            ));
        };
        let name = directory.display();
        fs::create_dir_all(directory).with_context(|| name.to_string())?;
        let occupied = fs::read_dir(directory)?.next().is_some();
        ensure!(
            !occupied,
            "{name} is not empty: a mount would hide what is in it"
        );
        Ok(Self::Given(directory.canonicalize()?))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Fresh(directory) => directory.path(),
        }
    }

    fn keep(self) -> PathBuf {
        match self {
            Self::Given(path) => path,
            Self::Fresh(directory) => directory.keep(),
        }
    }
}

fn format_and_mount(device: &str, mount_point: &Path) -> Result<()> {
    // Tables written now are not written by the kernel later, in the middle of a measurement.
    let eagerly = ["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
    output(Command::new("mkfs.ext4").args(eagerly).arg(device))?;
    output(
        Command::new("mount")
            .args(["-t", "ext4", "-o", "noatime"])
            .arg(device)
            .arg(mount_point),
    )?;
    Ok(())
}

fn loop_disks() -> Result<Vec<LoopDisk>> {
    let list = [
        "--list",
        "--noheadings",
        "--raw",
        "--output",
        "NAME,BACK-FILE",
    ];
    Ok(parse_loop_devices(&output(
        Command::new("losetup").args(list),
    )?))
}

/// The lines of `losetup --list` whose backing file is one of ours.
fn parse_loop_devices(list: &str) -> Vec<LoopDisk> {
    let ours = format!("{MEMORY}/{PREFIX}");
    let fields = list.lines().filter_map(|line| line.split_once(' '));
    fields
        .filter(|(_, backing)| backing.starts_with(&ours))
        .map(|(device, backing)| LoopDisk {
            device: device.to_owned(),
            backing: PathBuf::from(backing.trim_end()),
        })
        .collect()
}

/// Where `device` is mounted.
///
/// # Source
/// proc_pid_mounts(5), fstab(5): blanks in a path are written as `\040`.
fn mount_points(mounts: &str, device: &str) -> Vec<PathBuf> {
    let fields = mounts.lines().filter_map(|line| line.split_once(' '));
    fields
        .filter(|(source, _)| *source == device)
        .filter_map(|(_, rest)| rest.split(' ').next())
        .map(|path| PathBuf::from(path.replace("\\040", " ")))
        .collect()
}

fn remove(disk: &LoopDisk, mounted: &[PathBuf]) -> Result<()> {
    for mount_point in mounted {
        output(Command::new("umount").arg(mount_point))?;
        let name = mount_point.file_name().and_then(OsStr::to_str);
        if name.is_some_and(|name| name.starts_with(PREFIX)) {
            fs::remove_dir(mount_point).context("removing the mount point")?;
        }
    }
    output(Command::new("losetup").args(["--detach", &disk.device]))?;
    fs::remove_file(&disk.backing).with_context(|| disk.backing.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_loop_devices_are_left_alone() {
        let list = "/dev/loop0 /srv/image.iso\n/dev/loop1 /dev/shm/inflight-loop-disk-a.img\n";
        let disks = parse_loop_devices(list);
        assert_eq!(disks.len(), 1);
        assert_eq!(disks[0].device, "/dev/loop1");
        assert_eq!(
            disks[0].backing,
            Path::new("/dev/shm/inflight-loop-disk-a.img")
        );
    }

    #[test]
    fn of_several_devices_none_is_removed_that_was_not_named() {
        let up = |names: &[&str]| {
            let one = |name: &&str| {
                let disk = LoopDisk {
                    device: format!("/dev/{name}"),
                    backing: PathBuf::from(format!("/dev/shm/{PREFIX}{name}.img")),
                };
                (disk, vec![PathBuf::from(format!("/mnt/{name}"))])
            };
            names.iter().map(one).collect::<Vec<Mounted>>()
        };
        let device = |found: Result<Mounted>| found.map(|(disk, _)| disk.device).unwrap();
        let refused = |found: Result<Mounted>| found.err().expect("refused").to_string();
        let one = Some(Path::new("/mnt/one"));
        assert_eq!(device(chosen(up(&["two", "one"]), one)), "/dev/one");
        assert_eq!(device(chosen(up(&["one"]), None)), "/dev/one");
        let told = refused(chosen(up(&["one", "two"]), None));
        assert!(
            told.contains("/dev/one at /mnt/one") && told.contains("/mnt/two"),
            "{told}"
        );
        assert!(refused(chosen(up(&["two"]), one)).contains("/mnt/two"));
        assert!(refused(chosen(up(&[]), None)).contains("no device"));
    }

    #[test]
    fn mount_points_are_found_by_device() {
        let mounts = "/dev/loop10 /a ext4 rw 0 0\n/dev/loop1 /b\\040c ext4 rw 0 0\n";
        assert_eq!(mount_points(mounts, "/dev/loop1"), [PathBuf::from("/b c")]);
    }
}
