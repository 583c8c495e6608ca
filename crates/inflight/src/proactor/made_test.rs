//! Who makes a request for a thread: its owner, if it waits for that alone; else the pool.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::Proactor;
use crate::backend::Backend;
use crate::backend::faulty::{Faults, Faulty};
use crate::backend::threads::lane::Lane;
use crate::backend::threads::pool::Pool;
use crate::backend::uring::probe;
use crate::backend::uring::ring::Uring;
use crate::completion::Answer;
use crate::op::{AllocateMode, KINDS, Op, Request, Span, Wishes};

const CONTENT: &[u8; 4] = b"abcd";

fn on_threads(pool: Arc<Pool>) -> Proactor {
    Proactor::new(Backend::Threads(Lane::new(pool, 8)), 8, [true; KINDS])
}

/// The test backend stands for a ring.
fn beside_a_ring(pool: Arc<Pool>) -> Proactor {
    let ring = Backend::Faulty(Box::new(Faulty::new(Faults::new(1))));
    Proactor::new(ring, 8, [true; KINDS]).with_pool(pool)
}

#[test]
fn an_owner_that_waits_for_one_alone_makes_it_and_leaves_the_next_to_the_pool() {
    let mut file = tempfile::tempfile().expect("there is room");
    file.write_all(CONTENT).expect("there is room");
    for on in [on_threads, beside_a_ring] {
        let pool = Arc::new(Pool::new(1));
        let mut proactor = on(Arc::clone(&pool));
        let alarm = proactor.alarm();
        assert!(alarm.is_ok(), "it is interrupted from now on");
        let mut bufs = [[0_u8; CONTENT.len()]; 2];
        let [one, other] = bufs.each_mut().map(|buf| {
            let span = Span {
                start: buf.as_mut_ptr(),
                len: buf.len(),
                arena: None,
            };
            let op = Op::ReadAt {
                fd: file.as_raw_fd(),
                span,
                offset: 0,
                wishes: Wishes::NONE,
            };
            Request::simple(op).aside()
        });
        assert!(!proactor.has_one_for_a_thread(), "there is none");
        // SAFETY: the buffers are there, and not looked at, until the answers have come.
        unsafe { proactor.push(1, &one) };
        assert!(proactor.has_one_for_a_thread());
        let mut told = Vec::new();
        proactor.turn_alone(|token, answer| told.push((token, answer.bytes())));
        assert_eq!(told, [(1, CONTENT.len())]);
        assert_eq!(pool.living(), 0, "no thread was called");

        // SAFETY: as above.
        unsafe { proactor.push(2, &one) };
        // SAFETY: as above.
        unsafe { proactor.push(3, &other) };
        assert!(!proactor.has_one_for_a_thread(), "there are two");
        while told.len() < 3 {
            proactor.turn_or(1, None, |token, answer| told.push((token, answer.bytes())));
        }
        assert_eq!(pool.living(), 1, "its alarm must be heard");
        assert_eq!(bufs, [*CONTENT; 2]);
    }
}

#[test]
fn what_the_pool_has_been_told_of_and_what_is_for_the_ring_is_not_the_owners() {
    let pool = Arc::new(Pool::new(1));
    let mut proactor = beside_a_ring(Arc::clone(&pool));
    proactor.alarm().expect("a descriptor is left");
    // SAFETY: no memory is involved.
    unsafe { proactor.push(1, &Request::simple(Op::Nop)) };
    assert!(!proactor.has_one_for_a_thread(), "it is for the ring");
    proactor.drain();
    // SAFETY: as above.
    unsafe { proactor.push(2, &Request::simple(Op::Nop).aside()) };
    proactor.submit();
    assert!(!proactor.has_one_for_a_thread(), "a thread is on its way");
    proactor.drain();
}

#[test]
fn nothing_is_put_into_a_ring_that_is_broken() {
    let Ok(opened) = probe::open(8) else {
        return println!("skipped: no ring here");
    };
    let ring = Backend::Uring(Box::new(Uring::new(opened.ring)));
    let mut proactor = Proactor::new(ring, 8, [true; KINDS]);
    assert!(proactor.fill().is_some());
    proactor.broken = Some(io::Error::from_raw_os_error(libc::ENOMEM));
    assert!(proactor.fill().is_none());
}

/// What the test backend, which stands for a ring, refuses to make.
fn allocation(file: &std::fs::File) -> Request {
    Request::simple(Op::Allocate {
        fd: file.as_raw_fd(),
        offset: 0,
        len: 4096,
        mode: AllocateMode(0),
    })
}

#[test]
fn an_owner_that_has_to_be_back_leaves_to_the_pool_what_a_ring_refuses() {
    let file = tempfile::tempfile().expect("there is room");
    let request = allocation(&file);
    let pool = Arc::new(Pool::new(1));
    let faults = Faults::new(1).refuse("fallocate", libc::EINVAL);
    let ring = Backend::Faulty(Box::new(Faulty::new(faults)));
    let mut proactor = Proactor::new(ring, 8, [true; KINDS]).with_pool(pool);
    let calls = |proactor: &Proactor| {
        let tally = proactor.tally();
        (tally.plain_calls.get(), tally.pool_calls.get())
    };
    let made = |proactor: &mut Proactor, is_in_time| {
        let mut told = Vec::new();
        while told.is_empty() {
            let deliver = |token, answer: Answer| told.push((token, answer.errno()));
            match is_in_time {
                true => proactor.turn_in_time(1, None, deliver),
                false => proactor.turn(1, deliver),
            }
        }
        assert_eq!(told, [(7, None)]);
    };
    // SAFETY: no memory is involved.
    unsafe { proactor.push(7, &request) };
    made(&mut proactor, true);
    assert_eq!(calls(&proactor), (0, 1), "the ring has refused it");
    // SAFETY: as above.
    unsafe { proactor.push(7, &request) };
    made(&mut proactor, false);
    assert_eq!(calls(&proactor), (1, 1));
    // SAFETY: as above.
    unsafe { proactor.push_in_time(7, &request) };
    made(&mut proactor, true);
    assert_eq!(calls(&proactor), (1, 2), "the ring is known to refuse it");
    // SAFETY: as above.
    unsafe { proactor.push(7, &request) };
    made(&mut proactor, false);
    assert_eq!(calls(&proactor), (2, 2));
}
