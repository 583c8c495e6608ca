//! Which mounted file systems answer by themselves, and which ask somebody.
//!
//! A call that one of the first kind answers from what is in memory waits for nobody. One of a
//! network or of FUSE may wait for a server, which may be a task of this very thread.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Device;

/// The numbers (`linux/magic.h`) of file systems whose files are the same by every description. One
/// of an overlay that is opened before the file is first written goes on reading what was there
/// before (kernel documentation, `filesystems/overlayfs.rst`, "Non-standard behavior"), and those
/// that ask a server or another program are told of each opening.
const LOCAL: [i128; 5] = [
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // f2fs
];

/// Whether an open file is on one of these [file systems](LOCAL) (statfs(2)).
pub(super) fn is_local(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut out = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `out` is ours to be filled.
    let answer = unsafe { libc::fstatfs(fd.as_raw_fd(), out.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the kernel has filled it.
    let number = unsafe { out.assume_init() }.f_type;
    // Its type is another one on each architecture.
    Ok(LOCAL.contains(&i128::from(number)))
}

/// Numbers of mounts. No lock: a forked child goes on with it.
struct Mounts([AtomicU64; 32]);

/// Mounts that are known to be [local](LOCAL) and not to be; to ask about one may itself wait for a
/// server.
static LOCAL_ONES: Mounts = Mounts([const { AtomicU64::new(0) }; 32]);
static OTHERS: Mounts = Mounts([const { AtomicU64::new(0) }; 32]);

impl Mounts {
    #[inline]
    fn has(&self, number: u64) -> bool {
        let is_it = |known: &AtomicU64| known.load(Ordering::Relaxed) == number;
        self.0.iter().any(is_it)
    }

    fn is_full(&self) -> bool {
        self.0[self.0.len() - 1].load(Ordering::Relaxed) != 0
    }

    fn add(&self, number: u64) {
        for place in &self.0 {
            let order = Ordering::Relaxed;
            match place.compare_exchange(0, number, order, order) {
                Err(other) if other != number => {}
                _ => return,
            }
        }
    }
}

/// A number that no other mount has, or has had since the system was started: that of the mount
/// from Linux 6.8 on (statx(2), `STATX_MNT_ID_UNIQUE`), else that of its block device. The numbers
/// of mounts without one are given again there.
pub(super) fn number_of(statx: &libc::statx) -> Option<u64> {
    if statx.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0 {
        return Some(statx.stx_mnt_id);
    }
    let device = (statx.stx_dev_major, statx.stx_dev_minor);
    (device.0 != 0).then(|| number_of_device(device))
}

/// The number of a device, which no mount has.
pub(super) fn number_of_device((major, minor): Device) -> u64 {
    1 << 63 | u64::from(major) << 32 | u64::from(minor)
}

/// Whether what this was told of is known to be on a local file system.
#[inline]
pub(super) fn is_known(statx: &libc::statx) -> bool {
    number_of(statx).is_some_and(|number| LOCAL_ONES.has(number))
}

/// Whether it would pay to [`learn`]. Files on more mounts than there is room for go by way of the
/// pool.
#[inline]
pub(super) fn is_new(statx: &libc::statx) -> bool {
    let is_new = |number| !LOCAL_ONES.has(number) && !OTHERS.has(number);
    number_of(statx).is_some_and(is_new) && !LOCAL_ONES.is_full() && !OTHERS.is_full()
}

/// Learns whether an open file is on a local file system, of which this was told. May wait for a
/// server.
#[cold]
pub(super) fn learn(fd: BorrowedFd<'_>, statx: &libc::statx) {
    let (Some(number), Ok(is_local)) = (number_of(statx), is_local(fd)) else {
        return;
    };
    let ones = match is_local {
        true => &LOCAL_ONES,
        false => &OTHERS,
    };
    ones.add(number);
}

// All of it is what the kernel says, and Miri has none.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::api::open::statx;

    #[test]
    fn what_a_mount_is_has_to_be_asked_once() -> io::Result<()> {
        let (ours, other) = (tempfile::tempfile()?, File::open("/proc/self/stat")?);
        for file in [&ours, &other] {
            let statx = statx(file.as_raw_fd())?;
            if number_of(&statx).is_none() {
                println!("skipped: this kernel does not number mounts for ever");
                continue;
            }
            learn(file.as_fd(), &statx);
            assert!(!is_new(&statx));
            assert_eq!(is_known(&statx), is_local(file.as_fd())?);
        }
        assert!(!is_known(&statx(other.as_raw_fd())?));
        Ok(())
    }

    #[test]
    fn mounts_are_remembered_once_each_and_as_many_as_there_is_room_for() {
        let mounts = Mounts([const { AtomicU64::new(0) }; 32]);
        for number in 1..=40 {
            assert_eq!(mounts.is_full(), number > 32);
            mounts.add(number);
            mounts.add(number);
            assert_eq!(mounts.has(number), number <= 32);
        }
    }

    #[test]
    fn devices_have_numbers_of_their_own() {
        let (one, other) = (number_of_device((8, 1)), number_of_device((8, 2)));
        assert!(one != other && one != number_of_device((1, 8)) && one > 1 << 62);
    }
}
