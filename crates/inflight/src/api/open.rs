//! Opening files, past the page cache or through it.
#![allow(unsafe_code)]

mod opening;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::again::open_again;
use super::bounce::AnyRange;
use super::device::{device_limit_bytes, device_of};
use super::direct::{Direct, NotDirect, no_direct, not_storage};
use super::engine::Engine;
use super::file::{Alignment, File};
use super::handle::{Closes, Opened};
use super::mounts;
use super::names::or_global;
use super::twin::Wanted;
use crate::backend::statx::statx as asked;
use crate::backend::threads::execute::is_filtered;
use crate::buf::{Mapping, NotMapped};
use crate::policy::{self, Facts};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, tell};
use rustix::io::Errno;

pub use opening::Open;

/// How a file is opened; the names and rules are those of [`std::fs::OpenOptions`], with these
/// differences: each method takes the options and returns them, so they are chained, and cloned
/// where they are used twice. There is no `append`, as the kernel ignores positions then, and no
/// `custom_flags`: a file that was opened with other flags is taken over by [`File::from_std`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    inner: fs::OpenOptions,
    reads: bool,
    writes: bool,
    /// It may be created or emptied.
    changes: Changes,
    direct: Direct,
    flags: i32,
    maps: bool,
    any_range: AnyRange,
    engine: Option<Engine>,
}

/// What opening may do to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Changes {
    empties: bool,
    creates: bool,
    /// It is not there before.
    is_new: bool,
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub fn new() -> Self {
        Self {
            inner: fs::OpenOptions::new(),
            reads: false,
            writes: false,
            changes: Changes::default(),
            direct: Direct::Off,
            flags: 0,
            maps: false,
            any_range: AnyRange::Off,
            engine: None,
        }
    }

    /// For reading.
    pub fn read(mut self, yes: bool) -> Self {
        self.inner.read(yes);
        self.reads = yes;
        self
    }

    /// For writing.
    pub fn write(mut self, yes: bool) -> Self {
        self.inner.write(yes);
        self.writes = yes;
        self
    }

    /// Empty the file.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.inner.truncate(yes);
        self.changes.empties = yes;
        self
    }

    /// Create the file if it is not there.
    pub fn create(mut self, yes: bool) -> Self {
        self.inner.create(yes);
        self.changes.creates = yes;
        self
    }

    /// Create the file; fail if it is there.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.inner.create_new(yes);
        self.changes.is_new = yes;
        self
    }

    /// Permissions of a created file, before the umask; 0o666 by default.
    pub fn mode(mut self, mode: u32) -> Self {
        self.inner.mode(mode);
        self
    }

    /// Past the page cache or through it; through it by default.
    pub fn direct(mut self, direct: Direct) -> Self {
        self.direct = direct;
        self
    }

    /// Lets transfers of a direct file have any offset, length and address: those that are not
    /// aligned go by way of aligned memory, still past the page cache. Without it, they go through
    /// the page cache ([`Direct::Auto`]) or are refused ([`Direct::Required`]). It concerns reads
    /// and writes of one buffer that the caller gives away; for lists of buffers, and for
    /// [`crate::read_many`] and [`crate::write_many`], nothing changes.
    ///
    /// A read costs at most two blocks more than it asks for, and a copy of what cannot be read in
    /// place. **A write is not atomic:** the blocks at its ends are read, changed and written back,
    /// so that whatever is written to the rest of these blocks meanwhile is undone, by this process
    /// or another, also by another write of this kind. It is for ranges that one owner writes one
    /// after the other. What it writes to a last block that the file ends in goes through the page
    /// cache, by a second descriptor, so that the file never is longer than it is to be; nobody
    /// else is to write past the cache to the same page (4 KiB, or what the machine has) meanwhile.
    /// The file has to be open for reading too. `EINVAL` for what is not aligned in the last block
    /// below 2^63 bytes.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use inflight::{Operation, fs::{AnyRange, Direct, OpenOptions}};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("index");
    /// # std::fs::write(&path, vec![7; 10_000])?;
    /// let options = OpenOptions::new().read(true).direct(Direct::Auto);
    /// let file = options.any_range(AnyRange::Reads).open(&path)?;
    /// let (result, record) = file.read_exact_at(vec![0; 100], 8_150).wait();
    /// assert_eq!(result?, record.len());
    /// # Ok(()) }
    /// ```
    pub fn any_range(mut self, any_range: AnyRange) -> Self {
        self.any_range = any_range;
        self
    }

    /// Each write is durable when it has completed (`O_DSYNC`, open(2)).
    ///
    /// Each is written and flushed by itself. With many at a time, writes with
    /// [`dsync`](crate::fs::WriteAt::dsync) on a file without this may take a third of the time,
    /// because they can share their flushes (`docs/design/durable.md`). One that fails by an error
    /// of the device or of a server counts as a failed sync ([`crate::SyncFailed`]).
    pub fn durable_writes(mut self, yes: bool) -> Self {
        self.flags = if yes {
            self.flags | libc::O_DSYNC
        } else {
            self.flags & !libc::O_DSYNC
        };
        self
    }

    /// Reads of what the page cache has are copied from a mapping of the file, without a system
    /// call, which takes about half the time of pread(2); the others take the same roads as
    /// ever. For files that nobody changes: immutable tables, segments, indexes.
    ///
    /// A wish: [`File::is_mapped`] tells whether the file is mapped, and
    /// [`crate::Stats::fallbacks`] why it is not. A file without bytes is not, nor is one on a file
    /// system without mappings or on hugetlbfs, nor one that another program or machine serves,
    /// which takes pages away as it likes, nor one that belongs to somebody else and may not be
    /// written to, because the kernel does not tell then what is resident (mincore(2), NOTES).
    /// What is appended later is read by the other roads, and so are vectored reads, and those of
    /// more than 256 KiB. It takes 24
    /// bytes of memory for each 64 pages that have been read from.
    ///
    /// Which pages are resident is asked every 100 ms, and up to every 800 ms of those that were
    /// the last times. If a page goes in between, because the kernel needs the memory or somebody
    /// drops the file's cache (posix_fadvise(2)), the thread that reads it waits for the disk, as
    /// it would with any mapping; the mapping is then not used for a second. If the disk fails at
    /// that moment, the process gets SIGBUS.
    ///
    /// # Safety
    ///
    /// Until the file is dropped and its operations have completed, nobody, in this process or in
    /// another, shortens the file or changes the bytes that it has now: a page that is gone is
    /// SIGBUS, and bytes that change while they are copied are undefined behaviour.
    ///
    /// # Source
    ///
    /// mmap(2), mincore(2); figures in `docs/design/mapping.md`.
    ///
    /// ```
    /// # #![allow(unsafe_code)]
    /// # fn main() -> std::io::Result<()> {
    /// use inflight::{Operation, fs::OpenOptions};
    ///
    /// # let path = std::env::current_exe()?;
    /// // SAFETY: tables are written once, under another name, and never changed.
    /// let table = unsafe { OpenOptions::new().read(true).mapped() }.open(path)?;
    /// let (result, page) = table.read_at(vec![0; 4096], 0).wait();
    /// # assert_eq!(result?, page.len());
    /// # Ok(()) }
    /// ```
    pub unsafe fn mapped(mut self) -> Self {
        self.maps = true;
        self
    }

    /// The engine that runs the file's operations; [`Engine::global`] by default.
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Opens the file, and asks the file system for what direct I/O needs. Shorthand for
    /// [`OpenOptions::opening`] and [`Open::wait`], which block: a task awaits the first instead.
    ///
    /// # Errors
    ///
    /// As open(2). `InvalidInput` for `create`, `create_new` or `truncate` without `write(true)`,
    /// and for [`AnyRange::ReadsAndWrites`] of a file that is not opened for reading as well. With
    /// [`Direct::Required`], `Unsupported` where the file system refuses direct I/O, before it is
    /// emptied ([`OpenOptions::truncate`]); with [`OpenOptions::create`] the file may have been
    /// created then, with [`OpenOptions::create_new`] it is removed again, unless another one has
    /// its name by then. With both it and
    /// [`AnyRange::ReadsAndWrites`] also those of the second opening, and `Unsupported` where /proc
    /// is not mounted. A [`crate::SetupError`] if the global engine cannot be made.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let engine = or_global(self.engine.clone())?;
        Ok(File::new(engine, self.open_here(path.as_ref())?))
    }

    /// As [`OpenOptions::open`], as an operation that can be awaited.
    ///
    /// A regular file that is there, is on a local file system and has its path in the kernel's
    /// caches (`RESOLVE_CACHED`, openat2(2)) is opened where that is awaited; so is one that is to
    /// be created or emptied, as long as that takes no longer than the way to another thread;
    /// anything else is opened by a thread of the pool. A FIFO is opened
    /// when somebody opens its other end (fifo(7)), and occupies a thread until then.
    pub fn opening(&self, path: impl AsRef<Path>) -> Open {
        Open {
            options: self.clone(),
            path: path.as_ref().to_owned(),
        }
    }

    /// Refuses what cannot work.
    fn check(&self) -> io::Result<()> {
        if self.changes != Changes::default() && !self.writes {
            // The standard library says so too, but is not told where a file has to be direct.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "create, create_new and truncate change what is there: open the file with \
                 write(true) as well",
            ));
        }
        match self.any_range == AnyRange::ReadsAndWrites && self.writes && !self.reads {
            true => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "any_range(AnyRange::ReadsAndWrites) reads the blocks at the ends of a write: open \
                 the file with read(true) as well",
            )),
            false => Ok(()),
        }
    }

    /// Opens the file on this thread.
    fn open_here(&self, path: &Path) -> io::Result<Opened> {
        self.check()?;
        let fd: OwnedFd = self.first().custom_flags(self.flags).open(path)?.into();
        let statx = statx(fd.as_raw_fd())?;
        if mounts::is_new(&statx) {
            mounts::learn(fd.as_fd(), &statx);
        }
        let flags = flags(&fd)?;
        self.opened(path, fd, flags, &statx)
    }

    /// A file that may have been created by this.
    fn opened(
        &self,
        path: &Path,
        fd: OwnedFd,
        flags: i32,
        statx: &libc::statx,
    ) -> io::Result<Opened> {
        let made = match self.direct {
            Direct::Required => make_direct(&fd, flags, statx),
            Direct::Off | Direct::Auto => Ok(()),
        };
        let opened = made.and_then(|()| self.finish(fd, flags, statx, is_filtered()));
        if opened.is_err() && self.changes.is_new {
            remove(path, statx);
        }
        opened
    }

    /// How the file is opened at first: one that has to be direct is emptied when nothing can
    /// refuse it any more.
    fn first(&self) -> fs::OpenOptions {
        let mut inner = self.inner.clone();
        if self.direct == Direct::Required {
            inner.truncate(false);
        }
        inner
    }

    /// What is to be known of a file that has just been opened.
    fn finish(
        &self,
        fd: OwnedFd,
        flags: i32,
        statx: &libc::statx,
        is_filtered: bool,
    ) -> io::Result<Opened> {
        let direct = flags | libc::O_DIRECT;
        let mut opened = match self.direct {
            Direct::Off => describe(fd, flags, statx),
            Direct::Required => self.describe_required(fd, direct, statx),
            // One more descriptor that is then closed would end the program's own record locks on
            // the file (fcntl(2), "Advisory record locking").
            Direct::Auto if Alignment::from_statx(statx) == Alignment::Refused => {
                describe_not_direct(fd, flags, statx, NotDirect::Refused)
            }
            Direct::Auto => match self.reopen(&fd, statx, libc::O_DIRECT) {
                Ok((other, statx)) => {
                    let mut opened = describe(other, direct, &statx)?;
                    opened.buffered = Some(fd);
                    Ok(opened)
                }
                Err(cause) => describe_not_direct(fd, flags, statx, cause.into()),
            },
        }?;
        opened.required = self.direct == Direct::Required;
        opened.any_range = self.any_range;
        opened.twin = match is_filtered {
            true => Wanted::Yes,
            false => Wanted::Unfiltered,
        };
        if self.maps {
            let size = if self.changes.empties {
                0
            } else {
                statx.stx_size
            };
            let mapped = match opened.facts.served {
                true => Err(NotMapped::Served),
                // SAFETY: whoever asked for it promised that nobody shortens or changes the file.
                false => unsafe { Mapping::new(opened.fd.as_fd(), size) },
            };
            match mapped {
                Ok(mapping) => opened.mapping = Some(mapping),
                Err(why) => opened.not_mapped = Some(why),
            }
        }
        Ok(opened)
    }

    /// A file that is direct, which is emptied now if it is to be. Ends of writes of any range go
    /// through the page cache.
    fn describe_required(
        &self,
        fd: OwnedFd,
        flags: i32,
        statx: &libc::statx,
    ) -> io::Result<Opened> {
        let writes_any = self.writes && self.any_range == AnyRange::ReadsAndWrites;
        let buffered = match writes_any {
            true => Some(self.reopen(&fd, statx, 0).map_err(not_again)?.0),
            false => None,
        };
        let mut opened = describe(fd, flags, statx)?;
        if self.changes.empties && kind_of(statx) == libc::S_IFREG && opened.len > 0 {
            rustix::fs::ftruncate(&opened.fd, 0)?;
            opened.len = 0;
        }
        opened.buffered = buffered;
        Ok(opened)
    }

    /// The same file once more, with these flags as well. It is neither created nor emptied again.
    fn reopen(
        &self,
        fd: &OwnedFd,
        statx: &libc::statx,
        flags: i32,
    ) -> io::Result<(OwnedFd, libc::statx)> {
        // Of others a second opening may mean something, or wait for somebody (fifo(7)).
        if !matches!(kind_of(statx), libc::S_IFREG | libc::S_IFBLK) {
            return Err(not_storage());
        }
        let mut inner = self.inner.clone();
        inner.create(false).create_new(false).truncate(false);
        inner.custom_flags(self.flags | flags);
        open_again(fd.as_fd(), statx, &inner)
    }
}

/// Removes the file that was made under this name, and that nobody wants. One that somebody else
/// has put there since stays, and so does what cannot be removed.
fn remove(path: &Path, made: &libc::statx) {
    let number = |statx: &libc::statx| (device_of(statx), statx.stx_ino);
    let found = statx_of(path, libc::AT_SYMLINK_NOFOLLOW);
    let is_it = found.is_ok_and(|found| number(&found) == number(made));
    if is_it {
        let _ = fs::remove_file(path);
    }
}

pub(super) fn kind_of(statx: &libc::statx) -> u32 {
    u32::from(statx.stx_mode) & libc::S_IFMT
}

#[cold]
fn not_again(cause: io::Error) -> io::Error {
    let (kind, remedy) = match cause.kind() {
        io::ErrorKind::NotFound => (io::ErrorKind::Unsupported, "mount /proc, or "),
        kind => (kind, ""),
    };
    let what = format!(
        "any_range(AnyRange::ReadsAndWrites) opens the file a second time, by way of \
         /proc/thread-self/fd, which failed: {cause}; {remedy}use AnyRange::Reads"
    );
    io::Error::new(kind, what)
}

/// Makes an open file direct. Not done when opening: open(2) creates a file before it refuses
/// `O_DIRECT` for it.
fn make_direct(fd: &OwnedFd, flags: i32, statx: &libc::statx) -> io::Result<()> {
    if Alignment::from_statx(statx) == Alignment::Refused {
        return Err(no_direct());
    }
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    fcntl_setfl(fd, flags | OFlags::DIRECT).map_err(|cause| match cause {
        // fcntl(2), F_SETFL: the file system has no direct I/O.
        Errno::INVAL => no_direct(),
        cause => cause.into(),
    })
}

/// The flags of an open file.
pub(super) fn flags(fd: impl AsFd) -> io::Result<i32> {
    Ok(fcntl_getfl(fd)?.bits().cast_signed())
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes over a descriptor that was opened elsewhere.
pub(super) fn adopt(engine: &Engine, fd: OwnedFd) -> io::Result<File> {
    // An `O_DIRECT` descriptor from elsewhere is as strict as `Direct::Required`: there is no
    // second one to fall back to.
    let (statx, flags) = (statx(fd.as_raw_fd())?, flags(&fd)?);
    let mut opened = describe(fd, flags, &statx)?;
    opened.required = true;
    Ok(File::new(engine.clone(), opened))
}

/// Finds out what has to be known of a descriptor.
fn describe(fd: OwnedFd, flags: i32, statx: &libc::statx) -> io::Result<Opened> {
    if flags & libc::O_APPEND != 0 {
        let what = "a file opened for appending ignores positions; open it without append";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let direct = flags & libc::O_DIRECT != 0;
    let device = device_of(statx);
    let device_bytes = || device_limit_bytes(device);
    let alignment = Alignment::from_statx(statx);
    let facts = Facts {
        direct,
        durable_writes: flags & libc::O_DSYNC != 0,
        limit_bytes: policy::limit_bytes(
            direct,
            direct.then(device_bytes).flatten(),
            alignment.or_assumed().offset_bytes,
        ),
        served: mounts::is_served(fd.as_fd(), statx),
        unaligned: false,
    };
    let kind = kind_of(statx);
    let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    Ok(Opened {
        has_positions: has_positions(&fd, statx),
        fd,
        buffered: None,
        twin: Wanted::No,
        facts,
        below: match kind {
            _ if direct => Some(mounts::number_of_device(device)),
            libc::S_IFBLK => Some(mounts::number_of_device(device)),
            // Where a server is asked one file says nothing of another.
            libc::S_IFREG if mounts::is_known(statx) => mounts::number_of(statx),
            _ => None,
        },
        alignment,
        required: false,
        mapping: None,
        not_mapped: None,
        not_direct: None,
        is_storage: matches!(kind, libc::S_IFREG | libc::S_IFBLK),
        access: flags & (libc::O_ACCMODE | libc::O_PATH),
        closes: match kind {
            _ if facts.served => Closes::Asks,
            libc::S_IFREG if is_read_only => Closes::AtOnce,
            libc::S_IFREG => Closes::Written,
            _ => Closes::Waits,
        },
        len: match kind {
            libc::S_IFREG => statx.stx_size,
            _ => u64::MAX,
        },
        any_range: AnyRange::Off,
    })
}

fn describe_not_direct(
    fd: OwnedFd,
    flags: i32,
    statx: &libc::statx,
    why: NotDirect,
) -> io::Result<Opened> {
    let mut opened = describe(fd, flags, statx)?;
    opened.not_direct = Some(why);
    Ok(opened)
}

/// Whether a file can be read and written at positions.
fn has_positions(fd: &OwnedFd, statx: &libc::statx) -> bool {
    let is_regular = kind_of(statx) == libc::S_IFREG;
    // Those of other file systems may be streams (proc(5), tracefs). What is no file of a file
    // system (eventfd(2), epoll(7)) may have a position for lseek(2) all the same, and a ring that
    // is asked for a transfer there waits as if there were none.
    is_regular && mounts::is_known(statx) || kind_of(statx) != 0 && tell(fd).is_ok()
}

pub(super) fn statx(fd: RawFd) -> io::Result<libc::statx> {
    asked(fd, c"", libc::AT_EMPTY_PATH, ALL)
}

/// Some of what is known of an open file without asking a server (statx(2),
/// `AT_STATX_DONT_SYNC`).
pub(super) fn statx_cached(fd: BorrowedFd<'_>, mask: u32) -> io::Result<libc::statx> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    asked(fd.as_raw_fd(), c"", flags, mask)
}

/// All that is to be known of a file. What a kernel does not know it does not tell.
pub(super) const ALL: u32 =
    libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN | libc::STATX_MNT_ID_UNIQUE;

/// What the file system tells of what has this name, with these flags of statx(2).
pub(super) fn statx_of(path: &Path, flags: i32) -> io::Result<libc::statx> {
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a path has no zero byte"))?;
    asked(libc::AT_FDCWD, &path, flags, ALL)
}

/// Closes a descriptor, and tells of the error that dropping it would hide.
///
/// # Source
///
/// close(2), NOTES: it reports errors of earlier writes on some file systems (EIO, ENOSPC, EDQUOT).
/// The descriptor is gone whatever the answer, so it is not tried again, after a signal neither.
pub(super) fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is owned, and nobody has it after this.
    let answer = unsafe { libc::close(fd.into_raw_fd()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
