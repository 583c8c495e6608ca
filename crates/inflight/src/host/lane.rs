//! The lane host: a proactor that a tokio runtime's own threads serve, through a task of the
//! runtime that stands in for a driver thread.
//!
//! A descriptor that tells of completions is in the runtime's poll set. So whichever of its
//! threads waits for the runtime's events waits for completions too, and no other thread has to be
//! woken. A lane is a [`Mailbox`] like that of a driver; what differs is who looks into it.
//!
//! **Who owns the proactor.** It lies on the lane's [`Desk`], under a lock that the task holds
//! while it works. It waits no longer than [`super::flow::HELD_MAX`] with it, but for a call that
//! should only start a transfer and does not ([`crate::proactor`]); so nobody else waits for the
//! lock. Whoever takes the desk away owns it from then on: a driver thread, when the runtime has
//! ended with something in flight, or when nobody has polled the task although there was something
//! to do ([`super::lanes`] looks for that). So no answer depends on the runtime: futures may be
//! polled anywhere, also after their runtime is gone.
//!
//! **Gathering.** With a few in flight the task lets the others of its thread have their turn
//! before it hands over what has come, so that what one wave of completions brings about
//! goes to the kernel in one enter.
//!
//! **Holding.** Where a runtime has several threads, many operations are in flight, and
//! completions are so near that a thread would sleep for a moment only, it sleeps in the ring
//! until a few are there. Each time it lets the others have their turn first, and the runtime look
//! for its events.
//!
//! **Sharing.** The only thread of a runtime shares its copies from the page cache with a thread of
//! the pool, where that wins ([`shares`]).
//!
//! A runtime of several threads has several lanes ([`super::crew`]).
#![allow(unsafe_code)]

mod shares;
mod works;

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::cells::{Kept, Left, Ticket};
use super::crowd::Crowd;
use super::driver::{Desk, drive, without_unwinding};
use super::hand_over::HandsOver;
use super::lanes::{Keeper, Lanes};
use super::mail::{Mailbox, News, Rouse, Rouser};
use super::pace::MANY;
use super::pass::{Takes, Then, Told, pass};
use super::shared::Shared;
use super::sharing::spread::Gathered;
use crate::completion::Answer;
use crate::error::SetupError;
use crate::foreign::contain;
use crate::fork;
use crate::op::{Op, Request};
use crate::sync::lock;
use shares::Taken as Shares;

pub(crate) use shares::{hands_over, share};

/// What goes from thread to thread.
struct Movable {
    desk: Desk,
    /// What is shared with another thread; see [`shares`].
    gathered: Gathered,
    /// Answers of that, which have yet to be left in the mailbox.
    made: Vec<(u32, Answer)>,
    /// What of that the page cache did not have. Empty but while answers are taken.
    missed: Vec<(u32, Request)>,
    hands_over: HandsOver,
}

// SAFETY: what it has that is not `Send` by itself are addresses in requests. They stay valid until
// their answers are delivered, whichever thread hands them over: `Cells::insert` asks for that. The
// ring is one that any thread may enter.
unsafe impl Send for Movable {}

/// See the module.
pub(crate) struct Lane {
    pub(super) runtime: Id,
    crowd: Arc<Crowd>,
    /// Its number among the lanes of the runtime.
    place: usize,
    mailbox: Mailbox,
    /// Absent once a driver thread has taken it, or the lane has ended.
    desk: Mutex<Option<Movable>>,
    /// Whether a driver thread has it.
    is_taken: AtomicBool,
    /// How often the task has worked.
    passes: AtomicU64,
    /// The thread that has polled it last, by an address that is its own; 0 for none.
    served_by: AtomicUsize,
    /// The thread that has taken the lane over. Its lock comes before that of the desk.
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Weak<Shared>,
    keeper: Arc<Keeper>,
    fork_generation: u32,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

/// Whether a request is for a lane: what takes a thread of its own anyway is for a driver.
pub(crate) fn suits(request: &Request) -> bool {
    let moves = matches!(
        request.op,
        Op::Nop
            | Op::ReadAt { .. }
            | Op::WriteAt { .. }
            | Op::ReadVectoredAt { .. }
            | Op::WriteVectoredAt { .. }
    );
    moves && !request.aside
}

/// One of the lanes of the current runtime, and what its task waits for.
///
/// # Errors
///
/// If there are no rings, or none for it, or the runtime ends.
///
/// # Panics
///
/// If the runtime has no I/O driver.
pub(super) fn make(
    shared: &Arc<Shared>,
    runtime: Id,
    crowd: &Arc<Crowd>,
    place: usize,
) -> Result<(Arc<Lane>, AsyncFd<OwnedFd>), SetupError> {
    let (proactor, watched) = shared.new_lane(crowd.is_alone())?;
    // SAFETY: it owns the descriptor, which stays the same one as long as it lives.
    let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
    let watched = watched.map_err(|failed| SetupError::Refused {
        cause: Arc::new(failed.into()),
    })?;
    let lane = Lane {
        runtime,
        crowd: Arc::clone(crowd),
        place,
        // The task sets its own waker before it counts as parked for the first time.
        mailbox: Mailbox::new(nobody(), shared.config.bytes_in_flight),
        desk: Mutex::new(Some(Movable {
            desk: Desk::new(proactor),
            gathered: Gathered::new(),
            made: Vec::new(),
            missed: Vec::new(),
            hands_over: HandsOver::new(),
        })),
        is_taken: AtomicBool::new(false),
        passes: AtomicU64::new(0),
        served_by: AtomicUsize::new(0),
        thread: Mutex::default(),
        shared: Arc::downgrade(shared),
        keeper: Arc::clone(shared.lanes.keeper()),
        fork_generation: fork::generation(),
    };
    Ok((Arc::new(lane), watched))
}

fn nobody() -> Rouser {
    Rouser::Task(Waker::noop().clone())
}

/// Has a runtime run its task.
pub(super) fn start(
    runtime: &Handle,
    lane: Arc<Lane>,
    watched: AsyncFd<OwnedFd>,
    lanes: Weak<Lanes>,
) {
    runtime.spawn(serve(Serving { lane, lanes }, watched));
}

impl Lane {
    /// Hands over a request; `None` if the lane has ended.
    ///
    /// # Safety
    ///
    /// As for [`super::cells::Cells::insert`].
    #[inline]
    pub(crate) unsafe fn submit(&self, request: Request, waker: &Waker) -> Option<Ticket> {
        // SAFETY: passed on from the caller.
        let ticket = unsafe { self.mailbox.submit(request, waker) }?;
        self.keeper.attend();
        Some(ticket)
    }

    /// Hands over requests together; false if the lane has ended.
    ///
    /// # Safety
    ///
    /// As for [`super::cells::Cells::insert`].
    pub(crate) unsafe fn submit_all(
        &self,
        requests: impl Iterator<Item = Request>,
        tickets: &mut Vec<Ticket>,
    ) -> bool {
        // SAFETY: passed on from the caller.
        let is_taken = unsafe { self.mailbox.submit_all(requests, tickets) };
        if is_taken {
            self.keeper.attend();
        }
        is_taken
    }

    pub(crate) fn crowd(&self) -> &Arc<Crowd> {
        &self.crowd
    }

    /// Its number among the lanes of the runtime.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    pub(crate) fn poll(&self, ticket: Ticket, waker: &Waker) -> Option<Answer> {
        self.mailbox.poll(ticket, waker)
    }

    pub(crate) fn abandon(&self, ticket: Ticket, keep: impl FnOnce() -> Box<dyn Kept>) -> Left {
        self.mailbox.abandon(ticket, keep)
    }

    /// Requests without an answer.
    pub(crate) fn unanswered(&self) -> u32 {
        self.mailbox.unanswered()
    }

    /// How often the task has worked.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Whether there is something to do for the task, which is not at it.
    pub(super) fn waits_for_its_task(&self) -> bool {
        let Ok(mut desk) = self.desk.try_lock() else {
            return false;
        };
        let Some(mine) = desk.as_mut() else {
            return false;
        };
        // What has been reaped, or made, is seen neither in the ring nor in the mailbox.
        let has_answers = !mine.desk.answers.is_empty() || !mine.made.is_empty();
        if mine.gathered.is_due() || has_answers {
            return true;
        }
        let has_requests = self.mailbox.has_mail() || !mine.desk.taken.requests.is_empty();
        let proactor = &mut mine.desk.proactor;
        let can_start = has_requests && proactor.has_room();
        can_start || self.mailbox.has_hint() || proactor.has_work()
    }

    /// The desk, as the task has it while it works.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        lock(&self.desk)
    }

    /// Whether the desk is there, or in use. Whoever asks does not wait for who uses it.
    fn may_have_desk(&self) -> bool {
        match self.desk.try_lock() {
            Ok(desk) => desk.is_some(),
            Err(_) => true,
        }
    }

    /// Has a driver thread go on with the lane, for this reason.
    #[cold]
    pub(crate) fn take_over(self: &Arc<Self>, why: &str) {
        // Held until the thread is known, because whoever ends the lane waits for it.
        let mut thread = lock(&self.thread);
        if thread.is_some() || !self.may_have_desk() {
            return;
        }
        let lane = Arc::clone(self);
        let reason = why.to_owned();
        let run = move || {
            let desk = lock(&lane.desk).take();
            let Some(mut taken) = desk else {
                return;
            };
            // Before anything is answered: whoever has an answer may ask who gave it.
            lane.tell_of(vec![reason]);
            // The task notes nothing any more.
            lane.crowd.note(lane.place, 0);
            let proactor = &mut taken.desk.proactor;
            proactor.announce(false);
            let alarm = proactor.alarm().expect("it was made with the ring");
            // The task is to see that the lane is not its own any more.
            lane.is_taken.store(true, Ordering::Relaxed);
            contain(|| lane.mailbox.replace_alarm(Rouser::Alarm(alarm)).ring());
            without_unwinding(|| taken.finish_shared());
            let Movable { desk, gathered, .. } = taken;
            // It may know whom to wake of a runtime that is gone.
            contain(|| drop(gathered));
            drive(&lane.shared, desk, &lane.mailbox);
            lane.rouse_nobody();
        };
        let named = thread::Builder::new().name("inflight-driver".to_owned());
        let started = named.spawn(run);
        let failed = started.map(|started| *thread = Some(started)).err();
        drop(thread);
        // The desk stays where it is then, and the keeper tries again.
        let failed = failed.map(|cause| format!("{why}, and no driver can be started: {cause}"));
        self.tell_of(failed.into_iter().collect());
    }

    /// Ends the lane once nothing is in flight, but waits no longer than until `deadline`.
    /// Returns how many requests are then left; a thread goes on with them.
    pub(crate) fn end(self: &Arc<Self>, deadline: Instant) -> u32 {
        self.mailbox.end();
        if self.unanswered() > 0 {
            self.take_over("the engine was dropped with operations in flight in a lane");
        }
        let thread = lock(&self.thread).as_ref().map(|known| known.thread().id());
        let Some(thread) = thread else {
            return self.put_away();
        };
        // Whoever drops the engine while told something by this lane is waited for by its driver.
        if thread == thread::current().id() || self.is_told_here() {
            return 0;
        }
        if self.mailbox.wait_for_end(deadline) {
            let thread = lock(&self.thread).take();
            // A driver runs no foreign code that it does not contain.
            let _ = thread.map(JoinHandle::join);
            return 0;
        }
        self.unanswered()
    }

    /// Drops the desk if nothing is in flight; else keeps it for ever, because nobody can wait for
    /// it. Returns how many requests are left.
    fn put_away(self: &Arc<Self>) -> u32 {
        let left = self.unanswered();
        if left > 0 {
            std::mem::forget(Arc::clone(self));
        } else {
            self.clear();
        }
        left
    }

    /// Drops the desk, of a mailbox that takes no more and has nothing in flight, unless a driver
    /// thread is to have it: whoever ends the lane waits until that has ended.
    fn clear(&self) {
        let thread = lock(&self.thread);
        let desk = match thread.is_some() {
            true => None,
            false => lock(&self.desk).take(),
        };
        drop(thread);
        if desk.is_some() {
            self.rouse_nobody();
        }
    }

    /// Lets go of what roused whoever had the desk: a future that is forgotten keeps the lane, and
    /// need not keep a runtime.
    fn rouse_nobody(&self) {
        drop(self.mailbox.replace_alarm(nobody()));
    }

    /// Tells what a pass has brought about.
    fn tell(&self, news: &mut News) {
        let before = TELLS.replace(std::ptr::from_ref(self).addr());
        self.mailbox.tell(news);
        TELLS.set(before);
    }

    /// Whether this thread is just told something by this lane.
    fn is_told_here(&self) -> bool {
        TELLS.get() == std::ptr::from_ref(self).addr()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.fork_generation != fork::generation()
            && let Ok(desk) = self.desk.get_mut()
        {
            // It is the parent's.
            std::mem::forget(desk.take());
        }
    }
}

thread_local! {
    /// Where the lane is by which this thread is just told something; 0 for none.
    static TELLS: Cell<usize> = const { Cell::new(0) };
}

/// What the task has of its lane. It goes when the task has ended, or its runtime.
struct Serving {
    lane: Arc<Lane>,
    lanes: Weak<Lanes>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let lane = &self.lane;
        if lane.fork_generation != fork::generation() {
            return;
        }
        // From here on nothing comes any more.
        lane.mailbox.end();
        if lane.unanswered() > 0 {
            lane.take_over("a tokio runtime has ended with operations in flight in its lane");
        } else {
            lane.clear();
        }
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.retire(lane);
        }
    }
}

/// Lets all others that are ready have their turn. Unlike `yield_now` of tokio it does not ask the
/// kernel for events before it goes on: the runtime does so now and then.
async fn after_others() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The task.
async fn serve(serving: Serving, watched: AsyncFd<OwnedFd>) {
    let lane = &serving.lane;
    let mut known = Waker::noop().clone();
    let mut told = Told::new(lane.crowd.is_alone());
    let mut then = Then::Again;
    while then != Then::End {
        if !lane.woken(&watched, &mut known, then == Then::Sleep).await {
            return;
        }
        // The only thread of a runtime is not held up.
        let holds = !lane.crowd.is_alone() && told.worth() > 0;
        if holds || (told.of >= MANY && lane.mailbox.has_hint()) {
            // Those that are told now, and all others of this thread, have their turn first.
            if lane.work(&mut told, Takes::None, &known) == Then::End {
                return;
            }
            tokio::task::yield_now().await;
        }
        let takes = match holds {
            true => Takes::MailAndWaits,
            false => Takes::Mail,
        };
        // Others may hand over so much that there is always something to do. Before the work: who
        // wakes the task once that has said that it may sleep gives no hint, and nothing but
        // [`Lane::woken`] knows the wake-up for one.
        tokio::task::consume_budget().await;
        then = lane.work(&mut told, takes, &known);
        if then == Then::Yield {
            // Those that have been told, and all others that are ready, have their turn first.
            after_others().await;
        }
    }
}

impl Lane {
    /// Waits, if it may, until there is mail, or something to reap. False when the runtime is
    /// about to end.
    async fn woken(&self, watched: &AsyncFd<OwnedFd>, known: &mut Waker, may_wait: bool) -> bool {
        // Who shares reads with it wakes it without a hint.
        let mut is_woken = !may_wait;
        poll_fn(|context| {
            if !known.will_wake(context.waker()) {
                known.clone_from(context.waker());
                self.be_roused(known);
            }
            let is_taken = self.is_taken.load(Ordering::Relaxed);
            let was_woken = std::mem::replace(&mut is_woken, true);
            let mut is_ready = was_woken || is_taken || self.mailbox.has_hint();
            loop {
                match watched.poll_read_ready(context) {
                    // Cleared before what is there is reaped: whatever comes later sets it again.
                    Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                    Poll::Ready(Err(_)) => return Poll::Ready(false),
                    Poll::Pending if is_ready => return Poll::Ready(true),
                    Poll::Pending => return Poll::Pending,
                }
                is_ready = true;
            }
        })
        .await
    }

    /// Has the task roused by what comes, unless somebody else has the desk by now: it is roused
    /// in its own way.
    fn be_roused(&self, task: &Waker) {
        let desk = lock(&self.desk);
        if desk.is_some() {
            drop(self.mailbox.replace_alarm(Rouser::Task(task.clone())));
        }
    }

    /// Tells the engine what has been given up. Without any lock: it may be the last that has it.
    fn tell_of(&self, fallbacks: Vec<String>) {
        for reason in fallbacks {
            if let Some(shared) = self.shared.upgrade() {
                shared.counters.fallback(reason);
            }
        }
    }

    /// Reaps and tells.
    fn work(self: &Arc<Self>, told: &mut Told, takes: Takes, task: &Waker) -> Then {
        if self.fork_generation != fork::generation() {
            return Then::End;
        }
        without_unwinding(|| self.work_on(told, takes, task))
    }

    fn work_on(self: &Arc<Self>, told: &mut Told, takes: Takes, task: &Waker) -> Then {
        let mut desk = lock(&self.desk);
        let Some(mine) = desk.as_mut() else {
            return Then::End;
        };
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.be_served_here();
        mine.desk.proactor.sweep();
        let shares = mine.take_shared();
        // Whoever shared the next read may have taken answers to make room for it.
        if !mine.made.is_empty() {
            self.mailbox
                .leave(&mut mine.made, &mut mine.desk.taken.news);
        }
        if shares == Shares::Some && mine.only_shares() && !self.mailbox.has_hint() {
            std::mem::swap(&mut told.news, &mut mine.desk.taken.news);
            drop(desk);
            self.tell(&mut told.news);
            return Then::Yield;
        }
        let note = |in_flight| self.crowd.note(self.place, in_flight);
        let then = pass(&mut mine.desk, &self.mailbox, told, takes, note);
        let then = match (then, shares) {
            (Then::Again | Then::Sleep, Shares::Some) => Then::Yield,
            (Then::Sleep, Shares::Theirs) if mine.gathered.watch(&Rouser::Task(task.clone())) => {
                Then::Yield
            }
            (then, _) => then,
        };
        let proactor = &mut mine.desk.proactor;
        mine.hands_over.turned(proactor);
        let is_broken = proactor.is_broken();
        let fallbacks = match proactor.has_news() && !is_broken {
            true => proactor.take_fallbacks().collect(),
            false => Vec::new(),
        };
        drop(desk);
        self.tell(&mut told.news);
        if is_broken {
            // The driver tells of it, and goes on without a ring.
            self.take_over("the ring of a lane has broken");
            return Then::End;
        }
        self.tell_of(fallbacks);
        then
    }
}
