//! Wakers are foreign code. Here they fork, and come back in the child as well; begin more where
//! they are run; panic when they are dropped; and wake twice.

use std::cell::{Cell, RefCell};
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use inflight::fs::{File, ReadAt};
use inflight::{Engine, Pending, local};

use super::hands::{Watchdog, poll_once, poll_with, until_turned};
use crate::denied::refuse_threads;
use crate::support::own::{
    alarm_seconds, end_child, end_of, fork, forks_when_cloned, in_own_process, set_alarm,
};
use crate::support::{
    direct_file_or_skip, has_several_processors, on_every_backend, on_every_faultless_backend,
    open, pattern, read_write, say, temp_path, until, uring_or_skip,
};

/// Set by the waker that forks: the child's number in the parent, 0 in the child.
static FORKED: AtomicI32 = AtomicI32::new(-1);

/// Forks when it is woken, and comes back in both processes.
struct Forks {
    then: Waker,
    alarm_seconds: u32,
}

impl Wake for Forks {
    fn wake(self: Arc<Self>) {
        let pid = fork();
        if pid == 0 {
            set_alarm(self.alarm_seconds);
        }
        FORKED.store(pid, Ordering::SeqCst);
        self.then.wake_by_ref();
    }
}

fn forks(then: &Waker, alarm_seconds: u32) -> Waker {
    let then = then.clone();
    Waker::from(Arc::new(Forks {
        then,
        alarm_seconds,
    }))
}

fn has_forked() -> bool {
    FORKED.load(Ordering::SeqCst) != -1
}

/// Runs what forks, and returns how the child has ended: with 0 if nothing panicked there.
fn child_of(body: impl FnOnce()) -> ExitStatus {
    let run = catch_unwind(AssertUnwindSafe(body));
    let child = FORKED.load(Ordering::SeqCst);
    if child == 0 {
        end_child(run.is_ok());
    }
    if let Err(panicked) = run {
        resume_unwind(panicked);
    }
    assert!(child > 0, "the waker was not woken");
    end_of(child)
}

/// A process of its own for a test of a fork, on a ring, which a child must not touch.
fn forking(test: &str, body: impl FnOnce(&Engine)) {
    in_own_process(module_path!(), test, || {
        if let Some(engine) = uring_or_skip(test) {
            body(&engine);
        }
    });
}

#[test]
fn a_driver_that_a_waker_has_forked_does_nothing_in_the_child() {
    let test = "a_driver_that_a_waker_has_forked_does_nothing_in_the_child";
    forking(test, |engine| {
        let status = child_of(|| {
            let mut nop = engine.nop().into_future();
            assert!(poll_with(&mut nop, &forks(Waker::noop(), 1)).is_pending());
            until("the driver has told", has_forked);
        });
        assert_eq!(status.signal(), Some(libc::SIGALRM), "it did not wait");
    });
}

#[test]
fn a_waker_that_forks_while_it_is_cloned_ends_the_child() {
    let test = "a_waker_that_forks_while_it_is_cloned_ends_the_child";
    forking(test, |engine| {
        let status = child_of(|| {
            let mut nop = engine.nop().into_future();
            let _ = poll_with(&mut nop, &forks_when_cloned(&FORKED));
        });
        assert_eq!(status.signal(), Some(libc::SIGABRT), "by a driver");
        FORKED.store(-1, Ordering::SeqCst);
        let status = child_of(|| {
            let polls = poll_fn(|_| {
                let mut nop = engine.nop().into_future();
                let _ = poll_with(&mut nop, &forks_when_cloned(&FORKED));
                Poll::Ready(())
            });
            engine.run(polls).expect("a loop can run");
        });
        assert_eq!(status.signal(), Some(libc::SIGABRT), "in a loop");
    });
}

#[test]
fn a_loop_that_a_waker_has_forked_goes_on_in_the_child() {
    let test = "a_loop_that_a_waker_has_forked_goes_on_in_the_child";
    forking(test, |engine| {
        let mut nop = engine.nop().into_future();
        let is_begun = Cell::new(false);
        let forks = poll_fn(|context| {
            if !is_begun.replace(true) {
                let waker = forks(context.waker(), alarm_seconds());
                assert!(poll_with(&mut nop, &waker).is_pending());
            }
            match has_forked() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        let status = child_of(|| engine.run(forks).expect("a loop can run"));
        assert!(status.success(), "{status}");
    });
}

#[test]
fn a_loop_that_is_forked_while_it_waits_for_the_last_leaves_them() {
    let test = "a_loop_that_is_forked_while_it_waits_for_the_last_leaves_them";
    forking(test, |engine| {
        const LARGE: usize = 32 << 20;
        let Some(file) = direct_file_or_skip(test, engine, &pattern(LARGE)) else {
            return;
        };
        let buf = file.aligned_buf(LARGE).expect("there is memory");
        let mut read = file.read_at(buf, 0).into_future();
        let mut nop = engine.nop().into_future();
        let forks = poll_fn(|_| {
            let waker = forks(Waker::noop(), alarm_seconds());
            assert!(poll_once(&mut read).is_pending());
            assert!(poll_with(&mut nop, &waker).is_pending());
            Poll::Ready(())
        });
        let status = child_of(|| engine.run(forks).expect("a loop can run"));
        assert!(status.success(), "{status}");
    });
}

#[test]
fn a_loop_within_the_one_that_is_forked_leaves_the_ring_alone() {
    let test = "a_loop_within_the_one_that_is_forked_leaves_the_ring_alone";
    forking(test, |engine| {
        let forks = async {
            let mut nop = engine.nop().into_future();
            let waker = forks(Waker::noop(), alarm_seconds());
            assert!(poll_with(&mut nop, &waker).is_pending());
            let mut sleep = Box::pin(engine.sleep(Duration::from_millis(200)));
            let inner = engine.run(poll_fn(|context| {
                if FORKED.load(Ordering::SeqCst) == 0 {
                    return Poll::Ready(());
                }
                sleep.as_mut().poll(context).map(drop)
            }));
            assert!(inner.is_ok() || FORKED.load(Ordering::SeqCst) == 0);
        };
        let status = child_of(|| engine.run(forks).expect("a loop can run"));
        assert!(status.success(), "{status}");
    });
}

/// Panics when it is dropped.
struct Dropped;

impl Wake for Dropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Dropped {
    fn drop(&mut self) {
        resume_unwind(Box::new("a waker panics when it is dropped"));
    }
}

#[test]
fn timers_that_nobody_waits_for_may_have_wakers_that_panic() {
    on_every_backend(|engine| {
        let run = engine.run(poll_fn(|_| {
            for _ in 0..3 {
                let mut sleep = Box::pin(engine.sleep(Duration::from_secs(3600)));
                let waker = Waker::from(Arc::new(Dropped));
                assert!(poll_with(&mut sleep, &waker).is_pending());
                std::mem::forget(sleep);
            }
            Poll::Ready(())
        }));
        run.expect("a loop can run");
    });
}

#[test]
fn polls_from_afar_leave_one_waker() {
    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    on_every_backend(|engine| {
        let run = engine.run(async {
            let mut nops = [(); 2].map(|()| engine.nop().into_future());
            assert!(nops.iter_mut().all(|nop| poll_once(nop).is_pending()));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let nothing = Arc::new(Nothing);
                    let waker = Waker::from(Arc::clone(&nothing));
                    for _ in 0..1000 {
                        let poll = |nop| poll_with(nop, &waker).is_pending();
                        assert!(nops.iter_mut().all(poll), "its loop is away");
                    }
                    // Of the test itself two.
                    assert_eq!(Arc::strong_count(&nothing), 2 + 2);
                });
            });
        });
        run.expect("a loop can run");
    });
}

#[test]
fn a_sync_of_a_loop_is_told_where_no_thread_can_be_started() {
    let test = "a_sync_of_a_loop_is_told_where_no_thread_can_be_started";
    in_own_process(module_path!(), test, || {
        refuse_threads();
        on_every_faultless_backend(|engine| {
            // Nothing is known of flushes of large files, so the loop leaves it to the pool.
            let path = temp_path(&vec![7; 4 << 20]);
            let file = read_write(engine).open(path.path()).expect("it is there");
            let run = engine.run(async {
                for _ in 0..3 {
                    file.sync_data().await.expect("it is made all the same");
                }
            });
            run.expect("a loop can run");
        });
    });
}

/// Large enough for another thread to come in time.
const BLOCK: usize = 16 << 10;
const BLOCKS: u64 = 256;

/// A trial of shared reads begins after some thousands; there are several in so many rounds.
const ROUNDS_MAX: u32 = 400;

/// Reads by many tasks, so that the loop tries whether it is faster to share them.
async fn read_all(file: &Rc<File>) {
    let task = |task: u64| {
        let file = Rc::clone(file);
        local::spawn(async move {
            let mut buf = vec![0; BLOCK];
            for at in 0..8 {
                let offset = (task * 8 + at) % BLOCKS * BLOCK as u64;
                let (result, back) = file.read_at(buf, offset).await;
                assert_eq!(result.expect("it is there"), BLOCK);
                buf = back;
            }
        })
    };
    let tasks: Vec<_> = (0..64).map(task).collect();
    for task in tasks {
        task.await;
    }
}

type Read = Pending<ReadAt<'static, Vec<u8>>>;

thread_local! {
    /// What a waker on this thread reads.
    static FILE: Cell<Option<&'static File>> = const { Cell::new(None) };
    /// What it has begun, and whether each has been told.
    static BEGUN: RefCell<Vec<(Read, Arc<Told>)>> = const { RefCell::new(Vec::new()) };
}

struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Begins more reads than can be shared at a time, where it is woken.
struct Begins(Waker);

impl Wake for Begins {
    fn wake(self: Arc<Self>) {
        let file = FILE.get().expect("the test has set it");
        for at in 0..600 {
            let offset = at % BLOCKS * BLOCK as u64;
            let mut read = file.read_at(vec![0; BLOCK], offset).into_future();
            let told = Arc::new(Told(AtomicBool::new(false)));
            if poll_with(&mut read, &Waker::from(Arc::clone(&told))).is_pending() {
                BEGUN.with_borrow_mut(|begun| begun.push((read, told)));
            }
        }
        self.0.wake_by_ref();
    }
}

#[test]
fn what_a_waker_begins_where_it_is_woken_is_told() {
    let test = "what_a_waker_begins_where_it_is_woken_is_told";
    if !has_several_processors(test) {
        return;
    }
    let path = temp_path(&pattern(BLOCK * usize::try_from(BLOCKS).expect("a few")));
    on_every_faultless_backend(|engine| {
        let shared: &'static File = Box::leak(Box::new(open(engine, path.path())));
        FILE.set(Some(shared));
        let file = Rc::new(open(engine, path.path()));
        let run = engine.run(async {
            for _ in 0..ROUNDS_MAX {
                read_all(&file).await;
                let mut nop = engine.nop().into_future();
                let is_begun = Cell::new(false);
                poll_fn(|context| match is_begun.replace(true) {
                    true => Poll::Ready(()),
                    false => {
                        let waker = Waker::from(Arc::new(Begins(context.waker().clone())));
                        poll_with(&mut nop, &waker).map(drop)
                    }
                })
                .await;
                let begun = BEGUN.take();
                // More than are shared at a time, so some of them have been taken meanwhile.
                let is_full = begun.len() > 256;
                for (read, told) in begun {
                    until_turned("every read is told", || told.0.load(Ordering::Relaxed)).await;
                    assert_eq!(read.await.0.expect("it is there"), BLOCK);
                }
                if is_full {
                    return true;
                }
            }
            false
        });
        if !run.expect("a loop can run") {
            say(&format!("{test}: no reads were shared"));
        }
    });
}

type Timer = Pin<Box<dyn Future<Output = io::Result<()>>>>;

thread_local! {
    /// The waker of the inner loop's task, and the timer that is set for it.
    static INNER: RefCell<Option<Waker>> = const { RefCell::new(None) };
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// Sets a timer of the inner loop, where it is woken.
struct Sets(&'static Engine);

impl Wake for Sets {
    fn wake(self: Arc<Self>) {
        let Some(inner) = INNER.with_borrow(Clone::clone) else {
            return;
        };
        TIMER.with_borrow_mut(|timer| {
            if timer.is_none() {
                let mut sleep = Box::pin(self.0.sleep(Duration::from_millis(5)));
                let mut context = Context::from_waker(&inner);
                assert!(sleep.as_mut().poll(&mut context).is_pending());
                *timer = Some(sleep);
            }
        });
    }
}

#[test]
fn a_timer_that_a_waker_of_an_outer_loop_sets_rings() {
    let test = "a_timer_that_a_waker_of_an_outer_loop_sets_rings";
    if !has_several_processors(test) {
        return;
    }
    let path = temp_path(&pattern(BLOCK * usize::try_from(BLOCKS).expect("a few")));
    let _watchdog = Watchdog::new();
    on_every_faultless_backend(|engine| {
        let engine: &'static Engine = Box::leak(Box::new(engine.clone()));
        let file = Rc::new(open(engine, path.path()));
        let run = engine.run(async {
            for _ in 0..ROUNDS_MAX {
                read_all(&file).await;
                let waker = Waker::from(Arc::new(Sets(engine)));
                let read = |at| {
                    file.read_at(vec![0; BLOCK], at * BLOCK as u64)
                        .into_future()
                };
                let mut reads: Vec<_> = (0..64).map(read).collect();
                reads.retain_mut(|read| poll_with(read, &waker).is_pending());
                if reads.len() < 16 {
                    continue;
                }
                let inner = engine.run(poll_fn(|context| {
                    INNER.set(Some(context.waker().clone()));
                    TIMER.with_borrow_mut(|timer| match timer {
                        Some(timer) => timer.as_mut().poll(context).map(drop),
                        None => Poll::Pending,
                    })
                }));
                inner.expect("a loop can run in another");
                INNER.take();
                TIMER.take();
                return true;
            }
            false
        });
        if !run.expect("a loop can run") {
            say(&format!("{test}: no reads were shared"));
        }
    });
}
