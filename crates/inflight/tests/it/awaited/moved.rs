//! Futures that begin in a run loop and go on elsewhere, and the other way round.

use std::future::{Future, IntoFuture, pending};
use std::io;
use std::pin::Pin;
#[cfg(feature = "faulty")]
use std::sync::Arc;
use std::sync::Mutex;
#[cfg(feature = "faulty")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use inflight::local;

#[cfg(feature = "faulty")]
use super::hands::Gate;
use super::hands::{Done, begun, check, counting, poll_once, poll_with, telling, until_turned};
use crate::support::{on_every_backend, pattern, temp_file};

#[test]
fn what_a_loop_has_begun_can_be_awaited_after_its_end() {
    on_every_backend(|engine| {
        let content = pattern(200);
        let file = temp_file(engine, &content);
        let begin = || engine.run(async { begun(&file, 200) }).unwrap();
        pollster::block_on(check(begin(), &content));
        engine.run(check(begin(), &content)).unwrap();
        let reads = begin();
        thread::scope(|scope| {
            scope.spawn(|| pollster::block_on(check(reads, &content)));
        });
        // Dropped after the end, here and there, and forgotten.
        let mut reads = begin();
        let there = reads.split_off(100);
        thread::scope(|scope| _ = scope.spawn(|| drop(there)));
        std::mem::forget(reads.split_off(50));
        drop(reads);
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn what_a_driver_has_begun_can_be_awaited_in_a_loop() {
    on_every_backend(|engine| {
        let content = pattern(200);
        let file = temp_file(engine, &content);
        let reads = begun(&file, 200);
        engine.run(check(reads, &content)).unwrap();
    });
}

#[test]
fn what_a_loop_has_begun_can_be_awaited_and_dropped_on_another_thread_meanwhile() {
    on_every_backend(|engine| {
        let content = pattern(200);
        let file = temp_file(engine, &content);
        thread::scope(|scope| {
            let run = engine.run(async {
                for _ in 0..5 {
                    let mut reads = begun(&file, 200);
                    let dropped = reads.split_off(150);
                    let back = reads.split_off(100);
                    let content = &content;
                    let there = scope.spawn(move || {
                        drop(dropped);
                        let mut back = back;
                        // Polled here, and taken back before they are over or after.
                        back.retain_mut(|read| poll_once(read).is_pending());
                        pollster::block_on(check(reads, content));
                        back
                    });
                    until_turned("it is done there", || there.is_finished()).await;
                    for read in there.join().unwrap() {
                        assert_eq!(read.await.0.unwrap(), 1);
                    }
                }
            });
            run.unwrap();
        });
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn the_newest_waker_is_woken_when_the_answer_was_there_before_it() {
    on_every_backend(|engine| {
        let run = engine.run(async {
            let mut moved = engine.nop().into_future();
            assert!(poll_once(&mut moved).is_pending());
            let before = engine.stats().operations;
            until_turned("answered", || engine.stats().operations > before).await;
            let (first, first_waker) = counting();
            let (second, second_waker) = counting();
            // The loop does not look meanwhile.
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(poll_with(&mut moved, &first_waker).is_pending());
                    assert!(poll_with(&mut moved, &second_waker).is_pending());
                });
            });
            until_turned("the second is woken", || second.count() > 0).await;
            let _ = first;
            thread::scope(|scope| {
                let polled = scope.spawn(|| poll_once(&mut moved));
                assert!(polled.join().unwrap().is_ready());
            });
        });
        run.unwrap();
    });
}

/// In which order a loop hears of several is left to chance, so this is tried some times.
#[cfg(feature = "faulty")]
#[test]
fn a_waker_that_polls_another_future_at_home_does_not_leave_it_with_an_older_one() {
    for _ in 0..12 {
        let (gate, engine) = Gate::closed(|builder| builder);
        gate.open();
        let run = engine.run(async {
            let mut first = engine.nop().into_future();
            assert!(poll_once(&mut first).is_pending());
            let before = engine.stats().operations;
            until_turned("answered", || engine.stats().operations > before).await;
            gate.close();
            let own = engine.clone();
            let second: Moved = Box::pin(async move { own.nop().await });
            let second = Arc::new(Mutex::new(second));
            assert!(poll_once(&mut *second.lock().unwrap()).is_pending());
            let (newest, newest_waker) = counting();
            let (is_home, was_polled) = (Arc::clone(&second), Arc::new(AtomicBool::new(false)));
            let polled = Arc::clone(&was_polled);
            let takes_home = telling(move |done| {
                if done == Done::Woken {
                    let polls = poll_with(&mut *is_home.lock().unwrap(), &newest_waker);
                    polled.store(polls.is_pending(), Ordering::SeqCst);
                }
            });
            // The loop does not look meanwhile.
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(poll_with(&mut first, &takes_home).is_pending());
                    assert!(poll_once(&mut *second.lock().unwrap()).is_pending());
                });
            });
            until_turned("polled at home", || was_polled.load(Ordering::SeqCst)).await;
            gate.open();
            until_turned("the newest is woken", || newest.count() > 0).await;
            assert!(poll_once(&mut *second.lock().unwrap()).is_ready());
        });
        run.unwrap();
    }
}

type Moved = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
type Kept = Mutex<Vec<Moved>>;

#[test]
fn what_is_begun_while_a_loop_ends_is_answered_all_the_same() {
    static KEPT: Kept = Mutex::new(Vec::new());
    on_every_backend(|engine| {
        let begin = {
            let engine = engine.clone();
            move || {
                let engine = engine.clone();
                let mut nop: Moved = Box::pin(async move { engine.nop().await });
                if poll_once(&mut nop).is_pending() {
                    KEPT.lock().unwrap().push(nop);
                }
            }
        };
        let (again, from_timer) = (begin.clone(), begin.clone());
        let mut watched = engine.nop().into_future();
        let mut sleep = engine.sleep(Duration::from_secs(3600));
        let run = engine.run(async {
            // By a task that is dropped, by one that this one spawns, by a timer's waker, and by
            // the waker of a message that comes when the main future is over.
            drop(local::spawn(async move {
                let _begins = OnDrop(move || {
                    again();
                    let _begins = OnDrop(again.clone());
                    drop(local::spawn(async move {
                        let _moved = &_begins;
                        pending::<()>().await;
                    }));
                });
                pending::<()>().await;
            }));
            local::yield_now().await;
            let waker = telling(move |done| {
                if done == Done::Dropped {
                    from_timer();
                }
            });
            assert!(poll_with(&mut sleep, &waker).is_pending());
            assert!(poll_once(&mut watched).is_pending());
            let before = engine.stats().operations;
            until_turned("answered", || engine.stats().operations > before).await;
            let waker = telling(move |done| {
                if done == Done::Woken {
                    begin();
                }
            });
            thread::scope(|scope| {
                scope.spawn(|| assert!(poll_with(&mut watched, &waker).is_pending()));
            });
        });
        run.unwrap();
        drop(sleep);
        let kept = std::mem::take(&mut *KEPT.lock().unwrap());
        assert!(kept.len() >= 4, "{} begun", kept.len());
        for nop in kept {
            pollster::block_on(nop).unwrap();
        }
        pollster::block_on(watched).unwrap();
        assert_eq!(engine.stats().in_flight, 0);
    });
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
