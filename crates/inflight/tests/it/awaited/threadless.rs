//! Where no thread can be started for what is awaited outside a run loop.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use inflight::fs::{AllocateRange, File};
use inflight::{Batch, Engine, NoThread};
use tempfile::TempDir;

use super::hands::{Watchdog, poll_once, until_turned};
use crate::denied::refuse_threads;
use crate::support::fifo::Fifo;
use crate::support::{directory, on_every_backend, pattern, read_write, temp_path};

const LEN: usize = 64;

/// Runs `body` on a thread that can start no other, with a file that can be read and written.
fn without_threads(engine: &Engine, body: impl FnOnce(&File) + Send) {
    let path = temp_path(&pattern(LEN));
    let file = read_write(engine).open(path.path()).expect("it is there");
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            refuse_threads();
            body(&file);
        });
        run.join().expect("no failure");
    });
}

/// Has a thread of the pool do something, which stays for what comes next.
fn start_the_pool(engine: &Engine) {
    let path = temp_path(b"");
    let other = read_write(engine).open(path.path()).expect("it is there");
    let truncated = pollster::block_on(other.truncate(1).into_future());
    truncated.expect("a thread of the pool has done it");
}

fn read(file: &File) -> (io::Result<usize>, Vec<Vec<u8>>) {
    let read = file.read_vectored_at(vec![vec![0; LEN]], 0).by_backend();
    pollster::block_on(read.into_future())
}

fn says_why(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.is_some_and(|NoThread { cause }| cause.raw_os_error() == Some(libc::EAGAIN))
}

#[test]
fn what_is_awaited_says_that_there_is_no_thread_and_how_to_have_one() {
    on_every_backend(|engine| {
        without_threads(engine, |file| {
            let (result, bufs) = read(file);
            let error = result.expect_err("nobody can read it");
            assert!(says_why(&error), "{error:?}");
            assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
            assert_eq!(bufs[0].len(), LEN);
            let mut batch = Batch::on(engine);
            (0..3).for_each(|_| batch.push(engine.nop()));
            let results = pollster::block_on(batch.into_future());
            let error = |result: io::Result<()>| result.expect_err("nobody can do it");
            assert!(results.into_iter().map(error).all(|error| says_why(&error)));
            let slept = pollster::block_on(engine.sleep(Duration::from_millis(1)));
            assert!(says_why(&slept.expect_err("nobody tells the time")));
        });
        // There are threads again.
        let nop = pollster::block_on(engine.nop().into_future());
        nop.expect("a no-op cannot fail");
    });
}

#[test]
fn what_is_awaited_without_a_driver_is_made_by_the_pool_if_that_has_a_thread() {
    on_every_backend(|engine| {
        start_the_pool(engine);
        without_threads(engine, |file| {
            let (result, bufs) = read(file);
            assert_eq!(
                (result.expect("it is read"), &bufs[0]),
                (LEN, &pattern(LEN))
            );
            let mut batch = Batch::on(engine);
            (0..3).for_each(|_| batch.push(engine.nop()));
            let results = pollster::block_on(batch.into_future());
            assert!(results.into_iter().all(|result| result.is_ok()));
        });
        assert_eq!(engine.stats().in_flight, 0);
    });
}

/// It waits for whoever opens the other end, and what comes after it would wait for it.
#[test]
fn an_open_without_end_does_not_take_the_only_thread_there_is() {
    on_every_backend(|engine| {
        let folder = TempDir::new_in(directory()).expect("the test directory can be written");
        let fifo = Fifo::new(folder.path());
        start_the_pool(engine);
        without_threads(engine, |file| {
            let mut opening = fifo.opening(engine).into_future();
            let Poll::Ready(opened) = poll_once(&mut opening) else {
                fifo.release();
                panic!("a thread was taken");
            };
            assert!(says_why(&opened.expect_err("there is no other thread")));
            pollster::block_on(file.sync_data().into_future()).expect("it is synced");
            let truncated = pollster::block_on(file.truncate(1).into_future());
            truncated.expect("the pool does it");
        });
    });
}

#[test]
fn a_driver_that_has_no_thread_is_not_tried_for_with_each_operation() {
    on_every_backend(|engine| {
        start_the_pool(engine);
        without_threads(engine, |file| {
            let begun = Instant::now();
            for _ in 0..1000 {
                assert_eq!(read(file).0.expect("the pool reads it"), LEN);
            }
            let most = 1 + begun.elapsed().as_millis() / 10;
            let fallbacks = engine.stats().fallbacks.into_iter();
            let of_drivers = fallbacks.filter(|one| one.reason.starts_with("no driver"));
            let tries: u64 = of_drivers.map(|one| one.count).sum();
            assert!(u128::from(tries) <= most, "{tries} tries, at most {most}");
        });
    });
}

#[test]
fn a_loop_that_is_always_busy_makes_what_no_thread_does() {
    on_every_backend(|engine| {
        without_threads(engine, |file| {
            let run = engine.run(async {
                let mut operations = pin!(async {
                    let reserve = file.allocate(AllocateRange::Reserve, 0, 8192);
                    if let Err(error) = reserve.await {
                        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                    }
                    let read = file.read_vectored_at(vec![vec![0; LEN]], 0).by_backend();
                    assert_eq!(read.await.0.expect("it is read"), LEN);
                    file.sync_data().await.expect("it is synced");
                });
                let mut context = Context::from_waker(Waker::noop());
                let is_over = || operations.as_mut().poll(&mut context).is_ready();
                until_turned("made", is_over).await;
            });
            run.expect("nothing is demanded");
        });
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn an_inner_loop_makes_what_an_outer_one_has_for_a_thread() {
    let _watchdog = Watchdog::new();
    on_every_backend(|engine| {
        without_threads(engine, |file| {
            let outer = engine.run(async {
                let write = || file.write_at(vec![1; LEN], 0).then_sync().into_future();
                let mut writes = [write(), write()];
                assert!(writes.iter_mut().all(|write| poll_once(write).is_pending()));
                for write in writes {
                    let (written, _) = engine.run(write).expect("a loop can be had");
                    assert_eq!(written.expect("this thread makes it"), LEN);
                }
            });
            outer.expect("a loop can be had");
        });
    });
}
