//! A sync that has failed is never repeated, and never forgotten.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use inflight::fs::{File, WriteAt};
use inflight::{Batch, Engine, Faults, Operation, SyncFailed, WriteFrom, write_many};

use super::{durable_file, first_nop, with_faults};
use crate::support::fussy::Fussy;
use crate::support::{read_write, temp_path};

fn sync_failed(error: &io::Error) -> Option<SyncFailed> {
    error.get_ref()?.downcast_ref().copied()
}

/// What a write-back may leave behind, also of what is tried again where a transfer says it.
const EVERY: [i32; 12] = [
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::ETIMEDOUT,
    libc::ESTALE,
    libc::ENOMEM,
    libc::EAGAIN,
    libc::EFAULT,
    libc::EINVAL,
    libc::EOPNOTSUPP,
    libc::ENOSYS,
    libc::EACCES,
];

#[test]
fn a_failed_sync_is_told_and_every_later_one_refused() {
    for errno in EVERY {
        // Two are handed over, of which one fails; were another one, the no-op would not fail.
        let faults = |faults: Faults| faults.fail_nth(0, errno).fail_nth(2, libc::ENOMEM);
        with_faults(faults, |engine| {
            let (_path, file) = durable_file(engine);
            let (_other_path, other) = durable_file(engine);
            let mut batch = Batch::new();
            batch.push(file.sync_all());
            batch.push(other.sync_all());
            let results: Vec<_> = batch.wait().collect();
            let told = results[0].as_ref().unwrap_err();
            assert_eq!(
                (told.raw_os_error(), results[1].is_ok()),
                (Some(errno), true)
            );
            let before = engine.stats();
            assert_eq!(
                (before.retries, before.plain_calls),
                (0, 0),
                "it was repeated"
            );
            for _ in 0..3 {
                batch.push(file.sync_data());
                batch.push(file.sync_all());
                let mut errors: Vec<_> = batch.wait().map(Result::unwrap_err).collect();
                errors.push(file.sync_all().wait().unwrap_err());
                errors.push(file.sync_data().wait().unwrap_err());
                for error in errors {
                    assert_eq!(sync_failed(&error), Some(SyncFailed { errno }));
                    assert_eq!(error.kind(), io::Error::from_raw_os_error(errno).kind());
                }
            }
            assert_eq!(engine.stats().plain_calls, before.plain_calls);
            assert_eq!(
                first_nop(engine),
                Some(libc::ENOMEM),
                "a later sync was handed over"
            );
            // The other file is not concerned.
            assert!(other.sync_all().wait().is_ok());
        });
    }
}

#[test]
fn reads_and_writes_go_on_after_a_failed_sync() {
    with_faults(
        |faults| faults.refuse("fsync", libc::EIO),
        |engine| {
            let (path, file) = durable_file(engine);
            let mut batch = Batch::new();
            (0..2).for_each(|_| batch.push(file.sync_all()));
            assert!(batch.wait().all(|result| result.is_err()));
            assert_eq!(file.write_all_at(b"abc".to_vec(), 0).wait().0.unwrap(), 3);
            assert_eq!(file.read_exact_at(vec![0; 3], 0).wait().0.unwrap(), 3);
            // Another handle of the same file has seen no failure.
            let again = crate::support::open(engine, path.path());
            assert!(again.sync_all().wait().is_ok());
        },
    );
}

#[test]
fn a_read_that_fails_is_no_failed_sync() {
    let faults = |faults: Faults| faults.refuse("read", libc::EIO).refuse("readv", libc::EIO);
    with_faults(faults, |engine| {
        let (_path, file) = durable_file(engine);
        let mut reads = Batch::new();
        (0..2).for_each(|_| reads.push(file.read_at(vec![0; 2], 0).by_backend()));
        assert!(reads.wait().all(|(result, _)| result.is_err()));
        let mut lists = Batch::new();
        (0..2).for_each(|_| lists.push(file.read_vectored_at(vec![vec![0; 2]], 0).by_backend()));
        assert!(lists.wait().all(|(result, _)| result.is_err()));
        assert!(file.sync_data().wait().is_ok());
    });
}

#[test]
fn a_durable_write_that_fails_among_many_is_a_failed_sync() {
    let faults = |faults: Faults| faults.refuse("write", libc::EIO);
    with_faults(faults, |engine| {
        let (_path, file) = durable_file(engine);
        let writes = &mut [
            WriteFrom::new(&file, 0, &[1; 10]),
            WriteFrom::new(&file, 10, &[1; 10]),
        ];
        assert!(write_many(writes).is_err());
        let error = file.sync_data().wait().unwrap_err();
        assert_eq!(sync_failed(&error), Some(SyncFailed { errno: libc::EIO }));
    });
}

#[test]
fn a_failed_sync_behind_a_write_is_told_and_not_made_again() {
    for errno in EVERY {
        with_faults(
            |faults| faults.fail_nth(2, errno),
            |engine| {
                let (_path, file) = durable_file(engine);
                let (_other_path, other) = durable_file(engine);
                let mut batch = Batch::new();
                for file in [&file, &other] {
                    batch.push(file.write_at(vec![1; 512], 0).then_sync());
                }
                let results: Vec<_> = batch.wait().map(|(result, _)| result).collect();
                let failed = results.iter().filter(|result| result.is_err()).count();
                let told = results.iter().filter_map(|result| result.as_ref().err());
                let told: Vec<_> = told.map(super::everywhere::told).collect();
                assert_eq!((failed, told), (1, vec![Some(errno)]));
                assert_eq!((engine.stats().retries, engine.stats().plain_calls), (0, 0));
                let later = [&file, &other].map(|file| file.sync_data().wait());
                let refused = later.iter().filter_map(|result| result.as_ref().err());
                let refused: Vec<_> = refused.filter_map(sync_failed).collect();
                assert_eq!(refused, [SyncFailed { errno }]);
            },
        );
    }
}

/// Begins a sync and leaves without asking for its result.
type Leave = fn(&Engine, &File);

#[test]
fn a_failure_that_nobody_has_asked_for_is_not_forgotten() {
    let in_a_batch = |_: &Engine, file: &File| {
        let mut batch = Batch::new();
        (0..2).for_each(|_| batch.push(file.sync_all()));
        drop(batch.wait());
    };
    let in_a_queue = |engine: &Engine, file: &File| {
        let left = engine.queue(4, |queue| {
            (0..2).for_each(|tag| assert!(queue.push(tag, file.sync_data()).is_ok()));
        });
        left.unwrap();
    };
    let in_a_panic = |engine: &Engine, file: &File| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.queue(4, |queue| {
                (0..2).for_each(|tag| assert!(queue.push(tag, file.sync_all()).is_ok()));
                resume_unwind(Box::new("a panic that was planned"));
            })
        }));
        assert!(panicked.is_err());
    };
    let ways: [Leave; 3] = [in_a_batch, in_a_queue, in_a_panic];
    for leave in ways {
        with_faults(
            |faults| faults.refuse("fsync", libc::EIO),
            |engine| {
                let (_path, file) = durable_file(engine);
                leave(engine, &file);
                let expected = Some(SyncFailed { errno: libc::EIO });
                assert_eq!(sync_failed(&file.sync_all().wait().unwrap_err()), expected);
            },
        );
    }
}

/// Wishes for a write to be durable.
type Ask = fn(WriteAt<'_, Fussy>) -> WriteAt<'_, Fussy>;

#[test]
fn a_failure_is_not_forgotten_where_a_later_buffer_of_its_batch_panics() {
    let ways: [(&str, Ask); 2] = [
        ("fsync", |write| write.then_sync()),
        ("write", |write| write.dsync()),
    ];
    for (refused, ask) in ways {
        with_faults(
            |faults| faults.refuse(refused, libc::EIO),
            |engine| {
                let path = temp_path(b"");
                let file = read_write(engine).open(path.path()).unwrap();
                let mut batch = Batch::new();
                for buf in [Fussy::calm(1), Fussy::new(2, 1)] {
                    batch.push(ask(file.write_at(buf, 0)));
                }
                let panicked = catch_unwind(AssertUnwindSafe(|| drop(batch.wait())));
                assert!(panicked.is_err() && batch.is_empty());
                let expected = Some(SyncFailed { errno: libc::EIO });
                assert_eq!(sync_failed(&file.sync_all().wait().unwrap_err()), expected);
                assert_eq!(engine.stats().in_flight, 0);
            },
        );
    }
}
