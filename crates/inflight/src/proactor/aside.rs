//! What threads of the pool do beside a ring: operations that a ring would only hand to a worker
//! of the kernel, one after the other for each file.
//!
//! They have slots like all others. As long as some are in the pool and others in the ring, the
//! owner waits in the ring, and a thread of the pool that has completed one rings its alarm. With
//! nothing in the ring, an owner that nobody has to interrupt helps.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::pushing::role_of;
use super::slots::{Role, SETTLED};
use super::splits::Split;
use super::{Proactor, Wait};
use crate::backend::Broken;
use crate::backend::alarm::Alarm;
use crate::backend::threads::execute::{to_usize, wanted_bytes};
use crate::backend::threads::lane::Lane;
use crate::backend::threads::pool::Pool;
use crate::completion::Answer;
use crate::op::{KINDS, Op, Request};

/// So many operations of a kind are for the pool once the kernel has had no worker for one: that
/// takes 50 ms (`create_worker_cont` in `io_uring/io-wq.c` tries again), which is to be a small
/// part of what they take.
const UNSERVED: u16 = 255;

/// How long a wait lasts where threads cannot tell of what they have done.
pub(crate) const UNTOLD: Duration = Duration::from_millis(1);

/// See the module. Without a pool, everything is for the backend.
#[derive(Default)]
pub(super) struct Aside {
    pool: Option<Arc<Pool>>,
    /// Made when it is first needed.
    lane: Option<Lane>,
    in_flight: u32,
    /// Whether somebody may have to interrupt the owner.
    is_interrupted: bool,
    /// Whether the alarm is rung for each completion, because the owner does not wait for it.
    is_announced: bool,
    /// How many operations of each kind are still for the pool, because the kernel had no worker
    /// for one.
    unserved: [u16; KINDS],
}

impl Aside {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool: Some(pool),
            ..Self::default()
        }
    }

    pub(super) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// As [`Proactor::make_one`].
    pub(super) fn make_one(&mut self) {
        if self.in_flight > 0
            && let Some(lane) = &mut self.lane
        {
            lane.make_one();
        }
    }

    /// No kind is for the pool because of what the kernel lacks.
    pub(super) fn all_are_served(&mut self) {
        self.unserved = [0; KINDS];
    }

    /// Whether something is in flight here.
    #[inline(always)]
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    #[cfg(feature = "tokio")]
    pub(super) fn be_announced(&mut self) {
        self.is_announced = true;
    }

    /// Whether who owns this sleeps until completions are announced.
    pub(super) fn has_announcements(&self) -> bool {
        self.is_announced
    }

    /// Whether something is in flight here that has to be announced.
    pub(super) fn is_announced(&self) -> bool {
        self.is_announced && self.in_flight > 0
    }

    /// Whether completions wait to be reaped.
    #[cfg(feature = "tokio")]
    pub(super) fn has_completed(&self) -> bool {
        self.in_flight > 0 && self.lane.as_ref().is_some_and(Lane::has_completed)
    }

    /// Whether somebody may have to interrupt the owner.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether the owner is interrupted by its alarm from now on, so that it must not help.
    pub(super) fn be_interrupted(&mut self, is_interrupted: bool) {
        self.is_interrupted = is_interrupted;
    }
}

impl Proactor {
    /// Takes a request for a thread of the pool. There is room.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    #[cold]
    pub(super) unsafe fn push_aside(&mut self, token: u32, request: Request) {
        let len = request.op.span().map_or(0, |span| span.len);
        let expected = u32::try_from(len).expect("at most the limit");
        let user_data = self
            .slots
            .insert(&request.op, token, expected, role_of(&request));
        // SAFETY: passed on from the caller.
        unsafe { self.queue_aside(user_data, &request.op, request.submitted) };
    }

    /// Queues the operation of a slot for a thread of the pool; `submitted` as in [`Request`].
    ///
    /// # Safety
    ///
    /// As for [`Proactor::queue`].
    pub(super) unsafe fn queue_aside(&mut self, user_data: u64, op: &Op, submitted: bool) {
        let Some(pool) = &self.aside.pool else {
            // SAFETY: passed on from the caller; slots bound what is in flight.
            return unsafe { self.queue(user_data, op) };
        };
        self.queued += 1;
        let index = self.slots.find(user_data).expect("it is in flight");
        self.slots.get_mut(index).retries = SETTLED;
        let capacity = self.slots.capacity();
        let pool = || Lane::new(Arc::clone(pool), capacity);
        let lane = self.aside.lane.get_or_insert_with(pool);
        // SAFETY: passed on from the caller.
        unsafe { lane.push(user_data, op, submitted) };
        self.aside.in_flight += 1;
        self.tally.pool_calls.add(1);
    }

    /// Leaves an operation to the pool that the ring has given up though nobody asked for that, and
    /// those of its kind that follow: mostly no worker of the kernel could be made for it.
    #[cold]
    pub(super) fn leave_to_the_pool(&mut self, index: u32) {
        let (user_data, op) = (self.slots.user_data(index), self.slots.get(index).op);
        let unserved = &mut self.aside.unserved[op.kind()];
        let is_refused = &mut self.refused[op.kind()];
        // Reads are made by a ring without a worker. One of them was given up because its thread
        // has ended, which says nothing of others.
        if !op.is_read() && (*unserved > 0 || !*is_refused) {
            (*unserved, *is_refused) = (UNSERVED, true);
        }
        self.tally.retries.add(1);
        // SAFETY: whoever pushed the request keeps its memory valid until its answer has been
        // delivered, and the operation has completed in the ring.
        unsafe { self.queue_aside(user_data, &op, false) };
    }

    /// Whether an operation is for the pool because the kernel had no worker for another one of its
    /// kind. After some of them the ring is tried again.
    pub(super) fn is_unserved(&mut self, op: &Op) -> bool {
        let unserved = &mut self.aside.unserved[op.kind()];
        let is_unserved = *unserved > 0;
        if is_unserved {
            *unserved -= 1;
            self.refused[op.kind()] = *unserved > 0;
        }
        is_unserved
    }

    /// Takes a request where the backend is for direct transfers only.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::push`].
    pub(super) unsafe fn push_direct_or_aside(&mut self, token: u32, mut request: Request) {
        if !request.is_direct_transfer() {
            request = request.aside();
        }
        if request.is_split() {
            self.push_split(Split::new(token, request, 0));
        } else if request.aside {
            // SAFETY: passed on from the caller.
            unsafe { self.push_aside(token, request) };
        } else {
            let role = role_of(&request);
            let len = request.op.span().map_or(0, |span| span.len);
            let expected = u32::try_from(len).expect("at most the limit");
            let user_data = self.slots.insert(&request.op, token, expected, role);
            // SAFETY: passed on from the caller; slots bound what is in flight.
            unsafe { self.queue_direct(user_data, &request.op, request.submitted) };
        }
        if self.is_enough(&request) {
            self.submit();
        }
    }

    /// Whether something is in flight that is not in the pool.
    pub(crate) fn has_others(&self) -> bool {
        self.slots.in_flight() > self.aside.in_flight
    }

    /// How many operations are in flight in the backend itself.
    pub(super) fn in_backend(&self) -> u32 {
        self.slots.in_flight() - self.aside.in_flight - self.older.in_flight()
    }

    /// Queues a part that is not for the pool.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::queue`].
    pub(super) unsafe fn queue_part(&mut self, user_data: u64, op: &Op, of: &Split) {
        match self.is_for_direct_transfers {
            // SAFETY: passed on from the caller.
            true => unsafe { self.queue_direct(user_data, op, of.may_wait()) },
            // SAFETY: as above.
            false if of.may_wait() => unsafe { self.queue_started(user_data, op) },
            // SAFETY: as above.
            false => unsafe { self.queue(user_data, op) },
        }
    }

    /// Queues the direct transfer of a slot.
    ///
    /// # Safety
    ///
    /// As for [`Proactor::queue`].
    unsafe fn queue_direct(&mut self, user_data: u64, op: &Op, may_wait: bool) {
        self.queued += 1;
        // SAFETY: passed on from the caller.
        if !unsafe { self.backend.push_direct(user_data, op, may_wait) } {
            self.not_taken(user_data);
        }
    }

    /// As [`Proactor::hand_over`], with something beside the backend.
    #[cold]
    pub(super) fn hand_over_beside(&mut self, at_least: u32, wait: Wait) -> Result<(), Broken> {
        if !self.aside.is_busy() {
            return self.hand_over_started(at_least, wait);
        }
        self.submit_started();
        let has_others = self.has_others();
        let helps = !has_others && !self.aside.is_interrupted && at_least > 0;
        let alarm = match helps || at_least == 0 {
            true => None,
            false => self.backend.alarm().ok(),
        };
        let lane = self.aside.lane.as_mut().expect("something is in it");
        let has_threads = lane.submit_beside(helps);
        if has_threads && self.is_in_time && alarm.is_none() && at_least > 0 {
            // No descriptor is left for those to tell of it, and it is not made here.
            let Wait::OrAlarm(at_most, _) = wait else {
                unreachable!("that is how an owner waits that has to be back by some time");
            };
            let at_most = at_most.map_or(UNTOLD, |at_most| at_most.min(UNTOLD));
            lane.wait_for_threads(1, at_most);
            return self.hand_over(0, wait);
        }
        if !has_threads || (alarm.is_none() && at_least > 0) {
            // Nobody else does it, or nobody could tell of it: an owner that does not wait for it
            // either does one now.
            let at_least = at_least.max(u32::from(self.aside.is_announced));
            lane.wait(to_usize(at_least.min(self.aside.in_flight)), wait.at_most());
            return match has_others {
                true => self.hand_over(0, wait),
                // The kernel has nothing to tell.
                false => {
                    self.all_is_handed_over();
                    Ok(())
                }
            };
        }
        let is_ready = match alarm {
            Some(alarm) => lane.watch(&alarm) || self.older.has_work(),
            None => at_least == 0,
        };
        let is_idle = !has_others && !is_ready;
        let wait = match wait {
            Wait::Not | Wait::Now => wait,
            _ => Wait::OrAlarm(self.until_untold(wait), is_idle),
        };
        // The alarm is one completion, so several could not be waited for.
        self.hand_over(u32::from(!is_ready), wait)
    }

    /// Delivers what the pool has completed; the rest goes to `troubled`.
    #[cold]
    pub(super) fn reap_aside(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        let lane = self.aside.lane.as_mut().expect("something is in it");
        lane.collect();
        for completion in lane.reap() {
            self.aside.in_flight -= 1;
            let Some(index) = self.slots.find(completion.user_data) else {
                self.tally.strays.add(1);
                continue;
            };
            let slot = self.slots.get(index);
            // SAFETY: whoever pushed the operation keeps what it names until its answer has been
            // delivered.
            let wanted = unsafe { wanted_bytes(&slot.op) };
            let moved = usize::try_from(completion.result).ok();
            let has_wishes = !slot.op.wishes().is_none();
            let is_first = self.slots.done(index) == 0;
            let is_all = is_first && matches!(slot.role, Role::Plain | Role::Whole);
            match moved.filter(|moved| *moved == wanted && !has_wishes && is_all) {
                Some(moved) => {
                    let token = slot.token;
                    self.slots.free(index);
                    self.tally.answered.add(1);
                    let answer = Answer::timed(moved, completion.took_ns);
                    let seen = completion.is_asynchronous;
                    deliver(token, seen.map_or(answer, |seen| answer.submitted(seen)));
                }
                None => self.troubled.push((index, completion.result)),
            }
        }
    }

    /// Has the alarm rung when the next one completes, or now if one has.
    #[cold]
    pub(super) fn announce_aside(&mut self) {
        let Ok(announcer) = self.backend.announcer() else {
            return;
        };
        let alarm = Alarm::Event(announcer);
        let lane = self.aside.lane.as_mut().expect("something is in it");
        if lane.watch(&alarm) {
            alarm.ring();
        }
    }

    /// Waits for what is in the pool.
    pub(super) fn drain_aside(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        if let Some(lane) = &mut self.aside.lane {
            lane.submit_beside(true);
            lane.wait(to_usize(self.aside.in_flight), None);
            self.reap_aside(deliver);
        }
    }
}
