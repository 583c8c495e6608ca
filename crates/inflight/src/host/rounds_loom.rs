//! Models of group commit: `loom` runs each in every order that its threads can get into, as those
//! of the mailbox ([`super::mail_loom`]). `cargo xtask loom` runs them.
//!
//! The disk is a counter that says in which order syncs were asked for and flushes began. Two
//! flushes at a time, a success that no flush has earned, and a leader that is not replaced are
//! seen by it; whoever waits for ever is a deadlock, which `loom` reports. Leaders do not gather,
//! because `loom` knows no time.
//!
//! Each model says which mutations of the code make it fail; they were tried.

mod yard;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use loom::sync::{Condvar, Mutex};
use loom::thread;

use self::yard::{Disk, Site, Yard};
use super::mail_loom::{Flag, explore};
use crate::commit::{Asker, Commit, HostId, Nothing, Seat, Turn};
use crate::completion::{Answer, Refusal};

/// Whoever syncs.
#[derive(Clone)]
struct Client {
    commit: Arc<Commit>,
    yard: Arc<Yard>,
}

impl Client {
    fn asks(&self) -> usize {
        self.yard.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the answer may be given to a sync that was asked for then.
    fn check(&self, asked: usize, answer: Answer) {
        if self.yard.site.fails {
            let refused = Answer::refused(Refusal::SyncFailed);
            assert!(answer == Answer::failed(libc::EIO, 0) || answer == refused);
            assert_eq!(self.commit.failure(), Some(libc::EIO));
            return;
        }
        assert_eq!(answer, Answer::moved(0));
        let flushed = self.yard.flushed.load(Ordering::Relaxed);
        assert!(flushed > asked, "told by a flush that began before");
    }

    /// A thread that waits.
    fn wait(&self) {
        let asked = self.asks();
        let answer = match self.commit.enter_alone(true, &Nothing) {
            Turn::Wait(seat) => seat.wait(),
            Turn::Lead => {
                let answer = self.commit.alone(true);
                self.commit.over();
                answer
            }
        };
        self.check(asked, answer);
    }

    /// A thread that comes back.
    fn wait_twice(&self) {
        self.wait();
        self.wait();
    }

    /// A thread that has waited for long as soon as it waits.
    fn wait_hastily(&self) {
        let asked = self.asks();
        let answer = match self.commit.enter(true, &Nothing) {
            Turn::Wait(seat) => {
                let taken = self.commit.take_over(&seat);
                taken.unwrap_or_else(|| seat.wait())
            }
            Turn::Lead => {
                let answer = self.commit.alone(true);
                self.commit.over();
                answer
            }
        };
        self.check(asked, answer);
    }

    fn join(&self, waker: &Waker) -> (usize, Seat) {
        let asked = self.asks();
        (asked, self.commit.join(true, &Nothing, Some(waker), None))
    }

    /// A task: polled until the answer is there, by wakers that are not always the same.
    fn wait_awake(&self) {
        let (asked, seat) = self.join(Waker::noop());
        let answer = self.poll_until_answered(&seat);
        self.check(asked, answer);
    }

    fn poll_until_answered(&self, seat: &Seat) -> Answer {
        let flag = Flag::new();
        let waker = Waker::from(Arc::new(flag.clone()));
        loop {
            if let Some(answer) = seat.poll(&waker) {
                return answer;
            }
            flag.wait();
        }
    }

    /// A host that promises to lead, and keeps its promise by leading or by leaving it to the pool.
    fn promise(&self, leads: bool) {
        let host = HostId::new();
        let asked = self.asks();
        let seat = self.commit.join(true, &Nothing, None, Some(host));
        self.commit.keep_promise(host, |_, _| leads);
        self.check(asked, seat.wait());
    }

    /// A host whose thread waits for somebody else before it comes back.
    fn promise_and_ask(&self) {
        let host = HostId::new();
        let asked = self.asks();
        let seat = self.commit.join(true, &Nothing, None, Some(host));
        self.wait_awake();
        seat.lead(host);
        self.check(asked, seat.wait());
    }

    /// A host whose future is dropped before it keeps its promise.
    fn promise_and_leave(&self) {
        let host = HostId::new();
        let (asked, seat) = (
            self.asks(),
            self.commit.join(true, &Nothing, None, Some(host)),
        );
        if let (Some(answer), _) = seat.leave() {
            self.check(asked, answer);
        }
        self.commit.keep_promise(host, |_, _| true);
    }

    /// A future of a host that is polled by somebody else, and of which the host knows nothing.
    fn promise_and_move(&self) {
        let host = HostId::new();
        let asked = self.asks();
        let seat = self.commit.join(true, &Nothing, None, Some(host));
        let answer = self.poll_until_answered(&seat);
        self.check(asked, answer);
    }

    /// A task whose flush has been short, and that asks again.
    fn again_at_once(&self) {
        self.wait_awake();
        let asked = self.asks();
        match self.commit.at_once(true, ASKER) {
            Some((answer, _)) => self.check(asked, answer),
            None => self.wait_awake(),
        }
    }

    /// The first flush, before anybody else is there.
    fn flush_once(&self) {
        let (asked, seat) = self.join(Waker::noop());
        self.serve_as_pool();
        self.check(asked, seat.wait());
    }

    /// Two threads behind a third one, before anybody else is there.
    fn share_once(&self) {
        let enters = || self.commit.enter(true, &Nothing);
        assert!(matches!(enters(), Turn::Lead));
        let asked = self.asks();
        let (Turn::Wait(one), Turn::Wait(other)) = (enters(), enters()) else {
            panic!("two lead");
        };
        self.commit.over();
        self.serve_as_pool();
        self.check(asked, one.wait());
        self.check(asked, other.wait());
    }

    /// What the thread of the pool has been given, if there is one.
    fn serve_as_pool(&self) {
        let given = self.yard.given().leads.pop_front();
        if let Some(commit) = given {
            commit.lead();
        }
    }

    /// A future that is never polled again.
    fn forget(&self) {
        std::mem::forget(self.join(Waker::noop()));
    }

    /// A future that is dropped.
    fn leave(&self) {
        let (asked, seat) = self.join(Waker::noop());
        if let (Some(answer), _) = seat.leave() {
            self.check(asked, answer);
        }
    }
}

const ASKER: Asker = Asker {
    may_wait: true,
    is_host: false,
};

/// A waker that waits for a sync itself.
struct Syncs(Client, Flag);

impl Wake for Syncs {
    fn wake(self: Arc<Self>) {
        self.0.wait();
        Arc::new(self.1.clone()).wake();
    }
}

/// Runs the two at the same time, with the thread of the pool as a third, or the leader they find.
/// When all is over nobody leads, and nobody is left.
fn run(site: Site, first: fn(&Client), second: fn(&Client)) -> usize {
    let yard = Arc::new(Yard {
        site,
        clock: AtomicUsize::new(1),
        flushed: AtomicUsize::new(0),
        flushes: AtomicUsize::new(0),
        device: Mutex::new(()),
        given: Mutex::default(),
        told: Condvar::new(),
    });
    let client = Client {
        commit: Arc::new(Commit::new(Disk(Arc::clone(&yard)), true)),
        yard: Arc::clone(&yard),
    };
    if site.is_quick {
        client.flush_once();
    }
    if site.is_shared {
        client.share_once();
    }
    let leader = site.has_leader.then(|| {
        assert!(matches!(client.commit.enter(true, &Nothing), Turn::Lead));
        let commit = Arc::clone(&client.commit);
        thread::spawn(move || {
            commit.alone(true);
            commit.over();
        })
    });
    let of_the_pool = Arc::clone(&yard);
    let serves = move || {
        loop {
            let mut given = of_the_pool.given();
            while given.leads.is_empty() && !given.is_closed {
                given = of_the_pool.told.wait(given).expect("no panic");
            }
            let Some(commit) = given.leads.pop_front() else {
                return;
            };
            drop(given);
            commit.lead();
        }
    };
    let third = leader.unwrap_or_else(|| thread::spawn(serves));
    let other = client.clone();
    let other = thread::spawn(move || second(&other));
    first(&client);
    other.join().expect("no panic");
    yard.given().is_closed = true;
    yard.told.notify_one();
    third.join().expect("no panic");
    if site.has_leader {
        // One that is not polled may be the last one that the lead has been offered to.
        client.wait();
    }
    // Nobody waits where nobody leads.
    assert!(matches!(client.commit.enter(true, &Nothing), Turn::Lead));
    yard.flushes.load(Ordering::Relaxed)
}

/// What a client does.
type Does = fn(&Client);

/// Runs each pair with a thread of the pool and without.
fn explore_pairs(name: &str, site: Site, pairs: &[(&str, Does, Does)]) {
    for &(who, first, second) in pairs {
        for has_no_thread in [false, true] {
            let site = Site {
                has_no_thread,
                ..site
            };
            let name = format!("{name}, {who}, without a pool: {has_no_thread}");
            explore(&name, 2, move || {
                run(site, first, second);
            });
        }
    }
}

/// Threads that wait, of which each may come while the other's flush runs.
///
/// Fails if `over` ends the lead although somebody waits, if `enter` does not see that somebody
/// leads, or if `next_round` leaves the round where others still join it.
#[test]
fn threads_wait_for_the_next_flush() {
    explore("threads_wait_for_the_next_flush", 3, || {
        run(Site::default(), Client::wait, Client::wait);
    });
}

/// Tasks, with a leader that gives way after each round.
///
/// Fails if `poll` does not keep the waker or looks at the answer only before that (deadlock), or
/// if `lead` gives way without another leader (deadlock).
#[test]
fn tasks_are_woken_by_whoever_leads() {
    let site = Site {
        is_busy: true,
        ..Site::default()
    };
    explore("tasks_are_woken_by_whoever_leads", 2, move || {
        run(site, Client::wait_awake, Client::wait_awake);
    });
}

/// A thread and a task, where no thread of the pool leads.
///
/// Fails if `pass_on` counts on one (deadlock).
#[test]
fn without_a_pool_whoever_asks_leads() {
    let site = Site {
        has_no_thread: true,
        ..Site::default()
    };
    explore("without_a_pool_whoever_asks_leads", 3, move || {
        run(site, Client::wait_awake, Client::wait);
    });
}

/// Those who wait lead each other, where no thread of the pool does.
///
/// Fails if a lead that is offered is not taken by a thread that has not slept yet, or by a task
/// that is polled (deadlock), if who takes it does not look whether it is still there (two flushes
/// at a time), if a host promises what has been offered (two flushes at a time), or if the lead
/// stays offered when all have left (somebody still leads).
#[test]
fn without_a_pool_those_who_wait_lead_each_other() {
    let pairs: [(&str, Does, Does); 7] = [
        ("threads", Client::wait, Client::wait_twice),
        ("tasks", Client::wait_awake, Client::wait_awake),
        ("who leaves and a task", Client::leave, Client::wait_awake),
        ("who leaves and a thread", Client::leave, Client::wait_twice),
        ("who is not polled", Client::forget, Client::wait_awake),
        ("a host", Client::promise_and_ask, Client::wait),
        (
            "a host and who leaves",
            |host| host.promise(true),
            Client::leave,
        ),
    ];
    for (who, first, second) in pairs {
        let name = format!("without_a_pool_those_who_wait_lead_each_other, {who}");
        explore(&name, 2, move || {
            let site = Site {
                has_no_thread: true,
                has_leader: true,
                ..Site::default()
            };
            run(site, first, second);
        });
    }
}

/// A future that is dropped at any time keeps nobody waiting.
///
/// Fails if a task that comes late is not woken, as in
/// [`tasks_are_woken_by_whoever_leads`], or if a round is used again with its answer (told by a
/// flush that began before), or if a round that all have left ends the lead (deadlock).
#[test]
fn whoever_leaves_keeps_nobody_waiting() {
    explore("whoever_leaves_keeps_nobody_waiting", 2, || {
        run(Site::default(), Client::leave, Client::wait_awake);
    });
}

/// A host makes the flush of its own syncs, or leaves it to the pool, while somebody else asks.
///
/// Fails if `enter` or `join` leave a promise standing (two flushes at a time), if `keep_promise`
/// does not see whether it still stands (two flushes at a time), or does not pass the lead on
/// (deadlock).
#[test]
fn a_host_that_has_promised_leads() {
    explore("a_host_that_has_promised_leads, itself", 3, || {
        run(Site::default(), |host| host.promise(true), Client::wait);
    });
    explore("a_host_that_has_promised_leads, by the pool", 2, || {
        run(
            Site::default(),
            |host| host.promise(false),
            Client::wait_awake,
        );
    });
}

/// A flush that takes no time is made where it is asked for, as long as that concerns nobody else.
///
/// Fails if `at_once` does not see that somebody leads or waits, or leaves a promise standing (two
/// flushes at a time), or does not pass the lead on (deadlock).
#[test]
fn a_short_flush_is_made_at_once() {
    let quick = Site {
        is_quick: true,
        ..Site::default()
    };
    explore(
        "a_short_flush_is_made_at_once, beside a thread",
        2,
        move || {
            run(quick, Client::again_at_once, Client::wait);
        },
    );
    explore(
        "a_short_flush_is_made_at_once, beside a task",
        2,
        move || {
            run(quick, Client::again_at_once, Client::wait_awake);
        },
    );
    explore(
        "a_short_flush_is_made_at_once, beside a host",
        2,
        move || {
            run(quick, Client::again_at_once, |host| {
                host.promise(true);
            });
        },
    );
    explore(
        "a_short_flush_is_made_at_once, for who leaves",
        2,
        move || {
            run(quick, Client::again_at_once, |host| {
                host.promise_and_leave();
            });
        },
    );
}

/// Nobody else counts on a host that has promised to lead.
///
/// Fails if `join` leaves a round to the promise of another (deadlock), or if `poll` does not call
/// the pool when another waker is to be woken (deadlock).
#[test]
fn nobody_counts_on_a_promise() {
    explore("nobody_counts_on_a_promise, of a thread", 2, || {
        run(Site::default(), Client::promise_and_ask, Client::wait);
    });
    explore("nobody_counts_on_a_promise, of a future", 3, || {
        run(Site::default(), Client::promise_and_move, |_| ());
    });
}

/// A failure is told to all, and no flush is made after it.
///
/// Fails if a failure is not noted, or if `checked` does not look for one (another flush is made).
#[test]
fn no_flush_follows_one_that_failed() {
    let site = Site {
        fails: true,
        ..Site::default()
    };
    explore("no_flush_follows_one_that_failed", 3, move || {
        let flushes = run(site, Client::wait, Client::wait_awake);
        assert_eq!(flushes, 1);
    });
}

/// Where flushes take nothing, whoever has led serves one more round, and the lead is given up
/// before anybody is told.
///
/// Fails if `serve` ends the lead although somebody waits (deadlock), or if it goes on without the
/// lead (two flushes at a time).
#[test]
fn who_has_led_serves_others_in_no_time() {
    let site = Site {
        is_quick: true,
        ..Site::default()
    };
    let pairs: [(&str, Does, Does); 4] = [
        ("threads", Client::wait, Client::wait),
        ("tasks", Client::wait_awake, Client::wait_awake),
        ("a thread and a task", Client::wait, Client::wait_awake),
        (
            "a task that asks again",
            Client::again_at_once,
            Client::wait,
        ),
    ];
    explore_pairs("who_has_led_serves_others_in_no_time", site, &pairs);
}

/// A thread that was served together with others leads them the next time.
///
/// Fails if `enter_alone` serves without the lead (two flushes at a time). Nobody comes while it
/// gathers here; see `commit/lead_test.rs` for that.
#[test]
fn threads_that_were_served_together_lead_each_other() {
    let site = Site {
        is_shared: true,
        ..Site::default()
    };
    let pairs: [(&str, Does, Does); 3] = [
        ("threads", Client::wait, Client::wait),
        ("a thread and a task", Client::wait, Client::wait_awake),
        ("a thread and who leaves", Client::wait, Client::leave),
    ];
    explore_pairs("threads_that_were_served_together", site, &pairs);
}

/// A waker waits for a sync of the file whose leader runs it, while others do.
///
/// Fails if `enter` does not take the lead from one that runs wakers (deadlock), or if threads that
/// run none take it too (deadlock). A leader that goes on after it has lost the lead is not seen:
/// that takes two pools.
#[test]
fn a_waker_may_wait_for_a_sync() {
    let task = |client: &Client| {
        let flag = Flag::new();
        let waker = Waker::from(Arc::new(Syncs(client.clone(), flag.clone())));
        let (asked, seat) = client.join(&waker);
        flag.wait();
        let answer = seat.poll(Waker::noop());
        client.check(asked, answer.expect("it was woken"));
    };
    for is_quick in [false, true] {
        let site = Site {
            is_quick,
            ..Site::default()
        };
        let name = format!("a_waker_may_wait_for_a_sync, quick: {is_quick}");
        explore(&name, 2, move || {
            run(site, task, Client::wait);
        });
    }
}

/// A thread takes the lead that a thread of the pool is called to, or one that runs wakers.
///
/// Fails if `take_over` takes a lead that somebody has (two flushes at a time), or if `lead` does
/// not look whether it is still free (two flushes at a time), or if `calls_the_pool` takes it back
/// from who has taken it (two flushes at a time).
#[test]
fn who_waits_takes_the_lead_before_the_pool() {
    let pairs: [(&str, Does, Does); 3] = [
        ("threads", Client::wait_hastily, Client::wait_hastily),
        (
            "a thread and a task",
            Client::wait_hastily,
            Client::wait_awake,
        ),
        (
            "a thread and who leaves",
            Client::wait_hastily,
            Client::leave,
        ),
    ];
    for is_busy in [false, true] {
        let site = Site {
            is_busy,
            ..Site::default()
        };
        let name = format!("who_waits_takes_the_lead_before_the_pool, busy: {is_busy}");
        explore_pairs(&name, site, &pairs);
    }
}
