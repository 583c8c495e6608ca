//! An overlay, as containers have for a root.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use tempfile::TempDir;

use super::{directory, skip};

/// An overlay over directories of the disk that the tests use, until this is dropped.
pub(crate) struct Overlay(TempDir);

impl Overlay {
    /// Below it is a file with this content. `None`, with the reason said, if this is not allowed.
    pub(crate) fn over(name: &str, content: &[u8]) -> Option<Self> {
        let folder = tempfile::tempdir_in(directory()).expect("the test directory can be written");
        for part in ["lower", "upper", "work", "merged"] {
            std::fs::create_dir(folder.path().join(part)).expect("it is empty");
        }
        std::fs::write(folder.path().join("lower/below"), content).expect("there is room");
        let options = "lowerdir=lower,upperdir=upper,workdir=work";
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", options, "merged"]);
        match mount.current_dir(folder.path()).output() {
            Ok(output) if output.status.success() => Some(Self(folder)),
            output => {
                skip(name, &format!("no overlay can be mounted: {output:?}"));
                None
            }
        }
    }

    /// What has this name in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("merged").join(name)
    }

    /// A file with this content, which is not below it.
    pub(crate) fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.path("file");
        std::fs::write(&path, content).expect("there is room");
        path
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg(self.path("")).status();
        assert!(umount.is_ok_and(|status| status.success()) || thread::panicking());
    }
}
