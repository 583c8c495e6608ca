//! Memory for one block, as each of the libraries wants to be handed it.
//!
//! Always initialised and never moved, so that there is nothing to do when a library tells how
//! much of it was filled.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use inflight_bench::ReadJob;

const PAGE_BYTES: usize = 4096;

/// What direct I/O wants memory to begin at.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// A buffer of one block, aligned to a page.
pub(crate) struct Block {
    pages: Box<[Page]>,
    bytes: usize,
}

impl Block {
    /// As large as the job reads at once.
    pub(crate) fn new(job: &ReadJob) -> Self {
        let pages = vec![Page([1; PAGE_BYTES]); job.block_bytes.div_ceil(PAGE_BYTES)];
        Self {
            pages: pages.into_boxed_slice(),
            bytes: job.block_bytes,
        }
    }

    fn start(&self) -> *const u8 {
        self.pages.as_ptr().cast()
    }

    fn start_mut(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }
}

impl compio::buf::IoBuf for Block {
    fn as_init(&self) -> &[u8] {
        // SAFETY: there are at least so many bytes, all initialised, borrowed like the slice.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

impl compio::buf::SetLen for Block {
    unsafe fn set_len(&mut self, _len: usize) {}
}

impl compio::buf::IoBufMut for Block {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as in `as_init`; the trait has its users write nothing uninitialised.
        unsafe { std::slice::from_raw_parts_mut(self.start_mut().cast(), self.bytes) }
    }
}

// SAFETY: the memory is on the heap, stays where it is when the value moves, is as large as told,
// and initialised.
unsafe impl monoio::buf::IoBufMut for Block {
    fn write_ptr(&mut self) -> *mut u8 {
        self.start_mut()
    }

    fn bytes_total(&mut self) -> usize {
        self.bytes
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}

// SAFETY: the memory is on the heap, stays where it is when the value moves, is as large as told,
// and initialised.
unsafe impl tokio_uring::buf::IoBuf for Block {
    fn stable_ptr(&self) -> *const u8 {
        self.start()
    }

    fn bytes_init(&self) -> usize {
        self.bytes
    }

    fn bytes_total(&self) -> usize {
        self.bytes
    }
}

// SAFETY: as for `IoBuf`.
unsafe impl tokio_uring::buf::IoBufMut for Block {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start_mut()
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}

// SAFETY: the memory is on the heap and stays where it is when the value moves.
unsafe impl uring_file::uring::IoBufMut for Block {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start_mut()
    }

    fn capacity(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compio::buf::{IoBuf, IoBufMut};

    #[test]
    fn a_block_is_aligned_and_as_large_as_asked() {
        for block_bytes in [512, 4096, 6144] {
            let job = ReadJob {
                path: "file".into(),
                direct: true,
                block_bytes,
                depth: 1,
            };
            let mut block = Block::new(&job);
            assert_eq!(block.as_init().len(), block_bytes);
            assert_eq!(block.as_uninit().len(), block_bytes);
            assert_eq!(block.as_init().as_ptr().addr() % PAGE_BYTES, 0);
        }
    }
}
