//! The state in which every stretch finds its files: emptied caches, a file that begins anew.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};

use crate::measure::storage::{drop_cache, drop_clean};
use crate::profile::Profile;

/// Of a file that counts as cold, at most this part of the pages may be in memory: one in 100.
const MOST_RESIDENT: usize = 100;
/// Pages that are on their way to the device cannot be dropped at the first try.
const TRIES: u32 = 5;

/// What is done to the files before each stretch.
pub(crate) struct Ground<'f> {
    files: &'f [File],
    cold: bool,
    writes: bool,
    /// Whether the files were flushed once: whatever wrote to them before.
    flushed: Cell<bool>,
    /// A file that grows is cut to this.
    begins_at_bytes: Option<u64>,
}

impl<'f> Ground<'f> {
    pub(crate) fn new(profile: &Profile, files: &'f [File]) -> Self {
        Self {
            files,
            cold: profile.cold(),
            writes: profile.writes(),
            flushed: Cell::new(false),
            begins_at_bytes: profile.grows().then_some(u64::from(profile.block_bytes)),
        }
    }

    /// Whether a stretch leaves the files as it finds them, so that the next may begin at once.
    pub(crate) fn stays(&self) -> bool {
        !self.cold && self.begins_at_bytes.is_none()
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
                empty_cache(file, may_be_dirty)?;
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

/// Throws a file out of the page cache, and looks whether it is gone. It is flushed if it may be
/// dirty, and also where pages stay that should not be: somebody else may have written to it.
pub(crate) fn empty_cache(file: &File, may_be_dirty: bool) -> Result<()> {
    let mut left = (0, 1);
    for attempt in 0..TRIES {
        match may_be_dirty || attempt > 0 {
            true => drop_cache(file),
            false => drop_clean(file),
        }
        left = resident(file).context("asking for the state of the page cache")?;
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

/// How many pages of a file are in memory, and how many it has.
///
/// # Source
/// mincore(2); it tells the truth to those who may write to the file or own it.
fn resident(file: &File) -> io::Result<(usize, usize)> {
    // SAFETY: asks for a constant of this system; no memory is involved.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page_bytes = usize::try_from(page_bytes).map_err(io::Error::other)?;
    let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
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
    let resident = pages.iter().filter(|page| **page & 1 == 1).count();
    Ok((resident, pages.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_in_memory_and_can_be_dropped_or_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        for may_be_dirty in [true, false] {
            // More than is on the device before anybody has waited for it.
            file.write_all(&vec![1; 32 << 20]).unwrap();
            let (there, pages) = resident(&file).unwrap();
            assert!(there > 0 && pages >= there);
            match empty_cache(&file, may_be_dirty) {
                Ok(()) => assert!(resident(&file).unwrap().0 * MOST_RESIDENT <= pages),
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
