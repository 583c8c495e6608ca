//! Whose turn it is: what waits for the threads of a pool, and which of it one takes next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::pool::{Run, Serve};

/// What waits for the threads of a pool, and who they are; under the pool's lock.
pub(super) struct PoolState {
    /// One entry for each thread that has been called to a lane or a mailbox.
    pub(super) lanes: VecDeque<Arc<dyn Serve>>,
    /// Calls that wait for a thread, by numbers that grow.
    pub(super) calls: BTreeMap<u64, Arc<dyn Run>>,
    pub(super) next_number: u64,
    /// Flushes that wait for a thread.
    pub(super) flushes: VecDeque<Arc<dyn Run>>,
    /// Callers that have called for a thread to share their work.
    pub(super) shares: VecDeque<Arc<dyn Run>>,
    /// Threads that are in a call.
    pub(super) calling: usize,
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
    Call(Arc<dyn Run>),
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

impl PoolState {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            lanes: VecDeque::with_capacity(2 * threads_max),
            calls: BTreeMap::new(),
            next_number: 0,
            flushes: VecDeque::new(),
            shares: VecDeque::with_capacity(threads_max),
            calling: 0,
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

    /// Calls that could be taken now.
    pub(super) fn calls_to_take(&self, calls_max: usize) -> usize {
        self.calls.len().min(calls_max.saturating_sub(self.calling))
    }

    /// Everything that a thread could take now.
    pub(super) fn to_take(&self, calls_max: usize) -> usize {
        let queues = self.lanes.len() + self.flushes.len() + self.shares.len();
        queues + self.calls_to_take(calls_max)
    }

    /// Whether one more thread is to be woken now, which then counts as coming.
    pub(super) fn calls_one(&mut self, calls_max: usize) -> bool {
        let room = self.idle.min(COMING_MAX);
        let calls = self.coming < room && self.to_take(calls_max) > self.coming;
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

    pub(super) fn take(&mut self, calls_max: usize) -> Option<Work> {
        for _ in 0..4 {
            let kind = self.turn;
            self.turn = kind.next();
            let work = match kind {
                Kind::Flush => self.flushes.pop_front().map(Work::Flush),
                Kind::Call if self.calls_to_take(calls_max) == 0 => None,
                Kind::Call => self.calls.pop_first().map(|(_, call)| Work::Call(call)),
                Kind::Lane => self.lanes.pop_front().map(Work::Lane),
                Kind::Share => self.shares.pop_front().map(Work::Share),
            };
            match work {
                Some(Work::Call(_)) => self.calling += 1,
                Some(Work::Flush(_)) => self.flushing += 1,
                Some(Work::Lane(_)) => self.serving += 1,
                Some(Work::Share(_)) => {}
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

    #[test]
    fn two_at_most_are_on_their_way_and_those_that_come_call_the_others() {
        let mut state = PoolState::new(8);
        state.idle = 5;
        (0..5).for_each(|_| state.flushes.push_back(Arc::new(Nothing)));
        let mut called = 0;
        while state.calls_one(7) {
            called += 1;
        }
        assert_eq!(called, COMING_MAX);
        for left in (0..5).rev() {
            state.came();
            assert!(matches!(state.take(7), Some(Work::Flush(_))));
            // One for each that comes, until all that sleep are on their way.
            assert_eq!(state.calls_one(7), left >= COMING_MAX);
        }
        assert_eq!((state.idle, state.coming), (0, 0));
    }

    #[test]
    fn nobody_is_called_who_is_not_needed_or_does_not_sleep() {
        let mut state = PoolState::new(8);
        assert!(!state.calls_one(7));
        state.flushes.push_back(Arc::new(Nothing));
        assert!(
            !state.calls_one(7),
            "all are at work, and look when they have done"
        );
        state.idle = 2;
        assert!(state.calls_one(7));
        assert!(!state.calls_one(7), "one is enough");
        // One that has not been called takes it.
        state.came();
        assert!(state.take(7).is_some());
        state.flushes.push_back(Arc::new(Nothing));
        assert!(
            state.calls_one(7),
            "the one that is on its way is not counted on"
        );
    }
}
