//! Buffers that count themselves, are poisoned when they are dropped, and stay mapped, so that
//! whatever is written to them later shows.
#![allow(unsafe_code)]

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inflight::{AlignedBuf, IoBuf, IoBufMut};

pub(crate) const PAGE: usize = 4096;

const POISON: u8 = 0xa5;

/// Where buffers go when they are dropped: poisoned, still mapped, looked at before they are used
/// again, and at the end.
pub(crate) struct Yard {
    /// Bytes of the memory of each buffer.
    len: usize,
    /// As many as this are left alone before the oldest is used again.
    window: usize,
    poison: Vec<u8>,
    live: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    dropped: VecDeque<Memory>,
    /// Memory that was taken back although its buffer lives: the planted defect.
    early: HashSet<NonNull<u8>>,
    late_writes: u64,
}

/// Memory that is never given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Memory(NonNull<u8>);

// SAFETY: leaked memory is the same from every thread; who may use it is said by who has it.
unsafe impl Send for State {}

impl Yard {
    pub(crate) fn new(len: usize, window: usize) -> Arc<Self> {
        Arc::new(Self {
            len,
            window,
            poison: vec![POISON; len],
            live: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` bytes, page-aligned.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Buf {
        assert!(len <= self.len, "the memory of each buffer is shorter");
        let mut state = self.state();
        let is_full = state.dropped.len() >= self.window;
        let oldest = if is_full {
            state.dropped.pop_front()
        } else {
            None
        };
        if let Some(memory) = oldest {
            self.look_at(&mut state, memory);
        }
        drop(state);
        let memory = oldest.unwrap_or_else(|| self.fresh());
        self.live.fetch_add(1, Ordering::Relaxed);
        Buf {
            yard: Arc::clone(self),
            start: memory.0,
            len,
            _claim: None,
        }
    }

    fn fresh(&self) -> Memory {
        let memory = AlignedBuf::new(self.len, PAGE).expect("there is memory");
        let memory: &'static mut AlignedBuf = Box::leak(Box::new(memory));
        Memory(NonNull::from(&mut **memory).cast())
    }

    fn look_at(&self, state: &mut State, memory: Memory) {
        // SAFETY: leaked memory of this length; it was dropped, so nobody else refers to it.
        let bytes = unsafe { slice::from_raw_parts(memory.0.as_ptr(), self.len) };
        if bytes != self.poison {
            state.late_writes += 1;
        }
    }

    /// Poisons memory that is no longer anybody's, and keeps it.
    fn bury(&self, state: &mut State, start: NonNull<u8>) {
        // SAFETY: leaked memory of this length, and its last user is gone.
        let bytes = unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.len) };
        bytes.fill(POISON);
        state.dropped.push_back(Memory(start));
    }

    /// The defect that the tests have to find: memory counts as free when its future is dropped,
    /// whatever the kernel still does with it.
    pub(crate) fn plant(&self, ghost: Ghost) {
        let mut state = self.state();
        // A buffer that the library has dropped by now is buried already.
        if state.dropped.contains(&Memory(ghost.0)) || !state.early.insert(ghost.0) {
            return;
        }
        self.bury(&mut state, ghost.0);
    }

    /// Buffers that have not been dropped.
    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// THE check: how many buffers were written to after they had been dropped, so far.
    pub(crate) fn late_writes(&self) -> u64 {
        let mut state = self.state();
        let dropped = std::mem::take(&mut state.dropped);
        for &memory in &dropped {
            self.look_at(&mut state, memory);
        }
        // They are looked at once, but stay out of use.
        state.late_writes
    }

    /// As [`Yard::late_writes`], and the same buffers are looked at again the next time.
    pub(crate) fn late_writes_so_far(&self) -> u64 {
        let mut state = self.state();
        let before = state.late_writes;
        let dropped = std::mem::take(&mut state.dropped);
        for &memory in &dropped {
            self.look_at(&mut state, memory);
        }
        state.dropped = dropped;
        std::mem::replace(&mut state.late_writes, before)
    }
}

/// Quarantined memory.
#[derive(Debug)]
pub(crate) struct Buf {
    yard: Arc<Yard>,
    start: NonNull<u8>,
    len: usize,
    /// Tells whoever has the other half that the buffer is gone.
    _claim: Option<Arc<()>>,
}

/// Names the memory of a buffer that somebody else has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ghost(NonNull<u8>);

// SAFETY: it is a name, and gives no access.
unsafe impl Send for Ghost {}

// SAFETY: the memory is leaked, and this is the only handle to it.
unsafe impl Send for Buf {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for Buf {}

impl Buf {
    /// The claim is dropped after the memory has been given up.
    pub(crate) fn with_claim(mut self, claim: &Arc<()>) -> Self {
        self._claim = Some(Arc::clone(claim));
        self
    }

    pub(crate) fn with_content(self, content: &[u8]) -> Self {
        // SAFETY: the memory is at least that long, and this is the only handle to it.
        let bytes = unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) };
        bytes.copy_from_slice(content);
        self
    }

    pub(crate) fn ghost(&self) -> Ghost {
        Ghost(self.start)
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the memory is that long and initialised, and this is the only handle to it.
        let bytes = unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) };
        &bytes[range]
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let mut state = self.yard.state();
        if !state.early.remove(&self.start) {
            self.yard.bury(&mut state, self.start);
        }
        drop(state);
        self.yard.live.fetch_sub(1, Ordering::Release);
    }
}

impl std::fmt::Debug for Yard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Yard")
    }
}

// SAFETY: the memory is leaked, so it stays where it is, and this is the only handle to it.
unsafe impl IoBuf for Buf {
    fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buf {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}
