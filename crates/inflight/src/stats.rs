//! What an engine has done so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::proactor::{Count, Tally};
use crate::sync::lock;

/// What an engine has done since it was opened; taken with [`crate::Engine::stats`].
///
/// Threads count while this is read, so the figures need not be of one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Operations answered.
    pub operations: u64,
    /// Calls of `io_uring_enter`, or of `io_submit` and `io_getevents` on the backend `aio`, each
    /// for any number of operations.
    pub enters: u64,
    /// Waits in which a thread looked for completions, and saw them, instead of sleeping: where a
    /// trial has shown that it is faster and does not cost more processor time than it saves time
    /// (`docs/design/busy-polling.md`).
    pub busy_polls: u64,
    /// Plain system calls made on the calling thread: operations alone, and those that a policy
    /// or a fallback took past the backend.
    pub plain_calls: u64,
    /// Reads answered by copying from a mapping, without a system call; see
    /// [`crate::fs::OpenOptions::mapped`].
    pub copied: u64,
    /// Transfers of batches, queues, run loops and lanes that another thread copied while their own
    /// thread copied others, each by a plain system call: reads of what the page cache has, and
    /// direct transfers of devices that are memory (`docs/design/roads.md`).
    pub helped: u64,
    /// Operations that an engine with rings had its threads do, because a ring would have handed
    /// them to a worker of the kernel, or because they would have held up others; and on the
    /// backend `aio` all that are for no asynchronous call.
    pub pool_calls: u64,
    /// Operations that were served in the lane of a tokio runtime; see
    /// `Engine::serve_on_tokio`.
    pub lane_operations: u64,
    /// Operations that the backend has and has not completed, as of each thread's last entry, and
    /// flushes that are being made for several syncs.
    pub in_flight: u64,
    /// Operations handed over again after an error that was not the caller's.
    pub retries: u64,
    /// Transfers of one buffer by the backend that moved fewer bytes than asked, resumed or not.
    pub short_transfers: u64,
    /// Transfers that were carried out without a hint they were given, as
    /// [`dont_cache`](crate::fs::WriteAt::dont_cache) or a
    /// [`priority`](crate::fs::WriteAt::priority), or with a priority that the I/O scheduler does
    /// not heed; why is among the fallbacks.
    pub hints_unheard: u64,
    /// Transfers of files with [`Direct::Auto`](crate::fs::Direct::Auto) that moved bytes through
    /// the page cache because their offset, their length or the address of a buffer was not
    /// aligned.
    /// What is needed is among the fallbacks, which count the files with such transfers. One whose
    /// future was dropped in flight is left out.
    pub unaligned: u64,
    /// Flushes of files that were made for syncs that may share them, each by a plain system call
    /// that is not among the others: by a thread of the pool, or by one of those that wait.
    pub flushes: u64,
    /// Syncs that were served by the flush of another (`docs/design/group-commit.md`).
    pub shared_syncs: u64,
    /// Writes with the wish [`dsync`](crate::fs::WriteAt::dsync) that were kept by a sync behind
    /// them, whose flush others could share, instead of a flag of their own
    /// (`docs/design/durable.md`).
    pub synced_writes: u64,
    /// Completions that nobody waited for. Anything but 0 is a defect of the kernel or of this
    /// library; please report it.
    pub strays: u64,
    /// What was given up, why, and how often, oldest first: the first 64 different reasons. More
    /// are neither kept nor counted.
    pub fallbacks: Vec<Fallback>,
}

/// Something that was given up for something that works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallback {
    /// What and why, in one sentence.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Different reasons kept; more would be a leak.
const REASONS_MAX: usize = 64;

/// Threads that have a place of their own for counting, at a time; the others share one.
const PLACES: usize = 64;

/// The counters of an engine: one for operations alone, in places of their own cache line so that
/// threads do not contend, and the tallies of its proactors.
pub(crate) struct Counters {
    alone: Box<[Place; PLACES]>,
    hints_unheard: AtomicU64,
    synced_writes: AtomicU64,
    plain_calls_shared: AtomicU64,
    copied_shared: AtomicU64,
    unaligned_shared: AtomicU64,
    tallies: Mutex<Tallies>,
    /// Shared with the files.
    syncs: Arc<SyncTally>,
    fallbacks: Mutex<Vec<Fallback>>,
}

/// The syncs that were served by flushes which may be for several.
#[derive(Debug, Default)]
pub(crate) struct SyncTally {
    syncs: AtomicU64,
    flushes: AtomicU64,
    in_flight: AtomicU64,
}

impl SyncTally {
    /// Counts a flush as in flight while it is made.
    pub(crate) fn during<R>(&self, flush: impl FnOnce() -> R) -> R {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let answer = flush();
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    /// So many syncs are served by flushes that are counted elsewhere.
    pub(crate) fn share(&self, count: u64) {
        self.syncs.fetch_add(count, Ordering::Relaxed);
    }

    /// One flush has served so many.
    pub(crate) fn add(&self, served: usize) {
        self.syncs.fetch_add(served as u64, Ordering::Relaxed);
        if served > 0 {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[repr(align(128))]
#[derive(Default)]
struct Place {
    plain_calls: Count,
    copied: Count,
    unaligned: Count,
}

#[derive(Default)]
struct Tallies {
    living: Vec<Watched>,
    /// Sums over the proactors that are gone.
    gone: Stats,
}

struct Watched {
    tally: Arc<Tally>,
    /// Whether it is that of a lane.
    in_lane: bool,
}

impl Tallies {
    /// Moves the counts of proactors that are gone into the sums.
    fn fold(&mut self) {
        let gone = &mut self.gone;
        self.living.retain(|watched| {
            let lives = Arc::strong_count(&watched.tally) > 1;
            if !lives {
                gone.add(watched);
            }
            lives
        });
    }
}

impl Stats {
    fn add(&mut self, watched: &Watched) {
        let tally = &watched.tally;
        if watched.in_lane {
            self.lane_operations += tally.answered.get();
        }
        self.in_flight += tally.in_flight.get();
        self.operations += tally.answered.get();
        self.enters += tally.enters.get();
        self.busy_polls += tally.busy_polls.get();
        self.plain_calls += tally.plain_calls.get();
        self.helped += tally.helped.get();
        self.pool_calls += tally.pool_calls.get();
        self.retries += tally.retries.get();
        self.short_transfers += tally.short_transfers.get();
        self.strays += tally.strays.get();
    }
}

/// As [`lock`], but where it may be held for ever it is not waited for.
fn lock_unless<T>(is_held_for_ever: bool, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match is_held_for_ever {
        true => mutex.try_lock().ok(),
        false => Some(lock(mutex)),
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            alone: Box::new(std::array::from_fn(|_| Place::default())),
            hints_unheard: AtomicU64::new(0),
            synced_writes: AtomicU64::new(0),
            plain_calls_shared: AtomicU64::new(0),
            copied_shared: AtomicU64::new(0),
            unaligned_shared: AtomicU64::new(0),
            tallies: Mutex::default(),
            syncs: Arc::default(),
            fallbacks: Mutex::default(),
        }
    }

    pub(crate) fn syncs(&self) -> &Arc<SyncTally> {
        &self.syncs
    }

    /// Counts one operation done by a plain call on the calling thread.
    #[inline]
    pub(crate) fn plain_call(&self) {
        self.count(|place| &place.plain_calls, &self.plain_calls_shared);
    }

    /// Counts one read answered from a mapping.
    #[inline]
    pub(crate) fn copied(&self) {
        self.count(|place| &place.copied, &self.copied_shared);
    }

    /// Counts a transfer that went through the page cache because it was not aligned.
    pub(crate) fn unaligned(&self) {
        self.count(|place| &place.unaligned, &self.unaligned_shared);
    }

    /// Counts in the place of this thread, or if it has none with others.
    #[inline(always)]
    fn count(&self, of: impl Fn(&Place) -> &Count, shared: &AtomicU64) {
        match self.alone.get(place::of_this_thread()) {
            Some(place) => of(place).add(1),
            None => {
                shared.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts a transfer that went without its hints.
    pub(crate) fn hint_unheard(&self) {
        self.hints_unheard.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a durable write that was followed by a sync.
    pub(crate) fn synced_write(&self) {
        self.synced_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the tally of a new proactor.
    pub(crate) fn watch(&self, tally: &Arc<Tally>) {
        self.add_tally(tally, false);
    }

    /// Adds the tally of the proactor of a lane.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch_lane(&self, tally: &Arc<Tally>) {
        self.add_tally(tally, true);
    }

    fn add_tally(&self, tally: &Arc<Tally>, in_lane: bool) {
        let tally = Arc::clone(tally);
        let mut tallies = lock(&self.tallies);
        tallies.fold();
        tallies.living.push(Watched { tally, in_lane });
    }

    /// Keeps the reason of a fallback.
    pub(crate) fn fallback(&self, reason: String) {
        let mut fallbacks = lock(&self.fallbacks);
        if let Some(known) = fallbacks
            .iter_mut()
            .find(|fallback| fallback.reason == reason)
        {
            known.count += 1;
        } else if fallbacks.len() < REASONS_MAX {
            fallbacks.push(Fallback { reason, count: 1 });
        }
    }

    /// What has been counted. In a forked child, of its parent's engine, without what was just
    /// being entered: the thread that did that is not there and keeps its lock.
    pub(crate) fn snapshot(&self, is_forked: bool) -> Stats {
        let mut stats = Stats::default();
        if let Some(mut tallies) = lock_unless(is_forked, &self.tallies) {
            tallies.fold();
            stats = tallies.gone.clone();
            tallies.living.iter().for_each(|watched| stats.add(watched));
        }
        let mut plain_calls = self.plain_calls_shared.load(Ordering::Relaxed);
        stats.copied = self.copied_shared.load(Ordering::Relaxed);
        stats.unaligned = self.unaligned_shared.load(Ordering::Relaxed);
        for place in self.alone.iter() {
            plain_calls = plain_calls.wrapping_add(place.plain_calls.get());
            stats.copied = stats.copied.wrapping_add(place.copied.get());
            stats.unaligned = stats.unaligned.wrapping_add(place.unaligned.get());
        }
        stats.operations += plain_calls + stats.copied;
        stats.plain_calls += plain_calls;
        // Each flush after its syncs: read in the other order, there are never more of them.
        let flushes = self.syncs.flushes.load(Ordering::Relaxed);
        let syncs = self.syncs.syncs.load(Ordering::Relaxed);
        stats.flushes = flushes;
        stats.shared_syncs = syncs.saturating_sub(flushes);
        stats.in_flight += self.syncs.in_flight.load(Ordering::Relaxed);
        stats.operations += syncs;
        stats.synced_writes = self.synced_writes.load(Ordering::Relaxed);
        stats.hints_unheard = self.hints_unheard.load(Ordering::Relaxed);
        let fallbacks = lock_unless(is_forked, &self.fallbacks);
        stats.fallbacks = fallbacks.map_or_else(Vec::new, |fallbacks| fallbacks.clone());
        stats
    }
}

/// Numbers below [`PLACES`] that belong to one living thread each, so that it can count without an
/// atomic addition.
mod place {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::PLACES;

    /// Not asked for yet.
    const UNKNOWN: usize = usize::MAX;
    /// There was none left, or the thread is ending.
    const NONE: usize = PLACES;

    thread_local! {
        static PLACE: Cell<usize> = const { Cell::new(UNKNOWN) };
        static OWNED: Owned = Owned::new();
    }

    /// A bit for each number that belongs to nobody. No lock: a thread that comes or goes while
    /// another forks would hold it for ever in the child, where it is not.
    static FREE: AtomicU64 = AtomicU64::new(u64::MAX);
    const _: () = assert!(PLACES == u64::BITS as usize, "a bit for each");

    struct Owned(usize);

    impl Owned {
        fn new() -> Self {
            // Who has a number from here on finds what its last owner has counted.
            let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
            let without_first = |free: u64| (free != 0).then(|| free & (free - 1));
            let free = FREE.fetch_update(before, after, without_first);
            Self(free.map_or(NONE, |free| free.trailing_zeros() as usize))
        }
    }

    impl Drop for Owned {
        fn drop(&mut self) {
            PLACE.set(NONE);
            if self.0 < PLACES {
                FREE.fetch_or(1 << self.0, Ordering::AcqRel);
            }
        }
    }

    /// The number of this thread; [`PLACES`] or more if it has none.
    #[inline]
    pub(super) fn of_this_thread() -> usize {
        match PLACE.get() {
            UNKNOWN => ask(),
            place => place,
        }
    }

    #[cold]
    fn ask() -> usize {
        let place = OWNED.try_with(|owned| owned.0).unwrap_or(NONE);
        PLACE.set(place);
        place
    }

    #[cfg(all(test, not(loom)))]
    mod tests {
        use std::collections::BTreeSet;
        use std::sync::Barrier;
        use std::thread;

        use super::*;

        /// Numbers of so many threads, all of which are there at the same time.
        fn of_threads(count: usize) -> Vec<usize> {
            let all_have_one = Barrier::new(count);
            thread::scope(|scope| {
                let ask = || {
                    let number = of_this_thread();
                    all_have_one.wait();
                    number
                };
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(ask)).collect();
                let ended = threads.into_iter().map(|one| one.join());
                ended.map(|number| number.expect("no panic")).collect()
            })
        }

        #[test]
        fn each_living_thread_has_another_number_and_leaves_it_to_later_ones() {
            // Other tests have some; far more than there are come and go.
            for _ in 0..20 {
                let numbers = of_threads(20);
                let different: BTreeSet<_> = numbers.iter().copied().collect();
                assert!(numbers.iter().all(|number| *number < NONE), "{numbers:?}");
                assert_eq!(different.len(), numbers.len(), "{numbers:?}");
            }
            let many = of_threads(2 * PLACES);
            let without = many.iter().filter(|number| **number == NONE).count();
            assert!(without >= PLACES, "{many:?}");
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_forked_child_counts_does_not_wait_for_threads_of_its_parent() {
        let counters = Counters::new();
        counters.synced_write();
        counters.fallback("none".to_owned());
        let held = (lock(&counters.tallies), lock(&counters.fallbacks));
        let stats = counters.snapshot(true);
        assert_eq!((stats.synced_writes, stats.fallbacks.len()), (1, 0));
        drop(held);
        assert_eq!(counters.snapshot(true).fallbacks.len(), 1);
    }
}
