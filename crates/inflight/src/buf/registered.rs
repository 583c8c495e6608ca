//! A pool of buffers in one piece of memory that a ring can know in advance.
//!
//! Registering saves the kernel from pinning the pages of each request: io_uring_register(2),
//! `IORING_REGISTER_BUFFERS`. Each ring registers the arena when it first meets one of its
//! buffers; when the kernel refuses (RLIMIT_MEMLOCK), the same buffers work unregistered, and
//! [`crate::Engine::stats`] says so.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{AlignedBuf, IoBuf};

/// How many arenas have been dropped in this process. A ring that has seen fewer looks through
/// its registrations for dead ones.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// See [`DROPPED`].
#[inline]
pub(crate) fn arenas_dropped() -> u64 {
    DROPPED.load(Ordering::Acquire)
}

/// The memory of a pool. Its id is never used again, unlike its address: a ring that still has a
/// dead arena registered must not take a new one at the same address for it.
pub(crate) struct Arena {
    id: u64,
    alive: Arc<Alive>,
    memory: AlignedBuf,
    buf_len: usize,
    /// Numbers of the buffers that nobody has.
    free: Mutex<Vec<u32>>,
    /// A ring that does nothing but hold the arena's registration, once one has been made.
    source: OnceLock<Option<OwnedFd>>,
}

impl Arena {
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whoever holds this can tell whether the arena still lives.
    pub(crate) fn alive(&self) -> &Arc<Alive> {
        &self.alive
    }

    /// A ring that does nothing but hold the arena's registration, for others to take it over;
    /// `make` is asked for one when none has been made. `None` if that failed.
    pub(crate) fn source(&self, make: impl FnOnce() -> Option<OwnedFd>) -> Option<&OwnedFd> {
        self.source.get_or_init(make).as_ref()
    }

    /// The whole memory, as the kernel takes it.
    pub(crate) fn iovec(&self) -> libc::iovec {
        let base = self.memory.as_ptr().cast_mut().cast();
        libc::iovec {
            iov_base: base,
            iov_len: self.memory.len(),
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.free)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is whole after every statement, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lives as long as its arena, whose end it counts when nobody can take it for living any more.
pub(crate) struct Alive(());

impl Drop for Alive {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Release);
    }
}

/// A fixed number of equal buffers, aligned for direct I/O, registered with the rings that use
/// them.
///
/// The memory of a dropped pool is freed at once, but the kernel keeps its pages, and their charge
/// against RLIMIT_MEMLOCK, until each thread that used the pool runs its next operation or ends.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let pool = inflight::BufPool::new(32, 4096)?;
/// let mut buf = pool.take().expect("32 are free");
/// buf.fill(7);
/// drop(buf); // back to the pool
/// assert_eq!(pool.available(), 32);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BufPool {
    arena: Arc<Arena>,
}

impl BufPool {
    /// Alignment of every buffer in bytes: a page, the most that direct I/O asks for in practice.
    pub const ALIGN_BYTES: usize = 4096;

    /// `count` buffers of `buf_len` bytes each.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the size is zero or overflows, `OutOfMemory` if memory is refused.
    /// A refusal to *register* is not an error; it is counted in [`crate::Engine::stats`].
    pub fn new(count: u32, buf_len: usize) -> io::Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let stride = buf_len.checked_next_multiple_of(Self::ALIGN_BYTES);
        let total = stride.and_then(|stride| stride.checked_mul(usize::try_from(count).ok()?));
        let total = total.filter(|total| *total > 0).ok_or_else(|| {
            let what = format!("a pool of {count} buffers of {buf_len} bytes has no valid size");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let arena = Arena {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(Alive(())),
            memory: AlignedBuf::new(total, Self::ALIGN_BYTES)?,
            buf_len,
            free: Mutex::new((0..count).rev().collect()),
            source: OnceLock::new(),
        };
        Ok(Self {
            arena: Arc::new(arena),
        })
    }

    /// A buffer that nobody has, whole again, or `None` when all are taken. Its bytes are what the
    /// last user left there.
    pub fn take(&self) -> Option<PoolBuf> {
        let number = self.arena.free().pop()?;
        Some(PoolBuf {
            arena: Arc::clone(&self.arena),
            number,
            len: self.arena.buf_len,
        })
    }

    /// Number of buffers that can be taken now.
    pub fn available(&self) -> usize {
        self.arena.free().len()
    }

    /// Bytes in each buffer.
    pub fn buf_len(&self) -> usize {
        self.arena.buf_len
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool")
            .field("buf_len", &self.buf_len())
            .field("available", &self.available())
            .finish()
    }
}

/// A buffer of a [`BufPool`]; dropping it gives it back.
///
/// Transfers are as long as the buffer, which can be made shorter and longer again with
/// [`PoolBuf::set_len`]: one pool serves ranges of all lengths.
///
/// ```
/// use inflight::Operation;
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("inflight-doc-set-len-{}", std::process::id()));
/// # std::fs::write(&path, [7; 8192])?;
/// let file = inflight::fs::OpenOptions::new().read(true).open(&path)?;
/// let pool = inflight::BufPool::new(32, 262_144)?;
/// let mut range = pool.take().expect("32 are free");
/// range.set_len(4096);
/// let (result, range) = file.read_at(range, 0).wait();
/// assert_eq!((result?, range.len()), (4096, 4096));
/// # std::fs::remove_file(&path)?;
/// # Ok(()) }
/// ```
pub struct PoolBuf {
    arena: Arc<Arena>,
    number: u32,
    /// At most the length of the pool's buffers.
    len: usize,
}

impl PoolBuf {
    /// Bytes that the buffer can have: [`BufPool::buf_len`] of its pool.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.arena.buf_len
    }

    /// Makes the buffer so many bytes long. What it held beyond stays there, and is seen again
    /// when it is made longer.
    ///
    /// # Panics
    ///
    /// If that is more than [`PoolBuf::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(
            len <= capacity,
            "{len} bytes are asked of a buffer that has room for {capacity}"
        );
        self.len = len;
    }

    #[inline]
    pub(super) fn arena_ref(&self) -> &Arena {
        &self.arena
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        let stride = self.arena.buf_len.next_multiple_of(BufPool::ALIGN_BYTES);
        let from = stride * usize::try_from(self.number).expect("usize has 32 bits or more");
        self.arena.memory.as_ptr().wrapping_add(from).cast_mut()
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        self.arena.free().push(self.number);
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the arena, were initialised with it, and no other buffer
        // covers them, because a number is in one place only, and `set_len` lets no buffer reach
        // into the next one.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for PoolBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively. The arena itself never
        // makes a reference to its bytes.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl AsRef<[u8]> for PoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PoolBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("number", &self.number)
            .field("len", &self.len)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_can_be_cut_and_is_whole_when_it_is_taken_again() {
        let pool = BufPool::new(1, 5000).unwrap();
        let mut buf = pool.take().unwrap();
        buf.fill(7);
        buf.set_len(10);
        assert_eq!(
            (buf.len(), IoBuf::len(&buf), buf.capacity()),
            (10, 10, 5000)
        );
        buf.fill(8);
        buf.set_len(11);
        assert_eq!(buf[9..], [8, 7]);
        drop(buf);
        assert_eq!(pool.take().unwrap().len(), 5000);
    }

    #[test]
    #[should_panic(expected = "5001 bytes are asked of a buffer that has room for 5000")]
    fn a_buffer_can_not_be_longer_than_its_place() {
        let pool = BufPool::new(2, 5000).unwrap();
        pool.take().unwrap().set_len(5001);
    }

    #[test]
    fn buffers_do_not_overlap_and_come_back() {
        let pool = BufPool::new(3, 5000).unwrap();
        let mut bufs: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (value, buf) in (1_u8..).zip(&mut bufs) {
            buf.fill(value);
        }
        for (value, buf) in (1_u8..).zip(&bufs) {
            assert!(buf.iter().all(|byte| *byte == value));
            assert_eq!(buf.as_ptr().addr() % BufPool::ALIGN_BYTES, 0);
        }
        drop(bufs);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn a_pool_without_bytes_is_refused() {
        for (count, len) in [(0, 4096), (4, 0), (u32::MAX, usize::MAX)] {
            let error = BufPool::new(count, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
