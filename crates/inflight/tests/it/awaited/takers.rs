//! More tasks than a pool has buffers: they wait for one.

#[cfg(feature = "faulty")]
use std::future::IntoFuture;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;

use inflight::fs::{Direct, File};
use inflight::{BufPool, Engine, PoolBuf, local};

use super::everywhere::on_every_host;
use super::hands::{Done, Watchdog, poll_once, poll_with, telling};
#[cfg(feature = "faulty")]
use super::hands::{counting, in_flight, on_both_hosts, until_turned};
#[cfg(feature = "faulty")]
use crate::support::temp_file;
use crate::support::{on_every_backend, pattern, read_write, temp_path};

const PAGE: usize = 4096;
const PAGES: u64 = 64;
const BUFS: u32 = 4;
const TASKS: u64 = 2000;

/// Reads one page into a buffer of the pool, when there is one.
async fn reads_rightly(file: &File, pool: &BufPool, content: &[u8], number: u64) {
    let page = number % PAGES * PAGE as u64;
    let mut buf = pool.take_when_free().await;
    buf.fill(0);
    let (result, buf) = file.read_exact_at(buf, page).await;
    assert_eq!(result.expect("it is read"), PAGE);
    let from = usize::try_from(page).expect("a few pages");
    assert!(buf[..] == content[from..from + PAGE], "another page");
}

/// A file, its content and a pool with fewer buffers than there are tasks.
type Setting = Arc<(File, Vec<u8>, BufPool)>;

fn on_every_setting(body: impl Fn(&Engine, &Setting)) {
    let _watchdog = Watchdog::new();
    let content = pattern(PAGE * usize::try_from(PAGES).expect("a few pages"));
    let path = temp_path(&content);
    on_every_backend(|engine| {
        for direct in [Direct::Off, Direct::Auto] {
            let file = read_write(engine).direct(direct).open(path.path());
            let file = file.expect("the file is there");
            let pool = BufPool::new(BUFS, PAGE).expect("there is memory");
            let setting = Arc::new((file, content.clone(), pool));
            body(engine, &setting);
            assert_eq!(setting.2.available(), 4);
            assert!(setting.2.take().is_some());
        }
    });
}

async fn task(setting: Setting, number: u64) {
    let (file, content, pool) = &*setting;
    reads_rightly(file, pool, content, number).await;
}

#[test]
fn two_thousand_tasks_of_a_run_loop_share_four_buffers() {
    on_every_setting(|engine, setting| {
        let run = engine.run(async {
            let spawn = |number| local::spawn(task(Arc::clone(setting), number));
            let tasks: Vec<_> = (0..TASKS).map(spawn).collect();
            for task in tasks {
                task.await;
            }
        });
        run.unwrap();
    });
}

#[test]
fn two_thousand_tasks_of_several_threads_share_four_buffers() {
    on_every_setting(|_, setting| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let spawn = |number| tokio::spawn(task(Arc::clone(setting), number));
            let tasks: Vec<_> = (0..TASKS).map(spawn).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn threads_without_a_runtime_and_loops_share_four_buffers() {
    const THREADS: u64 = 16;
    on_every_setting(|engine, setting| {
        thread::scope(|scope| {
            for number in 0..THREADS {
                scope.spawn(move || {
                    for at in 0..TASKS / THREADS {
                        let task = task(Arc::clone(setting), at * THREADS + number);
                        match number % 2 {
                            0 => pollster::block_on(task),
                            _ => engine.run(task).unwrap(),
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn threads_that_take_and_leave_lose_no_buffer() {
    const THREADS: u8 = 4;
    const EACH: u64 = 20_000;
    let _watchdog = Watchdog::new();
    let pool = BufPool::new(2, 8).unwrap();
    let run = |own: u8| {
        let mut left = Vec::new();
        for n in 0..EACH {
            // Some are left: before they are woken, or after, or while they are.
            if (n + u64::from(own)).is_multiple_of(3) {
                let mut taker = pool.take_when_free();
                drop(poll_once(&mut taker));
                left.push(taker);
                continue;
            }
            left.clear();
            let mut buf = pollster::block_on(pool.take_when_free());
            buf.fill(own);
            thread::yield_now();
            assert!(buf.iter().all(|byte| *byte == own), "two have it");
        }
    };
    thread::scope(|scope| {
        for own in 0..THREADS {
            let run = &run;
            scope.spawn(move || run(own));
        }
    });
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_buffer_is_waited_for_on_every_runtime() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        on_every_host(engine, async || {
            let pool = BufPool::new(1, PAGE).expect("there is memory");
            let held = pool.take().expect("it is free");
            let back = thread::spawn(move || drop(held));
            drop(pool.take_when_free().await);
            back.join().expect("no panic");
            assert_eq!(pool.available(), 1);
        });
    });
}

#[test]
fn an_aborted_task_gives_its_turn_up() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        let run = engine.run(async {
            let pool = BufPool::new(1, PAGE).unwrap();
            let held = pool.take().unwrap();
            let spawn = || local::spawn(pool.take_when_free());
            let [first, second, third] = [spawn(), spawn(), spawn()];
            local::yield_now().await;
            first.abort();
            drop(held);
            // It has been handed the buffer and is yet to be polled.
            second.abort();
            drop(third.await);
            assert_eq!(pool.available(), 1);
        });
        run.unwrap();
    });
}

#[cfg(feature = "faulty")]
#[test]
fn the_buffer_of_a_read_that_was_left_goes_to_who_waits() {
    on_both_hosts(async |engine, gate| {
        let pool = BufPool::new(1, PAGE).unwrap();
        let file = temp_file(engine, &pattern(PAGE));
        let bufs = vec![pool.take().unwrap()];
        let mut read = file.read_vectored_at(bufs, 0).by_backend().into_future();
        assert!(poll_once(&mut read).is_pending());
        in_flight(engine, 1).await;
        drop(read);
        let (counter, waker) = counting();
        let mut taker = pool.take_when_free();
        assert!(poll_with(&mut taker, &waker).is_pending());
        gate.open();
        until_turned("woken", || counter.count() == 1).await;
        assert!(poll_with(&mut taker, &waker).is_ready());
    });
}

/// Does this to `pool` in whatever is done to a waker.
fn meddling(pool: &BufPool, but_not: Option<Done>, then: fn(&BufPool)) -> Waker {
    let pool = pool.clone();
    telling(move |done| {
        if Some(done) != but_not {
            then(&pool);
        }
    })
}

/// Panics without a report.
fn bang(_: &BufPool) {
    resume_unwind(Box::new("bang"))
}

fn uses(pool: &BufPool) {
    drop(pool.take());
    let mut other = pool.take_when_free();
    drop(poll_once(&mut other));
    drop(other);
    pool.available();
}

#[test]
fn wakers_may_use_the_pool() {
    let _watchdog = Watchdog::new();
    let pool = BufPool::new(1, PAGE).unwrap();
    for is_dropped in [false, true] {
        let held = pool.take().unwrap();
        let mut taker = pool.take_when_free();
        for _ in 0..3 {
            assert!(poll_with(&mut taker, &meddling(&pool, None, uses)).is_pending());
        }
        let mut next = pool.take_when_free();
        assert!(poll_with(&mut next, &meddling(&pool, None, uses)).is_pending());
        drop(held);
        if !is_dropped {
            assert!(poll_once(&mut taker).is_ready());
        }
        drop(taker);
        assert!(poll_once(&mut next).is_ready());
        assert_eq!(pool.available(), 1);
    }
}

#[test]
fn wakers_that_panic_lose_no_buffer() {
    let pool = BufPool::new(1, PAGE).unwrap();
    let held = pool.take().unwrap();
    // Woken, dropped for another one, and dropped with the future.
    let mut one = pool.take_when_free();
    let bad = || meddling(&pool, Some(Done::Cloned), bang);
    for _ in 0..2 {
        let (bad, polled) = (bad(), &mut one);
        assert!(poll_with(polled, &bad).is_pending());
        std::mem::forget(bad);
    }
    let mut two = pool.take_when_free();
    let own = bad();
    assert!(poll_with(&mut two, &own).is_pending());
    drop(two);
    std::mem::forget(own);
    drop(held);
    assert!(pool.take().is_none());
    assert!(poll_once(&mut one).is_ready());
    // Cloned: the poll panics, and it does not wait.
    let held = pool.take().unwrap();
    let uncloned = telling(|done| {
        if done == Done::Cloned {
            resume_unwind(Box::new("bang"));
        }
    });
    let polled = catch_unwind(AssertUnwindSafe(|| poll_with(&mut one, &uncloned)));
    assert!(polled.is_err());
    drop(held);
    assert_eq!(pool.available(), 1);
}

#[test]
fn a_buffer_that_comes_back_while_the_waker_is_cloned_is_seen() {
    let pool = BufPool::new(1, PAGE).unwrap();
    for is_known in [false, true] {
        let held: Arc<Mutex<Option<PoolBuf>>> = Arc::new(Mutex::new(pool.take()));
        let mut taker = pool.take_when_free();
        if is_known {
            assert!(poll_once(&mut taker).is_pending());
        }
        let gives = Arc::clone(&held);
        let waker = telling(move |done| {
            if done == Done::Cloned {
                let buf = gives.lock().expect("nobody has panicked").take();
                drop(buf);
            }
        });
        assert!(poll_with(&mut taker, &waker).is_ready());
        assert_eq!(pool.available(), 1);
    }
}

#[test]
fn a_future_that_is_forgotten_keeps_one_buffer_from_the_others_at_most() {
    let pool = BufPool::new(2, PAGE).unwrap();
    let held = [pool.take().unwrap(), pool.take().unwrap()];
    let mut taker = pool.take_when_free();
    assert!(poll_once(&mut taker).is_pending());
    std::mem::forget(taker);
    drop(held);
    assert_eq!(pool.available(), 1);
}
