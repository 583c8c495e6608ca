//! Operations on names: renaming, removing, folders.

use std::cell::Cell;
use std::fs;
use std::future::IntoFuture;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::cached::{self, Named, folder_of, learn, name};
use super::calls::{Call, Make};
use super::engine::Engine;
use super::mounts;
use super::open::statx_of;
use super::short;
use super::upkeep::Metadata;
use crate::error::SetupError;
use crate::host::shared::Shared;
use crate::policy::Short;

/// Changes names in the file system, or makes such changes durable. Made by [`rename`],
/// [`remove_file`], [`create_dir`], [`remove_dir`] and [`sync_dir`].
///
/// It is run by [`NameOp::wait`] on this thread, or by `.await`: see [`Call`] for that, and for
/// what dropping it does. Where names are in the kernel's caches, on a local file system, and such
/// calls were short, it is done where it is polled; else, and a [`sync_dir`] always, by a thread of
/// the engine's pool. So the thread that polls waits with the file system if that is frozen.
/// It yields `io::Result<()>`.
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct NameOp {
    change: Change,
    engine: Option<Engine>,
}

#[derive(Clone, Debug)]
enum Change {
    Rename { from: PathBuf, to: PathBuf },
    RemoveFile(PathBuf),
    CreateDir(PathBuf),
    RemoveDir(PathBuf),
    SyncDir(PathBuf),
}

/// Asks for size and alignment of what has a name. Made by [`metadata`].
///
/// It is run as a [`NameOp`] is. It yields `io::Result<Metadata>`.
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct MetadataOf {
    path: PathBuf,
    engine: Option<Engine>,
}

/// Gives a file or folder another name, in place of a file that has it, if there is one
/// (rename(2)). Both names are on the same file system.
///
/// Whoever looks sees the one or the other. That it survives a crash is made sure of by
/// [`sync_dir`] of the folders of both names.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::fs;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// # inflight::local::run(async {
/// let (new, name) = (folder.join("config.new"), folder.join("config"));
/// let options = fs::OpenOptions::new().write(true).create_new(true);
/// let file = options.opening(&new).await?;
/// file.write_all_at(b"depth = 32".to_vec(), 0).await.0?;
/// file.sync_data().await?;
/// file.close().await?;
/// fs::rename(&new, &name).await?;
/// fs::sync_dir(folder).await?;
/// assert_eq!(fs::metadata(&name).await?.len, 10);
/// # std::io::Result::Ok(())
/// # })??;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As rename(2): `ENOENT`, `EXDEV` across file systems, `ENOTEMPTY` if the new name is that of a
/// folder with entries.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> NameOp {
    NameOp::new(Change::Rename {
        from: from.as_ref().to_owned(),
        to: to.as_ref().to_owned(),
    })
}

/// Removes a name of a file; the file itself goes when it has no other name and nobody has it
/// open (unlink(2)).
///
/// # Errors
///
/// As unlink(2): `ENOENT`, `EISDIR` for a folder.
pub fn remove_file(path: impl AsRef<Path>) -> NameOp {
    NameOp::new(Change::RemoveFile(path.as_ref().to_owned()))
}

/// Makes an empty folder, with the permissions 0o777 before the umask (mkdir(2)).
///
/// # Errors
///
/// As mkdir(2): `EEXIST` if the name is taken, `ENOENT` if the folder above is not there.
pub fn create_dir(path: impl AsRef<Path>) -> NameOp {
    NameOp::new(Change::CreateDir(path.as_ref().to_owned()))
}

/// Removes an empty folder (rmdir(2)).
///
/// # Errors
///
/// As rmdir(2): `ENOTEMPTY`, `ENOTDIR` for a file.
pub fn remove_dir(path: impl AsRef<Path>) -> NameOp {
    NameOp::new(Change::RemoveDir(path.as_ref().to_owned()))
}

/// Makes the entries of a folder durable: names created, changed and removed in it before this is
/// run. Syncing a file does not do that for its name.
///
/// # Errors
///
/// `ENOTDIR` for a file; else as open(2) for reading, fsync(2) and close(2).
///
/// # Source
///
/// fsync(2), DESCRIPTION: an entry is on disk after an fsync of a descriptor of its folder.
pub fn sync_dir(path: impl AsRef<Path>) -> NameOp {
    NameOp::new(Change::SyncDir(path.as_ref().to_owned()))
}

/// Asks for the size of what has this name, and for what direct I/O on it needs (statx(2)). The
/// target of a symbolic link is what is asked about.
///
/// # Errors
///
/// As statx(2): `ENOENT`, `EACCES` if a folder on the way cannot be searched, `ENOTDIR` if it is
/// none.
pub fn metadata(path: impl AsRef<Path>) -> MetadataOf {
    MetadataOf {
        path: path.as_ref().to_owned(),
        engine: None,
    }
}

impl NameOp {
    fn new(change: Change) -> Self {
        Self {
            change,
            engine: None,
        }
    }

    /// The engine whose pool does it when it is awaited; [`Engine::global`] by default.
    pub fn on(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Does it on this thread, and blocks until it is done. No engine is asked, so this works in
    /// a forked child too.
    ///
    /// # Errors
    ///
    /// See the function that made it.
    pub fn wait(self) -> io::Result<()> {
        self.change.make()
    }
}

impl IntoFuture for NameOp {
    type Output = io::Result<()>;
    type IntoFuture = Call<'static, ()>;

    fn into_future(self) -> Call<'static, ()> {
        let Self { change, engine } = self;
        let changing = Changing {
            change,
            is_new: Cell::new(false),
            are_local: Cell::new(None),
        };
        Call::new(or_global(engine), changing, |(), _| ())
    }
}

/// A change that is awaited.
struct Changing {
    change: Change,
    /// It is to be learned on what it is.
    is_new: Cell<bool>,
    /// Whether its names, as far as they were looked at, wait for nobody but a device.
    are_local: Cell<Option<bool>>,
}

impl Make for Changing {
    type Made = ();

    /// Where nobody has looked, a server may have the names. To sync a folder is part of what makes
    /// a change durable, and is not to wait for opens that hang.
    fn may_wait_for_ever(&self) -> bool {
        !matches!(self.change, Change::SyncDir(_)) && self.are_local.get() != Some(true)
    }

    fn at_once(&self, shared: &Shared) -> Option<io::Result<()>> {
        let change = &self.change;
        let find = |path: &Path| {
            let found = name(shared, path, &self.is_new);
            let others_are = self.are_local.get() != Some(false);
            self.are_local.set(Some(others_are && found.is_some()));
            found
        };
        let is_short = || change.is_short(find);
        short::here(change.kind()?, || is_short().then(|| change.make()))
    }

    fn make(self) -> io::Result<()> {
        if self.is_new.get() {
            let folders = self.change.names().map(|name| name.and_then(folder_of));
            folders.into_iter().flatten().for_each(learn);
        }
        match self.change.kind() {
            Some(kind) => short::in_pool(kind, || self.change.make()),
            None => self.change.make(),
        }
    }
}

impl MetadataOf {
    /// As [`NameOp::on`].
    pub fn on(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// As [`NameOp::wait`].
    ///
    /// # Errors
    ///
    /// As [`metadata`].
    pub fn wait(self) -> io::Result<Metadata> {
        statx_of(&self.path, 0).map(|statx| Metadata::from_statx(&statx))
    }
}

impl IntoFuture for MetadataOf {
    type Output = io::Result<Metadata>;
    type IntoFuture = Call<'static, Metadata>;

    fn into_future(self) -> Call<'static, Metadata> {
        let Self { path, engine } = self;
        Call::new(or_global(engine), Asking(path), |metadata, _| metadata)
    }
}

/// Metadata that is awaited.
struct Asking(PathBuf);

impl Make for Asking {
    type Made = Metadata;

    /// As of a change.
    fn may_wait_for_ever(&self) -> bool {
        true
    }

    fn at_once(&self, shared: &Shared) -> Option<io::Result<Metadata>> {
        let statx = cached::metadata(shared, &self.0)?;
        Some(Ok(Metadata::from_statx(&statx)))
    }

    fn make(self) -> io::Result<Metadata> {
        let statx = statx_of(&self.0, 0)?;
        if mounts::is_new(&statx) {
            learn(&self.0);
        }
        Ok(Metadata::from_statx(&statx))
    }
}

/// The engine that was named, or the global one.
pub(super) fn or_global(engine: Option<Engine>) -> Result<Engine, SetupError> {
    match engine {
        Some(engine) => Ok(engine),
        None => Engine::global().cloned(),
    }
}

impl Change {
    /// Of those that may be short.
    fn kind(&self) -> Option<Short> {
        match self {
            Self::Rename { .. } => Some(Short::Rename),
            Self::RemoveFile(_) => Some(Short::Remove),
            Self::CreateDir(_) => Some(Short::CreateDir),
            Self::RemoveDir(_) => Some(Short::RemoveDir),
            Self::SyncDir(_) => None,
        }
    }

    /// The names that it changes.
    fn names(&self) -> [Option<&Path>; 2] {
        match self {
            Self::Rename { from, to } => [Some(from), Some(to)],
            Self::RemoveFile(path)
            | Self::CreateDir(path)
            | Self::RemoveDir(path)
            | Self::SyncDir(path) => [Some(path), None],
        }
    }

    /// Whether it waits for nobody but a device, and has no more to do than with names.
    fn is_short(&self, name: impl Fn(&Path) -> Option<Named>) -> bool {
        let is_small = |named: Option<Named>| named.is_some_and(|named| !named.is_large());
        match self {
            Self::Rename { from, to } => match (name(from), name(to)) {
                (None | Some(Named::Nothing), _) | (_, None) => false,
                (Some(_), Some(Named::Nothing)) => true,
                // Some file systems write a file back when it replaces another one.
                (Some(from), Some(to)) => !from.is_long() && !to.is_large(),
            },
            Self::RemoveFile(path) | Self::RemoveDir(path) => is_small(name(path)),
            Self::CreateDir(path) => name(path).is_some(),
            Self::SyncDir(_) => false,
        }
    }

    fn make(&self) -> io::Result<()> {
        match self {
            Self::Rename { from, to } => fs::rename(from, to),
            Self::RemoveFile(path) => fs::remove_file(path),
            Self::CreateDir(path) => fs::create_dir(path),
            Self::RemoveDir(path) => fs::remove_dir(path),
            Self::SyncDir(path) => {
                let mut options = fs::OpenOptions::new();
                options.read(true).custom_flags(libc::O_DIRECTORY);
                let folder = options.open(path)?;
                folder.sync_all()?;
                super::open::close(folder.into())
            }
        }
    }
}
