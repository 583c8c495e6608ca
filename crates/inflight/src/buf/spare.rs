//! Capacity that is filled behind what a buffer holds, without being initialised first.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Deref;

use super::{IoBuf, IoBufMut};

/// A growing buffer, `Vec<u8>` or `BytesMut` (feature `bytes`), whose spare capacity is filled by
/// reads, each behind what is there.
///
/// What a read has filled counts to the length afterwards, also if it was short, or failed after
/// some bytes ([`crate::Partial`]). Nothing is zeroed in advance. As a buffer that is written to a
/// file, it is what it holds.
///
/// **A read without room yields 0 bytes, as at the end of the file**: what was filled once has none
/// left unless [`Spare::reserve`] gives it some. [`IoBufMut::room`] tells how much there is.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{Operation, Spare, fs::File};
///
/// # let path = std::env::current_exe()?;
/// let file = File::open(path)?;
/// let (result, mut text) = file.read_at(Spare::sized(Vec::new(), 4096), 0).wait();
/// assert_eq!(result?, text.len());
/// text.reserve(4096);
/// let (result, text) = file.read_at(text, 4096).wait();
/// assert_eq!(4096 + result?, text.len());
/// let text: Vec<u8> = text.into_inner();
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Spare<B> {
    buf: B,
    /// Most bytes that the next reads fill, all in all.
    at_most: usize,
}

/// A buffer with spare capacity; only those of this module, so that a feature which adds one does
/// not change how the others are named.
///
/// # Safety
///
/// The bytes of [`Grow::held`] are on the heap, and [`Grow::spare`] lies behind them, in the same
/// allocation or part of it, which the buffer owns alone. Neither moves unless the buffer grows.
pub unsafe trait Grow {
    /// The bytes that count to the length.
    fn held(&self) -> &[u8];

    /// Those behind them, up to the capacity.
    fn spare(&mut self) -> &mut [MaybeUninit<u8>];

    /// How many those are.
    fn spare_len(&self) -> usize;

    /// Makes room for so many bytes at least.
    fn make_room(&mut self, bytes: usize);

    /// Adds bytes to the length.
    ///
    /// # Safety
    ///
    /// There is room for so many, and they are initialised.
    unsafe fn lengthen(&mut self, bytes: usize);
}

impl<B: Grow> Spare<B> {
    /// Fills all the capacity that is spare, of which the allocator may have given more than was
    /// asked for. `Vec::new()` has none.
    pub fn new(buf: B) -> Self {
        Self {
            buf,
            at_most: usize::MAX,
        }
    }

    /// Fills `bytes` bytes and no more, by all its reads together, for which room is made.
    ///
    /// # Panics
    ///
    /// If the capacity would exceed `isize::MAX` bytes.
    pub fn sized(buf: B, bytes: usize) -> Self {
        let mut spare = Self::new(buf);
        spare.reserve(bytes);
        spare
    }

    /// Has the reads that follow fill `bytes` bytes and no more, behind what is there.
    ///
    /// # Panics
    ///
    /// If the capacity would exceed `isize::MAX` bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.buf.make_room(bytes);
        self.at_most = bytes;
    }
}

impl<B> Spare<B> {
    /// The buffer, with what the reads have filled.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

impl<B> Deref for Spare<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.buf
    }
}

// SAFETY: the implementor of `Grow` promises that what it holds stays where it is.
unsafe impl<B: Grow> IoBuf for Spare<B> {
    fn as_ptr(&self) -> *const u8 {
        self.buf.held().as_ptr()
    }
    fn len(&self) -> usize {
        self.buf.held().len()
    }
}

// SAFETY: the same promise, for the spare capacity; there is no more room than that.
unsafe impl<B: Grow> IoBufMut for Spare<B> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.buf.spare().as_mut_ptr().cast()
    }
    fn room(&self) -> usize {
        self.buf.spare_len().min(self.at_most)
    }
    unsafe fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.room(), "there was room for fewer bytes");
        // SAFETY: the caller vouches for the bytes behind the length.
        unsafe { self.buf.lengthen(bytes) };
        if self.at_most != usize::MAX {
            self.at_most -= bytes;
        }
    }
}

/// A growing buffer with the methods of `Vec<u8>`.
macro_rules! grows {
    ($buf:ty) => {
        // SAFETY: the bytes are on the heap and owned alone; parts that were split off are beyond
        // the capacity. They move only when the buffer grows, which takes `&mut`.
        unsafe impl Grow for $buf {
            fn held(&self) -> &[u8] {
                self
            }
            fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
                self.spare_capacity_mut()
            }
            fn spare_len(&self) -> usize {
                self.capacity() - self.len()
            }
            fn make_room(&mut self, bytes: usize) {
                self.reserve(bytes);
            }
            unsafe fn lengthen(&mut self, bytes: usize) {
                let len = self.len() + bytes;
                // SAFETY: the caller vouches for these bytes.
                unsafe { self.set_len(len) };
            }
        }
    };
}

grows!(Vec<u8>);
#[cfg(feature = "bytes")]
grows!(bytes::BytesMut);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_counts_to_the_length_and_lies_behind_it() {
        let mut spare = Spare::sized(b"abc".to_vec(), 8);
        assert_eq!((spare.len(), spare.room()), (3, 8));
        for (value, left) in [(b'd', 7), (b'e', 6)] {
            let start = spare.as_mut_ptr();
            // SAFETY: there is room.
            unsafe { start.write(value) };
            // SAFETY: one byte was written.
            unsafe { spare.filled(1) };
            assert_eq!(spare.room(), left);
        }
        spare.reserve(2);
        assert_eq!((spare.len(), spare.room()), (5, 2));
        assert_eq!(spare.into_inner(), b"abcde");
    }

    #[test]
    fn all_spare_capacity_is_room_unless_less_is_asked_for() {
        let spare = Spare::new(Vec::with_capacity(100));
        assert!(spare.room() >= 100 && IoBuf::is_empty(&spare));
        assert_eq!(Spare::sized(Vec::with_capacity(100), 10).room(), 10);
        assert_eq!(Spare::new(Vec::new()).room(), 0);
    }
}
