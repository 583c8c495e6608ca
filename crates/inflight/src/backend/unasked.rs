//! Descriptors that the library opens though the program has not asked for any: a few, because the
//! program needs them too.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::fork::PerProcess;

/// Of the descriptors that the process may have, one in so many at most, of each kind.
const ONE_IN: u64 = 16;

/// Those of one kind that are open, of the whole process. In a forked child those of threads that
/// are not there do not count.
pub(crate) struct Unasked(PerProcess<AtomicU32>);

/// The place of one that is open, or is about to be opened.
#[derive(Debug)]
pub(crate) struct Place(&'static AtomicU32);

impl Unasked {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new())
    }

    /// A place for another one, if there is room.
    pub(crate) fn take(&'static self) -> Option<Place> {
        let (open, order) = (self.0.get(), Ordering::Relaxed);
        let next = |open| (open < most()).then_some(open + 1);
        let taken = open.fetch_update(order, order, next);
        // A place that is made is given back when it is dropped, so it is made only if taken.
        taken.ok().map(|_| Place(open))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many there may be: asked once, as a program that raises its limit does so when it starts.
fn most() -> u32 {
    /// Nothing that others wait for while it is made: a thread that forks meanwhile would leave
    /// that to the child. Two that come first find the same.
    static MOST: AtomicU32 = AtomicU32::new(NOT_ASKED);
    const NOT_ASKED: u32 = u32::MAX;
    let known = MOST.load(Ordering::Relaxed);
    if known != NOT_ASKED {
        return known;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = u32::try_from(limit / ONE_IN).unwrap_or(NOT_ASKED - 1);
    MOST.store(most, Ordering::Relaxed);
    most
}
