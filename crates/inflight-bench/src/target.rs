//! What is measured: a directory, where a test file is made, or an existing file, only read.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cli::Options;
use crate::exit::{refused, usage};
use crate::measure::{host, storage};
use crate::profile::Profile;
use crate::progress::Progress;
use crate::scratch::{self, Scratch};
use crate::signals;
use crate::size::human;
use crate::strategy::mix;

/// A place that was named on the command line and may be used.
pub(crate) enum Place {
    Directory(PathBuf),
    File { path: PathBuf, size_bytes: u64 },
}

/// Examines what was named; opens nothing.
pub(crate) fn examine(path: &Path) -> Result<Place> {
    let shown = path.display();
    let metadata = fs::symlink_metadata(path)
        .map_err(|error| usage(format!("{shown} cannot be examined: {error}")))?;
    if metadata.is_symlink() && !path.is_dir() {
        return Err(refused(format!(
            "{shown} is a symbolic link: name the file itself"
        )));
    }
    if path.is_dir() {
        return Ok(Place::Directory(path.to_owned()));
    }
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return Err(refused(format!(
            "{shown} is a block device: name a directory or a file on it, so that no data is \
             at risk"
        )));
    }
    if !kind.is_file() {
        return Err(refused(format!(
            "{shown} is neither a directory nor an ordinary file"
        )));
    }
    Ok(Place::File {
        path: path.to_owned(),
        size_bytes: metadata.len(),
    })
}

/// The file that is read.
pub(crate) struct TestFile {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    scratch: Option<Scratch>,
}

impl TestFile {
    /// Makes the test file, or takes the existing one.
    pub(crate) fn prepare(
        place: Place,
        options: &Options,
        largest_block_bytes: u32,
        progress: &Progress,
    ) -> Result<Self> {
        let block_bytes = u64::from(largest_block_bytes);
        match place {
            Place::Directory(directory) => {
                let size_bytes = options.scratch_size_bytes() / block_bytes * block_bytes;
                enough(size_bytes, block_bytes)?;
                scratch::check_space(&directory, size_bytes)?;
                progress.writing(size_bytes, &directory, options.keep_file);
                let seed = mix(options.seed) >> 32;
                let scratch = Scratch::create(&directory, size_bytes, seed, &mut |done_bytes| {
                    progress.written(done_bytes, size_bytes);
                })?;
                let path = scratch.path.clone();
                Ok(Self {
                    path,
                    size_bytes,
                    scratch: Some(scratch),
                })
            }
            Place::File { path, size_bytes } => {
                let wanted = options.size_bytes.unwrap_or(size_bytes);
                if wanted > size_bytes {
                    return Err(usage(format!(
                        "{} has only {}; an existing file is never written",
                        path.display(),
                        human(size_bytes)
                    )));
                }
                let size_bytes = wanted / block_bytes * block_bytes;
                enough(size_bytes, block_bytes)?;
                Ok(Self {
                    path,
                    size_bytes,
                    scratch: None,
                })
            }
        }
    }

    pub(crate) fn is_scratch(&self) -> bool {
        self.scratch.is_some()
    }

    /// Opens the file as a profile wants it. The second value tells why direct I/O was refused, if
    /// so; the file is then open without.
    pub(crate) fn open(&self, profile: &Profile) -> Result<(File, Option<String>)> {
        let open = |flags: libc::c_int| {
            let flags = flags | libc::O_NOFOLLOW;
            OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(&self.path)
        };
        let plain = || {
            open(0).map_err(|error| {
                refused(format!("{} cannot be read: {error}", self.path.display()))
            })
        };
        if !profile.direct() {
            return Ok((plain()?, None));
        }
        match open(libc::O_DIRECT) {
            Ok(file) => Ok((file, None)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((
                plain()?,
                Some("this file system refuses direct I/O (O_DIRECT)".to_owned()),
            )),
            Err(error) => Err(refused(format!(
                "{} cannot be read: {error}",
                self.path.display()
            ))),
        }
    }

    /// Brings the page cache into the state that a profile wants.
    pub(crate) fn prepare_cache(&self, profile: &Profile) -> Result<()> {
        let mut file = File::open(&self.path)?;
        if profile.cached() {
            read_all(&mut file, self.size_bytes).context("reading the file into the page cache")
        } else {
            storage::drop_cache(&file);
            Ok(())
        }
    }

    /// Why the page cache cannot be brought into the state that a profile wants, if so.
    pub(crate) fn too_large_for_cache(&self, profile: &Profile) -> Option<String> {
        let available_bytes = host::memory_available_bytes()?;
        // Pages of the file that are cached already count as available.
        (profile.cached() && self.size_bytes > available_bytes).then(|| {
            format!(
                "{} of data do not fit into the {} of memory that are available: use --size",
                human(self.size_bytes),
                human(available_bytes)
            )
        })
    }

    /// Leaves the file to the user if it is a test file.
    pub(crate) fn keep(&mut self) -> Result<Option<PathBuf>> {
        self.scratch.take().map(Scratch::keep).transpose()
    }
}

fn enough(size_bytes: u64, block_bytes: u64) -> Result<()> {
    if size_bytes < block_bytes * 16 {
        return Err(usage(format!(
            "{} of test data is too little: at least 16 blocks of {} are needed",
            human(size_bytes),
            human(block_bytes)
        )));
    }
    Ok(())
}

fn read_all(file: &mut File, size_bytes: u64) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut left = size_bytes;
    while left > 0 && !signals::interrupted() {
        match file.read(&mut buffer)? {
            0 => break,
            read => left = left.saturating_sub(u64::try_from(read)?),
        }
    }
    Ok(())
}
