//! Page-aligned memory for blocks: direct I/O demands it, so all get it.
#![allow(unsafe_code)]

use anyhow::{Context, Result};
use inflight::{AlignedBuf, IoBufMut};

use crate::work::{Work, noise};

const PAGE_BYTES: usize = 4096;

/// Buffers of equal size in one piece of memory, one per slot. It is the library's, so that all
/// have the same: what is large is of huge pages.
pub(crate) struct Arena {
    memory: AlignedBuf,
    /// Of the memory.
    start: *mut u8,
    block_bytes: u32,
}

// SAFETY: `start` points into the memory, which belongs to this value alone.
unsafe impl Send for Arena {}

impl Arena {
    /// Memory for `slots` blocks, touched, so that no page fault falls into the measurement.
    pub(crate) fn new(slots: u32, block_bytes: u32) -> Result<Self> {
        let bytes = u64::from(slots.max(1)) * u64::from(block_bytes.max(1));
        let mut memory = AlignedBuf::new(usize::try_from(bytes)?, PAGE_BYTES)
            .with_context(|| no_memory(slots, block_bytes))?;
        memory.fill(1);
        Ok(Self {
            start: memory.as_mut_ptr(),
            memory,
            block_bytes,
        })
    }

    /// Memory for the blocks of a lane; noisy where it will be written from.
    pub(crate) fn of(work: &Work, slots: u32) -> Result<Self> {
        let mut arena = Self::new(slots, work.block_bytes)?;
        if work.access.writes() {
            (0..slots.max(1)).for_each(|slot| arena.fill(slot));
        }
        Ok(arena)
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
            offset < self.memory.len(),
            "slot {slot} is outside the arena"
        );
        self.start.wrapping_add(offset)
    }

    /// The whole arena, for registration.
    pub(crate) fn iovec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.cast(),
            iov_len: self.memory.len(),
        }
    }
}

/// Why the blocks of a cell cannot be had, and what helps.
pub(super) fn no_memory(slots: u32, block_bytes: u32) -> String {
    let mib = (u64::from(slots) * u64::from(block_bytes)).div_ceil(1 << 20);
    format!(
        "there is no memory for the blocks in flight ({slots} of {block_bytes} bytes, {mib} MiB): \
         ask for fewer (--depth) or smaller ones (--block-size), or raise the limit (ulimit -v)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_and_apart() {
        let mut arena = Arena::new(3, 4096).unwrap();
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
        Arena::new(2, 512).unwrap().slot(2);
    }
}
