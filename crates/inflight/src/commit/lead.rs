//! How a leader serves others, and who leads next.
//!
//! A leader that serves tasks keeps the lead while it wakes them, and then waits a little for them
//! to come back. Threads come back by themselves: one that was served together with others waits
//! for them where it asks next, and makes the flush for all, so that no thread of the pool has to
//! be woken between them. So the lead of those is given up before anybody is woken.
//!
//! The same holds for whatever is flushed in no time, as in file systems in memory. There waking
//! takes longer than the flush: whoever comes meanwhile would have to be woken as well, and soon
//! nobody would find the file without a leader. So a task that asks meanwhile looks for the end of
//! that flush before it waits. And whoever has led serves threads that wait by then, instead of
//! calling the pool.
//!
//! Where the pool has no thread and gets none, those who wait lead each other. Whoever leads makes
//! the flush that answers it, and offers the next one to those who wait by then: to a thread that
//! sleeps, or else to all tasks, of which the first that is polled makes it. So nobody serves
//! others for as long as more of them come.

use std::hint;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::round::Round;
use super::{Asker, Commit, Keep, Lead, RUNS_WAKERS, Seat, State, Turn, lock};
use crate::completion::Answer;
use crate::fork;
use crate::sync::{MutexGuard, Ordering, PoisonError};

impl Commit {
    /// The flush that this thread has led is over and settled.
    pub(crate) fn over(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        // Who led is served too, and comes back if it is like the others.
        state.expected = state.waiting() + 1;
        self.leave(state);
    }

    /// Gives up the lead. If anybody waits, a thread of the pool takes it, or one of them. Threads
    /// that wait for what most likely takes nothing are served here; not tasks, because whoever
    /// calls this may hold locks that a waker wants.
    pub(super) fn leave(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.ends_lead() {
            return;
        }
        let round = match self.takes_nothing(&state) {
            true => state.next.take_if(|round| round.is_of_threads()),
            false => None,
        };
        let Some(round) = round else {
            return self.pass_on(state);
        };
        drop(state);
        if self.serve(round) {
            self.pass_on(lock(&self.state));
        }
    }

    /// Has somebody else lead, if anybody waits: a thread of the pool, or if there is none, one of
    /// those who wait. Else whoever leads without a pool would do so for as long as others come.
    fn pass_on(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if self.calls_the_pool(state) {
            return;
        }
        let mut state = lock(&self.state);
        if state.ends_lead() {
            return;
        }
        state.lead = Lead::Free;
        let next = state.next.as_ref();
        let wakers = next.map_or_else(Vec::new, |round| round.offer());
        drop(state);
        self.wake_all(wakers.into_iter());
    }

    /// Has somebody lead: a thread of the pool, or this one if there is none, for one flush.
    pub(super) fn have_led(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if !self.calls_the_pool(state) {
            self.lead_once();
        }
    }

    /// Makes the next flush, if anybody waits for it, and passes the lead on.
    fn lead_once(self: &Arc<Self>) {
        if self.next_round().is_some_and(|round| self.serve(round)) {
            self.leave(lock(&self.state));
        }
    }

    /// For one that waits, and whose round has been offered to those who do: makes its flush,
    /// unless somebody else is about to.
    pub(super) fn accept(self: &Arc<Self>, seat: &Seat) -> Option<Answer> {
        let mut state = lock(&self.state);
        let is_next = state.next.as_ref().is_some_and(|next| seat.is_in(next));
        if !is_next || !state.is_offered() {
            return None;
        }
        state.lead = Lead::Taken;
        drop(state);
        self.lead_once();
        seat.answer()
    }

    /// The state, where a task makes its flush at once: nobody else makes one or waits for one. If
    /// it is only that one is being made that takes nothing, it looks for the end of that one: a
    /// task that waited for it would have to be woken, and to be waited for by the next ones.
    pub(super) fn free_for(&self, asker: Asker) -> Option<MutexGuard<'_, State>> {
        let mut begun = None;
        loop {
            let state = lock(&self.state);
            if !self.is_short(&state, asker) || state.waiting() > 0 {
                return None;
            }
            if !state.is_led() {
                return Some(state);
            }
            if !self.takes_nothing(&state)
                || begun.get_or_insert_with(Instant::now).elapsed() >= self.flush.looks_for()
            {
                return None;
            }
            drop(state);
            // Who makes it wants the lock too.
            (0..4).for_each(|_| hint::spin_loop());
        }
    }

    /// Whether the next flush most likely takes no time at all. One that another program or machine
    /// serves may take any, whatever the last one did.
    fn takes_nothing(&self, state: &State) -> bool {
        let [last, _] = state.lately.took();
        !self.flush.is_served()
            && last.is_some_and(|took| self.flush.is_short(took, usize::MAX))
            && self.has_little()
    }

    /// A thread of the pool has come that was called to lead. It makes flushes for as long as syncs
    /// wait, unless somebody who waits has taken the lead, or something else waits for this thread.
    pub(crate) fn lead(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_called = false;
        let leads = state.take_if_free();
        drop(state);
        if leads {
            self.lead_on();
        }
    }

    /// Makes flushes for as long as syncs wait and this thread leads.
    fn lead_on(self: &Arc<Self>) {
        while let Some(round) = self.next_round() {
            let leads = self.serve(round);
            // Another thread of the pool takes the rest, behind what it has to do.
            if !leads || self.flush.is_wanted() && self.calls_the_pool(lock(&self.state)) {
                return;
            }
        }
    }

    /// Calls a thread of the pool to lead. False if there is none: then the lead is this thread's.
    fn calls_the_pool(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> bool {
        state.lead = Lead::Free;
        if state.is_called {
            return true;
        }
        state.is_called = true;
        drop(state);
        if self.flush.delegate(self) {
            return true;
        }
        let mut state = lock(&self.state);
        state.is_called = false;
        // Somebody who waits may have taken it meanwhile.
        !state.take_if_free()
    }

    /// For a thread that has waited for a while: makes the flush that it waits for, if nobody is
    /// about to do so whom it must not wait for. Threads of the pool that are called may not come,
    /// and a leader that runs wakers may be this very thread, or run one that wants what this
    /// thread has.
    pub(crate) fn take_over(self: &Arc<Self>, seat: &Seat) -> Option<Answer> {
        let mut state = lock(&self.state);
        let is_next = state.next.as_ref().is_some_and(|next| seat.is_in(next));
        if !is_next || !(state.lead == Lead::Free || state.is_waking) {
            return None;
        }
        state.take();
        state.expected = 0;
        if let Some(round) = state.next.take_if(|round| round.is_of_threads()) {
            drop(state);
            if self.serve(round) {
                self.leave(lock(&self.state));
            }
            return seat.answer();
        }
        // Tasks wait as well, and wakers are not run here: this one's flush is its own.
        drop(state);
        let (answer, _) = self.timed(seat.stand_up());
        self.flush.count(1);
        self.over();
        Some(answer)
    }

    /// As [`Commit::enter`], for a thread that waits for nothing else: if it was served together
    /// with others the last time, it leads those who have come back by then, and has its answer.
    pub(crate) fn enter_alone(self: &Arc<Self>, data_only: bool, file: &dyn Keep) -> Turn {
        let mut state = lock(&self.state);
        if state.is_led() || state.expected < 2 {
            return self.turn(state, data_only, file);
        }
        state.lead = Lead::Taken;
        state.promised = None;
        let seat = state.sit(self, data_only, file, None);
        let mut state = self.gather(state);
        // Tasks have come as well, and wakers are not run here.
        let round = state.next.take_if(|round| round.is_of_threads());
        drop(state);
        if round.is_none_or(|round| self.serve(round)) {
            self.leave(lock(&self.state));
        }
        Turn::Wait(seat)
    }

    /// Waits a little for those who can be expected to ask for the next flush too.
    fn gather<'c>(&'c self, mut state: MutexGuard<'c, State>) -> MutexGuard<'c, State> {
        let [last, _] = state.lately.took();
        let gather = last.and_then(|took| self.flush.gathers_for(took));
        let until = gather.map(|gather| Instant::now() + gather.at_most);
        while let (Some(until), true) = (until, state.waiting() < state.expected) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = if gather.is_some_and(|gather| gather.sleeps) {
                let waited = self.gathered.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                drop(state);
                std::thread::yield_now();
                lock(&self.state)
            };
        }
        // Not waited for any more.
        state.expected = 0;
        state
    }

    /// Closes the next round, once those are there who can be expected. When nobody waits, nobody
    /// leads any more.
    fn next_round(&self) -> Option<Arc<Round>> {
        let mut state = self.gather(lock(&self.state));
        match state.ends_lead() {
            true => None,
            false => state.next.take(),
        }
    }

    /// Makes the flush of a round. False if this thread leads no longer.
    pub(super) fn serve(self: &Arc<Self>, round: Arc<Round>) -> bool {
        let are_threads = round.is_of_threads();
        let Some((data_only, kept)) = round.begin() else {
            return true;
        };
        let (answer, took) = self.timed(data_only);
        // Before anybody is told: who drops the file then may count on its being closed.
        drop(kept);
        let took_nothing = self.flush.is_short(took, usize::MAX);
        let mut state = lock(&self.state);
        let expected = round.waiting() + state.waiting();
        let come_back = expected > 1 && !took_nothing;
        state.expected = if come_back { expected } else { 0 };
        self.learn(&mut state, answer, took, expected);
        let has_left = (took_nothing || are_threads) && state.waiting() == 0;
        state.lead = if has_left { Lead::Nobody } else { Lead::Taken };
        state.is_waking = !has_left && !are_threads;
        let taken = state.taken;
        drop(state);
        let (served, mut wakers) = round.tell(answer);
        self.flush.count(served);
        if !self.wake_all(wakers.drain(..).flatten()) {
            return false;
        }
        // The memory is used again with the round.
        round.give_back(wakers);
        let mut state = lock(&self.state);
        state.spare = Some(round);
        let leads = !has_left && state.taken == taken;
        // Else the flag is that of another leader.
        state.is_waking &= !leads;
        leads
    }

    /// Wakes tasks. False if a waker has come back in a forked child: who waits is in the parent,
    /// and so may be the thread that had a lock.
    fn wake_all(&self, wakers: impl Iterator<Item = Waker>) -> bool {
        let forks = fork::generation();
        // A waker may make this thread lead, and run wakers, while it does so already.
        let before = RUNS_WAKERS.with(|runs| runs.replace(true));
        wakers.for_each(|waker| self.flush.wake(waker));
        RUNS_WAKERS.with(|runs| runs.set(before));
        fork::generation() == forks
    }

    /// Makes a flush, and tells how long that took.
    pub(super) fn timed(&self, data_only: bool) -> (Answer, Duration) {
        self.begins();
        let begun = Instant::now();
        let answer = self.checked(|| self.flush.flush(data_only));
        (answer, begun.elapsed())
    }

    /// What is written from now on is for the next flush.
    pub(super) fn begins(&self) {
        self.unflushed.store(0, Ordering::Relaxed);
    }

    /// Learns from a flush when so many syncs have been served by it or wait; one, if all have left
    /// meanwhile.
    pub(super) fn learn(&self, state: &mut State, answer: Answer, took: Duration, syncs: usize) {
        let asked = syncs.max(1);
        let [last, _] = state.lately.took();
        if last.is_none() && answer.errno().is_none() {
            self.flush.was_first(took);
        }
        let is_short = self.flush.is_short(took, asked);
        state.lately.learn(took, asked, is_short);
    }
}
