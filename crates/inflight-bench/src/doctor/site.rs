//! What is examined: a place, the disks below it, and the machine around it.

use std::cell::OnceCell;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use inflight_report::record::{Device, Machine, Target};

use super::probe::Ring;
use crate::exit::usage;
use crate::measure::clock::Clock;
use crate::measure::{host, storage};

/// What all checks look at.
pub(crate) struct Site {
    /// Where `proc` and `sys` are: `/`, or a tree made for a test.
    pub(super) root: PathBuf,
    /// The place that was named, without links.
    pub(super) path: PathBuf,
    pub(super) machine: Machine,
    pub(super) target: Target,
    ring: OnceCell<Ring>,
}

impl Site {
    /// Looks at a directory or a file.
    ///
    /// # Errors
    /// A usage error if it is not there, or neither a directory, nor a file, nor a block device.
    pub(super) fn examine(named: &Path) -> Result<Self> {
        let shown = named.display();
        let missing = |error| usage(format!("{shown} cannot be examined: {error}"));
        let path = fs::canonicalize(named).map_err(missing)?;
        let facts = fs::metadata(&path).map_err(missing)?;
        let kind = facts.file_type();
        if !kind.is_dir() && !kind.is_file() && !kind.is_block_device() {
            return Err(usage(format!(
                "{shown} is neither a directory, nor a file, nor a block device"
            )));
        }
        let size_bytes = facts.len();
        let target = storage::target(&path, size_bytes, false, &path)?;
        Ok(Self::of(&path, host::machine(Clock::start()), target))
    }

    /// A place of which machine and target are known already.
    pub(crate) fn of(path: &Path, machine: Machine, target: Target) -> Self {
        Self {
            root: PathBuf::from("/"),
            path: path.to_owned(),
            machine,
            target,
            ring: OnceCell::new(),
        }
    }

    /// A machine that is a tree of files.
    #[cfg(test)]
    pub(super) fn in_tree(root: &Path, disks: &[&str]) -> Self {
        let device = |name: &&str| Device {
            name: (*name).to_owned(),
            ..Device::default()
        };
        let target = Target {
            fs: "ext4".to_owned(),
            stack: disks.iter().map(device).collect(),
            ..Target::default()
        };
        let site = Self::of(root, Machine::default(), target);
        Self {
            root: root.to_owned(),
            ..site
        }
    }

    /// The first line of a file, given without the slash at its beginning.
    pub(super) fn line(&self, file: &str) -> Option<String> {
        host::line(self.root.join(file))
    }

    /// All of a file.
    pub(super) fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.root.join(file)).ok()
    }

    /// Whether this is there.
    pub(super) fn has(&self, file: &str) -> bool {
        self.root.join(file).exists()
    }

    /// An attribute of a disk's queue.
    pub(super) fn queue(&self, disk: &str, attribute: &str) -> Option<String> {
        self.line(&format!("sys/block/{disk}/queue/{attribute}"))
    }

    /// The disks at the bottom, where requests end: those that consist of no others. Devices made
    /// of files count as such.
    pub(super) fn disks(&self) -> impl Iterator<Item = &Device> {
        let is_bottom = |device: &&Device| {
            let slaves = format!("sys/block/{}/slaves", device.name);
            let mut slaves = fs::read_dir(self.root.join(slaves)).into_iter().flatten();
            slaves.next().is_none()
        };
        self.target.stack.iter().filter(is_bottom)
    }

    /// What the kernel says about rings; asked once, in another process.
    pub(super) fn ring(&self) -> &Ring {
        self.ring.get_or_init(Ring::ask)
    }
}

/// Files that stand for a machine.
#[cfg(test)]
pub(crate) struct Tree(tempfile::TempDir);

#[cfg(test)]
impl Tree {
    /// A tree of files with these contents.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().expect("there is room for a few files"));
        files.iter().for_each(|(name, text)| tree.write(name, text));
        tree
    }

    /// Makes or changes a file.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        let parent = path.parent().expect("it is inside the tree");
        fs::create_dir_all(parent).expect("a directory can be made");
        fs::write(path, text).expect("a file can be written");
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn site(&self, disks: &[&str]) -> Site {
        Site::in_tree(self.0.path(), disks)
    }
}
