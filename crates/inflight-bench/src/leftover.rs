//! Test files that an earlier run could not remove, because it was killed.
//!
//! A file is taken for one only if everything fits: its name, what it begins with, that it is an
//! ordinary file of this user, and that nobody holds its lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};

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

/// Another run that has a test file in a directory: which process it is, as it counts them itself.
pub(crate) fn neighbour(directory: &Path) -> Option<libc::pid_t> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| {
        let pid = pid_in(entry.file_name().to_str()?)?;
        is_in_use(&entry.path(), pid).then_some(pid)
    });
    pids.next()
}

/// Whether a process of this number is there for us, and is not this one.
pub(crate) fn is_another(pid: libc::pid_t) -> bool {
    let own = libc::pid_t::try_from(std::process::id()).ok();
    own != Some(pid) && process_exists(pid)
}

/// Whether somebody holds the lock of a test file.
fn is_in_use(path: &Path, pid: libc::pid_t) -> bool {
    let refused = match open(path) {
        Ok(file) if !begins_with_magic(&file) => return false,
        Ok(file) => lock(&file).err(),
        Err(error) => Some(error),
    };
    refused.is_some_and(|error| match error.kind() {
        ErrorKind::WouldBlock => true,
        ErrorKind::NotFound => false,
        // A file of another user, or a file system without locks: the number has to do.
        _ => is_another(pid),
    })
}

/// The lock decides, which ends with its process. The number of the process does not: in a
/// container the next run often has the same one, and elsewhere some other program may have it.
fn examine(path: &Path) -> Option<Leftover> {
    pid_in(path.file_name()?.to_str()?)?;
    let file = open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.is_file() && metadata.uid() == geteuid().as_raw();
    // Looked at before, so that a file that has only just been made can be locked by who made it;
    // and after, because one that is kept is another's from then on.
    let is_left = || begins_with_magic(&file);
    let proven = ours && is_left() && lock(&file).is_ok() && is_left();
    proven.then(|| Leftover {
        path: path.to_owned(),
        size_bytes: metadata.len(),
        file,
    })
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.read(true).open(path)
}

fn begins_with_magic(file: &File) -> bool {
    let mut begin = [0; MAGIC.len()];
    file.read_exact_at(&mut begin, 0).is_ok() && begin == *MAGIC
}

/// The process in a name of the form `inflight-<pid>-<seed>.inflight-scratch`.
fn pid_in(name: &str) -> Option<libc::pid_t> {
    let middle = name.strip_prefix("inflight-")?.strip_suffix(SUFFIX)?;
    let (pid, seed) = middle.split_once('-')?;
    seed.parse::<u64>().ok()?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

fn process_exists(pid: libc::pid_t) -> bool {
    let found = Pid::from_raw(pid).map(test_kill_process);
    found.is_some_and(|found| found != Err(Errno::SRCH))
}

/// Takes the lock of a file if nobody has it; it goes when the file is closed, also by a kill.
pub(crate) fn lock(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
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
        let wrong: [(&str, &[u8]); 4] = [
            ("inflight-2000000000-x.inflight-scratch", MAGIC),
            ("inflight-2000000000-7.data", MAGIC),
            (
                NAME,
                b"the diary of somebody, longer than sixty-four bytes, truly so, yes",
            ),
            (NAME, b""),
        ];
        for (name, content) in wrong {
            let (directory, _) = with_file(name, content);
            assert!(find(directory.path()).is_empty(), "{name}");
        }
    }

    /// Names with numbers of processes that are there: this one and the first.
    fn living() -> [String; 2] {
        [std::process::id(), 1].map(|pid| format!("inflight-{pid}-7{SUFFIX}"))
    }

    #[test]
    fn a_file_is_left_over_whoever_has_the_number_of_its_process_now() {
        for name in living() {
            let (directory, path) = with_file(&name, MAGIC);
            assert_eq!(neighbour(directory.path()), None, "{name}");
            let found = find(directory.path());
            assert_eq!(found.len(), 1, "{name}");
            found
                .into_iter()
                .for_each(|leftover| leftover.remove().unwrap());
            assert!(!path.exists(), "{name}");
        }
    }

    #[test]
    fn a_locked_file_is_in_use_whatever_the_number_of_its_process() {
        let [own, first] = living();
        for name in [&own, &first, NAME] {
            let (directory, path) = with_file(name, MAGIC);
            let holder = File::open(path).unwrap();
            lock(&holder).unwrap();
            assert!(find(directory.path()).is_empty(), "{name}");
            assert_eq!(neighbour(directory.path()), pid_in(name), "{name}");
            drop(holder);
            assert_eq!(neighbour(directory.path()), None, "{name}");
            assert_eq!(find(directory.path()).len(), 1, "{name}");
        }
        let (directory, path) = with_file("inflight-1-7.data", MAGIC);
        let holder = File::open(path).unwrap();
        lock(&holder).unwrap();
        assert_eq!(neighbour(directory.path()), None);
    }

    #[test]
    fn who_has_just_made_a_file_can_lock_it_while_others_look() {
        let (directory, path) = with_file(NAME, b"");
        let looked = open(&path).unwrap();
        assert!(!begins_with_magic(&looked));
        assert!(find(directory.path()).is_empty());
        lock(&looked).unwrap();
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
