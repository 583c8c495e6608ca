//! What happens to an operation whose completion is not simply its answer: retries, refusals,
//! parts, resumption, and a ring that breaks. The rules are the table in `docs/design/errors.md`.
#![allow(unsafe_code)]

use super::slots::{Role, STARTED};
use super::splits::{Split, Step};
use super::{Proactor, completions_lost};
use crate::backend::Broken;
use crate::backend::threads::execute::{advance, after, execute, execute_request, to_usize};
use crate::completion::Answer;
use crate::op::{KINDS, Op, Request, Wishes};

/// How often EAGAIN and EINTR are met with another try in the ring.
const RETRIES_AGAIN: u8 = 3;
/// How often ECANCELED and EFAULT that nobody caused are.
const RETRIES_CANCELED: u8 = 1;

/// Whether an errno may be that of the way an operation was made, and not its own.
fn may_be_the_way(op: &Op, errno: i32) -> bool {
    if matches!(op, Op::Sync { .. }) {
        // A write-back fails with whatever errno the file system gave, and the kernel tells of it
        // once: a second try would be told that all is well. So only what says that the sync was
        // not begun, or not waited for.
        return matches!(errno, libc::EINTR | libc::ECANCELED);
    }
    matches!(
        errno,
        libc::EAGAIN
            | libc::EINTR
            | libc::ECANCELED
            | libc::EFAULT
            | libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::ENOSYS
            | libc::EACCES
    )
}

impl Proactor {
    /// Takes the next step for a completed operation. Returns the answer if its request is over.
    #[cold]
    pub(super) fn resolve(&mut self, index: u32, result: i32) -> Option<(u32, Answer)> {
        let result = if result >= 0 {
            result
        } else {
            self.second_try(index, -result)?
        };
        let (slot, done) = (*self.slots.get(index), self.slots.done(index));
        if slot.role == Role::Part {
            self.slots.free(index);
            return self.part_done(slot.split, done, slot.expected_bytes, result);
        }
        let Ok(moved) = u32::try_from(result) else {
            self.slots.free(index);
            let whole = matches!(slot.role, Role::Whole | Role::After | Role::AfterUnheard);
            return Some((slot.token, after(done, whole, -result)));
        };
        let has_span = slot.op.span().is_some();
        if moved < slot.expected_bytes {
            self.tally.short_transfers.add(1);
        }
        if slot.role == Role::Whole && has_span && 0 < moved && moved < slot.expected_bytes {
            self.slots.free(index);
            let request = Request {
                whole: true,
                aside: self.is_for_direct_transfers || slot.is_settled(),
                ..Request::simple(slot.op)
            };
            self.push_split(Split::new(slot.token, request, to_usize(moved)));
            return None;
        }
        let done = done + to_usize(moved);
        let mut is_complete = has_span && moved == slot.expected_bytes;
        if slot.role == Role::Whole && !has_span {
            self.slots.set_done(index, done);
            let slot = self.slots.get_mut(index);
            // SAFETY: the operation has completed, so nobody reads its list of buffers now.
            is_complete = !unsafe { advance(&mut slot.op, to_usize(moved)) };
            if !is_complete && moved > 0 {
                self.requeue(index);
                return None;
            }
        }
        self.slots.free(index);
        let after_unheard = slot.role == Role::AfterUnheard;
        let answer = Answer::moved(done).marked(after_unheard || slot.op.is_unheard());
        let sync = slot.op.sync_after().filter(|_| is_complete);
        self.end(slot.token, sync, answer, slot.is_settled())
    }

    /// The answer of a request that is over, unless this sync is to follow it; `settled` if it was
    /// made by threads of the pool.
    fn end(
        &mut self,
        token: u32,
        sync: Option<Op>,
        answer: Answer,
        settled: bool,
    ) -> Option<(u32, Answer)> {
        let Some(sync) = sync else {
            return Some((token, answer));
        };
        let role = match answer.is_unheard() {
            true => Role::AfterUnheard,
            false => Role::After,
        };
        let user_data = self.slots.insert(&sync, token, 0, role);
        let index = self.slots.find(user_data);
        let index = index.expect("the write has just left its slot");
        self.slots.set_done(index, answer.bytes());
        match settled || self.is_unserved(&sync) {
            // SAFETY: a sync names no memory; it has just got its slot.
            true => unsafe { self.queue_aside(user_data, &sync, false) },
            false => self.requeue(index),
        }
        None
    }

    /// Meets an error with another try where the table says so. `None` when the operation is on
    /// its way again; else the result that stands.
    fn second_try(&mut self, index: u32, errno: i32) -> Option<i32> {
        let slot = self.slots.get_mut(index);
        if slot.op.leave_hints_out(errno) {
            match slot.role {
                Role::Plain => slot.role = Role::Unheard,
                Role::Part => {
                    let split = self.splits[to_usize(slot.split)].as_mut();
                    split
                        .expect("its parts are in flight")
                        .leave_hints_out(errno);
                }
                Role::Whole | Role::Unheard | Role::After | Role::AfterUnheard => {}
            }
            self.requeue(index);
            return None;
        }
        if slot.is_settled() {
            return Some(-errno);
        }
        if slot.retries == STARTED && may_be_the_way(&slot.op, errno) {
            slot.retries = 0;
            return self.try_again(index);
        }
        if errno == libc::ECANCELED && !self.is_for_direct_transfers && self.aside.has_pool() {
            self.leave_to_the_pool(index);
            return None;
        }
        let retries_max = match errno {
            // Somebody has asked to be told this instead of waiting.
            libc::EAGAIN if slot.op.wishes().has(Wishes::NO_WAIT) => return Some(-errno),
            errno if !may_be_the_way(&slot.op, errno) => return Some(-errno),
            // It would wait where it is submitted, or was not taken.
            _ if self.is_for_direct_transfers => return self.try_again(index),
            libc::EAGAIN | libc::EINTR => RETRIES_AGAIN,
            // io_uring_enter(2): a request dies with the thread that entered for it, or when no
            // kernel worker can be made. The operation has not been done.
            libc::ECANCELED | libc::EFAULT => RETRIES_CANCELED,
            // The ring may not know what a plain call can do.
            _ => 0,
        };
        if slot.retries < retries_max {
            slot.retries += 1;
            return self.try_again(index);
        }
        if !self.backend.differs_from_plain_calls() {
            return Some(-errno);
        }
        let op = slot.op;
        if self.is_in_time && self.aside.has_pool() {
            let user_data = self.slots.user_data(index);
            // SAFETY: the operation has completed in the ring, and whoever pushed it keeps its
            // memory valid until its answer has been delivered.
            unsafe { self.queue_aside(user_data, &op, false) };
            return None;
        }
        self.tally.plain_calls.add(1);
        // SAFETY: the operation has completed in the ring, and whoever pushed it keeps its memory
        // valid until its answer has been delivered.
        let result = unsafe { execute(&op) };
        if result >= 0 && retries_max == 0 {
            self.refuse(op);
        }
        Some(result)
    }

    /// Has the operation on its way again.
    fn try_again(&mut self, index: u32) -> Option<i32> {
        self.tally.retries.add(1);
        self.requeue(index);
        None
    }

    /// Remembers that the ring refuses a kind of operation which a plain call can do.
    fn refuse(&mut self, op: Op) {
        // Refusals of single files (NOWAIT, IOPOLL) are no reason to give up transfers for all.
        let is_transfer = op.span().is_some();
        if !is_transfer && !self.refused[op.kind()] {
            self.refused[op.kind()] = true;
        }
        if !self.newly_refused.contains(&op.name()) {
            self.newly_refused.push(op.name());
            self.has_news = true;
        }
    }

    /// Starts a request in parts.
    #[cold]
    pub(super) fn push_split(&mut self, split: Split) {
        let free = self.splits.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.splits.push(None);
            self.splits.len() - 1
        });
        self.splits[place] = Some(split);
        self.unissued
            .push(u32::try_from(place).expect("fewer than there are slots"));
        self.issue_parts();
    }

    /// Puts parts into slots, as far as there is room.
    #[cold]
    pub(super) fn issue_parts(&mut self) {
        while let Some(&number) = self.unissued.first() {
            let place = to_usize(number);
            let mut split = self.splits[place].take().expect("unissued is not over");
            while self.slots.has_room() {
                let Some((op, from, len)) = split.issue() else {
                    break;
                };
                let user_data = self.slots.insert(&op, split.token, len, Role::Part);
                let index = self.slots.find(user_data).expect("it is in flight");
                self.slots.get_mut(index).split = number;
                self.slots.set_done(index, from);
                match split.is_aside() {
                    // SAFETY: whoever pushed the request keeps its memory valid until its answer
                    // has been delivered.
                    true => unsafe { self.queue_aside(user_data, &op, false) },
                    // SAFETY: as above.
                    false => unsafe { self.queue_part(user_data, &op, &split) },
                }
            }
            let has_more = split.has_more();
            self.splits[place] = Some(split);
            if has_more {
                return;
            }
            self.unissued.remove(0);
        }
    }

    fn part_done(&mut self, number: u32, from: usize, len: u32, got: i32) -> Option<(u32, Answer)> {
        let place = &mut self.splits[to_usize(number)];
        let split = place.as_mut().expect("its parts are in flight");
        let token = split.token;
        let step = split.answer(from, len, got);
        let waits_to_issue = self.unissued.contains(&number);
        match step {
            Step::GoOn => {
                if split.has_more() && !waits_to_issue {
                    self.unissued.push(number);
                }
                None
            }
            Step::Done(answer) => {
                let (op, is_complete) = split.outcome();
                let settled = split.is_aside();
                *place = None;
                self.unissued.retain(|waiting| *waiting != number);
                let sync = op.sync_after().filter(|_| is_complete);
                self.end(token, sync, answer.marked(op.is_unheard()), settled)
            }
        }
    }

    /// The backend refuses to go on. What never reached the kernel is done by plain calls; if
    /// anything did, its memory is the kernel's and nobody can tell until when.
    #[cold]
    pub(super) fn salvage(&mut self, broken: Broken, deliver: &mut impl FnMut(u32, Answer)) {
        self.settle(deliver);
        // Before what is in the pool is waited for, because that may hang.
        if self.backend.unsubmitted() != self.in_backend() {
            if broken.may_pass {
                return;
            }
            completions_lost(&format!(
                "the ring cannot be entered any more with operations in flight ({}; a seccomp \
                 filter that comes after the first operation does that: install it before, or have \
                 no ring by INFLIGHT_BACKEND=threads)",
                broken.cause
            ));
        }
        while self.aside.is_busy() || self.older.is_busy() {
            self.drain_aside(deliver);
            self.drain_started(deliver);
            // Of what was done, some may have another step there.
            self.settle(deliver);
        }
        self.broken = Some(broken.cause);
        self.refused = [true; KINDS];
        self.aside.all_are_served();
        for index in self.slots.used() {
            let (slot, done) = (*self.slots.get(index), self.slots.done(index));
            self.slots.free(index);
            if slot.role == Role::Part {
                continue;
            }
            let request = Request {
                whole: slot.role == Role::Whole,
                ..Request::simple(slot.op)
            };
            let after_unheard = slot.role == Role::AfterUnheard;
            let answer = self.do_plainly(&request).marked(after_unheard);
            self.early.push((slot.token, answer.plus(done)));
        }
        for number in 0..self.splits.len() {
            if let Some(split) = self.splits[number].take() {
                let answer = self.do_plainly(split.request());
                self.early.push((split.token, split.made_anew(answer)));
            }
        }
        self.queued = 0;
        self.unissued.clear();
        // Not before nothing is in flight: no turn would end what a panic has left there.
        self.deliver_early(deliver);
    }

    /// Delivers what is there already, one by one: should a panic unwind, the others stay.
    #[cold]
    pub(super) fn deliver_early(&mut self, deliver: &mut impl FnMut(u32, Answer)) {
        self.early.reverse();
        while let Some((token, answer)) = self.early.pop() {
            deliver(token, answer);
        }
    }

    fn do_plainly(&mut self, request: &Request) -> Answer {
        self.tally.plain_calls.add(1);
        self.tally.answered.add(1);
        // SAFETY: nothing of this request is in the kernel, and its memory is valid until its
        // answer has been delivered.
        unsafe { execute_request(request) }
    }
}
