//! `mmap`: the files are mapped, and a block is copied out of the mapping.
//!
//! The mapping is made before the measurement and shared by all threads, as a program would that
//! keeps it; it is populated, unless the page cache is to be cold. The block is copied into a
//! buffer, because the other strategies deliver bytes too. A mapping reports no I/O errors: a
//! block that cannot be read would end the program with SIGBUS. A file that has become shorter is
//! noticed before each stretch, and not mapped; a stretch during which it does so fails.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result, bail};
use inflight_report::record::Access;
use rustix::fs::FileType;

use super::arena::Arena;
use super::lost_pages;
use super::one_by_one::{OneByOne, Perform};
use super::{ALONE, Body, Job, Modes, Shape, Strategy, Way, modes};
use crate::profile::Profile;
use crate::work::{Step, Work};

pub(crate) struct Mmap;

impl Strategy for Mmap {
    fn name(&self) -> &'static str {
        "mmap"
    }

    fn about(&self) -> &'static str {
        "copies blocks out of a mapping, on threads"
    }

    /// One reader; over many files as many as operations would be in flight, as in a program
    /// that maps an index in pieces and asks it from many threads.
    fn shapes(&self, profile: &Profile, _cpus: u32) -> Vec<Shape> {
        if profile.asked.files == 1 {
            return vec![ALONE];
        }
        let readers = |&depth: &u32| Shape {
            depth,
            threads: depth,
        };
        profile.asked.queue_depths.iter().map(readers).collect()
    }

    fn requested(&self, job: &Job<'_>) -> Modes {
        let mapping = match populated(job.work) {
            true => "populated, kept",
            false => "kept",
        };
        modes(&[("mapping", mapping), ("reports-errors", "no: SIGBUS")])
    }

    fn unfit(&self, profile: &Profile) -> Option<&'static str> {
        if profile.direct() {
            return Some("mmap always goes through the page cache: it has no direct I/O");
        }
        let writes = profile.writes();
        writes.then_some("writes to a map are not told apart, nor are their errors")
    }

    fn way(&self) -> Way {
        Way::Lanes(with_lane)
    }
}

/// Whether the whole map is brought in at once.
fn populated(work: &Work) -> bool {
    !work.misses
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    check_lengths(job)?;
    let maps = shared(job).context("a file cannot be mapped")?;
    let block = Arena::of(job.work, 1)?;
    lost_pages::are_noticed(|| OneByOne::new(job, Copy { maps, block }).lend(job, body))
}

/// Refuses files that have become shorter than what is read of them: whoever reads the map of what
/// is no longer there is ended by a signal.
pub(super) fn check_lengths(job: &Job<'_>) -> Result<()> {
    let wanted_bytes = job.work.file_bytes;
    for &fd in job.fds {
        let found_bytes = length_of(fd).context("a file cannot be examined")?;
        if let Some(found_bytes) = found_bytes.filter(|found_bytes| *found_bytes < wanted_bytes) {
            bail!(
                "the file has become shorter than what is read of it ({found_bytes} of \
                 {wanted_bytes} bytes): to read a map of it would end the program (SIGBUS)"
            );
        }
    }
    Ok(())
}

/// How long a file is now; devices tell of no length here, and keep theirs.
fn length_of(fd: RawFd) -> io::Result<Option<u64>> {
    // SAFETY: the file is open for as long as the job lasts.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let found = rustix::fs::fstat(file)?;
    let is_file = FileType::from_raw_mode(found.st_mode).is_file();
    Ok(is_file.then(|| u64::try_from(found.st_size).unwrap_or(0)))
}

/// The maps of all files of a stretch.
struct Maps {
    fds: Vec<RawFd>,
    all: Vec<Mapping>,
}

/// The maps that exist, or new ones: the threads of a stretch have them in common.
fn shared(job: &Job<'_>) -> Result<Arc<Maps>> {
    static LIVE: Mutex<Weak<Maps>> = Mutex::new(Weak::new());
    // What is behind the lock is whole at any moment.
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(maps) = live.upgrade().filter(|maps| maps.fds == job.fds) {
        return Ok(maps);
    }
    let each = job.fds.iter().map(|&fd| Mapping::new(fd, job.work));
    let maps = Arc::new(Maps {
        fds: job.fds.to_vec(),
        all: each.collect::<Result<_>>()?,
    });
    *live = Arc::downgrade(&maps);
    Ok(maps)
}

struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: memory that is only read, and stays mapped as long as this value lives.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: RawFd, work: &Work) -> Result<Self> {
        let length = usize::try_from(work.file_bytes)?;
        let populate = if populated(work) {
            libc::MAP_POPULATE
        } else {
            0
        };
        let flags = libc::MAP_SHARED | populate;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh, read-only mapping at an address of the kernel's choice touches no
        // memory of ours.
        let start = unsafe { libc::mmap(null, length, libc::PROT_READ, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let start: NonNull<u8> = NonNull::new(start.cast()).context("mapped at address zero")?;
        // Reading ahead would only cost where blocks are anywhere. Advice may be ignored.
        let advice = match work.access {
            Access::SequentialRead => libc::MADV_SEQUENTIAL,
            _ => libc::MADV_RANDOM,
        };
        // SAFETY: the range was mapped just now; advice does not change its contents.
        unsafe { libc::madvise(start.as_ptr().cast(), length, advice) };
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

struct Copy {
    maps: Arc<Maps>,
    block: Arena,
}

impl Perform for Copy {
    const SYSCALLS: u64 = 0;

    #[inline]
    fn perform(&mut self, step: &Step) -> i32 {
        let block = self.block.block(0, step.bytes());
        let Some(mapping) = self.maps.all.get(step.file_index()) else {
            return -libc::EBADF;
        };
        let Ok(offset) = usize::try_from(step.offset) else {
            return -libc::EOVERFLOW;
        };
        if offset.saturating_add(block.len()) > mapping.length {
            return -libc::EINVAL;
        }
        let from = mapping.start.as_ptr().wrapping_add(offset);
        // SAFETY: the range was checked against the mapping; the block is memory of our own, so
        // the two do not overlap. Another process may change the file: bytes are only copied.
        unsafe { std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), block.len()) };
        std::hint::black_box(block.as_ptr());
        i32::try_from(block.len()).unwrap_or(-libc::EOVERFLOW)
    }

    #[inline]
    fn block(&mut self, bytes: usize) -> &mut [u8] {
        self.block.block(0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use super::*;
    use crate::profile::load;
    use crate::strategy::inflight_mapped::InflightMapped;

    #[test]
    fn a_file_that_has_become_shorter_is_not_mapped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 20);
        let job = Job {
            fds: &[file.as_file().as_raw_fd()],
            paths: &[PathBuf::from(file.path())],
            ..Job::of(&work)
        };
        let tried = |strategy: &dyn Strategy, job: &Job<'_>| {
            let Way::Lanes(with_lane) = strategy.way() else {
                unreachable!("it has lanes");
            };
            with_lane(job, &mut |_| Ok(()))
        };
        for strategy in [&Mmap as &dyn Strategy, &InflightMapped] {
            for whole in [1 << 20, (1 << 20) + 5] {
                file.as_file().set_len(whole).unwrap();
                tried(strategy, &job).unwrap();
            }
            file.as_file().set_len((1 << 20) - 1).unwrap();
            let told = tried(strategy, &job).unwrap_err().to_string();
            assert!(told.contains("shorter"), "{told}");
            assert!(told.contains("1048575 of 1048576 bytes"), "{told}");
        }
        // What has no length of its own is not shorter.
        let device = File::open("/dev/null").unwrap();
        assert_eq!(length_of(device.as_raw_fd()).unwrap(), None);
    }
}
