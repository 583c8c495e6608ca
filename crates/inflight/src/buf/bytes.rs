//! The buffers of the `bytes` crate, with the feature of that name: `Bytes` is written to files,
//! `BytesMut` is read into, and becomes `Bytes` without a copy.
#![allow(unsafe_code)]

use bytes::{Bytes, BytesMut};

use super::{InPlace, IoBuf, IoBufMut};

// SAFETY: the bytes belong to an allocation that every clone keeps alive (or are static) and that
// nobody writes to; the value refers to them by address, so they do not move with it.
unsafe impl IoBuf for Bytes {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: the bytes are on the heap and move only when it grows, which takes `&mut`.
unsafe impl IoBuf for BytesMut {
    fn as_ptr(&self) -> *const u8 {
        <[u8]>::as_ptr(self)
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as above; parts that were split off do not cover these bytes.
unsafe impl IoBufMut for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }
}

impl InPlace for BytesMut {}
