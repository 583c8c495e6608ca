//! What an awaited operation costs when everything is warm, and what an engine does when there is
//! nothing to do: nothing. Counts only.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::future::IntoFuture;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use inflight::fs::Direct;
use inflight::{BackendKind, Batch, Builder, Engine, local};

use super::hands::{drained, poll_once};
use crate::denied::limits::locked_memory_is_scarce;
use crate::steady::allocations::{allocations, allocations_of_all};
use crate::support::own::in_own_process;
use crate::support::{
    pattern, read_write, say, skip, temp_file, temp_path, uring_of_depth_or_skip,
};

const PAGE: usize = 4096;
const TASKS: u64 = 32;
const EACH: u64 = 200;
const SOON: Duration = Duration::from_millis(20);
/// One second in which nothing wakes up, out of so many, is enough.
const QUIET_SECONDS_MAX: usize = 20;

fn engines(name: &str) -> Vec<Engine> {
    let threads = Engine::builder().backend(BackendKind::Threads).threads(2);
    uring_of_depth_or_skip(name, 64)
        .into_iter()
        .chain([threads.build().expect("nothing is demanded")])
        .collect()
}

/// Runs `once` in many tasks of a loop, and yields the allocations of the stretch with the fewest:
/// what other tests do may make lists longer than they have been before.
fn allocations_in_a_loop(engine: &Engine, once: impl AsyncFn(u64) + 'static) -> u64 {
    const STRETCH: u64 = 64 * TASKS;
    const STRETCHES: u64 = 8;
    let once = Rc::new(once);
    let [done, before, fewest]: [Rc<Cell<u64>>; 3] = Default::default();
    fewest.set(u64::MAX);
    let run = engine.run(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let once = Rc::clone(&once);
                let (done, before) = (Rc::clone(&done), Rc::clone(&before));
                let fewest = Rc::clone(&fewest);
                local::spawn(async move {
                    while done.get() < STRETCH * STRETCHES {
                        once(task).await;
                        done.set(done.get() + 1);
                        if done.get().is_multiple_of(STRETCH) {
                            let now = allocations();
                            let before = before.replace(now);
                            // The first stretch warms up.
                            if done.get() > STRETCH {
                                fewest.set(fewest.get().min(now - before));
                            }
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    run.expect("nothing is demanded");
    fewest.get()
}

#[test]
fn an_operation_in_a_loop_allocates_nothing() {
    for engine in engines("allocations in a loop") {
        let kind = engine.backend().kind;
        let own = engine.clone();
        let nops = allocations_in_a_loop(&engine, async move |_| own.nop().await.unwrap());
        assert_eq!(nops, 0, "no-ops on {kind}");
        let path = temp_path(&pattern(64 * PAGE));
        for direct in [Direct::Off, Direct::Auto] {
            let options = read_write(&engine).direct(direct).open(path.path());
            let file = options.unwrap();
            let bufs: Vec<_> = (0..TASKS)
                .map(|_| Cell::new(Some(file.aligned_buf(PAGE).unwrap())))
                .collect();
            let reads = allocations_in_a_loop(&engine, async move |task: u64| {
                let place = &bufs[usize::try_from(task).unwrap()];
                let buf = place.take().expect("one read for each task");
                let (result, buf) = file.read_exact_at(buf, task * PAGE as u64).await;
                assert_eq!(result.unwrap(), PAGE);
                place.set(Some(buf));
            });
            assert_eq!(reads, 0, "reads on {kind}, {direct:?}");
        }
    }
}

/// Runs no-ops in tasks of a runtime with two workers.
fn no_ops_in_tasks(runtime: &tokio::runtime::Runtime, engine: &Engine, each: u64) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let engine = engine.clone();
            runtime.spawn(async move {
                for _ in 0..each {
                    engine.nop().await.expect("a no-op cannot fail");
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).expect("no task panics");
    }
}

fn two_workers() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .build()
        .expect("there are threads")
}

/// Write calls that this process has made: all of them ring alarms here.
fn write_calls() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("procfs is there");
    let line = io.lines().find_map(|line| line.strip_prefix("syscw: "));
    line.expect("see proc_pid_io(5)")
        .parse()
        .expect("it is a number")
}

#[test]
fn an_operation_on_a_driver_allocates_nothing_and_shares_its_enters_and_alarms() {
    let test = "an_operation_on_a_driver_allocates_nothing_and_shares_its_enters_and_alarms";
    let Some(engine) = uring_of_depth_or_skip(test, 64) else {
        return;
    };
    in_own_process(module_path!(), test, || {
        let runtime = two_workers();
        no_ops_in_tasks(&runtime, &engine, 300);
        // How many requests a driver finds at a time depends on what else the machine does: 1 enter
        // serves 24 operations on a quiet one, and 3 on a busy one. The best of several rounds is
        // told; what does not depend on that is looked at with a batch, below.
        let rounds = (0..20).map(|_| one_round(&runtime, &engine));
        let [enters, allocated, writes] = rounds.fold([u64::MAX; 3], |best, round| {
            [0, 1, 2].map(|n| best[n].min(round[n]))
        });
        let operations = EACH * TASKS;
        say(&format!(
            "awaited: {operations} no-ops of 32 tasks on a driver: {enters} enters, {allocated} \
             allocations, {writes} writes"
        ));
        // The tasks themselves are allocated, and so is what the runtime keeps of them.
        assert!(allocated <= 3 * TASKS, "{allocated} allocations");
        assert!(enters < operations, "{enters} enters");
        assert!(writes <= operations / 4, "{writes} writes");
    });
}

#[test]
fn an_awaited_batch_is_handed_to_a_driver_in_one_piece() {
    let test = "an_awaited_batch_is_handed_to_a_driver_in_one_piece";
    let Some(engine) = uring_of_depth_or_skip(test, 64) else {
        return;
    };
    if locked_memory_is_scarce() {
        return skip(
            test,
            "locked memory is scarce, so that a driver's ring may be small",
        );
    }
    let enters_of = |rounds: u64| {
        let before = engine.stats().enters;
        for _ in 0..rounds {
            let mut batch = Batch::on(&engine);
            (0..TASKS).for_each(|_| batch.push(engine.nop()));
            let results = pollster::block_on(batch.into_future());
            assert!(results.into_iter().all(|result| result.is_ok()));
        }
        engine.stats().enters - before
    };
    let _ = enters_of(10);
    let enters = enters_of(100);
    // In pieces it would be eight for each. One hands it over; on a slow machine the driver may go
    // to sleep before and after that, and be woken.
    assert!(
        enters <= 100 * 4,
        "{enters} enters for 100 batches of {TASKS}"
    );
}

/// Enters, allocations and write calls of one round.
fn one_round(runtime: &tokio::runtime::Runtime, engine: &Engine) -> [u64; 3] {
    let counts = || [engine.stats().enters, allocations_of_all(), write_calls()];
    let (operations, before) = (engine.stats().operations, counts());
    no_ops_in_tasks(runtime, engine, EACH);
    let after = counts();
    assert_eq!(engine.stats().operations - operations, EACH * TASKS);
    [0, 1, 2].map(|n| after[n] - before[n])
}

#[test]
fn one_enter_serves_sixteen_no_ops_or_more_in_a_loop() {
    let Some(engine) = uring_of_depth_or_skip("enters in a loop", 64) else {
        return;
    };
    let before = engine.stats();
    let own = engine.clone();
    let _ = allocations_in_a_loop(&engine, async move |_| own.nop().await.unwrap());
    let after = engine.stats();
    let (enters, operations) = (
        after.enters - before.enters,
        after.operations - before.operations,
    );
    assert!(
        enters > 0 && enters <= operations / 16,
        "{enters} for {operations}"
    );
}

/// How often each thread of this process has given up its core on its own, but for this one.
fn switches() -> BTreeMap<String, u64> {
    let this = fs::read_link("/proc/thread-self").expect("procfs is there");
    let tasks = fs::read_dir("/proc/self/task").expect("procfs is there");
    let others = tasks
        .flatten()
        .filter(|task| !this.ends_with(task.file_name()));
    others
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map(|value| value.trim().to_owned())
            };
            let name = format!("{} {}", field("Name:")?, task.file_name().display());
            Some((name, field("voluntary_ctxt_switches:")?.parse().ok()?))
        })
        .collect()
}

/// An engine of each kind that has worked on its drivers and in a loop, and what it left.
fn idle_engines() -> Vec<Engine> {
    let builders = [
        Engine::builder(),
        Engine::builder().backend(BackendKind::Threads),
        #[cfg(feature = "faulty")]
        Engine::builder().faults(inflight::Faults::new(1)),
    ];
    let idle = |builder: Builder| {
        let engine = builder.drivers(2).build().expect("nothing is demanded");
        let file = temp_file(&engine, &pattern(PAGE));
        let works = async || {
            for _ in 0..100 {
                let (result, _) = file
                    .read_vectored_at(vec![vec![0; 8]], 0)
                    .by_backend()
                    .await;
                assert_eq!(result.expect("the file can be read"), 8);
            }
        };
        pollster::block_on(works());
        engine.run(works()).expect("nothing is demanded");
        let mut sleep = engine.sleep(SOON);
        assert!(poll_once(&mut sleep).is_pending());
        drop(sleep);
        let _ = poll_once(&mut engine.nop().into_future());
        drained(&engine);
        engine
    };
    builders.into_iter().map(idle).collect()
}

#[test]
fn an_idle_engine_does_not_wake_up() {
    in_own_process(module_path!(), "an_idle_engine_does_not_wake_up", || {
        let engines = idle_engines();
        thread::scope(|scope| {
            let stops: Vec<_> = engines
                .iter()
                .map(|engine| {
                    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
                    scope.spawn(|| engine.run(stopped).unwrap().unwrap());
                    stop
                })
                .collect();
            // A timer that was cancelled may still have woken a driver once; and a thread of a
            // busy machine goes to sleep late, or is held up on its way there. Who wakes up again
            // and again does so in every second.
            let mut seen = Vec::new();
            let is_quiet = (0..QUIET_SECONDS_MAX).any(|_| {
                let before = switches();
                thread::sleep(Duration::from_secs(1));
                let after = switches();
                let is_same = before == after;
                seen = vec![before, after];
                is_same
            });
            let drivers = seen[1]
                .keys()
                .filter(|name| name.starts_with("inflight-driver"));
            assert!(drivers.count() >= 2, "it proves nothing: {seen:?}");
            for stop in stops {
                stop.send(()).unwrap();
            }
            assert!(is_quiet, "something wakes up: {seen:?}");
        });
    });
}
