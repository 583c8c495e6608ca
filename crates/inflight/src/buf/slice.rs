//! Part of a buffer that is owned, as a buffer of its own.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Bound, Deref, RangeBounds};
use std::slice;

use super::traits::{ArenaOf, InPlace, IoBuf, IoBufMut};

/// Part of a buffer. Made by [`IoBuf::slice`]. It can be filled if the buffer is [`InPlace`].
pub struct Slice<B> {
    buf: B,
    begin: usize,
    /// Not before `begin`, and not behind the end of the buffer: that stays as it is until the
    /// buffer is used through `&mut`, and nobody gets that from here.
    end: usize,
}

impl<B: IoBuf> Slice<B> {
    pub(super) fn new(buf: B, range: impl RangeBounds<usize>) -> Self {
        let len = buf.len();
        let begin = match range.start_bound() {
            Bound::Included(&begin) => begin,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        assert!(
            begin <= end && end <= len,
            "{begin}..{end} is no part of a buffer of {len} bytes"
        );
        Self { buf, begin, end }
    }

    /// The whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

impl<B: IoBuf> Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.begin == self.end {
            // Of no bytes nobody has said that they have an address.
            return &[];
        }
        // SAFETY: whoever implements `IoBuf` has initialised the bytes, and lets nobody write to
        // them as long as the buffer is not used through `&mut`.
        unsafe { slice::from_raw_parts(IoBuf::as_ptr(self), IoBuf::len(self)) }
    }
}

impl<B: IoBuf> fmt::Debug for Slice<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("begin", &self.begin)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

// SAFETY: part of the bytes for which the buffer vouches, and the buffer is not used otherwise.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        // SAFETY: it is not behind the end of the buffer.
        unsafe { self.buf.as_ptr().add(self.begin) }
    }
    #[inline]
    fn len(&self) -> usize {
        self.end - self.begin
    }
    #[inline]
    fn arena(&self) -> Option<ArenaOf<'_>> {
        self.buf.arena()
    }
}

impl<B: InPlace> InPlace for Slice<B> {}

// SAFETY: as above. That these are the bytes which may be filled is promised by a trait that is
// safe to implement, so both ends are kept within those.
unsafe impl<B: InPlace> IoBufMut for Slice<B> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        let begin = self.begin.min(self.buf.room());
        // SAFETY: it is not behind the end of what may be filled.
        unsafe { self.buf.as_mut_ptr().add(begin) }
    }
    #[inline]
    fn room(&self) -> usize {
        let room = self.buf.room();
        self.end.min(room) - self.begin.min(room)
    }
}
