//! The test files that the command makes itself: their creation, and removal on every way out.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::exit::refused;
use crate::leftover::lock;
use crate::measure::storage::{self, Space};
use crate::signals;
use crate::size::human;
use crate::work::{mix, stamp};

/// The end of the name of every test file.
pub(crate) const SUFFIX: &str = ".inflight-scratch";
/// What every test file begins with, so that it can be told from anything else.
pub(crate) const MAGIC: &[u8; 64] =
    b"inflight test data, removed after the benchmark; safe to delete\n";
/// Replaces the magic of a file that the user wants to keep.
const MAGIC_KEPT: &[u8; 64] = b"inflight test data, kept on demand by --keep-file; yours now   \n";

/// How much is written at once.
const CHUNK_BYTES: usize = 4 << 20;

/// The files that have to go if the program ends now.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    // The paths stay true if a thread panicked while it held the lock.
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the test files; as long as what is returned lives, no other is made.
pub(crate) fn remove_all() -> impl Sized {
    let mut live = live();
    for path in live.drain(..) {
        // Nothing can be done about a failure here; the next run finds the file.
        _ = fs::remove_file(path);
    }
    live
}

/// Strikes a file from those that have to go; whether it was one of them.
fn forget(path: &Path) -> bool {
    let mut live = live();
    let place = live.iter().position(|known| known == path);
    place.map(|place| live.swap_remove(place)).is_some()
}

/// A test file; dropping it removes it.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    // Locked as long as it is open: nobody else takes the file for a left-over.
    file: File,
}

impl Scratch {
    /// Makes the file of this number, full of data that cannot be compressed and that tells where
    /// it belongs, and brings it to the device.
    pub(crate) fn create(
        directory: &Path,
        size_bytes: u64,
        seed: u64,
        number: u32,
        written: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let mut scratch = Self::open(path_of(directory, seed))?;
        fill(&mut scratch.file, size_bytes, seed, number, written)
            .with_context(|| format!("writing {}", scratch.path.display()))?;
        Ok(scratch)
    }

    fn open(path: PathBuf) -> Result<Self> {
        let mut live = live();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|error| no_file(&path, &error))?;
        live.push(path.clone());
        drop(live);
        let scratch = Self { path, file };
        lock(&scratch.file)
            .with_context(|| format!("{} cannot be locked", scratch.path.display()))?;
        Ok(scratch)
    }

    /// Leaves the file to the user.
    pub(crate) fn keep(mut self) -> Result<PathBuf> {
        use std::io::Seek;
        self.file.rewind()?;
        self.file.write_all(MAGIC_KEPT)?;
        self.file.sync_all()?;
        forget(&self.path);
        Ok(self.path.clone())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if forget(&self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            // If stderr is gone, nobody wanted to read this.
            _ = writeln!(
                std::io::stderr(),
                "cannot remove {}: {error}",
                self.path.display()
            );
        }
    }
}

fn path_of(directory: &Path, seed: u64) -> PathBuf {
    directory.join(format!("inflight-{}-{seed}{SUFFIX}", std::process::id()))
}

/// Makes an empty test file and removes it: what would fail otherwise when it was said already how
/// long everything takes. It has another name each time: what a killed run has left is in nobody's
/// way, though that had the same number.
pub(crate) fn check_that_files_can_be_made(directory: &Path) -> Result<()> {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let path = path_of(directory, u64::try_from(now).unwrap_or_default());
    Scratch::open(path).map(drop)
}

/// What can be done if a process has too many files open, to be put behind the error.
pub(crate) fn of_too_many(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; a process may have more of them with `ulimit -n`",
        _ => "",
    }
}

fn no_file(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let directory = path.parent().unwrap_or(path).display();
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => {
            "; name a directory that you may write to, or a file that is there, which is only read"
        }
        _ => of_too_many(error),
    };
    refused(format!(
        "no test file can be made in {directory}: {error}{remedy}"
    ))
}

/// Refuses to leave less than a tenth of the file system free.
pub(crate) fn check_space(directory: &Path, size_bytes: u64) -> Result<()> {
    check_room(directory, storage::space(directory)?, size_bytes)
}

fn check_room(directory: &Path, space: Space, size_bytes: u64) -> Result<()> {
    let directory = directory.display();
    if space.is_read_only {
        return Err(refused(format!(
            "no test file can be made in {directory}: its file system is mounted read-only; name \
             another place"
        )));
    }
    if space.total_bytes == 0 {
        return Err(refused(format!(
            "no test file is made in {directory}: its file system tells of no space for files, as \
             those of the kernel do; name another place"
        )));
    }
    let reserve_bytes = space.total_bytes / 10;
    let usable_bytes = space.free_bytes.saturating_sub(reserve_bytes);
    if size_bytes <= usable_bytes {
        return Ok(());
    }
    if usable_bytes == 0 {
        return Err(refused(format!(
            "the file system of {directory} is full: {} of {} are free, of which a tenth \
             ({}) is left alone, and {} are needed for the test data; make room or name another \
             place",
            human(space.free_bytes),
            human(space.total_bytes),
            human(reserve_bytes),
            human(size_bytes),
        )));
    }
    Err(refused(format!(
        "a test file of {} would leave less than 10 % of the file system free: {} of {} are free, \
         so that at most {} may be used; choose a smaller --size or another place",
        human(size_bytes),
        human(space.free_bytes),
        human(space.total_bytes),
        human(usable_bytes),
    )))
}

/// As [`check_space`], for the space of files that have just been removed: the kernel ends rings in
/// the background, and until then they hold their fixed files (io_uring_register(2)).
pub(crate) fn await_space(directory: &Path, size_bytes: u64) -> Result<()> {
    let until = Instant::now() + SPACE_WITHIN;
    loop {
        let checked = check_space(directory, size_bytes);
        if checked.is_ok() || Instant::now() >= until || signals::interrupted() {
            return checked;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Longer than it has been seen to take.
const SPACE_WITHIN: Duration = Duration::from_secs(5);

fn fill(
    file: &mut File,
    size_bytes: u64,
    seed: u64,
    number: u32,
    written: &mut dyn FnMut(u64),
) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut state = mix(seed);
    let mut done = 0;
    while done < size_bytes && !signals::interrupted() {
        state = fill_chunk(&mut chunk, state);
        stamp::stamp(&mut chunk, number, done);
        if done == 0 {
            chunk[..MAGIC.len()].copy_from_slice(MAGIC);
        }
        let length = usize::try_from(size_bytes - done)
            .unwrap_or(usize::MAX)
            .min(CHUNK_BYTES);
        file.write_all(&chunk[..length])?;
        done += u64::try_from(length).expect("usize fits into u64");
        written(done);
    }
    file.sync_all()
}

/// Bytes that neither compress nor repeat (xorshift64), so that no device can save itself work.
fn fill_chunk(chunk: &mut [u8], mut state: u64) -> u64 {
    for word in chunk.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::Read;

    #[test]
    fn no_block_repeats_and_the_file_says_what_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        let size_bytes = 9 << 20;
        fill(&mut file, size_bytes, 1, 0, &mut |_| {}).unwrap();
        use std::io::Seek;
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(u64::try_from(bytes.len()).unwrap(), size_bytes);
        assert!(bytes.starts_with(MAGIC));
        assert!(stamp::is_right(&bytes, 0, 0));
        let words: HashSet<&[u8; 8]> = bytes.as_chunks::<8>().0.iter().collect();
        // All stamps begin alike.
        assert_eq!(words.len(), bytes.len() / 8 - bytes.len() / 512 + 1);
    }

    #[test]
    fn a_panic_removes_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let panicked = std::panic::catch_unwind(|| {
            let scratch = Scratch::create(&path, 1 << 20, 1, 0, &mut |_| {}).unwrap();
            assert_eq!(fs::metadata(&scratch.path).unwrap().len(), 1 << 20);
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_takes_no_files_is_not_told_to_be_full() {
        let told = |total_bytes: u64, is_read_only| {
            let space = Space {
                total_bytes,
                free_bytes: total_bytes / 2,
                is_read_only,
            };
            let refused = check_room(Path::new("/x"), space, 1 << 30).unwrap_err();
            assert_eq!(crate::exit::code_of(&refused), crate::exit::REFUSED);
            refused.to_string()
        };
        assert!(told(1 << 20, true).contains("mounted read-only"));
        assert!(told(0, false).contains("no space for files"));
        assert!(told(1 << 20, false).contains("10 %"));
    }

    #[test]
    fn a_full_file_system_is_told_with_what_is_free_and_what_is_needed() {
        let space = Space {
            total_bytes: 100 << 30,
            free_bytes: 9 << 30,
            is_read_only: false,
        };
        let full = check_room(Path::new("/x"), space, 1 << 30).unwrap_err();
        assert_eq!(crate::exit::code_of(&full), crate::exit::REFUSED);
        let told = full.to_string();
        assert!(
            told.contains("of /x is full: 9 GiB of 100 GiB are free"),
            "{told}"
        );
        assert!(
            told.contains("(10 GiB) is left alone, and 1 GiB are needed"),
            "{told}"
        );
    }

    #[test]
    fn a_disk_is_never_filled() {
        let error = check_space(Path::new("/"), u64::MAX / 2).unwrap_err();
        assert_eq!(crate::exit::code_of(&error), crate::exit::REFUSED);
        assert!(error.to_string().contains("10 %"), "{error}");
        check_space(Path::new("/"), 4096).unwrap();
    }
}
