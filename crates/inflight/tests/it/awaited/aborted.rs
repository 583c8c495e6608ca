//! Tasks of run loops that are ended by their handles.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending, poll_fn};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::task::Poll;

#[cfg(feature = "faulty")]
use inflight::BufPool;
use inflight::Engine;
use inflight::local::{self, JoinHandle};

#[cfg(feature = "faulty")]
use super::hands::{Gate, drained, in_flight, until_turned};
use super::hands::{Watchdog, poll_once};
use crate::steady::allocations::allocations;
use crate::support::on_every_backend;
#[cfg(feature = "faulty")]
use crate::support::{pattern, temp_file};

/// Does something when it is dropped.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A task that counts its polls and tells of its drop; it waits for nothing.
fn sleeper() -> (JoinHandle<()>, Rc<Cell<u32>>, Rc<Cell<bool>>) {
    let [polls, counts]: [Rc<Cell<u32>>; 2] = doubled(Rc::default());
    let [is_dropped, drops]: [Rc<Cell<bool>>; 2] = doubled(Rc::default());
    let finally = Finally(move || drops.set(true));
    let task = local::spawn(async move {
        let _finally = finally;
        poll_fn(|_| {
            counts.set(counts.get() + 1);
            Poll::Pending
        })
        .await
    });
    (task, polls, is_dropped)
}

fn doubled<T>(shared: Rc<T>) -> [Rc<T>; 2] {
    [Rc::clone(&shared), shared]
}

async fn some_turns() {
    for _ in 0..20 {
        local::yield_now().await;
    }
}

fn in_a_loop(body: impl AsyncFn(&Engine)) {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        engine.run(body(engine)).expect("nothing is demanded");
        let nop = engine.run(async { engine.nop().await });
        nop.expect("nothing is demanded").expect("it goes on");
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
    });
}

#[test]
fn an_aborted_task_is_gone_when_the_call_returns() {
    in_a_loop(async |_| {
        // One that was never polled, one that waits, one that is to be polled again.
        for turns in [false, true] {
            let (task, polls, is_dropped) = sleeper();
            if turns {
                some_turns().await;
            }
            task.abort();
            assert!(is_dropped.get());
            some_turns().await;
            assert_eq!(polls.get(), u32::from(turns));
        }
        let [polls, counts]: [Rc<Cell<u32>>; 2] = doubled(Rc::default());
        let ready = local::spawn(async move {
            loop {
                counts.set(counts.get() + 1);
                local::yield_now().await;
            }
        });
        some_turns().await;
        ready.abort();
        assert_eq!(Rc::strong_count(&polls), 1);
        let before = polls.get();
        some_turns().await;
        assert_eq!(polls.get(), before);
    });
}

#[cfg(feature = "faulty")]
#[test]
fn what_an_aborted_task_had_in_flight_keeps_its_buffer_until_it_is_over() {
    const PAGE: usize = 4096;
    let _watchdog = Watchdog::new();
    let (gate, engine) = Gate::closed(|builder| builder);
    let pool = BufPool::new(1, PAGE).unwrap();
    let file = Rc::new(temp_file(&engine, &pattern(PAGE)));
    let run = engine.run(async {
        let (buf, its) = (pool.take().expect("it is free"), Rc::clone(&file));
        let task = local::spawn(async move {
            let read = its.read_vectored_at(vec![buf], 0).by_backend();
            read.await.0.unwrap();
        });
        in_flight(&engine, 1).await;
        task.abort();
        assert_eq!(Rc::strong_count(&file), 1);
        some_turns().await;
        assert_eq!(pool.available(), 0, "the kernel may still write to it");
        gate.open();
        until_turned("it comes back", || pool.available() == 1).await;
    });
    run.unwrap();
    drained(&engine);
    assert_eq!(engine.stats().in_flight, 0);
}

#[test]
fn a_task_that_aborts_itself_goes_on_to_where_it_waits() {
    in_a_loop(async |engine| {
        let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let [steps, its]: [Rc<Cell<u32>>; 2] = doubled(Rc::default());
        let (handle, engine) = (Rc::clone(&own), engine.clone());
        let spawned = local::spawn(async move {
            handle.take().expect("it is there").abort();
            its.set(its.get() + 1);
            engine.nop().await.unwrap();
            its.set(its.get() + 1);
        });
        own.replace(Some(spawned));
        some_turns().await;
        assert_eq!((steps.get(), Rc::strong_count(&steps)), (1, 1));
        the_next_one_stays().await;
        // One that is over then has its result dropped.
        let [dropped, its]: [Rc<Cell<bool>>; 2] = doubled(Rc::default());
        let own: Rc<RefCell<Option<JoinHandle<_>>>> = Rc::default();
        let handle = Rc::clone(&own);
        let spawned = local::spawn(async move {
            handle.take().expect("it is there").abort();
            let result: Box<dyn std::any::Any> = Box::new(Finally(move || its.set(true)));
            result
        });
        own.replace(Some(spawned));
        some_turns().await;
        assert!(dropped.get());
        the_next_one_stays().await;
    });

    /// It has the same place.
    async fn the_next_one_stays() {
        let (next, _, is_dropped) = sleeper();
        some_turns().await;
        assert!(!is_dropped.get());
        next.abort();
    }
}

#[test]
fn a_task_is_polled_once_however_many_were_aborted_in_its_place() {
    in_a_loop(async |_| {
        // Those that are polled meanwhile are ready as well, and may be over at once.
        let others: Vec<_> = (0..8).map(|_| local::spawn(async {})).collect();
        for _ in 0..100 {
            sleeper().0.abort();
        }
        let (first, first_polls, _) = sleeper();
        first.abort();
        let (_second, polls, _) = sleeper();
        some_turns().await;
        assert_eq!((first_polls.get(), polls.get()), (0, 1));
        // One that was woken while it was polled, and is over.
        local::spawn(poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Ready(())
        }))
        .await;
        let (_third, polls, _) = sleeper();
        some_turns().await;
        assert_eq!(polls.get(), 1);
        for other in others {
            other.await;
        }
    });
}

#[test]
fn spawning_and_aborting_without_an_end_takes_no_memory() {
    in_a_loop(async |_| {
        let rounds = |count: u32| {
            let before = allocations();
            (0..count).for_each(|_| sleeper().0.abort());
            allocations() - before
        };
        // Of a place, and of the queue.
        rounds(1);
        let of_one = rounds(1);
        assert_eq!(rounds(1000), 1000 * of_one);
    });
}

#[test]
fn the_task_that_follows_in_the_same_place_is_left_alone() {
    in_a_loop(async |engine| {
        for _ in 0..50 {
            let (first, _, is_dropped) = sleeper();
            let over = local::spawn(async {});
            first.abort();
            assert!(is_dropped.get());
            // It takes the place of one that was to be polled.
            let second = local::spawn(async { engine_nop().await });
            some_turns().await;
            let (third, polls, is_dropped) = sleeper();
            over.abort();
            some_turns().await;
            assert_eq!((polls.get(), is_dropped.get()), (1, false));
            second.await;
            third.abort();
            assert!(is_dropped.get());
        }
        engine.nop().await.unwrap();
    });

    async fn engine_nop() {
        let engine = Engine::global().expect("nothing is demanded");
        engine.nop().await.unwrap();
    }
}

#[test]
fn a_result_that_nobody_takes_is_dropped_and_may_panic() {
    in_a_loop(async |_| {
        let bomb = || Finally(|| resume_unwind(Box::new("bang")));
        let over = local::spawn(async move { bomb() });
        some_turns().await;
        over.abort();
        let bomb = bomb();
        let left = local::spawn(async move {
            let _bomb = bomb;
            pending::<()>().await;
        });
        some_turns().await;
        left.abort();
        let itself: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let handle = Rc::clone(&itself);
        let bomb = Finally(|| resume_unwind(Box::new("bang")));
        let spawned = local::spawn(async move {
            let _bomb = bomb;
            handle.take().expect("it is there").abort();
            pending::<()>().await;
        });
        itself.replace(Some(spawned));
        some_turns().await;
        assert_eq!(Rc::strong_count(&itself), 1);
    });
}

#[test]
fn an_aborted_task_leaves_no_more_behind_than_one_that_is_over() {
    const ROUNDS: u64 = 1000;
    /// Allocations of a thousand tasks, one after the other.
    async fn of_tasks(aborts: bool) -> u64 {
        let mut before = 0;
        for round in 0..2 * ROUNDS {
            if round == ROUNDS {
                before = allocations();
            }
            let task = local::spawn(poll_fn(move |_| match aborts {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }));
            local::yield_now().await;
            match aborts {
                true => task.abort(),
                false => task.await,
            }
        }
        allocations() - before
    }
    in_a_loop(async |_| {
        let over = of_tasks(false).await;
        assert_eq!(of_tasks(true).await, over);
    });
}

/// A task that aborts this one, and spawns another, when it is dropped.
fn chain(next: Option<JoinHandle<()>>, drops: Rc<Cell<u32>>) -> JoinHandle<()> {
    let mut next = next;
    let finally = Finally(move || {
        drops.set(drops.get() + 1);
        if let Some(next) = next.take() {
            next.abort();
        }
        drop(local::spawn(pending::<()>()));
    });
    local::spawn(async move {
        let _finally = finally;
        pending::<()>().await;
    })
}

#[test]
fn futures_may_abort_and_spawn_tasks_when_they_are_dropped() {
    // By the call, and by the end of the loop.
    for aborts in [true, false] {
        let drops: Rc<Cell<u32>> = Rc::default();
        in_a_loop(async |_| {
            drops.set(0);
            let one = chain(None, Rc::clone(&drops));
            let two = chain(Some(one), Rc::clone(&drops));
            let three = chain(Some(two), Rc::clone(&drops));
            some_turns().await;
            match aborts {
                true => {
                    three.abort();
                    assert_eq!(drops.get(), 3);
                    some_turns().await;
                }
                false => drop(three),
            }
        });
        assert_eq!(drops.get(), 3);
    }
}

#[test]
fn a_task_of_an_outer_loop_is_aborted_in_an_inner_one() {
    in_a_loop(async |engine| {
        let other = Engine::new().unwrap();
        for inner in [engine, &other] {
            let (queued, polls, is_dropped) = sleeper();
            let mut queued = Some(queued);
            // Two deep, and it has been awaited in vain.
            let deep = inner.run(async {
                let mut task = queued.take().expect("it is there");
                assert!(poll_once(&mut task).is_pending());
                other.run(async move { task.abort() }).unwrap();
                inner.nop().await.unwrap();
            });
            deep.unwrap();
            assert!(is_dropped.get());
            some_turns().await;
            assert_eq!(polls.get(), 0);
        }
        // Tasks of the inner one are not taken for those of the outer with the same number.
        let (outer, _, outer_dropped) = sleeper();
        let inner = other.run(async {
            let (_inner, _, inner_dropped) = sleeper();
            outer.abort();
            inner_dropped.get()
        });
        assert_eq!((inner.unwrap(), outer_dropped.get()), (false, true));
    });
}

#[test]
fn a_task_is_aborted_in_a_loop_that_it_has_entered() {
    in_a_loop(async |engine| {
        let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let [steps, its]: [Rc<Cell<u32>>; 2] = doubled(Rc::default());
        let (handle, engine) = (Rc::clone(&own), engine.clone());
        let spawned = local::spawn(async move {
            let inner = engine.run(async {
                handle.take().expect("it is there").abort();
                some_turns().await;
                engine.nop().await.unwrap();
            });
            inner.unwrap();
            its.set(its.get() + 1);
            let mut nop = engine.nop().into_future();
            assert!(poll_once(&mut nop).is_pending());
            nop.await.unwrap();
            its.set(its.get() + 1);
        });
        own.replace(Some(spawned));
        some_turns().await;
        assert_eq!((steps.get(), Rc::strong_count(&steps)), (1, 1));
    });
}

#[test]
fn aborting_after_the_loop_has_ended_does_nothing() {
    on_every_backend(|engine| {
        let handles = engine.run(async {
            let (left, _, is_dropped) = sleeper();
            let over = local::spawn(async { Box::new(7) });
            some_turns().await;
            (left, over, is_dropped)
        });
        let (left, over, is_dropped) = handles.unwrap();
        assert!(is_dropped.get());
        // Neither here nor in another loop, whose tasks have the same numbers.
        let run = engine.run(async move {
            let (_task, polls, is_dropped) = sleeper();
            left.abort();
            some_turns().await;
            assert_eq!((polls.get(), is_dropped.get()), (1, false));
        });
        run.unwrap();
        over.abort();
    });
}
