//! Test files that an earlier run could not remove, because it was killed.
//!
//! A file is taken for one only if everything fits: its name, what it begins with, that it is an
//! ordinary file of this user, that its process is gone, and that nobody holds its lock.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::scratch::{MAGIC, SUFFIX};

/// A left-over, locked, so that two runs do not clean up the same file.
pub(crate) struct Leftover {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: u64,
    file: File,
}

impl Leftover {
    /// Removes it, if it is still the file that was examined.
    pub(crate) fn remove(self) -> std::io::Result<()> {
        let (now, then) = (fs::symlink_metadata(&self.path)?, self.file.metadata()?);
        if (now.dev(), now.ino()) != (then.dev(), then.ino()) {
            return Err(std::io::Error::other(
                "the file was replaced in the meantime",
            ));
        }
        fs::remove_file(&self.path)
    }
}

/// The left-overs in a directory.
pub(crate) fn find(directory: &Path) -> Vec<Leftover> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| examine(&entry.path())).collect()
}

/// Another process that has a test file in a directory, if one has.
pub(crate) fn neighbour(directory: &Path) -> Option<libc::pid_t> {
    let own = libc::pid_t::try_from(std::process::id()).ok();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| pid_in(entry.file_name().to_str()?));
    pids.find(|pid| Some(*pid) != own && process_exists(*pid))
}

fn examine(path: &Path) -> Option<Leftover> {
    let pid = pid_in(path.file_name()?.to_str()?)?;
    if process_exists(pid) {
        return None;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    let metadata = file.metadata().ok()?;
    // SAFETY: takes no argument and cannot fail.
    let user = unsafe { libc::geteuid() };
    let mut magic = [0; MAGIC.len()];
    let ours = metadata.is_file() && metadata.uid() == user && lock(&file);
    let proven = ours && file.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    proven.then(|| Leftover {
        path: path.to_owned(),
        size_bytes: metadata.len(),
        file,
    })
}

/// The process in a name of the form `inflight-<pid>-<seed>.inflight-scratch`.
fn pid_in(name: &str) -> Option<libc::pid_t> {
    let middle = name.strip_prefix("inflight-")?.strip_suffix(SUFFIX)?;
    let (pid, seed) = middle.split_once('-')?;
    seed.parse::<u64>().ok()?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

fn process_exists(pid: libc::pid_t) -> bool {
    // SAFETY: signal 0 only asks whether the process exists; no memory is involved.
    let result = unsafe { libc::kill(pid, 0) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Takes the lock of a file if nobody has it; it goes when the file is closed, also by a kill.
pub(crate) fn lock(file: &File) -> bool {
    // SAFETY: a call on an open descriptor; no memory is involved.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has this number: it is above the kernel's limit of 2^22.
    const NAME: &str = "inflight-2000000000-7.inflight-scratch";

    fn with_file(name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        (directory, path)
    }

    #[test]
    fn a_file_that_fits_is_found_and_removed() {
        let (directory, path) = with_file(NAME, MAGIC);
        let found = find(directory.path());
        assert_eq!(found.len(), 1);
        found
            .into_iter()
            .for_each(|leftover| leftover.remove().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn anything_that_does_not_fit_is_left_alone() {
        let living = format!("inflight-{}-7{SUFFIX}", std::process::id());
        let wrong: [(&str, &[u8]); 5] = [
            ("inflight-2000000000-x.inflight-scratch", MAGIC),
            ("inflight-2000000000-7.data", MAGIC),
            (
                NAME,
                b"the diary of somebody, longer than sixty-four bytes, truly so, yes",
            ),
            (NAME, b""),
            (&living, MAGIC),
        ];
        for (name, content) in wrong {
            let (directory, _) = with_file(name, content);
            assert!(find(directory.path()).is_empty(), "{name}");
        }
    }

    #[test]
    fn another_run_in_the_directory_is_found_by_its_process() {
        // The first process is always there, and is none of ours.
        let (directory, _) = with_file("inflight-1-7.inflight-scratch", MAGIC);
        assert_eq!(neighbour(directory.path()), Some(1));
        let own = format!("inflight-{}-7{SUFFIX}", std::process::id());
        for name in [&own, NAME, "inflight-1-7.data"] {
            let (directory, _) = with_file(name, MAGIC);
            assert_eq!(neighbour(directory.path()), None, "{name}");
        }
    }

    #[test]
    fn a_locked_file_is_in_use() {
        let (directory, path) = with_file(NAME, MAGIC);
        let holder = File::open(path).unwrap();
        assert!(lock(&holder));
        assert!(find(directory.path()).is_empty());
        drop(holder);
        assert_eq!(find(directory.path()).len(), 1);
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let (elsewhere, path) = with_file("target", MAGIC);
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(path, directory.path().join(NAME)).unwrap();
        assert!(find(directory.path()).is_empty());
        drop(elsewhere);
    }
}
