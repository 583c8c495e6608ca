//! One round: an engine, its files and its tasks, and what must be left of them in the end.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use inflight::{BackendKind, Builder, Engine, SetupError};
use tokio::runtime::Runtime;

use crate::actor::Rules;
use crate::fate::{Fates, PROGRESS};
use crate::files::{Files, Place};
use crate::task::Task;
use crate::yard::Yard;

/// Who polls the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// tokio with two workers; operations go to driver threads.
    Tokio,
    /// tokio with two workers, which serve themselves, each with a ring when there is a crowd.
    #[cfg(feature = "tokio")]
    Lane,
    /// tokio with one thread, which serves itself.
    #[cfg(feature = "tokio")]
    LaneOfOne,
    /// Two run loops, each on a thread of its own.
    Local,
}

/// What a round is about.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) name: &'static str,
    pub(crate) kind: BackendKind,
    pub(crate) builder: Builder,
    pub(crate) host: Host,
    pub(crate) operations: u64,
    pub(crate) seed: u64,
    pub(crate) rules: Rules,
}

/// What has been found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) fates: Fates,
    /// What the first task that was not content with an answer has said.
    pub(crate) mismatch: Option<String>,
    pub(crate) late_writes: u64,
    /// Buffers that nobody has and nobody has forgotten.
    pub(crate) lost_bufs: u64,
    /// Descriptors that are open and were not before, but for the file of what was forgotten.
    pub(crate) lost_descriptors: i64,
    /// Operations that are in flight after everything has been waited for.
    pub(crate) in_flight: u64,
    pub(crate) strays: u64,
    /// Whether a part of the operations really went past the page cache.
    pub(crate) is_direct: bool,
    pub(crate) took: Duration,
}

/// Tasks of a round.
const TASKS: usize = 48;

/// As many buffers are left alone before the oldest is used again.
const WINDOW: usize = 2048;

/// A round without progress for this long has hung.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(60);

/// Of so many operations in a thousand the future has to be left in flight, at least.
const BEGUN_MIN: u64 = 50;

/// As many where there is no direct I/O: what the page cache has is answered at once.
const BEGUN_MIN_CACHED: u64 = 10;

/// Descriptors are counted, so there is one round at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To standard error itself, which the test harness does not capture.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Where test files are made.
pub(crate) fn directory() -> PathBuf {
    env::var_os("INFLIGHT_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from)
}

/// The seed of every round, unless the environment names another.
pub(crate) fn seed() -> u64 {
    let seed = env::var("INFLIGHT_TEST_SEED").ok();
    let seed = seed.map(|seed| seed.parse().expect("INFLIGHT_TEST_SEED is a number"));
    // Another one each time: what is found once can be replayed.
    seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.map_or(1, |now| now.subsec_nanos()))
    })
}

fn descriptors() -> i64 {
    let open = fs::read_dir("/proc/self/fd").expect("procfs is mounted");
    i64::try_from(open.count()).expect("few")
}

impl Round {
    /// Runs it; `None`, with the reason said, where the backend cannot be had.
    pub(crate) fn run(&self) -> Option<Found> {
        let _alone = alone();
        say(&format!(
            "torture: {}: INFLIGHT_TEST_SEED={} INFLIGHT_TEST_SHARE={}: {} operations",
            self.name,
            self.seed,
            crate::hundredths(),
            self.operations
        ));
        let before = descriptors();
        let engine = match self.builder.clone().build() {
            Ok(engine) => engine,
            // Only where it is demanded.
            Err(refusal @ SetupError::NoAio { .. }) => {
                say(&format!("skipped: {}: {refusal}", self.name));
                return None;
            }
            Err(refusal) => panic!("{refusal}"),
        };
        let backend = engine.backend();
        if backend.kind != self.kind {
            let required = env::var("INFLIGHT_REQUIRE").is_ok_and(|kind| kind == "uring");
            assert!(!required, "{} needs a ring: {}", self.name, backend.reason);
            say(&format!("skipped: {}: {}", self.name, backend.reason));
            return None;
        }
        let watchdog = Watchdog::new(self);
        let begun = Instant::now();
        let yard = Yard::new(crate::files::REGION, self.window());
        let folder = tempfile::tempdir_in(directory()).expect("the test directory can be written");
        let (files, regions) = Files::new(&engine, folder.path(), TASKS);
        let files = Arc::new(files);
        let task = |number| {
            let rules = (self.seed, self.rules);
            Task::new(number, &files, &regions, &yard, rules)
        };
        let tasks: Vec<Task> = (0..TASKS).map(task).collect();
        let results = match self.host {
            Host::Tokio => on_tokio(&on_workers(), tasks, self.operations),
            #[cfg(feature = "tokio")]
            Host::Lane => in_lane(&engine, &on_workers(), tasks, self.operations),
            #[cfg(feature = "tokio")]
            Host::LaneOfOne => in_lane(&engine, &on_one_thread(), tasks, self.operations),
            Host::Local => on_loops(&engine, tasks, self.operations),
        };
        let mut found = Found::of(results);
        found.is_direct = files.at(Place::Direct).is_direct();
        drop(files);
        found.settle(&engine, &yard);
        drop(engine);
        drop(watchdog);
        // A future that was polled once may only have yielded, and then keeps no file; and a file
        // may have a second descriptor.
        let forgot = 2 * i64::from(found.fates.forgotten_in_flight > 0);
        let kept = descriptors() - before;
        found.lost_descriptors = if (0..=forgot).contains(&kept) {
            0
        } else {
            kept
        };
        found.took = begun.elapsed();
        Some(found)
    }

    fn window(&self) -> usize {
        // What is handed out again at once is found the sooner.
        if self.rules.planted { 64 } else { WINDOW }
    }

    /// Runs it and demands that nothing is wrong.
    pub(crate) fn expect_nothing_wrong(&self) {
        let Some(found) = self.run() else {
            return;
        };
        if let Some(mismatch) = &found.mismatch {
            panic!("{}, seed {}: {mismatch}", self.name, self.seed);
        }
        let strays = if self.kind == BackendKind::Faulty {
            0
        } else {
            found.strays
        };
        let wrong = (
            found.late_writes,
            found.lost_bufs,
            found.lost_descriptors,
            found.in_flight,
            strays,
        );
        assert_eq!(wrong, (0, 0, 0, 0, 0), "seed {}: {found:?}", self.seed);
        let least = if found.is_direct {
            BEGUN_MIN
        } else {
            BEGUN_MIN_CACHED
        };
        assert!(found.fates.proves_something(least), "{found:?}");
        say(&format!(
            "torture: {}: 0 mismatches, 0 late writes, nothing leaked, {:.1} s, {} left, {} in \
             flight: {:?}",
            self.name,
            found.took.as_secs_f64(),
            found.fates.left(),
            found.fates.left_begun(),
            found.fates
        ));
    }
}

fn on_workers() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder.worker_threads(2).enable_io().build();
    built.expect("a runtime")
}

#[cfg(feature = "tokio")]
fn on_one_thread() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().build().expect("a runtime")
}

#[cfg(feature = "tokio")]
fn in_lane(
    engine: &Engine,
    runtime: &Runtime,
    tasks: Vec<Task>,
    operations: u64,
) -> Vec<Result<Fates, String>> {
    let entered = runtime.enter();
    engine.serve_on_tokio().expect("it has rings");
    drop(entered);
    let results = on_tokio(runtime, tasks, operations);
    let in_lane = engine.stats().lane_operations;
    assert!(in_lane > 0, "nothing was served in a lane");
    results
}

fn on_tokio(runtime: &Runtime, tasks: Vec<Task>, operations: u64) -> Vec<Result<Fates, String>> {
    let each = operations / tasks.len() as u64;
    let spawned: Vec<_> = tasks
        .into_iter()
        .map(|task| runtime.spawn(task.run(each)))
        .collect();
    let join = async {
        let mut results = Vec::new();
        for task in spawned {
            results.push(task.await.expect("a task does not panic"));
        }
        results
    };
    runtime.block_on(join)
}

fn on_loops(engine: &Engine, mut tasks: Vec<Task>, operations: u64) -> Vec<Result<Fates, String>> {
    let each = operations / tasks.len() as u64;
    let half = tasks.split_off(tasks.len() / 2);
    let run = |tasks: Vec<Task>| {
        let body = async {
            let spawned: Vec<_> = tasks
                .into_iter()
                .map(|task| inflight::local::spawn(task.run(each)))
                .collect();
            let mut results = Vec::new();
            for task in spawned {
                results.push(task.await);
            }
            results
        };
        engine.run(body).expect("nothing is demanded")
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(half));
        let mut results = run(tasks);
        results.extend(other.join().expect("a task does not panic"));
        results
    })
}

impl Found {
    fn of(results: Vec<Result<Fates, String>>) -> Self {
        let mut fates = Fates::default();
        let mut mismatch = None;
        for result in results {
            match result {
                Ok(of_task) => fates.add(&of_task),
                Err(wrong) => mismatch = mismatch.or(Some(wrong)),
            }
        }
        Self {
            fates,
            mismatch,
            late_writes: 0,
            lost_bufs: 0,
            lost_descriptors: 0,
            in_flight: 0,
            strays: 0,
            is_direct: false,
            took: Duration::ZERO,
        }
    }

    /// Waits for what is in flight and looks at what is left.
    fn settle(&mut self, engine: &Engine, yard: &Yard) {
        // Both are over long before the round counts as hung: memory that a planted defect has lost
        // never comes back.
        let left = engine.drain(HUNG_AFTER / 2);
        let until = Instant::now() + HUNG_AFTER / 6;
        let live = || yard.live().saturating_sub(self.fates.forgotten_bufs);
        // A driver tells of its figures, and lets go of what was left, a moment after that.
        while (engine.stats().in_flight > 0 || live() > 0) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let stats = engine.stats();
        self.in_flight = stats.in_flight + u64::from(left);
        self.strays = stats.strays;
        self.lost_bufs = live();
        self.late_writes = yard.late_writes();
    }
}

impl Fates {
    /// Whether a fifth was left, and so many in a thousand were in flight when they were left.
    fn proves_something(&self, least: u64) -> bool {
        self.left() * 5 >= self.operations && self.left_begun() * 1000 >= self.operations * least
    }
}

/// Ends the process when a round hangs; the test harness would wait for ever.
struct Watchdog(Arc<Mutex<bool>>);

impl Watchdog {
    fn new(round: &Round) -> Self {
        let ended = Arc::new(Mutex::new(false));
        let seen = Arc::clone(&ended);
        let named = format!("torture: {}: hung with seed {}", round.name, round.seed);
        thread::spawn(move || {
            let mut progress = (PROGRESS.load(Ordering::Relaxed), Instant::now());
            while !*seen.lock().unwrap_or_else(PoisonError::into_inner) {
                thread::sleep(Duration::from_millis(250));
                let now = PROGRESS.load(Ordering::Relaxed);
                if now != progress.0 {
                    progress = (now, Instant::now());
                } else if progress.1.elapsed() > HUNG_AFTER {
                    say(&named);
                    std::process::abort();
                }
            }
        });
        Self(ended)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}
