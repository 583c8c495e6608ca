//! What is measured: a directory, where test files are made, or an existing file or block device,
//! only read.
//!
//! Each kind of files is made when the first profile wants it: one that is only read, one that is
//! written, several, one that grows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cli::Options;
use crate::exit::{refused, usage};
use crate::measure::ground::Ground;
use crate::measure::{memory, storage};
use crate::profile::{PageCache, Profile};
use crate::progress::Progress;
use crate::scratch::{self, Scratch};
use crate::signals;
use crate::size::human;
use crate::work::mix;

/// A place that was named on the command line and may be used.
pub(crate) enum Place {
    Directory(PathBuf),
    /// A file or a block device.
    File {
        path: PathBuf,
        size_bytes: u64,
    },
}

/// Examines what was named.
pub(crate) fn examine(path: &Path) -> Result<Place> {
    let shown = path.display();
    let metadata = fs::symlink_metadata(path).map_err(|error| {
        usage(format!(
            "{shown} cannot be examined: {error}; name a directory, a file or a block device \
                 that is there"
        ))
    })?;
    if metadata.is_symlink() && !path.is_dir() {
        return Err(refused(format!(
            "{shown} is a symbolic link: name the file itself"
        )));
    }
    if path.is_dir() {
        return Ok(Place::Directory(path.to_owned()));
    }
    let kind = metadata.file_type();
    let size_bytes = match () {
        () if kind.is_file() => metadata.len(),
        () if kind.is_block_device() => {
            size_of_device(path).map_err(|error| refused_error(path, &error))?
        }
        () => {
            return Err(usage(format!(
                "{shown} is neither a directory, nor an ordinary file, nor a block device"
            )));
        }
    };
    Ok(Place::File {
        path: path.to_owned(),
        size_bytes,
    })
}

fn size_of_device(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

impl Place {
    /// How much data there is for these profiles, in whole blocks of each, which has to be enough.
    pub(crate) fn size_for(&self, options: &Options, profiles: &[Profile]) -> Result<u64> {
        let wanted_bytes = match self {
            Self::Directory(_) => options.scratch_size_bytes(),
            Self::File { path, size_bytes } => {
                let wanted_bytes = options.size_bytes.unwrap_or(*size_bytes);
                if wanted_bytes > *size_bytes {
                    return Err(usage(format!(
                        "{} has only {}, less than --size asks for, and what exists is never \
                         written: name a smaller --size, or none",
                        path.display(),
                        human(*size_bytes)
                    )));
                }
                wanted_bytes
            }
        };
        let block_bytes = largest_block(profiles);
        if let Some(profile) = profiles.iter().max_by_key(|profile| least_bytes(profile)) {
            enough(wanted_bytes, block_bytes, profile)?;
        }
        Ok(wanted_bytes / block_bytes * block_bytes)
    }
}

fn largest_block(profiles: &[Profile]) -> u64 {
    let largest = profiles.iter().map(|profile| profile.block_bytes).max();
    u64::from(largest.unwrap_or(0).max(1))
}

/// The files of one profile, open as it wants them.
pub(crate) struct Files {
    pub(crate) paths: Vec<PathBuf>,
    handles: Vec<File>,
    /// The least that each of them holds, in whole blocks of every profile.
    pub(crate) file_bytes: u64,
}

impl Files {
    /// Descriptors, in the order of the files.
    pub(crate) fn fds(&self) -> Vec<RawFd> {
        self.handles.iter().map(AsRawFd::as_raw_fd).collect()
    }

    pub(crate) fn handles(&self) -> &[File] {
        &self.handles
    }
}

/// Which files a profile works on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    files: u32,
    /// Files that are written are not those that are only read.
    written: bool,
    /// A file that is appended to is made empty but for its first block.
    grows: bool,
}

impl Kind {
    fn of(profile: &Profile) -> Self {
        Self {
            files: profile.asked.files,
            written: profile.writes(),
            grows: profile.grows(),
        }
    }
}

/// Files of one kind that were made.
struct Set {
    kind: Kind,
    files: Vec<Scratch>,
}

/// Where the data of all profiles is, and what of it was made.
pub(crate) struct TestData {
    place: Place,
    pub(crate) size_bytes: u64,
    block_bytes: u64,
    seed: u64,
    keep: bool,
    sets: Vec<Set>,
}

impl TestData {
    /// Checks that there is room; makes nothing yet.
    pub(crate) fn new(place: Place, options: &Options, profiles: &[Profile]) -> Result<Self> {
        let block_bytes = largest_block(profiles);
        let size_bytes = place.size_for(options, profiles)?;
        if let Place::Directory(directory) = &place {
            scratch::check_space(directory, size_bytes)?;
            scratch::check_that_files_can_be_made(directory)?;
        }
        Ok(Self {
            place,
            size_bytes,
            block_bytes,
            seed: mix(options.seed) >> 32,
            keep: options.keep_file,
            sets: Vec::new(),
        })
    }

    pub(crate) fn is_scratch(&self) -> bool {
        matches!(self.place, Place::Directory(_))
    }

    /// Why a profile has no place on an existing file, if so.
    pub(crate) fn refusal(&self, profile: &Profile) -> Option<&'static str> {
        let refused = match Kind::of(profile) {
            Kind { written: true, .. } => "what exists is never written: name a directory",
            Kind { files: 2.., .. } => "an existing file is only one: name a directory",
            _ if profile.asked.verify => {
                "nobody knows what an existing file should contain: name a directory"
            }
            _ => return None,
        };
        (!self.is_scratch()).then_some(refused)
    }

    /// Makes the files of a profile unless they are there, and says where they are. Files of
    /// another kind are removed before, so that never more is used than was checked.
    pub(crate) fn make(&mut self, profile: &Profile, progress: &Progress) -> Result<Vec<PathBuf>> {
        let directory = match &self.place {
            Place::File { path, .. } => return Ok(vec![path.clone()]),
            Place::Directory(directory) => directory.clone(),
        };
        let kind = Kind::of(profile);
        if !self.sets.iter().any(|set| set.kind == kind) {
            if !self.keep && !self.sets.is_empty() {
                self.sets.clear();
                scratch::await_space(&directory, self.size_of(kind))?;
            }
            let files = self.write(&directory, kind, progress)?;
            self.sets.push(Set { kind, files });
        }
        let set = self.sets.iter().find(|set| set.kind == kind);
        let files = set.map_or(&[][..], |set| &set.files);
        Ok(files.iter().map(|file| file.path.clone()).collect())
    }

    /// What all files of a kind take when they are made.
    fn size_of(&self, kind: Kind) -> u64 {
        let each_bytes = match kind.grows {
            true => self.block_bytes,
            false => self.size_bytes / u64::from(kind.files),
        };
        each_bytes * u64::from(kind.files)
    }

    fn write(&self, directory: &Path, kind: Kind, progress: &Progress) -> Result<Vec<Scratch>> {
        let all_bytes = self.size_of(kind);
        let each_bytes = all_bytes / u64::from(kind.files);
        scratch::check_space(directory, all_bytes)?;
        progress.writing(all_bytes, directory, self.keep);
        let first_seed =
            self.seed + (u64::from(kind.written) << 33) + (u64::from(kind.grows) << 34);
        let make = |number: u32| {
            let before_bytes = each_bytes * u64::from(number);
            let seed = first_seed + (u64::from(kind.files) << 40) + u64::from(number);
            Scratch::create(directory, each_bytes, seed, number, &mut |done_bytes| {
                progress.written(before_bytes + done_bytes, all_bytes);
            })
        };
        (0..kind.files).map(make).collect()
    }

    /// Opens the files of a profile as it wants them. The second value tells why direct I/O was
    /// refused, if so; the files are then open without.
    pub(crate) fn open(
        &self,
        profile: &Profile,
        paths: Vec<PathBuf>,
    ) -> Result<(Files, Option<String>)> {
        let (handles, refused) = match open_all(&paths, profile, profile.direct()) {
            Err(error) if profile.direct() && error.raw_os_error() == Some(libc::EINVAL) => {
                let told = "this file system refuses direct I/O (O_DIRECT)";
                (open_all(&paths, profile, false), Some(told.to_owned()))
            }
            handles => (handles, None),
        };
        let handles = handles.map_err(|error| {
            let path = paths.first().map_or(Path::new("?"), PathBuf::as_path);
            refused_error(path, &error)
        })?;
        let files = Files {
            paths,
            handles,
            file_bytes: self.size_bytes / u64::from(profile.asked.files),
        };
        Ok((files, refused))
    }

    /// Why the page cache cannot be brought into the state that a profile wants, if so.
    pub(crate) fn too_large_for_cache(&self, profile: &Profile) -> Option<String> {
        let room = memory::room(Path::new("/"))?;
        let cached_bytes = match profile.asked.page_cache {
            PageCache::Warm => self.size_bytes,
            PageCache::Half => self.size_bytes / 2,
            PageCache::Cold | PageCache::Unused => 0,
        };
        (cached_bytes > room.bytes).then(|| {
            let wanted = human(cached_bytes);
            format!(
                "{wanted} of data do not fit into the page cache, only {room}: use a smaller --size"
            )
        })
    }

    /// Leaves the files to the user, if any were made.
    pub(crate) fn keep(&mut self) -> Result<Vec<PathBuf>> {
        let files = self.sets.drain(..).flat_map(|set| set.files);
        files.map(Scratch::keep).collect()
    }
}

fn refused_error(path: &Path, error: &io::Error) -> anyhow::Error {
    let remedy = scratch::of_too_many(error);
    refused(format!(
        "{} cannot be opened: {error}{remedy}",
        path.display()
    ))
}

fn open_all(paths: &[PathBuf], profile: &Profile, direct: bool) -> io::Result<Vec<File>> {
    let flags = libc::O_NOFOLLOW | if direct { libc::O_DIRECT } else { 0 };
    let open = |path: &PathBuf| {
        OpenOptions::new()
            .read(true)
            .write(profile.writes())
            .custom_flags(flags)
            .open(path)
    };
    paths.iter().map(open).collect()
}

/// Brings the page cache into the state that a profile wants, where it lasts for all its rounds.
pub(crate) fn prepare_cache(files: &Files, profile: &Profile) -> Result<()> {
    if !profile.cached() {
        files.handles().iter().for_each(storage::drop_cache);
        if profile.half_cached() {
            // The first time takes longest. What fails is told by the stretch that needs it.
            _ = Ground::new(profile, files.handles(), files.file_bytes).prepare();
        }
        return Ok(());
    }
    for path in &files.paths {
        let mut file = File::open(path)?;
        read_all(&mut file, files.file_bytes).context("reading a file into the page cache")?;
    }
    Ok(())
}

fn least_blocks(profile: &Profile) -> u64 {
    16.max(u64::from(profile.asked.files) * 4)
}

/// How much test data a profile needs.
fn least_bytes(profile: &Profile) -> u64 {
    u64::from(profile.block_bytes) * least_blocks(profile)
}

/// Refuses too little test data for the profile that needs most. Only whole blocks of this size
/// count.
fn enough(wanted_bytes: u64, whole_bytes: u64, profile: &Profile) -> Result<()> {
    let needed_bytes = least_bytes(profile).next_multiple_of(whole_bytes);
    if wanted_bytes < needed_bytes {
        return Err(usage(format!(
            "{} of test data is too little for {}: at least {} blocks of {}, which are {}, are \
             needed",
            human(wanted_bytes),
            profile.name,
            needed_bytes / u64::from(profile.block_bytes),
            human(profile.block_bytes.into()),
            human(needed_bytes)
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
