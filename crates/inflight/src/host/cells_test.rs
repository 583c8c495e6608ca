//! Cells and timers one call at a time, also under Miri (`cargo xtask miri`): every way through a
//! cell, the order of the queue, and what is given back to be dropped outside a lock. What threads
//! make of them is in `mail_loom.rs`.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake as _, Waker};
use std::time::{Duration, Instant};

use super::cells::{Cells, Kept, Left, Then, Ticket, Wake};
use super::mail::{Mailbox, Next, Rouse, Taken};
use super::timers::Timers;
use crate::completion::Answer;
use crate::op::{Op, Request, Span, Wishes};

/// Counts how often it is woken; who else has it is its strong count.
#[derive(Default)]
struct Count(AtomicU32);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Rest(Arc<Count>);

impl Kept for Rest {
    fn over(self: Box<Self>, _answer: Answer) {
        Arc::clone(&self.0).wake();
    }
}

/// A read of so many bytes, told from others by its offset.
fn read(offset: u64, len: usize) -> Request {
    let start = std::ptr::null_mut();
    let span = Span {
        start,
        len,
        arena: None,
    };
    Request::simple(Op::ReadAt {
        fd: -1,
        span,
        offset,
        wishes: Wishes::NONE,
    })
}

fn offset(request: &Request) -> u64 {
    match request.op {
        Op::ReadAt { offset, .. } => offset,
        _ => unreachable!("only reads are inserted here"),
    }
}

fn insert(cells: &mut Cells, offset: u64, len: usize) -> Ticket {
    // SAFETY: nobody uses the address.
    unsafe { cells.insert(read(offset, len), Wake::Nobody) }
}

fn answered(cells: &mut Cells, ticket: Ticket) -> Option<Answer> {
    cells.poll(ticket).ok()
}

/// Whether both wake the same; by what they refer to.
fn are_one(one: &Waker, other: &Waker) -> bool {
    std::ptr::eq(one.data(), other.data())
}

#[test]
fn no_ticket_comes_twice() {
    let mut cells = Cells::new(u64::MAX);
    let first = insert(&mut cells, 0, 1);
    assert!(matches!(
        cells.abandon(first, || unreachable!("queued")).0,
        Left::Withdrawn
    ));
    cells.age(3);
    let mut tickets = vec![first];
    for offset in 0..8 {
        let ticket = insert(&mut cells, offset, 1);
        assert!(!tickets.contains(&ticket), "{ticket:?}");
        // Both ways of leaving, of which that in flight takes two.
        if offset % 2 == 0 {
            let (token, _) = cells.take().expect("it is queued");
            let kept = || Box::new(Rest(Arc::default())) as Box<dyn Kept>;
            assert!(matches!(cells.abandon(ticket, kept).0, Left::InFlight));
            assert!(!cells.knows(ticket));
            assert!(matches!(
                cells.complete(token, Answer::moved(1)),
                Then::Over(..)
            ));
        } else {
            assert!(matches!(
                cells.abandon(ticket, || unreachable!("queued")).0,
                Left::Withdrawn
            ));
        }
        assert!(tickets.iter().all(|&old| !cells.knows(old)) && cells.is_idle());
        tickets.push(ticket);
    }
}

/// A runtime whose waker panics.
#[derive(Clone)]
struct Panics(Arc<AtomicU32>);

impl Rouse for Panics {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("the runtime's waker");
    }
}

#[test]
fn a_wake_up_that_panics_leaves_in_flight_what_it_was_for() {
    let rung = Arc::default();
    let mailbox = Mailbox::new(Panics(Arc::clone(&rung)), u64::MAX);
    let mut taken = Taken::default();
    let (next, _) = mailbox.exchange(&mut Vec::new(), &mut taken, 1);
    assert!(matches!(next, Next::Park));
    // SAFETY: nobody uses the address.
    let ticket = unsafe { mailbox.submit(read(0, 1), Waker::noop()) };
    assert_eq!((rung.load(Ordering::Relaxed), mailbox.unanswered()), (1, 1));
    let left = mailbox.abandon(ticket.expect("it goes on"), || unreachable!("it is queued"));
    assert!(matches!(left, Left::Withdrawn));
}

#[test]
fn requests_are_taken_in_their_order_and_answered_in_any() {
    let mut cells = Cells::new(u64::MAX);
    let tickets: Vec<Ticket> = (0..5).map(|n| insert(&mut cells, n, 1)).collect();
    assert_eq!(cells.unanswered(), 5);
    let taken: Vec<(u32, Request)> = std::iter::from_fn(|| cells.take()).collect();
    assert!(taken.iter().map(|(_, request)| offset(request)).eq(0..5));
    for (token, request) in taken.iter().rev() {
        let moved = usize::try_from(offset(request)).unwrap();
        assert!(matches!(
            cells.complete(*token, Answer::moved(moved)),
            Then::Wake(Wake::Nobody)
        ));
    }
    assert!(cells.is_idle());
    for (number, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(answered(&mut cells, ticket), Some(Answer::moved(number)));
        assert!(!cells.knows(ticket), "a ticket is used once");
    }
}

#[test]
fn a_cell_is_used_anew_and_its_old_tickets_are_not() {
    let mut cells = Cells::new(u64::MAX);
    let old = insert(&mut cells, 1, 1);
    let (token, _) = cells.take().unwrap();
    let (left, _) = cells.abandon(old, || Box::new(Rest(Arc::default())));
    assert!(matches!(left, Left::InFlight));
    assert!(!cells.knows(old));
    // Its place is not free yet.
    let other = insert(&mut cells, 2, 1);
    let (other_token, _) = cells.take().unwrap();
    assert_ne!(token, other_token);
    assert!(matches!(
        cells.complete(token, Answer::moved(1)),
        Then::Over(..)
    ));
    let new = insert(&mut cells, 3, 1);
    assert_eq!(cells.take().unwrap().0, token);
    assert!(cells.knows(new) && !cells.knows(old) && cells.knows(other));
    assert_eq!(answered(&mut cells, new), None);
    cells.complete(token, Answer::moved(3));
    assert_eq!(answered(&mut cells, new), Some(Answer::moved(3)));
}

#[test]
fn what_was_left_is_given_back_once_with_the_answer() {
    let mut cells = Cells::new(u64::MAX);
    let count = Arc::new(Count::default());
    let ticket = insert(&mut cells, 0, 1);
    let (token, _) = cells.take().unwrap();
    cells.abandon(ticket, || Box::new(Rest(Arc::clone(&count))));
    assert_eq!(Arc::strong_count(&count), 2);
    let Then::Over(kept, answer) = cells.complete(token, Answer::failed(5, 0)) else {
        panic!("it was left");
    };
    assert_eq!(answer.errno(), Some(5));
    kept.over(answer);
    assert_eq!(
        (count.0.load(Ordering::Relaxed), Arc::strong_count(&count)),
        (1, 1)
    );
    assert!(cells.is_idle());
}

#[test]
fn what_is_abandoned_in_the_queue_or_after_its_answer_needs_nothing() {
    let mut cells = Cells::new(u64::MAX);
    let never = || -> Box<dyn Kept> { panic!("nothing has to be kept") };
    let tickets: Vec<Ticket> = (0..4).map(|n| insert(&mut cells, n, 1)).collect();
    // In the middle, at the end, at the beginning: the others keep their order.
    for index in [1, 3, 0] {
        let (left, _) = cells.abandon(tickets[index], never);
        assert!(matches!(left, Left::Withdrawn));
    }
    let (token, request) = cells.take().unwrap();
    assert_eq!(offset(&request), 2);
    assert!(cells.take().is_none());
    cells.complete(token, Answer::moved(9));
    let (left, _) = cells.abandon(tickets[2], never);
    assert!(matches!(left, Left::Answered(answer) if answer == Answer::moved(9)));
    assert!(cells.is_idle() && cells.untaken().next().is_none());
}

#[test]
fn wakers_are_given_back_not_dropped() {
    let mut cells = Cells::new(u64::MAX);
    let counts: [Arc<Count>; 2] = std::array::from_fn(|_| Arc::default());
    let wakers = counts.clone().map(Waker::from);
    let ticket = insert(&mut cells, 0, 1);
    let (token, _) = cells.take().unwrap();
    let set = |cells: &mut Cells, waker: &Waker| {
        let wake = cells.poll(ticket).unwrap_err();
        // Miri has more than one address for the functions of one type of waker.
        assert!(!wake.is(waker) || cfg!(miri));
        std::mem::replace(wake, Wake::Waker(waker.clone()))
    };
    assert!(matches!(set(&mut cells, &wakers[0]), Wake::Nobody));
    let before = set(&mut cells, &wakers[1]);
    assert!(matches!(before, Wake::Waker(ref waker) if are_one(waker, &wakers[0])));
    drop(before);
    let Then::Wake(Wake::Waker(waker)) = cells.complete(token, Answer::moved(1)) else {
        panic!("the last one polled is told");
    };
    waker.wake();
    let woken = counts.map(|count| count.0.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 1]);
}

#[test]
fn no_more_bytes_are_in_flight_than_allowed_but_for_one_alone() {
    let mut cells = Cells::new(100);
    let large = insert(&mut cells, 0, 1000);
    insert(&mut cells, 1, 60);
    insert(&mut cells, 2, 60);
    let (token, _) = cells.take().unwrap();
    assert!(!cells.may_take() && cells.take().is_none());
    cells.complete(token, Answer::moved(1000));
    assert_eq!(answered(&mut cells, large), Some(Answer::moved(1000)));
    let (token, _) = cells.take().unwrap();
    assert!(cells.take().is_none());
    assert!(!cells.may_start(1), "others wait");
    cells.complete(token, Answer::moved(60));
    assert!(cells.take().is_some());
    assert!(cells.may_start(40) && !cells.may_start(41));
}

#[test]
fn timers_go_off_in_their_order_and_leave_nothing() {
    let mut timers = Timers::default();
    let counts: [Arc<Count>; 3] = std::array::from_fn(|_| Arc::default());
    let wakers = counts.clone().map(Waker::from);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let (late, is_first) = timers.set(at(2), wakers[0].clone());
    assert!(is_first);
    let (early, is_first) = timers.set(at(1), wakers[1].clone());
    assert!(is_first);
    // The same instant twice: two timers.
    let (twin, is_first) = timers.set(at(2), wakers[2].clone());
    assert!(!is_first && twin != late);
    assert!(timers.pop_due(at(0)).is_none());
    assert!(are_one(&timers.pop_due(at(1)).unwrap(), &wakers[1]));
    assert!(timers.pop_due(at(1)).is_none());
    assert_eq!(timers.next(), Some(at(2)));
    let before = timers.update(late, wakers[1].clone()).unwrap();
    assert!(are_one(&before, &wakers[0]));
    let back = timers.update(early, wakers[0].clone()).unwrap_err();
    assert!(are_one(&back, &wakers[0]), "it has gone off");
    let cancelled = timers.cancel(twin).unwrap();
    assert!(are_one(&cancelled, &wakers[2]) && timers.cancel(twin).is_none());
    assert!(timers.cancel(early).is_none(), "it has gone off");
    assert!(are_one(&timers.pop_due(at(3)).unwrap(), &wakers[1]));
    assert!(timers.next().is_none());
    drop((wakers, before, back, cancelled));
    assert!(counts.iter().all(|count| Arc::strong_count(count) == 1));
}
