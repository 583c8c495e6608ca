//! `cargo xtask loop-disk`: a block device so fast that the cost of software shows.
//!
//! ext4 on a loop device with direct I/O over a file in memory: a real block device with a real
//! file system, which accepts `RWF_NOWAIT`, without a disk behind it. `down` finds what `up` made
//! by the name of the backing file, so there is no state to lose.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::sys;

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

/// Unmounts and removes the device mounted at `directory`, or all of them.
pub(crate) fn down(directory: Option<&Path>) -> Result<()> {
    ensure!(
        sys::is_root(),
        "unmounting a loop device needs root: run this with sudo"
    );
    let wanted = directory
        .map(fs::canonicalize)
        .transpose()
        .context("the directory given")?;
    let mut removed = 0_u32;
    for disk in loop_disks()? {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        let mounted = mount_points(&mounts, &disk.device);
        if wanted
            .as_ref()
            .is_none_or(|wanted| mounted.contains(wanted))
        {
            remove(&disk, &mounted)?;
            removed += 1;
        }
    }
    if let Some(wanted) = wanted {
        ensure!(
            removed > 0,
            "no device of `loop-disk up` is mounted at {}",
            wanted.display()
        );
    }
    println!("loop-disk: {removed} removed");
    Ok(())
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

/// Standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}: it is part of util-linux or e2fsprogs"))?;
    if !output.status.success() {
        bail!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
    fn mount_points_are_found_by_device() {
        let mounts = "/dev/loop10 /a ext4 rw 0 0\n/dev/loop1 /b\\040c ext4 rw 0 0\n";
        assert_eq!(mount_points(mounts, "/dev/loop1"), [PathBuf::from("/b c")]);
    }
}
