//! The same file opened a second time, for a thread that reads it while another one does.
//!
//! Two threads that read by one open file description (open(2)) fetch the cache line from each
//! other in which the kernel counts who uses it and keeps where the last read ended (`f_ref` and
//! `f_ra` of `struct file`, written by each read): it took a fifth longer than by one for each
//! (`docs/design/roads.md`). So a file of which two are found to read cached data has another
//! description for one of them.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::again;
use super::mounts::may_be_opened_again;
use super::open::{flags, kind_of, statx};
use crate::backend::threads::execute::is_filtered;
use crate::backend::unasked::{Place, Unasked};
use crate::fork;

/// The second descriptor of a file, opened when it is first needed. One that cannot be opened then
/// is not asked for again.
#[derive(Debug)]
pub(super) struct Twin {
    opened: OnceLock<Option<Counted>>,
    /// Forks before it was made. In a child a thread that is not there may be opening it.
    fork_generation: u32,
    wanted: Wanted,
    /// The thread that has read cached data first, by an address that is its own.
    first: AtomicUsize,
    /// Such reads of other threads, until there is a second descriptor.
    by_others: AtomicU32,
}

/// After so many reads of other threads they have a descriptor of their own: opening it takes as
/// long as a few.
const BY_OTHERS: u32 = 1024;

thread_local! {
    /// Its address is that of no other thread that lives.
    static HERE: u8 = const { 0 };
}

static OPEN: Unasked = Unasked::new();

/// Which file may be opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// None that the program has opened: it may be one that is told of each opening, and waited for
    /// (fanotify(7)).
    No,
    /// Unless system calls are filtered that were not when the file was opened: a process may be
    /// ended for this one since.
    Unfiltered,
    Yes,
}

impl Twin {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            opened: OnceLock::new(),
            fork_generation: fork::generation(),
            wanted,
            first: AtomicUsize::new(0),
            by_others: AtomicU32::new(0),
        }
    }

    /// The other descriptor of the file that this one is of, if it can have one.
    #[inline]
    pub(super) fn of(&self, fd: BorrowedFd<'_>) -> Option<RawFd> {
        if self.fork_generation != fork::generation() {
            return None;
        }
        let twin = self.opened.get_or_init(|| match self.wanted {
            Wanted::No => None,
            Wanted::Unfiltered if is_filtered() => None,
            Wanted::Unfiltered | Wanted::Yes => Counted::open(fd),
        });
        twin.as_ref().map(|twin| twin.fd.as_raw_fd())
    }

    /// The descriptor by which this thread is to read cached data.
    #[inline(always)]
    pub(super) fn for_this_thread(&self, fd: BorrowedFd<'_>) -> RawFd {
        let this = HERE.with(|here| ptr::from_ref(here).addr());
        if self.first.load(Ordering::Relaxed) == this {
            return fd.as_raw_fd();
        }
        self.for_another(fd, this)
    }

    #[inline(never)]
    fn for_another(&self, fd: BorrowedFd<'_>, this: usize) -> RawFd {
        if let Some(twin) = self.opened.get() {
            let twin = twin.as_ref().map(|twin| twin.fd.as_raw_fd());
            return twin.unwrap_or(fd.as_raw_fd());
        }
        let none = 0;
        let (by, order) = (&self.by_others, Ordering::Relaxed);
        let is_first = self.first.compare_exchange(none, this, order, order);
        if is_first.is_ok() || by.fetch_add(1, order) < BY_OTHERS {
            return fd.as_raw_fd();
        }
        self.of(fd).unwrap_or(fd.as_raw_fd())
    }

    /// The descriptor, to be closed.
    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        Some(self.opened.take()??.fd)
    }
}

/// A descriptor that is among those that are [open](OPEN).
#[derive(Debug)]
struct Counted {
    fd: OwnedFd,
    _place: Place,
}

impl Counted {
    #[cold]
    fn open(fd: BorrowedFd<'_>) -> Option<Self> {
        let place = OPEN.take()?;
        let fd = open_again(fd).ok()?;
        Some(Self { fd, _place: place })
    }
}

/// Opens the file once more, to be read.
fn open_again(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let number = fd.as_raw_fd();
    let file = statx(number)?;
    let may_be_opened = match kind_of(&file) {
        libc::S_IFREG => may_be_opened_again(fd, &file)?,
        // The driver of a device asks nobody, and the page cache is that of the device.
        kind => kind == libc::S_IFBLK,
    };
    let flags = flags(fd)?;
    let is_read = flags & libc::O_ACCMODE != libc::O_WRONLY;
    if !may_be_opened || !is_read || has_lease(number) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(flags & (libc::O_DIRECT | libc::O_NOATIME));
    let (twin, _) = again::open_again(fd, &file, &options)?;
    Ok(twin)
}

/// Whether the program has a lease on the file by this descriptor, which another opening would
/// break (fcntl(2), "Leases").
fn has_lease(fd: RawFd) -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::fcntl(fd, libc::F_GETLEASE) != libc::F_UNLCK }
}

/// Closes a descriptor of a file of which the program keeps another, unless it may have a record
/// lock on the file: that ends when any of its descriptors is closed (fcntl(2), "Advisory record
/// locking"). Such a one is left open for as long as the process lives.
pub(super) fn close_beside(fd: OwnedFd) {
    if may_be_locked(&fd) {
        std::mem::forget(fd);
    }
}

/// Whether somebody has a record lock on the file, this process too: one for an open file
/// description conflicts with those of all processes.
fn may_be_locked(fd: &OwnedFd) -> bool {
    // SAFETY: all zeros is a valid value: a lock of the whole file, by nobody.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(libc::F_WRLCK).expect("a small number");
    // SAFETY: the lock is ours to be written.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    answer < 0 || i32::from(lock.l_type) != libc::F_UNLCK
}

// All of it is what the kernel says, and Miri has none.
#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::{self, File};
    use std::io::pipe;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::thread;

    use super::*;
    use crate::backend::threads::execute::to_usize;

    /// Where temporary files are is not known to these tests.
    fn may_be_or_said(file: &File) -> io::Result<bool> {
        let may_be = may_be_opened_again(file.as_fd(), &statx(file.as_raw_fd())?)?;
        if !may_be {
            println!("skipped: temporary files are on a file system whose files are opened once");
        }
        Ok(may_be)
    }

    fn inode(fd: RawFd) -> io::Result<u64> {
        Ok(statx(fd)?.stx_ino)
    }

    #[test]
    fn it_is_the_same_file_though_its_name_is_gone_and_closes_with_it() -> io::Result<()> {
        let named = tempfile::NamedTempFile::new()?;
        let (file, path) = named.into_parts();
        fs::write(&path, "what was written")?;
        path.close()?;
        let mut twin = Twin::new(Wanted::Yes);
        if !may_be_or_said(&file)? {
            return Ok(());
        }
        let other = twin.of(file.as_fd()).expect("it is a local file");
        assert_ne!(other, file.as_raw_fd());
        assert_eq!(twin.of(file.as_fd()), Some(other), "it is opened once");
        assert_eq!(inode(other)?, inode(file.as_raw_fd())?);
        let mut read = [0; 4];
        let taken = File::from(twin.take().expect("it is open"));
        taken.read_exact_at(&mut read, 5)?;
        assert_eq!(&read, b"was ");
        assert!(taken.write_at(b"x", 0).is_err(), "it is for reading only");
        assert!(twin.take().is_none());
        Ok(())
    }

    #[test]
    fn another_thread_reads_by_another_descriptor() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        if !may_be_or_said(&file)? {
            return Ok(());
        }
        let twin = Twin::new(Wanted::Yes);
        let fd = file.as_raw_fd();
        let ask = || twin.for_this_thread(file.as_fd());
        assert_eq!((ask(), ask()), (fd, fd));
        let others: Vec<_> = thread::scope(|scope| {
            let other = scope.spawn(|| (0..=BY_OTHERS + 1).map(|_| ask()).collect());
            other.join().expect("no panic")
        });
        let (before, after) = others.split_at(to_usize(BY_OTHERS));
        assert!(before.iter().all(|read_by| *read_by == fd));
        let second = twin.of(file.as_fd()).expect("it is a local file");
        assert!(second != fd && after.iter().all(|read_by| *read_by == second));
        assert_eq!(ask(), fd, "the first goes on");
        Ok(())
    }

    #[test]
    fn what_the_program_has_opened_is_not_opened_again() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        assert_eq!(Twin::new(Wanted::No).of(file.as_fd()), None);
        Ok(())
    }

    #[test]
    fn a_file_with_a_lease_is_not_opened_again() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        // SAFETY: no memory is involved.
        let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        assert_eq!(leased, 0, "{}", io::Error::last_os_error());
        assert_eq!(Twin::new(Wanted::Yes).of(file.as_fd()), None);
        assert!(has_lease(file.as_raw_fd()));
        Ok(())
    }

    #[test]
    fn closing_beside_a_lock_keeps_it() -> io::Result<()> {
        let named = tempfile::NamedTempFile::new()?;
        let open = || Ok::<OwnedFd, io::Error>(File::open(named.path())?.into());
        let (unlocked, locked) = (open()?, open()?);
        let inode = inode(named.as_file().as_raw_fd())?;
        // The number may mean another file by now.
        let is_open = |fd| statx(fd).is_ok_and(|of| of.stx_ino == inode);
        let number = unlocked.as_raw_fd();
        close_beside(unlocked);
        assert!(!is_open(number));

        // SAFETY: all zeros is a valid value: a lock of the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::c_short::try_from(libc::F_WRLCK).expect("a small number");
        let fd = named.as_file().as_raw_fd();
        // SAFETY: the lock is there until the call returns.
        let answer = unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        let number = locked.as_raw_fd();
        close_beside(locked);
        assert!(is_open(number));
        assert!(may_be_locked(&open()?), "the lock is there");
        Ok(())
    }

    #[test]
    fn what_is_written_only_is_not_read() -> io::Result<()> {
        let named = tempfile::NamedTempFile::new()?;
        let file = fs::OpenOptions::new().write(true).open(named.path())?;
        assert_eq!(Twin::new(Wanted::Yes).of(file.as_fd()), None);
        Ok(())
    }

    #[test]
    fn what_is_no_local_file_has_none() -> io::Result<()> {
        let (pipe, _other_end) = pipe()?;
        assert_eq!(Twin::new(Wanted::Yes).of(pipe.as_fd()), None);
        let of_the_kernel = File::open("/proc/self/status")?;
        assert_eq!(Twin::new(Wanted::Yes).of(of_the_kernel.as_fd()), None);
        let device = File::open("/dev/null")?;
        assert_eq!(Twin::new(Wanted::Yes).of(device.as_fd()), None);
        Ok(())
    }
}
