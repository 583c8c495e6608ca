//! A pool of buffers in one piece of memory that a ring can know in advance.
//!
//! Registering saves the kernel from pinning the pages of each request: io_uring_register(2),
//! `IORING_REGISTER_BUFFERS`. Each ring registers the arena when it first meets one of its
//! buffers; when the kernel refuses (RLIMIT_MEMLOCK), the same buffers work unregistered, and
//! [`crate::Engine::stats`] says so.
#![allow(unsafe_code)]

use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use super::takers::{Takers, Turn};
use super::{AlignedBuf, IoBuf};
use crate::foreign::{clone_waker, contain};
use crate::fork::{Inherit, Lock};

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
    /// In a child that cannot have it there are no buffers, and what comes back is lost.
    free: Lock<Free>,
    /// A ring that does nothing but hold the arena's registration, once one has been made.
    source: OnceLock<Option<OwnedFd>>,
}

struct Free {
    /// Of the buffers that nobody has. As long as one of the takers waits, there are none.
    numbers: Vec<u32>,
    takers: Takers,
}

impl Free {
    /// A buffer for a future: one that has been handed to it, or one that nobody has if it does
    /// not wait for its turn.
    fn take_for(&mut self, turn: &mut Option<Turn>) -> Option<u32> {
        let Some(own) = *turn else {
            return self.numbers.pop();
        };
        if self.takers.waker(own).is_some() {
            return None;
        }
        *turn = None;
        let handed = self.takers.collect(own);
        // A child that was forked has forgotten it.
        handed.or_else(|| self.numbers.pop())
    }
}

impl Inherit for Free {
    /// Nobody waits any more.
    fn inherit(&mut self) {
        self.numbers.extend(self.takers.forget());
    }
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
    /// `make` is asked for one when none has been made. `None` if that failed, and in a forked
    /// child: what the parent's ring knows is the parent's pages (kernels without the fix of
    /// CVE-2025-21686 let the child take it over), and a thread that is not there may be making it.
    pub(crate) fn source(&self, make: impl FnOnce() -> Option<OwnedFd>) -> Option<&OwnedFd> {
        if self.free.is_inherited() {
            return None;
        }
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

    fn give_back(&self, number: u32) {
        let Some(mut free) = self.free.lock() else {
            return;
        };
        let Some(waker) = free.takers.hand(number) else {
            return free.numbers.push(number);
        };
        drop(free);
        contain(|| waker.wake());
    }
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
/// A thread takes one if there is one ([`BufPool::take`]), a task waits for one
/// ([`BufPool::take_when_free`]).
///
/// The memory is of huge pages where that of an [`AlignedBuf`] of the size of the pool is, unless
/// its buffers have one page each and less than 1 MiB in all. A ring is charged with all of a huge
/// page that it knows a part of.
///
/// A ring knows at most 16 pools at a time, each of 1 GiB at most, and as much as RLIMIT_MEMLOCK
/// allows. Buffers of others work as memory that is not registered does, and the
/// [fallbacks](crate::Stats::fallbacks) say so.
///
/// The memory of a dropped pool is free for others at once, but the kernel keeps its pages, and
/// their charge against RLIMIT_MEMLOCK, until each thread that used the pool runs its next
/// operation or ends.
///
/// A forked child has the buffers that were free, and none at all if another thread was about to
/// take one or to give one back at that moment; then those that the child drops do not come back.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use inflight::{BufPool, fs::File, local};
///
/// let pool = BufPool::new(32, 4096)?;
/// let mut buf = pool.take().expect("32 are free");
/// buf.fill(7);
/// drop(buf); // back to the pool
/// assert_eq!(pool.available(), 32);
///
/// // More tasks than buffers.
/// # let path = std::env::current_exe()?;
/// let file = std::rc::Rc::new(File::open(path)?);
/// local::run(async {
///     let task = |block: u64| {
///         let (file, pool) = (file.clone(), pool.clone());
///         local::spawn(async move {
///             let buf = pool.take_when_free().await;
///             file.read_at(buf, block % 8 * 4096).await.0
///         })
///     };
///     for task in (0..1000).map(task).collect::<Vec<_>>() {
///         assert!(task.await? > 0);
///     }
///     Ok(())
/// })?
/// # }
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
        // Of a buffer of one page there is nothing to be had in one piece.
        let memory = match buf_len <= Self::ALIGN_BYTES {
            true => AlignedBuf::alone(total, Self::ALIGN_BYTES)?,
            false => AlignedBuf::new(total, Self::ALIGN_BYTES)?,
        };
        let arena = Arena {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(Alive(())),
            memory,
            buf_len,
            free: Lock::new(Free {
                numbers: (0..count).rev().collect(),
                takers: Takers::new(),
            }),
            source: OnceLock::new(),
        };
        Ok(Self {
            arena: Arc::new(arena),
        })
    }

    /// A buffer that nobody has, whole again, or `None` when all are taken, also by those who have
    /// waited for one ([`BufPool::take_when_free`]) and are yet to be polled. Its bytes are what
    /// the last user left there.
    pub fn take(&self) -> Option<PoolBuf> {
        let number = self.arena.free.lock()?.numbers.pop()?;
        Some(PoolBuf::new(&self.arena, number))
    }

    /// Waits for a buffer: yields what [`BufPool::take`] does, when there is one. On any runtime,
    /// or none: a plain thread waits by [`local::run`](crate::local::run), or any `block_on`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use std::thread;
    /// use inflight::{BufPool, local};
    ///
    /// let pool = BufPool::new(1, 4096)?;
    /// let buf = pool.take().expect("it is free");
    /// thread::scope(|scope| {
    ///     let waits = scope.spawn(|| local::run(pool.take_when_free()));
    ///     drop(buf);
    ///     waits.join().expect("it does not panic")
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// Whoever waits is served in the order of the first polls: a buffer that comes back is handed
    /// to the first of them, and `take` gets none as long as somebody waits. Tasks that wait while
    /// they have other buffers of the pool may wait for ever, each for the others.
    pub fn take_when_free(&self) -> TakeWhenFree {
        TakeWhenFree {
            arena: Arc::clone(&self.arena),
            turn: None,
        }
    }

    /// Number of buffers that can be taken now.
    pub fn available(&self) -> usize {
        self.arena.free.lock().map_or(0, |free| free.numbers.len())
    }

    /// Number of those who wait for a buffer ([`BufPool::take_when_free`]) and have not been handed
    /// one: how far the pool is too small at this moment. As long as it is not 0,
    /// [`BufPool::available`] is.
    pub fn waiting(&self) -> usize {
        self.arena
            .free
            .lock()
            .map_or(0, |free| free.takers.waiting())
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
            .field("waiting", &self.waiting())
            .finish()
    }
}

/// Waits for a buffer of a pool. Made by [`BufPool::take_when_free`].
///
/// In a forked child nobody waits any more, as most threads are not there; polled there, it begins
/// anew. Where the child has no buffers (see [`BufPool`]), it is never ready.
///
/// # Cancellation
///
/// Dropping it gives its turn up; a buffer that it has been handed goes to the next who waits. So
/// it is polled or dropped once it has been woken: until then nobody else gets that buffer.
#[must_use = "futures do nothing unless they are polled"]
pub struct TakeWhenFree {
    arena: Arc<Arena>,
    /// Its place among those who wait, from the first poll on that found no buffer.
    turn: Option<Turn>,
}

impl Future for TakeWhenFree {
    type Output = PoolBuf;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PoolBuf> {
        let this = &mut *self;
        let mut cloned = None;
        loop {
            let Some(mut free) = this.arena.free.lock() else {
                contain(|| drop(cloned));
                return Poll::Pending;
            };
            if let Some(number) = free.take_for(&mut this.turn) {
                drop(free);
                let buf = PoolBuf::new(&this.arena, number);
                if cloned.is_some() {
                    contain(|| drop(cloned));
                }
                return Poll::Ready(buf);
            }
            let known = this.turn.and_then(|turn| free.takers.waker(turn));
            if known
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                return Poll::Pending;
            }
            let Some(waker) = cloned.take() else {
                // Foreign code. A buffer may come back meanwhile, so it looks again.
                drop(free);
                cloned = Some(clone_waker(cx.waker()));
                continue;
            };
            let before = match known {
                Some(known) => Some(mem::replace(known, waker)),
                None => {
                    this.turn = Some(free.takers.join(waker));
                    None
                }
            };
            drop(free);
            contain(|| drop(before));
            return Poll::Pending;
        }
    }
}

impl Drop for TakeWhenFree {
    fn drop(&mut self) {
        let Some(turn) = self.turn else {
            return;
        };
        let Some(mut free) = self.arena.free.lock() else {
            return;
        };
        let waker = free.takers.leave(turn);
        let handed = free.takers.collect(turn);
        drop(free);
        contain(|| drop(waker));
        if let Some(number) = handed {
            self.arena.give_back(number);
        }
    }
}

impl fmt::Debug for TakeWhenFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TakeWhenFree")
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
    fn new(arena: &Arc<Arena>, number: u32) -> Self {
        Self {
            arena: Arc::clone(arena),
            number,
            len: arena.buf_len,
        }
    }

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
        self.arena.give_back(self.number);
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
    #[cfg(not(any(loom, miri)))]
    fn a_child_does_not_take_over_what_the_ring_of_its_parent_knows() {
        use crate::fork::tests::a_child_finds;
        let pool = BufPool::new(1, 4096).unwrap();
        let ring = || Some(std::fs::File::open("/dev/null").unwrap().into());
        assert!(pool.arena.source(ring).is_some());
        assert!(a_child_finds(|| pool.arena.source(ring).is_none()));
        assert!(pool.arena.source(|| None).is_some());
    }

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn a_child_has_no_buffers_of_a_pool_that_a_thread_of_its_parent_has_locked() {
        use crate::fork::tests::a_child_finds;
        let pool = BufPool::new(2, 4096).unwrap();
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut taker = pool.take_when_free();
        let bufs = [pool.take(), pool.take()];
        assert!(Pin::new(&mut taker).poll(&mut context).is_pending());
        let mut had = Some((taker, bufs));
        let held = pool.arena.free.lock();
        assert!(a_child_finds(|| {
            let has_none = || pool.available() == 0 && pool.take().is_none();
            let taker = had.as_mut().map(|(taker, _)| Pin::new(taker));
            let is_pending = taker.is_some_and(|taker| taker.poll(&mut context).is_pending());
            let had_none = has_none();
            drop(had.take());
            is_pending && had_none && has_none()
        }));
        drop(held);
    }

    #[test]
    fn a_pool_without_bytes_is_refused() {
        for (count, len) in [(0, 4096), (4, 0), (u32::MAX, usize::MAX)] {
            let error = BufPool::new(count, len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
