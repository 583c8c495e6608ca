//! Operations served by the threads of a tokio runtime: who serves them, and what becomes of them
//! when the runtime is gone, left, or busy with something else.

use std::future::{Future, IntoFuture};
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use inflight::fs::File;
use inflight::{BackendKind, BufPool, Engine, SetupError, local};
use tokio::runtime::{Builder, Runtime};

use super::hands::{Read, begun, check, drained, poll_once};
use super::refused::is_forked;
use crate::support::own::{in_forked_child, in_own_process};
use crate::support::{
    direct_file_or_skip, given_up, on_every_backend, pattern, skip, temp_file, threads_named,
    until, uring_of_depth_or_skip, uring_or_skip, with_memory,
};

/// A runtime of one thread, and one of two workers.
pub(crate) fn runtimes() -> [Runtime; 2] {
    let single = Builder::new_current_thread();
    let mut multi = Builder::new_multi_thread();
    multi.worker_threads(2);
    [single, multi].map(|mut builder| builder.enable_io().build().expect("a runtime"))
}

/// Has the runtime that is entered serve the engine.
fn serve(engine: &Engine) -> Result<(), SetupError> {
    let serve = || engine.serve_on_tokio();
    with_memory(serve, |served| {
        matches!(served, Err(SetupError::Memory { .. }))
    })
}

/// Runs a future in runtimes that serve the engine, if it has rings and there is locked memory for
/// theirs. That is not waited for, with rings that others may wait for: drivers do as well.
pub(crate) fn in_lanes<F: Future>(engine: &Engine, mut future: impl FnMut() -> F) {
    for runtime in runtimes() {
        in_lanes_of(engine, &runtime, future());
    }
}

/// As [`in_lanes`], in one of them.
pub(super) fn in_lanes_of(engine: &Engine, runtime: &Runtime, future: impl Future) {
    let served = runtime.block_on(async { engine.serve_on_tokio() });
    let has_lanes = matches!(engine.backend().kind, BackendKind::Uring | BackendKind::Aio);
    match served {
        Err(SetupError::Memory { .. }) => skip("a lane", "there is no locked memory left"),
        served => assert!(served.is_ok() || !has_lanes, "{served:?}"),
    }
    runtime.block_on(future);
    drained(engine);
}

/// A runtime that serves the engine.
pub(super) fn served(engine: &Engine, runtime: Runtime) -> Runtime {
    let entered = runtime.enter();
    serve(engine).expect("it has rings");
    drop(entered);
    runtime
}

/// 200 no-ops of each of so many tasks.
pub(super) fn run_nops(runtime: &Runtime, engine: &Engine, tasks: u32) {
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let engine = engine.clone();
            runtime.spawn(async move {
                for _ in 0..200 {
                    engine.nop().await.expect("a no-op cannot fail");
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("it does not panic");
        }
    });
}

#[test]
fn a_lane_needs_no_driver() {
    in_own_process(module_path!(), "a_lane_needs_no_driver", || {
        for runtime in runtimes() {
            let Some(engine) = uring_or_skip("a lane") else {
                return;
            };
            let runtime = served(&engine, runtime);
            run_nops(&runtime, &engine, 8);
            let content = pattern(8);
            let file = temp_file(&engine, &content);
            runtime.block_on(async { check(begun(&file, 8), &content).await });
            if !given_up(&engine, "has not polled its lane").is_empty() {
                return skip("a lane", "this machine is too busy to run its threads");
            }
            assert_eq!(threads_named("inflight-driver"), 0);
            assert_eq!(engine.stats().lane_operations, 8 * 200 + 8);
        }
    });
}

#[test]
fn a_runtime_is_served_again_after_its_lane_has_ended() {
    let Some(engine) = uring_or_skip("another lane") else {
        return;
    };
    let content = pattern(16);
    let file = temp_file(&engine, &content);
    let [single, _] = runtimes();
    let single = served(&engine, single);
    let kept = single.block_on(async { begun(&file, 1) });
    run_nops(&single, &engine, 1);
    if !given_up(&engine, "has not polled its lane").is_empty() {
        return skip(
            "another lane",
            "this machine is too busy to run its threads",
        );
    }
    // Nobody polls the lane's task: a driver takes over.
    pollster::block_on(check(begun_in(&single, &file), &content[..1]));
    assert_eq!(given_up(&engine, "has not polled its lane").len(), 1);
    single.block_on(async {
        // The task sees that the lane is not its own any more.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    });
    let before = engine.stats().lane_operations;
    let single = served(&engine, single);
    // The first one finds that the lane of old has ended.
    single.block_on(async { check(begun(&file, 16), &content).await });
    pollster::block_on(check(kept, &content[..1]));
    let served = engine.stats().lane_operations - before;
    assert_eq!(served, 15);
}

/// A read that is begun in a runtime which is not run.
fn begun_in<'f>(runtime: &Runtime, file: &'f File) -> Vec<Read<'f>> {
    let _entered = runtime.enter();
    begun(file, 1)
}

#[test]
fn what_many_tasks_ask_for_goes_to_the_kernel_together() {
    let Some(engine) = uring_of_depth_or_skip("enters of a lane", 64) else {
        return;
    };
    let [single, _] = runtimes();
    let single = served(&engine, single);
    let before = engine.stats();
    run_nops(&single, &engine, 32);
    let after = engine.stats();
    if !given_up(&engine, "has not polled its lane").is_empty() {
        return skip(
            "enters of a lane",
            "this machine is too busy to run its threads",
        );
    }
    if !given_up(&engine, "memory for a ring").is_empty() {
        return skip(
            "enters of a lane",
            "locked memory is too short for its ring",
        );
    }
    let operations = after.operations - before.operations;
    let enters = after.enters - before.enters;
    assert_eq!(operations, 32 * 200);
    assert!(enters * 16 <= operations, "{enters}: {after:?}");
}

#[test]
fn what_a_runtime_has_begun_outlives_it() {
    for turns in [0, 1, 20] {
        for runtime in runtimes() {
            let Some(engine) = uring_or_skip("the end of a runtime") else {
                return;
            };
            let content = pattern(600);
            let file = temp_file(&engine, &content);
            let runtime = served(&engine, runtime);
            let mut reads = runtime.block_on(async {
                let reads = begun(&file, 600);
                for _ in 0..turns {
                    local::yield_now().await;
                }
                reads
            });
            drop(reads.split_off(550));
            let late = reads.split_off(500);
            std::mem::forget(reads.split_off(450));
            drop(runtime);
            drop(late);
            pollster::block_on(check(reads, &content));
            drained(&engine);
            // The others go another way.
            pollster::block_on(check(begun(&file, 50), &content));
        }
    }
}

#[test]
fn a_runtime_that_is_left_or_forgotten_holds_nothing_up() {
    for runtime in runtimes() {
        let Some(engine) = uring_or_skip("a forgotten runtime") else {
            return;
        };
        let content = pattern(100);
        let file = temp_file(&engine, &content);
        let runtime = served(&engine, runtime);
        let is_single = {
            let handle = runtime.handle();
            handle.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread
        };
        let reads = runtime.block_on(async { begun(&file, 100) });
        std::mem::forget(runtime);
        pollster::block_on(check(reads, &content));
        // The workers of the other one go on, if the machine lets them.
        let taken = given_up(&engine, "has not polled its lane").len();
        assert!(taken == 1 || !is_single, "who has polled it?");
    }
}

#[test]
fn a_task_may_block_on_what_its_own_runtime_serves() {
    for runtime in runtimes() {
        let Some(engine) = uring_or_skip("a blocked runtime") else {
            return;
        };
        let content = pattern(100);
        let runtime = served(&engine, runtime);
        let there = engine.clone();
        let task = runtime.spawn(async move {
            let file = temp_file(&there, &content);
            for _ in 0..3 {
                pollster::block_on(check(begun(&file, 100), &content));
            }
        });
        runtime.block_on(task).expect("it does not panic");
        // Whoever takes over serves the others too.
        run_nops(&runtime, &engine, 32);
    }
}

#[test]
fn what_one_runtime_has_begun_is_awaited_in_another_and_on_a_thread_that_ends() {
    let Some(engine) = uring_or_skip("two runtimes") else {
        return;
    };
    let content = pattern(300);
    let file = temp_file(&engine, &content);
    let [single, multi] = runtimes().map(|runtime| served(&engine, runtime));
    let reads = multi.block_on(async { begun(&file, 300) });
    single.block_on(check(reads, &content));
    let reads = single.block_on(async { begun(&file, 300) });
    multi.block_on(check(reads, &content));
    // Begun in the runtime by a thread that is none of its own, and ends.
    let reads = thread::scope(|scope| {
        let begin = || {
            let _entered = multi.enter();
            begun(&file, 300)
        };
        scope.spawn(begin).join().expect("it does not panic")
    });
    pollster::block_on(check(reads, &content));
    // Nested, as far as tokio allows it: a runtime beside another, and a loop in a runtime.
    multi.block_on(async {
        let inner = begun(&file, 50);
        engine.run(check(begun(&file, 50), &content)).unwrap();
        check(inner, &content).await;
    });
}

#[test]
fn an_engine_may_go_with_its_operations_in_flight_in_a_lane() {
    for runtime in runtimes() {
        let Some(engine) = uring_or_skip("the end of an engine") else {
            return;
        };
        let pool = BufPool::new(64, 4096).expect("there is memory");
        let file = temp_file(&engine, &pattern(64));
        let runtime = served(&engine, runtime);
        runtime.block_on(async {
            for at in 0..64 {
                let buf = pool.take().expect("one for each");
                let mut read = file
                    .read_vectored_at(vec![buf], at)
                    .by_backend()
                    .into_future();
                assert!(poll_once(&mut read).is_pending());
            }
        });
        drop((file, engine));
        let back: Vec<_> = iter::from_fn(|| pool.take()).collect();
        assert_eq!(back.len(), 64, "some are still kept");
        drop(runtime);
    }
}

#[test]
fn where_there_are_no_rings_drivers_serve_and_say_why() {
    let threads = Engine::builder().backend(BackendKind::Threads).build();
    let engine = threads.expect("threads can be had");
    if engine.backend().kind != BackendKind::Threads {
        return skip(
            "drivers where there are no rings",
            "INFLIGHT_BACKEND is set",
        );
    }
    for runtime in runtimes() {
        runtime.block_on(async {
            engine.serve_on_tokio().expect_err("there are no rings");
            let content = pattern(50);
            let file = temp_file(&engine, &content);
            check(begun(&file, 50), &content).await;
        });
    }
    assert_eq!(given_up(&engine, "no lane").len(), 1);
}

#[test]
fn outside_a_runtime_it_is_said_where_to_call_and_nothing_is_given_up() {
    on_every_backend(|engine| {
        let before = engine.stats().fallbacks;
        let refused = pollster::block_on(async { engine.serve_on_tokio() });
        let refusal = refused.expect_err("there is no runtime");
        let told = refusal.to_string();
        assert!(told.contains("block_on"), "{told}");
        assert!(!told.contains("io_uring"), "{told}");
        assert_eq!(engine.stats().fallbacks, before);
    });
}

#[test]
fn a_runtime_without_io_is_a_mistake_that_harms_nobody() {
    let Some(engine) = uring_or_skip("a runtime without I/O") else {
        return;
    };
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let serve = AssertUnwindSafe(|| engine.serve_on_tokio());
        assert!(catch_unwind(serve).is_err());
        let content = pattern(50);
        let file = temp_file(&engine, &content);
        check(begun(&file, 50), &content).await;
    });
    assert_eq!(engine.stats().in_flight, 0);
}

#[test]
fn a_forked_child_leaves_the_lanes_of_its_parent_alone() {
    let test = "a_forked_child_leaves_the_lanes_of_its_parent_alone";
    in_own_process(module_path!(), test, || {
        for runtime in runtimes() {
            let Some(engine) = uring_or_skip("a fork") else {
                return;
            };
            let content = pattern(64);
            let file = temp_file(&engine, &content);
            let runtime = served(&engine, runtime);
            let mut reads = runtime.block_on(async { begun(&file, 64) });
            in_forked_child(|| {
                for read in &mut reads[..10] {
                    assert!(is_forked(poll_once(read).map(|(result, _)| result)));
                }
                drop(std::mem::take(&mut reads));
                let _entered = runtime.enter();
                assert!(is_forked(poll_once(&mut engine.nop().into_future())));
                engine.serve_on_tokio().expect_err("it is the parent's");
            });
            runtime.block_on(check(reads, &content));
        }
    });
}

/// Waits until no driver thread is left.
pub(super) fn drivers_end() {
    until("no driver is left", || {
        threads_named("inflight-driver") == 0
    });
}

#[test]
fn a_lane_reads_more_parts_than_its_ring_has_places() {
    let this = "a_lane_reads_more_parts_than_its_ring_has_places";
    in_own_process(module_path!(), this, || {
        for runtime in runtimes() {
            let narrow = Engine::builder().queue_depth(2).build();
            let engine = narrow.expect("nothing is demanded");
            if engine.backend().kind != BackendKind::Uring {
                return skip("many parts", "there are no rings");
            }
            let data = pattern(20 << 20);
            let Some(file) = direct_file_or_skip("many parts", &engine, &data) else {
                return;
            };
            let runtime = served(&engine, runtime);
            runtime.block_on(async {
                let read = |offset| {
                    let buf = file.aligned_buf(data.len()).expect("there is memory");
                    file.read_at(buf, offset).into_future()
                };
                let mut reads = [0, 4096, 8192].map(read);
                for read in &mut reads {
                    assert!(poll_once(read).is_pending());
                }
                for (skipped, read) in [0, 4096, 8192].into_iter().zip(reads) {
                    let (result, buf) = read.await;
                    assert_eq!(result.expect("it is done"), data.len() - skipped);
                    assert!(buf[..data.len() - skipped] == data[skipped..]);
                }
            });
        }
    });
}

#[test]
fn a_task_may_block_on_what_its_lane_was_about_to_hand_over() {
    let this = "a_task_may_block_on_what_its_lane_was_about_to_hand_over";
    in_own_process(module_path!(), this, || {
        let Some(engine) = uring_of_depth_or_skip("a lane that gathers", 64) else {
            return;
        };
        let [single, _] = runtimes();
        let single = served(&engine, single);
        // From now on the lane lets others have their turn before it hands over what has come.
        run_nops(&single, &engine, 32);
        let there = engine.clone();
        let task = single.spawn(async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let mut nop = there.nop().into_future();
            assert!(poll_once(&mut nop).is_pending());
            // Its turn comes after that of the lane, and this one's next before the lane's next.
            let other = tokio::spawn(async {});
            other.await.expect("it does not panic");
            pollster::block_on(nop).expect("a no-op cannot fail");
        });
        single.block_on(task).expect("it does not panic");
    });
}

#[test]
fn a_driver_that_has_taken_a_lane_over_ends_with_its_runtime() {
    let this = "a_driver_that_has_taken_a_lane_over_ends_with_its_runtime";
    in_own_process(module_path!(), this, || {
        let Some(engine) = uring_or_skip("a late runtime") else {
            return;
        };
        let [single, _] = runtimes();
        let single = served(&engine, single);
        let entered = single.enter();
        let mut nop = engine.nop().into_future();
        assert!(poll_once(&mut nop).is_pending());
        drop(entered);
        // Nobody has polled the lane's task yet.
        pollster::block_on(nop).expect("a no-op cannot fail");
        assert_eq!(given_up(&engine, "has not polled its lane").len(), 1);
        assert_eq!(threads_named("inflight-driver"), 1);
        single.block_on(tokio::task::yield_now());
        drop(single);
        drivers_end();
    });
}

#[test]
fn a_lane_may_be_used_while_a_panic_unwinds() {
    struct Tidies(Engine, Runtime);
    impl Drop for Tidies {
        fn drop(&mut self) {
            self.1
                .block_on(async { self.0.nop().await })
                .expect("a no-op cannot fail");
        }
    }
    let test = "a_lane_may_be_used_while_a_panic_unwinds";
    in_own_process(module_path!(), test, || {
        for runtime in runtimes() {
            let Some(engine) = uring_or_skip("a panic") else {
                return;
            };
            let runtime = served(&engine, runtime);
            let tidies = Tidies(engine.clone(), runtime);
            let panics = AssertUnwindSafe(|| {
                let _tidies = tidies;
                panic!("as planned");
            });
            assert!(catch_unwind(panics).is_err());
            assert_eq!(engine.stats().in_flight, 0);
        }
    });
}

#[test]
fn a_lane_that_is_kept_busy_lets_other_tasks_go_on() {
    let this = "a_lane_that_is_kept_busy_lets_other_tasks_go_on";
    in_own_process(module_path!(), this, || {
        let Some(engine) = uring_or_skip("a busy lane") else {
            return;
        };
        let [single, _] = runtimes();
        let single = served(&engine, single);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _entered = single.enter();
                    while !is_over.load(Ordering::Relaxed) {
                        let mut nops = [(); 16].map(|()| engine.nop().into_future());
                        for nop in &mut nops {
                            let _ = poll_once(nop);
                        }
                    }
                });
            }
            single.block_on(async {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            });
            is_over.store(true, Ordering::Relaxed);
        });
        drained(&engine);
    });
}

#[test]
fn a_lane_outlives_the_thread_that_has_opened_it() {
    let Some(engine) = uring_or_skip("a thread that ends") else {
        return;
    };
    for runtime in runtimes() {
        let runtime = thread::scope(|scope| {
            let served = scope.spawn(|| served(&engine, runtime));
            served.join().expect("it does not panic")
        });
        let content = pattern(100);
        let file = temp_file(&engine, &content);
        let reads = runtime.block_on(async {
            check(begun(&file, 100), &content).await;
            begun(&file, 100)
        });
        drop(runtime);
        pollster::block_on(check(reads, &content));
        drained(&engine);
    }
}
