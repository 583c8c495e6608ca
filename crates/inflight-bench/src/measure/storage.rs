//! Facts about what a file is on: file system, alignment for direct I/O, space.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use inflight_report::record::Target;

use super::stack;

/// Stands where the name of a file system does, for a device that is read without one.
pub(crate) const NO_FILE_SYSTEM: &str = "no file system";

/// The same, where the kernel does not tell.
pub(crate) const UNKNOWN: &str = "unknown";

/// Everything that is stored about the file.
pub(crate) fn target(path: &Path, size_bytes: u64, scratch: bool, named: &Path) -> Result<Target> {
    let is_device = fs::metadata(path)?.file_type().is_block_device();
    let (mount, stack) = stack::below(Path::new("/"), path);
    let (fs, options) = match mount {
        Some(mount) => (mount.kind, Some(mount.options)),
        None if is_device => (NO_FILE_SYSTEM.to_owned(), None),
        // Nobody tells of mounts where there is no /proc.
        None => (kind_by_number(path).to_owned(), None),
    };
    let align = direct_alignment(path);
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

/// What a file system says that it is, as far as that decides whether there is a disk below it.
/// Source: statfs(2), `f_type`.
fn kind_by_number(path: &Path) -> &'static str {
    let number = rustix::fs::statfs(path).map(|found| found.f_type);
    // It is signed on some machines, and its upper half says nothing.
    match number.map(|number| i128::from(number) & 0xffff_ffff) {
        Ok(0x0102_1994) => "tmpfs",
        Ok(0x8584_58f6) => "ramfs",
        Ok(0x9584_58f6) => "hugetlbfs",
        _ => UNKNOWN,
    }
}

/// Alignment of memory and of offsets for direct I/O, if the kernel tells. Source: statx(2),
/// STATX_DIOALIGN; zero means that direct I/O is refused.
pub(crate) fn direct_alignment(path: &Path) -> Option<(u32, u32)> {
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

/// The `stat` file of the block device that the file is on, if there is one.
pub(crate) fn stat_of(target: &Target) -> Option<PathBuf> {
    let device = target.stack.first()?;
    // Partitions are accounted for by themselves, but the stack has whole disks.
    let stat = Path::new("/sys/class/block")
        .join(&device.name)
        .join("stat");
    stat.exists().then_some(stat)
}

/// Space of a file system.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) is_read_only: bool,
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
        is_read_only: facts.f_flag & libc::ST_RDONLY != 0,
    })
}

/// Throws the pages of a file out of the page cache, after writing back what is dirty. That this
/// worked is judged by what the device serves afterwards, not by the answers here.
pub(crate) fn drop_cache(file: &File) {
    _ = file.sync_all();
    drop_clean(file);
}

/// The same of pages that are not dirty; it makes no flush, which takes milliseconds even where
/// nothing is to be written.
pub(crate) fn drop_clean(file: &File) {
    // SAFETY: a call on an open descriptor; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_known_by_its_number_as_by_its_mount() {
        for path in ["/dev/shm", "/proc", env!("CARGO_MANIFEST_DIR")].map(Path::new) {
            let mount = stack::below(Path::new("/"), path).0.map(|mount| mount.kind);
            let is_memory = ["tmpfs", "ramfs"]
                .iter()
                .find(|kind| mount.as_deref() == Some(**kind));
            let expected = is_memory.copied().unwrap_or(UNKNOWN);
            assert_eq!(kind_by_number(path), expected, "{mount:?}");
        }
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
