//! A mapping of a file whose pages are copied from only while the page cache has them.
//!
//! A copy out of a mapping is the fastest way to cached data, because it needs no system call; but
//! touching a page that is not there blocks the thread until the disk has answered. So the kernel
//! is asked which pages are resident (mincore(2)), for [`REGION_PAGES`] at a time, and the answer
//! is believed for a while ([`FRESH_MS`]). The figures are in `docs/design/mapping.md`.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock::now_ms;

/// Pages whose residency is asked for together and kept in the bits of a word.
const REGION_PAGES: usize = 64;

/// How long an answer is believed at first; twice as long each time that the next one is the same,
/// at most [`FRESH_MAX_MS`]. The kernel takes a page that is mapped and was used a moment ago late;
/// what happens if it does is a wait for the disk, not a wrong answer.
const FRESH_MS: u64 = 100;
const FRESH_MAX_MS: u64 = 800;

/// How long it is believed of a region that nothing of it is resident: asking costs more than a
/// read by another road that finds it is.
const ABSENT_MS: u64 = 1_000;

/// How long the mapping is not used after a page was seen to have gone: memory is short.
const PAUSE_MS: u64 = 1_000;

/// How far behind the last page of the file a page lies that cannot be resident. The large folio
/// that holds the last page may reach beyond the end of the file, on tmpfs with `huge=always` for
/// one; it is no larger than a huge page, of which the largest on 64-bit machines in use is this.
const BEYOND_BYTES: usize = 512 << 20;

/// After so many regions in a row with nothing resident, only one read in [`SAMPLE_EVERY`] asks.
const BARREN_AT: u32 = 32;
const SAMPLE_EVERY: u32 = 16;

/// What is known of [`REGION_PAGES`] pages. All zeros where nothing has been asked yet.
#[derive(Debug)]
struct Region {
    /// Until when that is believed, in milliseconds of the coarse clock; 0 before it was asked for.
    until_ms: AtomicU64,
    /// A bit for each page: whether it was resident.
    resident: AtomicU64,
    /// How long what is resident is believed after the next answer, if that is the same.
    fresh_ms: AtomicU64,
}

impl Region {
    /// So many of which nothing is known. Of a large file most may never be asked for: what is not
    /// touched takes no memory.
    fn unknown(count: usize) -> io::Result<Box<[Self]>> {
        let layout = Layout::array::<Self>(count).map_err(|_| too_large())?;
        if layout.size() == 0 {
            return Ok(Box::default());
        }
        // SAFETY: its size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            // Of a file that is large for this machine. To be mapped is no more than a wish.
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let all = ptr::slice_from_raw_parts_mut(start.cast::<Self>(), count);
        // SAFETY: allocated with this layout, and three zeros are a region.
        Ok(unsafe { Box::from_raw(all) })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Mapping {
    pages: Pages,
    /// Bytes of the file when it was mapped.
    size_bytes: usize,
    /// A page has two to this power bytes; shifting is faster than dividing.
    page_shift: u32,
    regions: Box<[Region]>,
    /// Until when the mapping is not used.
    paused_until_ms: AtomicU64,
    /// Regions in a row of which nothing was resident.
    barren: AtomicU32,
    /// Reads of regions of which nothing is known, while they are barren.
    looked: AtomicU32,
}

/// Mapped pages of a file, as long as this lives.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is only read from, and belongs to this value until it is dropped.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the pages that begin `offset` bytes into a file and have so many bytes.
    fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let offset = i64::try_from(offset).map_err(|_| too_large())?;
        let (fd, protection, flags) = (fd.as_raw_fd(), libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap64(ptr::null_mut(), bytes, protection, flags, fd, offset) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Which of at most [`REGION_PAGES`] pages are resident, `bytes` from `offset` on.
    fn resident(&self, offset: usize, bytes: usize) -> io::Result<u64> {
        let mut told = [0_u8; REGION_PAGES];
        let start = self.start.as_ptr().wrapping_add(offset);
        debug_assert!(offset + bytes <= self.bytes && bytes <= told.len() * page_bytes());
        // SAFETY: the range is mapped, and there is a place for each page.
        if unsafe { libc::mincore(start.cast(), bytes, told.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // What was not asked for is left at zero.
        let bits = told.iter().enumerate();
        Ok(bits.fold(0, |resident, (page, told)| {
            resident | u64::from(told & 1) << page
        }))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has an address in it.
        let answer = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    }
}

/// Why a file is not mapped.
#[derive(Debug)]
pub(crate) enum NotMapped {
    /// It has no bytes.
    Empty,
    /// It is on hugetlbfs, where a page is not what it is elsewhere, and all are resident.
    HugePages,
    /// Another program or machine serves it, and may have its pages taken away at any moment: who
    /// reads one then waits for the server.
    Served,
    /// The kernel refuses: mmap(2).
    Refused(io::Error),
    /// The kernel does not tell this process what is resident. mincore(2): only to the owner of the
    /// file, or who may write to it; to others it says that everything is.
    Untold,
}

impl From<io::Error> for NotMapped {
    fn from(cause: io::Error) -> Self {
        Self::Refused(cause)
    }
}

impl fmt::Display for NotMapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a file is not mapped as wished, and read by the other roads: ")?;
        match self {
            Self::Empty => f.write_str("it is empty, or not a regular file"),
            Self::HugePages => f.write_str("it is on hugetlbfs"),
            Self::Served => f.write_str("another program or machine serves it"),
            Self::Refused(cause) => write!(f, "{cause}"),
            Self::Untold => f.write_str(
                "the kernel tells what is resident only to the owner of a file, or who may write",
            ),
        }
    }
}

impl Mapping {
    /// Maps the first `size_bytes` of a regular file.
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, nobody shortens the file below `size_bytes`, or changes these
    /// bytes.
    pub(crate) unsafe fn new(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<Self, NotMapped> {
        let size_bytes = usize::try_from(size_bytes).map_err(|_| too_large())?;
        if size_bytes == 0 {
            return Err(NotMapped::Empty);
        }
        let kind = rustix::fs::fstatfs(fd).map_err(io::Error::from)?.f_type;
        if i128::from(kind) == i128::from(libc::HUGETLBFS_MAGIC) {
            return Err(NotMapped::HugePages);
        }
        let page_bytes = page_bytes();
        let told_of = size_bytes
            .checked_next_multiple_of(page_bytes)
            .and_then(|bytes| bytes.checked_add(BEYOND_BYTES))
            .ok_or_else(too_large)?;
        // Mapped by itself: a process with many files has not so many addresses for each.
        let beyond = Pages::new(fd, told_of as u64, page_bytes)?;
        if beyond.resident(0, page_bytes)? != 0 {
            return Err(NotMapped::Untold);
        }
        let pages = Pages::new(fd, 0, size_bytes)?;
        // If a page is touched that has gone meanwhile, it alone is to be read. A hint.
        let (start, advice) = (pages.start.as_ptr().cast(), libc::MADV_RANDOM);
        // SAFETY: it changes nothing of what the memory holds.
        let _ = unsafe { libc::madvise(start, size_bytes, advice) };
        let regions = size_bytes.div_ceil(page_bytes).div_ceil(REGION_PAGES);
        Ok(Self {
            pages,
            size_bytes,
            page_shift: page_bytes.trailing_zeros(),
            regions: Region::unknown(regions)?,
            paused_until_ms: AtomicU64::new(0),
            barren: AtomicU32::new(0),
            looked: AtomicU32::new(0),
        })
    }

    /// Copies `len` bytes at `offset` to `to` if they are in the file and all resident, without
    /// waiting for the disk.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes, which nobody else has.
    #[inline]
    pub(crate) unsafe fn copy(&self, offset: u64, to: *mut u8, len: usize) -> bool {
        let Ok(offset) = usize::try_from(offset) else {
            return false;
        };
        let Some(end) = offset.checked_add(len) else {
            return false;
        };
        if end > self.size_bytes || len == 0 || !self.has(offset, end) {
            return false;
        }
        let from = self.pages.start.as_ptr().wrapping_add(offset);
        // SAFETY: the range is in the mapping and nobody changes it (`Mapping::new`); `to` is valid
        // by the contract of this function, and no buffer lies in a mapping of ours.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        true
    }

    /// Whether the pages from `offset` to `end` are resident, as far as is known.
    #[inline]
    fn has(&self, offset: usize, end: usize) -> bool {
        let now_ms = now_ms();
        if now_ms < self.paused_until_ms.load(Ordering::Relaxed) {
            return false;
        }
        let (first, last) = (offset >> self.page_shift, (end - 1) >> self.page_shift);
        (first..=last).all(|page| {
            let number = page / REGION_PAGES;
            let region = &self.regions[number];
            let bit = 1 << (page % REGION_PAGES);
            let mut resident = region.resident.load(Ordering::Relaxed);
            let until_ms = region.until_ms.load(Ordering::Relaxed);
            if until_ms <= now_ms {
                resident = self.refresh(number, until_ms, now_ms);
            }
            resident & bit != 0
        })
    }

    /// Asks for a region anew, unless another thread is doing that. What is resident of it.
    #[cold]
    fn refresh(&self, number: usize, until_ms: u64, now_ms: u64) -> u64 {
        let region = &self.regions[number];
        let before = region.resident.load(Ordering::Relaxed);
        if self.barren.load(Ordering::Relaxed) >= BARREN_AT
            && before == 0
            && !self
                .looked
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(SAMPLE_EVERY)
        {
            return 0;
        }
        let (until, soon_ms) = (&region.until_ms, now_ms + FRESH_MS);
        let is_old = now_ms > until_ms + FRESH_MAX_MS;
        if until
            .compare_exchange(until_ms, soon_ms, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            // Whoever asks may take a while.
            return match is_old {
                true => 0,
                false => before,
            };
        }
        if is_old {
            region.resident.store(0, Ordering::Relaxed);
        }
        let first = (number * REGION_PAGES) << self.page_shift;
        let bytes = (self.size_bytes - first).min(REGION_PAGES << self.page_shift);
        let resident = self.pages.resident(first, bytes).unwrap_or(0);
        region.resident.store(resident, Ordering::Relaxed);
        let is_same = resident == before;
        let fresh_ms = match region.fresh_ms.load(Ordering::Relaxed) {
            fresh_ms if is_same => fresh_ms.max(FRESH_MS),
            _ => FRESH_MS,
        };
        let next_ms = (2 * fresh_ms).min(FRESH_MAX_MS);
        region.fresh_ms.store(next_ms, Ordering::Relaxed);
        let believed_ms = if resident == 0 { ABSENT_MS } else { fresh_ms };
        until.store(now_ms + believed_ms, Ordering::Relaxed);
        if resident == 0 {
            let barren = self.barren.load(Ordering::Relaxed);
            self.barren
                .store(barren.saturating_add(1), Ordering::Relaxed);
        } else {
            self.barren.store(0, Ordering::Relaxed);
        }
        if before & !resident != 0 {
            let until_ms = now_ms + PAUSE_MS;
            self.paused_until_ms.store(until_ms, Ordering::Relaxed);
        }
        resident
    }
}

fn too_large() -> io::Error {
    io::Error::from_raw_os_error(libc::EOVERFLOW)
}

fn page_bytes() -> usize {
    // SAFETY: no memory is involved.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("a page has a size")
}
