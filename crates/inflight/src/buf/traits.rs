//! Who may be a buffer.
#![allow(unsafe_code)]

use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{AlignedBuf, Arena, PoolBuf, Slice};
use crate::completion::Answer;
use crate::op::Span;

/// Memory that the kernel may read while an operation is in flight.
///
/// These are buffers: `Vec<u8>`, `String`, `Box<[u8]>`, `Box<[u8; N]>`, shared ones as `Arc<[u8]>`
/// and `Arc<Vec<u8>>`, borrowed ones as `&[u8]`, `&Vec<u8>`, `&[u8; N]` and `&str`,
/// [`crate::AlignedBuf`], [`crate::PoolBuf`], [`crate::Spare`], those of the `bytes` crate with
/// that feature, and parts of all of these ([`IoBuf::slice`]). What is awaited needs one that is
/// `Send` and `'static`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::sync::Arc;
/// use inflight::{Operation, fs::File};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("greeting");
/// let file = File::create(&path)?;
/// file.write_all_at(b"hello, ", 0).wait().0?;
/// let name: Arc<[u8]> = Arc::from(*b"world");
/// file.write_all_at(Arc::clone(&name), 7).wait().0?;
/// # assert_eq!(std::fs::read(&path)?, b"hello, world");
/// # Ok(()) }
/// ```
///
/// # Safety
///
/// The implementor guarantees that
/// - [`IoBuf::as_ptr`] points to [`IoBuf::len`] initialised bytes,
/// - both stay the same, and the bytes stay valid, while the value is only moved about, and
///   until it is dropped or used through `&mut`,
/// - nobody else writes to those bytes meanwhile,
/// - none of these methods forks the process and returns in the child as well: they are asked
///   while the library fills a ring, which is not mapped in a child.
///
/// A `Vec<u8>` keeps this promise (its bytes are on the heap), a `[u8; N]` does not (its bytes
/// move with it).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a buffer",
    note = "give a `Vec<u8>`, `String`, `Box<[u8]>`, `Arc<[u8]>`, `&[u8]`, `&str`, `AlignedBuf`, \
            `PoolBuf` or `Spare`; bytes that move with their owner, as those of `[u8; N]`, are \
            borrowed or boxed"
)]
pub unsafe trait IoBuf {
    /// The first byte.
    fn as_ptr(&self) -> *const u8;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Part of this buffer, as a buffer; [`Slice::into_inner`] has the whole again.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use inflight::{IoBuf, Operation, fs::File};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// let log = File::create(&path)?;
    /// let blocks = log.aligned_buf(8192)?;
    /// let (result, second) = log.write_all_at(blocks.slice(4096..), 0).wait();
    /// assert_eq!(result?, 4096);
    /// let blocks = second.into_inner();
    /// # assert_eq!(blocks.len(), 8192);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// If the range does not lie within the buffer.
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        Slice::new(self, range)
    }

    /// The pool this buffer is from, if a ring can know it in advance.
    #[doc(hidden)]
    fn arena(&self) -> Option<ArenaOf<'_>> {
        None
    }
}

/// Memory that the kernel may fill while an operation is in flight: `Vec<u8>`, `Box<[u8]>`,
/// `Box<[u8; N]>`, `&mut [u8]`, `&mut Vec<u8>`, `&mut [u8; N]`, [`crate::AlignedBuf`],
/// [`crate::PoolBuf`], [`crate::Spare`], `BytesMut` with the feature `bytes`, and parts of these
/// ([`IoBuf::slice`]).
///
/// For most buffers that is the memory of [`IoBuf`]: a `Vec<u8>` is filled from its first byte up
/// to its length. **Capacity is not filled:** into `Vec::with_capacity(n)` nothing is read, so give
/// `vec![0; n]`. It may also be other memory, which need not be initialised: [`crate::Spare`] is
/// filled behind its length.
///
/// # Safety
///
/// As for [`IoBuf`], and
/// - [`IoBufMut::as_mut_ptr`] points to [`IoBufMut::room`] bytes, which may be written,
/// - both stay the same, and the bytes stay valid, while the value is only moved about, and until
///   it is dropped or used through `&mut` otherwise,
/// - nobody else reads or writes those bytes meanwhile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a buffer that is filled",
    note = "give a `Vec<u8>`, `Box<[u8]>`, `&mut [u8]`, `AlignedBuf`, `PoolBuf` or `Spare`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// The first byte to be written.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Number of bytes that may be written.
    #[inline]
    fn room(&self) -> usize {
        self.len()
    }

    /// Is told how many bytes have been written, from the first on; with an error, those that
    /// came before it.
    ///
    /// # Safety
    ///
    /// So many bytes at [`IoBufMut::as_mut_ptr`] are initialised, and at most [`IoBufMut::room`].
    #[inline]
    unsafe fn filled(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// A buffer whose own bytes are those that a read fills, so that part of it can be filled as well
/// ([`IoBuf::slice`]). All are but [`crate::Spare`], which is filled behind its length.
#[diagnostic::on_unimplemented(
    message = "part of `{Self}` cannot be filled",
    note = "a buffer whose own bytes are filled implements `InPlace`; a `Spare` is filled behind \
            its length, which `Spare::sized` limits"
)]
pub trait InPlace: IoBufMut {}

impl InPlace for Vec<u8> {}
impl InPlace for &mut Vec<u8> {}
impl InPlace for Box<[u8]> {}
impl InPlace for &mut [u8] {}
impl<const N: usize> InPlace for Box<[u8; N]> {}
impl<const N: usize> InPlace for &mut [u8; N] {}
impl InPlace for AlignedBuf {}
impl InPlace for &mut AlignedBuf {}
impl InPlace for PoolBuf {}

/// The arena of a [`PoolBuf`]; outside this crate it cannot be made or looked into.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct ArenaOf<'a>(pub(super) &'a Arena);

#[inline]
fn arena_of(buf: &(impl IoBuf + ?Sized)) -> Option<NonNull<Arena>> {
    buf.arena().map(|arena| NonNull::from(arena.0))
}

/// The span of a buffer that is only read.
#[inline]
pub(crate) fn span_of<B: IoBuf + ?Sized>(buf: &B) -> Span {
    Span {
        start: buf.as_ptr().cast_mut(),
        len: buf.len(),
        arena: arena_of(buf),
    }
}

/// The span of a buffer that is filled.
#[inline]
pub(crate) fn span_of_mut<B: IoBufMut + ?Sized>(buf: &mut B) -> Span {
    Span {
        start: buf.as_mut_ptr(),
        len: buf.room(),
        arena: arena_of(buf),
    }
}

/// Tells the buffer of a read what has become of it; returns how many bytes there were room for.
///
/// # Safety
///
/// The answer is that of the request which was made of this buffer alone.
#[inline(always)]
pub(crate) unsafe fn note_filled<B: IoBufMut>(buf: &mut B, answer: Answer) -> usize {
    let room = buf.room();
    // SAFETY: an answer counts the bytes that were written, from the first on, without a gap;
    // there is no more room than was asked for.
    unsafe { buf.filled(answer.bytes().min(room)) };
    room
}

/// As [`note_filled`], for buffers that are filled one after the other.
///
/// # Safety
///
/// As for [`note_filled`], of all of them.
pub(crate) unsafe fn note_all_filled<B: IoBufMut>(bufs: &mut [B], answer: Answer) -> usize {
    let mut left = answer.bytes();
    let mut rooms = 0_usize;
    for buf in bufs {
        let room = buf.room();
        let bytes = left.min(room);
        // SAFETY: as above; what is left went to the next buffers, each of them filled up before.
        unsafe { buf.filled(bytes) };
        left -= bytes;
        rooms = rooms.saturating_add(room);
    }
    rooms
}

// SAFETY: the bytes of a vector are on the heap and move only when it grows, which takes `&mut`.
unsafe impl IoBuf for Vec<u8> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        Self::as_ptr(self)
    }
    #[inline]
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as above; the vector owns its bytes alone.
unsafe impl IoBufMut for Vec<u8> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Self::as_mut_ptr(self)
    }
}

// SAFETY: the bytes are on the heap and never move.
unsafe impl IoBuf for Box<[u8]> {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: as above; the box owns its bytes alone.
unsafe impl IoBufMut for Box<[u8]> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}

// SAFETY: the bytes are borrowed, shared and unchanged, for as long as this reference lives; the
// operations that take borrowed buffers block until the kernel is done with them.
unsafe impl IoBuf for &[u8] {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: as above, and borrowed exclusively.
unsafe impl IoBuf for &mut [u8] {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: the bytes are borrowed exclusively for as long as this reference lives.
unsafe impl IoBufMut for &mut [u8] {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}

/// More owners of bytes and references to them that are read only.
macro_rules! read_only {
    ($([$($generics:tt)*] $buf:ty;)*) => {$(
        // SAFETY: the bytes are on the heap, or borrowed, and do not move with the value. They
        // have no owner but this one, or only owners and references that share them: with one more
        // of those, nobody gets `&mut` to write to them.
        unsafe impl<$($generics)*> IoBuf for $buf {
            #[inline]
            fn as_ptr(&self) -> *const u8 {
                AsRef::<[u8]>::as_ref(&**self).as_ptr()
            }
            #[inline]
            fn len(&self) -> usize {
                AsRef::<[u8]>::as_ref(&**self).len()
            }
        }
    )*};
}

read_only! {
    [] String;
    [] &str;
    [] &Vec<u8>;
    [] &mut Vec<u8>;
    [] &AlignedBuf;
    [] &mut AlignedBuf;
    [const N: usize] &[u8; N];
    [const N: usize] &mut [u8; N];
    [const N: usize] Box<[u8; N]>;
    [] Arc<[u8]>;
    [] Arc<Vec<u8>>;
}

// SAFETY: the bytes are on the heap, and the box owns them alone.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(&mut **self)
    }
}

// SAFETY: the vector, and with it its bytes, is borrowed exclusively for as long as this reference
// lives.
unsafe impl IoBufMut for &mut Vec<u8> {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Vec::as_mut_ptr(self)
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for &mut AlignedBuf {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}

// SAFETY: the bytes are borrowed exclusively for as long as this reference lives.
unsafe impl<const N: usize> IoBufMut for &mut [u8; N] {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(&mut **self)
    }
}

// SAFETY: the bytes belong to the pool's arena, which the buffer keeps alive and which never
// moves; no other buffer of the pool covers them.
unsafe impl IoBuf for PoolBuf {
    #[inline]
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
    #[inline]
    fn arena(&self) -> Option<ArenaOf<'_>> {
        Some(ArenaOf(self.arena_ref()))
    }
}

// SAFETY: as above, and the buffer is the only handle to these bytes.
unsafe impl IoBufMut for PoolBuf {
    #[inline]
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}
