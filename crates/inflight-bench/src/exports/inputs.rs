//! What no export may be written to: that which is read, and devices that hold data.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::resolved;
use crate::exit::usage;

/// The files that a command reads: what it measures, records, profiles.
#[derive(Debug, Default)]
pub(crate) struct Inputs(Vec<Input>);

#[derive(Debug)]
struct Input {
    path: PathBuf,
    resolved: PathBuf,
    /// Absent where there is no such file, or nothing to overwrite.
    identity: Option<Identity>,
}

/// Which file a name leads to, whatever the name: device and inode; of a device, its number.
/// Pipes, terminals and the like have none: nothing in them is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    File(u64, u64),
    Device(u64),
}

impl Identity {
    fn of(found: &Metadata) -> Option<Self> {
        let kind = found.file_type();
        match kind.is_block_device() {
            true => Some(Self::Device(found.rdev())),
            false => kind.is_file().then(|| Self::File(found.dev(), found.ino())),
        }
    }
}

impl Inputs {
    /// Finds out which files these are, as they are now.
    pub(crate) fn of<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let input = |path: P| {
            let path = path.as_ref();
            Input {
                path: path.to_owned(),
                resolved: resolved(path),
                identity: fs::metadata(path).ok().as_ref().and_then(Identity::of),
            }
        };
        Self(paths.into_iter().map(input).collect())
    }

    /// Refuses to write to a file of this name, which need not be there.
    pub(super) fn refuse(&self, file: &Path) -> Result<()> {
        match fs::metadata(file) {
            Ok(found) => self.refuse_found(file, &found),
            Err(_) => Ok(()),
        }
    }

    /// Refuses to write to a file that is this one: of an open file, what that tells of itself.
    pub(super) fn refuse_found(&self, file: &Path, found: &Metadata) -> Result<()> {
        let Some(identity) = Identity::of(found) else {
            return Ok(());
        };
        let resolved = resolved(file);
        // Some file systems give a file another inode from time to time: then its name tells.
        let is_same =
            |input: &&Input| input.identity == Some(identity) || input.resolved == resolved;
        let shown = file.display();
        if let Some(input) = self.0.iter().find(is_same) {
            let input = input.path.display();
            return Err(usage(format!(
                "{shown} would overwrite {input}, which is only read: name another file"
            )));
        }
        match identity {
            Identity::File(..) => Ok(()),
            Identity::Device(_) => Err(usage(format!(
                "{shown} is a block device, whose data would be overwritten: name a file"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_read_is_known_by_any_name_and_its_neighbours_are_not_it() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["data", "neighbour"] {
            fs::write(at(name), "content").unwrap();
        }
        symlink(at("data"), at("link")).unwrap();
        fs::hard_link(at("data"), at("twin")).unwrap();
        let inputs = Inputs::of([at("data"), directory.path().to_owned(), at("nothing")]);
        for name in ["data", "./data", "link", "twin"] {
            let told = inputs.refuse(&at(name)).unwrap_err().to_string();
            assert!(told.contains("would overwrite"), "{told}");
        }
        for name in ["neighbour", "nothing", "new"] {
            inputs.refuse(&at(name)).unwrap();
        }
        inputs.refuse(Path::new("/dev/null")).unwrap();
        // What is read is remembered as it was when it was looked at.
        fs::rename(at("data"), at("moved")).unwrap();
        assert!(inputs.refuse(&at("moved")).is_err());
    }
}
