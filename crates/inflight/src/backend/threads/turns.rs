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
    /// So many of the threads that are woken next are to end when there is nothing to do, because
    /// others have been started in their place.
    pub(super) surplus: usize,
    /// Threads that have been started and have not ended.
    pub(super) living: usize,
    pub(super) closed: bool,
}

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
