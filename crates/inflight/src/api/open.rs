//! Opening files, past the page cache or through it.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::engine::Engine;
use super::file::{Alignment, File};
use super::handle::Opened;
use crate::policy::{self, Facts};

/// Whether a file is opened past the page cache (`O_DIRECT`, open(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Through the page cache.
    #[default]
    Off,
    /// Past the page cache where the file system can and the request is aligned, else through
    /// it. [`File::is_direct`] tells whether the file system can.
    Auto,
    /// Past the page cache only. Opening fails where the file system refuses, and a request that
    /// is not aligned is [`crate::Misaligned`].
    Required,
}

/// How a file is opened; the names and rules are those of [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    inner: fs::OpenOptions,
    direct: Direct,
    flags: i32,
    engine: Option<Engine>,
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub fn new() -> Self {
        Self {
            inner: fs::OpenOptions::new(),
            direct: Direct::Off,
            flags: 0,
            engine: None,
        }
    }

    /// For reading.
    pub fn read(mut self, yes: bool) -> Self {
        self.inner.read(yes);
        self
    }

    /// For writing.
    pub fn write(mut self, yes: bool) -> Self {
        self.inner.write(yes);
        self
    }

    /// Empty the file.
    pub fn truncate(mut self, yes: bool) -> Self {
        self.inner.truncate(yes);
        self
    }

    /// Create the file if it is not there.
    pub fn create(mut self, yes: bool) -> Self {
        self.inner.create(yes);
        self
    }

    /// Create the file; fail if it is there.
    pub fn create_new(mut self, yes: bool) -> Self {
        self.inner.create_new(yes);
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

    /// Each write is durable when it is over (`O_DSYNC`, open(2)).
    pub fn durable_writes(mut self, yes: bool) -> Self {
        self.flags = if yes {
            self.flags | libc::O_DSYNC
        } else {
            self.flags & !libc::O_DSYNC
        };
        self
    }

    /// The engine that runs the file's operations; [`Engine::global`] by default.
    pub fn engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Opens the file, and asks the file system for what direct I/O needs.
    ///
    /// # Errors
    ///
    /// As open(2). With [`Direct::Required`], `Unsupported` where the file system refuses direct
    /// I/O; the file may have been created then. A [`crate::SetupError`] if the global engine
    /// cannot be made.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let engine = match &self.engine {
            Some(engine) => engine.clone(),
            None => Engine::global()?.clone(),
        };
        let mut inner = self.inner.clone();
        let fd: OwnedFd = inner.custom_flags(self.flags).open(path)?.into();
        match self.direct {
            Direct::Off => describe(engine, fd, None, false),
            Direct::Required => {
                make_direct(&fd)?;
                describe(engine, fd, None, true)
            }
            Direct::Auto => match self.reopen_direct(&fd) {
                Some(direct) => describe(engine, direct, Some(fd), false),
                None => describe(engine, fd, None, false),
            },
        }
    }

    /// The same file once more, past the page cache, if that can be. It is opened by way of the
    /// descriptor, so that it is the same file whatever has become of the path, and neither
    /// created nor emptied again.
    fn reopen_direct(&self, fd: &OwnedFd) -> Option<OwnedFd> {
        let mut inner = self.inner.clone();
        inner.create(false).create_new(false).truncate(false);
        inner.custom_flags(self.flags | libc::O_DIRECT);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let direct: OwnedFd = inner.open(path).ok()?.into();
        let can = alignment(direct.as_raw_fd()).ok()? != Alignment::Refused;
        can.then_some(direct)
    }
}

/// Makes an open file direct. Not done when opening: open(2) creates a file before it refuses
/// `O_DIRECT` for it.
fn make_direct(fd: &OwnedFd) -> io::Result<()> {
    if alignment(fd.as_raw_fd())? == Alignment::Refused {
        return Err(no_direct());
    }
    let flags = flags(fd)?;
    // SAFETY: no memory is involved.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) };
    if answer == 0 {
        return Ok(());
    }
    let cause = io::Error::last_os_error();
    // fcntl(2), F_SETFL: EINVAL where the file system has no direct I/O.
    Err(if cause.raw_os_error() == Some(libc::EINVAL) {
        no_direct()
    } else {
        cause
    })
}

/// The flags of an open file.
fn flags(fd: &OwnedFd) -> io::Result<i32> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(flags)
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

#[cold]
fn no_direct() -> io::Error {
    let what = "this file system has no direct I/O for the file; use Direct::Auto or Direct::Off";
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// Takes over a descriptor that was opened elsewhere.
pub(super) fn adopt(engine: &Engine, fd: OwnedFd) -> io::Result<File> {
    // An `O_DIRECT` descriptor from elsewhere is as strict as `Direct::Required`: there is no
    // second one to fall back to.
    describe(engine.clone(), fd, None, true)
}

/// Finds out what has to be known of a descriptor.
fn describe(
    engine: Engine,
    fd: OwnedFd,
    buffered: Option<OwnedFd>,
    required: bool,
) -> io::Result<File> {
    let flags = flags(&fd)?;
    if flags & libc::O_APPEND != 0 {
        let what = "a file opened for appending ignores positions; open it without append";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let direct = flags & libc::O_DIRECT != 0;
    let statx = statx(fd.as_raw_fd())?;
    let device = if direct {
        device_limit_bytes(&statx)
    } else {
        None
    };
    let facts = Facts {
        direct,
        durable_writes: flags & libc::O_DSYNC != 0,
        limit_bytes: policy::limit_bytes(direct, device),
        learns: true,
    };
    // SAFETY: no memory is involved.
    let position = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_CUR) };
    let alignment = Alignment::from_statx(&statx);
    let opened = Opened {
        fd,
        buffered,
        facts,
        alignment,
        required,
        has_positions: position >= 0,
    };
    Ok(File::new(engine, opened))
}

fn alignment(fd: RawFd) -> io::Result<Alignment> {
    Ok(Alignment::from_statx(&statx(fd)?))
}

fn statx(fd: RawFd) -> io::Result<libc::statx> {
    let mut out = MaybeUninit::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN;
    // SAFETY: the path is a constant, and `out` is ours to be filled.
    let answer = unsafe {
        libc::statx(
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            mask,
            out.as_mut_ptr(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the kernel has filled it.
    Ok(unsafe { out.assume_init() })
}

/// What the device below a file takes in one request, if sysfs tells.
fn device_limit_bytes(statx: &libc::statx) -> Option<u32> {
    let is_device = u32::from(statx.stx_mode) & libc::S_IFMT == libc::S_IFBLK;
    let (major, minor) = match is_device {
        true => (statx.stx_rdev_major, statx.stx_rdev_minor),
        false => (statx.stx_dev_major, statx.stx_dev_minor),
    };
    // A partition has its queue one level up.
    ["queue", "../queue"].iter().find_map(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/max_sectors_kb");
        let mut text = [0; 16];
        let len = fs::File::open(path).ok()?.read_at(&mut text, 0).ok()?;
        let kib: u32 = std::str::from_utf8(&text[..len])
            .ok()?
            .trim()
            .parse()
            .ok()?;
        kib.checked_mul(1024)
    })
}
