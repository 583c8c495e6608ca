//! Opening that can be awaited: what of it is done where it is polled.

use std::cell::Cell;
use std::future::IntoFuture;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};

use super::{Changes, OpenOptions, flags, kind_of, make_direct, statx};
use crate::api::cached::{self, Named, name};
use crate::api::calls::{Call, Make};
use crate::api::direct::Direct;
use crate::api::file::File;
use crate::api::handle::Opened;
use crate::api::names::or_global;
use crate::api::short;
use crate::backend::threads::execute::is_filtered;
use crate::host::shared::Shared;
use crate::policy::Short;

/// Opens a file. Made by [`OpenOptions::opening`]. It yields `io::Result<File>`.
///
/// # Cancellation
///
/// As [`Call`] says: a file that is being opened when the future is dropped is closed again, but
/// may have been created or emptied.
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct Open {
    pub(super) options: OpenOptions,
    pub(super) path: PathBuf,
}

impl Open {
    /// Opens the file on this thread, and blocks until it is open.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn wait(self) -> io::Result<File> {
        self.options.open(&self.path)
    }
}

impl IntoFuture for Open {
    type Output = io::Result<File>;
    type IntoFuture = Call<'static, File>;

    fn into_future(self) -> Call<'static, File> {
        let Self { mut options, path } = self;
        // The engine stays with the future, so that the pool does not keep it alive.
        let engine = or_global(options.engine.take());
        let opening = Opening { options, path };
        Call::new(engine, opening, |opened, engine| {
            File::new(engine.clone(), opened)
        })
    }
}

/// An open that is awaited.
struct Opening {
    options: OpenOptions,
    path: PathBuf,
}

impl Make for Opening {
    type Made = Opened;

    /// It is not known what has the name: it may be a FIFO (fifo(7)).
    fn may_wait_for_ever(&self) -> bool {
        true
    }

    fn at_once(&self, shared: &Shared) -> Option<io::Result<Opened>> {
        let Self { options, path } = self;
        if let Err(refused) = options.check() {
            return Some(Err(refused));
        }
        match options.is_change() {
            true => short::here(Short::Create, || options.open_short(shared, path)),
            false => options.open_cached(shared, path),
        }
    }

    fn make(self) -> io::Result<Opened> {
        let Self { options, path } = self;
        match options.is_change() {
            true => short::in_pool(Short::Create, || options.open_here(&path)),
            false => options.open_here(&path),
        }
    }
}

impl OpenOptions {
    /// Whether it may create or empty the file, and nothing beyond that.
    fn is_change(&self) -> bool {
        self.changes != Changes::default() && !self.maps
    }

    /// Opens the file, which is not changed, if that waits for nothing.
    fn open_cached(&self, shared: &Shared, path: &Path) -> Option<io::Result<Opened>> {
        if self.maps {
            return None;
        }
        let access = match (self.reads, self.writes) {
            (true, true) => OFlags::RDWR,
            (true, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (false, false) => return None,
        };
        let flags = access | OFlags::from_bits_retain(self.flags.cast_unsigned());
        let is_filtered = is_filtered();
        let (fd, statx) = cached::open(shared, is_filtered, path, flags)?;
        let flags = flags.bits().cast_signed();
        let made = match self.direct {
            Direct::Required => make_direct(&fd, flags, &statx),
            Direct::Off | Direct::Auto => Ok(()),
        };
        Some(made.and_then(|()| self.finish(fd, flags, &statx, is_filtered)))
    }

    /// Opens the file if that waits for nobody but a device, though it may create or empty it.
    fn open_short(&self, shared: &Shared, path: &Path) -> Option<io::Result<Opened>> {
        // Whoever opens it learns on what it is.
        let named = name(shared, path, &Cell::new(false))?;
        let may = match named {
            Named::Nothing => self.changes.creates || self.changes.is_new,
            // To empty it gives its space back, whatever other names it has.
            Named::File { .. } => !(self.changes.is_new || self.changes.empties && named.is_long()),
            Named::Folder { .. } | Named::Other => false,
        };
        if !may {
            return None;
        }
        // Nobody is waited for, whatever has got this name meanwhile. Whoever may wait finds out
        // why it cannot be opened, if so.
        let mut inner = self.first();
        inner.custom_flags(self.flags | libc::O_NONBLOCK);
        let fd: OwnedFd = match inner.open(path) {
            Ok(fd) => fd.into(),
            // It may have been created all the same, and the next try would find that.
            Err(cause) if self.changes.is_new => return Some(Err(cause)),
            Err(_) => return None,
        };
        // From here on it may have been created, so there is no other try.
        let statx = match statx(fd.as_raw_fd()) {
            Ok(statx) => statx,
            Err(cause) => return Some(Err(cause)),
        };
        if kind_of(&statx) != libc::S_IFREG {
            // But this was there.
            return None;
        }
        let waiting = flags(&fd).map(|flags| flags & !libc::O_NONBLOCK);
        let set = waiting.and_then(|flags| {
            fcntl_setfl(&fd, OFlags::from_bits_retain(flags.cast_unsigned()))?;
            Ok(flags)
        });
        Some(set.and_then(|flags| self.opened(path, fd, flags, &statx)))
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::super::{remove, statx};
    use super::*;

    #[test]
    fn a_file_that_was_made_in_vain_is_removed_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let made = || {
            let file = std::fs::File::create_new(&path).unwrap();
            statx(file.as_raw_fd()).unwrap()
        };
        let first = made();
        let aside = folder.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        let second = made();
        remove(&path, &first);
        assert!(path.exists() && aside.exists());
        remove(&path, &second);
        assert!(!path.exists() && aside.exists());
        // Another name of it is not its own.
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        remove(&path, &first);
        assert!(path.is_symlink() && aside.exists());
    }
}
