//! What a faulty backend makes of wishes; most of all of the sync behind a write: when it is made,
//! when not, and what becomes of its failure.

use std::fs;
use std::io;

use inflight::fs::{AnyRange, Direct, File};
use inflight::{Batch, Engine, Faults, Operation, Partial, SyncFailed};

use super::by_every_host;
use crate::support::{Named, pattern, read_write, seeds, skip, temp_path};

/// Runs `body` with the faults of every seed that `configure` adds to.
fn with_faults(configure: impl Fn(Faults) -> Faults, body: impl Fn(&Engine)) {
    for seed in seeds() {
        let _named = Named(format!("seed {seed}"));
        let engine = Engine::builder().faults(configure(Faults::new(seed)));
        body(&engine.build().expect("nothing is demanded"));
    }
}

fn open(engine: &Engine) -> (tempfile::NamedTempFile, File) {
    let path = temp_path(b"");
    let file = read_write(engine).open(path.path()).expect("it is there");
    (path, file)
}

fn cause<T: std::error::Error + Copy + 'static>(error: &io::Error) -> Option<T> {
    error.get_ref()?.downcast_ref().copied()
}

/// Writes two of these in one batch.
fn two(file: &File, data: &[u8]) -> Vec<io::Result<usize>> {
    let mut batch = Batch::new();
    for _ in 0..2 {
        batch.push(file.write_at(data.to_vec(), 0).then_sync());
    }
    batch.wait().map(|(result, _)| result).collect()
}

#[test]
fn short_writes_are_resumed_and_then_synced() {
    with_faults(
        |faults| faults.short_transfers(700),
        |engine| {
            let (path, file) = open(engine);
            let data = pattern(20_000);
            for (result, _) in by_every_host!(engine, file.write_at(data.clone(), 0).then_sync()) {
                assert_eq!(result.unwrap(), data.len());
            }
            assert!(fs::read(path.path()).unwrap() == data);
            assert!(engine.stats().short_transfers > 0);
            fs::write(path.path(), b"").unwrap();
            let pieces = || data.chunks(777).map(<[u8]>::to_vec).collect();
            for (result, _) in
                by_every_host!(engine, file.write_vectored_at(pieces(), 0).then_sync())
            {
                assert_eq!(result.unwrap(), data.len());
            }
            assert!(fs::read(path.path()).unwrap() == data);
        },
    );
}

#[test]
fn a_sync_that_fails_behind_a_write_is_told_and_sticks() {
    for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT] {
        with_faults(
            |faults| faults.refuse("fsync", errno),
            |engine| {
                let (path, file) = open(engine);
                for result in two(&file, b"hello") {
                    let partial: Partial = cause(&result.unwrap_err()).expect("all was written");
                    assert_eq!((partial.done_bytes, partial.errno), (5, errno));
                }
                assert_eq!(fs::read(path.path()).unwrap(), b"hello");
                // Later ones are refused before anything is written.
                for (result, _) in
                    by_every_host!(engine, file.write_at(b"later".to_vec(), 0).then_sync())
                {
                    assert_eq!(cause(&result.unwrap_err()), Some(SyncFailed { errno }));
                }
                let error = file.sync_all().wait().unwrap_err();
                assert_eq!(cause(&error), Some(SyncFailed { errno }));
                assert_eq!(fs::read(path.path()).unwrap(), b"hello");
            },
        );
    }
}

#[test]
fn after_a_failed_sync_that_is_told_before_how_a_write_would_fit() {
    with_faults(
        |faults| faults.refuse("fsync", libc::EIO),
        |engine| {
            let path = temp_path(&[0; 8192]);
            let direct = read_write(engine).direct(Direct::Required);
            let direct = direct.any_range(AnyRange::ReadsAndWrites);
            let Ok(file) = direct.open(path.path()) else {
                return skip("a write that does not fit", "there is no direct I/O here");
            };
            let mut syncs: Batch<_> = (0..2).map(|_| file.sync_data()).collect();
            assert!(syncs.wait().all(|result| result.is_err()));
            let write = || file.write_at(b"hello".to_vec(), 1).then_sync();
            let list = || {
                file.write_vectored_at(vec![b"hello".to_vec()], 1)
                    .then_sync()
            };
            for result in [write().wait().0, list().wait().0] {
                let told = cause(&result.unwrap_err());
                assert_eq!(told, Some(SyncFailed { errno: libc::EIO }));
            }
        },
    );
}

#[test]
fn a_sync_that_fails_behind_a_write_sticks_also_if_nobody_waits() {
    with_faults(
        |faults| faults.refuse("fsync", libc::EIO),
        |engine| {
            let (_path, file) = open(engine);
            let write = file.write_at(b"hello".to_vec(), 0).then_sync();
            let mut write = Box::pin(write.into_future());
            let waker = std::task::Waker::noop();
            let mut cx = std::task::Context::from_waker(waker);
            // Whether it is over by now or not, it is dropped.
            let _ = write.as_mut().poll(&mut cx);
            drop(write);
            assert_eq!(engine.drain(std::time::Duration::from_secs(60)), 0);
            // It may have been taken back before it was handed over: then nothing has failed.
            if engine.stats().operations > 0 {
                let error = file.sync_all().wait().unwrap_err();
                assert_eq!(cause(&error), Some(SyncFailed { errno: libc::EIO }));
            }
        },
    );
}

#[test]
fn a_write_that_fails_is_not_followed_by_a_sync() {
    // Were there a sync, it would fail, and that would stick.
    let faults = |faults: Faults| {
        faults
            .refuse("write", libc::ENOSPC)
            .refuse("fsync", libc::EIO)
    };
    with_faults(faults, |engine| {
        let (_path, file) = open(engine);
        for result in two(&file, b"hello") {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        }
        file.sync_all()
            .wait()
            .expect("a plain call does not fail here");
    });
}

#[test]
fn a_durable_write_that_fails_sticks_as_a_sync_would() {
    for (errno, sticks) in [(libc::EIO, true), (libc::ENOSPC, false)] {
        with_faults(
            |faults| faults.refuse("write", errno),
            |engine| {
                let (_path, file) = open(engine);
                let mut batch = Batch::new();
                for _ in 0..2 {
                    batch.push(file.write_at(b"hello".to_vec(), 0).dsync());
                }
                for (result, _) in batch.wait() {
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
                }
                let synced = file.sync_all().wait();
                assert_eq!(synced.is_err(), sticks, "errno {errno}");
            },
        );
    }
}

#[test]
fn a_ring_that_breaks_between_write_and_sync_loses_neither() {
    for after in 0..6 {
        with_faults(
            |faults| faults.break_after(after),
            |engine| {
                let (path, file) = open(engine);
                for result in two(&file, b"hello") {
                    assert_eq!(result.unwrap(), 5);
                }
                assert_eq!(fs::read(path.path()).unwrap(), b"hello");
            },
        );
    }
}

#[test]
fn what_may_not_wait_is_not_tried_again() {
    with_faults(
        |faults| faults.refuse("read", libc::EAGAIN),
        |engine| {
            let path = temp_path(&pattern(8192));
            let options = read_write(engine).direct(Direct::Required);
            let Ok(file) = options.open(path.path()) else {
                return skip("direct reads that may not wait", "there is no direct I/O");
            };
            let mut batch = Batch::new();
            for _ in 0..2 {
                let read = file.read_at(file.aligned_buf(4096).unwrap(), 0);
                batch.push(read.no_wait());
            }
            for (result, _) in batch.wait() {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
            }
            let stats = engine.stats();
            assert_eq!((stats.retries, stats.plain_calls), (0, 0), "{stats:?}");
        },
    );
}

#[test]
fn a_backend_that_refuses_hints_is_asked_without_them_and_then_a_plain_call_is() {
    for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS] {
        with_faults(
            |faults| faults.refuse("write", errno),
            |engine| {
                let (path, file) = open(engine);
                let mut batch = Batch::new();
                let write = || file.write_at(b"hello".to_vec(), 0).dsync().dont_cache();
                (0..2).for_each(|_| batch.push(write()));
                for (result, _) in batch.wait() {
                    assert_eq!(result.unwrap(), 5);
                }
                assert_eq!(fs::read(path.path()).unwrap(), b"hello");
                let stats = engine.stats();
                assert_eq!(
                    (stats.hints_unheard, stats.plain_calls),
                    (2, 2),
                    "{stats:?}"
                );
            },
        );
    }
}
