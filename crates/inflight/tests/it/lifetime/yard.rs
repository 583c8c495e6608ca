//! Buffers that are poisoned when they are dropped and stay mapped, so that late writes show.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use inflight::{AlignedBuf, IoBuf, IoBufMut};

pub(super) const PAGE: usize = 4096;

const POISON: u8 = 0xa5;

/// Where buffers go when they are dropped: poisoned, still mapped, looked at before they are used
/// again, and at the end.
pub(super) struct Yard {
    len: usize,
    /// As many as this are left alone before the oldest is used again.
    window: usize,
    dropped: Mutex<VecDeque<NonNull<u8>>>,
    poison: Vec<u8>,
    late_writes: AtomicU64,
    /// How often a byte that was watched has changed.
    seen: AtomicU64,
}

impl Yard {
    pub(super) fn new(len: usize, window: usize) -> Arc<Self> {
        Arc::new(Self {
            len,
            window,
            dropped: Mutex::default(),
            poison: vec![POISON; len],
            late_writes: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        })
    }

    pub(super) fn take(self: &Arc<Self>) -> Buf {
        let mut dropped = self.dropped();
        let is_full = dropped.len() >= self.window;
        let oldest = if is_full { dropped.pop_front() } else { None };
        if let Some(start) = oldest {
            self.look_at(start);
        }
        drop(dropped);
        let start = oldest.unwrap_or_else(|| self.fresh());
        Buf {
            yard: Arc::clone(self),
            start,
            panics: false,
            watches: None,
        }
    }

    fn dropped(&self) -> MutexGuard<'_, VecDeque<NonNull<u8>>> {
        self.dropped.lock().expect("nobody panics here")
    }

    /// How often a byte that was watched has changed.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Memory that is never given back.
    fn fresh(&self) -> NonNull<u8> {
        let memory = AlignedBuf::new(self.len, PAGE).expect("there is memory");
        let memory: &'static mut AlignedBuf = Box::leak(Box::new(memory));
        NonNull::from(&mut **memory).cast()
    }

    fn look_at(&self, start: NonNull<u8>) {
        // SAFETY: leaked memory of this length; it was dropped, so nobody else refers to it.
        let bytes = unsafe { slice::from_raw_parts(start.as_ptr(), self.len) };
        if bytes != self.poison {
            self.late_writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// THE check: how many of the buffers were written to after they had been dropped. They are
    /// used again all the same.
    pub(super) fn late_writes(&self) -> u64 {
        for start in &*self.dropped() {
            self.look_at(*start);
        }
        self.late_writes.load(Ordering::Relaxed)
    }
}

// SAFETY: the memory is leaked; each piece belongs to one buffer, or to the list below the lock.
unsafe impl Send for Yard {}

// SAFETY: as above.
unsafe impl Sync for Yard {}

pub(super) struct Buf {
    yard: Arc<Yard>,
    start: NonNull<u8>,
    /// Panics when it is asked for its length, as an implementation may.
    pub(super) panics: bool,
    /// Before that, waits a while for this byte of another buffer to become 0.
    pub(super) watches: Option<NonNull<u8>>,
}

/// How often a buffer looks at the byte that it watches: some milliseconds.
const LOOKS: u32 = 10_000;

impl Buf {
    /// Its first byte, which is not 0 after this.
    pub(super) fn first_byte(&mut self) -> NonNull<u8> {
        // SAFETY: leaked memory, and this is the only handle to it.
        unsafe { self.start.write(1) };
        self.start
    }

    fn wait(&self) {
        let Some(byte) = self.watches else { return };
        for _ in 0..LOOKS {
            // SAFETY: leaked memory, so it is there; the kernel writes to it meanwhile.
            if unsafe { byte.read_volatile() } == 0 {
                self.yard.seen.fetch_add(1, Ordering::Relaxed);
                return;
            }
            thread::yield_now();
        }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: leaked memory of this length, and this was the only handle to it.
        let bytes = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.yard.len) };
        bytes.fill(POISON);
        self.yard.dropped().push_back(self.start);
    }
}

// SAFETY: the memory is leaked, and this is the only handle to it; what is watched is only read.
unsafe impl Send for Buf {}

// SAFETY: the memory is leaked, so it stays where it is, and this is the only handle to it.
unsafe impl IoBuf for Buf {
    fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
    fn len(&self) -> usize {
        if self.panics {
            self.wait();
            resume_unwind(Box::new(Planned));
        }
        self.yard.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

/// What the panics here carry; they are not reported, because no hook is told.
pub(super) struct Planned;
