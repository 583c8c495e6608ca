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
///
/// Transfers are as long as the buffer, which can be made shorter and longer again with
/// [`AlignedBuf::set_len`]: a part of it is written without a copy.
///
/// ```
/// use inflight::{AlignedBuf, Operation};
///
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// let file = inflight::fs::File::create(&path)?;
/// let mut buf = AlignedBuf::new(65_536, 4096)?;
/// buf[..5].copy_from_slice(b"hello");
/// buf.set_len(4096);
/// let (result, mut buf) = file.write_all_at(buf, 0).wait();
/// assert_eq!(result?, 4096);
/// buf.set_len(buf.capacity());
/// # assert_eq!((buf.len(), &buf[..5]), (65_536, &b"hello"[..]));
/// # Ok(()) }
/// ```
pub struct AlignedBuf {
    start: NonNull<u8>,
    /// Of the whole memory.
    layout: Layout,
    /// At most the size of the layout.
    len: usize,
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
        Ok(Self { start, layout, len })
    }

    /// Bytes that the buffer can have: those it was made with.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Makes the buffer so many bytes long. What it held beyond stays there, and is seen again
    /// when it is made longer.
    ///
    /// # Panics
    ///
    /// If that is more than [`AlignedBuf::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(
            len <= capacity,
            "{len} bytes are asked of a buffer that has room for {capacity}"
        );
        self.len = len;
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
        // SAFETY: `start` points to at least that many initialised bytes, owned by `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
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
        self.len
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
        assert_eq!(AlignedBuf::new(0, 4096).unwrap().capacity(), 0);
        let error = AlignedBuf::new(1, 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_buffer_can_be_cut_and_made_whole_again() {
        let mut buf = AlignedBuf::new(5000, 512).unwrap();
        buf.fill(7);
        buf.set_len(10);
        assert_eq!(
            (buf.len(), IoBuf::len(&buf), buf.capacity()),
            (10, 10, 5000)
        );
        buf.as_mut().fill(8);
        buf.set_len(11);
        assert_eq!(buf.as_ref()[9..], [8, 7]);
        buf.set_len(5000);
        assert_eq!(buf[4999], 7);
    }

    #[test]
    #[should_panic(expected = "5001 bytes are asked of a buffer that has room for 5000")]
    fn a_buffer_can_not_be_longer_than_its_memory() {
        AlignedBuf::new(5000, 512).unwrap().set_len(5001);
    }
}
