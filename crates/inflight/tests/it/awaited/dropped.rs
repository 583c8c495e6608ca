//! Futures that are dropped or forgotten with their operations in flight, on every host.

use std::fs;
use std::future::IntoFuture;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use inflight::fs::WriteAt;
use inflight::{AnyOp, Batch, BufPool, Engine, Pending, PoolBuf, SyncFailed};

use super::hands::{Gate, Slow, drained, in_flight, on_both_hosts, on_both_hosts_with, poll_once};
use super::hands::{poll_with, telling, until_turned};
use crate::support::{directory, on_every_backend, open, pattern, temp_file, temp_path};

const PAGE: usize = 4096;

/// Opens a file with this descriptor, or with a higher one if that is taken.
fn take_over(fd: i32) -> fs::File {
    let mut others = Vec::new();
    loop {
        let file = tempfile::tempfile_in(directory()).expect("the directory can be written");
        if file.as_raw_fd() >= fd {
            return file;
        }
        others.push(file);
    }
}

/// Leaves a write in flight, closes its file, and opens others.
async fn write_to_a_closed_file(
    engine: &Engine,
    gate: &Gate,
    leave: fn(Pending<WriteAt<'_, Vec<u8>>>),
) {
    let path = temp_path(b"");
    let file = open(engine, path.path());
    let fd = file.as_fd().as_raw_fd();
    let mut write = file.write_all_at(b"late".to_vec(), 0).into_future();
    assert!(poll_once(&mut write).is_pending());
    in_flight(engine, 1).await;
    leave(write);
    drop(file);
    let other = take_over(fd);
    let len = |file: &fs::File| file.metadata().expect("it has metadata").len();
    gate.open();
    let is_written = || len(path.as_file()) > 0 || len(&other) > 0;
    until_turned("written", is_written).await;
    assert_eq!(len(&other), 0, "the wrong file was written");
    assert_eq!(fs::read(path.path()).expect("it can be read"), b"late");
}

#[test]
fn a_forgotten_write_never_reaches_another_file() {
    on_both_hosts(async |engine, gate| {
        write_to_a_closed_file(engine, gate, |write| mem::forget(write)).await;
    });
}

#[test]
fn a_dropped_write_never_reaches_another_file() {
    on_both_hosts(async |engine, gate| {
        write_to_a_closed_file(engine, gate, |write| drop(write)).await;
    });
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_device_is_done_with_it() {
    on_both_hosts(async |engine, gate| {
        let pool = BufPool::new(3, PAGE).unwrap();
        let file = temp_file(engine, &pattern(2 * PAGE));
        let take = || pool.take().expect("there are three");
        let mut reads: Vec<_> = (0..2)
            .map(|page| {
                file.read_vectored_at(vec![take()], page * PAGE as u64)
                    .by_backend()
            })
            .map(IntoFuture::into_future)
            .collect();
        for read in &mut reads {
            assert!(poll_once(read).is_pending());
        }
        in_flight(engine, 2).await;
        drop(reads);
        assert_eq!(pool.available(), 1, "a buffer came back too early");
        gate.open();
        until_turned("the buffers are back", || pool.available() == 3).await;
    });
}

#[test]
fn what_has_not_been_handed_over_is_taken_back_when_it_is_dropped() {
    let small = |builder: inflight::Builder| builder.bytes_in_flight(1);
    on_both_hosts_with(
        |faults| faults,
        small,
        async |engine, gate| {
            let pool = BufPool::new(3, PAGE).unwrap();
            let path = temp_path(b"");
            let file = open(engine, path.path());
            let mut writes: Vec<Pending<WriteAt<'_, PoolBuf>>> = (0..3)
                .map(|page| file.write_at(pool.take().unwrap(), page * PAGE as u64))
                .map(IntoFuture::into_future)
                .collect();
            for write in &mut writes {
                assert!(poll_once(write).is_pending());
            }
            in_flight(engine, 1).await;
            drop(writes.remove(1));
            assert_eq!(pool.available(), 1, "it was handed over");
            gate.open();
            for write in writes {
                assert_eq!(write.await.0.unwrap(), PAGE);
            }
            assert_eq!(pool.available(), 3);
            let content = fs::read(path.path()).unwrap();
            assert_eq!(content.len(), 3 * PAGE);
            assert_eq!(engine.stats().operations, 2, "the dropped one was run");
        },
    );
}

/// Where a future is when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    InFlight,
    Answered,
    Over,
}

async fn brought_to<'f>(
    stage: Stage,
    engine: &Engine,
    gate: &Gate,
    mut write: Pending<WriteAt<'f, PoolBuf>>,
) -> Option<Pending<WriteAt<'f, PoolBuf>>> {
    if stage == Stage::Fresh {
        return Some(write);
    }
    assert!(poll_once(&mut write).is_pending());
    in_flight(engine, 1).await;
    if stage == Stage::InFlight {
        return Some(write);
    }
    gate.open();
    if stage == Stage::Over {
        assert_eq!((&mut write).await.0.expect("it is written"), PAGE);
        return Some(write);
    }
    until_turned("answered", || engine.stats().operations == 1).await;
    Some(write)
}

#[test]
fn a_future_may_be_dropped_in_every_stage_here_and_on_another_thread() {
    for stage in [Stage::Fresh, Stage::InFlight, Stage::Answered, Stage::Over] {
        for elsewhere in [false, true] {
            on_both_hosts(async |engine, gate| {
                let _named = crate::support::Named(format!("{stage:?}, elsewhere: {elsewhere}"));
                let pool = BufPool::new(1, PAGE).unwrap();
                let path = temp_path(b"");
                let file = open(engine, path.path());
                let write = file.write_at(pool.take().unwrap(), 0).into_future();
                let write = brought_to(stage, engine, gate, write).await;
                match elsewhere {
                    true => thread::scope(|scope| scope.spawn(|| drop(write)).join().unwrap()),
                    false => drop(write),
                }
                gate.open();
                until_turned("the buffer is back", || pool.available() == 1).await;
                let written = if stage == Stage::Fresh {
                    0
                } else {
                    PAGE as u64
                };
                assert_eq!(path.as_file().metadata().unwrap().len(), written);
            });
        }
    }
}

#[test]
fn a_failed_sync_that_nobody_awaited_is_remembered() {
    for stage in [Stage::InFlight, Stage::Answered] {
        let fails = |faults: inflight::Faults| faults.refuse("fsync", libc::EIO);
        on_both_hosts_with(
            fails,
            |builder| builder,
            async |engine, gate| {
                let file = temp_file(engine, b"data");
                let mut sync = file.sync_data().into_future();
                assert!(poll_once(&mut sync).is_pending());
                in_flight(engine, 1).await;
                if stage == Stage::Answered {
                    gate.open();
                    until_turned("answered", || engine.stats().operations == 1).await;
                }
                drop(sync);
                gate.open();
                until_turned("over", || engine.drain(std::time::Duration::ZERO) == 0).await;
                let error = file.sync_all().await.unwrap_err();
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                assert_eq!(inner, Some(&SyncFailed { errno: libc::EIO }));
            },
        );
    }
}

#[test]
fn a_batch_may_be_dropped_half_answered() {
    on_both_hosts(async |engine, gate| {
        let pool = BufPool::new(8, PAGE).unwrap();
        let file = temp_file(engine, &pattern(PAGE));
        let mut batch: Batch<AnyOp<'_, PoolBuf>> = Batch::new();
        for page in 0..7 {
            let write = file.write_at(pool.take().unwrap(), page * PAGE as u64);
            batch.push(write.into());
        }
        batch.push(file.sync_data().into());
        let mut batch = batch.into_future();
        assert!(poll_once(&mut batch).is_pending());
        in_flight(engine, 8).await;
        gate.open();
        until_turned("some are over", || engine.stats().operations > 0).await;
        drop(batch);
        until_turned("the buffers are back", || pool.available() == 8).await;
    });
}

#[test]
fn a_batch_is_awaited_where_it_is_run() {
    on_every_backend(|engine| {
        let other = Engine::new().unwrap();
        let (here, there) = (temp_file(engine, b"here"), temp_file(&other, b"there"));
        for reads in [1, 50] {
            let mut batch = Batch::on(engine);
            for _ in 0..reads {
                batch.push(here.read_vectored_at(vec![vec![0; 5]], 0).by_backend());
                batch.push(there.read_vectored_at(vec![vec![0; 5]], 0).by_backend());
            }
            let before = (engine.stats().operations, other.stats().operations);
            let results = pollster::block_on(batch.into_future());
            let after = (engine.stats().operations, other.stats().operations);
            assert_eq!((after.0 - before.0, after.1 - before.1), (2 * reads, 0));
            for pair in results.chunks(2) {
                assert_eq!(
                    (pair[0].0.as_ref().unwrap(), &pair[0].1[0][..4]),
                    (&4, &b"here"[..])
                );
                assert_eq!(
                    (pair[1].0.as_ref().unwrap(), &pair[1].1[0][..]),
                    (&5, &b"there"[..])
                );
            }
        }
        // Dropped in flight, and without an engine named.
        let mut batch = Batch::new();
        (0..20).for_each(|_| batch.push(here.read_vectored_at(vec![vec![0; 5]], 0).by_backend()));
        (0..20).for_each(|_| batch.push(there.read_vectored_at(vec![vec![0; 5]], 0).by_backend()));
        let mut batch = batch.into_future();
        let _ = poll_once(&mut batch);
        drop(batch);
        drained(engine);
        drained(&other);
    });
}

/// Each is left in the engine that has it, not in its own, also when a buffer panics meanwhile.
#[test]
fn a_batch_is_left_where_it_is_run_also_when_a_buffer_panics() {
    on_both_hosts(async |engine, gate| {
        let other = Engine::new().unwrap();
        let path = temp_path(b"");
        let there = open(&other, path.path());
        let (say, dropped) = channel();
        let buf = |say: &Sender<()>| {
            let (go, goes) = channel();
            go.send(()).expect("it is listened to");
            Slow::new(say.clone(), goes)
        };
        // Nobody listens, so its drop panics.
        let bad = buf(&channel().0);
        let mut batch = Batch::on(engine);
        batch.push(there.write_at(buf(&say), 0));
        batch.push(there.write_at(bad, u64::MAX));
        batch.push(there.write_at(buf(&say), 8));
        let mut batch = batch.into_future();
        assert!(poll_once(&mut batch).is_pending());
        in_flight(engine, 2).await;
        let left = catch_unwind(AssertUnwindSafe(|| drop(batch)));
        assert!(left.is_err(), "it proves nothing");
        assert_eq!(
            dropped.try_iter().count(),
            0,
            "a buffer was freed in flight"
        );
        gate.open();
        let mut freed = 0;
        until_turned("the buffers are freed", || {
            freed += dropped.try_iter().count();
            freed == 2
        })
        .await;
    });
}

#[test]
fn whoever_was_to_be_told_is_let_go_with_the_future() {
    static WAKERS: AtomicU64 = AtomicU64::new(0);
    on_both_hosts(async |engine, gate| {
        WAKERS.store(1, Ordering::SeqCst);
        let waker = telling(|done| match done {
            super::hands::Done::Cloned => _ = WAKERS.fetch_add(1, Ordering::SeqCst),
            super::hands::Done::WokenByRef => {}
            _ => _ = WAKERS.fetch_sub(1, Ordering::SeqCst),
        });
        let mut nop = engine.nop().into_future();
        assert!(poll_with(&mut nop, &waker).is_pending());
        assert_eq!(WAKERS.load(Ordering::SeqCst), 2);
        in_flight(engine, 1).await;
        drop(nop);
        assert_eq!(
            WAKERS.load(Ordering::SeqCst),
            1,
            "a waker was kept for nothing"
        );
        drop(waker);
        assert_eq!(WAKERS.load(Ordering::SeqCst), 0);
        gate.open();
    });
}
