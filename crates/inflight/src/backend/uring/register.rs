//! Memory that the ring knows in advance.
//!
//! The ring has a small sparse table of registered buffers; each place holds the whole memory of
//! one pool. A pool is registered when one of its buffers is first met, and its place is freed
//! when the pool is gone, whatever is in flight. A refusal is remembered, and the buffers work
//! unregistered.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use io_uring::types::CloneBuffersFlags;
use io_uring::{IoUring, Submitter};

use crate::buf::{Alive, Arena, arenas_dropped};

/// Pools that one ring knows at a time.
const PLACES: u16 = 16;

/// The kernel takes at most this much in one registered buffer: `SZ_1G`,
/// io_uring_register(2), `IORING_REGISTER_BUFFERS`.
const REGION_MAX_BYTES: usize = 1 << 30;

/// The table of registered buffers of one ring.
#[derive(Default)]
pub(super) struct Arenas {
    entries: Vec<Entry>,
    /// Whether the kernel has made the table.
    table: Table,
    /// How many arenas had been dropped when dead ones were last looked for.
    seen_dropped: u64,
    /// The last refusal that nobody has been told of.
    refusal: Option<String>,
}

/// Whether the kernel has made a table of registered things.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    #[default]
    None,
    Made,
    Refused,
}

struct Entry {
    id: u64,
    alive: Weak<Alive>,
    /// The place in the kernel's table; `None` if it was refused.
    place: Option<u16>,
}

impl Arenas {
    /// The place of an arena, which is registered if it was not known.
    ///
    /// # Safety
    ///
    /// The arena lives.
    #[inline(always)]
    pub(super) unsafe fn place(&mut self, ring: &IoUring, arena: NonNull<Arena>) -> Option<u16> {
        // SAFETY: the caller says that it lives.
        let arena = unsafe { arena.as_ref() };
        let known = self.entries.iter().find(|entry| entry.id == arena.id());
        match known {
            Some(entry) => entry.place,
            None => self.register(&ring.submitter(), arena),
        }
    }

    #[cold]
    fn register(&mut self, ring: &Submitter<'_>, arena: &Arena) -> Option<u16> {
        if self.is_stale() {
            // They have places, and what may be locked, that the new one may need.
            self.sweep(ring);
        }
        let place = self.try_register(ring, arena);
        let alive = Arc::downgrade(arena.alive());
        self.entries.push(Entry {
            id: arena.id(),
            alive,
            place,
        });
        place
    }

    fn try_register(&mut self, ring: &Submitter<'_>, arena: &Arena) -> Option<u16> {
        let iovec = arena.iovec();
        if iovec.iov_len > REGION_MAX_BYTES {
            self.refuse("a pool of more than 1 GiB cannot be registered");
            return None;
        }
        if self.table == Table::None {
            self.table = match ring.register_buffers_sparse(u32::from(PLACES)) {
                Ok(()) => Table::Made,
                Err(cause) => {
                    self.refuse(&by_kernel(&cause));
                    Table::Refused
                }
            };
        }
        if self.table == Table::Refused {
            return None;
        }
        let Some((place, is_behind_all)) = self.free_place() else {
            self.refuse("a thread uses more pools than a ring can know (16)");
            return None;
        };
        if is_behind_all && clone(ring, place, arena) {
            return Some(place);
        }
        match update(ring, place, iovec) {
            Ok(()) => Some(place),
            Err(cause) => {
                self.refuse(&by_kernel(&cause));
                None
            }
        }
    }

    /// A place that nobody has, behind all that somebody has if there is one, and whether it is.
    fn free_place(&self) -> Option<(u16, bool)> {
        let taken = |place| self.entries.iter().any(|entry| entry.place == Some(place));
        let last = self.entries.iter().filter_map(|entry| entry.place).max();
        let behind = last.map_or(0, |last| last + 1);
        if behind < PLACES {
            return Some((behind, true));
        }
        (0..PLACES)
            .find(|place| !taken(*place))
            .map(|place| (place, false))
    }

    #[cold]
    fn refuse(&mut self, why: &str) {
        self.refusal = Some(format!("buffers are not registered: {why}"));
    }

    /// Whether pools have been dropped since the last [`Arenas::sweep`].
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.seen_dropped != arenas_dropped()
    }

    /// Frees the places of pools that are gone.
    #[cold]
    pub(super) fn sweep(&mut self, ring: &Submitter<'_>) {
        self.seen_dropped = arenas_dropped();
        let (alive, dead) = self
            .entries
            .drain(..)
            // Those that were refused are forgotten too: there may be room for them now.
            .partition(|entry: &Entry| entry.alive.strong_count() > 0 && entry.place.is_some());
        self.entries = alive;
        for entry in dead {
            if let Some(place) = entry.place {
                let nothing = libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                };
                // If the kernel refuses, the place is overwritten when it is used again.
                let _ = update(ring, place, nothing);
            }
        }
    }

    /// Whether there is something for [`Arenas::take_refusal`].
    #[inline]
    pub(super) fn has_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// The last refusal since this was last asked, in one sentence.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }
}

fn by_kernel(cause: &io::Error) -> String {
    match cause.raw_os_error() {
        Some(libc::ENOMEM) => format!("{cause}; RLIMIT_MEMLOCK is the usual reason"),
        _ => format!("{cause}"),
    }
}

/// Takes over the arena's registration: its pages are pinned and charged against RLIMIT_MEMLOCK
/// once for all rings (io_uring_register(2), `IORING_REGISTER_CLONE_BUFFERS`). False where the
/// kernel does not know how (before 6.13 it clones whole tables only), or refuses the ring for it.
///
/// Kernels without "io_uring/rsrc: fix lost entries after cloned range" (of 2025, in the stable
/// series too) forget what has places behind this one, so none may have.
fn clone(ring: &Submitter<'_>, place: u16, arena: &Arena) -> bool {
    let Some(source) = arena.source(|| register_alone(arena).ok()) else {
        return false;
    };
    let flags = CloneBuffersFlags::DST_REPLACE;
    ring.register_buffers_clone_offset(source.as_raw_fd(), 0, u32::from(place), 1, flags)
        .is_ok()
}

/// A ring that has the arena registered and is never entered. It has no owner, because the kernel
/// lets nobody else take over what a ring with `SINGLE_ISSUER` has (`EEXIST`, seen on 6.18).
fn register_alone(arena: &Arena) -> io::Result<OwnedFd> {
    let ring = IoUring::new(1)?;
    // SAFETY: the memory is the arena's. The kernel pins its pages until the ring is closed, which
    // happens with the arena.
    unsafe { ring.submitter().register_buffers(&[arena.iovec()]) }?;
    // SAFETY: the ring is open.
    let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    fd.try_clone_to_owned()
}

/// Puts memory into a place of the ring's table.
fn update(ring: &Submitter<'_>, place: u16, iovec: libc::iovec) -> io::Result<()> {
    // SAFETY: the memory is an arena's, or none. The kernel pins its pages, so they are not reused
    // before the place is cleared; that an address means another arena later is taken care of by
    // ids.
    let updated = unsafe { ring.register_buffers_update(u32::from(place), &[iovec], None) };
    updated.map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn having(places: &[Option<u16>]) -> Arenas {
        let entry = |(id, place): (usize, &Option<u16>)| Entry {
            id: id as u64,
            alive: Weak::new(),
            place: *place,
        };
        Arenas {
            entries: places.iter().enumerate().map(entry).collect(),
            ..Arenas::default()
        }
    }

    #[test]
    fn a_new_pool_is_behind_all_others_as_long_as_there_is_room() {
        for (places, free) in [
            (&[][..], Some((0, true))),
            // The first is gone, and one was refused.
            (&[Some(1), None, Some(2)], Some((3, true))),
            (&[Some(15), Some(1)], Some((0, false))),
            (&[Some(0), Some(15)], Some((1, false))),
        ] {
            assert_eq!(having(places).free_place(), free, "{places:?}");
        }
        let all: Vec<_> = (0..PLACES).map(Some).collect();
        assert_eq!(having(&all).free_place(), None);
    }
}
