//! Those who wait for a buffer of a pool, in the order in which they came.
//!
//! A buffer that comes back is handed to the first of them, and is theirs whether or not they have
//! been woken: nobody who comes later overtakes, and who leaves has it to pass on. Plain data under
//! the pool's lock: no waker is woken, cloned or dropped here.

use std::collections::BTreeMap;
use std::mem;
use std::task::Waker;

/// The number by which one of them is known. None is given twice.
pub(super) type Turn = u64;

/// See the module.
pub(super) struct Takers {
    waiting: BTreeMap<Turn, Waker>,
    /// Numbers of buffers that are theirs and that they have not yet come for.
    handed: BTreeMap<Turn, u32>,
    turns: Turn,
}

impl Takers {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            handed: BTreeMap::new(),
            turns: 0,
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Adds one, as the last.
    pub(super) fn join(&mut self, waker: Waker) -> Turn {
        self.turns += 1;
        self.waiting.insert(self.turns, waker);
        self.turns
    }

    /// Hands a buffer to the first who waits, and returns whom to wake; `None` if nobody does.
    #[inline]
    pub(super) fn hand(&mut self, number: u32) -> Option<Waker> {
        let (turn, waker) = self.waiting.pop_first()?;
        self.handed.insert(turn, number);
        Some(waker)
    }

    /// The waker of one who waits.
    pub(super) fn waker(&mut self, turn: Turn) -> Option<&mut Waker> {
        self.waiting.get_mut(&turn)
    }

    /// The buffer that one has been handed, who then is none of them any more.
    pub(super) fn collect(&mut self, turn: Turn) -> Option<u32> {
        self.handed.remove(&turn)
    }

    /// One goes without a buffer. Returns the waker.
    pub(super) fn leave(&mut self, turn: Turn) -> Option<Waker> {
        self.waiting.remove(&turn)
    }

    /// In a child, forgets all of them, and returns the buffers that they had been handed. Most are
    /// on threads that are not there, and what their wakers touch may be locked for ever.
    #[cold]
    pub(super) fn forget(&mut self) -> impl Iterator<Item = u32> {
        mem::forget(mem::take(&mut self.waiting));
        mem::take(&mut self.handed).into_values()
    }
}
