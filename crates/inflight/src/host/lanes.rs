//! The lanes of one engine, and the keeper: a thread that looks whether runtimes look after them.
//!
//! A runtime may be busy with something else for ever: a task that blocks in another executor, a
//! runtime that was left without being dropped. What waits in its lane would wait with it. So
//! the keeper looks at the lanes every 50 ms as long as something is in flight, and has a driver
//! thread take over those where something has waited for ten looks in a row while their task has
//! done nothing: a busy machine may well keep a thread from its processor for less than that. With
//! nothing in flight the keeper sleeps without a limit.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Id;

use super::lane::Lane;
use crate::sync::lock;

/// How often the keeper looks.
const TICK: Duration = Duration::from_millis(50);

/// After so many looks in a row a lane is taken over.
const LOOKS: u32 = 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Lanes {
    /// Whether there has been one: where there has not, nobody looks for it.
    any: AtomicBool,
    state: Mutex<State>,
    keeper: Arc<Keeper>,
}

#[derive(Default)]
struct State {
    /// Those whose task lives.
    lanes: Vec<Arc<Lane>>,
    /// The others, as long as something is in flight.
    retired: Vec<Arc<Lane>>,
    keeper: Option<JoinHandle<()>>,
}

/// How the keeper is told that there is something to look after.
#[derive(Default)]
pub(super) struct Keeper {
    sleeps: AtomicBool,
    is_ending: Mutex<bool>,
    told: Condvar,
}

impl Lanes {
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The lane of a runtime that serves all threads; its first, if that has not ended.
    pub(crate) fn find(&self, runtime: Id) -> Option<Arc<Lane>> {
        let state = lock(&self.state);
        let mut lanes = state.lanes.iter();
        lanes.find(|lane| lane.runtime == runtime).cloned()
    }

    /// The lane of a runtime that the fewest threads have as their own, for one more: `have` counts
    /// it, while nobody else looks.
    pub(super) fn assign<R>(&self, runtime: Id, have: impl FnOnce(&Arc<Lane>) -> R) -> Option<R> {
        let state = lock(&self.state);
        let lanes = state.lanes.iter().filter(|lane| lane.runtime == runtime);
        let lane = lanes.min_by_key(|lane| lane.crowd().threads(lane.place()))?;
        Some(have(lane))
    }

    pub(super) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Adds the lanes of a runtime, and starts the keeper with the first. False if it has got
    /// others meanwhile.
    ///
    /// # Errors
    ///
    /// If the keeper's thread cannot be started.
    pub(super) fn add(self: &Arc<Self>, runtime: Id, lanes: &[Arc<Lane>]) -> io::Result<bool> {
        let mut state = lock(&self.state);
        if state.lanes.iter().any(|known| known.runtime == runtime) {
            return Ok(false);
        }
        if state.keeper.is_none() {
            let this = Arc::clone(self);
            let thread = thread::Builder::new().name("inflight-keeper".to_owned());
            state.keeper = Some(thread.spawn(move || this.keep())?);
        }
        state.lanes.extend_from_slice(lanes);
        self.any.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Takes a lane, whose task has ended, from those that are found.
    pub(super) fn retire(&self, lane: &Arc<Lane>) {
        let is_over = |lane: &Arc<Lane>| lane.unanswered() == 0;
        let mut state = lock(&self.state);
        state.lanes.retain(|known| !Arc::ptr_eq(known, lane));
        let retired = &mut state.retired;
        let over: Vec<_> = retired.extract_if(.., |lane| is_over(lane)).collect();
        if !is_over(lane) {
            retired.push(Arc::clone(lane));
        }
        drop(state);
        drop(over);
    }

    fn all(&self) -> Vec<Arc<Lane>> {
        let state = lock(&self.state);
        state.lanes.iter().chain(&state.retired).cloned().collect()
    }

    /// Requests without an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        self.all().iter().map(|lane| lane.unanswered()).sum()
    }

    /// Ends the lanes once nothing is in flight, but waits for that no longer than until
    /// `deadline`. Returns how many requests are then left.
    pub(crate) fn end(&self, deadline: Instant) -> u32 {
        let mut state = lock(&self.state);
        let keeper = state.keeper.take();
        let mut lanes = std::mem::take(&mut state.lanes);
        lanes.append(&mut state.retired);
        drop(state);
        self.keeper.end();
        // It may have dropped the last handle of the engine itself.
        if let Some(keeper) = keeper
            && keeper.thread().id() != thread::current().id()
        {
            // It runs no foreign code.
            let _ = keeper.join();
        }
        lanes.iter().map(|lane| lane.end(deadline)).sum()
    }

    /// The keeper.
    fn keep(&self) {
        // Lanes that wait: how often their task had worked, and in how many looks they have waited.
        let mut seen: Vec<(Arc<Lane>, u64, u32)> = Vec::new();
        let mut was_quiet = false;
        loop {
            if was_quiet {
                // Set before the lanes are looked at: whoever submits after that sees it, because
                // both take the lock of the mailbox.
                self.keeper.sleeps.store(true, Ordering::Relaxed);
            }
            let before = std::mem::take(&mut seen);
            let mut is_quiet = true;
            for lane in self.all() {
                is_quiet &= lane.unanswered() == 0;
                let passes = lane.passes();
                if !lane.waits_for_its_task() {
                    continue;
                }
                let mut waited = before
                    .iter()
                    .filter(|(known, seen, _)| Arc::ptr_eq(known, &lane) && *seen == passes);
                let looks = waited.next().map_or(0, |(_, _, looks)| looks + 1);
                if looks >= LOOKS {
                    lane.take_over("a tokio runtime has not polled its lane for half a second");
                }
                seen.push((lane, passes, looks));
            }
            drop(before);
            if !self.keeper.rest(was_quiet && is_quiet) {
                return;
            }
            was_quiet = is_quiet;
        }
    }
}

impl Keeper {
    /// Something has been handed to a lane.
    #[inline]
    pub(super) fn attend(&self) {
        if self.sleeps.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let is_ending = lock(&self.is_ending);
        self.sleeps.store(false, Ordering::Relaxed);
        drop(is_ending);
        self.told.notify_all();
    }

    fn end(&self) {
        *lock(&self.is_ending) = true;
        self.told.notify_all();
    }

    /// Waits for a tick, after having slept, if it may, until there is something to look after.
    /// False when the keeper is to end.
    fn rest(&self, may_sleep: bool) -> bool {
        let mut is_ending = lock(&self.is_ending);
        while may_sleep && self.sleeps.load(Ordering::Relaxed) && !*is_ending {
            let waited = self.told.wait(is_ending);
            is_ending = waited.unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeps.store(false, Ordering::Relaxed);
        let until = Instant::now() + TICK;
        while !*is_ending {
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return true;
            }
            let waited = self.told.wait_timeout(is_ending, left);
            is_ending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}
