//! Whose turn it is: what waits for the threads of a pool, and which of it one takes next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::pool::{Run, Serve};

/// What waits for the threads of a pool, and who they are; under the pool's lock.
pub(super) struct PoolState {
    /// One entry for each thread that has been called to a lane or a mailbox.
    pub(super) lanes: VecDeque<Arc<dyn Serve>>,
    /// Calls that wait for a thread, by numbers that grow; and those among them that may wait for
    /// ever.
    calls: BTreeMap<u64, Arc<dyn Run>>,
    endless: BTreeMap<u64, Arc<dyn Run>>,
    next_number: u64,
    /// Flushes that wait for a thread.
    pub(super) flushes: VecDeque<Arc<dyn Run>>,
    /// Callers that have called for a thread to share their work.
    pub(super) shares: VecDeque<Arc<dyn Run>>,
    /// Most threads there may be.
    threads_max: usize,
    /// Threads that are in a call, and most of them.
    calling: usize,
    calls_max: usize,
    /// The same of calls that may wait for ever.
    in_endless: usize,
    endless_max: usize,
    /// Threads that are in a flush.
    pub(super) flushing: usize,
    /// Threads that serve a lane or a mailbox.
    pub(super) serving: usize,
    /// Whose turn it is to be looked at first.
    pub(super) turn: Kind,
    pub(super) idle: usize,
    /// Threads that have been woken and have not come; they still count as idle.
    pub(super) coming: usize,
    /// So many of the threads that are woken next are to end when there is nothing to do, because
    /// others have been started in their place.
    pub(super) surplus: usize,
    /// Threads that have been started and have not ended.
    pub(super) living: usize,
    pub(super) closed: bool,
}

/// So many threads are on their way at a time; the others are called by those that come. To wake
/// one costs whoever hands something over a system call, and they all want the same lock.
const COMING_MAX: usize = 2;

/// What a thread of the pool does next.
pub(super) enum Work {
    Lane(Arc<dyn Serve>),
    /// A call, and whether it may wait for ever.
    Call(Arc<dyn Run>, bool),
    Flush(Arc<dyn Run>),
    Share(Arc<dyn Run>),
}

/// The kinds of work, which take turns so that none keeps another waiting for long.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Flush,
    Call,
    Lane,
    Share,
}

impl Kind {
    fn next(self) -> Self {
        match self {
            Self::Flush => Self::Call,
            Self::Call => Self::Lane,
            Self::Lane => Self::Share,
            Self::Share => Self::Flush,
        }
    }
}

/// Most threads in calls that may wait for ever. They leave one in eight to the other calls, and
/// one to the lanes, where there are three.
fn endless_max(threads_max: usize) -> usize {
    let others = 1 + (threads_max / 8).max(1);
    threads_max.saturating_sub(others).max(1)
}

impl PoolState {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            lanes: VecDeque::with_capacity(2 * threads_max),
            calls: BTreeMap::new(),
            endless: BTreeMap::new(),
            next_number: 0,
            threads_max,
            flushes: VecDeque::new(),
            shares: VecDeque::with_capacity(threads_max),
            calling: 0,
            calls_max: (threads_max - 1).max(1),
            in_endless: 0,
            endless_max: endless_max(threads_max),
            flushing: 0,
            serving: 0,
            turn: Kind::Flush,
            idle: 0,
            coming: 0,
            surplus: 0,
            living: 0,
            closed: false,
        }
    }

    /// Queues a call, which may wait for ever or not, and returns the number by which it is taken
    /// back.
    pub(super) fn queue_call(&mut self, call: Arc<dyn Run>, is_endless: bool) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let queue = match is_endless {
            true => &mut self.endless,
            false => &mut self.calls,
        };
        queue.insert(number, call);
        number
    }

    /// Takes back a call that no thread has taken.
    pub(super) fn take_back(&mut self, number: u64) -> Option<Arc<dyn Run>> {
        let call = self.calls.remove(&number);
        call.or_else(|| self.endless.remove(&number))
    }

    /// Takes the first call that may be taken now.
    fn take_call(&mut self) -> Option<Work> {
        if self.calling >= self.calls_max {
            return None;
        }
        let may_wait = self.endless_room() > 0;
        let endless = self.endless.keys().next().filter(|_| may_wait);
        let is_endless = match (self.calls.keys().next(), endless) {
            (Some(call), Some(endless)) => endless < call,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let queue = match is_endless {
            true => &mut self.endless,
            false => &mut self.calls,
        };
        let (_, call) = queue.pop_first()?;
        self.calling += 1;
        self.in_endless += usize::from(is_endless);
        Some(Work::Call(call, is_endless))
    }

    /// A thread has made a call.
    pub(super) fn has_called(&mut self, is_endless: bool) {
        self.calling -= 1;
        self.in_endless -= usize::from(is_endless);
    }

    /// Calls that wait for a thread.
    pub(super) fn calls_waiting(&self) -> usize {
        self.calls.len() + self.endless.len()
    }

    /// Threads that are in a call.
    pub(super) fn calling(&self) -> usize {
        self.calling
    }

    /// Calls that could be taken now.
    pub(super) fn calls_to_take(&self) -> usize {
        let calls = self.calls.len() + self.endless.len().min(self.endless_room());
        calls.min(self.calls_max - self.calling)
    }

    /// How many more threads may be in calls that may wait for ever. One of those that live is left
    /// to the rest, because there may be no other: what limits threads (`RLIMIT_NPROC`, `pids.max`)
    /// is met at any time.
    fn endless_room(&self) -> usize {
        let most = match self.closed || self.threads_max == 1 {
            true => self.endless_max,
            false => self.endless_max.min(self.living.saturating_sub(1)),
        };
        most.saturating_sub(self.in_endless)
    }

    /// How many threads have to live before a call like this can be made.
    pub(super) fn least_for(&self, is_endless: bool) -> usize {
        1 + usize::from(is_endless && self.threads_max > 1)
    }

    /// How many more threads there is something to do for, beside those that sleep.
    pub(super) fn lacking(&self) -> usize {
        let endless = self.in_endless + self.endless.len();
        let with_endless = match self.endless.len() {
            0 => 0,
            _ => endless.min(self.endless_max) + self.least_for(true) - 1,
        };
        let for_endless = with_endless.saturating_sub(self.living);
        self.to_take().saturating_sub(self.idle).max(for_endless)
    }

    /// Everything that a thread could take now.
    pub(super) fn to_take(&self) -> usize {
        let queues = self.lanes.len() + self.flushes.len() + self.shares.len();
        queues + self.calls_to_take()
    }

    /// Whether one more thread is to be woken now, which then counts as coming.
    pub(super) fn calls_one(&mut self) -> bool {
        let room = self.idle.min(COMING_MAX);
        let calls = self.coming < room && self.to_take() > self.coming;
        self.coming += usize::from(calls);
        calls
    }

    /// Whether one is to be woken for a lane or a mailbox, which count themselves how many are on
    /// their way to them.
    pub(super) fn calls_to_lane(&mut self) -> bool {
        self.coming = self.idle.min(self.coming + 1);
        self.idle > 0
    }

    /// A thread that slept is awake, whoever has woken it.
    pub(super) fn came(&mut self) {
        self.idle -= 1;
        // Also one that was not called, which then stands for one that was; there are no more on
        // their way than sleep.
        self.coming = self.coming.saturating_sub(1).min(self.idle);
    }

    pub(super) fn take(&mut self) -> Option<Work> {
        for _ in 0..4 {
            let kind = self.turn;
            self.turn = kind.next();
            let work = match kind {
                Kind::Flush => self.flushes.pop_front().map(Work::Flush),
                Kind::Call => self.take_call(),
                Kind::Lane => self.lanes.pop_front().map(Work::Lane),
                Kind::Share => self.shares.pop_front().map(Work::Share),
            };
            match work {
                Some(Work::Flush(_)) => self.flushing += 1,
                Some(Work::Lane(_)) => self.serving += 1,
                Some(Work::Call(..) | Work::Share(_)) => {}
                None => continue,
            }
            return work;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Run for Nothing {
        fn run(self: Arc<Self>) {}
    }

    /// Whether each call that is taken, until none can be, may wait for ever.
    fn taken(state: &mut PoolState) -> Vec<bool> {
        let calls = std::iter::from_fn(|| match state.take()? {
            Work::Call(_, is_endless) => Some(is_endless),
            _ => None,
        });
        calls.collect()
    }

    #[test]
    fn calls_that_may_wait_for_ever_leave_threads_to_the_others() {
        assert_eq!(endless_max(32), 27);
        // Threads, and how many are in calls of the one kind, and of the other.
        for (threads, endless, others) in [(1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 2, 1), (8, 6, 1)] {
            let mut state = PoolState::new(threads);
            state.living = threads;
            let first = state.queue_call(Arc::new(Nothing), true);
            (0..8).for_each(|_| _ = state.queue_call(Arc::new(Nothing), true));
            assert_eq!((first, state.calls_to_take()), (0, endless));
            assert_eq!(taken(&mut state), vec![true; endless]);
            (0..8).for_each(|_| _ = state.queue_call(Arc::new(Nothing), false));
            assert_eq!(state.calls_to_take(), others);
            assert_eq!(taken(&mut state), vec![false; others]);
            assert_eq!(
                (state.calling(), state.calls_to_take()),
                (endless + others, 0)
            );
            state.has_called(true);
            assert_eq!(taken(&mut state), [true], "the one that came first");
            assert!(state.take_back(first).is_none());
            assert!(state.take_back(8).is_some());
            assert_eq!(state.calls_waiting(), 16 - endless - others - 1);
        }
    }

    #[test]
    fn a_thread_that_lives_is_left_to_the_rest_and_one_more_is_started_for_it() {
        let mut state = PoolState::new(8);
        (0..3).for_each(|_| _ = state.queue_call(Arc::new(Nothing), true));
        assert_eq!((state.least_for(true), state.least_for(false)), (2, 1));
        assert_eq!((state.calls_to_take(), state.lacking()), (0, 4));
        // No second one could be started.
        (state.living, state.idle) = (1, 1);
        assert_eq!((taken(&mut state), state.lacking()), (vec![], 3));
        (state.living, state.idle) = (3, 1);
        assert_eq!((taken(&mut state), state.lacking()), (vec![true; 2], 1));
        _ = state.queue_call(Arc::new(Nothing), false);
        assert_eq!(taken(&mut state), [false]);
        // A thread that ends when the pool is closed leaves what is queued to the others.
        state.closed = true;
        assert_eq!(taken(&mut state), [true]);
        // Of one thread there is none to be left.
        let mut state = PoolState::new(1);
        _ = state.queue_call(Arc::new(Nothing), true);
        assert_eq!((state.least_for(true), state.lacking()), (1, 1));
        state.living = 1;
        assert_eq!(taken(&mut state), [true]);
    }

    #[test]
    fn two_at_most_are_on_their_way_and_those_that_come_call_the_others() {
        let mut state = PoolState::new(8);
        state.idle = 5;
        (0..5).for_each(|_| state.flushes.push_back(Arc::new(Nothing)));
        let mut called = 0;
        while state.calls_one() {
            called += 1;
        }
        assert_eq!(called, COMING_MAX);
        for left in (0..5).rev() {
            state.came();
            assert!(matches!(state.take(), Some(Work::Flush(_))));
            // One for each that comes, until all that sleep are on their way.
            assert_eq!(state.calls_one(), left >= COMING_MAX);
        }
        assert_eq!((state.idle, state.coming), (0, 0));
    }

    #[test]
    fn nobody_is_called_who_is_not_needed_or_does_not_sleep() {
        let mut state = PoolState::new(8);
        assert!(!state.calls_one());
        state.flushes.push_back(Arc::new(Nothing));
        assert!(
            !state.calls_one(),
            "all are at work, and look when they have done"
        );
        state.idle = 2;
        assert!(state.calls_one());
        assert!(!state.calls_one(), "one is enough");
        // One that has not been called takes it.
        state.came();
        assert!(state.take().is_some());
        state.flushes.push_back(Arc::new(Nothing));
        assert!(
            state.calls_one(),
            "the one that is on its way is not counted on"
        );
    }
}
