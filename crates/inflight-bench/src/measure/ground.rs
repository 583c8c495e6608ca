//! The state in which every stretch finds its files: caches that are emptied, or that have every
//! other block, a file that begins anew.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::measure::storage::{drop_cache, drop_clean};
use crate::profile::Profile;
use crate::signals;

/// Of a file that counts as cold, at most this part of the pages may be in memory: one in 100. Of
/// one of which half is to be there, so many may be otherwise.
const MOST_RESIDENT: usize = 100;
/// Pages that are on their way to the device cannot be dropped at the first try.
const TRIES: u32 = 5;
/// While a disk reads what was asked for, the state of the cache is looked at after so long each
/// time. What is still missing when nothing has come so many times does not come.
const LOOKS_EVERY: Duration = Duration::from_millis(2);
const LOOKS_IN_VAIN: u32 = 200;
/// Pages that are asked for at a time.
const ADVISED_PAGES: usize = 16;

/// What is done to the files before each stretch.
pub(crate) struct Ground<'f> {
    files: &'f [File],
    /// What is used of each. A device has no length of its own, and may have far more.
    file_bytes: u64,
    cold: bool,
    /// Every other block is to be there, of so many bytes.
    half_of_bytes: Option<u64>,
    writes: bool,
    /// Whether the files were flushed once: whatever wrote to them before.
    flushed: Cell<bool>,
    /// A file that grows is cut to this.
    begins_at_bytes: Option<u64>,
}

impl<'f> Ground<'f> {
    pub(crate) fn new(profile: &Profile, files: &'f [File], file_bytes: u64) -> Self {
        Self {
            files,
            file_bytes,
            cold: profile.cold(),
            half_of_bytes: profile.half_cached().then_some(profile.block_bytes.into()),
            writes: profile.writes(),
            flushed: Cell::new(false),
            begins_at_bytes: profile.grows().then_some(u64::from(profile.block_bytes)),
        }
    }

    /// Whether a stretch leaves the files as it finds them, so that the next may begin at once.
    pub(crate) fn stays(&self) -> bool {
        !self.cold && self.half_of_bytes.is_none() && self.begins_at_bytes.is_none()
    }

    /// Prepares the files for a stretch.
    pub(crate) fn prepare(&self) -> Result<()> {
        let may_be_dirty = self.writes || !self.flushed.get();
        for file in self.files {
            if let Some(bytes) = self.begins_at_bytes {
                file.set_len(bytes).context("cutting the file")?;
                file.sync_all().context("cutting the file")?;
            }
            if self.cold {
                empty_cache(file, self.file_bytes, may_be_dirty)?;
            }
            if let Some(block_bytes) = self.half_of_bytes {
                halve_cache(file, self.file_bytes, block_bytes)?;
            }
        }
        self.flushed.set(true);
        Ok(())
    }

    /// Brings what was written to the device.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }
}

/// Throws a file out of the page cache, and looks whether so much of it is gone. It is flushed if
/// it may be dirty, and also where pages stay that should not be: somebody else may have written to
/// it.
pub(crate) fn empty_cache(file: &File, bytes: u64, may_be_dirty: bool) -> Result<()> {
    let mut left = (0, 1);
    for attempt in 0..TRIES {
        match may_be_dirty || attempt > 0 {
            true => drop_cache(file),
            false => drop_clean(file),
        }
        let pages = Pages::of(file, bytes)?;
        left = (pages.count(), pages.resident.len());
        if left.0 * MOST_RESIDENT <= left.1 {
            return Ok(());
        }
    }
    let (resident, pages) = left;
    bail!(
        "the page cache cannot be emptied here: {resident} of {pages} pages of the file stay in \
         memory"
    )
}

/// Brings every other block of a file into the page cache, and throws the others out.
///
/// By one block in two, because what the kernel takes for a stream it reads ahead: a miss behind
/// more pages than it asks for itself that are there.
fn halve_cache(file: &File, bytes: u64, block_bytes: u64) -> Result<()> {
    let mut halves = Halves::of(file, bytes, block_bytes)?;
    for attempt in 0..TRIES {
        if attempt > 0 {
            // What was brought in as one piece cannot be thrown out by blocks.
            empty_cache(file, bytes, true)?;
            halves = Halves::of(file, bytes, block_bytes)?;
        }
        if !halves.are_right() {
            halves.advise(file);
        }
        let (mut best, mut in_vain) = (usize::MAX, 0);
        while !halves.are_right() && in_vain < LOOKS_IN_VAIN {
            if signals::interrupted() {
                bail!("it was interrupted");
            }
            thread::sleep(LOOKS_EVERY);
            halves = Halves::of(file, bytes, block_bytes)?;
            in_vain = if halves.wrong() < best {
                0
            } else {
                in_vain + 1
            };
            best = best.min(halves.wrong());
        }
        if halves.are_right() {
            return Ok(());
        }
    }
    bail!(
        "the page cache cannot be made to hold one block in two here: of {} pages of the file {} \
         are missing in memory, and {} are there that should not be",
        halves.pages.resident.len(),
        halves.missing,
        halves.superfluous
    )
}

/// Pages of which those of every other block are to be in memory, and no others.
struct Halves {
    pages: Pages,
    block_pages: usize,
    missing: usize,
    superfluous: usize,
}

impl Halves {
    fn of(file: &File, bytes: u64, block_bytes: u64) -> Result<Self> {
        let pages = Pages::of(file, bytes)?;
        let block_pages = usize::try_from(block_bytes / pages.bytes)?.max(1);
        let mut halves = Self {
            pages,
            block_pages,
            missing: 0,
            superfluous: 0,
        };
        for page in 0..halves.pages.resident.len() {
            match (halves.is_kept(page), halves.pages.is_resident(page)) {
                (true, false) => halves.missing += 1,
                (false, true) => halves.superfluous += 1,
                _ => {}
            }
        }
        Ok(halves)
    }

    fn is_kept(&self, page: usize) -> bool {
        (page / self.block_pages).is_multiple_of(2)
    }

    fn wrong(&self) -> usize {
        self.missing + self.superfluous
    }

    fn are_right(&self) -> bool {
        self.wrong() * MOST_RESIDENT <= self.pages.resident.len()
    }

    /// Asks for the blocks that are missing, without waiting for them, and for the superfluous ones
    /// to go. That this worked is seen by looking again.
    ///
    /// # Source
    /// posix_fadvise(2): `WILLNEED` reads what is named, at a time no more than the device takes or
    /// than is read ahead, and `DONTNEED` throws out whole pages.
    fn advise(&self, file: &File) {
        let pages = self.pages.resident.len();
        for first in (0..pages).step_by(self.block_pages) {
            let end = (first + self.block_pages).min(pages);
            let is_wrong = |page| self.pages.is_resident(page) != self.is_kept(page);
            if !(first..end).any(is_wrong) {
                continue;
            }
            let advice = match self.is_kept(first) {
                true => libc::POSIX_FADV_WILLNEED,
                false => libc::POSIX_FADV_DONTNEED,
            };
            for from in (first..end).step_by(ADVISED_PAGES) {
                let to = (from + ADVISED_PAGES).min(end);
                let at = |page: usize| i64::try_from(page as u64 * self.pages.bytes);
                if let (Ok(start), Ok(end)) = (at(from), at(to)) {
                    // SAFETY: a call on an open descriptor; no memory is involved.
                    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, end - start, advice) };
                }
            }
        }
    }
}

/// Which pages of a file are in memory.
struct Pages {
    bytes: u64,
    /// By page; the last bit counts.
    resident: Vec<u8>,
}

impl Pages {
    /// # Source
    /// mincore(2); it tells the truth to those who may write to the file or own it.
    fn of(file: &File, bytes: u64) -> Result<Self> {
        resident(file, bytes).context("asking for the state of the page cache")
    }

    fn is_resident(&self, page: usize) -> bool {
        self.resident[page] & 1 == 1
    }

    /// How many are there.
    fn count(&self) -> usize {
        let pages = 0..self.resident.len();
        pages.filter(|&page| self.is_resident(page)).count()
    }
}

fn resident(file: &File, bytes: u64) -> io::Result<Pages> {
    let page_bytes = rustix::param::page_size();
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a fresh mapping at an address of the kernel's choice, without access to it.
    let start = unsafe { libc::mmap(null, bytes, libc::PROT_NONE, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0u8; bytes.div_ceil(page_bytes)];
    // SAFETY: the range was mapped just now, and there is a byte for each of its pages.
    let told = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: mapped above with this length; nothing refers to it.
    unsafe { libc::munmap(start, bytes) };
    if told != 0 {
        return Err(error);
    }
    Ok(Pages {
        bytes: page_bytes as u64,
        resident: pages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::mix;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_other_block_is_kept_and_what_was_read_between_goes_again() {
        let mut file = tempfile::tempfile().unwrap();
        // Of what can be compressed a file system reads more than is asked for.
        let random = (0..4 << 20).flat_map(|number| mix(number).to_ne_bytes());
        file.write_all(&random.collect::<Vec<u8>>()).unwrap();
        let block_bytes = 8192;
        match halve_cache(&file, 32 << 20, block_bytes) {
            Ok(()) => {}
            Err(error) => {
                // The temporary directory may be in memory itself.
                assert!(error.to_string().contains("stay in memory"), "{error}");
                return;
            }
        }
        let halves = || Halves::of(&file, 32 << 20, block_bytes).unwrap();
        let (first, pages) = (halves(), halves().pages.resident.len());
        assert!(first.are_right() && first.pages.count().abs_diff(pages / 2) <= pages / 100);
        for block in 0..1000 {
            let read = file.read_exact_at(&mut [0; 8192], block * block_bytes);
            read.unwrap();
        }
        assert!(!halves().are_right());
        halve_cache(&file, 32 << 20, block_bytes).unwrap();
        assert!(halves().are_right());
    }

    #[test]
    fn what_was_just_written_is_in_memory_and_can_be_dropped_or_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        for may_be_dirty in [true, false] {
            // More than is on the device before anybody has waited for it.
            file.write_all(&vec![1; 32 << 20]).unwrap();
            let bytes = file.metadata().unwrap().len();
            let pages = Pages::of(&file, bytes).unwrap();
            assert!(pages.count() > 0);
            match empty_cache(&file, bytes, may_be_dirty) {
                Ok(()) => {
                    let there = Pages::of(&file, bytes).unwrap().count();
                    assert!(there * MOST_RESIDENT <= pages.resident.len());
                }
                // The temporary directory may be in memory itself.
                Err(error) if may_be_dirty => {
                    assert!(error.to_string().contains("stay in memory"), "{error}");
                    return;
                }
                Err(error) => panic!("it was not known to be dirty, and not flushed: {error}"),
            }
        }
    }
}
