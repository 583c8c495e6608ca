//! The single-owner state machine: a backend, a fixed table of slots, and the rules by which a
//! request is seen through.
//!
//! It has no lock, starts no thread, and blocks only in [`Proactor::turn`], when its host asks it
//! to. What it deliberately does not know: files, buffers, batches, who its host is.
//! Next: [`slots`], [`pushing`], [`filling`], [`splits`], [`resolve`], [`aside`], [`older`],
//! [`waiting`], then [`crate::backend`].
#![allow(unsafe_code)]

mod aside;
mod filling;
mod older;
mod pushing;
mod resolve;
mod slots;
mod splits;
mod tally;
mod waiting;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::alarm::Alarm;
use crate::backend::threads::execute::to_usize;
use crate::backend::threads::pool::Pool;
use crate::backend::{Backend, Broken};
use crate::completion::{Answer, Completion};
use crate::op::KINDS;
use aside::Aside;
use older::Older;
use slots::{Completed, Slots};
use splits::Split;

pub(crate) use aside::UNTOLD;
pub(crate) use tally::{Count, Tally};
pub(crate) use waiting::Looks;

/// What a turn waits for beside completions.
#[derive(Clone, Copy)]
enum Wait {
    /// Nothing, not even those: what is queued is handed over.
    Not,
    /// Nothing.
    Through,
    /// Nothing; they are looked for for so long first, whoever else decides that.
    Looking(Duration),
    /// The alarm, and a time; `true` if nothing is in flight, so that there is nothing else.
    OrAlarm(Option<Duration>, bool),
    /// Nothing, and what has completed is looked for where it is, if the kernel need not be entered
    /// for it.
    Now,
}

/// Owner of the operations in flight on one thread.
pub(crate) struct Proactor {
    backend: Backend,
    slots: Slots,
    /// Operations to be handed over at the next turn.
    queued: u32,
    /// Whether the backend takes direct transfers only; all else is for the pool.
    is_for_direct_transfers: bool,
    /// Whether no more than `AT_ONCE` direct transfers are handed over at a time.
    hands_over_few: bool,
    /// Completions of the backend, ever, but for those that somebody looks for who decides that by
    /// himself: trials count completions, and would count what another one has brought about.
    reaped: u64,
    /// Requests in parts; a place of `None` is free.
    splits: Vec<Option<Split>>,
    /// Splits with parts still to be issued, in the order they came.
    unissued: Vec<u32>,
    /// Answers that have been counted, to be delivered at the next turn.
    early: Vec<(u32, Answer)>,
    /// Completions that need more than to be passed on: slot and result.
    troubled: Vec<(u32, i32)>,
    /// Kinds of operations that this backend refuses, all of them once it is broken; they are done
    /// by plain system calls, or by the pool if it has no worker for them now.
    refused: [bool; KINDS],
    /// Names of the kinds that have been refused since this was last asked.
    newly_refused: Vec<&'static str>,
    /// Why the backend cannot be used any more.
    broken: Option<io::Error>,
    /// What threads of the pool do beside a ring.
    aside: Aside,
    /// What Linux AIO does there.
    older: Older,
    /// Whether the owner has to be back by some time, so that nothing is made by its thread that
    /// one of the pool can make.
    is_in_time: bool,
    /// Decides whether completions are looked for.
    looks: Option<Box<dyn Looks>>,
    tally: Arc<Tally>,
    /// Whether there may be something for [`Proactor::take_fallbacks`].
    has_news: bool,
}

impl Proactor {
    /// A proactor for at most `capacity` operations in flight. `supported` tells for each kind
    /// of operation whether the backend has it.
    pub(crate) fn new(backend: Backend, capacity: u32, supported: [bool; KINDS]) -> Self {
        let room = to_usize(capacity);
        Self {
            is_for_direct_transfers: backend.is_for_direct_transfers(),
            hands_over_few: backend.differs_from_plain_calls(),
            backend,
            slots: Slots::new(capacity),
            queued: 0,
            reaped: 0,
            splits: Vec::new(),
            unissued: Vec::new(),
            early: Vec::with_capacity(room),
            troubled: Vec::with_capacity(room),
            refused: supported.map(|supported| !supported),
            newly_refused: Vec::new(),
            broken: None,
            aside: Aside::default(),
            older: Older::default(),
            is_in_time: false,
            looks: None,
            tally: Arc::new(Tally::default()),
            has_news: false,
        }
    }

    /// Has requests that ask for it done by threads of this pool, beside the backend.
    pub(crate) fn with_pool(mut self, pool: Arc<Pool>) -> Self {
        self.aside = Aside::new(pool);
        self
    }

    /// For one that whoever watches the backend's descriptor drives, and its alarm signals that.
    #[cfg(feature = "tokio")]
    pub(crate) fn announced(mut self) -> Self {
        self.aside.be_announced();
        self
    }

    /// Most operations in flight.
    pub(crate) fn capacity(&self) -> u32 {
        self.slots.capacity()
    }

    /// Whether it has a ring, or asynchronous calls.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.backend.differs_from_plain_calls()
    }

    /// Whether a request can be pushed now.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.slots.has_room() && self.unissued.is_empty()
    }

    /// Operations pushed whose answers have not been delivered.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    /// Whether nothing is in flight and nothing remains to be delivered.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.in_flight() == 0 && self.unissued.is_empty() && self.early.is_empty()
    }

    /// Whether [`Proactor::turn`] has something to hand over or to deliver at once.
    pub(crate) fn needs_turn(&self) -> bool {
        self.queued > 0 || !self.early.is_empty()
    }

    /// Has completions announced to whoever watches the backend's descriptor, or not.
    #[cfg(feature = "tokio")]
    pub(crate) fn announce(&mut self, is_wanted: bool) {
        self.backend.announce(is_wanted);
    }

    /// Whether [`Proactor::turn`] would get further now: hand over, reap or deliver something.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_work(&mut self) -> bool {
        if self.slots.in_flight() == 0 {
            // Only the alarm can be there, and turns do not look for it.
            self.backend.reap(|_| {});
        }
        let has_parts = !self.unissued.is_empty() && self.slots.has_room();
        has_parts
            || self.needs_turn()
            || self.backend.has_completed()
            || self.backend.unsubmitted() > 0
            || self.aside.has_completed()
            || self.older.has_work()
    }

    /// Whether something is in flight that is not in the backend.
    #[inline(always)]
    fn has_something_beside(&self) -> bool {
        self.aside.is_busy() | self.older.is_busy()
    }

    /// Has direct transfers handed over a few at a time from now on, or all that are queued. A pool
    /// of threads tells the device of each by itself anyway.
    pub(crate) fn hand_over_few(&mut self, is_wanted: bool) {
        self.hands_over_few = is_wanted && self.backend.differs_from_plain_calls();
    }

    /// How many operations of the backend have completed so far; see the field.
    #[inline]
    pub(crate) fn reaped(&self) -> u64 {
        self.reaped
    }

    /// Queues the operation of a slot, once more or for the first time.
    #[cold]
    fn requeue(&mut self, index: u32) {
        let (user_data, slot) = (self.slots.user_data(index), self.slots.get(index));
        let op = slot.op;
        // What a thread of the pool has done a step of goes on there: the ring would only hand it
        // to a worker of the kernel, and its refusals are not the operation's own.
        match self.is_for_direct_transfers || slot.is_settled() {
            // SAFETY: whoever pushed the request keeps its memory valid until its answer has been
            // delivered, and it has not been; slots bound what is in flight.
            false => unsafe { self.queue(user_data, &op) },
            // SAFETY: as above.
            true => unsafe { self.queue_aside(user_data, &op, false) },
        }
    }

    /// Hands over what has been pushed, waits until `at_least` operations have completed (or a
    /// signal comes), and delivers every answer that is there. `deliver` must not panic.
    #[inline]
    pub(crate) fn turn(&mut self, at_least: u32, deliver: impl FnMut(u32, Answer)) {
        self.turn_with(at_least, Wait::Through, deliver);
    }

    /// Whether a request for a thread is the only one in flight, and nobody has been told of it.
    pub(crate) fn has_one_for_a_thread(&self) -> bool {
        let is_for_a_thread = self.aside.is_busy() || !self.backend.differs_from_plain_calls();
        let is_one = self.slots.in_flight() == 1 && self.queued == 1;
        is_for_a_thread && is_one && self.unissued.is_empty() && self.early.is_empty()
    }

    /// Makes one request for which no thread can be had, for an owner that never waits, as it has
    /// always something to do. The next turn delivers the answer.
    pub(crate) fn make_one(&mut self) {
        self.aside.make_one();
        self.backend.make_one();
    }

    /// Makes that request on this thread, which nothing interrupts meanwhile.
    pub(crate) fn turn_alone(&mut self, deliver: impl FnMut(u32, Answer)) {
        self.be_interrupted(false);
        self.turn(1, deliver);
        self.be_interrupted(true);
    }

    /// Whether the owner is interrupted by its alarm from now on, so that it leaves to the pool
    /// what is for that.
    pub(crate) fn be_interrupted(&mut self, is_interrupted: bool) {
        self.aside.be_interrupted(is_interrupted);
        self.backend.be_interrupted(is_interrupted);
    }

    /// Waits until nothing is in flight; nobody wants the answers any more.
    #[cold]
    pub(crate) fn drain(&mut self) {
        while !self.is_idle() {
            self.turn(u32::MAX, |_, _| {});
        }
    }

    /// What interrupts [`Proactor::turn_or`], from any thread.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub(crate) fn alarm(&mut self) -> io::Result<Alarm> {
        self.aside.be_interrupted(true);
        self.backend.alarm()
    }

    /// As [`Proactor::turn`], but it also comes back when the alarm is rung, and after `at_most`.
    /// With nothing in flight it waits for these two alone.
    pub(crate) fn turn_or(
        &mut self,
        at_least: u32,
        at_most: Option<Duration>,
        deliver: impl FnMut(u32, Answer),
    ) {
        if self.is_idle() && self.broken.is_none() {
            if let Err(broken) = self.hand_over(1, Wait::OrAlarm(at_most, true)) {
                self.salvage(broken, &mut |_, _| {});
            }
            // Only the alarm can be there.
            self.backend.reap(|_| {});
            return;
        }
        self.turn_with(at_least, Wait::OrAlarm(at_most, false), deliver);
    }

    #[inline(always)]
    fn turn_with(&mut self, at_least: u32, wait: Wait, mut deliver: impl FnMut(u32, Answer)) {
        if !self.unissued.is_empty() {
            self.issue_parts();
        }
        let mut at_least = at_least.min(self.slots.in_flight());
        if !self.troubled.is_empty() {
            // What the backend has not taken is not waited for.
            at_least = 0;
        }
        if !self.early.is_empty() {
            // Nobody is to wait for the others while these are here.
            at_least = 0;
            self.deliver_early(&mut deliver);
        }
        if self.broken.is_some() || self.slots.in_flight() == 0 {
            return;
        }
        let handed_over = match self.has_something_beside() {
            false => self.hand_over(at_least, wait),
            true => self.hand_over_beside(at_least, wait),
        };
        self.conclude(handed_over, &mut deliver);
    }

    /// Delivers what has come of handing over.
    #[inline(always)]
    fn conclude(&mut self, handed_over: Result<(), Broken>, deliver: &mut impl FnMut(u32, Answer)) {
        if !self.reap(deliver) {
            completions_lost("the completion queue has overflowed");
        }
        if self.aside.is_busy() {
            self.reap_aside(deliver);
        }
        if self.older.is_busy() {
            self.reap_started(deliver);
        }
        self.settle(deliver);
        if self.aside.is_announced() {
            self.announce_aside();
        }
        if let Err(broken) = handed_over {
            self.salvage(broken, deliver);
        }
        self.tally.in_flight.set(u64::from(self.slots.in_flight()));
    }

    /// Hands over what has been pushed, if anything: the device works while this thread copies, or
    /// waits in a call, and others may wait for a flush that is queued here.
    #[inline]
    pub(crate) fn submit_queued(&mut self) {
        if self.queued > 0 {
            self.submit();
        }
    }

    /// Hands over what has been pushed, without a look at what has completed.
    #[cold]
    pub(crate) fn submit(&mut self) {
        let handed_over = match self.has_something_beside() {
            false => self.hand_over(0, Wait::Not),
            true => self.hand_over_beside(0, Wait::Not),
        };
        if self.aside.is_announced() {
            // There may be no turn before one completes.
            self.announce_aside();
        }
        if handed_over.is_err() {
            let mut answers = Vec::new();
            self.conclude(handed_over, &mut |token, answer| {
                answers.push((token, answer))
            });
            self.early.append(&mut answers);
        }
    }

    /// Takes the next step for what has completed and is not simply answered.
    #[inline]
    fn settle(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        while let Some((index, result)) = self.troubled.pop() {
            if let Some((token, answer)) = self.resolve(index, result) {
                self.tally.answered.add(1);
                deliver(token, answer);
            }
        }
    }

    #[inline]
    fn hand_over(&mut self, at_least: u32, wait: Wait) -> Result<(), Broken> {
        self.all_is_handed_over();
        let turned = self.wait(at_least, wait);
        self.count_enters();
        turned
    }

    #[inline(always)]
    fn count_enters(&mut self) {
        let enters = self.backend.enters() + self.older.calls();
        self.tally.enters.set(enters);
    }

    /// Nothing waits to be handed over.
    fn all_is_handed_over(&mut self) {
        self.queued = 0;
        self.tally.in_flight.set(u64::from(self.slots.in_flight()));
    }

    /// Delivers what needs no further step; keeps the rest in `troubled`. False when the backend
    /// has lost completions.
    #[inline]
    fn reap(&mut self, deliver: &mut impl FnMut(u32, Answer)) -> bool {
        let Self {
            backend,
            slots,
            troubled,
            tally,
            reaped,
            ..
        } = self;
        let mut reaping = Reaping::begin(slots, troubled, tally);
        let is_whole = backend.reap(|completion| reaping.take(completion, deliver));
        *reaped += reaping.end();
        is_whole
    }

    /// Makes the files of the operations that follow known to the backend, until
    /// [`Proactor::release_files`]. Until then no descriptor may be closed and used anew.
    pub(crate) fn fix_files(&mut self) {
        self.backend.fix_files();
    }

    /// Ends [`Proactor::fix_files`]. Nothing is in flight.
    #[inline]
    pub(crate) fn release_files(&mut self) {
        self.backend.release_files();
    }

    /// Forgets registered memory whose owner is gone.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        self.backend.sweep();
    }

    /// Whether the backend cannot be used again.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Why the backend cannot be used again.
    #[inline]
    pub(crate) fn take_broken(&mut self) -> Option<io::Error> {
        self.broken.take()
    }

    /// The counts, to be read by anyone.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Whether there may be something for [`Proactor::take_fallbacks`].
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        let is_lacking = self.backend.has_refusal() || self.older.has_refusal();
        self.has_news || self.broken.is_some() || is_lacking
    }

    /// What has been given up since this was last asked, as sentences.
    pub(crate) fn take_fallbacks(&mut self) -> impl Iterator<Item = String> {
        self.has_news = false;
        let lacking = self.backend.take_refusal().into_iter();
        let lacking = lacking.chain(self.older.take_refusal());
        let broken = self.broken.as_ref().map(|cause| {
            let what = match self.is_for_direct_transfers {
                true => "asynchronous calls could not be made",
                false => "a ring could not be entered",
            };
            format!("{what} any more: {cause}; plain calls took their place")
        });
        let refused = std::mem::take(&mut self.newly_refused);
        let refused = refused
            .into_iter()
            .map(|name| format!("the ring refuses {name}, which plain calls do instead"));
        lacking.chain(broken).chain(refused)
    }
}

/// Completions that are gone through: what needs no further step is delivered, and the rest kept in
/// `troubled`.
struct Reaping<'p> {
    slots: slots::Held<'p>,
    in_flight: &'p mut u32,
    troubled: &'p mut Vec<(u32, i32)>,
    tally: &'p Tally,
    answered: u32,
}

impl<'p> Reaping<'p> {
    #[inline(always)]
    fn begin(slots: &'p mut Slots, troubled: &'p mut Vec<(u32, i32)>, tally: &'p Tally) -> Self {
        let (slots, in_flight) = slots.hold();
        Self {
            slots,
            in_flight,
            troubled,
            tally,
            answered: 0,
        }
    }

    #[inline(always)]
    fn take(&mut self, completion: Completion, deliver: &mut impl FnMut(u32, Answer)) {
        let (user_data, result) = (completion.user_data, completion.result);
        match self.slots.complete(user_data, result) {
            Completed::Plain { token, is_short } => {
                if is_short {
                    self.tally.short_transfers.add(1);
                }
                self.answered += 1;
                deliver(token, Answer::of(result, completion.took_ns));
            }
            Completed::Troubled { index } => self.troubled.push((index, result)),
            Completed::Stray => self.tally.strays.add(1),
        }
    }

    /// How many have been delivered. The others keep their slots.
    #[inline(always)]
    fn end(self) -> u64 {
        *self.in_flight -= self.answered;
        let answered = u64::from(self.answered);
        self.tally.answered.add(answered);
        answered
    }
}

/// Completions that will never come leave memory with the kernel for ever, and here the caller's
/// own frame may hold that memory: there is no sound way on. Queues that cannot overflow make
/// this unreachable as far as the kernel keeps its promises; see `docs/design/lost-completions.md`.
#[cold]
fn completions_lost(what: &str) -> ! {
    eprintln!(
        "inflight: {what}, so it is unknown which buffers the kernel still writes to. The process \
         ends here, because to go on would corrupt memory."
    );
    std::process::abort();
}

// Miri does not know these calls.
#[cfg(all(test, feature = "faulty", not(miri), not(loom)))]
#[path = "made_test.rs"]
mod made;
#[cfg(all(test, feature = "tokio", not(miri), not(loom)))]
#[path = "older_test.rs"]
pub(crate) mod older_calls;
#[cfg(all(test, feature = "faulty", not(miri), not(loom)))]
#[path = "steps_test.rs"]
mod steps;
