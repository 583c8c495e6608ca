//! `mmap`: the files are mapped, and a block is copied out of the mapping.
//!
//! The mapping is made before the measurement and shared by all threads, as a program would that
//! keeps it; it is populated, unless the page cache is to be cold. The block is copied into a
//! buffer, because the other strategies deliver bytes too. A mapping reports no I/O errors: a
//! block that cannot be read ends the program with SIGBUS.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result};
use inflight_report::record::Access;

use super::arena::Arena;
use super::one_by_one::{OneByOne, Perform};
use super::{ALONE, Body, Job, Modes, Shape, Strategy, Way, modes};
use crate::profile::Profile;
use crate::work::{Step, Work};

pub(crate) struct Mmap;

impl Strategy for Mmap {
    fn name(&self) -> &'static str {
        "mmap"
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
    !work.cold
}

fn with_lane(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let maps = shared(job).context("a file cannot be mapped")?;
    let block = Arena::of(job.work, 1);
    OneByOne::new(job, Copy { maps, block }).lend(job, body)
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
