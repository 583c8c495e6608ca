//! Noticing a fork.
//!
//! A child shares the parent's rings (the descriptor is inherited, what it submits completes in
//! the parent) and has none of its threads. A handler counts forks in the child, so that asking
//! costs one load. A child made by the bare system call, without the C library's handlers, is not
//! noticed; its ring memory is not mapped (`MADV_DONTFORK`), so it cannot harm the parent.
#![allow(unsafe_code)]

use crate::sync::lock;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lie between this process and the first one that called [`watch`].
#[inline]
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Which process this is: each knows those that others have made for none of its own. A child that
/// was made by the bare system call is told by its number, and one by a fork by the count too: a
/// number may be that of its parent, as where each is the first of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    number: u32,
    generation: u32,
}

impl Process {
    pub(crate) fn this() -> Self {
        Self {
            number: std::process::id(),
            generation: generation(),
        }
    }
}

/// Starts to count forks.
pub(crate) fn watch() {
    /// Nothing that others wait for while it is made: a thread that forks meanwhile would leave
    /// that to the child.
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    if IS_WATCHED.load(Ordering::Acquire) {
        return;
    }
    // Two that come first have each fork counted twice, which is as good. SAFETY: the handler only
    // adds to an atomic, which is allowed in a forked child. It can fail for want of memory only;
    // forks then go unnoticed, as those by the bare call do.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    IS_WATCHED.store(true, Ordering::Release);
}

/// Runs foreign code on a thread that is the library's own. If that forks, and returns in the child
/// as well, the thread goes no further there: what it would go on with is the parent's, and the
/// ring's memory is not mapped.
pub(crate) fn in_the_parent<R>(foreign: impl FnOnce() -> R) -> R {
    let before = generation();
    let result = foreign();
    while generation() != before {
        thread::park();
    }
    result
}

/// What each process has its own of: a child begins anew, because a thread of the parent, which is
/// not in the child, may have held a lock of the parent's.
pub(crate) struct PerProcess<T> {
    /// What was made last. Nothing that was published here is ever freed.
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    generation: u32,
    value: T,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            made: AtomicPtr::new(null_mut()),
        }
    }

    /// That of this process. It stays for as long as the process lives.
    pub(crate) fn get(&'static self) -> &'static T {
        let mut known = self.made.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from `Box::into_raw` below and never freed.
            if let Some(made) = unsafe { known.as_ref() }
                && made.generation == generation()
            {
                return &made.value;
            }
            let made = Box::new(Made {
                generation: generation(),
                value: T::default(),
            });
            let made = Box::into_raw(made);
            let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
            match self.made.compare_exchange(known, made, before, after) {
                Ok(_) => known = made,
                Err(other) => {
                    // SAFETY: made above, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    known = other;
                }
            }
        }
    }
}

/// What a child goes on with.
pub(crate) trait Inherit {
    /// A child has it now: what is of threads of its parent is forgotten.
    fn inherit(&mut self);
}

/// A lock that a child of the process that made it can do without: a thread of the parent, which is
/// not in the child, may have held it.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    data: Mutex<T>,
    /// Of the process that made it.
    generation: u32,
    /// What the last child that has looked has seen: its generation, and one of the marks.
    seen: AtomicU64,
}

/// A thread of this child is looking.
const LOOKING: u64 = 1;
/// Nobody held it at the fork.
const FREE: u64 = 2;
/// It is held for ever.
const HELD: u64 = 3;

impl<T: Inherit> Lock<T> {
    pub(crate) fn new(data: T) -> Self {
        watch();
        Self {
            data: Mutex::new(data),
            generation: generation(),
            seen: AtomicU64::new(0),
        }
    }

    /// Whether this process is a child of the one that made it.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    /// `None` if it is held for ever.
    #[inline]
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.is_inherited() && !self.was_free() {
            return None;
        }
        // The data is whole after every statement, so a panic elsewhere does not spoil it.
        Some(lock(&self.data))
    }

    /// Whether nobody held it when this child was forked. The first of its threads that asks sees:
    /// until then none of them has locked it.
    #[cold]
    fn was_free(&self) -> bool {
        let child = u64::from(generation()) << 2;
        loop {
            let seen = self.seen.load(Ordering::Acquire);
            match seen ^ child {
                FREE => return true,
                HELD => return false,
                // That takes a few instructions.
                LOOKING => thread::yield_now(),
                _ => {
                    let (before, after) = (Ordering::AcqRel, Ordering::Relaxed);
                    let looking = child | LOOKING;
                    let is_first = self.seen.compare_exchange(seen, looking, before, after);
                    if is_first.is_ok() {
                        self.seen.store(child | self.look(), Ordering::Release);
                    }
                }
            }
        }
    }

    fn look(&self) -> u64 {
        let mut data = match self.data.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(data)) => data.into_inner(),
            Err(TryLockError::WouldBlock) => return HELD,
        };
        data.inherit();
        FREE
    }
}

impl<T: Inherit + Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(all(test, not(loom), not(miri)))]
pub(crate) mod tests {
    use super::*;

    /// Whether a forked child finds this to be so. What does not come ends it by a signal.
    pub(crate) fn a_child_finds(is_so: impl FnOnce() -> bool) -> bool {
        watch();
        // SAFETY: no memory is involved; the child only allocates, locks, forks, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: no memory is involved.
            unsafe { libc::alarm(20) };
            let code = i32::from(!is_so());
            // SAFETY: ends the child without the exit handlers, which belong to the parent.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: `status` is there to be filled.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        status == 0
    }

    /// Whether the children of this thread are from now on the first of a namespace.
    fn children_are_first() -> bool {
        // SAFETY: no memory is involved.
        unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
    }

    #[test]
    fn a_child_with_the_number_of_its_parent_is_another_process() {
        let test = || {
            if !children_are_first() {
                return eprintln!("skipped: namespaces: this process may not make one");
            }
            assert!(a_child_finds(|| {
                let parent = Process::this();
                children_are_first()
                    && a_child_finds(|| {
                        let child = Process::this();
                        child.number == parent.number && child != parent
                    })
            }));
        };
        thread::spawn(test).join().expect("no panic");
    }

    #[test]
    fn a_child_does_not_wait_for_a_lock_that_the_parent_held() {
        static KEPT: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = KEPT.get().lock().expect("nobody has panicked");
        *held += 1;
        let has_its_own = || KEPT.get().lock().is_ok_and(|value| *value == 0);
        assert!(a_child_finds(has_its_own));
        drop(held);
        assert_eq!(KEPT.get().lock().map_or(0, |value| *value), 1);
    }

    impl Inherit for u32 {
        fn inherit(&mut self) {
            *self += 1;
        }
    }

    #[test]
    fn a_child_does_without_what_a_thread_of_its_parent_has_locked_and_no_other() {
        let lock = Lock::new(7);
        let is_held = || lock.lock().is_none();
        let held = lock.lock();
        assert!(a_child_finds(|| is_held() && is_held()));
        drop(held);
        assert!(a_child_finds(|| {
            let own = lock.lock();
            // Another thread would wait for this one, but not a child.
            own.is_some_and(|own| *own == 8 && lock.was_free() && a_child_finds(is_held))
        }));
        assert!(a_child_finds(|| {
            let has = |value| lock.lock().is_some_and(|own| *own == value);
            has(8) && has(8) && a_child_finds(|| has(9) && has(9))
        }));
        assert!(lock.lock().is_some_and(|own| *own == 7) && !lock.is_inherited());
    }
}
