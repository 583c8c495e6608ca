//! Models of the mailbox that threads of a pool serve; see [`super::mail_loom`] for how they are
//! run. The pool here is a count of calls to sleep on, of so many threads.
#![allow(unsafe_code)]

use std::sync::Arc as Plain;
use std::task::Waker;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::cells::{Then, Ticket, Wake};
use super::mail::Mailbox;
use super::mail_loom::{Flag, explore};
use super::pooled::{Nobody, serve};
use crate::backend::threads::calls::Calls;
use crate::completion::Answer;
use crate::op::{Op, Request};

/// What the threads of the pool sleep on.
#[derive(Default)]
struct Called {
    calls: u64,
    is_closed: bool,
}

/// The mailbox, and a pool that has all of its threads.
struct Served {
    mailbox: Mailbox<Nobody>,
    calls: Calls,
    called: Mutex<Called>,
    work: Condvar,
    threads: u64,
}

impl Served {
    fn new(threads: u64) -> Arc<Self> {
        Arc::new(Self {
            mailbox: Mailbox::new(Nobody, u64::MAX),
            calls: Calls::default(),
            called: Mutex::default(),
            work: Condvar::new(),
            threads,
        })
    }

    fn call(&self, waiting: u64) {
        let count = self.calls.to_be_made(waiting, self.threads);
        if count > 0 {
            self.called.lock().expect("no panic").calls += count;
            self.work.notify_one();
        }
    }

    fn submit(&self, waker: &Waker) -> Ticket {
        // SAFETY: a no-op names no memory.
        let ticket = unsafe { self.mailbox.submit(Request::simple(Op::Nop), waker) };
        self.call(self.mailbox.waiting());
        ticket.expect("it takes more")
    }

    /// What a thread of the pool does, which makes each request so.
    fn work(&self, make: &dyn Fn()) {
        loop {
            let mut called = self.called.lock().expect("no panic");
            while called.calls == 0 {
                if called.is_closed {
                    return;
                }
                called = self.work.wait(called).expect("no panic");
            }
            called.calls -= 1;
            drop(called);
            let made = |_: &Request| {
                make();
                Answer::moved(0)
            };
            let call = |waiting| self.call(waiting);
            serve(&self.mailbox, &self.calls, || false, call, made, tell);
        }
    }

    fn await_answer(&self, ticket: Ticket, flag: &Flag) {
        let waker = Waker::from(Plain::new(flag.clone()));
        while self.mailbox.poll(ticket, &waker).is_none() {
            flag.wait();
        }
    }

    fn close(&self) {
        self.called.lock().expect("no panic").is_closed = true;
        self.work.notify_all();
    }
}

fn tell(then: Then) {
    if let Then::Wake(Wake::Waker(waker)) = then {
        waker.wake();
    }
}

/// Has requests made by this many threads, handed over by two others; each is made so.
fn run(threads: u64, make: impl Fn() + Clone + Send + 'static) {
    let served = Served::new(threads);
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (served, make) = (Arc::clone(&served), make.clone());
            thread::spawn(move || served.work(&make))
        })
        .collect();
    let client = |served: Arc<Served>| {
        move || {
            let flag = Flag::new();
            let ticket = served.submit(&Waker::from(Plain::new(flag.clone())));
            served.await_answer(ticket, &flag);
        }
    };
    let other = thread::spawn(client(Arc::clone(&served)));
    client(Arc::clone(&served))();
    other.join().expect("no panic");
    served.close();
    workers
        .into_iter()
        .for_each(|worker| worker.join().expect("no panic"));
}

/// Nothing is left in the mailbox with nobody on the way to it, though a thread is called for the
/// first one only. Fails if a thread says that it has come, or has done something, after it has
/// looked into the mailbox.
#[test]
fn what_nobody_is_called_for_is_made() {
    explore("what_nobody_is_called_for_is_made", 2, || run(1, || ()));
}

/// Two requests are made at the same time where there are two threads. Fails if those that come do
/// not call others.
#[test]
fn those_that_come_call_others() {
    explore("those_that_come_call_others", 2, || {
        let both = Arc::new((Mutex::new(0), Condvar::new()));
        run(2, move || {
            let (count, met) = &*both;
            let mut count = count.lock().expect("no panic");
            *count += 1;
            met.notify_all();
            while *count < 2 {
                count = met.wait(count).expect("no panic");
            }
        });
    });
}
