//! The caller host: the calling thread owns a proactor for as long as one call lasts.
//!
//! Each thread keeps the proactors it has used, so that a call costs neither a ring nor a lock.
//! A [`Lease`] is drained before it gives its proactor back, also when a panic unwinds through
//! it: that is what makes borrowed buffers sound. A thread that ends drops its proactors.

mod here;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use super::again::Again;
use super::hand_over::HandsOver;
use super::mail::Rouser;
use super::misses::MeetsMisses;
use super::shared::Shared;
use super::sharing::shares::{Came, take};
use super::sharing::shown::{Manner, Shown};
use super::sharing::spread::Gathered;
use crate::backend::alarm::Alarm;
use crate::backend::threads::execute::{execute_request, to_usize};
use crate::completion::{Answer, Refusal};
use crate::fork;
use crate::op::{Plan, Prepare, Request, Road};
use crate::policy::{COLD_SAMPLE_EVERY, HeldUp, Samples};
use crate::proactor::Proactor;

thread_local! {
    /// The proactor that was used last: nearly always the one that is wanted next.
    static LAST: Cell<Option<Box<Owned>>> = const { Cell::new(None) };
    /// The others: of other engines, and of calls within calls.
    #[expect(clippy::vec_box, reason = "they move between here and LAST as they are")]
    static OTHERS: RefCell<Vec<Box<Owned>>> = const { RefCell::new(Vec::new()) };
}

/// What has become of an operation that a lease has been given.
pub(super) enum Start {
    /// The proactor has it.
    InFlight,
    /// Whoever comes first makes it; [`Lease::take_gathered`] has the answer.
    Gathered,
    Answered(Answer),
    /// A sync, which whoever has the lease sees to.
    Sync(Request),
}

/// Which answers of reads that are shared are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// Those that are there, else of some that this thread makes, if any are left to be made.
    Now,
    /// The same, but one at least, and as many as leave room for another read, if nobody else has
    /// to be waited for.
    Some,
    All,
    /// For a thread that has to be back by some time: one at least, if there is one to be had
    /// without waiting.
    InTime,
}

/// A proactor of this thread.
struct Owned {
    engine: Weak<Shared>,
    proactor: ManuallyDrop<Proactor>,
    fork_generation: u32,
    again: Again,
    /// Reads that this thread has had to decide on, for taking samples.
    samples: Samples,
    /// The same of those that are taken to wait for the device.
    cold_samples: Samples<COLD_SAMPLE_EVERY>,
    gathered: Gathered,
    /// Reads that were shared, which the page cache did not have.
    missed: VecDeque<(u32, Request)>,
    hands_over: HandsOver,
    held_up: HeldUp,
    misses: MeetsMisses,
}

impl Owned {
    fn new(shared: &Arc<Shared>, proactor: Proactor) -> Box<Self> {
        Box::new(Self {
            engine: Arc::downgrade(shared),
            again: Again::of(shared, &proactor),
            proactor: ManuallyDrop::new(proactor),
            fork_generation: fork::generation(),
            samples: Samples::new(),
            cold_samples: Samples::new(),
            gathered: Gathered::new(),
            missed: VecDeque::new(),
            hands_over: HandsOver::new(),
            held_up: HeldUp::new(),
            misses: MeetsMisses::new(),
        })
    }
}

impl Drop for Owned {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // In a forked child the ring's memory is not mapped, and something else may be where it
        // was; it is left alone. The descriptor closes with the process or with exec.
        if self.fork_generation == fork::generation() {
            // SAFETY: dropped here only, and `self` is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.proactor) }
        }
    }
}

/// A proactor that belongs to the current call.
pub(crate) struct Lease<'s> {
    pub(super) shared: &'s Arc<Shared>,
    /// Taken out when the lease ends.
    owned: ManuallyDrop<Box<Owned>>,
}

/// Leases a proactor of this thread.
///
/// # Errors
///
/// In a forked child, and where io_uring is demanded and this thread cannot have a ring.
#[inline]
pub(crate) fn lease(shared: &Arc<Shared>) -> Result<Lease<'_>, Refusal> {
    if shared.is_forked() {
        return Err(Refusal::Forked);
    }
    match known(shared) {
        Some(owned) => Ok(Lease::new(shared, owned)),
        None => Ok(Lease::new(shared, make(shared)?)),
    }
}

/// Leases a proactor of this thread that can look for completions in a ring, for who can do
/// without. That there is none is told to nobody else, and nothing is made in its place. Not to be
/// called in a forked child.
pub(super) fn lease_with_ring(shared: &Arc<Shared>) -> Option<Lease<'_>> {
    let owned = match known(shared) {
        Some(owned) => owned,
        None if shared.has_rings() => Owned::new(shared, shared.asynchronous()?),
        None => return None,
    };
    if owned.proactor.can_look() {
        return Some(Lease::new(shared, owned));
    }
    let _ = LAST.try_with(|last| last.set(Some(owned)));
    None
}

#[cold]
fn try_again(shared: &Arc<Shared>, mut owned: Box<Owned>) -> Box<Owned> {
    let made = owned.again.made(shared);
    made.map_or(owned, |proactor| Owned::new(shared, proactor))
}

/// The proactor that this thread has for the engine and that no call has, or what it is to have in
/// its place.
#[inline]
fn known(shared: &Arc<Shared>) -> Option<Box<Owned>> {
    let owned = kept(shared)?;
    match owned.again.is_due() {
        true => Some(try_again(shared, owned)),
        false => Some(owned),
    }
}

#[inline]
fn kept(shared: &Arc<Shared>) -> Option<Box<Owned>> {
    match LAST.try_with(Cell::take) {
        Ok(Some(last)) if std::ptr::eq(last.engine.as_ptr(), Arc::as_ptr(shared)) => Some(last),
        Ok(last) => find(shared, last),
        // While the thread ends, its proactors are gone; a new one serves this call only.
        Err(_) => None,
    }
}

/// The proactor of another engine than the last, or for a call within a call.
#[cold]
fn find(shared: &Arc<Shared>, last: Option<Box<Owned>>) -> Option<Box<Owned>> {
    let engine = Arc::as_ptr(shared);
    let known = OTHERS.try_with(|others| {
        let mut others = others.borrow_mut();
        others.extend(last);
        others.retain(|other| other.engine.strong_count() > 0);
        let place = others
            .iter()
            .rposition(|other| std::ptr::eq(other.engine.as_ptr(), engine))?;
        Some(others.swap_remove(place))
    });
    known.ok().flatten()
}

/// Drops what this thread keeps for engines that are gone. Other threads do so at their next call
/// for another engine, or when they end.
pub(super) fn forget_dead() {
    let lives = |owned: &Owned| owned.engine.strong_count() > 0;
    let _ = LAST.try_with(|last| last.set(last.take().filter(|owned| lives(owned))));
    let _ = OTHERS.try_with(|others| {
        // Dropping an engine may come from within a call, but not from within these lines.
        if let Ok(mut others) = others.try_borrow_mut() {
            others.retain(|owned| lives(owned));
        }
    });
}

#[cold]
fn make(shared: &Arc<Shared>) -> Result<Box<Owned>, Refusal> {
    match shared.new_proactor() {
        Ok(proactor) => Ok(Owned::new(shared, proactor)),
        Err(refusal) => {
            let reason = format!("operations have failed: {refusal}");
            shared.counters.fallback(reason);
            Err(Refusal::Setup)
        }
    }
}

impl<'s> Lease<'s> {
    #[inline]
    fn new(shared: &'s Arc<Shared>, mut owned: Box<Owned>) -> Self {
        owned.proactor.sweep();
        Self {
            shared,
            owned: ManuallyDrop::new(owned),
        }
    }

    /// Whether this is a forked child, in which the ring must not be touched.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.owned.fork_generation != fork::generation()
    }

    /// The proactor of this call. In a forked child nobody may call this.
    #[inline]
    pub(crate) fn proactor(&mut self) -> &mut Proactor {
        debug_assert!(!self.is_forked());
        &mut self.owned.proactor
    }

    /// For a lease that lasts: tells the engine what has been given up, and replaces a proactor
    /// whose backend has broken. Returns the alarm of the new one.
    #[cold]
    pub(super) fn tell_of_fallbacks(&mut self) -> Option<Alarm> {
        let shared = self.shared;
        let proactor = &mut self.owned.proactor;
        for reason in proactor.take_fallbacks() {
            shared.counters.fallback(reason);
        }
        if !proactor.is_idle() {
            return None;
        }
        shared.give_up_rings(proactor.take_broken()?);
        let mut next = shared.new_proactor_on_threads();
        let alarm = next.alarm().ok()?;
        **proactor = next;
        Some(alarm)
    }

    /// What interrupts this proactor.
    ///
    /// # Errors
    ///
    /// If io_uring is demanded and the ring cannot have an alarm.
    pub(super) fn alarm(&mut self) -> Result<Alarm, Refusal> {
        let alarm = self.shared.alarm_of(&mut self.owned.proactor);
        alarm.map_err(|_| Refusal::Setup)
    }

    /// True once in [`SAMPLE_EVERY`](crate::policy::SAMPLE_EVERY) reads.
    #[inline(always)]
    fn is_sample(&mut self) -> bool {
        self.owned.samples.takes_next()
    }

    /// What this lease shares, for a host that lasts.
    #[inline(always)]
    pub(super) fn gathered(&mut self) -> &mut Gathered {
        &mut self.owned.gathered
    }

    /// Whether reads are shared whose answers have not been taken.
    #[inline(always)]
    pub(super) fn has_gathered(&self) -> bool {
        !self.owned.gathered.is_empty() || !self.owned.missed.is_empty()
    }

    /// Whether answers have to be taken before more reads are shared.
    pub(super) fn is_gathered_full(&self) -> bool {
        self.owned.gathered.is_full()
    }

    /// Takes answers of reads that are shared, and hands each to `each`.
    #[allow(unsafe_code)]
    #[inline]
    pub(super) fn take_gathered(&mut self, want: Want, mut each: impl FnMut(u32, Answer)) {
        let Owned {
            gathered,
            missed,
            proactor,
            ..
        } = &mut **self.owned;
        let is_in_time = want == Want::InTime;
        match is_in_time {
            false => proactor.submit_queued(),
            true => gathered.forbid_waiting(),
        }
        let has_any = Cell::new(false);
        let mut each = |token, came| match came {
            Came::Answer(answer) => {
                has_any.set(true);
                each(token, answer);
            }
            Came::Missed(request) => missed.push_back((token, request)),
        };
        let mut waits = matches!(want, Want::Some | Want::All);
        loop {
            let took = take(gathered, waits, &mut each);
            took.count(proactor.tally());
            let has_enough = match want {
                Want::Now => true,
                Want::InTime if has_any.get() || !took.is_some() => break,
                Want::InTime => false,
                // What was missed is no answer yet.
                Want::Some => has_any.get() || gathered.is_empty(),
                Want::All => gathered.is_empty(),
            };
            // What others are at may hang: no place is waited for, because what finds none is not
            // shared.
            if has_enough && (!gathered.is_full() || !took.is_some()) {
                break;
            }
            waits = !has_enough && !is_in_time;
        }
        while proactor.has_room()
            && let Some((token, request)) = missed.pop_front()
        {
            match is_in_time {
                // SAFETY: as in `start`. Nobody is at work at it: its answer has been taken.
                false => unsafe { proactor.push(token, &request) },
                // SAFETY: as above.
                true => unsafe { proactor.push_in_time(token, &request) },
            }
        }
    }

    /// Has the alarm rung when another thread has made some of what is shared. True if some of it
    /// can be taken now.
    pub(super) fn watch_gathered(&mut self, alarm: &Alarm) -> bool {
        let gathered = &mut self.owned.gathered;
        !gathered.is_empty() && gathered.watch(&Rouser::Alarm(alarm.clone()))
    }

    /// Before a turn of the proactor that may wait.
    #[inline(always)]
    pub(super) fn turns(&mut self) {
        let owned = &mut **self.owned;
        owned.proactor.sweep();
        owned.hands_over.turns(&owned.proactor);
    }

    /// After a turn of the proactor that may have waited.
    #[inline(always)]
    pub(super) fn turned(&mut self) {
        let owned = &mut **self.owned;
        owned.hands_over.turned(&mut owned.proactor);
        owned.misses.turned(owned.proactor.in_flight());
    }

    /// Everything that was asked of this lease has been answered: what comes until it is asked
    /// again is the program's.
    #[inline(always)]
    pub(super) fn pauses(&mut self) {
        self.owned.gathered.pauses();
    }

    /// Starts operations from the one with this number on, as long as each is for the ring and
    /// there is room. Returns the number of the next, and its plan if that is not for the ring.
    #[allow(unsafe_code)]
    #[inline(never)]
    pub(super) fn fill<O: Prepare>(
        &mut self,
        operations: &mut [O],
        from: u32,
    ) -> (u32, Option<Plan>) {
        let mut next = from;
        debug_assert!(!self.is_forked());
        let owned = &mut **self.owned;
        let Some((mut filling, room)) = owned.proactor.fill() else {
            return (next, None);
        };
        let operations = operations[to_usize(from)..].iter_mut();
        for operation in operations.take(to_usize(room)) {
            match operation.prepare().0 {
                Plan::Run(road, request) if owned.cold_samples.lets_past(road) => {
                    // SAFETY: as in `start`.
                    if !unsafe { filling.push(next, &request) } {
                        return (next, Some(Plan::Run(road, request)));
                    }
                }
                plan => return (next, Some(plan)),
            }
            next += 1;
        }
        (next, None)
    }

    /// Starts one operation, for which the proactor has room, if it is for the backend; else its
    /// plan, for [`Lease::start`].
    #[allow(unsafe_code)]
    #[inline(always)]
    pub(super) fn begin<O: Prepare>(&mut self, token: u32, operation: &mut O) -> Option<Plan> {
        match operation.prepare().0 {
            Plan::Run(road, request) if self.owned.cold_samples.lets_past(road) => {
                // SAFETY: as in `start`.
                unsafe { self.proactor().push(token, &request) };
                None
            }
            plan => Some(plan),
        }
    }

    /// Starts one operation, for which the proactor has room, as planned.
    #[allow(unsafe_code)]
    #[inline(always)]
    pub(super) fn start<O: Prepare>(&mut self, token: u32, operation: &mut O, plan: Plan) -> Start {
        match plan {
            Plan::Run(Road::Backend | Road::Device, request) => {
                // SAFETY: the addresses point into what the operation owns or has borrowed. The
                // callers (`batches`, `flights`) neither move nor drop it before its answer has
                // been delivered: they are given `&mut` to it, and the lease is drained before
                // they return or unwind.
                unsafe { self.proactor().push(token, &request) };
                Start::InFlight
            }
            Plan::Run(road @ (Road::Warm | Road::Blind | Road::Served | Road::Memory), request)
                if !self.is_sample() =>
            {
                let manner = Manner::of_warm(road, &request.op);
                // SAFETY: as above; when the lease is dropped, what is left is withdrawn.
                if unsafe { self.shares(token, operation, &request, manner) } {
                    return Start::Gathered;
                }
                if road == Road::Memory {
                    // SAFETY: as above.
                    unsafe { self.proactor().push(token, &request) };
                    return Start::InFlight;
                }
                if road == Road::Served {
                    self.proactor().submit_queued();
                }
                let tally = self.proactor().tally();
                tally.plain_calls.add(1);
                tally.answered.add(1);
                // SAFETY: as above; it is over when this returns.
                Start::Answered(unsafe { execute_request(&request) })
            }
            Plan::Run(road @ (Road::CacheFirst | Road::Mixed), request)
                if self.owned.gathered.is_open(Manner::Asking) && !self.is_sample() =>
            {
                // SAFETY: as above.
                if unsafe { self.shares(token, operation, &request, Manner::Asking) } {
                    return Start::Gathered;
                }
                match self.start_here(token, operation, road, request) {
                    Some(answer) => Start::Answered(answer),
                    None => Start::InFlight,
                }
            }
            Plan::Sync(request) => Start::Sync(request),
            Plan::Run(road, request) => match self.start_here(token, operation, road, request) {
                Some(answer) => Start::Answered(answer),
                None => Start::InFlight,
            },
            Plan::Answered(answer) => Start::Answered(answer),
            Plan::Cover => self.start_cover(token, operation),
        }
    }

    /// Whether a read is shared with another thread, because that has been found to be faster.
    ///
    /// # Safety
    ///
    /// As for [`Gathered::show`]; the operation stays where it is as long.
    #[allow(unsafe_code)]
    #[inline(always)]
    unsafe fn shares<O: Prepare>(
        &mut self,
        token: u32,
        operation: &O,
        request: &Request,
        manner: Manner,
    ) -> bool {
        let Owned {
            gathered, proactor, ..
        } = &mut **self.owned;
        let in_flight = || proactor.in_flight();
        // SAFETY: passed on from the caller; it is asked for while the operation stays where it is.
        let shown = |request| unsafe { Shown::new(operation, request, manner) };
        gathered.is_open(manner)
            // SAFETY: passed on from the caller.
            && unsafe { gathered.push(self.shared, token, request, manner, in_flight, shown) }
    }

    #[inline(never)]
    fn start_cover<O: Prepare>(&mut self, token: u32, operation: &mut O) -> Start {
        let plan = operation.cover().0;
        self.start(token, operation, plan)
    }
}

impl Drop for Lease<'_> {
    #[allow(unsafe_code)]
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken here only, and `self` is not used any more.
        let mut owned = unsafe { ManuallyDrop::take(&mut self.owned) };
        if owned.fork_generation != fork::generation() {
            return;
        }
        owned.gathered.withdraw();
        owned.missed.clear();
        #[cfg(feature = "faulty")]
        if self.shared.config.undrained {
            return;
        }
        let proactor = &mut owned.proactor;
        if !proactor.is_idle() {
            proactor.drain();
        }
        proactor.release_files();
        if proactor.has_news() {
            let counters = &self.shared.counters;
            proactor
                .take_fallbacks()
                .for_each(|reason| counters.fallback(reason));
        }
        if proactor.is_broken() {
            return give_up(self.shared, owned);
        }
        // When the thread ends, the proactor is dropped instead.
        let before = LAST.try_with(|last| last.replace(Some(owned)));
        if let Ok(Some(before)) = before {
            keep(before);
        }
    }
}

/// Keeps a proactor beside the one that was used last.
#[cold]
fn keep(before: Box<Owned>) {
    let _ = OTHERS.try_with(|others| others.borrow_mut().push(before));
}

/// Drops a proactor whose backend cannot be used again, and tells the engine why.
#[cold]
fn give_up(shared: &Shared, mut owned: Box<Owned>) {
    if let Some(cause) = owned.proactor.take_broken() {
        shared.give_up_rings(cause);
    }
}
