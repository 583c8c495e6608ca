//! Loops in loops: what the outer one has begun, awaited in the inner one.

use std::future::{Future, IntoFuture, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use inflight::fs::File;
use inflight::{Engine, local};

use super::hands::{Watchdog, begun, check, poll_once, poll_with, until_turned};
use crate::support::{on_every_backend, on_every_backend_of, pattern, skip, temp_file};

#[test]
fn what_an_outer_loop_has_begun_is_answered_in_an_inner_one() {
    let _watchdog = Watchdog::new();
    // The queue holds fewer, so that some are handed over by the inner loop.
    on_every_backend_of(
        |builder| builder.queue_depth(8),
        |engine| {
            let other = Engine::new().unwrap();
            let content = pattern(40);
            let file = temp_file(engine, &content);
            let outer = engine.run(async {
                let (one, two) = (begun(&file, 40), begun(&file, 40));
                engine.run(check(one, &content)).unwrap();
                let inner = other.run(async { other.run(check(two, &content)) });
                inner.unwrap().unwrap();
                // It goes on.
                check(begun(&file, 40), &content).await;
            });
            outer.unwrap();
            assert_eq!(engine.stats().in_flight, 0);
        },
    );
}

#[test]
fn an_inner_loop_that_is_never_idle_answers_them_as_well() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let outer = engine.run(async {
            let mut nop = engine.nop().into_future();
            assert!(poll_once(&mut nop).is_pending());
            let inner = engine.run(async {
                drop(local::spawn(async {
                    loop {
                        local::yield_now().await;
                    }
                }));
                nop.await
            });
            inner.unwrap().unwrap();
        });
        outer.unwrap();
    });
}

#[test]
fn an_inner_loop_that_makes_one_flush_after_another_answers_them_as_well() {
    /// Between two of them it has a turn for the others.
    const FLUSHES_MAX: u32 = 16;
    let _watchdog = Watchdog::new();
    // A loop makes only those itself that are known to be short.
    let Ok(in_memory) = tempfile::tempfile_in("/dev/shm") else {
        return skip("flushes in an inner loop", "there are no files in memory");
    };
    on_every_backend(|engine| {
        let other = Engine::new().unwrap();
        let file = File::from_std(&other, in_memory.try_clone().unwrap()).unwrap();
        let outer = engine.run(async {
            let before = engine.stats().operations;
            let mut nop = engine.nop().into_future();
            assert!(poll_once(&mut nop).is_pending());
            let inner = other.run(async {
                file.sync_data().await.unwrap();
                until_turned("the no-op is over", || engine.stats().operations > before).await;
                // It remains to be asked for, of a loop that does not run.
                let mut flushes = 0;
                while poll_once(&mut nop).is_pending() {
                    assert!(flushes < FLUSHES_MAX, "the outer loop is not served");
                    file.sync_data().await.unwrap();
                    flushes += 1;
                }
            });
            inner.unwrap();
        });
        outer.unwrap();
    });
}

#[test]
fn closing_in_an_inner_loop_waits_for_what_the_outer_one_has_in_flight() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let content = pattern(2);
        let (file, other) = (temp_file(engine, &content), Engine::new().unwrap());
        let outer = engine.run(async {
            // One is dropped in the outer loop and one in the inner.
            let reads = [&file; 2].map(|file| {
                let owned = file.read_vectored_at(vec![vec![0; 1]], 0).by_backend();
                owned.into_future()
            });
            let [mut one, mut two] = reads;
            assert!(poll_once(&mut one).is_pending() && poll_once(&mut two).is_pending());
            drop(one);
            other.run(async move { drop(two) }).unwrap();
        });
        outer.unwrap();
        let outer = engine.run(async {
            let mut read = file
                .read_vectored_at(vec![vec![0; 1]], 0)
                .by_backend()
                .into_future();
            assert!(poll_once(&mut read).is_pending());
            drop(read);
            other.run(file.close().into_future()).unwrap()
        });
        outer.unwrap().unwrap();
    });
}

#[test]
fn a_blocking_close_in_an_inner_loop_waits_for_what_the_outer_one_has_in_flight() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let (file, other) = (temp_file(engine, &pattern(2)), Engine::new().unwrap());
        let outer = engine.run(async {
            let mut read = file
                .read_vectored_at(vec![vec![0; 1]], 0)
                .by_backend()
                .into_future();
            assert!(poll_once(&mut read).is_pending());
            drop(read);
            other.run(async { file.close().wait() }).unwrap()
        });
        outer.unwrap().unwrap();
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn a_future_of_an_outer_loop_is_answered_on_another_thread_meanwhile() {
    const ROUNDS: u32 = 20;
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let outer = engine.run(async {
            for round in 0..ROUNDS {
                let mut nop = engine.nop().into_future();
                assert!(poll_once(&mut nop).is_pending());
                let (say, hear) = smol::channel::bounded(1);
                let run = move || {
                    // The inner loop sleeps by then, or does not, and has the answer, or has not.
                    (0..round).for_each(|_| thread::yield_now());
                    let result = pollster::block_on(nop);
                    say.send_blocking(result).expect("the inner loop runs");
                };
                let inner = thread::scope(|scope| {
                    scope.spawn(run);
                    engine.run(async { hear.recv().await })
                });
                inner.unwrap().unwrap().unwrap();
            }
        });
        outer.unwrap();
    });
}

#[test]
fn an_inner_loop_that_could_only_wait_for_an_outer_task_is_refused() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let other = Engine::new().unwrap();
        let outer = engine.run(async {
            for is_in_a_task in [false, true] {
                let mut task = local::spawn(async { 7 });
                let refused = catch_unwind(AssertUnwindSafe(|| {
                    let task = &mut task;
                    other.run(async {
                        if is_in_a_task {
                            // Neither does what somebody else has in flight keep it.
                            drop(local::spawn(async { local::yield_now().await }));
                            engine.nop().await.expect("a no-op cannot fail");
                        }
                        task.await
                    })
                }));
                let why = refused.unwrap_err().downcast::<String>().unwrap();
                assert!(why.contains("nested in"), "{why}");
                assert_eq!(task.await, 7);
            }
        });
        outer.unwrap();
    });
}

#[test]
fn an_inner_loop_may_wait_for_an_outer_task_or_something_else() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let outer = engine.run(async {
            let mut task = local::spawn(async { 7 });
            let mut begun = engine.nop().into_future();
            assert!(poll_once(&mut begun).is_pending());
            let (say, hear) = smol::channel::bounded(1);
            thread::scope(|scope| {
                let select = async {
                    assert!(either(&mut task, engine.nop().into_future()).await);
                    assert!(either(&mut task, begun).await);
                    let sleep = engine.sleep(Duration::from_millis(1));
                    assert!(either(&mut task, sleep).await);
                    scope.spawn(move || {
                        (0..100).for_each(|_| thread::yield_now());
                        say.send_blocking(()).expect("it listens");
                    });
                    let heard = pin!(hear.recv());
                    assert!(either(&mut task, heard).await);
                };
                engine.run(select).unwrap();
            });
            assert_eq!(task.await, 7);
        });
        outer.unwrap();
    });
}

/// What a combinator does that looks after several futures.
struct InBetween(Waker);

impl Wake for InBetween {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

#[test]
fn an_inner_loop_whose_combinator_waits_for_an_outer_task_too_is_not_refused() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let outer = engine.run(async {
            let mut task = local::spawn(async { 7 });
            let (say, hear) = smol::channel::bounded(1);
            thread::scope(|scope| {
                scope.spawn(move || {
                    // By then the inner loop has found more than once that nothing is in flight.
                    thread::sleep(Duration::from_millis(20));
                    say.send_blocking(()).expect("it listens");
                });
                let mut heard = pin!(hear.recv());
                let both = poll_fn(|cx| {
                    let waker = Waker::from(Arc::new(InBetween(cx.waker().clone())));
                    assert!(poll_with(&mut task, &waker).is_pending());
                    poll_with(&mut heard, &waker)
                });
                engine.run(both).unwrap().unwrap();
            });
            assert_eq!(task.await, 7);
        });
        outer.unwrap();
    });
}

/// Whether the second is ready and the first is not.
async fn either(one: &mut local::JoinHandle<i32>, mut other: impl Future + Unpin) -> bool {
    poll_fn(|cx| match poll_with(one, cx.waker()) {
        Poll::Ready(_) => Poll::Ready(false),
        Poll::Pending => poll_with(&mut other, cx.waker()).map(|_| true),
    })
    .await
}
