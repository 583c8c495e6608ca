//! The mailbox of a driver: what futures on any thread hand over, and the answers they collect.
//!
//! One lock guards everything. Futures hold it for two short moments for each operation, the
//! driver once for each batch of completions. No foreign code runs under it: wakers are woken, and
//! whatever is dropped is dropped, after it has been released.
//!
//! **Parking.** The driver says under the lock that it will sleep, and only when there is no mail;
//! whoever brings mail while it sleeps takes the word back under the same lock and rings the
//! alarm. So no mail is overlooked, and a driver that is awake costs nobody a system call.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::cells::{Cells, Kept, Left, Then, Ticket, Wake};
use super::timers::{TimerKey, Timers};
use crate::backend::alarm::Alarm;
use crate::completion::Answer;
use crate::foreign::{clone_waker, contain};
use crate::op::Request;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError, lock_explored};

/// What rouses a driver.
pub(crate) trait Rouse: Clone {
    fn ring(&self);
}

/// What rouses whoever drives a proactor, wherever that is.
#[derive(Clone)]
pub(crate) enum Rouser {
    /// A thread that waits in its backend.
    Alarm(Alarm),
    /// A task of a runtime.
    #[cfg(feature = "tokio")]
    Task(Waker),
}

impl Rouse for Alarm {
    fn ring(&self) {
        Alarm::ring(self);
    }
}

impl Rouse for Rouser {
    fn ring(&self) {
        match self {
            Self::Alarm(alarm) => alarm.ring(),
            #[cfg(feature = "tokio")]
            Self::Task(waker) => waker.wake_by_ref(),
        }
    }
}

/// See the module.
pub(crate) struct Mailbox<A = Rouser> {
    mail: Mutex<Mail<A>>,
    /// Whether there is mail, for a driver that looks for it without the lock. A hint.
    hint: AtomicBool,
    /// Told when the driver has ended.
    ended: Condvar,
}

struct Mail<A> {
    cells: Cells,
    timers: Timers,
    /// When the driver looks at the timers again by itself: the first of them may have been
    /// cancelled since.
    looks_at: Option<Instant>,
    /// Shared, because to clone what is in it may be foreign code, which runs under no lock.
    alarm: Arc<A>,
    /// Whether the driver sleeps until the alarm is rung.
    parked: bool,
    /// Whether the driver is to end when nothing is left to do.
    ending: bool,
    ended: bool,
    /// Operations left behind that are over, and that somebody is letting go of.
    letting_go: usize,
}

/// What a driver takes out of the mailbox; its memory is used again and again.
#[derive(Default)]
pub(crate) struct Taken {
    /// Requests to be handed over, the first one last.
    pub(crate) requests: Vec<(u32, Request)>,
    pub(crate) news: News,
}

/// What somebody is to be told.
#[derive(Default)]
pub(crate) struct News {
    wakes: Vec<Waker>,
    overs: Vec<(Box<dyn Kept>, Answer)>,
}

/// How the driver is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Mail does not ring the alarm, so it has to look again soon.
    Work,
    /// It counts as parked: mail rings the alarm.
    Park,
    /// It is to end.
    End,
}

impl<A: Rouse> Mailbox<A> {
    /// The mailbox of a driver that this alarm interrupts. At most so many bytes are in flight.
    pub(crate) fn new(alarm: A, bytes_max: u64) -> Self {
        Self {
            mail: Mutex::new(Mail {
                cells: Cells::new(bytes_max),
                timers: Timers::default(),
                looks_at: None,
                alarm: Arc::new(alarm),
                parked: false,
                ending: false,
                ended: false,
                letting_go: 0,
            }),
            hint: AtomicBool::new(false),
            ended: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mail<A>> {
        lock_explored(&self.mail)
    }

    /// Ends a visit that brought something the driver has to see.
    fn deliver(&self, mut mail: MutexGuard<'_, Mail<A>>) {
        self.hint.store(true, Ordering::Relaxed);
        let alarm = mail.rouse();
        drop(mail);
        if let Some(alarm) = alarm {
            // A runtime's waker may be foreign, and what was delivered is in flight: a panic from
            // here would have its owner take it for what has not been started.
            contain(move || alarm.ring());
        }
    }

    /// Hands over a request; `None` if the driver is to end, and takes no more.
    ///
    /// # Safety
    ///
    /// As for [`Cells::insert`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn submit(&self, request: Request, waker: &Waker) -> Option<Ticket> {
        let wake = Wake::Waker(clone_waker(waker));
        let mut mail = self.lock();
        if mail.ending {
            drop(mail);
            drop(wake);
            return None;
        }
        // SAFETY: passed on from the caller.
        let ticket = unsafe { mail.cells.insert(request, wake) };
        self.deliver(mail);
        Some(ticket)
    }

    /// Hands over requests together, and appends their tickets. Nobody is told of the answers
    /// until they have been polled. False if the driver is to end, and takes no more.
    ///
    /// # Safety
    ///
    /// As for [`Cells::insert`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn submit_all(
        &self,
        requests: impl Iterator<Item = Request>,
        tickets: &mut Vec<Ticket>,
    ) -> bool {
        let mut mail = self.lock();
        if mail.ending {
            return false;
        }
        for request in requests {
            // SAFETY: passed on from the caller.
            tickets.push(unsafe { mail.cells.insert(request, Wake::Nobody) });
        }
        self.deliver(mail);
        true
    }

    /// A cell for a request of so many bytes that the driver is at work at already, for which whom
    /// to wake is taken; its token, and whom to ring, as by [`Mailbox::rouse`]. `None` if there is
    /// no room, or the driver is to end.
    #[cfg(any(feature = "tokio", all(test, loom)))]
    pub(crate) fn start(
        &self,
        bytes: u64,
        wake: &mut Option<Wake>,
    ) -> Option<(u32, Ticket, Option<Arc<A>>)> {
        let mut mail = self.lock();
        if mail.ending || !mail.cells.may_start(bytes) {
            return None;
        }
        let (token, ticket) = mail.cells.insert_in_flight(bytes, wake.take()?);
        Some((token, ticket, mail.rouse()))
    }

    /// Whom to ring, if the driver sleeps: it counts as awake from now on.
    #[cfg(feature = "tokio")]
    pub(crate) fn rouse(&self) -> Option<Arc<A>> {
        self.lock().rouse()
    }

    /// For the driver: leaves answers, and nothing else.
    #[cfg(any(feature = "tokio", all(test, loom)))]
    pub(crate) fn leave(&self, answers: &mut Vec<(u32, Answer)>, news: &mut News) {
        self.lock().leave(answers, news);
    }

    /// How many requests wait, if one of them may be taken now.
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().waiting()
    }

    /// The next request, for one of several threads that look into a mailbox without a driver, and
    /// how many wait then ([`Mailbox::waiting`]).
    pub(crate) fn take_one(&self) -> (Option<(u32, Request)>, u64) {
        let mut mail = self.lock();
        let request = mail.cells.take();
        if request.is_none() {
            self.end_if_idle(&mut mail);
        }
        (request, mail.waiting())
    }

    /// Leaves the answer of a request that was taken alone. Who lets go of what was left behind has
    /// it known ([`Mailbox::has_let_go`]).
    pub(crate) fn answer(&self, token: u32, answer: Answer) -> Then {
        let mut mail = self.lock();
        let then = mail.cells.complete(token, answer);
        mail.letting_go += usize::from(matches!(then, Then::Over(..)));
        then
    }

    pub(crate) fn has_let_go(&self) {
        self.lock().letting_go -= 1;
    }

    /// The answer, if it has come; else the waker is kept.
    pub(crate) fn poll(&self, ticket: Ticket, waker: &Waker) -> Option<Answer> {
        let mut mail = self.lock();
        match mail.cells.poll(ticket) {
            Ok(answer) => return Some(answer),
            Err(wake) if wake.is(waker) => return None,
            Err(_) => drop(mail),
        }
        // Cloning a waker is foreign code.
        let wake = Wake::Waker(clone_waker(waker));
        let mut mail = self.lock();
        let before = match mail.cells.poll(ticket) {
            Ok(answer) => {
                drop(mail);
                contain(|| drop(wake));
                return Some(answer);
            }
            Err(known) => std::mem::replace(known, wake),
        };
        drop(mail);
        contain(|| drop(before));
        None
    }

    /// The future is gone. `keep` is asked for what the request needs if it is in flight.
    pub(crate) fn abandon(&self, ticket: Ticket, keep: impl FnOnce() -> Box<dyn Kept>) -> Left {
        let mut mail = self.lock();
        let (left, waker) = mail.cells.abandon(ticket, keep);
        // It may have been the one for which there was no room, and those behind it smaller.
        match matches!(left, Left::Withdrawn) && mail.cells.may_take() {
            true => self.deliver(mail),
            false => drop(mail),
        }
        contain(|| drop(waker));
        left
    }

    /// Has the waker woken at an instant.
    pub(crate) fn set_timer(&self, at: Instant, waker: &Waker) -> TimerKey {
        let waker = clone_waker(waker);
        let mut mail = self.lock();
        let (key, is_first) = mail.timers.set(at, waker);
        // Where each operation has a time limit, the driver sleeps through nearly all of them.
        let is_seen = mail.parked && mail.looks_at.is_some_and(|looks| looks <= at);
        if is_first && !is_seen {
            self.deliver(mail);
        }
        key
    }

    /// Has another waker woken; false when the timer has gone off.
    pub(crate) fn update_timer(&self, key: TimerKey, waker: &Waker) -> bool {
        let waker = clone_waker(waker);
        let updated = self.lock().timers.update(key, waker);
        let is_set = updated.is_ok();
        contain(|| drop(updated));
        is_set
    }

    pub(crate) fn cancel_timer(&self, key: TimerKey) {
        let waker = self.lock().timers.cancel(key);
        contain(|| drop(waker));
    }

    /// Requests without an answer, and those whose answer is being taken note of.
    pub(crate) fn unanswered(&self) -> u32 {
        let mail = self.lock();
        let letting_go = u32::try_from(mail.letting_go).unwrap_or(u32::MAX);
        mail.cells.unanswered().saturating_add(letting_go)
    }

    /// Whether there may be mail; without the lock.
    pub(crate) fn has_hint(&self) -> bool {
        self.hint.load(Ordering::Relaxed)
    }

    /// For the driver: leaves answers and takes up to `room` requests. Unless somebody is to be
    /// told something now, or there is more mail, it counts as parked from now on. Returns also
    /// when the next timer goes off.
    pub(crate) fn exchange(
        &self,
        answers: &mut Vec<(u32, Answer)>,
        taken: &mut Taken,
        room: u32,
    ) -> (Next, Option<Instant>) {
        let mut mail = self.lock();
        self.hint.store(false, Ordering::Relaxed);
        mail.parked = false;
        mail.leave(answers, &mut taken.news);
        let mut next_timer = mail.timers.next();
        if next_timer.is_some() {
            let now = Instant::now();
            while let Some(waker) = mail.timers.pop_due(now) {
                taken.news.wakes.push(waker);
            }
            next_timer = mail.timers.next();
        }
        mail.looks_at = next_timer;
        for _ in 0..room {
            let Some(request) = mail.cells.take() else {
                break;
            };
            taken.requests.push(request);
        }
        if room > 0 {
            // What was left from the last time is in order already, and then there is no room.
            taken.requests.reverse();
        }
        let next = if taken.news.is_some() || (room > 0 && mail.cells.may_take()) {
            Next::Work
        } else if self.end_if_idle(&mut mail) {
            Next::End
        } else {
            mail.parked = true;
            Next::Park
        };
        (next, next_timer)
    }

    /// Ends if it is to end and nothing is left to do.
    fn end_if_idle(&self, mail: &mut Mail<A>) -> bool {
        let ends = mail.ending && mail.cells.is_idle() && mail.letting_go == 0;
        if ends {
            mail.ended = true;
            self.ended.notify_all();
        }
        ends
    }

    /// Tells what an exchange has brought about. Foreign code runs here; its panics end here too.
    pub(crate) fn tell(&self, news: &mut News) {
        let overs = news.overs.len();
        news.tell();
        if overs == 0 {
            return;
        }
        let mut mail = self.lock();
        mail.letting_go -= overs;
        if mail.ending {
            // Whoever has taken over meanwhile may have waited for this alone.
            self.deliver(mail);
        }
    }

    /// Whether there are requests to be taken.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_mail(&self) -> bool {
        self.lock().cells.may_take()
    }

    /// Another alarm interrupts the driver from now on. Returns the one before.
    pub(crate) fn replace_alarm(&self, alarm: A) -> Arc<A> {
        let alarm = Arc::new(alarm);
        std::mem::replace(&mut self.lock().alarm, alarm)
    }

    /// Has the driver end when nothing is left to do.
    pub(crate) fn end(&self) {
        let mut mail = self.lock();
        mail.ending = true;
        self.deliver(mail);
    }

    /// Waits until the driver has ended, but not longer than until `deadline`. False when it has
    /// not.
    pub(crate) fn wait_for_end(&self, deadline: Instant) -> bool {
        let mut mail = self.lock();
        while !mail.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            let waited = self.ended.wait_timeout(mail, left);
            mail = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl<A: Rouse> Mail<A> {
    fn waiting(&self) -> u64 {
        match self.cells.may_take() {
            true => self.cells.queued().into(),
            false => 0,
        }
    }

    /// Whom to ring, if the driver sleeps: it counts as awake from now on.
    fn rouse(&mut self) -> Option<Arc<A>> {
        let was_parked = std::mem::replace(&mut self.parked, false);
        was_parked.then(|| Arc::clone(&self.alarm))
    }

    /// Takes answers to their cells. Nobody has been told of any news yet.
    fn leave(&mut self, answers: &mut Vec<(u32, Answer)>, news: &mut News) {
        let before = news.overs.len();
        for (token, answer) in answers.drain(..) {
            match self.cells.complete(token, answer) {
                Then::Wake(Wake::Waker(waker)) => news.wakes.push(waker),
                Then::Over(kept, answer) => news.overs.push((kept, answer)),
                Then::Wake(Wake::Nobody | Wake::Task(_)) => {}
            }
        }
        self.letting_go += news.overs.len() - before;
    }
}

impl News {
    /// Whether somebody is to be told something.
    pub(super) fn is_some(&self) -> bool {
        !self.wakes.is_empty() || !self.overs.is_empty()
    }

    /// Tells futures that their answers are there, and lets go of what was left behind.
    fn tell(&mut self) {
        for waker in self.wakes.drain(..) {
            contain(|| waker.wake());
        }
        for (kept, answer) in self.overs.drain(..) {
            contain(|| kept.over(answer));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::op::{Op, Span, Wishes};

    /// Counts how often it is rung.
    #[derive(Clone, Default)]
    struct Bell(Rc<Cell<u32>>);

    impl Rouse for Bell {
        fn ring(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn what_a_driver_could_not_hand_over_keeps_its_order() {
        let mailbox = Mailbox::new(Bell::default(), u64::MAX);
        let (mut answers, mut taken) = (Vec::new(), Taken::default());
        let requests = (0..3).map(|_| Request::simple(Op::Nop));
        // SAFETY: a no-op names no memory.
        unsafe { mailbox.submit_all(requests, &mut Vec::new()) };
        let tokens = |taken: &Taken| -> Vec<u32> {
            taken.requests.iter().map(|(token, _)| *token).collect()
        };
        mailbox.exchange(&mut answers, &mut taken, 3);
        assert_eq!(tokens(&taken), [2, 1, 0]);
        mailbox.exchange(&mut answers, &mut taken, 0);
        assert_eq!(tokens(&taken), [2, 1, 0]);
    }

    #[test]
    #[allow(unsafe_code)]
    fn who_waits_behind_one_that_is_taken_back_is_handed_over_at_once() {
        let bell = Bell::default();
        let mailbox = Mailbox::new(bell.clone(), 100);
        let mut memory = vec![0; 100];
        let mut submit = |len| {
            let op = Op::ReadAt {
                fd: -1,
                span: Span {
                    start: memory.as_mut_ptr(),
                    len,
                    arena: None,
                },
                offset: 0,
                wishes: Wishes::NONE,
            };
            // SAFETY: nobody makes the request, and the memory is there until the end.
            let ticket = unsafe { mailbox.submit(Request::simple(op), Waker::noop()) };
            ticket.expect("it does not end")
        };
        submit(60);
        let (large, _small) = (submit(100), submit(10));
        let (mut answers, mut taken) = (Vec::new(), Taken::default());
        let mut exchange = || {
            let (next, _) = mailbox.exchange(&mut answers, &mut taken, 8);
            assert!(matches!(next, Next::Park));
            taken.requests.drain(..).count()
        };
        assert_eq!([exchange(), exchange()], [1, 0]);
        let rung = bell.0.get();
        let left = mailbox.abandon(large, || unreachable!("it is not in flight"));
        assert!(matches!(left, Left::Withdrawn));
        assert_eq!(bell.0.get(), rung + 1);
        assert_eq!(exchange(), 1);
    }

    #[test]
    fn a_time_limit_for_each_operation_does_not_rouse_the_driver_each_time() {
        let bell = Bell::default();
        let mailbox = Mailbox::new(bell.clone(), u64::MAX);
        let (mut answers, mut taken) = (Vec::new(), Taken::default());
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut sleep = || mailbox.exchange(&mut answers, &mut taken, 1).1;
        assert_eq!(sleep(), None);
        let mut rings = Vec::new();
        for seconds in [100, 101, 102, 99] {
            let timer = mailbox.set_timer(at(seconds), Waker::noop());
            rings.push(bell.0.get());
            if seconds == 100 {
                assert_eq!(sleep(), Some(at(100)));
            }
            mailbox.cancel_timer(timer);
        }
        // It looks at 100 s, too late for the last one only.
        assert_eq!(rings, [1, 1, 1, 2]);
    }
}
