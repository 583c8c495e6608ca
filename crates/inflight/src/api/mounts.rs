//! Which mounted file systems answer by themselves, and which ask somebody, or wait for what is yet
//! to happen.
//!
//! A call that one of the first kind answers from what is in memory waits for nobody. One of a
//! network or of FUSE may wait for a server, which may be a task of this very thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::device::Device;
use super::open::kind_of;

/// The numbers (`linux/magic.h`) of file systems that ask nobody else.
const LOCAL: [i128; 5] = [
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // f2fs
];

const OVERLAY: i128 = 0x794c_7630;

/// The numbers of file systems that another program or machine serves, as far as they are known:
/// of all others who makes a call waits for the kernel and a device, or so it is taken to be.
const SERVED: [i128; 17] = [
    0x6573_5546, // FUSE, virtiofs
    0x6969,      // NFS
    0x0102_1997, // 9p
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x517b,      // SMB
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS of OpenAFS
    0x6b41_4653, // AFS
    0x7375_7245, // Coda
    0x564c,      // NCP
    0x2003_0528, // OrangeFS
    0x786f_4256, // VirtualBox
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x0187,      // what is mounted when it is used (autofs)
];

/// The numbers of file systems whose files the kernel makes up when they are read. Some wait for
/// what is yet to happen (`/proc/kmsg`), for a device (sysfs), or for the memory of another process
/// (`/proc/<pid>/mem`); which ones is not told.
const MADE_UP: [i128; 18] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x6265_6570, // configfs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // SELinux
    0x4341_5d53, // Smack
    0x5a3c_69f0, // AppArmor
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x0765_5821, // resctrl
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x4249_4e4d, // binfmt_misc
    0x6e66_7364, // nfsd
    0xabba_1974, // xenfs
];

/// Who answers for the files of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// See [`LOCAL`].
    Local,
    /// See [`SERVED`] and [`MADE_UP`].
    Served,
    Other,
}

impl Kind {
    /// Of what an open file is on (statfs(2)).
    fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let number = number_of_kind(fd)?;
        Ok(match number {
            _ if LOCAL.contains(&number) => Self::Local,
            _ if SERVED.contains(&number) || MADE_UP.contains(&number) => Self::Served,
            _ => Self::Other,
        })
    }
}

/// Whether an open regular file, of which this was told, may be opened again: it reads the same by
/// every description of it, and its file system asks no server or other program. Of the layers of
/// an overlay that is not known; one that is served is asked, and waited for, as by any read of the
/// overlay that its cache cannot answer.
///
/// One of an overlay that was opened before it was first written went on reading what had been
/// there, until reads came to look where the file is now (Linux 4.19, `ovl_real_fdget` in
/// `fs/overlayfs/file.c`). A kernel that tells of mounts is younger (5.8, statx(2)).
pub(super) fn may_be_opened_again(fd: BorrowedFd<'_>, statx: &libc::statx) -> io::Result<bool> {
    let number = number_of_kind(fd)?;
    let tells_of_mounts = libc::STATX_MNT_ID | libc::STATX_MNT_ID_UNIQUE;
    let is_current = || statx.stx_mask & tells_of_mounts != 0;
    Ok(LOCAL.contains(&number) || number == OVERLAY && is_current())
}

fn number_of_kind(fd: BorrowedFd<'_>) -> io::Result<i128> {
    let number = rustix::fs::fstatfs(fd)?.f_type;
    // Its type is another one on each architecture, and where it is signed some are negative.
    Ok(i128::from(number) & 0xffff_ffff)
}

/// Numbers of mounts, of which the last ones are kept. No lock: a forked child goes on with it.
struct Mounts {
    numbers: [AtomicU64; 32],
    /// How many have been added.
    count: AtomicUsize,
}

impl Mounts {
    const fn none() -> Self {
        Self {
            numbers: [const { AtomicU64::new(0) }; 32],
            count: AtomicUsize::new(0),
        }
    }

    #[inline]
    fn has(&self, number: u64) -> bool {
        let is_it = |known: &AtomicU64| known.load(Ordering::Relaxed) == number;
        self.numbers.iter().any(is_it)
    }

    /// In place of the one that was added before all others, if there is no room: mounts that are
    /// no more are never asked for again, and whoever is missed is learned anew.
    fn add(&self, number: u64) {
        if !self.has(number) {
            let place = self.count.fetch_add(1, Ordering::Relaxed) % self.numbers.len();
            self.numbers[place].store(number, Ordering::Relaxed);
        }
    }
}

/// Mounts of each [`Kind`], in its order; to ask about one may itself wait for a server.
static KNOWN: [Mounts; 3] = [Mounts::none(), Mounts::none(), Mounts::none()];

impl Kind {
    const ALL: [Self; 3] = [Self::Local, Self::Served, Self::Other];

    fn ones(self) -> &'static Mounts {
        &KNOWN[self as usize]
    }

    /// Of the mount with this number, if that is known.
    fn known(number: u64) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.ones().has(number))
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
    number_of(statx).is_some_and(|number| Kind::Local.ones().has(number))
}

/// Whether it would pay to [`learn`].
#[inline]
pub(super) fn is_new(statx: &libc::statx) -> bool {
    number_of(statx).is_some_and(|number| Kind::known(number).is_none())
}

/// Learns on which kind of file system an open file is, of which this was told. May wait for a
/// server.
#[cold]
pub(super) fn learn(fd: BorrowedFd<'_>, statx: &libc::statx) {
    if let (Some(number), Ok(kind)) = (number_of(statx), Kind::of(fd)) {
        kind.ones().add(number);
    }
}

/// Whether a call on an open file, of which this was told, may wait for anything but a device with
/// data: another program or machine serves it, or it is a file of the kernel's own. May wait for
/// whoever serves it, unless its mount is known.
pub(super) fn is_served(fd: BorrowedFd<'_>, statx: &libc::statx) -> bool {
    if kind_of(statx) == libc::S_IFCHR {
        return !NEVER_WAIT.contains(&(statx.stx_rdev_major, statx.stx_rdev_minor));
    }
    // Where mounts are not numbered, another program may serve what is on a device that was mounted
    // otherwise before (`fuseblk`).
    let is_numbered = statx.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0;
    let number = number_of(statx).filter(|_| is_numbered);
    let kind = number.and_then(Kind::known).or_else(|| Kind::of(fd).ok());
    // What is on a device the kernel knows by itself, so only somebody else can fail to tell.
    kind.is_none_or(|kind| kind == Kind::Served)
}

/// The character devices that answer at once, whatever happens: `/dev/null`, `/dev/zero`,
/// `/dev/full` and `/dev/urandom` (Documentation/admin-guide/devices.txt of the kernel).
const NEVER_WAIT: [Device; 4] = [(1, 3), (1, 5), (1, 7), (1, 9)];

// All of it is what the kernel says, and Miri has none.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::fd::AsRawFd;

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
            let is_local = Kind::of(file.as_fd())? == Kind::Local;
            assert_eq!(is_known(&statx), is_local);
        }
        assert!(!is_known(&statx(other.as_raw_fd())?));
        Ok(())
    }

    #[test]
    fn what_may_wait_for_anything_is_served() -> io::Result<()> {
        let is_served = |path: &str| {
            let file = File::open(path)?;
            Ok::<bool, io::Error>(super::is_served(file.as_fd(), &statx(file.as_raw_fd())?))
        };
        for path in ["/proc/self/stat", "/sys/kernel", "/dev/ptmx", "/dev/random"] {
            match is_served(path) {
                Ok(is_served) => assert!(is_served, "{path}"),
                Err(why) => println!("skipped: {path}: {why}"),
            }
        }
        for path in ["/dev/null", "/dev/zero", "/dev/urandom"] {
            assert!(!is_served(path)?, "{path}");
        }
        let ours = tempfile::tempfile()?;
        let is_local = Kind::of(ours.as_fd())? == Kind::Local;
        let is_served = super::is_served(ours.as_fd(), &statx(ours.as_raw_fd())?);
        assert!(!(is_local && is_served));
        Ok(())
    }

    #[test]
    fn the_last_mounts_are_remembered_once_each() {
        let mounts = Mounts::none();
        for number in 1..=40_u64 {
            mounts.add(number);
            mounts.add(number);
            let known = (1..=40).filter(|known| mounts.has(*known));
            assert!(known.eq(number.saturating_sub(31).max(1)..=number));
        }
    }

    #[test]
    fn devices_have_numbers_of_their_own() {
        let (one, other) = (number_of_device((8, 1)), number_of_device((8, 2)));
        assert!(one != other && one != number_of_device((1, 8)) && one > 1 << 62);
    }
}
