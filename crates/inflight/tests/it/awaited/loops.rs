//! Run loops: nested, ended by panics, woken from everywhere.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;

use inflight::{Engine, local};

use super::hands::{Done, counting, drained, poll_once, poll_with, telling, until_turned};
use crate::support::{on_every_backend, pattern, read_write, temp_file, temp_path};

/// Panics without a report.
fn bang() -> ! {
    resume_unwind(Box::new("bang"))
}

async fn reads_rightly(engine: &Engine) {
    let file = temp_file(engine, &pattern(600));
    let (result, bufs) = file
        .read_vectored_at(vec![vec![0; 600]], 0)
        .by_backend()
        .await;
    assert_eq!(result.expect("it is done"), 600);
    assert_eq!(bufs[0], pattern(600));
}

#[test]
fn loops_may_be_nested() {
    on_every_backend(|engine| {
        let other = Engine::new().unwrap();
        let outer = engine.run(async {
            let mut begun = engine.nop().into_future();
            assert!(poll_once(&mut begun).is_pending());
            engine.run(reads_rightly(engine)).unwrap();
            other.run(reads_rightly(&other)).unwrap();
            // Of this engine in a loop of the other, and one loop deeper.
            other.run(reads_rightly(engine)).unwrap();
            let inner = other.run(async { engine.run(reads_rightly(&other)) });
            inner.unwrap().unwrap();
            // Dropped, and begun, one loop deeper.
            let mut dropped = engine.nop().into_future();
            assert!(poll_once(&mut dropped).is_pending());
            let inner = engine.run(async move {
                drop(dropped);
                let mut moved = engine.nop().into_future();
                assert!(poll_once(&mut moved).is_pending());
                Some(moved)
            });
            begun.await.unwrap();
            inner.unwrap().unwrap().await.unwrap();
            reads_rightly(engine).await;
            // This loop is the one of the thread again.
            local::spawn(local::yield_now()).await;
        });
        outer.unwrap();
    });
}

#[test]
fn a_task_that_is_always_ready_does_not_keep_the_others_from_their_completions() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true).open(path.path());
        let file = Rc::new(options.unwrap());
        let run = engine.run(async {
            let is_over = Rc::new(Cell::new(false));
            let (file, over) = (Rc::clone(&file), Rc::clone(&is_over));
            let written = local::spawn(async move {
                for n in 0..5 {
                    file.write_all_at(vec![1; 4096], n * 4096).await.0.unwrap();
                    file.sync_data().await.unwrap();
                }
                over.set(true);
            });
            until_turned("written", || is_over.get()).await;
            written.await;
        });
        run.unwrap();
    });
}

#[test]
fn a_panic_of_a_task_goes_to_whom_awaits_it_and_the_loop_goes_on() {
    on_every_backend(|engine| {
        let run = engine.run(async {
            let nobody = local::spawn(async { bang() });
            drop(nobody);
            let bad = local::spawn(async {
                reads_rightly(engine_of_test()).await;
                bang()
            });
            let good = local::spawn(reads_rightly(engine_of_test()));
            let mut bad = bad;
            let caught = std::future::poll_fn(|cx| {
                let polled = catch_unwind(AssertUnwindSafe(|| poll_with(&mut bad, cx.waker())));
                match polled {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(())) => Poll::Ready(false),
                    Err(_) => Poll::Ready(true),
                }
            });
            assert!(caught.await, "the panic was lost");
            good.await;
        });
        run.unwrap();
    });
}

/// Tasks are `'static`.
fn engine_of_test() -> &'static Engine {
    Engine::global().expect("nothing is demanded")
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        bang();
    }
}

#[test]
fn tasks_results_and_wakers_that_panic_when_dropped_do_not_end_the_loop() {
    on_every_backend(|engine| {
        let run = engine.run(async {
            // Its future, its result, its panic.
            let bomb = Bomb;
            drop(local::spawn(async move {
                let _bomb = bomb;
                local::yield_now().await;
            }));
            drop(local::spawn(async { Bomb }));
            drop(local::spawn(async { resume_unwind(Box::new(Bomb)) }));
            // Whom it wakes.
            let mut joined = local::spawn(local::yield_now());
            let bad = telling(|done| {
                if done == Done::Woken {
                    bang();
                }
            });
            assert!(poll_with(&mut joined, &bad).is_pending());
            // Left when the loop ends.
            let bomb = Bomb;
            drop(local::spawn(async move {
                let _bomb = bomb;
                pending::<()>().await;
            }));
            (0..5).for_each(|_| drop(local::spawn(local::yield_now())));
            for _ in 0..5 {
                local::yield_now().await;
            }
            joined.await;
            reads_rightly(engine).await;
        });
        run.unwrap();
        engine.run(reads_rightly(engine)).unwrap();
    });
}

#[test]
fn when_the_main_future_panics_what_is_in_flight_is_waited_for() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let file = Rc::new(crate::support::open(engine, path.path()));
        let dropped = Rc::new(Cell::new(0));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.run(async {
                for n in 0..10 {
                    let (file, dropped) = (Rc::clone(&file), Rc::clone(&dropped));
                    drop(local::spawn(async move {
                        let _counted = Counted(dropped);
                        file.write_all_at(vec![7; 512], n * 512).await.0.unwrap();
                        pending::<()>().await;
                    }));
                }
                local::yield_now().await;
                bang();
            })
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "bang");
        assert_eq!(dropped.get(), 10, "tasks are left");
        assert_eq!(Rc::strong_count(&file), 1);
        assert_eq!(engine.stats().in_flight, 0);
        engine.run(reads_rightly(engine)).unwrap();
    });
}

struct Counted(Rc<Cell<u32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Spawns when it is dropped, as often as that.
struct Respawns(u32, Rc<Cell<u32>>);

impl Drop for Respawns {
    fn drop(&mut self) {
        self.1.set(self.1.get() + 1);
        if self.0 > 0 {
            let next = Self(self.0 - 1, Rc::clone(&self.1));
            drop(local::spawn(async move {
                let _next = next;
                pending::<()>().await;
            }));
        }
    }
}

#[test]
fn tasks_may_spawn_when_they_are_dropped_at_the_end_of_the_loop() {
    on_every_backend(|engine| {
        let dropped = Rc::new(Cell::new(0));
        let respawns = Respawns(20, Rc::clone(&dropped));
        let run = engine.run(async move {
            drop(local::spawn(async move {
                let _respawns = respawns;
                pending::<()>().await;
            }));
            local::yield_now().await;
        });
        run.unwrap();
        assert_eq!(dropped.get(), 21);
    });
}

#[test]
fn a_handle_that_outlives_its_loop_says_so_or_has_the_result() {
    on_every_backend(|engine| {
        let handles = engine.run(async {
            let left = local::spawn(pending::<()>());
            let over = local::spawn(async { 7 });
            local::yield_now().await;
            (left, over)
        });
        let (mut left, mut over) = handles.unwrap();
        assert!(matches!(poll_once(&mut over), Poll::Ready(7)));
        assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut left))).is_err());
    });
}

#[test]
fn a_hundred_thousand_tasks_may_be_left_at_the_end() {
    let dropped = Rc::new(Cell::new(0));
    let counted = Rc::clone(&dropped);
    let run = Engine::new().unwrap().run(async move {
        for _ in 0..100_000 {
            let counted = Counted(Rc::clone(&counted));
            drop(local::spawn(async move {
                let _counted = counted;
                pending::<()>().await;
            }));
        }
    });
    run.unwrap();
    assert_eq!(dropped.get(), 100_000);
}

#[test]
fn a_task_may_be_woken_from_many_threads_at_once() {
    const WAKES: u32 = 5000;
    on_every_backend(|engine| {
        let run = engine.run(async {
            let (counter, _) = counting();
            let threads = Cell::new(Vec::new());
            std::future::poll_fn(|cx| {
                let mut started = threads.take();
                if started.is_empty() {
                    started = (0..4)
                        .map(|_| {
                            let (waker, counter) = (cx.waker().clone(), Arc::clone(&counter));
                            thread::spawn(move || storm(&waker, &counter))
                        })
                        .collect();
                }
                threads.set(started);
                match counter.count() == 4 * u64::from(WAKES) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            for thread in threads.take() {
                thread.join().unwrap();
            }
        });
        run.unwrap();
    });

    fn storm(waker: &Waker, counter: &Arc<super::hands::Counter>) {
        for _ in 0..WAKES {
            Waker::from(Arc::clone(counter)).wake();
            waker.wake_by_ref();
        }
    }
}

#[test]
fn a_waker_that_outlives_its_loop_does_nothing() {
    on_every_backend(|engine| {
        let kept = RefCell::new(None);
        let keep = std::future::poll_fn(|cx| {
            *kept.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        });
        engine.run(keep).unwrap();
        let waker = kept.take().unwrap();
        waker.wake_by_ref();
        thread::scope(|scope| _ = scope.spawn(|| waker.wake_by_ref()));
        engine
            .run(async {
                waker.wake_by_ref();
                engine.nop().await.unwrap();
            })
            .unwrap();
        waker.wake();
    });
}

#[test]
fn a_loop_may_run_in_the_task_of_another_runtime() {
    on_every_backend(|engine| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).build().unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let engine = engine.clone();
                runtime.spawn(async move {
                    engine.run(reads_rightly(&engine)).unwrap();
                    reads_rightly(&engine).await;
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        drained(engine);
    });
}
