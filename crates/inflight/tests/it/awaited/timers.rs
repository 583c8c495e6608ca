//! Timeouts that fire, and timers that move or are cancelled.

use std::future::{IntoFuture, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use inflight::fs::WriteAt;
use inflight::{Awaited, Batch, BufPool, Engine, local};

use super::hands::{Counter, Done, Loud, Watchdog, counting, drained, in_flight, on_both_hosts};
use super::hands::{poll_once, poll_with, telling, until_turned};
use crate::support::{on_every_backend, open, temp_path};

const PAGE: usize = 4096;
const SOON: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(24 * 3600);

#[test]
fn a_late_operation_can_be_awaited_after_all() {
    on_both_hosts(async |engine, gate| {
        let path = temp_path(b"");
        let file = open(engine, path.path());
        let write = file.write_all_at(b"late".to_vec(), 0).timeout(SOON);
        let late = write.await.expect_err("the gate is closed");
        assert!(late.to_string().contains("goes on"), "{late}");
        gate.open();
        let (result, buf) = late.await;
        assert_eq!((result.unwrap(), &buf[..]), (4, &b"late"[..]));
    });
}

#[test]
fn a_late_operation_can_be_left_behind() {
    on_both_hosts(async |engine, gate| {
        let path = temp_path(b"");
        let file = open(engine, path.path());
        let pool = BufPool::new(2, PAGE).unwrap();
        let write = |n: u64| file.write_at(pool.take().unwrap(), n * PAGE as u64);
        let dropped = write(0)
            .timeout(SOON)
            .await
            .expect_err("the gate is closed");
        // What no thread has taken when it is left would be taken back.
        in_flight(engine, 1).await;
        drop(dropped);
        let late = write(1)
            .deadline(Instant::now() + SOON)
            .await
            .expect_err("the gate is closed");
        in_flight(engine, 2).await;
        let error: std::io::Error = late.into();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(pool.available(), 0, "the memory is the device's");
        gate.open();
        until_turned("the buffers are back", || pool.available() == 2).await;
    });
}

#[test]
fn a_late_batch_can_be_awaited_after_all_or_left_behind() {
    on_both_hosts(async |engine, gate| {
        let path = temp_path(b"");
        let file = open(engine, path.path());
        let pool = BufPool::new(6, PAGE).unwrap();
        let batch = || -> Batch<_> {
            let write = |n| file.write_at(pool.take().unwrap(), n * PAGE as u64);
            (0..3).map(write).collect()
        };
        let late = batch().timeout(SOON).await.expect_err("the gate is closed");
        let left = batch().into_future().deadline(Instant::now() + SOON).await;
        let left = left.expect_err("the gate is closed");
        // As above.
        in_flight(engine, 6).await;
        drop(left);
        assert_eq!(pool.available(), 0, "the memory is the device's");
        gate.open();
        for (result, _buf) in late.await {
            assert_eq!(result.unwrap(), PAGE);
        }
        until_turned("the buffers are back", || pool.available() == 6).await;
        let in_time = batch().timeout(LONG).await.expect("a day has not passed");
        assert!(in_time.into_iter().all(|(result, _)| result.is_ok()));
        let empty: Batch<WriteAt<'_, Vec<u8>>> = Batch::new();
        assert!(empty.timeout(LONG).await.expect("it was over").is_empty());
    });
}

/// Also in another engine than the operations' own.
#[test]
fn a_late_batch_that_is_taken_apart_stays_where_it_is_run() {
    on_both_hosts(async |engine, gate| {
        let other = Engine::new().unwrap();
        let path = temp_path(b"");
        let there = open(&other, path.path());
        let pool = BufPool::new(3, PAGE).unwrap();
        let mut batch = Batch::on(engine);
        for n in 0..3 {
            batch.push(there.write_at(pool.take().unwrap(), n * PAGE as u64));
        }
        let late = batch.timeout(SOON).await.expect_err("the gate is closed");
        in_flight(engine, 3).await;
        let [left, awaited, again] = late.into_results().try_into().expect("there are three");
        drop(left.expect_err("the gate is closed"));
        let again = again.expect_err("the gate is closed").into_future();
        let again = again.timeout(SOON).await.expect_err("the gate is closed");
        assert_eq!(pool.available(), 0, "the memory is the device's");
        gate.open();
        let (result, _) = awaited.expect_err("the gate is closed").await;
        assert_eq!(result.unwrap(), PAGE);
        assert_eq!(again.await.0.unwrap(), PAGE);
        until_turned("the buffers are back", || pool.available() == 3).await;
        assert_eq!(other.stats().operations, 0);
    });
}

#[test]
fn a_buffer_that_panics_when_a_late_batch_is_taken_apart_frees_no_other() {
    on_both_hosts(async |engine, gate| {
        let other = Engine::new().unwrap();
        let path = temp_path(b"");
        let there = open(&other, path.path());
        let freed = Arc::new(Counter::default());
        let buf = || {
            let freed = Arc::clone(&freed);
            Loud::new(move || freed.wake())
        };
        let bad = buf();
        let keeps_its_length = Arc::clone(&bad.keeps_its_length);
        let mut batch = Batch::on(engine);
        batch.push(there.write_at(buf(), 0));
        batch.push(there.write_at(bad, u64::MAX));
        batch.push(there.write_at(buf(), 8));
        let late = batch.timeout(SOON).await.err();
        let late = late.expect("the gate is closed");
        in_flight(engine, 2).await;
        keeps_its_length.store(true, Ordering::SeqCst);
        let apart = catch_unwind(AssertUnwindSafe(|| late.into_results()));
        assert!(apart.is_err(), "it proves nothing");
        assert_eq!(freed.count(), 1, "a buffer was freed in flight");
        gate.open();
        until_turned("the buffers are freed", || freed.count() == 3).await;
    });
}

#[test]
fn no_time_at_all_is_late_at_the_first_poll() {
    on_both_hosts(async |engine, gate| {
        let mut nop = engine.nop().timeout(Duration::ZERO);
        let Poll::Ready(Err(late)) = poll_once(&mut nop) else {
            panic!("it was not late");
        };
        gate.open();
        late.await.unwrap();
    });
}

#[test]
fn timers_that_are_cancelled_leave_nothing() {
    on_both_hosts(async |engine, gate| {
        let (counter, waker) = counting();
        let known: Weak<Counter> = Arc::downgrade(&counter);
        drop(counter);
        let mut sleeps: Vec<_> = (0..10).map(|_| engine.sleep(LONG)).collect();
        let mut nops: Vec<_> = (0..10).map(|_| engine.nop().timeout(LONG)).collect();
        for sleep in &mut sleeps {
            assert!(poll_with(sleep, &waker).is_pending());
        }
        for nop in &mut nops {
            assert!(poll_with(nop, &waker).is_pending());
        }
        drop(waker);
        drop(sleeps.split_off(5));
        drop(nops.split_off(5));
        assert!(known.strong_count() > 0, "the others are still there");
        gate.open();
        for nop in nops {
            nop.await.expect("a day has not passed").unwrap();
        }
        drop(sleeps);
        until_turned("no waker is left", || known.strong_count() == 0).await;
    });
}

#[test]
fn a_timer_that_is_moved_to_another_thread_leaves_its_first_loop() {
    on_every_backend(|engine| {
        let (counter, waker) = counting();
        let known = Arc::downgrade(&counter);
        drop(counter);
        let left = engine.run(async {
            let mut dropped = engine.sleep(LONG);
            let mut moved = engine.sleep(LONG);
            assert!(poll_with(&mut dropped, &waker).is_pending());
            assert!(poll_with(&mut moved, &waker).is_pending());
            drop(waker);
            let moved = thread::scope(|scope| {
                let elsewhere = scope.spawn(|| {
                    drop(dropped);
                    assert!(poll_once(&mut moved).is_pending());
                    moved
                });
                elsewhere.join().unwrap()
            });
            until_turned("no waker is left", || known.strong_count() == 0).await;
            Some(moved)
        });
        drop(left.unwrap());
        drained(engine);
    });
}

#[test]
fn a_timer_goes_off_wherever_it_is() {
    on_every_backend(|engine| {
        let sleep = engine.run(async {
            let mut sleep = engine.sleep(SOON);
            assert!(poll_once(&mut sleep).is_pending());
            Some(sleep)
        });
        pollster::block_on(sleep.unwrap().unwrap()).unwrap();
        let mut sleep = engine.sleep(SOON);
        assert!(poll_once(&mut sleep).is_pending());
        engine.run(sleep).unwrap().unwrap();
        // In the loop of another engine.
        let other = Engine::new().unwrap();
        other.run(engine.sleep(SOON)).unwrap().unwrap();
        local::run(local::sleep(SOON).unwrap()).unwrap().unwrap();
    });
}

#[test]
fn the_newest_waker_of_a_timer_is_woken_and_the_others_are_let_go() {
    on_both_hosts(async |engine, gate| {
        gate.open();
        let (first, first_waker) = counting();
        let (second, second_waker) = counting();
        let mut sleep = engine.sleep(SOON);
        assert!(poll_with(&mut sleep, &first_waker).is_pending());
        if poll_with(&mut sleep, &second_waker).is_pending() {
            drop(first_waker);
            assert_eq!(Arc::strong_count(&first), 1, "the old waker is kept");
            until_turned("it goes off", || second.count() == 1).await;
            assert_eq!(first.count(), 0);
        }
        assert!(poll_with(&mut sleep, Waker::noop()).is_ready());
        in_flight(engine, 0).await;
    });
}

#[test]
fn timers_go_off_in_their_order() {
    on_every_backend(|engine| {
        let in_order = async || {
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut sleeps = [4, 1, 3, 2].map(|n| (n, engine.sleep(SOON * n)));
            for (n, sleep) in &mut sleeps {
                let (n, order) = (*n, Arc::clone(&order));
                let waker = telling(move |done| {
                    if done == Done::Woken {
                        order.lock().unwrap().push(n);
                    }
                });
                // One whose time has come is not told to anybody.
                if poll_with(sleep, &waker).is_ready() {
                    return true;
                }
            }
            until_turned("all are woken", || order.lock().unwrap().len() == 4).await;
            *order.lock().unwrap() == [1, 2, 3, 4]
        };
        // One that has not come to its driver in time, as where this thread waits for a processor,
        // goes off behind those that have.
        assert!((0..5).any(|_| pollster::block_on(in_order())));
        assert!(engine.run(in_order()).unwrap());
    });
}

#[test]
fn who_waits_for_ages_sleeps_meanwhile() {
    on_every_backend(|engine| {
        // More than a clock of the kernel counts, and more than an `Instant` does.
        for ages in [Duration::from_millis(u64::MAX), Duration::MAX] {
            let until_woken = || async {
                let mut sleep = engine.sleep(ages);
                let (is_over, mut waking) = (Arc::new(AtomicBool::new(false)), None);
                poll_fn(|context| {
                    let (waker, over) = (context.waker().clone(), Arc::clone(&is_over));
                    waking.get_or_insert_with(|| {
                        thread::spawn(move || {
                            thread::sleep(Duration::from_millis(20));
                            over.store(true, Ordering::SeqCst);
                            waker.wake();
                        })
                    });
                    assert!(poll_with(&mut sleep, context.waker()).is_pending());
                    match is_over.load(Ordering::SeqCst) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
            };
            let before = engine.stats().enters;
            engine.run(until_woken()).unwrap();
            pollster::block_on(until_woken());
            let enters = engine.stats().enters - before;
            assert!(enters < 500, "{enters} for two waits of {ages:?}");
        }
    });
}

/// Such a stream polls a future again only if it was woken.
#[test]
fn a_timer_goes_off_though_its_loop_has_ended() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let sleeps = [1, 20].map(|ms| engine.sleep(Duration::from_millis(ms)));
        let mut sleeps: FuturesUnordered<_> = sleeps.into_iter().collect();
        for _ in 0..2 {
            let slept = engine.run(sleeps.next()).expect("a loop can be had");
            slept
                .expect("there are two")
                .expect("it can be told the time");
        }
        // Nobody runs a loop.
        let mut sleeps: FuturesUnordered<_> = [engine.sleep(SOON)].into_iter().collect();
        let begun = engine.run(async { sleeps.next().now_or_never().is_some() });
        assert!(!begun.expect("a loop can be had"));
        let slept = pollster::block_on(sleeps.next());
        slept
            .expect("there is one")
            .expect("it can be told the time");
    });
}

#[test]
fn a_timer_of_an_outer_loop_goes_off_in_an_inner_one() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let outer = engine.run(async {
            let mut sleeps: FuturesUnordered<_> = [engine.sleep(SOON)].into_iter().collect();
            assert!(sleeps.next().now_or_never().is_none());
            let slept = engine.run(sleeps.next()).expect("a loop can be had");
            slept
                .expect("there is one")
                .expect("it can be told the time");
        });
        outer.expect("a loop can be had");
    });
}
