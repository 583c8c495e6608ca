//! Facts about what a file is on: file system, alignment for direct I/O, the block devices below.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File, read_to_string};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use inflight_report::record::{Device, Target};

use crate::measure::host::line;

/// A line of `/proc/self/mountinfo`. Source: proc_pid_mountinfo(5).
#[derive(Debug, PartialEq)]
struct Mount {
    point: String,
    options: String,
    kind: String,
}

/// Everything that is stored about the file.
pub(crate) fn target(path: &Path, size_bytes: u64, scratch: bool, named: &Path) -> Result<Target> {
    let metadata = fs::metadata(path)?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mount = mount_of(&mounts, &format!("{major}:{minor}"), &absolute);
    let (fs, options) = match mount {
        Some(mount) => (mount.kind, Some(mount.options)),
        None => ("unknown".to_owned(), None),
    };
    let align = direct_alignment(path);
    let mut stack = Vec::new();
    descend(
        &Path::new("/sys/dev/block").join(format!("{major}:{minor}")),
        &mut stack,
    );
    Ok(Target {
        path: named.display().to_string(),
        scratch,
        size_bytes,
        fs,
        mount_options: options,
        dio_memory_align_bytes: align.map(|(memory, _)| memory),
        dio_offset_align_bytes: align.map(|(_, offset)| offset),
        stack,
    })
}

/// The mount that a file is on: by device number, or by path where the file system has
/// numbers of its own (btrfs).
fn mount_of(mountinfo: &str, device: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let mut right = right.split(' ');
        let mount = Mount {
            point: unescape(left.get(4)?),
            options: (*left.get(5)?).to_owned(),
            kind: right.next()?.to_owned(),
        };
        let super_options = right.nth(1).unwrap_or_default();
        let options = format!("{},{super_options}", mount.options);
        Some((*left.get(2)? == device, Mount { options, ..mount }))
    });
    mounts
        .filter(|(_, mount)| path.starts_with(&mount.point))
        .max_by_key(|(same_device, mount)| (*same_device, mount.point.len()))
        .map(|(_, mount)| mount)
}

/// Spaces and the like are octal in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// Alignment of memory and of offsets for direct I/O, if the kernel tells. Source: statx(2),
/// STATX_DIOALIGN; zero means that direct I/O is refused.
fn direct_alignment(path: &Path) -> Option<(u32, u32)> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut facts = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_DIOALIGN;
    // SAFETY: the path ends with a zero byte, and the kernel fills memory of the right type.
    let result = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, mask, facts.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: the structure is made of integers and was zeroed, then filled by the kernel.
    let facts = unsafe { facts.assume_init() };
    let told = facts.stx_mask & libc::STATX_DIOALIGN != 0 && facts.stx_dio_offset_align != 0;
    told.then_some((facts.stx_dio_mem_align, facts.stx_dio_offset_align))
}

/// Adds a block device and those it consists of.
fn descend(sysfs: &Path, stack: &mut Vec<Device>) {
    let Ok(found) = fs::canonicalize(sysfs) else {
        return;
    };
    // A partition has no queue of its own: the disk above it in sysfs has.
    let disk: PathBuf = match (found.join("partition").exists(), found.parent()) {
        (true, Some(parent)) => parent.to_owned(),
        _ => found,
    };
    let Some(name) = disk
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
    else {
        return;
    };
    if stack.iter().any(|known| known.name == name) {
        return;
    }
    stack.push(device(&disk, name));
    let lower = fs::read_dir(disk.join("slaves"))
        .into_iter()
        .flatten()
        .flatten();
    lower.for_each(|entry| descend(&entry.path(), stack));
}

fn device(disk: &Path, name: String) -> Device {
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

/// Space of a file system.
pub(crate) struct Space {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
}

/// The space of the file system a directory is on, as an unprivileged user may use it.
pub(crate) fn space(directory: &Path) -> Result<Space> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let mut facts = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the kernel fills memory of the right type.
    let result = unsafe { libc::statvfs(path.as_ptr(), facts.as_mut_ptr()) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).with_context(|| format!("statvfs of {}", directory.display()));
    }
    // SAFETY: the call succeeded, so the kernel has filled the structure.
    let facts = unsafe { facts.assume_init() };
    Ok(Space {
        total_bytes: facts.f_blocks.saturating_mul(facts.f_frsize),
        free_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
    })
}

/// Throws the pages of a file out of the page cache, after writing back what is dirty. That this
/// worked is judged by what the device serves afterwards, not by the answers here.
pub(crate) fn drop_cache(file: &File) {
    _ = file.sync_all();
    // SAFETY: a call on an open descriptor; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime - ext4 /dev/root rw,data=ordered\n\
        30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1g\n\
        31 22 0:40 /sub /mnt/my\\040data rw - btrfs /dev/vdb rw,compress=zstd\n";

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
    }

    #[test]
    fn this_directory_is_on_something_with_space() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = target(&here.join("Cargo.toml"), 1, false, here).unwrap();
        assert_ne!(found.fs, "unknown");
        let space = space(here).unwrap();
        assert!(space.total_bytes >= space.free_bytes && space.total_bytes > 0);
    }
}
