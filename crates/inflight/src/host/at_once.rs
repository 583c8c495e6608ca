//! How much is answered where it is polled before the other tasks of the thread have their turn.

use std::cell::Cell;
use std::task::Waker;
use std::time::Duration;

#[cfg(feature = "tokio")]
use super::idle;

/// So many operations are answered at once before one has to let the other tasks have their turn:
/// what tokio allows its own sockets (`tokio::task::coop`). Each turn would cost a runtime with an
/// idle worker a system call that wakes it, so it may be put off (`idle.rs`).
const AT_ONCE_MAX: u32 = 128;

/// So many futures yield then. One that polls others, as `FuturesUnordered` does, goes on with the
/// next when one has yielded, and leaves its task when a second one has.
const YIELDS: u32 = 2;

/// Bytes that count as much as an operation without any: copying so many takes as long.
const AT_ONCE_BYTES: usize = 16 << 10;

/// What a write counts for beside its bytes in a run loop, where a turn costs next to nothing: the
/// file system has more to do for it than for a read.
pub(super) const WRITE_BYTES: usize = 3 * AT_ONCE_BYTES;

thread_local! {
    /// Operations of this thread that were answered when they were first polled, since a task of
    /// it has had to yield.
    static AT_ONCE: Cell<u32> = const { Cell::new(0) };
    /// Futures that have yielded since there are too many of them.
    static YIELDED: Cell<u32> = const { Cell::new(0) };
}

/// Whether a future has yielded before what it begins next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Yielded(bool);

impl Yielded {
    /// Whether the future is to yield before it begins its operation, or the next one: then its
    /// task has been woken. One whose operations are all answered at once, because the page cache
    /// has what they read, would never return to its runtime otherwise, and starve the others.
    #[inline]
    pub(crate) fn must_yield(&mut self, waker: &Waker) -> bool {
        AT_ONCE.get() >= AT_ONCE_MAX && self.yields(waker)
    }

    #[cold]
    fn yields(&mut self, waker: &Waker) -> bool {
        let yielded = YIELDED.get();
        #[cfg(feature = "tokio")]
        if !self.0 && yielded == 0 && idle::puts_off_turn() {
            AT_ONCE.set(0);
            return false;
        }
        self.0 = !self.0 && yielded < YIELDS;
        match self.0 {
            true => {
                YIELDED.set(yielded + 1);
                waker.wake_by_ref();
            }
            // It is polled anew, or enough others have yielded in its place.
            false => {
                AT_ONCE.set(0);
                YIELDED.set(0);
            }
        }
        self.0
    }
}

/// How many bytes are copied in so long a time, about.
pub(super) fn copied_in(time: Duration) -> usize {
    usize::try_from(time.as_nanos() * 5).unwrap_or(usize::MAX)
}

/// So many bytes have been copied where it was asked for them.
#[inline]
pub(crate) fn count_at_once(bytes: usize) {
    let weight = u32::try_from(1 + bytes / AT_ONCE_BYTES).unwrap_or(AT_ONCE_MAX);
    AT_ONCE.with(|at_once| at_once.set(at_once.get().saturating_add(weight)));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_future_yields_once_and_so_does_one_more() {
        let copy = |count| (0..count).for_each(|_| count_at_once(0));
        let [mut one, mut other, mut third] = [Yielded::default(); 3];
        copy(AT_ONCE_MAX - 1);
        assert!(!one.must_yield(Waker::noop()));
        copy(1);
        assert!(one.must_yield(Waker::noop()));
        assert!(!one.must_yield(Waker::noop()), "it is polled anew");
        assert!(
            !other.must_yield(Waker::noop()),
            "who has yielded has begun anew for all"
        );
        copy(AT_ONCE_MAX);
        assert!(one.must_yield(Waker::noop()) && other.must_yield(Waker::noop()));
        assert!(!third.must_yield(Waker::noop()), "two are enough");
        count_at_once(AT_ONCE_BYTES * to_usize(AT_ONCE_MAX));
        assert!(
            third.must_yield(Waker::noop()),
            "many bytes count as many operations"
        );
    }

    fn to_usize(number: u32) -> usize {
        crate::backend::threads::execute::to_usize(number)
    }
}
