//! Page-aligned memory for blocks: direct I/O demands it, so all get it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::work::{Work, noise};

const PAGE_BYTES: usize = 4096;

/// Buffers of equal size in one piece of memory, one per slot.
pub(crate) struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    block_bytes: u32,
}

// SAFETY: the memory belongs to this value alone, like that of a `Box<[u8]>`.
unsafe impl Send for Arena {}

impl Arena {
    /// Memory for `slots` blocks, touched, so that no page fault falls into the measurement.
    pub(crate) fn new(slots: u32, block_bytes: u32) -> Self {
        let bytes = usize::try_from(u64::from(slots.max(1)) * u64::from(block_bytes.max(1)))
            .expect("the buffers fit into memory");
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("a valid layout");
        // SAFETY: the layout's size is not zero: both factors are at least one.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the memory was just allocated with this size and nobody else knows it.
        unsafe { start.as_ptr().write_bytes(1, bytes) };
        Self {
            start,
            layout,
            block_bytes,
        }
    }

    /// Memory for the blocks of a lane; noisy where it will be written from.
    pub(crate) fn of(work: &Work, slots: u32) -> Self {
        let mut arena = Self::new(slots, work.block_bytes);
        if work.access.writes() {
            (0..slots.max(1)).for_each(|slot| arena.fill(slot));
        }
        arena
    }

    /// Noise, so that what is written cannot be compressed.
    fn fill(&mut self, slot: u32) {
        let length = usize::try_from(self.block_bytes).expect("u32 fits into usize");
        noise(self.block(slot, length), u64::from(slot));
    }

    /// The first bytes of a slot that is not in flight.
    #[inline]
    pub(crate) fn block(&mut self, slot: u32, bytes: usize) -> &mut [u8] {
        let start = self.slot(slot);
        assert!(bytes <= usize::try_from(self.block_bytes).expect("u32 fits into usize"));
        // SAFETY: inside the arena, initialised, and borrowed like the arena; nobody else
        // touches the memory of a slot that is not in flight.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// The buffer of a slot, for the kernel to write into.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> *mut u8 {
        let offset = u64::from(slot) * u64::from(self.block_bytes);
        let offset = usize::try_from(offset).expect("inside the arena");
        assert!(
            offset < self.layout.size(),
            "slot {slot} is outside the arena"
        );
        self.start.as_ptr().wrapping_add(offset)
    }

    /// The whole arena, for registration.
    pub(crate) fn iovec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.as_ptr().cast(),
            iov_len: self.layout.size(),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and released only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_and_apart() {
        let mut arena = Arena::new(3, 4096);
        assert_eq!(arena.slot(0).addr() % PAGE_BYTES, 0);
        assert_eq!(arena.slot(2).addr() - arena.slot(0).addr(), 8192);
        assert_eq!(arena.block(2, 100).len(), 100);
        arena.fill(1);
        assert_ne!(arena.block(0, 4096).to_vec(), arena.block(1, 4096));
        assert_eq!(arena.iovec().iov_len, 3 * 4096);
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn a_slot_outside_is_refused() {
        Arena::new(2, 512).slot(2);
    }
}
