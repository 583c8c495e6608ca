//! Work that a thread shares with others, which may come or not.
//!
//! The owner shows places of a table to whoever looks, and works through them itself. Everybody,
//! the owner too, claims a few places at a time, so the owner never waits for somebody who has not
//! come: when nothing is left to be claimed, it waits for what others have claimed, and for nothing
//! else. One number says what is left; whoever has changed it has a claim on the places that are
//! shown now, however long ago it looked.
//!
//! What deliberately is not here: what the work is, who is called, and whether that pays. Next:
//! [`super::spread`].
#![allow(unsafe_code)]

use std::ops::Range;

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// A table whose places are worked through by several threads.
pub(super) trait Work {
    /// Does the work of one place. Must not panic.
    ///
    /// # Safety
    ///
    /// Nobody else works at this place, and what it names stays valid until this returns.
    unsafe fn work(&self, place: u32);
}

/// On a cache line that it shares with nothing.
#[repr(align(128))]
struct Line<T>(T);

/// See the module.
pub(super) struct Share<W> {
    table: W,
    /// The places that nobody has claimed: the first above, the end below.
    left: Line<AtomicU64>,
    /// Places that others have worked through since the table was shown, and [`SLEEPS`].
    done: Line<AtomicU64>,
    /// Held by an owner that falls asleep, and by whoever wakes it.
    sleep: Mutex<()>,
    told: Condvar,
}

/// The owner sleeps until others are done.
const SLEEPS: u64 = 1 << 63;

/// Most places claimed at a time.
const CLAIM_MAX: u64 = 8;

/// How often the owner looks whether others are done before it sleeps: they have claimed what takes
/// a few microseconds, and waking up takes longer than that.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 256 };

impl<W: Work> Share<W> {
    pub(super) fn new(table: W) -> Self {
        Self {
            table,
            left: Line(AtomicU64::new(0)),
            done: Line(AtomicU64::new(0)),
            sleep: Mutex::new(()),
            told: Condvar::new(),
        }
    }

    pub(super) fn table(&self) -> &W {
        &self.table
    }

    /// Whether something could be claimed now.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        let left = self.left.0.load(Ordering::Relaxed);
        left >> 32 != left & LOW
    }

    /// Lets everybody work at the first `count` places of the table. Only the owner calls this, and
    /// has done with what it showed before.
    ///
    /// # Safety
    ///
    /// What these places name stays valid until the value returned has been dropped, which is not
    /// forgotten.
    pub(super) unsafe fn show(&self, count: u32) -> Shown<'_, W> {
        self.done.0.store(0, Ordering::Relaxed);
        // Whoever makes a claim sees the table as it is now.
        self.left.0.store(u64::from(count), Ordering::Release);
        Shown {
            share: self,
            own: 0,
        }
    }

    /// Claims some of what is shown: a quarter, so that in the end nobody waits long for another.
    #[inline]
    fn claim(&self) -> Option<Range<u32>> {
        let mut seen = self.left.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = (seen >> 32, seen & LOW);
            if first == end {
                return None;
            }
            let next = first + ((end - first) / 4).clamp(1, CLAIM_MAX);
            let claimed = self.left.0.compare_exchange_weak(
                seen,
                next << 32 | end,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => return Some(place(first)..place(next)),
                Err(now) => seen = now,
            }
        }
    }

    /// Works at what somebody else shows. False if there is nothing to be claimed.
    pub(super) fn help(&self) -> bool {
        let Some(places) = self.claim() else {
            return false;
        };
        let claimed = Claimed {
            share: self,
            count: u64::from(places.end - places.start),
        };
        for place in places {
            // SAFETY: they have been claimed by this thread alone. Who has shown them waits until
            // the claim is dropped.
            unsafe { self.table.work(place) };
        }
        drop(claimed);
        true
    }

    /// Waits until others have worked through so many places.
    fn wait(&self, count: u64) {
        for _ in 0..LOOKS {
            if self.done.0.load(Ordering::Acquire) == count {
                return;
            }
            std::hint::spin_loop();
        }
        let mut held = lock(&self.sleep);
        // Who comes after this sees it in what it adds to.
        let mut done = self.done.0.fetch_or(SLEEPS, Ordering::Acquire);
        while done & !SLEEPS != count {
            held = self.told.wait(held).unwrap_or_else(PoisonError::into_inner);
            done = self.done.0.load(Ordering::Acquire);
        }
    }
}

const LOW: u64 = 0xffff_ffff;

fn place(number: u64) -> u32 {
    u32::try_from(number).expect("half of a number of 64 bits")
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread that helps has claimed. Dropped when it is done, also by a panic: nobody is to
/// wait for ever.
struct Claimed<'s, W: Work> {
    share: &'s Share<W>,
    count: u64,
}

impl<W: Work> Drop for Claimed<'_, W> {
    fn drop(&mut self) {
        let Self { share, count } = *self;
        let before = share.done.0.fetch_add(count, Ordering::Release);
        if before & SLEEPS != 0 {
            // The owner has the lock until it waits.
            let _held = lock(&share.sleep);
            share.told.notify_one();
        }
    }
}

/// What the owner shows. When this is dropped nobody works at it any more.
pub(super) struct Shown<'s, W: Work> {
    share: &'s Share<W>,
    /// Places that the owner has claimed.
    own: u64,
}

impl<W: Work> Shown<'_, W> {
    /// Works until nothing is left to be claimed. How many places others have claimed.
    pub(super) fn work(&mut self, count: u32) -> u32 {
        while let Some(places) = self.share.claim() {
            self.own += u64::from(places.end - places.start);
            for place in places {
                // SAFETY: they have been claimed by this thread alone, and are valid as long as
                // `self` is there.
                unsafe { self.share.table.work(place) };
            }
        }
        count - place(self.own)
    }
}

impl<W: Work> Drop for Shown<'_, W> {
    fn drop(&mut self) {
        // Everything has been claimed, unless a panic unwinds.
        let left = self.share.left.0.swap(0, Ordering::Relaxed);
        self.share.wait((left >> 32) - self.own);
    }
}
