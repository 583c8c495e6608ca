//! Forks, threads that come and go, programs that are executed, signals.
//!
//! Whatever changes the whole process runs in a process of its own.
#![allow(unsafe_code)]

mod global;
mod pools;
mod told;

use std::cell::RefCell;
use std::fs;
use std::future::{Future, IntoFuture};
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use inflight::fs::{File, ReadAt};
use inflight::{
    BackendKind, Batch, Engine, Forked, Operation, Queue, ReadInto, SetupError, read_many,
};

use crate::support::own::{in_forked_child, in_own_process, settle};
use crate::support::{
    chill, direct_file_or_skip, engine_with_memory, on_every_backend, on_every_backend_of, pattern,
    skip, temp_file, uring_or_skip,
};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// Whether the error says that the engine is the parent's.
fn is_forked(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Forked>())
}

fn content_file(engine: &Engine) -> File {
    temp_file(engine, &pattern(PAGES * PAGE))
}

fn read(file: &File, page: usize) -> ReadAt<'_, Vec<u8>> {
    file.read_at(vec![0; PAGE], (page * PAGE) as u64)
}

/// Reads every page in a batch and compares.
fn reads_rightly(engine: &Engine, file: &File) {
    let content = pattern(PAGES * PAGE);
    let mut batch = Batch::on(engine);
    (0..PAGES).for_each(|page| batch.push(read(file, page)));
    for (expected, (result, buf)) in content.chunks(PAGE).zip(batch.wait()) {
        assert_eq!(result.expect("the file can be read"), PAGE);
        assert_eq!(buf, expected);
    }
}

/// Everything that runs operations answers [`Forked`], and the buffers come back.
fn everything_is_refused(engine: &Engine, file: &File) {
    let (result, buf) = read(file, 0).wait();
    assert!(is_forked(&result.expect_err("forked")));
    assert_eq!(buf.len(), PAGE);
    assert!(is_forked(&engine.nop().wait().expect_err("forked")));
    let mut batch = Batch::on(engine);
    (0..3).for_each(|page| batch.push(read(file, page)));
    for (result, buf) in batch.wait() {
        assert!(is_forked(&result.expect_err("forked")));
        assert_eq!(buf.len(), PAGE);
    }
    let queue = engine.queue(8, |queue| queue.push(0, engine.nop()).is_ok());
    assert!(is_forked(&queue.expect_err("forked")));
    let (mut one, mut two) = ([0; 64], [0; 64]);
    let mut reads = [
        ReadInto::new(file, 0, &mut one),
        ReadInto::new(file, 0, &mut two),
    ];
    assert!(is_forked(&read_many(&mut reads).expect_err("forked")));
    assert!(is_forked(&reads[1].result().expect_err("forked")));
}

#[test]
fn a_forked_child_is_refused_can_start_anew_and_leaves_the_parent_alone() {
    let test = "a_forked_child_is_refused_can_start_anew_and_leaves_the_parent_alone";
    in_own_process(module_path!(), test, || {
        let default = engine_with_memory().backend().kind;
        on_every_backend(|engine| {
            let file = content_file(engine);
            chill(&file);
            reads_rightly(engine, &file);
            settle();
            in_forked_child(|| {
                everything_is_refused(engine, &file);
                // Nobody waits here for locked memory: the parent keeps its own, as may those of
                // other tests of which each waits for the other's.
                let own = Engine::new().expect("nothing is demanded");
                let backend = own.backend();
                let lacks = matches!(backend.refusal, Some(SetupError::Memory { .. }));
                assert!(lacks || backend.kind == default, "{backend:?}");
                let copy = file.as_fd().try_clone_to_owned().expect("it can be cloned");
                let same = File::from_std(&own, copy.into()).expect("it is a file");
                chill(&same);
                reads_rightly(&own, &same);
                thread::scope(|scope| {
                    scope.spawn(|| reads_rightly(&own, &same));
                });
                drop((same, own));
                everything_is_refused(engine, &file);
            });
            for _ in 0..10 {
                reads_rightly(engine, &file);
            }
            assert_eq!(engine.stats().strays, 0);
        });
    });
}

#[test]
fn a_fork_within_a_queue_body_gives_the_child_refusals_and_the_parent_its_results() {
    let test = "a_fork_within_a_queue_body_gives_the_child_refusals_and_the_parent_its_results";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = content_file(engine);
            chill(&file);
            let content = pattern(PAGES * PAGE);
            // With little locked memory, a ring has 8 places.
            let seen = engine.queue(8, |queue| {
                (0..8).for_each(|page| queue.push(page as u64, read(&file, page)).unwrap());
                let first = queue.next().expect("8 are in flight");
                assert_eq!(first.1.0.unwrap(), PAGE);
                in_forked_child(|| child_within(engine, &file, queue));
                assert!(queue.push(8, read(&file, 8)).is_ok());
                let mut seen = 1;
                while let Some((page, (result, buf))) = queue.next() {
                    let page = usize::try_from(page).unwrap();
                    assert_eq!(result.unwrap(), PAGE);
                    assert_eq!(buf, content[page * PAGE..][..PAGE]);
                    seen += 1;
                }
                seen
            });
            assert_eq!(seen.unwrap(), 9);
            reads_rightly(engine, &file);
        });
    });
}

#[test]
fn a_fork_with_reads_that_wait_for_room_gives_the_child_refusals_of_them() {
    const LARGE: usize = 3 << 20;
    let test = "a_fork_with_reads_that_wait_for_room_gives_the_child_refusals_of_them";
    in_own_process(module_path!(), test, || {
        let content = pattern(4 * LARGE);
        on_every_backend_of(
            |builder| builder.queue_depth(4),
            |engine| {
                let Some(file) = direct_file_or_skip(test, engine, &content) else {
                    return;
                };
                let seen = engine.queue(4, |queue| {
                    for number in 0..4 {
                        let buf = file.aligned_buf(LARGE).expect("there is memory");
                        let read = file.read_at(buf, number * LARGE as u64);
                        assert!(queue.push(number, read).is_ok());
                    }
                    in_forked_child(|| {
                        let refused = std::iter::from_fn(|| queue.next());
                        let refused = refused.map(|(_, (result, _))| result.expect_err("forked"));
                        assert_eq!(refused.filter(is_forked).count(), 4);
                        assert!(queue.next().is_none() && queue.is_empty());
                    });
                    std::iter::from_fn(|| queue.next())
                        .filter(|(_, (result, _))| result.as_ref().is_ok_and(|len| *len == LARGE))
                        .count()
                });
                assert_eq!(seen.expect("nothing is demanded"), 4);
            },
        );
    });
}

fn child_within<'f>(
    engine: &Engine,
    file: &'f File,
    queue: &mut Queue<'_, '_, ReadAt<'f, Vec<u8>>>,
) {
    assert!(queue.is_full());
    assert!(queue.push(99, read(file, 0)).is_err());
    assert_eq!(queue.len(), 7);
    let mut refused = 0;
    while let Some((_, (result, buf))) = queue.next() {
        assert_eq!(buf.len(), PAGE);
        // What had been answered before the fork is not taken back.
        refused += usize::from(result.is_err_and(|error| is_forked(&error)));
    }
    assert!(refused <= 7 && queue.is_empty());
    assert!(queue.next().is_none());
    everything_is_refused(engine, file);
}

/// Runs loops of an engine of this child's own, within one that was forked away.
fn child_runs_loops_of_its_own(engine: &Engine, file: &File) {
    let own = Engine::new().expect("nothing is demanded");
    for _ in 0..3 {
        let inner = own.run(async {
            own.sleep(Duration::from_millis(5)).await?;
            own.run(async { own.nop().await })??;
            own.nop().await
        });
        inner.expect("nothing is demanded").expect("it is its own");
        everything_is_refused(engine, file);
    }
}

#[test]
fn a_fork_within_a_run_loop_leaves_the_child_free_to_run_loops_of_its_own() {
    let test = "a_fork_within_a_run_loop_leaves_the_child_free_to_run_loops_of_its_own";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = content_file(engine);
            chill(&file);
            for in_flight in [0, 3] {
                let run = engine.run(async {
                    let begin = || {
                        let mut nop = engine.nop().into_future();
                        let mut context = Context::from_waker(Waker::noop());
                        assert!(Pin::new(&mut nop).poll(&mut context).is_pending());
                        nop
                    };
                    let begun: Vec<_> = (0..in_flight).map(|_| begin()).collect();
                    settle();
                    in_forked_child(|| child_runs_loops_of_its_own(engine, &file));
                    for nop in begun {
                        nop.await.expect("the parent goes on");
                    }
                });
                run.expect("nothing is demanded");
            }
            reads_rightly(engine, &file);
            assert_eq!(engine.stats().strays, 0);
        });
    });
}

#[test]
fn a_fork_while_others_enter_and_leave_run_loops_leaves_the_child_its_own() {
    let test = "a_fork_while_others_enter_and_leave_run_loops_leaves_the_child_its_own";
    in_own_process(module_path!(), test, || {
        // Without rings: a hundred children would keep all locked memory from other tests.
        let make = || Engine::builder().backend(BackendKind::Threads).build();
        let (engine, have_begun) = (&make().unwrap(), &Barrier::new(3));
        thread::scope(|scope| {
            // A panic drops it too, and so ends the threads.
            let goes_on = Arc::new(());
            for _ in 0..2 {
                let stays = Arc::downgrade(&goes_on);
                scope.spawn(move || {
                    have_begun.wait();
                    while stays.strong_count() > 0 {
                        engine.run(async {}).unwrap();
                    }
                });
            }
            // They do not rest, so that `settle` would not end. They neither come nor go from here.
            have_begun.wait();
            for _ in 0..100 {
                in_forked_child(|| {
                    let own = make().expect("nothing is demanded");
                    let answer = own.run(async { own.nop().await });
                    answer.expect("a loop can be had").expect("it is done");
                });
            }
        });
    });
}

/// Fills a queue of 8 places with reads that have been gathered, not made.
fn gathered<'f>(engine: &Engine, file: &'f File, queue: &mut Queue<'_, '_, ReadAt<'f, Vec<u8>>>) {
    // A trial begins after some thousands of reads.
    for _ in 0..20_000 {
        while queue.next().is_some() {}
        let before = engine.stats().operations;
        (0..8).for_each(|page| assert!(queue.push(page as u64, read(file, page)).is_ok()));
        // One in a few is timed; all are in a trial.
        if engine.stats().operations == before {
            return;
        }
    }
    panic!("no trial has begun");
}

#[test]
fn a_fork_with_reads_gathered_gives_the_child_refusals_and_the_parent_its_results() {
    let test = "a_fork_with_reads_gathered_gives_the_child_refusals_and_the_parent_its_results";
    in_own_process(module_path!(), test, || {
        if thread::available_parallelism().map_or(1, usize::from) == 1 {
            return skip(test, "there is one processor");
        }
        on_every_backend(|engine| {
            let file = content_file(engine);
            let content = pattern(PAGES * PAGE);
            let seen = engine.queue(8, |queue| {
                gathered(engine, &file, queue);
                in_forked_child(|| {
                    assert!(queue.push(99, read(&file, 0)).is_err());
                    for _ in 0..8 {
                        let (_, (result, buf)) = queue.next().expect("8 were pushed");
                        assert_eq!(buf.len(), PAGE);
                        assert!(is_forked(&result.expect_err("it was not made")));
                    }
                    assert!(queue.next().is_none());
                    everything_is_refused(engine, &file);
                });
                let mut seen = 0;
                while let Some((page, (result, buf))) = queue.next() {
                    let page = usize::try_from(page).unwrap();
                    assert_eq!(result.unwrap(), PAGE);
                    assert_eq!(buf, content[page * PAGE..][..PAGE]);
                    seen += 1;
                }
                seen
            });
            assert_eq!(seen.unwrap(), 8);
            reads_rightly(engine, &file);
        });
    });
}

/// Keeps this thread on the processor it is on.
fn stay_here() -> io::Result<()> {
    // SAFETY: a set without processors, to be filled.
    let mut here: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: no memory is involved.
    let processor = usize::try_from(unsafe { libc::sched_getcpu() });
    let processor = processor.map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the set is ours, and has a place for every processor that it knows.
    unsafe { libc::CPU_SET(processor, &mut here) };
    // SAFETY: the set is there, and this is its size.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&here), &raw const here) };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_thread_with_one_processor_copies_alone() {
    let test = "a_thread_with_one_processor_copies_alone";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = content_file(engine);
            let run = || {
                if let Err(cause) = stay_here() {
                    return skip(
                        test,
                        &format!("a thread cannot stay on a processor: {cause}"),
                    );
                }
                // Enough for a trial, if there were one.
                for _ in 0..80 {
                    reads_rightly(engine, &file);
                }
                assert_eq!(engine.stats().helped, 0);
            };
            thread::scope(|scope| drop(scope.spawn(run)));
        });
    });
}

#[test]
fn a_thread_that_has_helped_ends_with_the_engine() {
    let test = "a_thread_that_has_helped_ends_with_the_engine";
    in_own_process(module_path!(), test, || {
        let before = entries("/proc/self/task");
        for _ in 0..10 {
            let engine = Engine::new().unwrap();
            let file = content_file(&engine);
            // The thread that reads ends too, while the other one may look for more.
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut batch = Batch::on(&engine);
                    for _ in 0..400 {
                        (0..PAGES).for_each(|page| batch.push(read(&file, page)));
                        assert!(batch.wait().all(|(result, _)| result.is_ok()));
                    }
                });
            });
            drop((file, engine));
        }
        comes_back_to("/proc/self/task", before);
    });
}

/// What the descriptors of a process are, from the listing of its folder in /proc.
fn listing(command: &mut Command) -> String {
    let output = command.output().expect("the program can be started");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn own_descriptors() -> String {
    // Not by `ls`: other tests close descriptors meanwhile, which it takes for an error.
    let entries = std::fs::read_dir("/proc/self/fd").expect("procfs is there");
    let targets = entries
        .flatten()
        .flat_map(|entry| std::fs::read_link(entry.path()));
    let names: Vec<_> = targets
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    names.join("\n")
}

#[test]
fn an_executed_program_inherits_no_ring() {
    let test = "an_executed_program_inherits_no_ring";
    in_own_process(module_path!(), test, || {
        let Some(engine) = uring_or_skip(test) else {
            return;
        };
        reads_rightly(&engine, &content_file(&engine));
        let own = own_descriptors();
        assert!(own.contains("io_uring"), "it proves nothing: {own}");
        let of_child = listing(Command::new("ls").args(["-l", "/proc/self/fd"]));
        assert!(of_child.contains("/proc/"), "{of_child}");
        assert!(!of_child.contains("io_uring"), "{of_child}");
    });
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).expect("/proc is there").count()
}

/// Waits for a number that the kernel takes down in the background. The alarm ends the wait.
fn comes_back_to(folder: &str, expected: usize) {
    while entries(folder) > expected {
        thread::yield_now();
    }
}

#[test]
fn a_thread_that_ends_leaves_no_descriptor_and_no_thread_behind() {
    let test = "a_thread_that_ends_leaves_no_descriptor_and_no_thread_behind";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = content_file(engine);
            chill(&file);
            // The pool keeps its threads; they are not those of the thread that ends.
            reads_rightly(engine, &file);
            let before = entries("/proc/self/fd");
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| reads_rightly(engine, &file));
                }
            });
            comes_back_to("/proc/self/fd", before);
        });
        // With the engines gone, so are the threads of their pools and all rings of this thread.
        comes_back_to("/proc/self/task", 1 + harness_threads());
        let left = own_descriptors();
        assert!(!left.contains("io_uring"), "{left}");
    });
}

/// Threads of the test harness beside the one that this test runs on.
fn harness_threads() -> usize {
    usize::from(thread::current().name() != Some("main"))
}

#[test]
fn a_thousand_threads_that_read_come_and_go() {
    let test = "a_thousand_threads_that_read_come_and_go";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let file = content_file(engine);
            chill(&file);
            let before = entries("/proc/self/fd");
            let is_for_tests = engine.backend().kind == BackendKind::Faulty;
            let sets: u64 = if is_for_tests { 5 } else { 50 };
            for _ in 0..sets {
                thread::scope(|scope| {
                    for _ in 0..20 {
                        scope.spawn(|| reads_rightly(engine, &file));
                    }
                });
            }
            comes_back_to("/proc/self/fd", before);
            let stats = engine.stats();
            assert_eq!(stats.operations, sets * 20 * PAGES as u64 + 65);
            assert_eq!((stats.strays, stats.in_flight), (0, 0));
        });
    });
}

/// Reads when its thread ends.
struct AtTheEnd {
    engine: Engine,
    file: File,
    done: Sender<()>,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        reads_rightly(&self.engine, &self.file);
        let (result, _) = read(&self.file, 0).wait();
        assert_eq!(result.expect("the file can be read"), PAGE);
        let queued = self.engine.queue(4, |queue| {
            assert!(queue.push(0, self.engine.nop()).is_ok());
            queue.next().is_some()
        });
        assert!(queued.expect("nothing is demanded"));
        self.done.send(()).expect("the test listens");
    }
}

thread_local! {
    static AT_THE_END: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_local_destructor_can_read() {
    on_every_backend(|engine| {
        // Destructors run in an order that depends on which was used first.
        for reads_first in [true, false] {
            let (done, is_done) = channel();
            let file = content_file(engine);
            let engine = engine.clone();
            let ended = thread::spawn(move || {
                if reads_first {
                    reads_rightly(&engine, &file);
                }
                let at_the_end = AtTheEnd { engine, file, done };
                AT_THE_END.with(|place| place.replace(Some(at_the_end)));
                AT_THE_END.with(|place| {
                    let place = place.borrow();
                    let AtTheEnd { engine, file, .. } = place.as_ref().unwrap();
                    reads_rightly(engine, file);
                });
            });
            ended.join().unwrap();
            assert!(is_done.try_recv().is_ok(), "the destructor did not finish");
        }
    });
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// SIGALRM a thousand times in a second, which does not restart the calls that it interrupts.
fn storm() {
    let handler = count_signal as extern "C" fn(libc::c_int);
    // SAFETY: all zeros is a valid value: no flags, no signals in the mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler only adds to an atomic; no old action is asked for.
    let answer = unsafe { libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()) };
    assert_eq!(answer, 0);
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 1000,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the value is ours, and no old one is asked for.
    let answer = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    assert_eq!(answer, 0);
}

#[test]
fn a_thousand_signals_a_second_are_not_noticed() {
    let test = "a_thousand_signals_a_second_are_not_noticed";
    in_own_process(module_path!(), test, || {
        storm();
        on_every_backend(|engine| {
            let file = content_file(engine);
            let start = SIGNALS.load(Ordering::Relaxed);
            while SIGNALS.load(Ordering::Relaxed) < start + 300 {
                chill(&file);
                reads_rightly(engine, &file);
                file.sync_data().wait().unwrap();
            }
            assert_eq!(engine.stats().strays, 0);
        });
    });
}
