//! Buffers that panic.
#![allow(unsafe_code)]

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use inflight::{IoBuf, IoBufMut};

pub(crate) const LEN: usize = 5000;

/// A buffer that panics when it is asked for its address, or length, for the n-th time, once.
pub(crate) struct Fussy {
    pub(crate) bytes: Vec<u8>,
    pub(crate) questions: Arc<AtomicU32>,
    panics_at: u32,
}

impl Fussy {
    pub(crate) fn new(byte: u8, panics_at: u32) -> Self {
        Self {
            bytes: vec![byte; LEN],
            questions: Arc::default(),
            panics_at,
        }
    }

    pub(crate) fn calm(byte: u8) -> Self {
        Self::new(byte, u32::MAX)
    }

    fn is_asked(&self) {
        if self.questions.fetch_add(1, Ordering::Relaxed) + 1 == self.panics_at {
            resume_unwind(Box::new("fussy"));
        }
    }
}

// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Fussy {
    fn as_ptr(&self) -> *const u8 {
        self.is_asked();
        self.bytes.as_ptr()
    }
    fn len(&self) -> usize {
        self.is_asked();
        self.bytes.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Fussy {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.is_asked();
        self.bytes.as_mut_ptr()
    }
}

/// A buffer that panics when it is dropped.
#[derive(Debug)]
pub(crate) struct Bomb(Vec<u8>);

impl Bomb {
    pub(crate) fn new(byte: u8) -> Self {
        Self(vec![byte; LEN])
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

// SAFETY: the bytes are those of the vector, which keeps the promise.
unsafe impl IoBuf for Bomb {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Bomb {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}
