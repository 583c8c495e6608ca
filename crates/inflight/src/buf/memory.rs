//! Where the memory of aligned buffers comes from.
//!
//! The kernel hands a direct transfer to the device as pieces that are contiguous in physical
//! memory: of small pages nearly as many as there are pages, each to be pinned, mapped and
//! described to the device, of a huge one (madvise(2), `MADV_HUGEPAGE`) one alone. So what has
//! several pages is taken from huge ones: from [`SHARED_MIN_BYTES`] on as a part of a sheet that
//! others have parts of too, and from [`SHEET_BYTES`] on in a mapping of its own. All else is the
//! allocator's.
//! Figures: `docs/design/memory.md`.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use super::sheets::{SHEET_BYTES, Sheets, Taken, UNIT_BYTES};
use crate::fork::{self, PerProcess};

/// From so many bytes on, a buffer shares a huge page with others.
const SHARED_MIN_BYTES: usize = UNIT_BYTES;

/// From so many bytes on, what shares no page has a mapping of its own, whose last part is of a
/// huge page too if it is at least so long.
const ALONE_MIN_BYTES: usize = SHEET_BYTES / 2;

/// What mappings are cut to: a page, wherever that is at most 64 KiB.
const PAGE_MAX_BYTES: usize = 64 << 10;

/// The sheets of this process. A forked child begins with none: what it drops of its parent's
/// stays mapped, for a lock that another thread may have held cannot be asked.
static SHEETS: PerProcess<Mutex<Sheets>> = PerProcess::new();

/// Memory that is owned alone, zeroed when it is made, and freed when it is dropped.
pub(super) struct Memory {
    start: NonNull<u8>,
    /// As it was asked for; its size may be 0.
    layout: Layout,
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    Allocator,
    Sheet,
    Mapping,
}

// SAFETY: the memory is owned alone, as that of a `Box<[u8]>`.
unsafe impl Send for Memory {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory, a part of a huge page if it is worth it.
    pub(super) fn zeroed(layout: Layout) -> io::Result<Self> {
        match layout.size() {
            SHARED_MIN_BYTES..SHEET_BYTES if layout.align() <= UNIT_BYTES => {
                of_a_sheet(layout).map_or_else(|| of_the_allocator(layout), Ok)
            }
            _ => Self::zeroed_alone(layout),
        }
    }

    /// Zeroed memory of which no page is another's: who registers a part of a huge page is charged
    /// with the whole of it (RLIMIT_MEMLOCK).
    pub(super) fn zeroed_alone(layout: Layout) -> io::Result<Self> {
        if layout.size() < ALONE_MIN_BYTES || layout.align() > SHEET_BYTES {
            return of_the_allocator(layout);
        }
        let Some(start) = map(layout.size()) else {
            return of_the_allocator(layout);
        };
        Ok(Self {
            start,
            layout,
            source: Source::Mapping,
        })
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.source {
            Source::Allocator => {
                // SAFETY: allocated with this very layout, and not freed before.
                unsafe { alloc::dealloc(self.start.as_ptr(), allocated(self.layout)) }
            }
            // SAFETY: mapped by `map` for this length, and not unmapped before.
            Source::Mapping => unsafe { unmap(self.start, mapped(self.layout.size())) },
            Source::Sheet => {
                let units = Sheets::units(self.layout.size());
                let empty = sheets(|sheets| sheets.give_back(self.start.addr().get(), units));
                let sheet = empty.map(ptr::with_exposed_provenance_mut::<u8>);
                if let Some(sheet) = sheet.and_then(NonNull::new) {
                    // SAFETY: mapped by `map` with this length, and nobody has anything of it.
                    unsafe { unmap(sheet, SHEET_BYTES) }
                }
            }
        }
    }
}

fn sheets<R>(ask: impl FnOnce(&mut Sheets) -> R) -> R {
    // No statement of the index panics halfway.
    let sheets = SHEETS.get().lock();
    ask(&mut sheets.unwrap_or_else(PoisonError::into_inner))
}

/// An allocation of no bytes is not allowed; one byte nobody sees is.
fn allocated(layout: Layout) -> Layout {
    Layout::from_size_align(layout.size().max(1), layout.align()).unwrap_or(layout)
}

fn of_the_allocator(layout: Layout) -> io::Result<Memory> {
    // SAFETY: the layout has at least one byte.
    let start = unsafe { alloc::alloc_zeroed(allocated(layout)) };
    Ok(Memory {
        start: NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?,
        layout,
        source: Source::Allocator,
    })
}

/// `None` where the kernel maps no more.
fn of_a_sheet(layout: Layout) -> Option<Memory> {
    // Before the lock is held for the first time.
    fork::watch();
    let units = Sheets::units(layout.size());
    let taken = sheets(|sheets| sheets.take(units)).or_else(|| {
        // Without the lock: the kernel may take its time.
        let sheet = map(SHEET_BYTES)?;
        sheets(|sheets| {
            sheets.add(sheet.as_ptr().expose_provenance());
            sheets.take(units)
        })
    })?;
    let Taken {
        sheet,
        offset,
        are_zeros,
    } = taken;
    let start = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(sheet + offset))?;
    if !are_zeros {
        // SAFETY: inside a mapped sheet, and nobody else has these units.
        unsafe { start.write_bytes(0, layout.size()) };
    }
    Some(Memory {
        start,
        layout,
        source: Source::Sheet,
    })
}

/// How much of so many bytes is of huge pages: all that one is filled by at least half.
fn huge(len: usize) -> usize {
    (len + ALONE_MIN_BYTES) / SHEET_BYTES * SHEET_BYTES
}

/// As much as is mapped for so many bytes. No layout is so long that this overflows: its end is
/// below `isize::MAX`.
fn mapped(len: usize) -> usize {
    len.next_multiple_of(PAGE_MAX_BYTES).max(huge(len))
}

/// Zeroed memory that begins where a huge page does. `None` if the kernel refuses.
fn map(len: usize) -> Option<NonNull<u8>> {
    if cfg!(miri) {
        // It cannot cut mappings.
        return None;
    }
    let huge = huge(len);
    let len = mapped(len);
    let room = len.checked_add(SHEET_BYTES)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping of no file, where the kernel likes.
    let start = unsafe { libc::mmap64(ptr::null_mut(), room, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(SHEET_BYTES) - start.addr();
    let aligned = start.wrapping_add(before);
    let behind = aligned.wrapping_add(len);
    if before > 0 {
        // SAFETY: a part of the mapping that was just made, which nobody knows.
        unsafe { unmap(NonNull::new(start)?, before) };
    }
    // SAFETY: as above.
    unsafe { unmap(NonNull::new(behind)?, SHEET_BYTES - before) };
    // SAFETY: as above. Where there are no huge pages it is refused, and the pages are small.
    unsafe { libc::madvise(aligned.cast(), huge, libc::MADV_HUGEPAGE) };
    NonNull::new(aligned)
}

/// # Safety
///
/// It is a part of what [`map`] has mapped, and nobody uses it any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: by this function's contract. If the kernel refuses, for want of memory to note a hole
    // with (munmap(2), ENOMEM), it stays mapped.
    unsafe { libc::munmap(start.as_ptr().cast(), len) };
}
