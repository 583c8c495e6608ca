//! What a file system tells of a file: statx(2), or fstatat(2) where a filter refuses that.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::{major, minor};

/// Asks as statx(2) does. Seccomp profiles that are older than that call refuse it with EPERM,
/// which no local file system answers; then there is what there was before: no alignment, no mount.
pub(crate) fn statx(fd: RawFd, path: &CStr, flags: i32, mask: u32) -> io::Result<libc::statx> {
    let mut out = MaybeUninit::zeroed();
    // SAFETY: the path is a string for as long as this takes, and `out` is ours to be filled.
    let answer = unsafe { libc::statx(fd, path.as_ptr(), flags, mask, out.as_mut_ptr()) };
    if answer >= 0 {
        // SAFETY: it was zeroed, and the kernel has filled it.
        return Ok(unsafe { out.assume_init() });
    }
    let cause = io::Error::last_os_error();
    match cause.raw_os_error() {
        Some(libc::EPERM) => older(fd, path, flags),
        _ => Err(cause),
    }
}

#[cold]
fn older(fd: RawFd, path: &CStr, flags: i32) -> io::Result<libc::statx> {
    let flags = flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW);
    let mut out = MaybeUninit::zeroed();
    // SAFETY: as above.
    if unsafe { libc::fstatat(fd, path.as_ptr(), out.as_mut_ptr(), flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the kernel has filled it.
    let stat: libc::stat = unsafe { out.assume_init() };
    // SAFETY: plain numbers, of which each may be zero.
    let mut told: libc::statx = unsafe { std::mem::zeroed() };
    told.stx_mask = libc::STATX_BASIC_STATS;
    told.stx_blksize = u32::try_from(stat.st_blksize).unwrap_or(0);
    told.stx_nlink = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
    (told.stx_uid, told.stx_gid) = (stat.st_uid, stat.st_gid);
    // The kind and the rights of a file are in the lower half (inode(7)).
    told.stx_mode = u16::try_from(stat.st_mode & 0xffff).unwrap_or(0);
    told.stx_ino = stat.st_ino;
    // Neither is ever negative.
    told.stx_size = u64::try_from(stat.st_size).unwrap_or(0);
    told.stx_blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    (told.stx_rdev_major, told.stx_rdev_minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    (told.stx_dev_major, told.stx_dev_minor) = (major(stat.st_dev), minor(stat.st_dev));
    Ok(told)
}
