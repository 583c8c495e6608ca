//! Futures that are dropped at each stage, engines that are dropped before their calls are over,
//! and time limits. A FIFO keeps the threads of the pool busy for as long as a test wants.

use std::fs;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{Call, metadata, sync_dir};
use inflight::{Awaited, Engine, leaked_operations};

use super::{
    ELSEWHERE, Fifo, Woken, entries, folder, link_to, on_every_backend_with_two_threads, poll_once,
};
use crate::support::own::in_own_process;
use crate::support::{on_every_backend_of, patience, read_write, temp_file, until};

/// Engines whose pool makes `calls` calls at the same time.
fn on_every_backend_for(calls: u32, body: impl Fn(&Engine)) {
    on_every_backend_of(|builder| builder.threads(calls + 1), body);
}

/// Waits until the pool has taken all calls that it had been given before.
fn settle(engine: &Engine) {
    pollster::block_on(metadata(ELSEWHERE).on(engine).into_future()).expect("there is a root");
}

/// Waits until a thread of this process is in `open(2)`: one that has only taken the call does not
/// make it once its future is gone.
fn is_in_open() {
    let is_there = || {
        let tasks = fs::read_dir("/proc/self/task").expect("/proc is there");
        tasks.flatten().any(|task| {
            let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            call.starts_with(&format!("{} ", libc::SYS_openat))
        })
    };
    until("a thread opens a file", is_there);
}

#[test]
fn nothing_happens_before_the_first_poll() {
    on_every_backend_with_two_threads(|engine| {
        let folder = folder();
        let path = folder.path().join("file");
        let options = read_write(engine).create_new(true);
        let file = temp_file(engine, b"abc");
        let (open, truncate) = (options.opening(&path), file.truncate(0));
        let name = inflight::fs::create_dir(folder.path().join("below")).on(engine);
        let futures = (
            open.into_future(),
            truncate.into_future(),
            name.into_future(),
        );
        settle(engine);
        comes_to(engine, 0);
        drop(futures);
        settle(engine);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(file.metadata_len(), 3);
    });
}

/// Waits until so many calls are left. A thread counts its call a little longer than the future.
fn comes_to(engine: &Engine, left: u32) {
    let is_so = || engine.drain(Duration::ZERO) == left;
    until(&format!("{left} calls are left"), is_so);
}

trait Len {
    fn metadata_len(&self) -> u64;
}

impl Len for inflight::fs::File {
    fn metadata_len(&self) -> u64 {
        use inflight::Operation;
        self.metadata().wait().expect("it has metadata").len
    }
}

#[test]
fn calls_that_wait_for_a_thread_are_taken_back() {
    on_every_backend_with_two_threads(|engine| {
        let folder = folder();
        let fifo = Fifo::new(folder.path());
        let mut busy = fifo.opening(engine).into_future();
        assert!(poll_once(&mut busy).is_pending());
        let options = read_write(engine).create(true);
        let link = link_to("created", folder.path());
        for _ in 0..20_000 {
            let mut open = options.opening(&link).into_future();
            assert!(poll_once(&mut open).is_pending());
        }
        let below = folder.path().join("below");
        fs::create_dir(&below).expect("it can be made");
        let link = link_to("kept", &below);
        let open = |_| options.opening(&link).into_future();
        let mut kept: Vec<_> = (0..3).map(open).collect();
        assert!(kept.iter_mut().all(|open| poll_once(open).is_pending()));
        // The one that keeps the thread busy, and those that are wanted.
        comes_to(engine, 4);
        fifo.release();
        pollster::block_on(busy).unwrap();
        for open in kept {
            pollster::block_on(open).unwrap();
        }
        assert_eq!(engine.drain(patience()), 0);
        assert!(below.join("kept").exists() && !folder.path().join("created").exists());
    });
}

#[test]
fn a_file_is_closed_whose_opening_nobody_waits_for() {
    let test = "a_file_is_closed_whose_opening_nobody_waits_for";
    in_own_process(module_path!(), test, || {
        on_every_backend_for(2, |engine| {
            let folder = folder();
            let fifo = Fifo::new(folder.path());
            settle(engine);
            let before = entries("/proc/self/fd");
            // A thread makes the call when the future is dropped.
            let mut running = fifo.opening(engine).into_future();
            assert!(poll_once(&mut running).is_pending());
            is_in_open();
            drop(running);
            comes_to(engine, 1);
            fifo.release();
            assert_eq!(engine.drain(patience()), 0);
            assert_eq!(entries("/proc/self/fd"), before);
            // It has been made, and the result has not been taken.
            let woken = Arc::new(Woken::default());
            let path = link_to("file", folder.path());
            let mut made = read_write(engine).create(true).opening(&path).into_future();
            let waker = Waker::from(Arc::clone(&woken));
            let polled = Pin::new(&mut made).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            woken.wait();
            assert!(super::is_open(&path));
            drop(made);
            assert_eq!(entries("/proc/self/fd"), before);
        });
    });
}

#[test]
fn a_truncation_keeps_the_file_open_when_nobody_waits_for_it() {
    on_every_backend_with_two_threads(|engine| {
        let folder = folder();
        let fifo = Fifo::new(folder.path());
        let (path, file) = super::open_file(engine, &folder);
        let mut busy = fifo.opening(engine).into_future();
        assert!(poll_once(&mut busy).is_pending());
        // Forgotten, so that it is not taken back.
        let mut truncate = file.truncate(1).into_future();
        assert!(poll_once(&mut truncate).is_pending());
        std::mem::forget(truncate);
        drop(file);
        fifo.release();
        pollster::block_on(busy).unwrap();
        assert_eq!(engine.drain(patience()), 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1);
    });
}

/// Runs `body` while `N` FIFOs are to be opened that nobody opens at the other end.
fn while_opens_block<const N: usize>(engine: &Engine, body: impl FnOnce()) {
    // One for each: a process that another test forks may keep an end of it open for a while,
    // and whoever opens the same one then waits for nobody.
    let folders = [(); N].map(|()| folder());
    let fifos = folders.each_ref().map(|folder| Fifo::new(folder.path()));
    let mut opens = fifos
        .each_ref()
        .map(|fifo| fifo.opening(engine).into_future());
    opens.iter_mut().for_each(|open| {
        assert!(poll_once(open).is_pending());
    });
    body();
    for (open, fifo) in opens.into_iter().zip(&fifos) {
        fifo.release();
        drop(pollster::block_on(open).expect("somebody has opened the other end"));
    }
}

#[test]
fn opens_that_block_leave_a_thread_for_reads_and_syncs() {
    on_every_backend_with_two_threads(|engine| {
        while_opens_block::<3>(engine, || {
            let file = temp_file(engine, b"abc");
            let sync = file.sync_all().timeout(patience());
            pollster::block_on(sync).expect("in time").unwrap();
        });
    });
}

#[test]
fn opens_that_block_leave_a_thread_for_calls_that_wait_for_a_device() {
    on_every_backend_for(2, |engine| {
        while_opens_block::<3>(engine, || {
            let file = temp_file(engine, b"abc");
            let truncate = file.truncate(1).timeout(patience());
            pollster::block_on(truncate).expect("in time").unwrap();
            let folder = folder();
            let sync = sync_dir(folder.path()).on(engine).timeout(patience());
            pollster::block_on(sync).expect("in time").unwrap();
        });
    });
}

#[test]
fn an_idle_thread_is_not_counted_on_twice() {
    // What an idle thread has been woken for, and what comes before it is awake.
    for _ in 0..50 {
        on_every_backend_with_two_threads(|engine| {
            let folder = folder();
            let fifo = Fifo::new(folder.path());
            let file = temp_file(engine, b"abc");
            pollster::block_on(engine.nop().into_future()).unwrap();
            let mut open = fifo.opening(engine).into_future();
            assert!(poll_once(&mut open).is_pending());
            let sync = file.sync_all().timeout(patience() / 6);
            pollster::block_on(sync).expect("in time").unwrap();
            fifo.release();
            pollster::block_on(open).unwrap();
        });
    }
}

#[test]
fn a_late_open_can_be_awaited_on_and_dropped() {
    on_every_backend_with_two_threads(|engine| {
        let folder = folder();
        let fifo = Fifo::new(folder.path());
        let short = Duration::from_millis(2);
        let late = pollster::block_on(fifo.opening(engine).timeout(short)).unwrap_err();
        // Queued behind the other one.
        let queued = metadata(ELSEWHERE).on(engine).timeout(short);
        let queued = pollster::block_on(queued).unwrap_err();
        comes_to(engine, 2);
        drop(queued);
        comes_to(engine, 1);
        fifo.release();
        pollster::block_on(late.into_future()).unwrap();
        let far = Instant::now() + patience();
        let soon = metadata(ELSEWHERE).on(engine).deadline(far);
        pollster::block_on(soon).expect("in time").unwrap();
        let file = temp_file(engine, b"abc");
        let truncate = file.truncate(1).timeout(patience());
        pollster::block_on(truncate).expect("in time").unwrap();
        let close = file.close().timeout(patience());
        pollster::block_on(close).expect("in time").unwrap();
    });
}

/// Panics when it is woken.
struct Hostile;

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a waker panics"));
    }
}

#[test]
fn a_waker_that_panics_costs_the_pool_nothing() {
    on_every_backend_with_two_threads(|engine| {
        let waker = Waker::from(Arc::new(Hostile));
        for _ in 0..5 {
            let mut call = metadata(ELSEWHERE).on(engine).into_future();
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            settle(engine);
            pollster::block_on(call).unwrap();
        }
        let mut closing = temp_file(engine, b"").close().into_future();
        let polled = Pin::new(&mut closing).poll(&mut Context::from_waker(&waker));
        settle(engine);
        // The pool may have been faster than the poll.
        if polled.is_pending() {
            pollster::block_on(closing).unwrap();
        }
    });
}

/// Drops an engine and the call that it is told of when it is woken.
struct Last(
    Mutex<Option<(Engine, Held)>>,
    std::sync::mpsc::Sender<thread::ThreadId>,
);

type Held = Call<'static, inflight::fs::Metadata>;

impl Wake for Last {
    fn wake(self: Arc<Self>) {
        let last = self.0.lock().expect("nobody panics").take();
        drop(last);
        self.1.send(thread::current().id()).expect("it is heard");
    }
}

#[test]
fn the_last_handle_of_an_engine_may_be_dropped_on_a_thread_of_its_pool() {
    for queued in [0, 5] {
        let engine = Engine::builder().threads(2).build().unwrap();
        let (told, hear) = channel();
        let last = Arc::new(Last(Mutex::new(None), told));
        let mut call = metadata(ELSEWHERE).on(&engine).into_future();
        let waker = Waker::from(Arc::clone(&last));
        // Nobody can wake before both are there.
        let mut place = last.0.lock().unwrap();
        assert!(
            Pin::new(&mut call)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        for _ in 0..queued {
            // Forgotten calls keep their engine alive, so these are closings.
            let mut closing = temp_file(&engine, b"").close().into_future();
            drop(poll_once(&mut closing));
        }
        *place = Some((engine, call));
        drop(place);
        let on = hear
            .recv_timeout(patience())
            .expect("it is woken and does not hang");
        assert_ne!(on, thread::current().id());
    }
}

pub(super) fn threads_of_pools() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is there");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("inflight-pool"))
        .count()
}

/// Until those of engines that are gone are too: who has waited for the end of a thread may still
/// see it in /proc. One that is idle stays.
pub(super) fn no_threads_of_pools() {
    until("no pool has a thread", || threads_of_pools() == 0);
}

#[test]
fn an_engine_waits_for_the_calls_that_are_being_made() {
    let test = "an_engine_waits_for_the_calls_that_are_being_made";
    in_own_process(module_path!(), test, || {
        let folder = folder();
        let fifo = Fifo::new(folder.path());
        let before = entries("/proc/self/fd");
        let engine = Engine::builder().threads(3).build().unwrap();
        let mut open = fifo.opening(&engine).into_future();
        assert!(poll_once(&mut open).is_pending());
        is_in_open();
        drop(open);
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                fifo.release();
            });
            drop(engine);
            assert!(begun.elapsed() >= Duration::from_millis(20));
            no_threads_of_pools();
        });
        assert_eq!(leaked_operations(), 0);
        assert_eq!(entries("/proc/self/fd"), before);
    });
}

#[test]
fn an_engine_does_not_wait_for_ever() {
    in_own_process(module_path!(), "an_engine_does_not_wait_for_ever", || {
        let folder = folder();
        let fifo = Fifo::new(folder.path());
        let builder = Engine::builder().threads(3);
        let engine = builder.drain_for(Duration::from_millis(5)).build().unwrap();
        let mut open = fifo.opening(&engine).into_future();
        assert!(poll_once(&mut open).is_pending());
        is_in_open();
        drop(open);
        comes_to(&engine, 1);
        drop(engine);
        // A thread that has just made the other call may have the last handle for a moment.
        until("one is left", || leaked_operations() == 1);
        fifo.release();
    });
}
