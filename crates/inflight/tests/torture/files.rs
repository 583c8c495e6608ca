//! The files of one round, and who may do what where.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use inflight::Engine;
use inflight::fs::{Direct, File, OpenOptions};

use crate::model::{Pattern, Region};
use crate::random::Random;
use crate::yard::PAGE;

/// Bytes of a region: what one task has to itself in a file that all have.
pub(crate) const REGION: usize = 2 * PAGE;

/// Regions of each task in each of the files.
pub(crate) const REGIONS: usize = 4;

/// The files that all tasks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By way of the page cache.
    Cached,
    /// Past it, where the file system can; only whole pages.
    Direct,
    /// Where operations may be forgotten, which keeps the file open for ever.
    Lost,
}

pub(crate) const PLACES: [Place; 3] = [Place::Cached, Place::Direct, Place::Lost];

/// See the module.
pub(crate) struct Files {
    files: [File; 3],
    pub(crate) folder: PathBuf,
    pub(crate) engine: Engine,
}

/// What the files contain at first: one region after the other.
fn first_content(tasks: usize) -> (Vec<u8>, Vec<Region>) {
    let mut random = Random::new(7, 7);
    let mut bytes = Vec::new();
    let mut regions = Vec::new();
    for _ in 0..tasks * REGIONS {
        let pattern = Pattern::new(random.below(usize::MAX), REGION);
        bytes.extend_from_slice(pattern.bytes());
        regions.push(Region::new(pattern.bytes()));
    }
    (bytes, regions)
}

impl Files {
    /// Makes the files in this folder; returns also the regions of each, task by task.
    pub(crate) fn new(engine: &Engine, folder: &Path, tasks: usize) -> (Self, [Vec<Region>; 3]) {
        let (bytes, _) = first_content(tasks);
        let open = |place: Place| {
            let path = folder.join(format!("{place:?}"));
            let mut file = fs::File::create_new(&path).expect("the folder is new");
            file.write_all(&bytes).expect("there is room");
            file.sync_data().expect("the disk is sound");
            drop(file);
            let direct = match place {
                Place::Direct => Direct::Auto,
                Place::Cached | Place::Lost => Direct::Off,
            };
            open(engine, &path, direct)
        };
        let files = Self {
            files: PLACES.map(open),
            folder: folder.to_owned(),
            engine: engine.clone(),
        };
        (files, PLACES.map(|_| first_content(tasks).1))
    }

    pub(crate) fn at(&self, place: Place) -> &File {
        &self.files[place as usize]
    }
}

/// How a file is opened for reading and writing.
pub(crate) fn options(engine: &Engine, direct: Direct) -> OpenOptions {
    let options = OpenOptions::new().read(true).write(true).direct(direct);
    options.engine(engine)
}

/// Opens a file for reading and writing.
pub(crate) fn open(engine: &Engine, path: &Path, direct: Direct) -> File {
    let opened = options(engine, direct).open(path);
    opened.expect("the file is there")
}
