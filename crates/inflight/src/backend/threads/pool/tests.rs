use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use super::super::lane::Lane;
use super::*;
use crate::op::Op;

/// Says who does it, and first has somebody else do it.
struct Says {
    to: Sender<ThreadId>,
    replaced_by: Option<(Arc<Pool>, Arc<Says>)>,
}

impl Run for Says {
    fn run(self: Arc<Self>) {
        if let Some((pool, says)) = &self.replaced_by {
            let replaced = pool.replace_this(Arc::clone(says) as _);
            replaced.expect("a thread can be started");
        }
        self.to.send(thread::current().id()).expect("it is awaited");
    }
}

fn says() -> (Arc<Says>, Receiver<ThreadId>) {
    let (to, said) = channel();
    let replaced_by = None;
    (Arc::new(Says { to, replaced_by }), said)
}

/// Who takes what is given to the pool now.
fn who(pool: &Pool) -> ThreadId {
    let (says, said) = says();
    pool.give_flush(says).expect("a thread starts");
    said.recv().expect("it is done")
}

/// Something to share that is queued as if a thread had been woken for it, and waited for a
/// processor.
fn late(pool: &Pool) -> (Arc<dyn Run>, Receiver<ThreadId>) {
    let (share, said) = says();
    let share: Arc<dyn Run> = share;
    let mut state = lock(&pool.shared.state);
    state.shares.push_back(Arc::clone(&share));
    (share, said)
}

fn until(pool: &Pool, is_so: impl Fn(&PoolState) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so(&lock(&pool.shared.state)) {
        assert!(Instant::now() < deadline, "it does not become so");
        thread::yield_now();
    }
}

/// How many calls are left when it is closed.
fn close(pool: &Pool) -> usize {
    pool.close(Instant::now() + Duration::from_secs(60))
}

#[test]
fn who_replaces_a_thread_does_what_it_is_given_and_stays_in_its_place() {
    let pool = Arc::new(Pool::new(1));
    let first = who(&pool);
    let (instead, said_instead) = says();
    let (to, said) = channel();
    let replaced_by = Some((Arc::clone(&pool), instead));
    let share = Arc::new(Says { to, replaced_by });
    pool.give_share(share).expect("there is a thread");
    assert_eq!(said.recv(), Ok(first));
    let second = said_instead.recv().expect("it is done");
    assert_ne!(second, first);
    until(&pool, |state| state.living == 1 && state.idle == 1);
    assert_eq!(who(&pool), second);
    // It may still be on its way out.
    until(&pool, |_| pool.threads_living().len() == 1);
    assert_eq!(close(&pool), 0);
}

#[test]
fn who_comes_in_the_place_of_one_that_is_late_stays_and_the_late_one_ends() {
    let pool = Pool::new(1);
    let first = who(&pool);
    until(&pool, |state| state.idle == 1);
    let (share, said) = late(&pool);
    pool.hurry_share(&share);
    let second = said.recv().expect("it is done");
    assert_ne!(second, first);
    until(&pool, |state| state.living == 1 && state.idle == 1);
    assert_eq!(lock(&pool.shared.state).surplus, 0);
    assert_eq!(who(&pool), second);
    assert_eq!(close(&pool), 0);
}

#[test]
fn nobody_is_hurried_who_has_begun_or_is_busy() {
    let pool = Arc::new(Pool::new(1));
    who(&pool);
    until(&pool, |state| state.idle == 1);
    let (share, _) = says();
    pool.hurry_share(&(share as _));
    assert_eq!(lock(&pool.shared.state).living, 1, "it is not queued");
    let (share, said) = late(&pool);
    lock(&pool.shared.state).idle = 0;
    pool.hurry_share(&share);
    assert_eq!(lock(&pool.shared.state).living, 1, "all are busy");
    lock(&pool.shared.state).idle = 1;
    pool.shared.work.notify_one();
    said.recv().expect("it is done");
    assert_eq!(close(&pool), 0);
}

/// Has two others start in its place, and says which of them could.
struct Twice {
    pool: Arc<Pool>,
    to: Sender<[bool; 2]>,
}

impl Run for Twice {
    fn run(self: Arc<Self>) {
        let replaced = [says(), says()].map(|(next, said)| {
            let is_replaced = self.pool.replace_this(next).is_ok();
            (is_replaced, said)
        });
        let can = replaced.each_ref().map(|(can, _)| *can);
        self.to.send(can).expect("it is awaited");
        // Until those have begun it is there.
        for (_, said) in replaced {
            let _ = said.recv();
        }
    }
}

#[test]
fn no_more_than_one_is_there_beyond_the_most_there_may_be() {
    let pool = Arc::new(Pool::new(1));
    let (to, can) = channel();
    let twice = Twice {
        pool: Arc::clone(&pool),
        to,
    };
    pool.give_share(Arc::new(twice)).expect("a thread starts");
    assert_eq!(can.recv(), Ok([true, false]));
    until(&pool, |state| state.living == 1 && state.idle == 1);
    assert_eq!(close(&pool), 0);
}

/// A lane in which there is always more, until it is told to stop.
#[derive(Default)]
struct Endless {
    served: AtomicU64,
    stops: AtomicBool,
}

impl Serve for Endless {
    fn serve(self: Arc<Self>, others_wait: &AtomicBool) -> bool {
        loop {
            self.served.fetch_add(1, Ordering::Relaxed);
            match (
                self.stops.load(Ordering::Relaxed),
                others_wait.load(Ordering::Relaxed),
            ) {
                (true, _) => return false,
                (false, true) => return true,
                (false, false) => thread::yield_now(),
            }
        }
    }
}

#[test]
fn no_lane_keeps_another_one_waiting() {
    let pool = Pool::new(2);
    let endless = [(); 3].map(|()| Arc::new(Endless::default()));
    for lane in &endless {
        assert!(pool.call(Arc::clone(lane) as _));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_served = |lane: &Arc<Endless>| lane.served.load(Ordering::Relaxed) > 0;
    while !endless.iter().all(is_served) && Instant::now() < deadline {
        thread::yield_now();
    }
    let all_are = endless.iter().all(is_served);
    for lane in &endless {
        lane.stops.store(true, Ordering::Relaxed);
    }
    assert_eq!(close(&pool), 0);
    assert!(all_are, "one waits for ever");
}

/// Is over when as many have begun as there are of it.
struct Together {
    begun: Arc<AtomicU64>,
    of: u64,
    to: Sender<bool>,
}

impl Run for Together {
    fn run(self: Arc<Self>) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        let are_all = || self.begun.load(Ordering::Relaxed) >= self.of;
        while !are_all() && Instant::now() < deadline {
            thread::yield_now();
        }
        self.to.send(are_all()).expect("it is awaited");
    }
}

#[test]
fn threads_that_come_call_the_others_to_what_waits() {
    let of = 8;
    let pool = Pool::new(8);
    // First they are started, and then all of them sleep.
    for _ in 0..2 {
        let (to, are_all) = channel();
        let begun = Arc::default();
        for _ in 0..of {
            let (begun, to) = (Arc::clone(&begun), to.clone());
            let flush = Together { begun, of, to };
            pool.give_flush(Arc::new(flush)).expect("a thread starts");
        }
        assert!((0..of).all(|_| are_all.recv() == Ok(true)));
        until(&pool, |state| state.idle == 8);
        assert_eq!(lock(&pool.shared.state).coming, 0);
    }
    assert_eq!(close(&pool), 0);
}

/// Hands over a no-op, the only one, as the owner of a lane that waits for it.
#[allow(unsafe_code)]
fn make_nop(lane: &mut Lane) {
    // SAFETY: it names no memory.
    unsafe { lane.push(0, &Op::Nop, false) };
    lane.submit(true);
    lane.wait_or(1, None);
    assert_eq!(lane.reap().count(), 1);
}

#[test]
fn an_owner_that_is_called_away_leaves_operations_to_threads_once_there_are_some_again() {
    let pool = Arc::new(Pool::new(1));
    let mut lane = Lane::new(Arc::clone(&pool), 1);
    let _bell = lane.bell();
    // As long as it is closed none is started.
    lock(&pool.shared.state).closed = true;
    (0..2).for_each(|_| make_nop(&mut lane));
    assert_eq!(lock(&pool.shared.state).living, 0);
    lock(&pool.shared.state).closed = false;
    make_nop(&mut lane);
    assert_eq!(lock(&pool.shared.state).living, 1, "the owner makes all");
    assert_eq!(close(&pool), 0);
}
