//! Models of lanes: `loom` runs each in every order that its threads can get into, as those of the
//! mailbox ([`super::mail_loom`]). `cargo xtask loom` runs them.
//!
//! Passes, mailboxes and the crowd are the real ones; the ring is a model with a kernel that is a
//! thread. It shows a completion, and only then looks whether it is to be announced, with a full
//! barrier between (`io_cqring_wake` in io_uring/io_uring.h, by way of `wq_has_sleeper`). A task
//! that nobody rouses is a deadlock, which `loom` reports.
//!
//! Each model says which mutations of the code make it fail; they were tried.
#![allow(unsafe_code)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::crowd::Crowd;
use super::driver::Desk;
use super::mail::{Mailbox, Taken};
use super::mail_loom::{Client, Flag, Memories, Memory, drive, explore, number_of};
use super::pass::{Takes, Then, Told, Works, pass};
use crate::completion::Answer;

/// Most completions in a model.
const PLACES: usize = 2;

/// What a ring and its kernel share.
struct Kernel {
    /// Tokens and numbers of requests that have been handed over.
    given: Mutex<Vec<(u32, usize)>>,
    is_given: Flag,
    /// The completion queue, whose places are used once.
    tokens: [AtomicUsize; PLACES],
    numbers: [AtomicUsize; PLACES],
    tail: AtomicUsize,
    is_announced: AtomicBool,
    eventfd: Flag,
}

impl Kernel {
    fn new(eventfd: &Flag) -> Arc<Self> {
        let places = || std::array::from_fn(|_| AtomicUsize::new(0));
        Arc::new(Self {
            given: Mutex::new(Vec::new()),
            is_given: Flag::new(),
            tokens: places(),
            numbers: places(),
            tail: AtomicUsize::new(0),
            is_announced: AtomicBool::new(true),
            eventfd: eventfd.clone(),
        })
    }

    /// Completes so many requests.
    fn run(&self, memories: &Memories, completions: usize) {
        let mut tail = 0;
        while tail < completions {
            self.is_given.wait();
            let given = std::mem::take(&mut *self.given.lock().expect("no panic"));
            for (token, number) in given {
                memories[number].touch();
                self.tokens[tail].store(token as usize, Ordering::Relaxed);
                self.numbers[tail].store(number, Ordering::Relaxed);
                tail += 1;
                self.tail.store(tail, Ordering::Release);
                fence(Ordering::SeqCst);
                if self.is_announced.load(Ordering::Relaxed) {
                    self.eventfd.set();
                }
            }
        }
    }
}

/// What passes work with.
struct Ring {
    kernel: Arc<Kernel>,
    head: usize,
    in_flight: u32,
    room: u32,
}

impl Ring {
    fn desk(kernel: &Arc<Kernel>, room: u32) -> Desk<Self> {
        Desk::new(Self {
            kernel: Arc::clone(kernel),
            head: 0,
            in_flight: 0,
            room,
        })
    }
}

impl Works for Ring {
    fn announce(&mut self, is_wanted: bool) {
        let announced = &self.kernel.is_announced;
        announced.store(is_wanted, Ordering::Relaxed);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn room(&self) -> u32 {
        self.room - self.in_flight
    }

    fn take(&mut self, taken: &mut Taken) {
        let mut given = self.kernel.given.lock().expect("no panic");
        let before = given.len();
        while self.in_flight < self.room
            && let Some((token, request)) = taken.requests.pop()
        {
            self.in_flight += 1;
            given.push((token, number_of(&request)));
        }
        let has_given = given.len() > before;
        drop(given);
        if has_given {
            self.kernel.is_given.set();
        }
    }

    fn turn(&mut self, at_least: u32, answers: &mut Vec<(u32, Answer)>) {
        assert_eq!(at_least, 0, "too few are in flight to be waited for");
        while self.has_work() {
            let token = self.kernel.tokens[self.head].load(Ordering::Relaxed);
            let number = self.kernel.numbers[self.head].load(Ordering::Relaxed);
            self.head += 1;
            self.in_flight -= 1;
            let token = u32::try_from(token).expect("a few");
            answers.push((token, Answer::moved(number)));
        }
    }

    fn look(&mut self, answers: &mut Vec<(u32, Answer)>) {
        self.turn(0, answers);
    }

    fn has_work(&mut self) -> bool {
        self.kernel.tail.load(Ordering::Acquire) > self.head
    }
}

/// The task of a lane, which `task` rouses; `place` is its own in the crowd.
fn serve(mailbox: &Mailbox<Flag>, mut desk: Desk<Ring>, task: &Flag, crowd: &Crowd, place: usize) {
    let mut told = Told::new(true);
    loop {
        let note = |in_flight| crowd.note(place, in_flight);
        let then = pass(&mut desk, mailbox, &mut told, Takes::Mail, note);
        mailbox.tell(&mut told.news);
        match then {
            Then::Sleep => task.wait(),
            Then::Again => thread::yield_now(),
            Then::End => return,
        }
    }
}

/// Requests come, and completions, at whatever moment of a pass: the task that sleeps is roused by
/// each, and not by luck.
fn requests_and_completions(room: u32) {
    let task = Flag::new();
    let mailbox = Arc::new(Mailbox::new(task.clone(), u64::MAX));
    let memories: Memories = (0..PLACES).map(|_| Memory::new()).collect();
    let kernel = Kernel::new(&task);
    let desk = Ring::desk(&kernel, room);
    let works = {
        let memories = memories.clone();
        thread::spawn(move || kernel.run(&memories, PLACES))
    };
    let client = Client::of(&mailbox, &memories);
    let asks = thread::spawn(move || {
        let tickets = [0, 1].map(|number| client.submit(number));
        for (number, ticket) in tickets.into_iter().enumerate() {
            client.finish(number, ticket);
        }
        client.mailbox.end();
    });
    serve(&mailbox, desk, &task, &Crowd::new(1), 0);
    asks.join().expect("no panic");
    works.join().expect("no panic");
    assert!(memories.iter().all(|memory| memory.is_gone()));
}

/// With a place for each request.
///
/// Fails if a pass looks for completions before it has them announced, or without the barrier
/// between (deadlock); if it sleeps without having them announced (deadlock); if mail does not
/// ring a task that counts as parked (deadlock).
#[test]
fn a_lane_that_sleeps_is_roused_by_requests_and_completions() {
    let this = "a_lane_that_sleeps_is_roused_by_requests_and_completions";
    explore(this, 2, || requests_and_completions(2));
}

/// With a place for one of them, so that the other is taken when the first has completed.
///
/// Fails like the one before.
#[test]
fn a_lane_with_little_room_is_roused_by_requests_and_completions() {
    let this = "a_lane_with_little_room_is_roused_by_requests_and_completions";
    explore(this, 2, || requests_and_completions(1));
}

/// A read is shown, under the lock of the desk, at whatever moment after a completion: the task
/// that sleeps is roused, and makes it.
///
/// Fails if `Mailbox::start` does not ring a task that counts as parked (deadlock), or says that it
/// is awake without ringing it (deadlock); if `leave` has nobody woken (deadlock).
#[test]
fn a_lane_that_sleeps_is_roused_by_what_it_is_shown() {
    let this = "a_lane_that_sleeps_is_roused_by_what_it_is_shown";
    explore(this, 2, || {
        let task = Flag::new();
        let mailbox = Arc::new(Mailbox::new(task.clone(), u64::MAX));
        let memories: Memories = (0..PLACES).map(|_| Memory::new()).collect();
        let kernel = Kernel::new(&task);
        let desk = Arc::new(Mutex::new((Ring::desk(&kernel, 1), Vec::new())));
        let works = {
            let memories = memories.clone();
            thread::spawn(move || kernel.run(&memories, 1))
        };
        let client = Client::of(&mailbox, &memories);
        let shows = {
            let desk = Arc::clone(&desk);
            thread::spawn(move || {
                let asked = client.submit(1);
                client.finish(1, asked);
                let mut held = desk.lock().expect("no panic");
                let (token, shown, rouser) = client.start().expect("nothing else waits");
                held.1.push((token, 0));
                drop(held);
                rouser.iter().for_each(|rouser| rouser.set());
                client.finish(0, shown);
                client.mailbox.end();
            })
        };
        serve_what_is_shown(&mailbox, &desk, &task, &memories);
        shows.join().expect("no panic");
        works.join().expect("no panic");
        assert!(memories.iter().all(|memory| memory.is_gone()));
    });
}

/// What is on a desk, and tokens and numbers of what is shown.
type Shown = Mutex<(Desk<Ring>, Vec<(u32, usize)>)>;

/// As [`serve`], for a task that also makes what is shown.
fn serve_what_is_shown(mailbox: &Mailbox<Flag>, desk: &Shown, task: &Flag, memories: &Memories) {
    let mut told = Told::new(true);
    loop {
        let mut locked = desk.lock().expect("no panic");
        let (desk, shown) = &mut *locked;
        let make = |(token, number): (u32, usize)| {
            memories[number].touch();
            (token, Answer::moved(number))
        };
        let mut made: Vec<_> = shown.drain(..).map(make).collect();
        let has_made = !made.is_empty();
        mailbox.leave(&mut made, &mut desk.taken.news);
        let then = match has_made && desk.proactor.in_flight == 0 && !mailbox.has_hint() {
            true => {
                std::mem::swap(&mut told.news, &mut desk.taken.news);
                Then::Again
            }
            false => pass(desk, mailbox, &mut told, Takes::Mail, |_| ()),
        };
        drop(locked);
        mailbox.tell(&mut told.news);
        match then {
            Then::Sleep if !has_made => task.wait(),
            Then::Sleep | Then::Again => thread::yield_now(),
            Then::End => return,
        }
    }
}

/// A crowd comes and goes while the lane that serves it ends: what is asked for is answered, by one
/// of the two lanes, or by a driver if a lane takes nothing any more.
///
/// Fails if `Mailbox::submit` hands something to a mailbox that is to end (deadlock); if `exchange`
/// ends without a look at what has come before (a lane ends with something in flight).
#[test]
fn what_comes_while_a_lane_ends_and_a_crowd_goes_is_answered() {
    let this = "what_comes_while_a_lane_ends_and_a_crowd_goes_is_answered";
    explore(this, 2, || {
        let alarms = [Flag::new(), Flag::new()];
        let lanes = alarms
            .clone()
            .map(|alarm| Arc::new(Mailbox::new(alarm, u64::MAX)));
        let memories: Memories = (0..2).map(|_| Memory::new()).collect();
        let crowd = Arc::new(Crowd::new(2));
        let tasks = [0, 1].map(|place| {
            let (mailbox, alarm) = (Arc::clone(&lanes[place]), alarms[place].clone());
            let (memories, crowd) = (memories.clone(), Arc::clone(&crowd));
            thread::spawn(move || {
                if place == 1 {
                    // The crowd comes, and the lane for it ends.
                    crowd.note(place, 8);
                    mailbox.end();
                }
                drive(&mailbox, &alarm, &memories, 1);
                crowd.note(place, 0);
            })
        });
        let clients = lanes
            .each_ref()
            .map(|mailbox| Client::of(mailbox, &memories));
        for number in 0..2 {
            let client = &clients[usize::from(crowd.is_there())];
            match client.try_submit(number) {
                Some(ticket) => client.finish(number, ticket),
                // A driver does it.
                None => memories[number].give_up(),
            }
        }
        lanes[0].end();
        for task in tasks {
            task.join().expect("the lane ends");
        }
        assert!(memories.iter().all(|memory| memory.is_gone()));
    });
}
