//! Aligned memory for direct I/O.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use super::{IoBuf, IoBufMut};

/// Zeroed bytes at an aligned address, as direct I/O needs them.
///
/// [`crate::fs::File::aligned_buf`] asks the file which alignment that is.
pub struct AlignedBuf {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned alone, as that of a `Box<[u8]>`.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zeroed bytes at a multiple of `align_bytes`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the alignment is not a power of two or the sum overflows;
    /// `OutOfMemory` if the allocator refuses.
    pub fn new(len: usize, align_bytes: usize) -> io::Result<Self> {
        // An allocation of no bytes is not allowed; one byte nobody sees is.
        let layout = Layout::from_size_align(len.max(1), align_bytes).map_err(|_| {
            let what = format!("{len} bytes aligned to {align_bytes} cannot be laid out");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let layout = Layout::from_size_align(len, align_bytes).expect("smaller than the one above");
        Ok(Self { start, layout })
    }

    /// The alignment in bytes.
    pub fn align_bytes(&self) -> usize {
        self.layout.align()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let allocated = Layout::from_size_align(self.layout.size().max(1), self.layout.align())
            .expect("the layout of the allocation");
        // SAFETY: allocated in `new` with this very layout, and not freed before.
        unsafe { alloc::dealloc(self.start.as_ptr(), allocated) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to that many initialised bytes, owned by `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.layout.size())
            .field("align_bytes", &self.layout.align())
            .finish()
    }
}

// SAFETY: the memory is on the heap, never moves, and is owned alone.
unsafe impl IoBuf for AlignedBuf {
    fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for AlignedBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_may_be_empty() {
        for align in [1, 512, 4096, 1 << 20] {
            let buf = AlignedBuf::new(4096, align).unwrap();
            assert_eq!(buf.as_ptr().addr() % align, 0);
            assert!(buf.iter().all(|byte| *byte == 0));
        }
        assert!(AlignedBuf::new(0, 4096).unwrap().is_empty());
        let error = AlignedBuf::new(1, 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
