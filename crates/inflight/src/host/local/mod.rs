//! The local host: a run loop that owns a proactor and polls tasks of its own thread; its idle
//! wait *is* the proactor's wait.
//!
//! The loop lives on the stack of [`run`], and futures find it by a thread-local pointer. No
//! foreign code (a poll, a waker, a drop) runs while one of its parts is borrowed.
#![allow(unsafe_code)]

mod clock;
pub(crate) mod nested;
mod promise;
mod remote;
mod shares;
mod tasks;
mod turn;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, RawWakerVTable, Waker};
use std::time::Duration;

use super::caller::{Lease, lease};
use super::cells::{Cells, Kept, Left, Then, Ticket, Wake, bytes_of};
use super::pace::Pace;
use super::shared::Shared;
use super::timers::Timers;
use crate::backend::alarm::Alarm;
use crate::completion::{Answer, Refusal};
use crate::foreign::{clone_waker, contain, end};
use crate::op::{Prepare, Request};
use crate::policy::{Away, loop_waits_for};
use promise::Promise;
use remote::Remote;
use shares::{Shared as Shares, Taken};
use tasks::{MAIN, Spawned, Tasks};
use turn::Until;

pub(crate) use clock::{cancel_timer, set_timer, update_timer};
pub(crate) use nested::{Barred, bars, park};
pub(crate) use promise::{OfLoop, may_promise};
pub(crate) use shares::{gives_misses, share};
pub(crate) use tasks::{TaskKey, abort};
pub(crate) use turn::{is_in_time, without_being_away};

thread_local! {
    /// The loop that runs on this thread; the innermost, if they are nested.
    static CURRENT: Cell<Option<NonNull<Loop<'static>>>> = const { Cell::new(None) };
}

/// Rounds of polling after which completions are looked for although tasks are ready.
const ROUNDS_MAX: u32 = 16;

/// No waker is made of this.
const NO_TASK: (u32, *const (), *const RawWakerVTable) = (MAIN, std::ptr::null(), std::ptr::null());

/// How often a loop that has been forked away polls its tasks.
const CHILD_STEP: Duration = Duration::from_millis(1);

/// See the module.
struct Loop<'s> {
    shared: &'s Arc<Shared>,
    remote: Arc<Remote>,
    /// Interrupts its proactor.
    alarm: RefCell<Alarm>,
    lease: RefCell<Lease<'s>>,
    cells: RefCell<Cells>,
    timers: RefCell<Timers>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<u32>>,
    /// The task that is polled, and what its waker is made of.
    polled: Cell<(u32, *const (), *const RawWakerVTable)>,
    /// What the cells that are done ask for beside the loop's own tasks.
    asked: RefCell<Vec<Then>>,
    pace: Cell<Pace>,
    promise: Promise,
    /// Whether what was submitted last was the only request then, and is known to be short.
    is_short: Cell<bool>,
    /// Whether a single request was in flight when it last waited.
    was_alone: Cell<bool>,
    /// Whether it has been away since it looked for what others have done.
    away: Cell<Away>,
    shares: Shares,
    /// The loop that this one is nested in.
    outer: Option<NonNull<Loop<'static>>>,
    /// Handles of tasks of those loops have one of these beside a waker of a task of this one.
    barred: Barred,
    /// Whether it rings no timers any more.
    is_ending: Cell<bool>,
}

/// A loop that began to run a future, as that future remembers it.
pub(crate) type Home = u64;

/// Calls `body` with the loop of this thread.
#[inline]
fn with_current<R>(body: impl FnOnce(&Loop<'static>) -> R) -> Option<R> {
    let current = CURRENT.try_with(Cell::get).ok()??;
    // SAFETY: the pointer is to the loop on this thread's stack, and is taken back before the loop
    // goes; `body` gets no longer borrow than this call.
    Some(body(unsafe { current.as_ref() }))
}

/// As [`with_current`], if the loop has this number.
#[inline]
fn with_home<R>(home: Home, body: impl FnOnce(&Loop<'static>) -> R) -> Option<R> {
    with_current(|current| (current.remote.id == home).then(|| body(current)))?
}

/// Wakes a task of the loop of this thread; false if that is another loop.
fn wake_here(home: Home, task: u32) -> bool {
    with_home(home, |current| current.wake(task)).is_some()
}

/// Whether operations of this engine belong to the loop of this thread.
#[inline]
pub(crate) fn is_current(shared: &Arc<Shared>) -> bool {
    with_current(|current| Arc::ptr_eq(current.shared, shared)).unwrap_or(false)
}

/// Whether such a loop hands over what the task with this waker asks for: not a call that most
/// likely does not wait, if it has nothing else to do. `None` if there is no such loop.
#[inline]
pub(crate) fn hands_over(shared: &Arc<Shared>, waker: &Waker, is_call: bool) -> Option<bool> {
    with_current(|current| {
        let is_ours = Arc::ptr_eq(current.shared, shared);
        is_ours.then(|| !(is_call && current.may_be_away(waker)))
    })?
}

/// Hands a request to the loop of this thread, if operations of this engine belong to it.
///
/// # Safety
///
/// As for [`Cells::insert`].
#[inline(always)]
pub(crate) unsafe fn submit<O: Prepare>(
    shared: &Arc<Shared>,
    operation: &O,
    request: &Request,
    waker: &Waker,
) -> Option<(Home, Ticket)> {
    with_current(|current| {
        if !Arc::ptr_eq(current.shared, shared) {
            return None;
        }
        // SAFETY: passed on from the caller.
        let ticket = unsafe { current.submit(operation, request, waker) };
        Some((current.remote.id, ticket))
    })?
}

/// Hands requests to the loop of this thread, which [`is_current`], and appends their tickets.
///
/// # Safety
///
/// As for [`Cells::insert`].
pub(crate) unsafe fn submit_all(
    requests: impl Iterator<Item = Request>,
    tickets: &mut Vec<Ticket>,
) -> Home {
    let submitted = with_current(|current| {
        let mut cells = current.cells.borrow_mut();
        for request in requests {
            // SAFETY: passed on from the caller.
            tickets.push(unsafe { cells.insert(request, Wake::Nobody) });
        }
        current.remote.id
    });
    submitted.expect("the caller has looked")
}

/// The answer, if it has come; else the waker is kept.
#[inline]
pub(crate) fn poll(home: Home, ticket: Ticket, waker: &Waker) -> Option<Answer> {
    match with_home(home, |current| current.poll(ticket, waker)) {
        Some(answer) => answer,
        None => remote::poll_from_afar(home, ticket, waker),
    }
}

/// The future is gone. `keep` is asked for what the request needs if it is in flight.
pub(crate) fn abandon(home: Home, ticket: Ticket, keep: impl FnOnce() -> Box<dyn Kept>) -> Left {
    let mut keep = Some(keep);
    let mut keep = || keep.take().expect("asked once")();
    let left = with_home(home, |current| current.abandon(ticket, &mut keep));
    left.unwrap_or_else(|| {
        let remote = remote::find(home);
        match remote.and_then(|remote| remote.abandon(ticket, keep)) {
            Some(answer) => Left::Answered(answer),
            None => Left::InFlight,
        }
    })
}

/// Adds a task to the loop of this thread. Gives it back where there is none.
pub(crate) fn spawn(task: Spawned) -> Result<TaskKey, Spawned> {
    let mut task = Some(task);
    let key = with_current(|current| {
        let task = task.take().expect("given");
        let key = current.tasks.borrow_mut().insert(task);
        current.ready.borrow_mut().push_back(key.task);
        key
    });
    key.ok_or_else(|| task.expect("not taken"))
}

/// Runs a future, and the tasks it spawns, on this thread until the future is ready. The tasks
/// that are left are dropped, and what they have in flight is waited for.
///
/// # Errors
///
/// In a forked child; if io_uring is demanded and this thread cannot have a ring, or no
/// descriptor is left.
pub(crate) fn run<F: Future>(shared: &Arc<Shared>, future: F) -> Result<F::Output, Refusal> {
    let mut lease = lease(shared)?;
    let alarm = lease.alarm()?;
    let remote = Remote::register(alarm.clone());
    let this = Loop {
        shared,
        alarm: RefCell::new(alarm),
        lease: RefCell::new(lease),
        cells: RefCell::new(Cells::new(shared.config.bytes_in_flight)),
        timers: RefCell::default(),
        tasks: RefCell::new(Tasks::new(Arc::clone(&remote))),
        remote,
        ready: RefCell::default(),
        polled: Cell::new(NO_TASK),
        asked: RefCell::default(),
        pace: Cell::default(),
        promise: Promise::default(),
        is_short: Cell::default(),
        was_alone: Cell::default(),
        away: Cell::default(),
        shares: Shares::default(),
        outer: CURRENT.get(),
        barred: Barred::default(),
        is_ending: Cell::default(),
    };
    // Declared before the future, so that it goes after it, also when a panic unwinds.
    let guard = Entered::new(&this);
    let mut future = std::pin::pin!(future);
    guard.0.wake(MAIN);
    Ok(guard.0.run(future.as_mut()))
}

/// The parts of a loop that answers go to. No foreign code runs as long as this lives.
struct Answering<'l> {
    cells: RefMut<'l, Cells>,
    tasks: RefMut<'l, Tasks>,
    ready: RefMut<'l, VecDeque<u32>>,
    asked: RefMut<'l, Vec<Then>>,
}

impl Answering<'_> {
    /// Takes an answer to its cell. A task of the loop that waits for it is ready; what else the
    /// cell asks for is left to [`Loop::deliver`].
    #[inline(always)]
    fn take(&mut self, token: u32, answer: Answer) {
        match self.cells.complete(token, answer) {
            Then::Wake(Wake::Task(task)) => {
                if self.tasks.wake(task) {
                    self.ready.push_back(task);
                }
            }
            Then::Wake(Wake::Nobody) => {}
            then => self.asked.push(then),
        }
    }
}

/// A loop that is the current one of its thread.
struct Entered<'l, 's>(&'l Loop<'s>);

impl<'l, 's> Entered<'l, 's> {
    fn new(this: &'l Loop<'s>) -> Self {
        CURRENT.set(Some(NonNull::from(this).cast()));
        nested::hear_for_all();
        Self(this)
    }
}

impl Drop for Entered<'_, '_> {
    fn drop(&mut self) {
        let this = self.0;
        this.polled.set(NO_TASK);
        loop {
            this.drop_tasks();
            this.give_timers_up();
            if this.is_forked() {
                break;
            }
            this.promise.keep(false, false, None);
            this.drain();
            if this.is_forked() {
                // The tasks that foreign code has begun before it forked.
                continue;
            }
            // What was dropped or woken may have begun something new. Once nothing is left, no
            // foreign code runs any more.
            let is_empty = this.tasks.borrow().is_empty();
            if is_empty && this.remote.end(this.cells.borrow().untaken()) {
                break;
            }
        }
        if CURRENT.get() != Some(NonNull::from(this).cast()) {
            // The other one would go on with a loop that has ended as the one around it.
            end("inflight: a run loop has ended on this thread before one that it is around\n");
        }
        CURRENT.set(this.outer);
        if !this.is_forked() {
            // The thread's next call waits without a loop.
            this.lease.borrow_mut().proactor().be_interrupted(false);
            nested::hear_for_all();
        }
    }
}

impl Loop<'_> {
    /// The loop that this one is nested in.
    #[inline]
    fn outer(&self) -> Option<&Loop<'static>> {
        // SAFETY: that loop is further down on this thread's stack, and stays there until this one,
        // which a caller of this keeps borrowed, has ended.
        self.outer.map(|outer| unsafe { outer.as_ref() })
    }

    #[inline(always)]
    unsafe fn submit<O: Prepare>(&self, operation: &O, request: &Request, waker: &Waker) -> Ticket {
        let wake = self.wake_of(waker);
        // SAFETY: the caller vouches for what the request names.
        let bytes = unsafe { bytes_of(request) };
        let mut cells = self.cells.borrow_mut();
        let is_one = cells.is_idle() && loop_waits_for(bytes);
        self.is_short.set(is_one && operation.is_short());
        // A slow one as well, so that it is known when they are short again.
        let is_alone = is_one && self.was_alone.get() && self.outer.is_none();
        let made = is_alone.then(|| request.by_a_call()).flatten();
        let request = made.as_ref().unwrap_or(request);
        let mut lease = self.lease.borrow_mut();
        let proactor = lease.proactor();
        if proactor.has_room() && cells.may_start(bytes) {
            let (token, ticket) = cells.insert_in_flight(bytes, wake);
            // SAFETY: passed on from the caller; the cell is done only by the answer that the
            // proactor delivers.
            unsafe { proactor.push(token, request) };
            return ticket;
        }
        // SAFETY: passed on from the caller.
        unsafe { cells.insert(*request, wake) }
    }

    /// Whom a waker wakes. A task of this loop is named by its number, without a count.
    #[inline]
    fn wake_of(&self, waker: &Waker) -> Wake {
        let task = self.polled_task(waker).map(Wake::Task);
        task.unwrap_or_else(|| Wake::Waker(clone_waker(waker)))
    }

    #[inline]
    fn poll(&self, ticket: Ticket, waker: &Waker) -> Option<Answer> {
        if self.remote.has_messages() {
            // An older wish of this future must not come after this one.
            self.hear(false);
        }
        let mut cells = self.cells.borrow_mut();
        if !cells.knows(ticket) {
            drop(cells);
            return self.remote.take(ticket);
        }
        match cells.poll(ticket) {
            Ok(answer) => return Some(answer),
            Err(wake) if wake.is(waker) => return None,
            Err(_) => drop(cells),
        }
        // Cloning a waker is foreign code.
        let wake = self.wake_of(waker);
        let mut cells = self.cells.borrow_mut();
        let before = match cells.poll(ticket) {
            Ok(answer) => {
                drop(cells);
                contain(|| drop(wake));
                return Some(answer);
            }
            Err(known) => std::mem::replace(known, wake),
        };
        drop(cells);
        contain(|| drop(before));
        None
    }

    /// Whether this is a forked child, in which neither the ring nor what other threads see of the
    /// loop may be touched.
    fn is_forked(&self) -> bool {
        self.lease.borrow().is_forked()
    }

    fn abandon(&self, ticket: Ticket, keep: &mut dyn FnMut() -> Box<dyn Kept>) -> Left {
        let mut cells = self.cells.borrow_mut();
        if !cells.knows(ticket) {
            drop(cells);
            let answer = self.remote.take(ticket);
            return answer.map_or(Left::Withdrawn, Left::Answered);
        }
        let (left, waker) = cells.abandon(ticket, keep);
        drop(cells);
        contain(|| drop(waker));
        left
    }

    #[inline]
    fn wake(&self, task: u32) {
        if self.tasks.borrow_mut().wake(task) {
            self.ready.borrow_mut().push_back(task);
        }
    }

    fn run<F: Future>(&self, mut main: Pin<&mut F>) -> F::Output {
        let mut rounds = 0;
        loop {
            let ready = self.ready.borrow().len();
            for _ in 0..ready {
                let Some(task) = self.ready.borrow_mut().pop_front() else {
                    break;
                };
                let begun = self.tasks.borrow_mut().begin(task);
                let Some((future, waker)) = begun else {
                    continue;
                };
                self.polled.set((task, waker.data(), waker.vtable()));
                let mut context = Context::from_waker(&waker);
                if task == MAIN {
                    if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
                        return output;
                    }
                } else if let Some(future) = future {
                    self.poll_task(task, future, &mut context);
                }
            }
            self.polled.set(NO_TASK);
            rounds += 1;
            let is_busy = !self.ready.borrow().is_empty();
            let looks = rounds >= ROUNDS_MAX || self.away.get() == Away::Enough;
            if self.turn(is_busy, looks) {
                rounds = 0;
                self.away.set(Away::Not);
            }
        }
    }

    fn poll_task(&self, task: u32, mut future: Spawned, context: &mut Context<'_>) {
        if future.as_mut().poll(context).is_ready() {
            self.tasks.borrow_mut().remove(task);
            return;
        }
        let aborted = self.tasks.borrow_mut().put_back(task, future);
        if aborted.is_some() {
            contain(|| drop(aborted));
        }
    }

    /// Hands over what is queued, and waits if no task is ready. True if it has looked for what
    /// others have done.
    fn turn(&self, is_busy: bool, looks: bool) -> bool {
        if self.is_forked() {
            self.turn_in_child();
            return true;
        }
        self.hand_over();
        let taken = self.take_shared(is_busy);
        let mut is_busy = is_busy || taken == Taken::Some;
        if self.promise.stands() && !is_busy {
            // Whose sync the pool has told of asks for the same flush.
            self.hear(false);
            if self.is_forked() {
                return true;
            }
            // What was taken back by another thread may have left room.
            self.hand_over();
            is_busy = !self.ready.borrow().is_empty();
        }
        let is_idle = self.lease.borrow_mut().proactor().is_idle();
        let is_free = !is_busy && is_idle && taken == Taken::Nothing;
        let next_timer = self.timers.borrow().next();
        let is_made = self.promise.keep(is_busy, is_free, next_timer);
        if self.is_forked() {
            return true;
        }
        if is_made {
            // What that has woken is polled first, and may ask for the next one at once: there may
            // be no other turn.
            self.hear(false);
            self.serve_outer(false);
            return true;
        }
        // Where the pool has no thread the flush has been made here all the same.
        let is_busy = is_busy || !self.ready.borrow().is_empty();
        if is_busy {
            if looks {
                self.lease.borrow_mut().proactor().make_one();
            }
            if looks || self.lease.borrow_mut().proactor().needs_turn() {
                self.turn_proactor(Until::Completions(0));
            }
            if looks {
                self.hear(false);
                self.serve_outer(false);
            }
        } else {
            self.wait(taken, is_free);
        }
        self.deliver();
        if !self.is_forked() {
            self.ring_timers();
        }
        if !self.is_forked() {
            self.look_for_news();
        }
        looks || !is_busy
    }

    fn answering(&self) -> Answering<'_> {
        Answering {
            cells: self.cells.borrow_mut(),
            tasks: self.tasks.borrow_mut(),
            ready: self.ready.borrow_mut(),
            asked: self.asked.borrow_mut(),
        }
    }

    /// Does what the cells that are done ask for. Whoever is told may have more cells done at once,
    /// as by reads that are shared, and fork.
    fn deliver(&self) {
        loop {
            let mut asked = self.asked.take();
            if asked.is_empty() {
                // Its memory is used again.
                self.asked.replace(asked);
                return;
            }
            for then in asked.drain(..) {
                match then {
                    Then::Wake(Wake::Waker(waker)) => contain(|| waker.wake()),
                    Then::Over(kept, answer) => contain(|| kept.over(answer)),
                    Then::Wake(Wake::Task(_) | Wake::Nobody) => {}
                }
            }
            let mut now = self.asked.borrow_mut();
            if now.is_empty() {
                *now = asked;
            }
        }
    }

    fn look_for_news(&self) {
        let next = {
            let mut lease = self.lease.borrow_mut();
            let has_news = lease.proactor().has_news();
            has_news.then(|| lease.tell_of_fallbacks()).flatten()
        };
        if let Some(alarm) = next {
            self.alarm.replace(alarm);
            nested::hear_for_all();
        }
    }

    fn drop_tasks(&self) {
        loop {
            let task = self.tasks.borrow_mut().pop();
            match task {
                Some(task) => contain(|| drop(task)),
                None => return,
            }
        }
    }

    /// Waits until nothing is in flight. In a child that foreign code has forked it never is.
    fn drain(&self) {
        while !self.is_forked() {
            self.hear(false);
            if self.is_forked() {
                return;
            }
            self.hand_over();
            if self.cells.borrow().is_idle() {
                return;
            }
            if !self.take_all_shared() {
                self.turn_proactor(Until::Completions(1));
            }
            self.deliver();
            if !self.is_forked() {
                self.look_for_news();
            }
        }
    }
}
