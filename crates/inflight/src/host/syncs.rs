//! Syncs that a calling thread waits for: alone, or among the operations of a batch.
//!
//! A batch leads flushes (see [`crate::commit`]) and lets its backend make them, because those of
//! many files then run at the same time. It begins them last, does not return to its caller before
//! they are over, and waits for nobody else meanwhile.
#![allow(unsafe_code)]

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::caller::Lease;
use super::shared::Shared;
use crate::backend::threads::execute::to_usize;
use crate::commit::{Commit, Seat, Turn};
use crate::completion::{Answer, Refusal};
use crate::foreign::contain;
use crate::op::{Prepare, Request, SyncOf};

/// What a sync is for.
pub(super) fn sync_of<O: Prepare>(operation: &O) -> SyncOf<'_> {
    operation.sync().expect("its plan is a sync")
}

/// Syncs on this thread, and blocks until that is over.
pub(super) fn sync_alone(shared: &Shared, sync: SyncOf<'_>) -> Answer {
    let SyncOf {
        commit,
        file,
        data_only,
    } = sync;
    if let Turn::Wait(seat) = commit.enter_alone(data_only, file) {
        return seat.wait();
    }
    shared.counters.plain_call();
    let answer = commit.alone(data_only);
    commit.over();
    answer
}

/// Operations that are being run together.
pub(super) struct Running<'r, 's> {
    pub(super) lease: &'r mut Lease<'s>,
    pub(super) syncs: Syncs,
}

/// The syncs among them.
#[derive(Default)]
pub(super) struct Syncs {
    /// Flushes that this thread has the proactor make: others may wait for them.
    led: Vec<(u32, Arc<Commit>)>,
    /// Those that others make.
    joined: Vec<(u32, Seat)>,
    /// Those that are told what one of these is told.
    with: BTreeMap<u32, Vec<u32>>,
}

impl Syncs {
    /// Whether flushes are in flight that others may wait for.
    pub(super) fn leads(&self) -> bool {
        !self.led.is_empty()
    }

    /// Delivers an answer. If it is that of a flush that others may wait for, it is settled first,
    /// and the next round is passed on.
    #[inline(always)]
    pub(super) fn tell(
        &mut self,
        token: u32,
        answer: Answer,
        mut deliver: impl FnMut(u32, Answer),
    ) {
        if self.led.is_empty() {
            return deliver(token, answer);
        }
        self.tell_led(token, answer, &mut deliver);
    }

    /// Apart, and by way of a pointer: what delivers is worth inlining once.
    #[cold]
    fn tell_led(&mut self, token: u32, answer: Answer, mut deliver: &mut dyn FnMut(u32, Answer)) {
        let told = self.settle(token, answer);
        deliver(token, told);
        self.tell_all_with(token, told, &mut deliver);
    }

    /// Waits for those that others make. From here on nobody waits for this thread.
    pub(super) fn wait(&mut self, mut deliver: impl FnMut(u32, Answer)) {
        debug_assert!(self.led.is_empty(), "every flush in flight has been told");
        for (token, seat) in std::mem::take(&mut self.joined) {
            let told = seat.wait();
            deliver(token, told);
            self.tell_all_with(token, told, &mut deliver);
        }
    }

    /// Waits for none of those that others make, because nobody wants to know any more: what would
    /// be flushed for them alone is not.
    pub(super) fn leave(&mut self) {
        for (_, seat) in std::mem::take(&mut self.joined) {
            let (_, waker) = seat.leave();
            contain(|| drop(waker));
        }
    }

    #[cold]
    fn settle(&mut self, token: u32, answer: Answer) -> Answer {
        let place = self.led.iter().position(|(led, _)| *led == token);
        let Some(place) = place else {
            return answer;
        };
        let (_, commit) = self.led.swap_remove(place);
        let told = commit.settle(answer);
        commit.over();
        told
    }

    #[cold]
    fn tell_all_with(&mut self, token: u32, told: Answer, deliver: &mut impl FnMut(u32, Answer)) {
        let with = self.with.remove(&token).unwrap_or_default();
        with.into_iter().for_each(|token| deliver(token, told));
    }
}

impl<'r, 's> Running<'r, 's> {
    pub(super) fn new(lease: &'r mut Lease<'s>) -> Self {
        Self {
            lease,
            syncs: Syncs::default(),
        }
    }

    /// Begins a sync, or joins those of the same file. Returns its answer if it came at once.
    fn sync<O: Prepare>(&mut self, token: u32, operation: &O, request: Request) -> Option<Answer> {
        let SyncOf {
            commit,
            file,
            data_only,
        } = sync_of(operation);
        match commit.enter(data_only, file) {
            Turn::Wait(seat) => self.syncs.joined.push((token, seat)),
            Turn::Lead if commit.failure().is_some() => {
                commit.over();
                return Some(Answer::refused(Refusal::SyncFailed));
            }
            Turn::Lead => {
                self.syncs.led.push((token, Arc::clone(commit)));
                // SAFETY: no memory is involved.
                unsafe { self.lease.proactor().push(token, &request) };
            }
        }
        None
    }

    /// Begins syncs, as far as there is room: one serves all of its file. Those that are answered
    /// at once go to `told`.
    pub(super) fn sync_held<O: Prepare>(
        &mut self,
        operations: &[O],
        held: &mut VecDeque<(u32, Request)>,
        told: &mut Vec<(u32, Answer)>,
    ) {
        let mut first: HashMap<*const Commit, (u32, Option<Answer>)> = HashMap::new();
        let mut shared = 0;
        // Those first who want metadata too, because a flush of data only does not serve them.
        let data_only = |token: u32| sync_of(&operations[to_usize(token)]).data_only;
        held.make_contiguous()
            .sort_by_key(|(token, _)| data_only(*token));
        while self.lease.proactor().has_room() {
            let Some((token, request)) = held.pop_front() else {
                break;
            };
            let operation = &operations[to_usize(token)];
            match first.entry(Arc::as_ptr(sync_of(operation).commit)) {
                Entry::Vacant(place) => {
                    let (_, answer) = place.insert((token, self.sync(token, operation, request)));
                    told.extend(answer.map(|answer| (token, answer)));
                }
                Entry::Occupied(place) => match *place.get() {
                    (_, Some(answer)) => told.push((token, answer)),
                    (first, None) => {
                        shared += 1;
                        self.syncs.with.entry(first).or_default().push(token);
                    }
                },
            }
        }
        self.lease.shared.counters.syncs().share(shared);
    }
}
