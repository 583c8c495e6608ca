//! Aligned memory for direct I/O.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::slice;

use super::memory::Memory;
use super::{IoBuf, IoBufMut};

/// Zeroed bytes at an aligned address, as direct I/O needs them.
///
/// [`crate::fs::File::aligned_buf`] asks the file which alignment that is.
///
/// Transfers are as long as the buffer, which can be made shorter and longer again with
/// [`AlignedBuf::set_len`]: a part of it is written without a copy.
///
/// From 16 KiB on the memory is of huge pages, where the kernel has them (`madvise` or `always` in
/// `/sys/kernel/mm/transparent_hugepage/enabled`): a direct transfer is then described to the
/// device in one piece or a few instead of one for each page. Below 2 MiB several buffers share
/// such a page, which is in memory as long as one of them is.
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
    memory: Memory,
    /// At most the size of the memory.
    len: usize,
}

impl AlignedBuf {
    /// `len` zeroed bytes at a multiple of `align_bytes`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the alignment is not a power of two or the sum overflows;
    /// `OutOfMemory` if the allocator refuses.
    pub fn new(len: usize, align_bytes: usize) -> io::Result<Self> {
        let memory = Memory::zeroed(laid_out(len, align_bytes)?)?;
        Ok(Self { memory, len })
    }

    /// As [`AlignedBuf::new`], but no part of a page that others have parts of.
    pub(super) fn alone(len: usize, align_bytes: usize) -> io::Result<Self> {
        let memory = Memory::zeroed_alone(laid_out(len, align_bytes)?)?;
        Ok(Self { memory, len })
    }

    /// Bytes that the buffer can have: those it was made with.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.layout().size()
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
        self.memory.layout().align()
    }
}

fn laid_out(len: usize, align_bytes: usize) -> io::Result<Layout> {
    Layout::from_size_align(len, align_bytes).map_err(|_| {
        let what = format!("{len} bytes aligned to {align_bytes} cannot be laid out");
        io::Error::new(io::ErrorKind::InvalidInput, what)
    })
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to at least that many initialised bytes, owned by `self`.
        unsafe { slice::from_raw_parts(self.memory.start().as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.len) }
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
            .field("align_bytes", &self.memory.layout().align())
            .finish()
    }
}

// SAFETY: the memory is on the heap, never moves, and is owned alone.
unsafe impl IoBuf for AlignedBuf {
    fn as_ptr(&self) -> *const u8 {
        self.memory.start().as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for AlignedBuf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.start().as_ptr()
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
