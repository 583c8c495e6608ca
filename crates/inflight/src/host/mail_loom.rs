//! Models of the mailbox: `loom` runs each in every order that its threads can get into (with so
//! many preemptions at most as [`explore`] says). `cargo xtask loom` runs them.
//!
//! The driver here is that of [`super::driver`] without its waits: a kernel that completes what it
//! is given at the next turn, and an alarm that is a flag. Memory that the kernel fills is an
//! [`UnsafeCell`] of `loom`, which refuses any access that is not ordered with all others; so that
//! memory is used or given up too early shows whatever its content.
//!
//! Each model says what it holds and which mutations of the code make it fail; they were tried.
//! Timers are left out: their instants would be others in each run. A cell that is never used again
//! is found in `cells_test.rs`, not here.
#![allow(unsafe_code)]

use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::cells::{Kept, Left, Ticket, Wake as Waked};
use super::mail::{Mailbox, Next, Rouse, Taken};
use crate::completion::Answer;
use crate::op::{Op, Request, Span, Wishes};

/// Runs a model in every order, with at most so many preemptions: most defects of two threads need
/// two ("Finding and Reproducing Heisenbugs in Concurrent Programs", OSDI 2008).
pub(super) fn explore(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let orders = Plain::new(AtomicUsize::new(0));
    let counted = Plain::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("loom: {name}: {orders} orders, at most {preemptions} preemptions");
}

/// A flag to sleep on: an alarm, and what a waker sets.
#[derive(Clone)]
pub(super) struct Flag(Arc<(Mutex<bool>, Condvar)>);

impl Flag {
    pub(super) fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(super) fn set(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_one();
    }

    /// Waits until it has been set, and takes that back. One that is never set is a deadlock, which
    /// `loom` reports.
    pub(super) fn wait(&self) {
        let mut set = self.0.0.lock().expect("no panic");
        while !*set {
            set = self.0.1.wait(set).expect("no panic");
        }
        *set = false;
    }
}

impl Rouse for Flag {
    fn ring(&self) {
        self.set();
    }
}

impl Wake for Flag {
    fn wake(self: Plain<Self>) {
        self.set();
    }
}

/// Memory that the kernel fills, and how often it has been given up.
pub(super) struct Memory {
    bytes: UnsafeCell<u8>,
    gone: AtomicUsize,
}

// SAFETY: whoever touches the cell says so to `loom`, which refuses two at a time.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: UnsafeCell::new(0),
            gone: AtomicUsize::new(0),
        })
    }

    /// As the kernel fills it, or its last owner frees it: nobody else may have it.
    pub(super) fn touch(&self) {
        self.bytes.with_mut(|_bytes| ());
    }

    pub(super) fn give_up(&self) {
        self.touch();
        assert_eq!(
            self.gone.fetch_add(1, Ordering::Relaxed),
            0,
            "given up twice"
        );
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) == 1
    }
}

/// What an abandoned operation leaves behind.
struct Rest(Arc<Memory>);

impl Kept for Rest {
    fn over(self: Box<Self>, _answer: Answer) {
        self.0.give_up();
    }
}

pub(super) type Memories = Vec<Arc<Memory>>;

/// A read into the memory with this number, of which as many bytes come.
fn request(number: usize) -> Request {
    let start = std::ptr::null_mut();
    let span = Span {
        start,
        len: 1,
        arena: None,
    };
    Request::simple(Op::ReadAt {
        fd: -1,
        span,
        offset: number as u64,
        wishes: Wishes::NONE,
    })
}

/// The number of the memory of a request.
pub(super) fn number_of(request: &Request) -> usize {
    match request.op {
        Op::ReadAt { offset, .. } => usize::try_from(offset).expect("small"),
        _ => unreachable!("only reads are submitted here"),
    }
}

/// A driver that ends when it is told to. `room` is that of its proactor.
pub(super) fn drive(mailbox: &Mailbox<Flag>, alarm: &Flag, memories: &Memories, room: u32) {
    let mut answers = Vec::new();
    let mut taken = Taken::default();
    let mut in_flight: Vec<(u32, Request)> = Vec::new();
    loop {
        let left = room - u32::try_from(in_flight.len()).expect("small");
        let (next, _timer) = mailbox.exchange(&mut answers, &mut taken, left);
        while let Some(request) = taken.requests.pop() {
            in_flight.push(request);
        }
        mailbox.tell(&mut taken.news);
        match next {
            Next::End => break,
            // With operations in flight, a completion ends the wait as well as the alarm.
            Next::Park if in_flight.is_empty() => alarm.wait(),
            Next::Park => {}
            Next::Work => thread::yield_now(),
        }
        for (token, request) in in_flight.drain(..) {
            let number = number_of(&request);
            memories[number].touch();
            answers.push((token, Answer::moved(number)));
        }
    }
    assert!(
        in_flight.is_empty(),
        "a driver ends when nothing is in flight"
    );
}

/// A mailbox, its driver, and memory that the driver's kernel fills.
struct Site {
    mailbox: Arc<Mailbox<Flag>>,
    memories: Memories,
    driver: thread::JoinHandle<()>,
}

impl Site {
    fn new(memories: usize, room: u32) -> Self {
        let alarm = Flag::new();
        let mailbox = Arc::new(Mailbox::new(alarm.clone(), u64::MAX));
        let memories: Memories = (0..memories).map(|_| Memory::new()).collect();
        let driver = {
            let (mailbox, memories) = (Arc::clone(&mailbox), memories.clone());
            thread::spawn(move || drive(&mailbox, &alarm, &memories, room))
        };
        Self {
            mailbox,
            memories,
            driver,
        }
    }

    fn client(&self) -> Client {
        Client::of(&self.mailbox, &self.memories)
    }

    /// Ends the driver; then all memory must have been given up, each once.
    fn end(self) {
        self.mailbox.end();
        self.driver.join().expect("the driver ends");
        assert!(self.mailbox.wait_for_end(far()));
        assert_eq!(self.mailbox.unanswered(), 0);
        assert!(self.memories.iter().all(|memory| memory.is_gone()));
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// A task with futures.
pub(super) struct Client {
    pub(super) mailbox: Arc<Mailbox<Flag>>,
    memories: Memories,
    waker: Waker,
    woken: Flag,
}

impl Client {
    pub(super) fn of(mailbox: &Arc<Mailbox<Flag>>, memories: &Memories) -> Self {
        let flag = Flag::new();
        Self {
            mailbox: Arc::clone(mailbox),
            memories: memories.clone(),
            waker: Waker::from(Plain::new(flag.clone())),
            woken: flag,
        }
    }

    pub(super) fn submit(&self, number: usize) -> Ticket {
        self.try_submit(number)
            .expect("the driver is not to end yet")
    }

    pub(super) fn try_submit(&self, number: usize) -> Option<Ticket> {
        // SAFETY: nothing is at the address, and the kernel of these models does not use it.
        unsafe { self.mailbox.submit(request(number), &self.waker) }
    }

    /// A cell for a read that the driver is at work at.
    pub(super) fn start(&self) -> Option<(u32, Ticket, Option<Plain<Flag>>)> {
        let mut wake = Some(Waked::Waker(self.waker.clone()));
        self.mailbox.start(1, &mut wake)
    }

    /// Waits for the answer as a task does, and has the memory then.
    pub(super) fn finish(&self, number: usize, ticket: Ticket) {
        let answer = loop {
            match self.mailbox.poll(ticket, &self.waker) {
                Some(answer) => break answer,
                None => self.woken.wait(),
            }
        };
        assert_eq!(
            answer,
            Answer::moved(number),
            "the answer of another request"
        );
        self.memories[number].give_up();
    }

    /// Drops the future.
    fn abandon(&self, number: usize, ticket: Ticket) {
        let memory = &self.memories[number];
        let keep = || Box::new(Rest(Arc::clone(memory))) as Box<dyn Kept>;
        match self.mailbox.abandon(ticket, keep) {
            Left::Answered(answer) => {
                assert_eq!(
                    answer,
                    Answer::moved(number),
                    "the answer of another request"
                );
                memory.give_up();
            }
            Left::Withdrawn => memory.give_up(),
            Left::InFlight => {}
        }
    }
}

/// Two tasks submit, each gets its own answer, and nobody sleeps for ever.
///
/// Fails if `Mailbox::deliver` does not ring a parked driver (deadlock), or clears `parked` before
/// it looks at it (deadlock); if `exchange` drops a waker instead of having it woken (deadlock).
#[test]
fn two_submitters_get_their_answers() {
    explore("two_submitters_get_their_answers", 3, || {
        let site = Site::new(2, 2);
        let (first, second) = (site.client(), site.client());
        let other = thread::spawn(move || {
            let ticket = second.submit(1);
            second.finish(1, ticket);
        });
        let ticket = first.submit(0);
        first.finish(0, ticket);
        other.join().expect("no panic");
        site.end();
    });
}

/// A driver that parks is rung by what comes, at whatever moment it comes, also a second time and
/// also when its proactor has room for one request at a time.
///
/// Fails if `exchange` says that it parks, and counts as parked only after it has let go of the
/// lock (deadlock); if `submit` does not `deliver` (deadlock).
#[test]
fn a_driver_that_parks_is_rung() {
    explore("a_driver_that_parks_is_rung", 5, || {
        let site = Site::new(2, 1);
        let client = site.client();
        let first = client.submit(0);
        client.finish(0, first);
        let second = client.submit(1);
        client.finish(1, second);
        site.end();
    });
}

/// A future that is dropped while its completion comes: the memory is given up once, and never
/// before the kernel is done with it, whoever is faster.
///
/// Fails if `Cells::abandon` takes a request in flight for one that can be withdrawn (two threads
/// have the memory); if `complete` forgets what was kept (never given up).
#[test]
fn memory_is_given_up_once_and_not_before_its_completion() {
    explore(
        "memory_is_given_up_once_and_not_before_its_completion",
        5,
        || {
            let site = Site::new(1, 1);
            let client = site.client();
            let ticket = client.submit(0);
            client.abandon(0, ticket);
            site.end();
        },
    );
}

/// The same after a poll, which may have brought the answer, or a waker that has to be let go.
///
/// Fails like the one before; and if `Cells::poll` frees a cell without an answer (a ticket is used
/// twice).
#[test]
fn a_future_may_be_dropped_after_a_poll() {
    explore("a_future_may_be_dropped_after_a_poll", 5, || {
        let site = Site::new(1, 1);
        let client = site.client();
        let ticket = client.submit(0);
        match client.mailbox.poll(ticket, &client.waker) {
            Some(_answer) => client.memories[0].give_up(),
            None => client.abandon(0, ticket),
        }
        site.end();
    });
}

/// A cell that is used anew answers its new owner only, though the old one has left an operation
/// in flight behind.
///
/// Fails if `Cells::abandon` frees the cell of a request in flight (a completion meets a cell that
/// is not in flight).
#[test]
fn a_cell_that_is_used_anew_does_not_answer_for_its_last_owner() {
    explore(
        "a_cell_that_is_used_anew_does_not_answer_for_its_last_owner",
        3,
        || {
            let site = Site::new(3, 2);
            let (first, second) = (site.client(), site.client());
            let other = thread::spawn(move || {
                let ticket = second.submit(2);
                second.abandon(2, ticket);
            });
            let left = first.submit(0);
            first.abandon(0, left);
            let next = first.submit(1);
            first.finish(1, next);
            other.join().expect("no panic");
            site.end();
        },
    );
}

/// Requests that come together, of which one is dropped in the queue or in flight.
///
/// Fails if `Cells::unlink` loses the rest of the queue (deadlock); if `Mailbox::poll` does not
/// keep the waker (deadlock).
#[test]
fn one_of_several_may_be_withdrawn() {
    explore("one_of_several_may_be_withdrawn", 5, || {
        let site = Site::new(3, 1);
        let client = site.client();
        let mut tickets = Vec::new();
        // SAFETY: as for a single one.
        unsafe { client.mailbox.submit_all((0..3).map(request), &mut tickets) };
        client.abandon(1, tickets[1]);
        client.finish(0, tickets[0]);
        client.finish(2, tickets[2]);
        site.end();
    });
}

/// The owner of a mailbox hands it on while it tells what it has done, as the task of a lane does:
/// whoever takes over is roused by what comes, and does not end before all has been told.
///
/// Fails if `exchange` ends without a look at what is being let go of (given up too late), if
/// `tell` takes note of nothing or does not `deliver` (deadlock).
#[test]
fn a_mailbox_may_be_handed_on_while_its_owner_tells() {
    explore(
        "a_mailbox_may_be_handed_on_while_its_owner_tells",
        3,
        || {
            let task = Flag::new();
            let mailbox = Arc::new(Mailbox::new(task, u64::MAX));
            let memories: Memories = (0..2).map(|_| Memory::new()).collect();
            let client = Client::of(&mailbox, &memories);
            let left = client.submit(0);
            let mut answers = Vec::new();
            let mut taken = Taken::default();
            mailbox.exchange(&mut answers, &mut taken, 1);
            client.abandon(0, left);
            memories[0].touch();
            answers.push((taken.requests.remove(0).0, Answer::moved(0)));
            mailbox.exchange(&mut answers, &mut taken, 0);
            let driver = {
                let (mailbox, memories) = (Arc::clone(&mailbox), memories.clone());
                thread::spawn(move || {
                    let alarm = Flag::new();
                    mailbox.replace_alarm(alarm.clone());
                    drive(&mailbox, &alarm, &memories, 1);
                })
            };
            let other = thread::spawn(move || {
                let next = client.submit(1);
                client.finish(1, next);
                client.mailbox.end();
                assert!(client.mailbox.wait_for_end(far()));
                assert!(client.memories.iter().all(|memory| memory.is_gone()));
            });
            // Under its lock, so that the others may come first.
            assert!(mailbox.unanswered() > 0);
            mailbox.tell(&mut taken.news);
            other.join().expect("no panic");
            driver.join().expect("the driver ends");
        },
    );
}

/// The engine goes while operations are in flight whose futures are gone: the driver ends after
/// them and not before, and whoever waits for its end is told.
///
/// Fails if `exchange` ends although requests are left (never given up), if `end` does not ring
/// (deadlock), or if nobody is told of the end (deadlock).
#[test]
fn a_driver_ends_after_what_was_left() {
    explore("a_driver_ends_after_what_was_left", 3, || {
        let site = Site::new(2, 1);
        let client = site.client();
        let first = client.submit(0);
        let second = client.submit(1);
        let other = thread::spawn(move || {
            client.abandon(0, first);
            client.abandon(1, second);
        });
        site.mailbox.end();
        assert!(site.mailbox.wait_for_end(far()));
        other.join().expect("no panic");
        site.end();
    });
}
